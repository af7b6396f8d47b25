//! The atomics of code that is also compiled for a model checker, which has its own (`tests/gate.rs`).

pub use std::sync::atomic::{AtomicU8, Ordering};
