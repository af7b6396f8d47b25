//! An extent that gives its slabs up because no page of it holds data any more, or can be read.
//!
//! `FENCED` (writes wait) `-> DRAINED -> ` (of a lost one: what it held is torn, `Core::lose`) `-> UNMAPPED`. From
//! there on it is as one that was never mapped: the next write of a whole page maps it again, and reads of pages
//! that a lost one held are errors until each is written whole or discarded.

use std::sync::Arc;

use super::context::Context;
use super::fate::{Cause, Fate, Unmapped};
use super::slab_drop::clear_bits;
use crate::PAGE_BYTES;
use crate::core::{Core, Mapping};
use crate::directory::Stripe;
use crate::fence::Fence;

/// An extent on its way to being unmapped.
pub(super) struct ExtentReclaim {
    extent: usize,
    /// From which on it is fenced.
    epoch: u64,
}

impl ExtentReclaim {
    /// Fences a mapped extent.
    pub fn begin(core: &Core, extent: usize) -> Self {
        let pages = core.layout_of(extent).extent_end();
        let epoch = core.directory.publish_stripe(extent, |stripe| {
            stripe.fence = Fence::around(0..pages);
            true
        });
        Self { extent, epoch }
    }

    /// Unmaps it once it is drained, unless a write came first.
    pub fn step(&mut self, cx: &mut Context, unmapped: &mut Vec<Unmapped>) -> Fate {
        let extent = self.extent;
        if !cx.core.directory.is_settled(self.epoch) {
            return Fate::GoesOn;
        }
        let snapshot = cx.core.directory.snapshot();
        let is_lost = snapshot.extents[extent]
            .as_deref()
            .is_some_and(Stripe::is_past_hope);
        if is_lost && !lose_pages(&cx.core, extent) {
            return Fate::GoesOn;
        }
        let is_empty = is_lost || !cx.core.holds(extent);
        let mut freed = Vec::new();
        cx.core.directory.publish(|next| {
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
            clear_bits(&cx.core, extent);
        }
        cx.core.mapping_ended(extent, Mapping::Idle);
        // Before their hosts free them.
        cx.record();
        for member in freed.into_iter().flatten() {
            cx.give_back(member.session, member.window.name());
        }
        if is_lost {
            unmapped.push(Unmapped {
                extent,
                cause: Cause::Lost,
            });
        }
        Fate::Ended
    }
}

/// Has everything that a lost extent holds be an error; false while somebody is at some of it.
fn lose_pages(core: &Core, extent: usize) -> bool {
    let Some(pages) = core.lose(extent) else {
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
