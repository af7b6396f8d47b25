//! Keeps a node's registration: writes it under a lease, renews that, and writes it again where it was lost.
//!
//! Pure but for the [`Store`]: whoever drives it says what time it is, and whether the node serves. Of two
//! processes of one name the one with the greater incarnation has the registration; the other one ends.

use std::sync::Arc;
use std::time::Duration;

use super::config::{DocumentError, Registration};
use super::registration_lease::RegistrationLease;
use super::store::{EtcdError, LeaseId, Store, Swap};
use crate::injected_faults::{InjectedFault, is_injected};

/// How long a registration stays when nobody renews it.
pub const LEASE: Duration = Duration::from_secs(10);
/// How long after a renewal was asked for its node counts on it: less than the lease by what clocks may differ,
/// and a machine that stands still between two looks at the time.
pub const COUNTED: Duration = Duration::from_secs(9);
/// Between two renewals.
pub const RENEWAL: Duration = Duration::from_secs(3);
/// Tries to write a registration that others change meanwhile.
const TRIES: usize = 4;

/// Why a turn came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum RegistrarError {
    /// The store; worth another try.
    #[error(transparent)]
    Store(#[from] EtcdError),
    /// What is registered makes no sense.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// A later process of the same name is registered.
    #[error("another process has taken the place of node {0}")]
    Replaced(String),
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Turned {
    /// The registration is what it was.
    Kept,
    /// It was not there, and is.
    Written,
    /// This node does not serve: nothing was done.
    Left,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Registrar {
    key: String,
    registration: Registration,
    lease: Option<LeaseId>,
    registration_lease: Arc<RegistrationLease>,
}

impl Registrar {
    /// One that has registered nothing yet.
    #[must_use]
    pub fn new(
        key: String,
        registration: Registration,
        registration_lease: Arc<RegistrationLease>,
    ) -> Self {
        Self {
            key,
            registration,
            lease: None,
            registration_lease,
        }
    }

    /// What is to be written should it have to be written again.
    pub fn change(&mut self, registration: Registration) {
        self.registration = registration;
    }

    /// The lease, to be given back at the end.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        self.lease
    }

    /// Renews the registration or writes it again; to be called every [`RENEWAL`]. `now` is the time before it,
    /// in nanoseconds. A node that does not serve does not stay registered.
    ///
    /// A registration that has to be written again ran out, or went with all that the store had: a watch may have
    /// missed that, where the store that came back has gone on past the last revision that was told. All of it is to
    /// be read again then.
    ///
    /// # Errors
    /// See [`RegistrarError`].
    pub fn turn(
        &mut self,
        store: &impl Store,
        now: u64,
        serves: bool,
    ) -> Result<Turned, RegistrarError> {
        if !serves && !is_injected(InjectedFault::DeafLease) {
            return Ok(Turned::Left);
        }
        if let Some(lease) = self.lease {
            if store.renew(lease)? {
                self.registration_lease.renew(lease, until(now));
                return Ok(Turned::Kept);
            }
            tracing::warn!(key = self.key, "the registration is gone: register again");
            self.lease = None;
        }
        let lease = store.grant(LEASE)?;
        let written = self.write(store, lease);
        if written.is_err() {
            // Whether it was written or not: it is not to stand for a process that does not know of it.
            if let Err(error) = store.revoke(lease) {
                tracing::debug!(%error, "give a lease back");
            }
        }
        written?;
        self.lease = Some(lease);
        self.registration_lease.renew(lease, until(now));
        Ok(Turned::Written)
    }

    fn write(&self, store: &impl Store, lease: LeaseId) -> Result<(), RegistrarError> {
        let bytes = self.registration.to_bytes();
        let mut found = store.read(&self.key)?;
        for _ in 0..TRIES {
            let mut expected = 0;
            if let Some(entry) = &found {
                expected = entry.mod_revision;
                if let Ok(other) = Registration::parse(&self.key, &entry.value)
                    && other.incarnation > self.registration.incarnation
                    && !is_injected(InjectedFault::BlindClaim)
                {
                    return Err(RegistrarError::Replaced(self.registration.name.clone()));
                }
            }
            match store.swap(&self.key, expected, &bytes, Some(lease))? {
                // A swap takes what an earlier try of ours wrote, with an earlier lease, for its own.
                Swap::Done(_) => match store.read(&self.key)? {
                    Some(entry) if entry.lease == Some(lease) => return Ok(()),
                    other => found = other,
                },
                Swap::Changed(other) => found = other,
            }
        }
        Err(EtcdError::Malformed(format!("{} changes all the time", self.key)).into())
    }
}

fn until(now: u64) -> u64 {
    now + u64::try_from(COUNTED.as_nanos()).expect("a short time")
}
