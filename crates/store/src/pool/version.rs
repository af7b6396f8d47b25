//! What is asked of a pool, and what it answers.

use std::io;

use crate::format::{Head, HeadError, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// What a new pool is to be.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Keys that it has room for, a power of two up to 2^30; half of it is quick.
    pub entry_count: u64,
    /// Of hashes, chosen at random: who chooses keys is not to choose their places.
    pub seed: u64,
}

impl PoolConfig {
    /// Whether a medium of so many bytes can be made a pool so.
    ///
    /// # Errors
    /// [`StoreError::Size`].
    pub fn check(self, len: u64) -> Result<(), StoreError> {
        self.head(len, (0, 0))
            .check()
            .map_err(|_| StoreError::Size {
                len,
                entry_count: self.entry_count,
            })
    }

    /// The head of such a pool.
    pub(super) fn head(self, len: u64, shard: (u16, u16)) -> Head {
        Head {
            seed: self.seed,
            entry_count: self.entry_count,
            len,
            shard,
        }
    }
}

/// Where a client's value arrives, and where the client may write at any time.
pub trait Landing: Send {
    /// Copies what is there now.
    fn read(&mut self, out: &mut [u8]);
}

/// Where the value of a new version is to come from.
pub enum Source {
    /// Memory beside the log: the value is copied from there once it is verified.
    Landing(Box<dyn Landing>),
    /// Its place in the log: whoever has the place writes it there.
    Log,
}

impl Landing for Vec<u8> {
    fn read(&mut self, out: &mut [u8]) {
        let len = self.len().min(out.len());
        out[..len].copy_from_slice(&self[..len]);
    }
}

/// Space for one version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Allocation {
    /// Names the version; later ones have larger numbers.
    pub sequence: u64,
    /// Where the object is in the log.
    pub(crate) at: u64,
    /// Where its value is.
    pub value_at: u64,
}

/// A durable value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Version {
    /// Names the version.
    pub sequence: u64,
    /// Its bytes.
    pub value: Vec<u8>,
}

/// When a change is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Condition {
    /// In any case.
    Always,
    /// If the key has no value.
    Absent,
    /// If the key's newest durable version is this one.
    Sequence(u64),
}

/// Why something was not done. Nothing is changed then, but by `Io`, after which the pool has to be
/// opened again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Keys have 1 to 250 bytes.
    #[error("a key of {0} bytes: 1 to {KEY_BYTES_MAX} are allowed")]
    Key(usize),
    /// Values have 1 MiB at most.
    #[error("a value of {0} bytes: at most {VALUE_BYTES_MAX} are allowed")]
    Value(usize),
    /// The log or the index is full.
    #[error("the pool is full")]
    Full,
    /// Too many versions wait to be made durable.
    #[error("{0} versions wait to be made durable: try again later")]
    Backlog(usize),
    /// The condition does not hold.
    #[error("the key has another version")]
    Condition(
        /// The newest durable one.
        Option<u64>,
    ),
    /// The client's bytes are not, or not yet, what it said.
    #[error("the value is not the one that was announced")]
    Incomplete,
    /// A pool of such a size cannot be made.
    #[error("a pool of {len} bytes has no room for {entry_count} entries and a log")]
    Size {
        /// Bytes of the medium.
        len: u64,
        /// As in the configuration.
        entry_count: u64,
    },
    /// What is there is no pool.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// The medium failed.
    #[error("the pool's medium failed; it has to be opened again")]
    Io(#[from] io::Error),
}
