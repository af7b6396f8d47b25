//! Writing a page: from its claim to the acknowledgement of every member that must have it.
//!
//! A write moves on only when all verbs it posted have completed, so a failed host is marked in the
//! directory before anything is posted again. One of part of a page reads it first (`Merging`).
//!
//! Invariants: as in `page`; a page is on the list of pages in flight, with what it is to be, from before
//! its first verb until its splits agree, or it is marked as one whose splits may not. A volume that ends in
//! between leaves it there for the next owner.
//! Paper: \[hydra22\] 4.1.1 (asynchronously encoded write), 4.2.

use std::sync::atomic::Ordering;

use cenote_fabric::order_stores;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::stripe_of;
use super::verbs::Verb;
use super::{ENCODING, State};
use crate::backing::Route;
use crate::core::Mapping;
use crate::directory::Stripe;
use crate::marks::IN_FLIGHT_MAX;
use crate::worker::{OPS_MAX, Worker};
use crate::{IoError, PAGE_BYTES};

impl Worker {
    pub(super) fn begin_write(&mut self, op: u16) {
        let at = usize::from(op);
        let page = self.ops[at].chunk.page;
        let claimed = self.ops[at].claim.held || self.core.pages.claims.try_claim(page);
        if !claimed && !is_injected(InjectedFault::TwoWriters) {
            return self.park(op);
        }
        self.ops[at].claim.held = claimed;
        self.locate(op);
        if self.ops[at].chunk.len_bytes == PAGE_BYTES {
            return self.begin_scatter(op);
        }
        let written = self.core.pages.marks.written.contains(page);
        if self.is_discard(op) && !written {
            return self.finish(op, Ok(()));
        }
        if written {
            self.ops[at].state = State::Merging;
            return self.gather(op);
        }
        let scratch = self.scratch(op);
        // SAFETY: the operation's scratch block starts with one whole page and is used by it alone.
        unsafe { scratch.write_bytes(0, PAGE_BYTES) };
        self.merge(op);
        self.begin_scatter(op);
    }

