//! Until when a node's registration surely stands.
//!
//! The registrar notes each renewal, the lanes read it. It is counted from before the renewal was asked for,
//! and less than the lease lasts, so that it is over here before it can be over at the store: whoever acts on
//! an expired registration finds that its node serves nothing any more by itself.

use std::sync::{Mutex, PoisonError};

use super::store::LeaseId;

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

    fn held(&self) -> std::sync::MutexGuard<'_, Option<(LeaseId, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
