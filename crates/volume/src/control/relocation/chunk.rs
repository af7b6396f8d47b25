//! The chunk of a relocation, and its fence: it moves on with the watermark, and comes down at the end.
//!
//! Invariant: the watermark is never past a page that was not filled without a write beside it. So it moves
//! only in the epoch in which the fence behind it comes down, and only as far as the gate was closed in
//! time (`backoff`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::{PAUSE, Relocation, Site, Stage};
use crate::control::context::Context;
use crate::control::fate::Fate;
use crate::control::pace::Step;
use crate::core::{Core, Counters};
use crate::directory::MemberState;
use crate::fence::{Fence, Gate};

/// Pages that are filled under one fence.
pub(super) struct Chunk {
    /// The first of them.
    start: u32,
    /// What lets writes into it.
    pub gate: Arc<Gate>,
    /// Slab bytes of one fill.
    pub fill_bytes: u64,
    /// Slab bytes that are filled.
    pub filled_bytes: u64,
    /// Most pages that are filled at a time, while sources disagree somewhere in it.
    pub pages_max: u32,
    /// Sources that the target could not read.
    pub shunned: u64,
    /// Whether nothing was fenced yet: the target reaches its sources first.
    pub is_trial: bool,
}

impl Default for Chunk {
    /// Of a relocation that has fenced nothing yet.
    fn default() -> Self {
        Self {
            start: 0,
            gate: Arc::new(Gate::new(Duration::ZERO)),
            fill_bytes: 0,
            filled_bytes: 0,
            pages_max: u32::MAX,
            shunned: 0,
            is_trial: true,
        }
    }
}

impl Chunk {
    /// A chunk begins at `start`, with the gate that it has.
    fn begin(&mut self, start: u32, step: Step, pages_max: u32) {
        self.start = start;
        self.fill_bytes = step.fill_bytes;
        self.filled_bytes = 0;
        self.pages_max = pages_max;
        self.shunned = 0;
    }

    /// Closes the gate: whether what was rebuilt counts, for nobody went through before.
    fn judge(&mut self, counters: &Counters) -> bool {
        let is_void = !self.gate.close() && !is_injected(InjectedFault::KeepVoid);
        let bytes = std::mem::take(&mut self.filled_bytes);
        if is_void {
            counters.chunks_void.fetch_add(1, Ordering::Relaxed);
        } else {
            counters.rebuilt_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        !is_void
    }
}

impl Relocation {
    /// Moves the watermark to `start` and fences the chunk that begins there; at the end, publishes.
    pub(super) fn fence(&mut self, site: &mut Site<'_>, start: u32) -> Fate {
        let layout = site.cx.core.layout_of(self.extent);
        let (pages, split_bytes) = (layout.extent_end(), layout.cut().split_bytes() as u64);
        let now = site.cx.now();
        let step = self.backoff.of(site.pacing.step());
        let chunk = (step.fill_bytes * u64::from(step.fills)).div_ceil(split_bytes);
        let end = start
            .saturating_add(u32::try_from(chunk).expect("small"))
            .min(pages);
        self.chunk.is_trial = false;
        let gate = Arc::new(Gate::new(self.backoff.patience()));
        self.chunk.gate = Arc::clone(&gate);
        if start == pages {
            return self.publish(site, start, now);
        }
        let waits = match site.pacing.waits_until(now) {
            Some(until) => Some(Stage::Pacing { until, start }),
            // This one's own chunk is done.
            None if site.fenced_besides >= step.chunks => Some(Stage::Queued { start }),
            None => None,
        };
        let is_open = waits.is_some() || is_injected(InjectedFault::NoFence);
        let fence = match is_open {
            true => Fence::default(),
            false => Fence::with_gate(start..end, gate),
        };
        let state = MemberState::Filling { watermark: start };
        let Some(epoch) = self.set_state(&site.cx.core, state, fence) else {
            return self.abandon(site.cx);
        };
        if let Some(stage) = waits {
            self.stage = stage;
            return Fate::GoesOn;
        }
        site.pacing
            .note_chunk(now, u64::from(end - start) * split_bytes);
        let pages_max = std::mem::replace(&mut self.pages_after, u32::MAX);
        self.chunk.begin(start, step, pages_max);
        self.stage = Stage::Draining { epoch, start, end };
        Fate::GoesOn
    }

