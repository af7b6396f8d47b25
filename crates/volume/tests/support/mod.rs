//! What the tests of a volume use: hosts, and what goes wrong between them and it.

#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

use std::sync::atomic::{AtomicBool, Ordering};

pub mod backed_volume;
pub mod disk;
pub mod operator;
pub mod relay;
pub mod replacement;
pub mod rot;
pub mod tardy;

pub use cenote_test_kit::cluster::{
    Cluster, Transport, assert_pages, wait_changed, wait_for, wait_for_health,
};
pub use cenote_test_kit::{Random, guard, page, wait_until};

use cenote_volume::{Mode, Resilience};

/// A scheme in its usual mode.
pub fn usual(scheme: &str) -> Resilience {
    Resilience::of(scheme.parse().unwrap())
}

pub fn in_mode(scheme: &str, mode: Mode, delta: usize) -> Resilience {
    Resilience::new(scheme.parse().unwrap(), mode, delta).unwrap()
}

/// Ends what looks at a flag, also when the test fails: a scope waits for its threads.
pub struct StopWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
