//! Moving a page to the volume's other layout: read where it is, written where it is to be.
//!
//! `Parked -> Merging (claimed; the old stripe is read and judged) -> Writing (the new one) -> (done)`.
//! What goes wrong ends the try and gives the page back as it was: the bit that says its layout is set last,
//! when every member of the new stripe has acknowledged. The page is on nobody's list of pages in
//! flight, for it is whole where its bit says; whoever rebuilds the new stripe's slabs does not count it
//! as theirs until then (`Core::held`).
//!
//! Invariants: the bit is set under the claim and before the epoch is left; only a whole stripe gets
//! pages; a sealed page goes as it is, under its tag.
//! Decision 32.

use std::sync::atomic::Ordering;

use cenote_fabric::order_stores;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::State;
use super::stripe_of;
use crate::IoError;
use crate::directory::Stripe;
use crate::layout::PageLocation;
use crate::marks::Soundness;
use crate::worker::Worker;

impl Worker {
    /// Looks where the operation's page is: again whenever it begins, for it may have moved.
    pub(super) fn locate(&mut self, op: u16) {
        let state = &mut self.ops[usize::from(op)];
        let PageLocation { extent, index, cut } = self.core.layouts.locate(state.chunk.page);
        (state.place.extent, state.place.index, state.place.cut) = (extent, index, cut);
    }

    pub(super) fn begin_move(&mut self, op: u16) {
        let page = self.ops[usize::from(op)].chunk.page;
        // Once: a change that is taken back meanwhile has another.
        let to = self.core.layouts.target();
        self.ops[usize::from(op)].aim.to = to;
        // Nobody else moves it.
        if self.core.layouts.id_of(page) == to {
            return self.finish(op, Ok(()));
        }
        if !is_injected(InjectedFault::MoveOverNewer) {
            if !self.claim_known(op) {
                return self.park(op);
            }
            self.ops[usize::from(op)].claim.held = true;
        }
        let is_written = self.core.pages.marks.written.contains(page);
        if is_written && self.core.backing.is_some() {
            return self.move_to_disk(op);
        }
        if !is_written || self.core.pages.marks.soundness(page) == Soundness::Torn {
            // Nothing to be read, there or here.
            self.pass_over(op);
            return self.finish(op, Ok(()));
        }
        self.locate(op);
        self.ops[usize::from(op)].state = State::Merging;
        self.gather(op);
    }

    /// Claims the page; with a disk behind it, once the disk's queue has taken in every write of it: one
    /// that was asked for and not taken stands in no bit. Nothing is held while it is waited for.
    fn claim_known(&mut self, op: u16) -> bool {
        let (at, claims) = (usize::from(op), &self.core.pages.claims);
        let page = self.ops[at].chunk.page;
        let Some(store) = &self.core.backing else {
            return claims.try_claim(page);
        };
        let lane = store.lane_of(page);
        let state = &mut self.ops[at];
        let asked = match state.disk.asked {
            Some(asked) => asked,
            None => {
                // In this order: who had the page before had asked.
                let Some(version) = claims.version(page) else {
                    return false;
                };
                state.claim.version = version;
                *state.disk.asked.insert(store.asked_of(lane))
            }
        };
        if !store.has_taken_of(lane, asked) {
            return false;
        }
        // A write came in between: then that one is waited for, too.
        let is_claimed = claims.try_claim_at(page, state.claim.version);
        if !is_claimed {
            state.disk.asked = None;
        }
        is_claimed
    }

    /// The page was read: writes it to its new stripe.
    pub(super) fn scatter_moved(&mut self, op: u16) {
        let at = usize::from(op);
        // All of it is written again, elsewhere.
        self.ops[at].wrong = 0;
        self.leave(op);
        let (to, page) = (self.ops[at].aim.to, self.ops[at].chunk.page);
        let PageLocation { extent, index, cut } = self.core.layouts.locate_in(to, page);
        let state = &mut self.ops[at];
        (state.place.extent, state.place.index, state.place.cut) = (extent, index, cut);
        self.enter(op);
        let stripe = stripe_of(&self.views, &self.ops[at]).filter(|stripe| is_whole(stripe));
        let Some(stripe) = stripe else {
            return self.finish(op, Err(IoError::NoSpace));
        };
        if stripe.fence.contains(index) {
            return self.park(op);
        }
        let members = self.required(stripe, index);
        let state = &mut self.ops[at];
        state.state = State::Writing;
        state.verbs.reset();
        if is_injected(InjectedFault::SkipLayoutBit) {
            self.pass_over(op);
        }
        self.scatter(op, members);
    }

