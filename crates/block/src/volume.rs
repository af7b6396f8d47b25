//! A volume as a disk: each worker thread gets a worker of the volume.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use cenote_volume::{Done, Request, Volume, VolumeError, Worker};

use crate::disk::{Disk, Extent, Queue};

/// The disk that a volume is.
pub struct VolumeDisk(Arc<Volume>);

impl VolumeDisk {
    /// Serves `volume`; the caller keeps it for status and closing.
    #[must_use]
    pub fn new(volume: Arc<Volume>) -> Self {
        Self(volume)
    }
}

impl Disk for VolumeDisk {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        match self.0.worker() {
            Ok(worker) => Ok(Box::new(worker)),
            Err(VolumeError::Os { source, .. }) => Err(source),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn extents(&self, offset: u64, len_bytes: u64, out: &mut Vec<Extent>) {
        let end = offset + len_bytes;
        let mut at = offset;
        while at < end {
            let (allocated, change) = self.0.allocation(at, end);
            out.push(Extent {
                len_bytes: change - at,
                allocated,
            });
            at = change;
        }
    }

    fn description(&self) -> String {
        format!("remote memory, {}", self.0.scheme())
    }

    fn reads_bring_nearer(&self) -> bool {
        self.0.is_backed()
    }

    fn is_in_reach(&self) -> bool {
        self.0.is_in_reach()
    }

    fn spare_bytes(&self) -> u64 {
        self.0.spare_bytes()
    }

    fn note_away(&self, bytes: u64) {
        self.0.note_away(bytes);
    }
}

impl Queue for Worker {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        Self::submit(self, request)
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        Self::poll(self, done);
    }

    fn wait_fds(&self, out: &mut Vec<RawFd>) {
        out.push(self.fd());
    }

    fn deadline(&self) -> Option<Duration> {
        Self::deadline(self)
    }
}
