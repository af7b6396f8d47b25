//! Moving a page to the volume's other layout: read where it is, written where it is to be.
//!
//! `Parked -> Gathering (claimed; the old stripe is read and judged) -> Writing (the new one) -> (done)`.
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

use super::gather::{Gather, obstacle};
use super::state::{Next, Page};
use crate::IoError;
use crate::directory::Stripe;
use crate::extents::LayoutId;
use crate::marks::Soundness;
use crate::worker::data_path::DataPath;

/// The move of a page to the volume's other layout.
#[derive(Clone, Copy, Default)]
pub(super) struct Move {
    phase: Phase,
    gather: Gather,
    /// The layout where the page is to be.
    to: LayoutId,
    /// The jobs that the page's disk queue had been asked for when the move began.
    asked: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Phase {
    #[default]
    Parked,
    /// Its page is read where it is.
    Gathering,
    /// It is written where it is to be.
    Writing,
}

impl Move {
    pub fn begin(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        // Once: a change that is taken back meanwhile has another.
        self.to = path.core.layouts.target();
        // Nobody else moves it.
        if path.core.layouts.id_of(page.number) == self.to {
            return Next::End(Ok(()));
        }
        if !is_injected(InjectedFault::MoveOverNewer) {
            page.claim.held = self.claim_known(page, path);
            if !page.claim.held {
                return page.meet_claim(&path.core);
            }
        }
        let marks = &path.core.pages.marks;
        let is_written = marks.written.contains(page.number);
        if is_written && path.is_backed() {
            return self.move_to_disk(page, path);
        }
        if !is_written || marks.soundness(page.number) == Soundness::Torn {
            // Nothing to be read, there or here.
            self.pass_over(page, path);
            return Next::End(Ok(()));
        }
        page.locate(&path.core);
        self.gather(page, path)
    }

    fn gather(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        self.phase = Phase::Gathering;
        page.enter(path);
        match self.gather.ask(page, path) {
            Next::Wait => unreachable!("pages of backed volumes are not read"),
            Next::End(Err(error)) => self.end_unreadable(page, path, error),
            next => next,
        }
    }

    /// Reads all there is of the page.
    pub fn widen(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        self.gather.is_wide = true;
        self.gather(page, path)
    }

    pub fn on_verbs(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        match self.phase {
            Phase::Gathering => self.end_gather(page, path),
            Phase::Writing => self.end_scatter(page, path),
            Phase::Parked => unreachable!("no verb is out"),
        }
    }

    fn end_gather(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        if page.verbs.is_short() {
            page.leave(path);
            return self.gather(page, path);
        }
        if let Some(next) = obstacle(page, path) {
            return next;
        }
        match self.gather.judge(page, path) {
            Ok(()) => self.scatter(page, path),
            // All there is of it may tell what is right; if not, it is an error for good once nothing of its
            // stripe is awaited.
            Err(Next::End(Err(IoError::Corrupt))) if !self.gather.is_wide => {
                self.gather.is_wide = true;
                Next::Park
            }
            Err(Next::End(Err(error))) => self.end_unreadable(page, path, error),
            Err(next) => next,
        }
    }

    /// Claims the page; with a disk behind it, once the disk's queue has taken in every write of it: one
    /// that was asked for and not taken stands in no bit. Nothing is held while it is waited for.
    fn claim_known(&mut self, page: &mut Page, path: &DataPath) -> bool {
        let claims = &path.core.pages.claims;
        let Some(store) = &path.core.backing else {
            return claims.try_claim(page.number);
        };
        let lane = store.lane_of(page.number);
        let asked = match self.asked {
            Some(asked) => asked,
            None => {
                // In this order: who had the page before had asked.
                let Some(version) = claims.version(page.number) else {
                    return false;
                };
                page.claim.version = version;
                *self.asked.insert(store.asked_of(lane))
            }
        };
        if !store.has_taken_of(lane, asked) {
            return false;
        }
        // A write came in between: then that one is waited for, too.
        let is_claimed = claims.try_claim_at(page.number, page.claim.version);
        if !is_claimed {
            self.asked = None;
        }
        is_claimed
    }

