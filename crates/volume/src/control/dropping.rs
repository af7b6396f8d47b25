//! Extents of a backed volume that give their slabs up: their pages are in the backing store.
//!
//! `UNMAPPED` (reads and writes go to the disk from then on) `-> DRAINED` (no worker is left in an
//! epoch in which it had slabs, so nobody sets a page's bit any more) `-> ` bits cleared `-> DONE`.
//! So ends an eviction, a slab that cooled down, and an extent whose hosts are lost. Slabs whose hosts have
//! said that they will be back are waited for (`owning`, decision 61).
//!
//! Invariants: I3, after DONE no verb touches the slab; I4 is the host's; an extent is not mapped
//! again before its bits are clear (soundness Z1); one with a page that the disk has refused and only
//! its slabs hold is not given up. What the disk refuses later is an error.
//! Paper: \[infiniswap17\] 4.4 (handling of EVICT), 4.5 (remote failure).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_pool::planted::{Planted, is_planted};

use super::repair::{Repair, Stage};
use super::{Control, pool_window};
use crate::core::Mapping;
use crate::directory::Stripe;
use crate::extents::Side;

impl Control {
    /// Whether an extent's slabs may go: everything is on the disk, or on its way there.
    pub(super) fn may_drop(&self, extent: usize) -> bool {
        let pages = self.core.pages(extent);
        let store = self.core.backing.as_ref();
        let holds = store.is_some_and(|store| {
            let is_only_there = |page: &u64| {
                store.pages.remote.contains(*page) && self.core.marks.written.contains(*page)
            };
            !store
                .pages
                .stale
                .range(pages)
                .any(|page| is_only_there(&page))
        });
        holds && self.find_repair(extent).is_none()
    }

    /// Unmaps an extent whose pages are then those of the backing store.
    pub(super) fn begin_drop(&mut self, extent: usize) {
        let mut stripe = None;
        let epoch = self.core.directory.publish(|next| {
            stripe = next.extents[extent].take();
            stripe.is_some()
        });
        let Some(stripe) = stripe else { return };
        // What comes back nobody knows any more.
        for slab in stripe.stranded.iter().flatten() {
            self.compare_books(slab.host);
        }
        let mut repair = Repair::new(extent, 0, 0, Stage::Dropping { epoch }, self.now());
        if is_planted(Planted::EarlyClear) {
            self.clear_bits(extent);
        }
        let members = stripe.members.iter().flatten();
        let windows = members.map(|member| {
            let window = pool_window(&member.window.descriptor);
            (member.session, window)
        });
        repair.given_up = windows.collect();
        self.repairs.push(repair);
    }

    /// No slab of the extent has its pages any more. Those on the other side may be in slabs of that. One
    /// that goes there meanwhile is read from the disk until it is written next.
    pub(super) fn clear_bits(&self, extent: usize) {
        let (sides, pages) = (&self.core.sides, self.core.pages(extent));
        let Some(store) = &self.core.backing else {
            return;
        };
        for page in store.pages.remote.range(pages) {
            if sides.side_of(page) == Side::of(extent) {
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
        while let Some(at) = self.repairs.iter().position(is_over) {
            self.end_drop(at);
        }
    }

    /// Nobody works with the slabs any more.
    pub(super) fn end_drop(&mut self, at: usize) {
        let Repair {
            extent, given_up, ..
        } = self.repairs.swap_remove(at);
        if !is_planted(Planted::EarlyClear) {
            self.clear_bits(extent);
        }
        self.core.mapping_ended(extent, Mapping::Idle);
        let now = self.now();
        for (session, window) in given_up {
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
