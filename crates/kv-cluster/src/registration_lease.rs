//! Until when a node's registration surely stands.
//!
//! The registrar notes each renewal, the lanes read it. It is counted from before the renewal was asked for,
//! and less than the lease lasts, so that it is over here before it can be over at the store: whoever acts on
//! an expired registration finds that its node serves nothing any more by itself.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::registrar::{COUNTED, RENEWAL};
use super::store::LeaseId;

/// How long after a renewal was asked for the next one is surely answered, if the store is there.
const HEARD: Duration = RENEWAL.saturating_add(Duration::from_secs(1));

/// See the [module](self). Times in nanoseconds of the clock that leases use.
#[derive(Debug, Default)]
pub struct RegistrationLease(Mutex<Option<(LeaseId, u64)>>);

impl RegistrationLease {
    /// The registration goes with this lease, and stands until then.
    pub fn renew(&self, lease: LeaseId, until: u64) {
        *self.held() = Some((lease, until));
    }

    /// The lease that the registration goes with, if it surely stands.
    #[must_use]
    pub fn lease_at(&self, now: u64) -> Option<LeaseId> {
        let held = *self.held();
        held.filter(|(_, until)| now < *until)
            .map(|(lease, _)| lease)
    }

    /// Whether the store has renewed it lately, and so decides soon what it is asked.
    #[must_use]
    pub fn is_fresh(&self, now: u64) -> bool {
        let left = (COUNTED - HEARD).as_nanos();
        self.held()
            .is_some_and(|(_, until)| u128::from(until.saturating_sub(now)) > left)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<(LeaseId, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_fresh_until_its_next_renewal_is_late() {
        let at = |time: Duration| u64::try_from(time.as_nanos()).expect("a short time");
        let lease = RegistrationLease::default();
        assert!(!lease.is_fresh(0), "there was none");
        let asked = Duration::from_secs(100);
        lease.renew(LeaseId(7), at(asked + COUNTED));
        assert!(lease.is_fresh(at(asked + RENEWAL)));
        assert!(!lease.is_fresh(at(asked + HEARD)));
        assert!(lease.lease_at(at(asked + HEARD)).is_some(), "it stands");
        assert!(!lease.is_fresh(at(asked + COUNTED + HEARD)));
    }
}
