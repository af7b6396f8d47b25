//! Extents of a backed volume that give their slabs up: their pages are in the backing store.
//!
//! `UNMAPPED` (reads and writes go to the disk from then on) `-> DRAINED` (no worker is left in an
//! epoch in which it had slabs, so nobody sets a page's bit any more) `-> FLUSHED` (of the writes that its
//! slabs acknowledged none is on its way to the disk) `-> ` bits cleared `-> DONE`.
//! So ends an eviction, a slab that cooled down, and an extent whose hosts are lost; that one is not flushed
//! first. Slabs whose hosts have said that they will be back are waited for (`ownership`, decision 61).
//!
//! `DRAINED -> MAPPED` when the disk refused a page meanwhile: what bits stand are as true as those of slabs
//! that were away (decision 47). So until DONE the directory keeps the stripe among those that leave: a host
//! that is replaced has its slab unreachable, and asked for, one that is lost has none there any more, and the
//! next owner finds it in the journal.
//!
//! Invariants: I3, after DONE no verb touches the slab; I4 is the host's; an extent is not mapped
//! again before its bits are clear (soundness Z1), but to its own slabs; one with a page that the disk has
//! refused and only its slabs hold is not given up.
//! Paper: \[infiniswap17\] 4.4 (handling of EVICT), 4.5 (remote failure).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::repair::{Repair, Stage};
use super::{Control, pool_window};
use crate::core::Mapping;
use crate::directory::Stripe;
use crate::extents::LayoutId;

/// What an extent waits for on its way to the disk.
pub(super) struct Flush {
    /// Jobs that the disk queues were asked for when nobody worked with the slabs any more.
    asked: Option<Vec<u64>>,
    /// How long it is waited before the next look at what the disk has.
    pause: Duration,
}

/// After which it is looked first whether the disk has what slabs have acknowledged. A disk takes about that long.
const FLUSH_POLL: Duration = Duration::from_millis(1);
/// Each look at a slow disk comes after twice the pause, up to this: it may be at all pages of the extent.
const FLUSH_POLL_MAX: Duration = Duration::from_millis(100);

impl Control {
    /// Whether an extent's slabs may go: everything is on the disk, or on its way there.
    pub(super) fn may_drop(&self, extent: usize) -> bool {
        let is_backed = self.core.backing.is_some();
        is_backed && !self.is_only_on_slabs(extent) && self.find_repair(extent).is_none()
    }

    /// Whether the disk has refused the newest bytes of a page, and the extent's slabs have them.
    fn is_only_on_slabs(&self, extent: usize) -> bool {
        let Some(store) = &self.core.backing else {
            return false;
        };
        let (pages, written) = (&store.pages, &self.core.marks.written);
        let mut stale = pages.stale.range(self.core.pages(extent));
        stale.any(|page| {
            let is_kept = pages.remote.contains(page) && written.contains(page);
            is_kept && self.is_of(extent, page)
        })
    }

    /// Whether a page of an extent's range is in that extent, and not in the volume's other layout.
    fn is_of(&self, extent: usize, page: u64) -> bool {
        self.core.layouts.id_of(page) == LayoutId::of(extent)
    }

    /// Whether the disk has ended every write that the slabs of an extent have.
    fn is_flushed(&self, extent: usize, asked: &[u64]) -> bool {
        let Some(store) = &self.core.backing else {
            return true;
        };
        let pages = &store.pages;
        let mut remote = pages.remote.range(self.core.pages(extent));
        let is_queued = |page| pages.queued.contains(page) && self.is_of(extent, page);
        store.has_taken(asked) && !remote.any(is_queued)
    }

    /// Unmaps an extent whose pages are then those of the backing store.
    pub(super) fn begin_drop(&mut self, extent: usize) {
        let mut is_past_hope = None;
        let epoch = self.core.directory.publish(|next| {
            let Some(stripe) = next.extents[extent].take() else {
                return false;
            };
            is_past_hope = Some(stripe.is_past_hope());
            next.leaving.insert(extent, stripe);
            true
        });
        let Some(is_past_hope) = is_past_hope else {
            return;
        };
        let mut repair = Repair::new(extent, 0, 0, Stage::Dropping { epoch }, self.now());
        if is_injected(InjectedFault::EarlyClear) {
            self.clear_bits(extent);
        }
        repair.flush = (!is_past_hope).then_some(Flush {
            asked: None,
            pause: FLUSH_POLL,
        });
        self.repairs.push(repair);
    }