    /// Everything posted to the new stripe has completed.
    pub(super) fn end_move(&mut self, op: u16) {
        // Before the bit, which readers and rebuilders look at.
        order_stores();
        let state = &self.ops[usize::from(op)];
        let changed_in = stripe_of(&self.views, state).map(|stripe| stripe.changed_in);
        // A slab that was skipped is out of everybody's sight, and the next owner finds the others.
        let is_known = changed_in.is_some_and(|epoch| {
            self.core.directory.is_settled(epoch) && self.core.is_journaled(epoch)
        });
        if state.verbs.failed || !is_known {
            return self.finish(op, Err(IoError::NoSpace));
        }
        self.pass_over(op);
        // In this order: should the owner end in between, the page is read as doubtful as it was.
        self.decide_tag(op);
        self.core
            .pages
            .marks
            .heal(self.ops[usize::from(op)].chunk.page);
        let counters = &self.core.measures.counters;
        counters.pages_moved.fetch_add(1, Ordering::Relaxed);
        self.finish(op, Ok(()));
    }

    /// Whether the operation moves a page of which it looks at all there is.
    pub(super) fn moves_widely(&self, op: u16) -> bool {
        let state = &self.ops[usize::from(op)];
        state.aim.is_move && state.aim.is_wider
    }

    /// What was read of the page disagrees. All there is of it may tell what is right; if not, it is
    /// an error for good once nothing of its stripe is awaited.
    pub(super) fn end_moving_corrupt(&mut self, op: u16) {
        if self.ops[usize::from(op)].aim.is_wider {
            return self.end_unmovable(op, IoError::Corrupt);
        }
        self.ops[usize::from(op)].aim.is_wider = true;
        self.park(op);
    }

    /// The page could not be read. Where that is for good it is an error in its new layout, as it was in
    /// its old one; else the next try may read it.
    pub(super) fn end_unmovable(&mut self, op: u16, error: IoError) {
        let page = self.ops[usize::from(op)].chunk.page;
        let snapshot = self.views.known();
        let stripe = snapshot.extents.get(self.ops[usize::from(op)].place.extent);
        let stripe = stripe.and_then(Option::as_deref);
        let is_awaited = stripe.is_some_and(Stripe::has_unreachable);
        let is_gone = stripe.is_none_or(|stripe| !stripe.is_there());
        let is_over = error == IoError::Corrupt || (error == IoError::Lost && is_gone);
        if is_awaited || !is_over {
            return self.finish(op, Err(error));
        }
        tracing::warn!(
            page,
            "a page cannot be read: it is an error until it is written whole"
        );
        self.core.pages.marks.tear(page);
        self.pass_over(op);
        self.finish(op, Ok(()));
    }

    /// A page that the disk has needs no copy: it is read from there until it is written next. One that the
    /// disk has refused stays, for only its slabs have it, and so does one that it may yet refuse (decision 47).
    fn move_to_disk(&mut self, op: u16) {
        let page = self.ops[usize::from(op)].chunk.page;
        let store = self.core.backing.as_ref();
        let pages = &store.expect("just seen").pages;
        // In this order: what became of a write is known before it is queued no more.
        let is_open = pages.queued.contains(page) || pages.stale.contains(page);
        if is_open && pages.remote.contains(page) {
            return self.finish(op, Err(IoError::Disk));
        }
        // In this order: in its new layout no slab has it.
        pages.remote.remove(page);
        self.pass_over(op);
        let counters = &self.core.measures.counters;
        counters.pages_moved.fetch_add(1, Ordering::Relaxed);
        self.finish(op, Ok(()));
    }

    /// From here on the page is in the layout where it is to be. Under its claim.
    fn pass_over(&self, op: u16) {
        let state = &self.ops[usize::from(op)];
        self.core.layouts.pass(state.chunk.page, state.aim.to);
    }
}

/// Whether pages come to a stripe from one that may be: every split is there, and none is awaited.
fn is_whole(stripe: &Stripe) -> bool {
    let all = (1 << stripe.splits()) - 1;
    stripe.readable() & all == all && !stripe.has_unreachable()
}