    /// The page was read: has it written to its new stripe.
    fn scatter(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        // All of it is written again, elsewhere.
        page.wrong = 0;
        page.leave(path);
        page.place = path.core.layouts.locate_in(self.to, page.number);
        page.enter(path);
        let stripe = page.stripe(&path.views);
        let Some(stripe) = stripe.filter(|stripe| is_whole(stripe)) else {
            return Next::End(Err(IoError::NoSpace));
        };
        if stripe.fence.contains(page.place.index) {
            return Next::Park;
        }
        let members = page.required(path, stripe);
        self.phase = Phase::Writing;
        page.verbs.reset();
        if is_injected(InjectedFault::SkipLayoutBit) {
            self.pass_over(page, path);
        }
        Next::Write { members }
    }

    /// Everything posted to the new stripe has completed.
    fn end_scatter(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        // Before the bit, which readers and rebuilders look at.
        order_stores();
        let stripe = page.stripe(&path.views);
        // A slab that was skipped is out of everybody's sight, and the next owner finds the others.
        let is_known = stripe.is_some_and(|stripe| {
            path.core.directory.is_settled(stripe.changed_in)
                && path.core.is_journaled(stripe.changed_in)
        });
        if page.verbs.failed || !is_known {
            return Next::End(Err(IoError::NoSpace));
        }
        self.pass_over(page, path);
        // In this order: should the owner end in between, the page is read as doubtful as it was.
        page.decide_tag(path);
        path.core.pages.marks.heal(page.number);
        count_moved(path);
        Next::End(Ok(()))
    }

    /// The page could not be read. Where that is for good it is an error in its new layout, as it was in
    /// its old one; else the next try may read it.
    fn end_unreadable(&self, page: &Page, path: &DataPath, error: IoError) -> Next {
        let stripe = path.views.known().extents.get(page.place.extent);
        let stripe = stripe.and_then(Option::as_deref);
        let is_awaited = stripe.is_some_and(Stripe::has_unreachable);
        let is_gone = stripe.is_none_or(|stripe| !stripe.is_there());
        let is_over = error == IoError::Corrupt || (error == IoError::Lost && is_gone);
        if is_awaited || !is_over {
            return Next::End(Err(error));
        }
        tracing::warn!(
            page = page.number,
            "a page cannot be read: it is an error until it is written whole"
        );
        path.core.pages.marks.tear(page.number);
        self.pass_over(page, path);
        Next::End(Ok(()))
    }

    /// A page that the disk has needs no copy: it is read from there until it is written next. One that the
    /// disk has refused stays, for only its slabs have it, and so does one that it may yet refuse (decision 47).
    fn move_to_disk(&self, page: &Page, path: &DataPath) -> Next {
        let pages = &path.store().pages;
        // In this order: what became of a write is known before it is queued no more.
        let is_open = pages.queued.contains(page.number) || pages.stale.contains(page.number);
        if is_open && pages.remote.contains(page.number) {
            return Next::End(Err(IoError::Disk));
        }
        // In this order: in its new layout no slab has it.
        pages.remote.remove(page.number);
        self.pass_over(page, path);
        count_moved(path);
        Next::End(Ok(()))
    }

    /// From here on the page is in the layout where it is to be. Under its claim.
    fn pass_over(&self, page: &Page, path: &DataPath) {
        path.core.layouts.pass(page.number, self.to);
    }

    pub fn park(&mut self) {
        self.phase = Phase::Parked;
    }

    /// Whether verbs of it are out that write.
    pub fn is_writing(&self) -> bool {
        self.phase == Phase::Writing
    }
}

fn count_moved(path: &DataPath) {
    let counters = &path.core.measures.counters;
    counters.pages_moved.fetch_add(1, Ordering::Relaxed);
}

/// Whether pages come to a stripe from one that may be: every split is there, and none is awaited.
fn is_whole(stripe: &Stripe) -> bool {
    let all = (1 << stripe.splits()) - 1;
    stripe.readable() & all == all && !stripe.has_unreachable()
}
