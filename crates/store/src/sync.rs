//! What code takes that is also compiled for a model checker, which has its own (`tests/interleavings.rs`).

pub use std::sync::{Condvar, Mutex, MutexGuard};
