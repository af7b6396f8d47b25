//! What nodes need of the store that they agree in: etcd, or what stands for it in the simulator.
//!
//! Calls may block and may be repeated without harm. What is unreachable may or may not have been done.

use std::path::PathBuf;
use std::time::Duration;

/// See the [module](self).
pub trait Store {
    /// One key; `None` when it is not there.
    ///
    /// # Errors
    /// [`EtcdError`], as of all calls here.
    fn read(&self, key: &str) -> Result<Option<Entry>, EtcdError>;

    /// Sets a key if its last change was at `expected` (0: if it is not there), for as long as the lease lasts.
    fn swap(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        lease: Option<LeaseId>,
    ) -> Result<Swap, EtcdError>;

    /// As [`Store::swap`] without a lease, and only if the last changes of other keys were at these revisions (0: it is
    /// not there). [`Swap::Changed`] with what was expected: one of the others was changed.
    fn swap_with(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        others: &[(String, i64)],
    ) -> Result<Swap, EtcdError>;

    /// All keys that start with `prefix`, at one moment.
    fn list(&self, prefix: &str) -> Result<Listing, EtcdError>;

    /// A new lease that lasts `ttl` beyond its last renewal.
    fn grant(&self, ttl: Duration) -> Result<LeaseId, EtcdError>;

    /// Renews a lease; false: it is gone, with its keys.
    fn renew(&self, lease: LeaseId) -> Result<bool, EtcdError>;

    /// Ends a lease, with its keys.
    fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError>;
}

/// A key with its value, as etcd has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The store's revision of the last change of this key; what [`Store::swap`] compares.
    pub mod_revision: i64,
    /// The lease that it goes with.
    pub lease: Option<LeaseId>,
}

/// All keys under a prefix at one revision of the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listing {
    /// Which store it is of. One that is made from scratch has another number, as a rule.
    pub cluster: u64,
    /// Revision of the whole store at which this was so.
    pub revision: i64,
    /// By key.
    pub entries: Vec<Entry>,
}

/// What a compare-and-swap came to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Swap {
    /// The value stands; its revision.
    Done(i64),
    /// The key was changed meanwhile, to this (`None`: deleted, or never there).
    Changed(Option<Entry>),
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// No endpoint answered; worth another try later.
    #[error("etcd does not answer at {endpoints}: {last}")]
    Unreachable {
        /// All that were tried.
        endpoints: String,
        /// What the last one came to.
        last: String,
        /// It is there, and had not answered when its time was over, or says that it cannot yet.
        is_silent: bool,
    },
    /// etcd answered that it will not do this.
    #[error("etcd refuses: {message} (code {code})")]
    Refused {
        /// Number of gRPC.
        code: i64,
        /// etcd's words.
        message: String,
    },
    /// The answer is not one of etcd's.
    #[error("not an answer of etcd: {0}")]
    Malformed(String),
    /// What answered speaks HTTP and not etcd's language: a proxy, or etcd before it knows what is asked.
    #[error("HTTP status {status} in place of an answer of etcd: {said}")]
    Http {
        /// Number and name.
        status: String,
        /// The beginning of what it says.
        said: String,
    },
    /// No endpoint, or one that is no URL.
    #[error("{0:?} is no address of etcd; write http://HOST:PORT, several with commas")]
    Endpoint(String),
    /// One of https, and nobody who vouches for its certificate.
    #[error("{0} speaks TLS: name the authority of its certificate, --etcd-ca FILE")]
    NoAuthority(String),
    /// The authority, the certificate or its key.
    #[error("{}: {why}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl EtcdError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether nobody has refused, and one may answer who is asked again at once.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Unreachable {
                is_silent: true,
                ..
            }
        )
    }
}

/// A lease's number at etcd; never 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeaseId(pub i64);

#[cfg(test)]
pub(super) mod memory;