    /// No slab of the extent has its pages any more. Those in the other layout may be in slabs of that. One
    /// that goes there meanwhile is read from the disk until it is written next.
    pub(super) fn clear_bits(&self, extent: usize) {
        let pages = self.core.pages(extent);
        let Some(store) = &self.core.backing else {
            return;
        };
        for page in store.pages.remote.range(pages) {
            if self.is_of(extent, page) {
                store.pages.remote.remove(page);
            }
        }
    }

    /// Begins to drop extents that have too few slabs left to be read, those counted that are awaited.
    pub(super) fn drop_the_lost(&mut self) {
        let snapshot = self.core.directory.snapshot();
        for (extent, stripe) in snapshot.extents.numbered() {
            if !stripe.as_deref().is_some_and(Stripe::is_past_hope) {
                continue;
            }
            // A slab that is still to come is of no use any more; it goes back when it does.
            self.repair_refused(extent);
            if self.find_repair(extent).is_none() {
                tracing::warn!(
                    extent,
                    "slabs lost: its pages are read from the backing store"
                );
                self.begin_drop(extent);
            }
        }
    }

    /// Ends the drops that nobody is in the way of: mostly at once, for workers leave an epoch within
    /// microseconds.
    pub(super) fn step_drops(&mut self) {
        let directory = Arc::clone(&self.core.directory);
        let is_over = |repair: &Repair| matches!(repair.stage, Stage::Dropping { epoch } if directory.is_settled(epoch));
        let now = self.now();
        while let Some(at) = self.repairs.iter().position(is_over) {
            self.step_drop(at, now);
        }
    }

    /// Nobody works with the slabs any more: ends the drop once the disk has what they have, or takes it back.
    pub(super) fn step_drop(&mut self, at: usize, now: Time) {
        let extent = self.repairs[at].extent;
        let (asked, pause) = match (&mut self.repairs[at].flush, &self.core.backing) {
            (Some(flush), Some(store)) => {
                let asked = flush.asked.get_or_insert_with(|| store.asked());
                (asked.clone(), flush.pause)
            }
            _ => return self.end_drop(at),
        };
        if !self.is_flushed(extent, &asked) {
            let until = now.after(pause);
            if let Some(flush) = &mut self.repairs[at].flush {
                flush.pause = (pause * 2).min(FLUSH_POLL_MAX);
            }
            self.repairs[at].stage = Stage::Flushing { until };
        } else if self.is_only_on_slabs(extent) && self.take_back(at) {
            tracing::warn!(
                extent,
                "the disk refused a page that only its slabs have: they stay"
            );
        } else {
            self.end_drop(at);
        }
    }

    /// Maps an extent again with what slabs it has left, those counted that are awaited; false where too
    /// few of them are.
    fn take_back(&mut self, at: usize) -> bool {
        let extent = self.repairs[at].extent;
        let mut is_back = false;
        self.core.directory.publish(|next| {
            let leaving = next.leaving.get(&extent);
            let Some(stripe) = leaving.filter(|stripe| !stripe.is_past_hope()) else {
                return false;
            };
            let mut stripe = Arc::clone(stripe);
            Arc::make_mut(&mut stripe).changed_in = next.epoch;
            next.leaving.remove(&extent);
            next.extents[extent] = Some(stripe);
            is_back = true;
            true
        });
        if !is_back {
            return false;
        }
        self.repairs.swap_remove(at);
        self.core.mapping_ended(extent, Mapping::Idle);
        self.repair_retry = Time(0);
        true
    }

    /// Nobody works with the slabs any more, and nothing is lost with them.
    fn end_drop(&mut self, at: usize) {
        let extent = self.repairs.swap_remove(at).extent;
        if !is_injected(InjectedFault::EarlyClear) {
            self.clear_bits(extent);
        }
        let mut stripe = Stripe::default();
        self.core.directory.publish(|next| {
            let left = next.leaving.remove(&extent);
            stripe = left.map(Arc::unwrap_or_clone).unwrap_or_default();
            true
        });
        self.core.mapping_ended(extent, Mapping::Idle);
        // Before their hosts free them.
        self.record();
        // What comes back nobody knows any more.
        for slab in stripe.unreachable.into_iter().flatten() {
            self.compare_books(slab.host);
        }
        let now = self.now();
        for member in stripe.members.into_iter().flatten() {
            let (session, window) = (member.session, pool_window(&member.window.descriptor));
            if let Some(asked) = self.wanted.take(session.host, &window) {
                self.core.timings.evict.note(now.since(asked));
            }
            self.core
                .counters
                .slabs_dropped
                .fetch_add(1, Ordering::Relaxed);
            self.give_back(session, window);
        }
        self.remap_if_hot(extent);
    }
}
