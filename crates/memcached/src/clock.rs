//! The clocks of a process: one that never jumps, and the time since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of a clock that never jumps, and goes on while the machine sleeps: leases run out then, too.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("time since the start");
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).expect("a part of a second")
}

/// The time since 1970, as the system says. It may jump: what depends on it follows at a [`Pace`].
///
/// [`Pace`]: cenote_kv::group::pace::Pace
pub(super) fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Its whole seconds.
pub(super) fn clock() -> u64 {
    since_1970().as_secs()
}
