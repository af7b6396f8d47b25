//! Reads of pages in flight: acknowledged, and not landed everywhere (`early`).
//!
//! Such a page is claimed, and its read does not wait for the claim. Where the writer is this worker,
//! its scratch has the page: it is copied from there. From any other worker's, the splits that have
//! landed are read, as `flights` names them, and judged as in any read of the mode: a write is
//! acknowledged after as many splits as its mode compares.
//!
//! Invariants:
//! - A split that has not landed is not asked for: it may be old.
//! - The read counts if no other write of the page began meanwhile; it holds no writer up for that.
//! - Splits are read in the state of the stripe that they landed in. While that is another, while
//!   fewer have landed than the mode compares, and for scrubs, the page is waited for.
//!
//! Decision 29.

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::stripe_of;
use super::{PageOp, State};
use crate::directory::Stripe;
use crate::flights::Flight;
use crate::marks::Soundness;
use crate::worker::{OPS_MAX, Work, Worker};

/// What a read may use of a page in flight; of any other page: everything.
#[derive(Clone, Copy, Default)]
pub(super) struct Landed {
    /// Splits that have landed; 0: the page is not in flight.
    splits: u64,
    /// In which state of its stripe.
    changed_in: u64,
    /// The claim's version, which is its writer's.
    version: u64,
}

impl Landed {
    pub(super) fn is_in_flight(self) -> bool {
        self.splits != 0
    }

    /// Those of `splits` that may be read.
    pub(super) fn among(self, splits: u64) -> u64 {
        match self.splits {
            0 => splits,
            _ if is_injected(InjectedFault::ReadUnlanded) => splits,
            landed => splits & landed,
        }
    }
}

impl Worker {
    /// Reads a page that is claimed, if it is in flight; else it waits.
    pub(super) fn begin_landed(&mut self, op: u16) {
        let page = self.ops[usize::from(op)].chunk.page;
        let flight = self.core.pages.flights.find(&self.core.pages.claims, page);
        let Some(flight) = flight.filter(|_| !self.is_scrub(op)) else {
            return self.park(op);
        };
        // Under its writer's claim nobody moves it.
        self.locate(op);
        if let Some(writer) = self.own_writer(page, &flight) {
            return self.copy_own(op, writer);
        }
        let state = &mut self.ops[usize::from(op)];
        state.claim.landed = Landed {
            splits: flight.splits,
            changed_in: flight.changed_in,
            version: flight.version,
        };
        // When its writer gives it back: not before may anything be written here.
        state.claim.version = flight.version + 1;
        state.state = State::Reading;
        self.gather(op);
    }

    /// The operation of this worker that has the page in its scratch as it was written.
    fn own_writer(&self, page: u64, flight: &Flight) -> Option<u16> {
        if flight.writer / OPS_MAX != self.farewell.id || self.core.pages.integrity.is_sealed() {
            return None;
        }
        let writer = flight.writer % OPS_MAX;
        let is_it = self.ops[writer].landing_page() == Some(page);
        is_it.then(|| u16::try_from(writer).expect("OPS_MAX fits"))
    }

    /// Reads the page from where this worker's own write of it is posted from. No host has a part in
    /// it, so there is nothing to compare.
    fn copy_own(&mut self, op: u16, writer: u16) {
        let state = &self.ops[usize::from(op)];
        let (start, len_bytes) = (state.chunk.start, state.chunk.len_bytes);
        // SAFETY: a write that was acknowledged early has its whole page in its scratch until it ends,
        // and the chunk lies inside it; the target is the chunk's part of the request's buffer.
        unsafe {
            self.target(op)
                .copy_from_nonoverlapping(self.scratch(writer).add(start), len_bytes)
        };
        self.spend(Work::Copy);
        self.finish(op, Ok(()));
    }

    /// Of `readable` members those that a read may use; `None`: it has to wait. In an epoch.
    pub(super) fn usable(&self, op: u16, readable: u64) -> Option<u64> {
        let state = &self.ops[usize::from(op)];
        if !state.claim.landed.is_in_flight() {
            return Some(readable);
        }
        let stripe = stripe_of(&self.views, state);
        let is_same = |stripe: &Stripe| stripe.changed_in == state.claim.landed.changed_in;
        let landed = state.claim.landed.among(readable);
        let resilience = self.resilience(op);
        let needed = if resilience.compares() {
            resilience.read_splits()
        } else {
            self.cut(op).k()
        };
        let is_enough = landed.count_ones() as usize >= needed;
        (stripe.is_some_and(is_same) && is_enough).then_some(landed)
    }

    /// How the operation's page may be read: what has landed of a page in flight is of one version.
    pub(super) fn soundness(&self, op: u16) -> Soundness {
        let state = &self.ops[usize::from(op)];
        if state.claim.landed.is_in_flight() {
            return Soundness::Sound;
        }
        self.core.pages.marks.soundness(state.chunk.page)
    }

    /// Whether nobody wrote the page since the read of it began, or none but its writer.
    pub(super) fn is_unchanged(&self, op: u16) -> bool {
        let PageOp { chunk, claim, .. } = self.ops[usize::from(op)];
        let (page, landed) = (chunk.page, claim.landed);
        if !landed.is_in_flight() {
            return self.core.pages.claims.unchanged(page, claim.version);
        }
        is_injected(InjectedFault::ReadOvertaken)
            || self
                .core
                .pages
                .claims
                .unchanged_in_flight(page, landed.version)
    }

    /// Tells readers which splits of the operation's page have landed, once it is acknowledged.
    pub(super) fn publish_landed(&self, op: u16) {
        let state = &self.ops[usize::from(op)];
        let stripe = stripe_of(&self.views, state);
        if let Some(stripe) = stripe.filter(|_| state.early.is_told && state.claim.held) {
            let splits = state.verbs.acked & stripe.readable();
            let (page, writer) = (state.chunk.page, self.list_slot(op));
            let flights = &self.core.pages.flights;
            flights.publish(page, writer, stripe.changed_in, splits);
        }
    }

    /// Readers wait for the operation's page from here on. Before its claim goes.
    pub(super) fn withdraw_landed(&self, op: u16) {
        let state = &self.ops[usize::from(op)];
        if state.early.is_told && state.claim.held {
            self.core.pages.flights.withdraw(state.chunk.page);
        }
    }
}
