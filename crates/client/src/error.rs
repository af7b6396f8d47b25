//! What may go wrong.

use std::io;
use std::path::PathBuf;

/// Why a volume was not opened or does not say how it is, or why its bytes were not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cluster file cannot be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is no cluster file.
    #[error("{}: {why}", path.display())]
    Cluster {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The cluster's key cannot be read, holds no key, or others may read it.
    #[error("{why}")]
    Key {
        /// What is wrong with it.
        why: String,
    },
    /// What was asked for is no volume.
    #[error("{0}")]
    Options(String),
    /// Too few hosts answer. Trying again is sensible.
    #[error("{0}")]
    TooFewHosts(String),
    /// The volume cannot be opened.
    #[error("{0}")]
    Open(String),
    /// Bytes were not read or written.
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl Error {
    /// Whether the same may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::TooFewHosts(_) | Self::Access(AccessError::NoSpace)
        )
    }
}

/// Why bytes were not read or written. No wrong byte is ever returned instead.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// More hosts are gone, or do not answer, than the scheme survives. Pages of hosts that are only
    /// silent are there again when these answer.
    #[error("lost: more hosts are gone or unreachable than the scheme tolerates")]
    Lost,
    /// What hosts hold disagrees, and nothing tells which of it is right.
    #[error("corrupt: the splits disagree, and the right ones cannot be determined")]
    Corrupt,
    /// Too few hosts have memory left. May succeed later.
    #[error("no space: too few hosts have free memory")]
    NoSpace,
    /// The range passes the volume's end.
    #[error("out of range")]
    OutOfRange,
    /// The volume has ended.
    #[error("the volume is closed")]
    Closed,
}

impl From<cenote_volume::IoError> for AccessError {
    fn from(error: cenote_volume::IoError) -> Self {
        match error {
            cenote_volume::IoError::Corrupt => Self::Corrupt,
            cenote_volume::IoError::NoSpace => Self::NoSpace,
            cenote_volume::IoError::OutOfRange => Self::OutOfRange,
            cenote_volume::IoError::Closed => Self::Closed,
            _ => Self::Lost,
        }
    }
}

impl From<AccessError> for io::Error {
    fn from(error: AccessError) -> Self {
        let kind = match error {
            AccessError::NoSpace => io::ErrorKind::StorageFull,
            AccessError::OutOfRange => io::ErrorKind::InvalidInput,
            AccessError::Closed => io::ErrorKind::NotConnected,
            AccessError::Lost | AccessError::Corrupt => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}
