//! Extents without a backing store of which fewer than k slabs are left, and none to come.
//!
//! `LOST -> FENCED` (writes wait) `-> DRAINED -> ` what it held is torn (`Core::lose`) `-> UNMAPPED`. From there
//! on it is as one that was never mapped: the next write of a whole page maps it again, and reads of pages that it
//! held are errors until each is written whole or discarded. Extents of a volume that is mapped ahead get
//! slabs again as soon as there are hosts for all of them.
//!
//! Silence is not death: while slabs that hold current data may come back in such a number that pages can be
//! read, the extent stays as it is.
//! Decision 44.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use cenote_fabric::Time;

use super::Control;
use super::repair::{Repair, Stage};
use crate::PAGE_BYTES;
use crate::core::Mapping;
use crate::directory::Stripe;
use crate::extents::LayoutId;
use crate::fence::Fence;

/// Extents that were lost, and are to be mapped again by themselves.
#[derive(Default)]
pub(super) struct Losses {
    unmapped: BTreeSet<usize>,
}

/// Extents mapped again per tick: a few keep every host busy.
const AGAIN_PER_TICK: usize = 8;

impl Control {
    /// Begins to reclaim extents that are lost for good.
    pub(super) fn reclaim_the_lost(&mut self) {
        let snapshot = self.core.directory.snapshot();
        for (extent, stripe) in snapshot.extents.numbered() {
            let is_lost = |stripe: &&Stripe| !stripe.is_there() || stripe.is_past_hope();
            let Some(stripe) = stripe.as_deref().filter(is_lost) else {
                continue;
            };
            // Of what holds nothing, nothing need come back.
            if !stripe.is_past_hope() && self.core.holds(extent) {
                continue;
            }
            // A slab that is still to come is of no use any more; it goes back when it does.
            self.repair_refused(extent);
            if self.find_repair(extent).is_some() {
                continue;
            }
            if stripe.has_unreachable() {
                self.give_up_unreachable(extent);
            }
            let pages = self.core.layout_of(extent).extent_end();
            let epoch = self.core.directory.publish_stripe(extent, |stripe| {
                stripe.fence = Fence::around(0..pages);
                true
            });
            let stage = Stage::Reclaiming { epoch };
            let now = self.now();
            self.repairs.push(Repair::new(extent, 0, 0, stage, now));
        }
    }

    /// Has everything that a lost extent holds be an error; false while somebody is at some of it.
    pub(super) fn lose_pages(&self, extent: usize) -> bool {
        let Some(pages) = self.core.lose(extent) else {
            return false;
        };
        if pages > 0 {
            let lost_bytes = pages * PAGE_BYTES as u64;
            tracing::error!(
                extent,
                lost_bytes,
                "more hosts are lost than an extent survives: what it held is lost, and an error until it is written again"
            );
        }
        true
    }

    /// An extent was unmapped because it was lost. One that was mapped ahead is not to be without slabs for long.
    pub(super) fn note_reclaimed(&mut self, extent: usize) {
        if self.core.mapped_ahead.load(Ordering::Acquire) && !self.is_restriping() {
            self.losses.unmapped.insert(extent);
        }
    }

    /// Maps extents again that were mapped ahead and lost, a few at a time, as soon as hosts have room for whole
    /// ones. What is written before that asks for its extent by itself.
    pub(super) fn map_again(&mut self, now: Time) {
        let Losses { unmapped } = &mut self.losses;
        if unmapped.is_empty() {
            return;
        }
        let (snapshot, core) = (self.core.directory.snapshot(), &self.core);
        let target = core.layouts.target();
        let is_wanted = |&extent: &usize| {
            let is_mapped = snapshot.extents.get(extent).is_none_or(Option::is_some);
            !is_mapped && LayoutId::of(extent) == target
        };
        unmapped.retain(is_wanted);
        let next: Vec<usize> = unmapped.iter().copied().take(AGAIN_PER_TICK).collect();
        if self.candidates(now).len() < self.core.layouts.scheme(target).members() {
            return;
        }
        for extent in next {
            if self.core.want(extent) == Mapping::Refused {
                tracing::debug!(extent, "no room to map it again yet");
            }
        }
    }
}
