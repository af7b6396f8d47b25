//! What can go wrong while connecting and talking; verbs report a `Status` instead.

use crate::{Address, NoHostPort, Versions};

/// Result of the control side of the fabric.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of a connection, a listener or memory registration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not an address.
    #[error("{text:?} is not an address: use shm:/path/to/socket, tcp:HOST:PORT or rdma:HOST:PORT")]
    Address {
        /// What was given.
        text: String,
    },
    /// The text is an address up to its host and port.
    #[error("{text:?} is not an address: {source}")]
    Host {
        /// What was given.
        text: String,
        /// What is wrong with host and port.
        source: NoHostPort,
    },
    /// The name in the address has no IP address now; it may have one later.
    #[error("{address}: the name of the host cannot be resolved: {source}")]
    Unresolved {
        /// The address.
        address: Address,
        /// The resolver's answer.
        source: std::io::Error,
    },
    /// The text is no way to protect traffic.
    #[error("{text:?} is not a protection level: use encrypted, authenticated or plain")]
    Protection {
        /// What was given.
        text: String,
    },
    /// The host does not take data connections that are protected so little, or cannot protect them
    /// as the client wants.
    #[error("{address}: {reason}")]
    Unprotected {
        /// The host.
        address: Address,
        /// Which, and what to do.
        reason: String,
    },
    /// The host has no server threads that answer calls, or not over this transport.
    #[error("{address}: {reason}")]
    Unanswered {
        /// The host.
        address: Address,
        /// Why, and what to do.
        reason: &'static str,
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
    Key(KeyError),
    /// The peer does not hold the cluster's key, or does not speak this protocol.
    #[error(
        "{address}: the peer did not prove that it has the cluster's key: it may have another key, \
         or another program listens there"
    )]
    Unauthenticated {
        /// The peer.
        address: Address,
    },
    /// There is no version that the peer and this program both speak.
    #[error(
        "{address}: the peer speaks {theirs} of the protocol, this program {ours}; upgrade one \
         version at a time"
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
    #[error("{0}: limit reached")]
    Bound(&'static str),
    /// The name under which a client wants to be known.
    #[error(
        "{0:?} is no client name: one has at most 64 bytes and no control character such as a \
         line end"
    )]
    ClientName(String),
    /// Bytes that the protocol does not allow.
    #[error("protocol: {0}")]
    Protocol(&'static str),
    /// The window was revoked, or never was.
    #[error("the window has been revoked")]
    StaleWindow,
    /// Another process serves this address.
    #[error("{address}: address in use by another host")]
    AddressInUse {
        /// The address.
        address: Address,
    },
    /// What lies at the path of the address was not made by a host.
    #[error("{address}: a file that is no socket lies there; name another path, or remove it")]
    NoSocket {
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

/// What is wrong with a cluster's key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Others than its owner may access the file.
    #[error("the file is accessible to others (mode {mode:04o})")]
    Shared {
        /// Of the file.
        mode: u32,
    },
    /// The file belongs to neither this user nor root.
    #[error("the file belongs to uid {owner}")]
    Foreign {
        /// The file's owner.
        owner: u32,
    },
    /// Not what a key looks like.
    #[error("it is not 64 hexadecimal digits")]
    Malformed,
    /// None could be made.
    #[error("cannot get random bytes")]
    NoRandomness,
}

impl Error {
    /// Whether trying again later, unchanged, can succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Closed | Self::Timeout(_) | Self::Unresolved { .. } | Self::Os { .. }
        )
    }

    /// Whether an attempt to connect tells that no process listens at the address.
    #[must_use]
    pub fn is_nobody_there(&self) -> bool {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, Self::Os { source, .. } if matches!(source.kind(), ConnectionRefused | NotFound))
    }

    /// Wraps the last system error with the action that it stopped.
    pub fn os(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Os {
            what: what.into(),
            source,
        }
    }
}
