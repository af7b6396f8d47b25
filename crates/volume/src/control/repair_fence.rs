//! The fence of a repair's chunk: it moves on with the watermark, and comes down at the end.
//!
//! Invariant: the watermark is never past a page that was not filled without a write beside it. So it moves
//! only in the epoch in which the fence behind it comes down, and only as far as the gate was closed in
//! time (`backoff`).

use std::sync::atomic::Ordering;

use cenote_fabric::Time;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::Control;
use super::fill::PAUSE;
use super::repair::{Repair, Stage};
use crate::directory::MemberState;
use crate::fence::Fence;

impl Control {
    /// Moves the watermark to `start` and fences the chunk that begins there; at the end, publishes.
    pub(super) fn fence(&mut self, at: usize, start: u32) {
        let Repair {
            extent,
            split,
            slot,
            ..
        } = self.repairs[at];
        let layout = self.core.layout_of(extent);
        let (pages, split_bytes) = (layout.extent_end(), layout.cut().split_bytes() as u64);
        let now = self.now();
        let step = self.repairs[at].backoff.of(self.pacing.step());
        let chunk = (step.fill_bytes * u64::from(step.fills)).div_ceil(split_bytes);
        let end = start
            .saturating_add(u32::try_from(chunk).expect("small"))
            .min(pages);
        self.repairs[at].is_trial = false;
        let is_whole = start == pages;
        let waits = match self.pacing.waits_until(now) {
            _ if is_whole => None,
            Some(until) => Some(Stage::Pausing { until, start }),
            // This one's own chunk is done.
            None if self.fenced_besides(at) >= step.chunks => Some(Stage::Queued { start }),
            None => None,
        };
        if is_whole && self.record.is_some() {
            // Writes reach all of it from here on; they do not wait for the disk besides.
            self.set_state(
                at,
                MemberState::Filling { watermark: start },
                Fence::default(),
            );
        }
        let is_recorded = !is_whole || self.is_recorded(extent, slot, split);
        if is_whole && is_recorded && self.repairs[at].moves() {
            return self.replace(at);
        }
        let is_live = is_whole && is_recorded;
        let state = match is_live {
            true => MemberState::Live,
            false => MemberState::Filling { watermark: start },
        };
        let is_open = is_whole || waits.is_some() || is_injected(InjectedFault::NoFence);
        let gate = self.open_gate(at);
        let fence = match is_open {
            true => Fence::default(),
            false => Fence::with_gate(start..end, gate),
        };
        let Some(epoch) = self.set_state(at, state, fence) else {
            return self.abandon(at);
        };
        if !is_recorded {
            // Every write reaches it meanwhile: it is whole, and stays so until the journal names it.
            self.repairs[at].stage = Stage::Pausing {
                until: now.after(PAUSE),
                start,
            };
            return;
        }
        if let Some(stage) = waits {
            self.repairs[at].stage = stage;
            return;
        }
        if is_live {
            let took = now.since(self.repairs[at].began);
            self.core.timings.fill.note(took);
            tracing::info!(extent, split, "regeneration done");
            self.core
                .counters
                .slabs_rebuilt
                .fetch_add(1, Ordering::Relaxed);
            self.repairs.swap_remove(at);
            self.repair_retry = Time(0);
            return;
        }
        self.pacing
            .note_chunk(now, u64::from(end - start) * split_bytes);
        let repair = &mut self.repairs[at];
        repair.shunned = 0;
        (repair.chunk, repair.filled_bytes) = (start, 0);
        repair.pages_max = std::mem::replace(&mut repair.pages_after, u32::MAX);
        repair.fill_bytes = step.fill_bytes;
        repair.stage = Stage::Draining { epoch, start, end };
    }

    /// Publishes how far a repair's slab is and what is fenced next; the epoch, unless the slab is gone.
    pub(super) fn set_state(&mut self, at: usize, state: MemberState, fence: Fence) -> Option<u64> {
        let Repair { extent, slot, .. } = self.repairs[at];
        let mut kept = false;
        let epoch = self.core.directory.publish_stripe(extent, |stripe| {
            if let Some(Some(member)) = stripe.members.get_mut(slot) {
                kept = true;
                member.state = state;
            }
            stripe.fence = fence;
            kept
        });
        kept.then_some(epoch)
    }

    /// Whether the next owner would find the filled slab; one that is gone needs not be found.
    fn is_recorded(&mut self, extent: usize, slot: usize, split: usize) -> bool {
        let snapshot = self.core.directory.snapshot();
        let stripe = snapshot.extents[extent].as_deref();
        let member = stripe.and_then(|stripe| stripe.members.get(slot)?.as_ref());
        member.is_none_or(|member| self.record_filled(extent, split, member))
    }

    /// Lets writers into the chunk before all of it is filled; where it goes on later.
    ///
    /// What lies before `start` is filled: from now on writers reach it there. Not in a chunk that is void;
    /// and of a trial nothing is, for nobody was kept away from what lies before the page that it was
    /// made with.
    pub(super) fn lift_fence(&mut self, at: usize, start: u32) -> u32 {
        let Repair {
            is_trial, chunk, ..
        } = self.repairs[at];
        let start = match self.judge_chunk(at) {
            true if is_trial => 0,
            true => start,
            false => chunk,
        };
        let state = MemberState::Filling { watermark: start };
        self.set_state(at, state, Fence::default());
        start
    }

    /// Chunks of repairs other than the one `at` that writes may wait for.
    pub(super) fn fenced_besides(&self, at: usize) -> usize {
        let is_fenced = |repair: &Repair| match &repair.stage {
            Stage::Draining { .. } => true,
            Stage::Filling(_) => !repair.is_trial,
            _ => false,
        };
        let others = self.repairs.iter().enumerate().filter(|&(i, _)| i != at);
        others.filter(|(_, repair)| is_fenced(repair)).count()
    }
}
