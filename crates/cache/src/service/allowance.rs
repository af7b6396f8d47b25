//! How much of the manager's time one client may take, so that one that floods hinders nobody else.
//!
//! A bucket of tokens that fills with time. Pure: time is passed in.

use cenote_fabric::Time;

use super::injected_faults::{InjectedFault, is_injected};

/// What a client asked for lately.
#[derive(Debug)]
pub struct Allowance {
    /// Tokens that time has not filled in again.
    spent: f64,
    filled_at: Time,
}

impl Allowance {
    /// A full bucket.
    #[must_use]
    pub fn new(now: Time) -> Self {
        Self {
            spent: 0.0,
            filled_at: now,
        }
    }

    /// Takes `cost` tokens; false: there are too few, and none is taken. The bucket is that of a cache of
    /// so many regions as there are now: a client answers once for each change of each region.
    pub fn take(&mut self, now: Time, regions: usize, cost: u32) -> bool {
        let regions = f64::from(u32::try_from(regions).unwrap_or(u32::MAX));
        let (most, per_second) = (2000.0 + 8.0 * regions, 1000.0 + 2.0 * regions);
        let passed = now.since(self.filled_at).as_secs_f64();
        self.filled_at = now;
        self.spent = (self.spent - passed * per_second).max(0.0);
        let spent = self.spent + f64::from(cost);
        let has = spent <= most || is_injected(InjectedFault::NoAllowance);
        if has {
            self.spent = spent;
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_ends_an_allowance_and_time_fills_it_again() {
        let now = Time(1);
        let mut allowance = Allowance::new(now);
        let taken = (0..10_000).filter(|_| allowance.take(now, 0, 1)).count();
        assert_eq!(taken, 2000);
        let later = now.after(Duration::from_millis(100));
        let taken = (0..10_000).filter(|_| allowance.take(later, 0, 1)).count();
        assert_eq!(taken, 100);
        assert!(
            allowance.take(later.after(Duration::from_secs(60)), 0, 2000),
            "no more than full"
        );
    }

    #[test]
    fn a_cache_that_grows_lets_its_clients_answer_for_what_is_new() {
        let now = Time(1);
        let mut allowance = Allowance::new(now);
        assert!(allowance.take(now, 4, 2000));
        assert!(!allowance.take(now, 4, 4000));
        let said = (0..4).filter(|_| allowance.take(now, 4004, 1000)).count();
        assert_eq!(said, 4);
    }
}