    /// Checks that the page may be written now, then posts its data splits.
    pub(super) fn begin_scatter(&mut self, op: u16) {
        let at = usize::from(op);
        self.enter(op);
        let index = self.ops[at].place.index;
        let is_backed = self.core.backing.is_some();
        let Some(stripe) = stripe_of(&self.views, &self.ops[at]) else {
            if is_backed {
                return self.store_alone(op);
            }
            return match self.core.want(self.ops[at].place.extent) {
                Mapping::Refused => self.finish(op, Err(IoError::NoSpace)),
                _ => self.park(op),
            };
        };
        let is_fenced = stripe.fence.contains(index);
        if self.is_held_up(op) {
            return self.park(op);
        }
        if is_fenced && self.ops[at].fenced.is_none() {
            let passes = &self.core.measures.counters.fence_passes;
            passes.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(since) = self.ops[at].fenced.take() {
            self.core
                .measures
                .timings
                .fence
                .note((self.core.clock)().since(since));
        }
        let stripe = stripe_of(&self.views, &self.ops[at]).expect("just seen");
        if is_backed && (!stripe.is_there() || stripe.has_unreachable()) {
            return self.store_alone(op);
        }
        if !stripe.is_there() {
            // Until slabs are back, or it is unmapped and mapped again.
            if stripe.is_awaited() || stripe.is_past_hope() {
                return self.park(op);
            }
            return self.finish(op, Err(IoError::Lost));
        }
        let members = self.required(stripe, index);
        if !self.is_redo(op) {
            self.protect(op);
        }
        if is_backed && !self.stage(op, Route::Both) {
            return self.park(op);
        }
        // Early, so that a regeneration or a reclaim that drains this write sees its page.
        self.list(op);
        let state = &mut self.ops[at];
        state.state = State::Writing;
        state.verbs.reset();
        self.prepare_acknowledgement(op);
        self.scatter(op, members);
    }

    /// Whether a write of the page has to wait for what is done to its chunk, or for slabs that will be back and
    /// have to have it. In an epoch.
    pub(super) fn is_held_up(&mut self, op: u16) -> bool {
        let at = usize::from(op);
        let Some(stripe) = stripe_of(&self.views, &self.ops[at]) else {
            return false;
        };
        let awaits_slabs = match self.core.backing {
            Some(_) => stripe.has_unreachable() && self.is_only_on_slabs(op),
            None => stripe.has_unreachable() && stripe.is_there(),
        };
        if stripe.fence.contains(self.ops[at].place.index) {
            let now = (self.core.clock)();
            let since = self.ops[at].fenced;
            if !stripe.fence.lets_in(now.since(since.unwrap_or(now))) {
                self.ops[at].fenced.get_or_insert(now);
                return true;
            }
        }
        awaits_slabs
    }

    /// Lists the page as being written, and what it is to be. One that is redone is listed.
    pub(super) fn list(&mut self, op: u16) {
        if !self.is_redo(op) {
            let (slot, page) = (self.list_slot(op), self.ops[usize::from(op)].chunk.page);
            self.stage_tag(op, slot);
            // SAFETY: the page is the request's buffer, the scratch page or an entry's, whole in each case,
            // and nothing writes it while the operation lives.
            let bytes = unsafe {
                std::slice::from_raw_parts(self.page_buffer(op).cast_const(), PAGE_BYTES)
            };
            self.core.pages.marks.begin_write(slot, page, bytes);
        }
        self.ops[usize::from(op)].listing.listed = true;
    }

    /// Posts the data splits among `members` and leaves the parities to be encoded meanwhile.
    pub(super) fn scatter(&mut self, op: u16, members: u64) {
        let k = self.cut(op).k();
        let parities = members >> k << k;
        let encodes = k > 1 && parities != 0;
        self.prefetch(op, members, Verb::Write);
        if encodes && self.switches.async_encode && !self.endpoints.complete_at_once() {
            self.ops[usize::from(op)].verbs.pending = members | ENCODING;
            self.post(op, members & !parities, Verb::Write);
            return self.agenda.encode.push(op);
        }
        // Nothing flies meanwhile; but what was asked for early arrives.
        if encodes {
            self.encode_page(op);
        }
        self.ops[usize::from(op)].verbs.pending = members;
        self.post(op, members, Verb::Write);
    }

    /// Encodes the page's parities, whose data splits are on their way, and posts them.
    pub(in crate::worker) fn post_parities(&mut self, op: u16) {
        self.encode_page(op);
        let at = usize::from(op);
        let k = self.cut(op).k();
        // Members may have failed meanwhile; their posts fail and are handled like any other.
        let unposted = self.ops[at].verbs.take_parities(k);
        self.post(op, unposted, Verb::Write);
    }

    pub(super) fn end_merge(&mut self, op: u16) {
        if self.ops[usize::from(op)].verbs.is_short() {
            self.leave(op);
            return self.gather(op);
        }
        self.revoke_late(op);
        let Some(op) = self.detach(op) else { return };
        if self.core.life.closed.load(Ordering::Acquire) {
            // Its place in the list may be one that is left to the next owner.
            return self.finish(op, Err(IoError::Closed));
        }
        if !self.judge(op) {
            return;
        }
        if self.ops[usize::from(op)].aim.is_move {
            return self.scatter_moved(op);
        }
        // All of the page is written again.
        self.count_healed(op);
        self.merge(op);
        self.leave(op);
        self.begin_scatter(op);
    }

    /// Everything posted has completed: completes what a failure left open, waits for older
    /// epochs where a slab was skipped, acknowledges.
    pub(super) fn end_write(&mut self, op: u16) {
        let at = usize::from(op);
        // Before the page is given back or the epoch left: readers and rebuilders look then.
        order_stores();
        if self.ops[at].verbs.failed {
            let before = stripe_of(&self.views, &self.ops[at]).cloned();
            // Before the epoch is left: whoever rebuilds a split meanwhile finds that this page's
            // cannot be made from the others. The end of the write heals it.
            self.core.pages.marks.doubt(self.ops[at].chunk.page);
            self.leave(op);
            self.enter(op);
            (self.ops[at].verbs.failed, self.ops[at].disk.is_parted) = (false, true);
            let stripe = stripe_of(&self.views, &self.ops[at]);
            // The disk needs no slab to come back.
            let is_backed = self.core.backing.is_some();
            let goes_on =
                |stripe: &&Stripe| stripe.is_there() && !(is_backed && stripe.has_unreachable());
            let Some(stripe) = stripe.filter(goes_on) else {
                let is_held = stripe.is_some_and(Stripe::has_unreachable);
                if is_backed && !(is_held && self.is_only_on_slabs(op)) {
                    return self.await_disk(op);
                }
                if is_backed || stripe.is_some_and(Stripe::is_awaited) {
                    return self.hold(op);
                }
                return self.finish(op, Err(IoError::Lost));
            };
            let same = before.map_or(0, |before| unchanged_members(&before, stripe));
            let acked = self.ops[at].verbs.acked & same;
            let missing = self.required(stripe, self.ops[at].place.index) & !acked;
            let is_fenced = stripe.fence.contains(self.ops[at].place.index);
            if stripe.has_unreachable() || (missing != 0 && is_fenced) {
                return self.hold(op);
            }
            self.ops[at].verbs.acked = acked;
            self.publish_landed(op);
            if missing != 0 {
                self.ops[at].state = State::Writing;
                return self.scatter(op, missing);
            }
        }
        let stripe =
            stripe_of(&self.views, &self.ops[at]).expect("a write works in a mapped extent");
        let is_known = self.core.directory.is_settled(stripe.changed_in)
            || is_injected(InjectedFault::StaleSnapshot);
        if is_known && self.core.is_journaled(stripe.changed_in) {
            self.mark_remote(op);
            self.finish(op, Ok(()));
        } else if self.core.life.closed.load(Ordering::Acquire) {
            // Nobody writes the journal any more.
            self.finish(op, Err(IoError::Closed));
        } else {
            self.ops[at].state = State::Settling;
            self.agenda.parked.push(op);
        }
    }

    /// Members that must have a page before its write is acknowledged: all that have the pages before
    /// it, whatever the volume's scheme is by now.
    pub(super) fn required(&self, stripe: &Stripe, page: u32) -> u64 {
        let members = stripe.writable(page);
        if is_injected(InjectedFault::AckAtK) {
            return members & ((1 << stripe.cut.k()) - 1);
        }
        if is_injected(InjectedFault::AheadOfStripe) {
            let scheme = self.views.known().resilience.scheme();
            return members & ((1 << scheme.members()) - 1);
        }
        members
    }

    /// Lets go of the epoch, so that a rebuilder can end, and writes the page to every member again
    /// once nothing stands in the way.
    pub(super) fn hold(&mut self, op: u16) {
        if self.core.life.closed.load(Ordering::Acquire) {
            return self.finish(op, Err(IoError::Closed));
        }
        self.withdraw_landed(op);
        self.leave(op);
        let state = &mut self.ops[usize::from(op)];
        (state.state, state.verbs.acked, state.verbs.failed) = (State::Holding, 0, true);
        self.agenda.parked.push(op);
    }

    /// Whether a write waits for a rebuilder, a slab, or the journal, and for nothing that is on its way.
    pub(in crate::worker) fn has_held(&self) -> bool {
        let is_held = |state| matches!(state, State::Holding | State::Settling);
        self.ops.iter().any(|op| is_held(op.state))
    }

    /// Writes that will not go on ended unknown, or are left to the next owner.
    pub(in crate::worker) fn fail_writes(&mut self) {
        // Nothing begins in these places any more.
        let is_over = self.core.life.ending.load(Ordering::Acquire);
        for op in 0..self.ops.len() {
            let op = u16::try_from(op).expect("OPS_MAX fits");
            self.unlist_ended(op, false, is_over);
        }
    }

    /// Takes the operation's page off the list of pages in flight, if it is there.
    pub(super) fn end_listing(&mut self, op: u16, is_whole: bool) {
        self.unlist_ended(op, is_whole, false);
    }

    /// `is_over`: this worker begins nothing any more, and no other has its places.
    fn unlist_ended(&mut self, op: u16, is_whole: bool, is_over: bool) {
        let at = usize::from(op);
        if !std::mem::take(&mut self.ops[at].listing.listed) {
            return;
        }
        let is_over = is_over || self.core.life.closed.load(Ordering::Acquire);
        if !is_whole && is_over && self.core.pages.marks.has_images() {
            // The next owner redoes it. Till then nobody else is to write the page: its claim stays.
            self.withdraw_landed(op);
            self.ops[at].claim.held = false;
            return;
        }
        self.unlist(op, is_whole);
    }

    fn unlist(&self, op: u16, is_whole: bool) {
        let slot = self.list_slot(op);
        self.settle_tag(op, slot, is_whole);
        if is_whole {
            let page = self.ops[usize::from(op)].chunk.page;
            self.core.pages.marks.end_write(slot, page);
        } else {
            self.core.pages.marks.fail_write(slot);
        }
    }

    /// The operation's place in the list of pages in flight.
    pub(super) fn list_slot(&self, op: u16) -> usize {
        self.ops[usize::from(op)].listing.slot as usize
    }

    /// The place in that list of whatever this operation writes by itself.
    pub(super) fn own_slot(&self, op: u16) -> u32 {
        const { assert!(IN_FLIGHT_MAX <= u32::MAX as usize) };
        (self.farewell.id * OPS_MAX) as u32 + u32::from(op)
    }
}

/// Members that are the same slab in both stripes.
fn unchanged_members(before: &Stripe, now: &Stripe) -> u64 {
    let same = before.members.iter().zip(&now.members).enumerate();
    same.fold(0, |mask, (index, (before, now))| {
        let kept = matches!((before, now), (Some(before), Some(now))
            if before.window.descriptor == now.window.descriptor && before.session == now.session);
        mask | u64::from(kept) << index
    })
}
