//! Reading a page: which splits are asked for, and when what came is the page.
//!
//! A read takes no claim: it notes the claim's version, and is taken again if a writer was there
//! meanwhile. It moves on as soon as enough splits are there (`late`), and hands over what they
//! make once they were judged (`checked`). The reads inside writes of part of a page go the same way.
//!
//! Invariant: a read returns k splits of one snapshot, with no writer in between. Pages that are
//! claimed are waited for, or read as `landed` says.

use std::sync::atomic::Ordering;

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::State;
use super::in_flight::Landed;
use super::stripe_of;
use super::verbs::Verb;
use crate::IoError;
use crate::directory::Stripe;
use crate::marks::Soundness;
use crate::worker::{Work, Worker};

impl Worker {
    pub(super) fn begin_read(&mut self, op: u16) {
        let at = usize::from(op);
        let page = self.ops[at].chunk.page;
        self.ops[at].claim.landed = Landed::default();
        let Some(version) = self.core.pages.claims.version(page) else {
            return self.begin_landed(op);
        };
        // After the version: while that stays, so does the page.
        self.locate(op);
        if !self.core.pages.marks.written.contains(page) {
            if !self.core.pages.claims.unchanged(page, version) {
                return self.park(op);
            }
            if !self.is_scrub(op) {
                let target = self.target(op);
                // SAFETY: the target is the chunk's part of the request's buffer, which lives until the request ends.
                unsafe { target.write_bytes(0, self.ops[at].chunk.len_bytes) };
            }
            return self.finish(op, Ok(()));
        }
        self.ops[at].claim.version = version;
        self.ops[at].state = State::Reading;
        self.gather(op);
    }

    /// Posts reads of as many members' splits as the mode asks for. Enters the newest epoch first.
    pub(super) fn gather(&mut self, op: u16) {
        let at = usize::from(op);
        self.enter(op);
        let k = self.cut(op).k();
        let mut readable = stripe_of(&self.views, &self.ops[at]).map_or(0, Stripe::readable);
        if is_injected(InjectedFault::DecodeStale) {
            readable = stripe_of(&self.views, &self.ops[at]).map_or(0, Stripe::present);
        }
        let Some(readable) = self.usable(op, readable) else {
            return self.park(op);
        };
        // What is not to be written yet would be read again and again.
        let is_merge = self.ops[at].state == State::Merging && !self.ops[at].aim.is_move;
        if is_merge && self.is_held_up(op) {
            return self.park(op);
        }
        let is_there = readable.count_ones() as usize >= k;
        if self.core.backing.is_some() && !(is_there && self.is_remote(op)) {
            // The disk would refuse it until its slabs are back, or are given up and its bit is clear.
            if self.is_only_on_slabs(op) {
                return self.park(op);
            }
            return self.fetch(op);
        }
        if !is_there {
            // Between the look at the bitmap and the epoch it may have been discarded and unmapped.
            let state = &self.ops[at];
            if state.state == State::Reading
                && !self
                    .core
                    .pages
                    .claims
                    .unchanged(state.chunk.page, state.claim.version)
            {
                return self.park(op);
            }
            if self.awaits_splits(op) {
                return self.park(op);
            }
            return self.end_lost(op);
        }
        let data = (1 << k) - 1;
        let soundness = self.soundness(op);
        let is_compared = self.is_compared(op, soundness);
        let chosen = match soundness {
            _ if is_compared => self.first_look(op, readable),
            Soundness::Sound => self.choose(op, readable),
            // Copies may differ: all readers take the same one.
            Soundness::Doubtful if k == 1 => readable & readable.wrapping_neg(),
            Soundness::Doubtful if readable & data == data => data,
            Soundness::Doubtful if self.awaits_splits(op) => return self.park(op),
            Soundness::Doubtful | Soundness::Torn => return self.end_lost(op),
        };
        let waits = match is_compared {
            true => chosen.count_ones(),
            false => self.resilience(op).read_waits() as u32,
        };
        let is_sealed = self.core.pages.integrity.is_sealed();
        let state = &mut self.ops[at];
        let is_nobodys = state.aim.is_scrub || state.aim.is_move;
        state.memory.in_scratch = !self.switches.in_place || is_sealed || is_nobodys;
        state.verbs.begin_read(chosen, waits);
        if k == 1 && chosen & 1 << state.verbs.primary == 0 {
            state.verbs.primary = chosen.trailing_zeros() as u8;
        }
        self.prefetch(op, chosen, Verb::Read);
        self.prefetch_tag(op);
        self.post(op, chosen, Verb::Read);
    }

    pub(super) fn end_read(&mut self, op: u16) {
        let at = usize::from(op);
        if self.ops[at].verbs.is_short() {
            self.count_repeat();
            self.leave(op);
            return self.begin_read(op);
        }
        self.revoke_late(op);
        if !self.judge(op) {
            return;
        }
        if !self.is_unchanged(op) && !is_injected(InjectedFault::TornRead) {
            self.count_repeat();
            if let Some(op) = self.detach(op) {
                self.park(op);
            }
            return;
        }
        if !self.is_in_place(op)
            && !self.core.pages.integrity.is_sealed()
            && !self.ops[at].aim.is_scrub
        {
            let (start, len_bytes) = (self.ops[at].chunk.start, self.ops[at].chunk.len_bytes);
            // SAFETY: the scratch page is whole, the chunk lies inside it, and the target is the
            // chunk's part of the request's buffer; they do not overlap.
            unsafe {
                self.target(op)
                    .copy_from_nonoverlapping(self.scratch(op).add(start), len_bytes)
            };
            self.spend(Work::Copy);
        }
        if !self.begin_heal(op) {
            self.finish(op, Ok(()));
        }
    }

    /// Whether slabs of the operation's stripe are out of reach, and what they hold may yet decide what the
    /// page is.
    pub(super) fn awaits_splits(&self, op: u16) -> bool {
        // The newest: an operation that asked again may have left its epoch.
        let state = &self.ops[usize::from(op)];
        let stripe = self.views.known().extents.get(state.place.extent);
        let stripe = stripe.and_then(Option::as_deref);
        let stripe = stripe.filter(|stripe| stripe.cut == state.place.cut);
        stripe.is_some_and(|stripe| {
            stripe.is_awaited() || (stripe.is_there() && stripe.has_unreachable())
        })
    }

    /// The page that the operation is to read is lost.
    pub(super) fn end_lost(&mut self, op: u16) {
        if self.ops[usize::from(op)].aim.is_move {
            return self.end_unmovable(op, IoError::Lost);
        }
        self.finish(op, Err(IoError::Lost));
    }

    pub(super) fn count_repeat(&self) {
        self.core
            .measures
            .counters
            .reads_repeated
            .fetch_add(1, Ordering::Relaxed);
    }
}
