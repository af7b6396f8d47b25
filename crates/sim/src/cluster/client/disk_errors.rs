//! What a client's disk refused, and what that explains.
//!
//! Hosts hold the newest bytes of a page that the disk has refused, and it is an error only once they hold them no
//! more. So a request that failed has to be one of which the disk refused a page while it ran, or one of a page
//! whose newest bytes the disk lacks and whose slabs may have gone since (`World::judge`).
//! Beside a write of which the disk refused that page it is judged at the write's end (`suspects`).

use std::collections::BTreeSet;
use std::ops::Range;

use cenote_fabric::Time;
use cenote_volume::IoError;

use super::super::disk::Mood;
use super::{Client, Kind, Running, Trouble, pages_of};

/// A request that failed.
pub(super) struct Failure {
    pub error: IoError,
    /// The first and how many.
    pub sectors: (usize, usize),
    pub began: Time,
    pub what: String,
}

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

    /// What a failure is; `None`: it may be, or that is known when a write has ended.
    pub(super) fn accuse(&mut self, failure: Failure) -> Option<Trouble> {
        let Failure {
            error,
            sectors,
            began,
            what,
        } = failure;
        let pages = pages_of(sectors.0, sectors.1);
        let pages = pages.start as u64..pages.end as u64;
        if !self.plan.is_backed || error != IoError::Disk {
            return Some(Trouble::Failed(error, what));
        }
        if self.disk.has_refused(pages.clone(), began) {
            return None;
        }
        let Some(stale) = self.disk.stale(pages.clone(), began) else {
            return Some(Trouble::Failed(error, what));
        };
        let trouble = Trouble::Stale(stale.since, what);
        let writes = self.refused_writes(&pages);
        if writes.is_empty() {
            return Some(trouble);
        }
        self.suspects.note(trouble, sectors, writes);
        None
    }

    /// Starts of the writes under way of which the disk has refused one of these pages.
    fn refused_writes(&self, pages: &Range<u64>) -> BTreeSet<u64> {
        let running = self
            .workers
            .iter()
            .flat_map(|client_worker| &client_worker.running);
        let is_refused = |write: &&Running| {
            let its = pages_of(write.first, write.count);
            let both = pages.start.max(its.start as u64)..pages.end.min(its.end as u64);
            let is_write = matches!(write.kind, Kind::Write(_)) && !both.is_empty();
            is_write && self.disk.has_refused(both, write.began)
        };
        running
            .filter(is_refused)
            .map(|write| write.start)
            .collect()
    }

    /// A write has ended: judges what failed beside it.
    pub(super) fn judge_suspects(&mut self, write: u64) -> Vec<Trouble> {
        let model = &self.model;
        let explains = |(first, count)| model.made_unreadable(write, first, count);
        self.suspects.end_write(write, explains)
    }
}
