//! Keeping the journal true: every change of which slabs hold current data is on the disk before
//! a write that depends on it is acknowledged.
//!
//! A slab that is dropped, mapped or unmapped is noted after the directory has it: workers wait
//! with their acknowledgement until [`crate::core::Core::journaled`] has passed the change. One
//! that was regenerated is noted first: whoever relies on it must find it named.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_pool::planted::{Planted, is_planted};

use super::Control;
use crate::directory::{Member, MemberState, Snapshot, Stripe};
use crate::extents::Side;
use crate::journal::{At, Change, Held, Journal, Shape};

/// A journal, and how much of the directory is in it.
pub(super) struct Record {
    journal: Journal,
    noted: Option<Arc<Snapshot>>,
    // The last try failed; said once.
    is_failing: bool,
}

impl Record {
    pub fn new(journal: Journal) -> Self {
        Self {
            journal,
            noted: None,
            is_failing: false,
        }
    }

    pub fn epoch(&self) -> u64 {
        self.journal.image().epoch
    }

    pub fn volume(&self) -> u128 {
        self.journal.image().identity.volume
    }

    fn note(&mut self, changes: Vec<Change>) -> bool {
        match self.journal.note(changes) {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                if !self.is_failing {
                    tracing::error!(%error, "the volume's journal cannot be written; writes wait where hosts have come or gone");
                }
                self.is_failing = true;
            }
        }
        !self.is_failing
    }
}

impl Control {
    /// Notes what has changed in the directory since the last call; tried again later if it fails.
    pub(super) fn record(&mut self) {
        let is_news = self.core.directory.epoch() > self.core.journaled.load(Ordering::Acquire);
        if !is_news || self.is_opening() {
            return;
        }
        let Some(mut record) = self.record.take() else {
            return;
        };
        let snapshot = self.core.directory.snapshot();
        let mut changes = Vec::new();
        for (extent, stripe) in snapshot.extents.numbered() {
            let noted = record
                .noted
                .as_ref()
                .and_then(|noted| noted.extents.get(extent)?.as_ref());
            let is_same = match (noted, stripe) {
                (Some(noted), Some(stripe)) => Arc::ptr_eq(noted, stripe),
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                self.describe(extent, stripe.as_deref(), &mut changes);
            }
        }
        if record.note(changes) {
            self.core.journaled.store(snapshot.epoch, Ordering::Release);
            record.noted = Some(snapshot);
        }
        self.record = Some(record);
    }

    fn describe(&self, extent: usize, stripe: Option<&Stripe>, changes: &mut Vec<Change>) {
        // Those that the stripe has had as well.
        for split in 0..self.core.layout_of(extent).cut().splits_max() {
            let live = stripe
                .filter(|stripe| split < stripe.splits())
                .and_then(|stripe| stripe.members[split].as_ref())
                .filter(|member| member.state == MemberState::Live)
                .map(|member| (member.session.host, member.birth));
            let stranded = stripe
                .and_then(|stripe| *stripe.stranded.get(split)?)
                .map(|slab| (slab.host, slab.birth));
            let at = at(extent, split);
            changes.push(match live.or(stranded) {
                Some((host, birth)) => {
                    let host = self.hosts[host].config.name.clone();
                    Change::Hold(at, Held { host, birth })
                }
                None if is_planted(Planted::KeepStale) => continue,
                None => Change::Drop(at),
            });
        }
    }

    /// Notes a regenerated slab that is about to be published; false when that is to be tried again.
    pub(super) fn record_filled(&mut self, extent: usize, split: usize, member: &Member) -> bool {
        let host = self.hosts[member.session.host].config.name.clone();
        let birth = member.birth;
        let change = Change::Hold(at(extent, split), Held { host, birth });
        self.record
            .as_mut()
            .is_none_or(|record| record.note(vec![change]))
    }

    /// Notes that a side is there, or is not any more; false when that is to be tried again. It may not
    /// be: the change may be taken back meanwhile, and what failed must not get into the journal later.
    pub(super) fn record_side(&mut self, side: Side, shape: Option<Shape>) -> bool {
        let Some(record) = &mut self.record else {
            return true;
        };
        let before = record.journal.image().sides[side as usize];
        if record.note(vec![Change::Side(side as u8, shape)]) {
            return true;
        }
        record.note(vec![Change::Side(side as u8, before)]);
        false
    }

    /// Notes that the volume holds nothing any more.
    pub(super) fn record_end(&mut self) {
        let Some(record) = &mut self.record else {
            return;
        };
        match record.journal.clear() {
            Ok(()) => self.core.marks.disown(),
            Err(error) => tracing::error!(%error, "the volume's journal cannot be cleared"),
        }
    }
}

fn at(extent: usize, split: usize) -> At {
    let extent = u32::try_from(extent).expect("fewer than 2^32 extents");
    (extent, u8::try_from(split).expect("at most 40 members"))
}
