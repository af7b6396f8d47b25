//! Early acknowledgement: a write that is acknowledged before all its splits have landed.
//!
//! Modes other than failure recovery wait for fewer than k+r splits (`Resilience::write_acks`). The
//! caller then has its buffer back, so the page is copied into scratch before anything is posted
//! from it (soundness Y3). The operation keeps the page's claim until every member has the page,
//! or another has taken the place of one that failed: till then writers of it wait, and readers use
//! what has landed (`landed`). Without that 2663 of 4000 modelled runs were bad, with it none.
//!
//! While its owner lives, such a write survives what any other does: its page is in scratch, and
//! goes to whoever takes a lost member's place. Should the owner end before that, the next one redoes it from
//! the list of pages in flight. Should fewer than k members be left, or the owner leave nothing, some of its
//! splits may be old: the page is torn, an error and never other bytes.
//!
//! Not where verbs complete when they are posted (nothing is out by then), not with a backing
//! store, whose order of writes counts on hosts that have all of a page, and not where a write is redone.
//!
//! Paper: \[hydra22\] 4.1, Table 1. Decision 23.

use std::sync::atomic::Ordering;

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::stripe_of;
use super::{ENCODING, PageOp, State};
use crate::PAGE_BYTES;
use crate::worker::{Work, Worker};

impl PageOp {
    /// Its page, if it was acknowledged and is not everywhere yet.
    pub(in crate::worker) fn landing_page(&self) -> Option<u64> {
        let is_landing = self.early.is_told && self.state != State::Free;
        is_landing.then_some(self.chunk.page)
    }
}

impl Worker {
    /// Decides from where a write is posted, and after how many splits it is acknowledged.
    pub(super) fn prepare_acknowledgement(&mut self, op: u16) {
        if !self.switches.in_place && self.ops[usize::from(op)].disk.entry.is_none() {
            self.copy_to_scratch(op);
        }
        let acks = self.resilience(op).write_acks();
        let waits_for_all = acks >= self.splits(op);
        let is_waited_for = self.core.backing.is_some() || self.is_redo(op);
        if waits_for_all || is_waited_for || self.endpoints.complete_at_once() {
            return;
        }
        self.copy_to_scratch(op);
        self.ops[usize::from(op)].early.acks_wanted = acks as u32;
    }

    /// Has the operation's page be in scratch, though the request's buffer covers it.
    pub(super) fn copy_to_scratch(&mut self, op: u16) {
        let at = usize::from(op);
        if self.ops[at].chunk.len_bytes < PAGE_BYTES || self.ops[at].memory.in_scratch {
            return;
        }
        // SAFETY: the request's buffer covers the page, and the scratch begins with one; they do
        // not overlap.
        unsafe {
            self.scratch(op)
                .copy_from_nonoverlapping(self.target(op), PAGE_BYTES);
        }
        self.ops[at].memory.in_scratch = true;
        self.spend(Work::Copy);
    }

    /// Whether enough splits may have landed for a write to be acknowledged before its end.
    #[inline]
    pub(super) fn is_acknowledgeable(&self, op: u16) -> bool {
        let op = &self.ops[usize::from(op)];
        let counts = op.early.acks_wanted != 0 && op.state == State::Writing && !op.early.is_told;
        counts
            && !op.verbs.failed
            && op.verbs.pending & ENCODING == 0
            && op.verbs.acked.count_ones() >= op.early.acks_wanted
    }

    /// Acknowledges a write whose last splits are still out, if enough of those that are read have
    /// landed and the next owner would know of the slabs.
    pub(super) fn acknowledge_early(&mut self, op: u16) {
        let at = usize::from(op);
        let stripe = stripe_of(&self.views, &self.ops[at]);
        let stripe = stripe.expect("a write works in a mapped extent");
        let landed = (self.ops[at].verbs.acked & stripe.readable()).count_ones();
        let changed_in = stripe.changed_in;
        if landed < self.ops[at].early.acks_wanted
            || !self.core.directory.is_settled(changed_in)
            || !self.core.is_journaled(changed_in)
        {
            return;
        }
        if !is_injected(InjectedFault::ForgetEarly) {
            self.core.pages.marks.commit(self.list_slot(op));
        }
        self.ops[at].early.is_told = true;
        self.ops.landing += 1;
        // Who reads the page from now on is to know it; should this not be its end, it is torn.
        self.decide_tag(op);
        self.publish_landed(op);
        if is_injected(InjectedFault::ReleaseEarly) {
            self.unclaim(op);
        }
        self.core
            .measures
            .counters
            .writes_early
            .fetch_add(1, Ordering::Relaxed);
        self.tell(op, Ok(()));
    }
}
