//! What a client's disk refused, and what that explains.
//!
//! Hosts hold the newest bytes of a page that the disk has refused, and it is an error only once they hold them no
//! more. So a request that failed has to be one of which the disk refused a page while it ran, or one of a page
//! whose newest bytes the disk lacks and whose slabs may have gone since (`World::judge`).

use cenote_fabric::Time;
use cenote_volume::IoError;

use super::super::disk::Mood;
use super::{Client, Trouble, pages_of};

impl Client {
    /// Its disk is so from now on.
    pub fn set_disk_mood(&self, mood: Mood) {
        self.disk.set_mood(mood);
    }

    /// Transfers that its disks refused.
    pub fn disk_refusals(&self) -> u64 {
        self.tally.disk_refusals + self.disk.refusals()
    }

    /// Pages that were read from its disks and given to hosts.
    pub fn pages_promoted(&self) -> u64 {
        let status = self.volume.as_ref().map(cenote_volume::Stepped::status);
        let backing = status.and_then(|status| status.backing);
        self.tally.pages_promoted + backing.map_or(0, |backing| backing.pages_promoted)
    }

    /// Which of the pages of some sectors slabs have, as a bit set.
    pub(super) fn on_slabs(&self, first: usize, count: usize) -> u64 {
        let Some(volume) = self.volume.as_ref().filter(|_| self.plan.is_backed) else {
            return 0;
        };
        let pages = pages_of(first, count).enumerate();
        pages.fold(0, |all, (at, page)| {
            all | u64::from(volume.is_on_slabs(page as u64)) << at
        })
    }

    /// What the failure of a request of some sectors is, that began then; `None`: it may fail.
    pub(super) fn accuse(
        &self,
        error: IoError,
        (first, count): (usize, usize),
        began: Time,
        what: String,
    ) -> Option<Trouble> {
        let pages = pages_of(first, count);
        let pages = pages.start as u64..pages.end as u64;
        if !self.plan.is_backed || error != IoError::Disk {
            return Some(Trouble::Failed(error, what));
        }
        if self.disk.has_refused(pages.clone(), began) {
            return None;
        }
        Some(match self.disk.stale(pages, began) {
            Some(stale) => Trouble::Stale(stale.since, what),
            None => Trouble::Failed(error, what),
        })
    }
}
