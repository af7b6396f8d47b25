//! The medium that a volume is.
//!
//! An acknowledged write of a volume is as durable as it will ever be: it survives the loss of r
//! hosts and the end of this process. So a sync has nothing to do.

use std::sync::Arc;

use cenote_volume::{IoError, Volume, VolumeError, Workers};

use crate::medium::{BLOCK_BYTES, Medium, MediumError};

/// A volume, and workers for as many threads as use it at a time.
pub struct VolumeMedium {
    // Before the volume, which outlives its workers.
    workers: Workers,
    volume: Arc<Volume>,
}

impl VolumeMedium {
    /// Serves `volume` for `count` threads at a time; more wait for one another.
    ///
    /// # Errors
    /// The volume has no more workers, or the system no more threads.
    pub fn new(volume: Arc<Volume>, count: usize) -> Result<Self, VolumeError> {
        let workers = Workers::new(&volume, count)?;
        Ok(Self { workers, volume })
    }
}

impl Medium for VolumeMedium {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), MediumError> {
        let done = self.workers.get().read(offset, buffer);
        done.map_err(|error| refused(error, "read", offset, buffer.len() as u64))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let done = self.workers.get().write(offset, bytes);
        done.map_err(|error| refused(error, "write", offset, bytes.len() as u64))
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError> {
        let done = self.workers.get().discard(offset, len_bytes);
        done.map_err(|error| refused(error, "discard", offset, len_bytes))
    }

    fn reserve(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError> {
        let extent_bytes = self.volume.extent_bytes();
        let (mut at, end) = (offset, offset + len_bytes);
        while at < end {
            let next = (at / extent_bytes + 1)
                .saturating_mul(extent_bytes)
                .min(end);
            // An extent has memory from its first page on, and as long as it holds one.
            if self.allocation(at, next) == (false, next) {
                self.write(at, &[0; BLOCK_BYTES as usize])?;
            }
            at = next;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), MediumError> {
        Ok(())
    }

    fn allocation(&self, offset: u64, end: u64) -> (bool, u64) {
        self.volume.allocation(offset, end)
    }
}

fn refused(error: IoError, what: &str, offset: u64, len_bytes: u64) -> MediumError {
    tracing::warn!(%error, offset, len_bytes, "{what} the volume");
    match error {
        IoError::NoSpace => MediumError::NoSpace,
        _ => MediumError::Io,
    }
}
