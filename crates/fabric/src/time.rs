//! Points in time, in nanoseconds since an arbitrary start; passed in, never read inside a core.

use std::time::Duration;

/// Monotonic time in nanoseconds. Virtual under simulation.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Time(pub u64);

impl Time {
    /// Reads the machine's monotonic clock, which goes on while the machine is suspended: leases that
    /// others count on run out then, too. Costs about 40 ns; call it per batch, not per verb.
    #[must_use]
    pub fn now() -> Self {
        let mut spec = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `spec` is a valid timespec for the call to fill; CLOCK_BOOTTIME always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut spec) };
        Self(spec.tv_sec.unsigned_abs() * 1_000_000_000 + spec.tv_nsec.unsigned_abs())
    }

    /// This time plus `duration`, saturating.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// Time passed since `earlier`, zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
