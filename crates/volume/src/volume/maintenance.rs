//! What an owner does to a volume that is open: its size, its slabs ahead of time, how fast it is
//! rebuilt and looked through, and what its machine has to spare for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Volume, check_size, start};
use crate::core::Mapping;
use crate::{MarksError, VolumeError, migrator, scrub};

impl Volume {
    /// Maps every extent now, so that no later write waits for a host to grant memory. From
    /// then on an extent that is discarded whole keeps its slabs.
    /// `progress` gets (mapped, wanted) as it goes.
    ///
    /// # Errors
    /// `NoSpace` when hosts run out of memory; what was mapped stays.
    pub fn map_all(&self, mut progress: impl FnMut(usize, usize)) -> Result<(), VolumeError> {
        /// A populated slab comes in milliseconds; this only bounds a cluster that stands still.
        const PATIENCE: Duration = Duration::from_secs(60);
        let count = || {
            usize::try_from(self.size_bytes().div_ceil(self.extent_bytes()))
                .expect("fits the address space")
        };
        let mut wanted = count();
        self.core.demand.mapped_ahead.store(true, Ordering::Release);
        let mut mapped = 0;
        let mut moved = Instant::now();
        let mut extent = 0;
        let mut layout = self.core.layout();
        while extent < wanted {
            let layout_id = self.core.layouts.target();
            if self.core.layout() != layout {
                // Its pages are to be cut otherwise: whoever moves them maps what they go to.
                layout = self.core.layout();
                (wanted, mapped, extent) = (count(), 0, 0);
                continue;
            }
            let snapshot = self.core.directory.snapshot();
            let stripe = snapshot.extents.get(layout_id.extent(extent));
            if stripe.is_some_and(Option::is_some) {
                extent += 1;
                mapped += 1;
                moved = Instant::now();
                progress(mapped, wanted);
                continue;
            }
            // A few at a time keep every host busy.
            let ahead = extent..wanted.min(extent + 8);
            let states: Vec<Mapping> = ahead
                .map(|extent| self.core.want(layout_id.extent(extent)))
                .collect();
            if states[0] == Mapping::Refused || moved.elapsed() > PATIENCE {
                self.core
                    .demand
                    .mapped_ahead
                    .store(false, Ordering::Release);
                return Err(VolumeError::NoSpace { mapped, wanted });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Makes room on the disk for a size that the volume is about to have, so that it may be noted where
    /// the next owner looks.
    ///
    /// # Errors
    /// `Shrink` when it is less than now; `Growth` when it passes what the tables were laid out for; `Size`; `Marks`.
    pub fn reserve(&self, size_bytes: u64) -> Result<(), VolumeError> {
        let size_bytes_now = self.size_bytes();
        if size_bytes < size_bytes_now {
            return Err(VolumeError::Shrink {
                size_bytes,
                size_bytes_now,
            });
        }
        let size_bytes_max = self.size_bytes_max;
        if size_bytes > size_bytes_max {
            return Err(VolumeError::Growth {
                size_bytes,
                size_bytes_max,
            });
        }
        check_size(size_bytes, size_bytes_max)?;
        Ok(self.core.reserve(size_bytes).map_err(MarksError::Io)?)
    }

    /// Grows the volume.
    ///
    /// # Errors
    /// Those of [`Volume::reserve`].
    pub fn resize(&self, size_bytes: u64) -> Result<(), VolumeError> {
        self.reserve(size_bytes)?;
        self.core.size_bytes.store(size_bytes, Ordering::Release);
        Ok(())
    }

    /// Limits how many bytes of slabs are rebuilt or moved per second; 0: no limit. Whatever it is,
    /// they are slower while that keeps the p99 of requests near what it was, unless `yields` is false.
    pub fn pace_repairs(&self, bytes_per_s_max: u64, yields: bool) {
        self.core
            .limits
            .pace
            .limit
            .store(bytes_per_s_max, Ordering::Relaxed);
        self.core
            .limits
            .pace
            .yields
            .store(yields, Ordering::Relaxed);
    }

    /// Whether a disk stands behind the hosts, so that a page may be on it alone until it is read.
    #[must_use]
    pub fn is_backed(&self) -> bool {
        self.core.backing.is_some()
    }

    /// Memory that this machine has to spare now, as a host on it says; 0: none, or no host says
    /// so. Pages may be reclaimed into as much.
    #[must_use]
    pub fn spare_bytes(&self) -> u64 {
        self.core.limits.spare.bytes((self.core.clock)())
    }

    /// Whether all that hosts hold of this volume can be read now. If not, reads may wait for hosts
    /// that are silent, or fail while the bytes are still there.
    #[must_use]
    pub fn is_in_reach(&self) -> bool {
        let snapshot = self.core.directory.snapshot();
        let mut mapped = snapshot.extents.numbered();
        mapped.all(|(_, stripe)| {
            let stripe = stripe.as_deref();
            stripe.is_none_or(|stripe| stripe.is_there() && !stripe.has_unreachable())
        })
    }

    /// Says how much a front end has in this volume that it could reclaim: hosts on this
    /// machine leave room for that before they prepare slabs for others.
    pub fn note_away(&self, bytes: u64) {
        self.core.limits.spare.note_away(bytes);
    }

    /// Looks at pages for what went wrong in hosts' memory, so many bytes of them per second, all the
    /// time; 0: no more.
    ///
    /// # Errors
    /// As [`Volume::worker`].
    pub fn set_scrub_rate(&self, bytes_per_second: u64) -> Result<(), VolumeError> {
        self.core.helpers.scrub.set_rate(bytes_per_second);
        match bytes_per_second {
            0 => Ok(()),
            _ => self.start_scrubber(),
        }
    }

    /// Has every page looked at once, at once; its status tells the end.
    ///
    /// # Errors
    /// As [`Volume::worker`].
    pub fn begin_scrub(&self) -> Result<(), VolumeError> {
        self.core.helpers.scrub.begin();
        self.start_scrubber()
    }

    /// Has a thread that moves pages, from the first change of k on.
    pub(super) fn start_migrator(&self) -> Result<(), VolumeError> {
        let mut running = self.running();
        // Without a thread of its own the volume's caller steps it (`Stepped`).
        let is_stepped = running.control.is_none();
        if is_stepped || running.migrator.is_some() || self.core.life.closed.load(Ordering::Acquire)
        {
            return Ok(());
        }
        let (core, worker) = (Arc::clone(&self.core), self.worker()?);
        running.migrator = Some(start("cenote-migrator", move || {
            migrator::run::run(&core, worker)
        })?);
        Ok(())
    }

    fn start_scrubber(&self) -> Result<(), VolumeError> {
        let mut running = self.running();
        if running.scrubber.is_some() || self.core.life.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let (core, worker) = (Arc::clone(&self.core), self.worker()?);
        running.scrubber = Some(start("cenote-scrub", move || scrub::run(&core, worker))?);
        Ok(())
    }
}
