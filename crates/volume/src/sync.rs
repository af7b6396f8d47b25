//! The atomics of code that is also compiled for a model checker, which has its own (`tests/gate.rs`,
//! `tests/protocols_loom.rs`).

pub use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
pub use std::sync::{Condvar, Mutex, MutexGuard};
