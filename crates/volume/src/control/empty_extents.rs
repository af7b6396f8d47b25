//! Giving back the slabs of extents in which no page holds data any more, or can be read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::repair::{Repair, Stage};
use super::{Control, pool_window};
use crate::core::Mapping;
use crate::directory::Stripe;
use crate::extents::LayoutId;
use crate::fence::Fence;

impl Control {
    /// Fences every mapped extent in which no page is written, to unmap it once drained.
    pub(super) fn unmap_empty(&mut self) {
        let snapshot = self.core.directory.snapshot();
        for (extent, stripe) in snapshot.extents.numbered() {
            let Some(stripe) = stripe.as_deref() else {
                continue;
            };
            // What is mapped for pages that are yet to come stays, unless it is lost.
            let is_target =
                self.is_restriping() && LayoutId::of(extent) == self.core.layouts.target();
            let is_awaiting = is_target && stripe.is_there();
            if is_awaiting || self.core.holds(extent) {
                continue;
            }
            // Until its slabs are back or given up, or what is done to it has ended.
            if stripe.has_unreachable() || self.find_repair(extent).is_some() {
                self.core.discarded.store(true, Ordering::Release);
                continue;
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

    /// The extent is drained: unmaps it unless a write came first.
    pub(super) fn reclaim(&mut self, at: usize) {
        let extent = self.repairs[at].extent;
        let snapshot = self.core.directory.snapshot();
        let is_lost = snapshot.extents[extent]
            .as_deref()
            .is_some_and(Stripe::is_past_hope);
        if is_lost && !self.lose_pages(extent) {
            return;
        }
        self.repairs.swap_remove(at);
        let is_empty = is_lost || !self.core.holds(extent);
        let mut freed = Vec::new();
        self.core.directory.publish(|next| {
            match &mut next.extents[extent] {
                Some(stripe) if !is_empty => Arc::make_mut(stripe).fence = Fence::default(),
                slot => {
                    freed = slot
                        .take()
                        .map(|stripe| stripe.members.clone())
                        .unwrap_or_default()
                }
            }
            true
        });
        if is_empty {
            self.clear_bits(extent);
        }
        self.core.mapping_ended(extent, Mapping::Idle);
        if is_lost {
            self.note_reclaimed(extent);
        }
        // Before their hosts free them.
        self.record();
        for member in freed.into_iter().flatten() {
            self.give_back(member.session, pool_window(&member.window.descriptor));
        }
    }
}
