//! What nodes need of the store that they agree in: etcd, or what stands for it in the simulator.
//!
//! Calls may block and may be repeated without harm. What is unreachable may or may not have been done.

use std::time::Duration;

use super::etcd::{Entry, EtcdError, LeaseId, Listing, Swap};

/// See the [module](self).
pub trait Store {
    /// One key; `None` when it is not there.
    ///
    /// # Errors
    /// See [`EtcdError`], here and below.
    fn read(&self, key: &str) -> Result<Option<Entry>, EtcdError>;

    /// Sets a key if its last change was at `expected` (0: if it is not there), for as long as the lease lasts.
    ///
    /// # Errors
    /// As above.
    fn swap(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        lease: Option<LeaseId>,
    ) -> Result<Swap, EtcdError>;

    /// As [`Store::swap`] without a lease, and only if the last changes of other keys were at these revisions (0: it is
    /// not there). [`Swap::Changed`] with what was expected: one of the others was changed.
    ///
    /// # Errors
    /// As above.
    fn swap_with(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        others: &[(String, i64)],
    ) -> Result<Swap, EtcdError>;

    /// All keys that start with `prefix`, at one moment.
    ///
    /// # Errors
    /// As above.
    fn list(&self, prefix: &str) -> Result<Listing, EtcdError>;

    /// A new lease that lasts `ttl` beyond its last renewal.
    ///
    /// # Errors
    /// As above.
    fn grant(&self, ttl: Duration) -> Result<LeaseId, EtcdError>;

    /// Renews a lease; false: it is gone, with its keys.
    ///
    /// # Errors
    /// As above.
    fn renew(&self, lease: LeaseId) -> Result<bool, EtcdError>;

    /// Ends a lease, with its keys.
    ///
    /// # Errors
    /// As above.
    fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError>;
}

#[cfg(test)]
pub(super) mod memory;
