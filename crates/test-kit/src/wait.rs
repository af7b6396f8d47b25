//! Waiting for what another thread or process does.

use std::time::{Duration, Instant};

/// Waits for a condition.
///
/// # Panics
/// With the state, when the condition does not come: after longer than anything takes on a machine
/// with other work.
pub fn wait_until(mut condition: impl FnMut() -> bool, state: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {}", state());
        std::thread::sleep(LOOK_EVERY);
    }
}

const PATIENCE: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(2);
