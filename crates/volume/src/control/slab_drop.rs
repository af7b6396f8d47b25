//! An extent of a backed volume that gives its slabs up: its pages are in the backing store.
//!
//! `UNMAPPED` (reads and writes go to the disk from then on) `-> DRAINED` (no worker is left in an
//! epoch in which it had slabs, so nobody sets a page's bit any more) `-> FLUSHED` (of the writes that its
//! slabs acknowledged none is on its way to the disk) `-> ` bits cleared `-> DONE`.
//! So ends an eviction, a slab that cooled down, and an extent whose hosts are lost; that one is not flushed
//! first. Slabs whose hosts have said that they will be back are waited for (`owner`, decision 61).
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

use super::context::Context;
use super::fate::{Cause, Fate, Unmapped};
use crate::core::{Core, Mapping};
use crate::extents::LayoutId;

/// An extent on its way back to the disk.
pub(super) struct SlabDrop {
    extent: usize,
    stage: Stage,
    /// What the disk is to end first; `None`: nothing, for the slabs are lost.
    flush: Option<Flush>,
    /// What traces have of it; ends with it.
    _span: tracing::Span,
}

#[derive(Clone, Copy)]
enum Stage {
    /// Workers are leaving its slabs.
    Draining { epoch: u64 },
    /// Nobody works with them any more; the disk is yet to end writes that they have.
    Flushing { until: Time },
}

struct Flush {
    /// Jobs that the disk queues were asked for when nobody worked with the slabs any more.
    asked: Option<Vec<u64>>,
    /// How long it is waited before the next look at what the disk has.
    pause: Duration,
}

/// After which it is looked first whether the disk has what slabs have acknowledged. A disk takes about that long.
const FLUSH_POLL: Duration = Duration::from_millis(1);
/// Each look at a slow disk comes after twice the pause, up to this: it may be at all pages of the extent.
const FLUSH_POLL_MAX: Duration = Duration::from_millis(100);

impl SlabDrop {
    /// Unmaps an extent whose pages are then those of the backing store; `None`: it is not mapped.
    pub fn begin(core: &Core, extent: usize) -> Option<Self> {
        let mut is_past_hope = None;
        let epoch = core.directory.publish(|next| {
            let Some(stripe) = next.extents[extent].take() else {
                return false;
            };
            is_past_hope = Some(stripe.is_past_hope());
            next.leaving.insert(extent, stripe);
            true
        });
        let is_past_hope = is_past_hope?;
        if is_injected(InjectedFault::EarlyClear) {
            clear_bits(core, extent);
        }
        Some(Self {
            extent,
            stage: Stage::Draining { epoch },
            flush: (!is_past_hope).then_some(Flush {
                asked: None,
                pause: FLUSH_POLL,
            }),
            _span: tracing::info_span!("give extent back to disk", cenote.extent = extent as i64),
        })
    }

    /// Whether it waits for workers to leave an epoch.
    pub fn is_draining(&self) -> bool {
        matches!(self.stage, Stage::Draining { .. })
    }

    /// When it looks at the disk again.
    pub fn pauses_until(&self) -> Option<Time> {
        match self.stage {
            Stage::Flushing { until } => Some(until),
            Stage::Draining { .. } => None,
        }
    }

    /// Once nobody works with the slabs any more: ends once the disk has what they have, or takes them back.
    pub fn step(&mut self, cx: &mut Context, now: Time, unmapped: &mut Vec<Unmapped>) -> Fate {
        let is_due = match self.stage {
            Stage::Draining { epoch } => cx.core.directory.is_settled(epoch),
            Stage::Flushing { until } => now >= until,
        };
        if !is_due {
            return Fate::GoesOn;
        }
        let (Some(flush), Some(store)) = (&mut self.flush, &cx.core.backing) else {
            return self.end(cx, unmapped);
        };
        let asked = flush.asked.get_or_insert_with(|| store.asked());
        if !is_flushed(&cx.core, self.extent, asked) {
            let until = now.after(flush.pause);
            flush.pause = (flush.pause * 2).min(FLUSH_POLL_MAX);
            self.stage = Stage::Flushing { until };
            return Fate::GoesOn;
        }
        if is_only_on_slabs(&cx.core, self.extent) && self.take_back(cx) {
            tracing::warn!(
                extent = self.extent,
                "the disk refused a page that only its slabs have: they stay"
            );
            return Fate::Ended;
        }
        self.end(cx, unmapped)
    }

