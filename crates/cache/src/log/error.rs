//! What can go wrong in a log store.

use std::io;
use std::path::PathBuf;

/// Why an operation was not done, or how it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No room until pages that are on their way to tiers have arrived, or until operations that
    /// wait for tiers have ended. Poll, and try again.
    #[error("no room until writes to tiers complete; poll and retry")]
    Busy,
    /// The slowest tier that is left refuses writes. Each poll tries again; reads are served
    /// meanwhile.
    #[error("tier {tier} refuses writes: {source}")]
    Storage {
        /// Its name.
        tier: String,
        /// Why.
        source: io::Error,
    },
    /// Memory is full and there is no tier to write to: there never was one, or all are lost, or
    /// all that were to have a page of it have failed to write it or are lost.
    #[error("memory is full, and no tier that is left can take its pages")]
    NoTier,
    /// No tier that keeps what it has over a crash is left.
    #[error("no durable tier is available")]
    NotDurable,
    /// No tier returned what is at the address, and this one failed to read it. It may be read
    /// later.
    #[error("tier {tier}: read of address {address:#x}: {source}")]
    Read {
        /// Its name.
        tier: String,
        /// First byte of the record or page.
        address: u64,
        /// Why.
        source: io::Error,
    },
    /// No tier that is left has the address: one was lost, or let go of it.
    #[error("address {address:#x} is on no available tier")]
    Lost {
        /// First byte of the record.
        address: u64,
    },
    /// Every tier that still has the address returns other bytes than were written there.
    #[error("address {address:#x}: no tier has a record with a valid checksum")]
    Corrupt {
        /// First byte of the record or page.
        address: u64,
    },
    /// The key is empty, or longer than a key may be or than fits into a page of the store.
    #[error("a key has 1 to {max} bytes")]
    KeyLength {
        /// Most bytes that it may have.
        max: usize,
    },
    /// The value does not fit into a page beside its key.
    #[error("a value with this key has at most {max} bytes")]
    ValueLength {
        /// Most bytes that it may have.
        max: usize,
    },
    /// The index has no room for a chain more. Settings `index_buckets_max` or `overflow_buckets`.
    #[error("the index is full (settings index_buckets_max, overflow_buckets)")]
    IndexFull,
    /// All sessions are taken.
    #[error("all sessions are taken (settings sessions)")]
    SessionsTaken,
    /// The log reached 2^48 bytes.
    #[error("the log has reached its limit of 2^48 bytes")]
    LogEnd,
    /// A setting is out of its range.
    #[error("settings: {0}")]
    Settings(&'static str),
    /// The checkpoint file is none, or not whole, or does not fit the log.
    #[error("checkpoint {}: {what}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The system refuses.
    #[error("{what}: {source}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Whether the same may succeed later with nothing done but polling.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Busy | Self::Storage { .. })
    }

    /// Whether bytes that were read are wrong.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Checkpoint { .. })
    }
}
