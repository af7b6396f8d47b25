//! What can go wrong while connecting and talking; verbs report a `Status` instead.

use crate::{Address, Versions};

/// Result of the control side of the fabric.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of a connection, a listener or memory registration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not an address.
    #[error("{text:?} is not an address: write shm:/path/to/socket, tcp:IP:PORT or rdma:IP:PORT")]
    Address {
        /// What was given.
        text: String,
    },
    /// This program or machine cannot use RDMA at the address.
    #[error("{address}: RDMA cannot be used here: {reason}")]
    Unusable {
        /// The address.
        address: Address,
        /// What is missing.
        reason: String,
    },
    /// The text or file is not a cluster key.
    #[error("cluster key: {0}")]
    Key(&'static str),
    /// The peer does not hold the cluster's key, or does not speak this protocol.
    #[error("{address}: the peer did not prove that it holds the cluster's key")]
    Unauthenticated {
        /// The peer.
        address: Address,
    },
    /// There is no version that the peer and this program both speak.
    #[error(
        "{address}: the peer speaks {theirs} of the protocol, this program speaks {ours}; \
         upgrade one version at a time"
    )]
    Version {
        /// The peer.
        address: Address,
        /// Versions of this program.
        ours: Versions,
        /// Versions of the peer.
        theirs: Versions,
    },
    /// The connection is closed, by either side.
    #[error("connection closed")]
    Closed,
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    /// A message is larger than the bound, or a bounded queue is full.
    #[error("{0}: bound reached")]
    Bound(&'static str),
    /// Bytes that the protocol does not allow.
    #[error("protocol: {0}")]
    Protocol(&'static str),
    /// The window was revoked, or never was.
    #[error("the window does not stand any more")]
    StaleWindow,
    /// Another process serves this address.
    #[error("{address}: address in use: another host serves it")]
    AddressInUse {
        /// The address.
        address: Address,
    },
    /// The operating system refused; `what` was being done.
    #[error("{what}: {source}")]
    Os {
        /// The action and its object.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether trying again later, unchanged, can succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Closed | Self::Timeout(_) | Self::Os { .. })
    }

    /// Wraps the last system error with the action that it stopped.
    pub fn os(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Os {
            what: what.into(),
            source,
        }
    }
}
