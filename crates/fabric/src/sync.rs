//! The atomics of code that is also compiled for a model checker, which has its own
//! (`tests/protocols_loom.rs`).

pub use std::sync::Mutex;
pub use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub use std::thread::yield_now;