    /// The slab is filled to its end, at `start`: it becomes one like any other, once the next owner would
    /// find it.
    fn publish(&mut self, site: &mut Site<'_>, start: u32, now: Time) -> Fate {
        let filling = MemberState::Filling { watermark: start };
        if site.cx.recorder.is_kept() {
            // Writes reach all of it from here on; they do not wait for the disk besides.
            self.set_state(&site.cx.core, filling, Fence::default());
        }
        let is_recorded = self.is_recorded(site.cx, now);
        if is_recorded && self.moves() {
            return self.replace(site.cx);
        }
        let state = match is_recorded {
            true => MemberState::Live,
            false => filling,
        };
        let set = self.set_state(&site.cx.core, state, Fence::default());
        if set.is_none() {
            return self.abandon(site.cx);
        }
        if !is_recorded {
            // Every write reaches it meanwhile: it is whole, and stays so until the journal names it.
            self.stage = Stage::Pausing {
                until: now.after(PAUSE),
                start,
            };
            return Fate::GoesOn;
        }
        let core = &site.cx.core;
        core.measures.timings.fill.note(now.since(self.began));
        tracing::info!(
            extent = self.extent,
            split = self.split,
            "regeneration done"
        );
        core.measures
            .counters
            .slabs_rebuilt
            .fetch_add(1, Ordering::Relaxed);
        site.cx.search_soon();
        Fate::Ended
    }

    /// Publishes how far the slab is and what is fenced next; the epoch, unless the slab is gone.
    fn set_state(&self, core: &Core, state: MemberState, fence: Fence) -> Option<u64> {
        let mut kept = false;
        let epoch = core.directory.publish_stripe(self.extent, |stripe| {
            if let Some(Some(member)) = stripe.members.get_mut(self.slot) {
                kept = true;
                member.state = state;
            }
            stripe.fence = fence;
            kept
        });
        kept.then_some(epoch)
    }

    /// Whether the next owner would find the filled slab; one that is gone needs not be found.
    fn is_recorded(&self, cx: &mut Context, now: Time) -> bool {
        let snapshot = cx.core.directory.snapshot();
        let stripe = snapshot.extents[self.extent].as_deref();
        let member = stripe.and_then(|stripe| stripe.members.get(self.slot)?.as_ref());
        member.is_none_or(|member| {
            let (extent, split) = (self.extent, self.split);
            cx.recorder
                .note_filled(now, &cx.hosts, extent, split, member)
        })
    }

    /// The chunk up to `end` is filled, or holds nothing: goes on behind it, or begins it again if a
    /// write went through.
    pub(super) fn end_chunk(&mut self, site: &mut Site<'_>, end: u32) -> Fate {
        let start = match self.judge_chunk(&site.cx.core) {
            true => end,
            false => self.chunk.start,
        };
        self.fence(site, start)
    }

    /// Ends the chunk: whether what was rebuilt of it counts.
    fn judge_chunk(&mut self, core: &Core) -> bool {
        let counts = self.chunk.judge(&core.measures.counters);
        self.backoff.note(!counts);
        counts
    }

    /// Lets writers into the chunk before all of it is filled; where it goes on later.
    ///
    /// What lies before `start` is filled: from now on writers reach it there. Not in a chunk that is void;
    /// and of a trial nothing is, for nobody was kept away from what lies before the page that it was
    /// made with.
    pub(super) fn lift_fence(&mut self, core: &Core, start: u32) -> u32 {
        let start = match self.judge_chunk(core) {
            true if self.chunk.is_trial => 0,
            true => start,
            false => self.chunk.start,
        };
        let state = MemberState::Filling { watermark: start };
        self.set_state(core, state, Fence::default());
        start
    }
}
