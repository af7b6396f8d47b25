//! What the lock-free pieces take their atomics from: `tests/log_loom.rs` compiles them with those
//! of a model checker.

pub use std::sync::Mutex;
pub use std::sync::atomic::{AtomicU64, Ordering, fence};
pub use std::thread::yield_now;
