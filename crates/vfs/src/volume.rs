//! The medium that a volume is.
//!
//! An acknowledged write of a volume is as durable as it will ever be: it survives the loss of r
//! hosts and the end of this process. So a sync has nothing to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cenote_volume::{IoError, Volume, VolumeError, Workers};

use crate::medium::{BLOCK_BYTES, Medium, MediumError};

/// A volume, and workers for as many threads as use it at a time.
pub struct VolumeMedium {
    // Before the volume, which outlives its workers.
    workers: Workers,
    volume: Arc<Volume>,
    failures: Failures,
}

impl VolumeMedium {
    /// Serves `volume` for `count` threads at a time; more wait for one another.
    ///
    /// # Errors
    /// The volume has no more workers, or the system no more threads.
    pub fn new(volume: Arc<Volume>, count: usize) -> Result<Self, VolumeError> {
        let workers = Workers::new(&volume, count)?;
        Ok(Self {
            workers,
            volume,
            failures: Failures::default(),
        })
    }
}

impl Medium for VolumeMedium {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), MediumError> {
        let done = self.workers.get().read(offset, buffer);
        done.map_err(|error| {
            self.failures
                .note(error, "read", offset, buffer.len() as u64)
        })
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let done = self.workers.get().write(offset, bytes);
        done.map_err(|error| {
            self.failures
                .note(error, "write", offset, bytes.len() as u64)
        })
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError> {
        let done = self.workers.get().discard(offset, len_bytes);
        done.map_err(|error| self.failures.note(error, "discard", offset, len_bytes))
    }

    fn reserve(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError> {
        let (mut at, end) = (offset, offset + len_bytes);
        while at < end {
            let (has_memory, next) = self.has_memory(at);
            if !has_memory {
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

    fn has_memory(&self, offset: u64) -> (bool, u64) {
        // An extent has memory from its first page on, and as long as it holds one.
        let extent_bytes = self.volume.extent_bytes();
        let start = offset / extent_bytes * extent_bytes;
        let end = start.saturating_add(extent_bytes).min(self.size_bytes());
        (self.allocation(start, end) != (false, end), end)
    }
}

/// Requests that the volume refused. Programs that go on make thousands a second.
#[derive(Debug, Default)]
struct Failures {
    /// Since the last line about them.
    unsaid: AtomicU64,
    say_at: Mutex<Option<Instant>>,
}

/// Between two lines. Arbitrary.
const PERIOD: Duration = Duration::from_secs(10);

impl Failures {
    /// One more: said now and then.
    fn note(&self, error: IoError, what: &str, offset: u64, len_bytes: u64) -> MediumError {
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        if self.is_due(Instant::now()) {
            let failed = self.unsaid.swap(0, Ordering::Relaxed);
            tracing::warn!(%error, failed, offset, len_bytes, "{what} the volume");
        }
        match error {
            IoError::NoSpace => MediumError::NoSpace,
            _ => MediumError::Io,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut say_at = self.say_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = say_at.is_none_or(|at| at <= now);
        if is_due {
            *say_at = Some(now + PERIOD);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_said_at_once_and_more_now_and_then() {
        let failures = Failures::default();
        let began = Instant::now();
        let due = |seconds| failures.is_due(began + Duration::from_secs(seconds));
        assert_eq!(
            [0, 0, 9, 10, 11, 19, 40].map(due),
            [true, false, false, true, false, false, true]
        );
    }
}