    /// Maps the extent again with what slabs it has left, those counted that are awaited; false where too
    /// few of them are.
    fn take_back(&self, cx: &mut Context) -> bool {
        let extent = self.extent;
        let mut is_back = false;
        cx.core.directory.publish(|next| {
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
        if is_back {
            cx.core.mapping_ended(extent, Mapping::Idle);
            cx.search_soon();
        }
        is_back
    }

    /// Nobody works with the slabs any more, and nothing is lost with them.
    fn end(&self, cx: &mut Context, unmapped: &mut Vec<Unmapped>) -> Fate {
        let extent = self.extent;
        if !is_injected(InjectedFault::EarlyClear) {
            clear_bits(&cx.core, extent);
        }
        let mut stripe = None;
        cx.core.directory.publish(|next| {
            stripe = next.leaving.remove(&extent);
            true
        });
        let stripe = stripe.map(Arc::unwrap_or_clone).unwrap_or_default();
        cx.core.mapping_ended(extent, Mapping::Idle);
        // Before their hosts free them.
        cx.record();
        // What comes back nobody knows any more.
        for slab in stripe.unreachable.into_iter().flatten() {
            cx.hosts.compare_books(slab.host);
        }
        let mut slabs = Vec::with_capacity(stripe.members.len());
        for member in stripe.members.into_iter().flatten() {
            let window = member.window.name();
            slabs.push((member.session.host, window));
            cx.give_back(member.session, window);
        }
        let dropped = &cx.core.measures.counters.slabs_dropped;
        dropped.fetch_add(slabs.len() as u64, Ordering::Relaxed);
        unmapped.push(Unmapped {
            extent,
            cause: Cause::Dropped(slabs),
        });
        Fate::Ended
    }
}

/// Whether the disk has refused the newest bytes of a page, and the extent's slabs have them.
pub(super) fn is_only_on_slabs(core: &Core, extent: usize) -> bool {
    let Some(store) = &core.backing else {
        return false;
    };
    let (pages, written) = (&store.pages, &core.pages.marks.written);
    let mut stale = pages.stale.range(core.pages(extent));
    stale.any(|page| {
        let is_kept = pages.remote.contains(page) && written.contains(page);
        is_kept && is_of(core, extent, page)
    })
}

/// Whether a page of an extent's range is in that extent, and not in the volume's other layout.
fn is_of(core: &Core, extent: usize, page: u64) -> bool {
    core.layouts.id_of(page) == LayoutId::of(extent)
}

/// Whether the disk has ended every write that the slabs of an extent have.
fn is_flushed(core: &Core, extent: usize, asked: &[u64]) -> bool {
    let Some(store) = &core.backing else {
        return true;
    };
    let pages = &store.pages;
    let mut remote = pages.remote.range(core.pages(extent));
    let is_queued = |page| pages.queued.contains(page) && is_of(core, extent, page);
    store.has_taken(asked) && !remote.any(is_queued)
}

/// No slab of the extent has its pages any more. Those in the other layout may be in slabs of that. One
/// that goes there meanwhile is read from the disk until it is written next.
pub(super) fn clear_bits(core: &Core, extent: usize) {
    let Some(store) = &core.backing else {
        return;
    };
    for page in store.pages.remote.range(core.pages(extent)) {
        if is_of(core, extent, page) {
            store.pages.remote.remove(page);
        }
    }
}
