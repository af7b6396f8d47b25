//! What a file system lies on: bytes that are read, written, discarded and synced.
//!
//! A volume is one ([`crate::volume::VolumeMedium`]); the other, [`model::ModelMedium`], keeps what
//! was synced apart from what was not and can be cut at every step, for tests.

#[cfg(test)]
pub(crate) mod faulty;
pub mod model;

/// Bytes in a block, the unit of allocation; a page of the volume.
pub const BLOCK_BYTES: u64 = 4096;

/// Storage under a file system. Calls from many threads at a time; they may block.
pub trait Medium: Send + Sync + 'static {
    /// Size now; it may grow.
    fn size_bytes(&self) -> u64;

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// `Io` when not every byte can be read; the buffer holds anything then.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), MediumError>;

    /// Writes `bytes`. They are read back from now on, and durable after the next [`Medium::sync`].
    /// Each block is as before or as written after a crash, never in between.
    ///
    /// # Errors
    /// When not every byte was written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError>;

    /// Gives the memory of whole blocks back. What is read there afterwards is undefined.
    ///
    /// # Errors
    /// When some of it could not be given back.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError>;

    /// Gets memory for later writes there, whoever takes what else there is meanwhile. What is read there
    /// stays the same. Nobody writes there during the call.
    ///
    /// # Errors
    /// `NoSpace` when there is none for some of it.
    fn reserve(&self, _offset: u64, _len_bytes: u64) -> Result<(), MediumError> {
        Ok(())
    }

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// `Io` when some are not.
    fn sync(&self) -> Result<(), MediumError>;

    /// Whether the byte at `offset` lies in a block that takes memory, and up to where that holds,
    /// at most `end`.
    fn allocation(&self, offset: u64, end: u64) -> (bool, u64);

    /// Whether a write to the block at `offset` needs no memory besides what is taken, and up to where
    /// that holds. This is the answer of a medium that has memory for each block apart.
    fn has_memory(&self, offset: u64) -> (bool, u64) {
        self.allocation(offset, (offset / BLOCK_BYTES + 1) * BLOCK_BYTES)
    }
}

/// Why a medium refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum MediumError {
    /// No memory is left under it; may succeed later.
    #[error("hosts have no memory left")]
    NoSpace,
    /// Bytes are lost, or out of reach.
    #[error("the volume cannot be read or written there")]
    Io,
}

impl From<MediumError> for crate::FsError {
    fn from(error: MediumError) -> Self {
        match error {
            MediumError::NoSpace => Self::NoSpace,
            MediumError::Io => Self::Io,
        }
    }
}

impl From<MediumError> for std::io::Error {
    fn from(error: MediumError) -> Self {
        match error {
            MediumError::NoSpace => Self::new(std::io::ErrorKind::StorageFull, error),
            MediumError::Io => Self::other(error),
        }
    }
}
