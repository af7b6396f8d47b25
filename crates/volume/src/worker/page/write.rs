//! Writing a page: from its claim to the acknowledgement of every member that must have it.
//!
//! `Parked -> [Gathering ->] Writing -> [Holding -> Writing ->] [Settling ->] (done)`; with a disk behind the
//! slabs also `Fetching` where the page is read from it first, and `Storing` where the disk alone is to
//! acknowledge it.
//!
//! A write moves on only when all verbs it posted have completed, so a failed host is marked in the
//! directory before anything is posted again. One of part of a page reads it first.
//!
//! Invariants: as in `page`; a page is on the list of pages in flight, with what it is to be, from before
//! its first verb until its splits agree, or it is marked as one whose splits may not (`listing`).
//! Paper: \[hydra22\] 4.1.1 (asynchronously encoded write), 4.2.

use std::sync::atomic::Ordering;

use cenote_fabric::{Time, order_stores};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::gather::{Gather, obstacle};
use super::state::{Heard, Next, Page};
use super::{disk, heal, protection};
use crate::IoError;
use crate::backing::{DiskPart, Route};
use crate::core::Mapping;
use crate::directory::Stripe;
use crate::worker::data_path::DataPath;

/// The write of a page, of part of one, or of zeros; or one that the last owner did not end.
#[derive(Clone, Copy, Default)]
pub(super) struct Write {
    phase: Phase,
    gather: Gather,
    /// Splits after which it is acknowledged; 0: all.
    pub acks_wanted: u32,
    // Since when a chunk that is rebuilt is in its way.
    fenced: Option<Time>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Phase {
    #[default]
    Parked,
    /// The rest of its page is read, from hosts ...
    Gathering,
    /// ... or by the disk.
    Fetching,
    /// Its splits are written.
    Writing,
    /// The disk writes its page, and nobody else does.
    Storing,
    /// Partly written; waits for a rebuilder, or for a slab that may come back.
    Holding,
    /// Written; waits for older epochs, or for the journal.
    Settling,
}

impl Write {
    pub fn begin(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        if page.is_redo() {
            return self.begin_redo(page, path);
        }
        page.claim.held = page.claim.held || path.core.pages.claims.try_claim(page.number);
        if !page.claim.held && !is_injected(InjectedFault::TwoWriters) {
            return page.meet_claim(&path.core);
        }
        page.locate(&path.core);
        if page.memory.is_whole() {
            return self.scatter(page, path);
        }
        let is_written = path.core.pages.marks.written.contains(page.number);
        if page.is_discard() && !is_written {
            return Next::End(Ok(()));
        }
        if is_written {
            return self.gather(page, path);
        }
        page.memory.clear_scratch();
        page.memory.merge();
        self.scatter(page, path)
    }

    /// Reads the page, of which part is to be written.
    fn gather(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        self.phase = Phase::Gathering;
        page.enter(path);
        // What is not to be written yet would be read again and again.
        if self.is_held_up(page, path) {
            return Next::Park;
        }
        let next = self.gather.ask(page, path);
        if next == Next::Wait {
            self.phase = Phase::Fetching;
        }
        next
    }

    /// Reads all there is of the page.
    pub fn widen(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        self.gather.is_wide = true;
        self.gather(page, path)
    }

    pub fn on_verbs(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        match self.phase {
            Phase::Gathering => self.end_gather(page, path),
            Phase::Writing | Phase::Holding | Phase::Settling => self.end_scatter(page, path),
            Phase::Parked | Phase::Fetching | Phase::Storing => unreachable!("no verb is out"),
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
        if let Err(next) = self.gather.judge(page, path) {
            return next;
        }
        // All of the page is written again.
        heal::count_healed(page, path);
        page.memory.merge();
        page.leave(path);
        self.scatter(page, path)
    }

    /// The disk has read the page into `bytes`.
    pub fn on_fetched(&mut self, page: &mut Page, path: &mut DataPath, bytes: *const u8) -> Next {
        if let Err(next) = protection::accept_fetched(page, path, bytes) {
            return next;
        }
        if !path.is_sealed() {
            // SAFETY: the disk's buffer is a whole page, which nobody writes before it is given back.
            unsafe { page.memory.fill_scratch(bytes) };
        }
        page.memory.merge();
        self.scatter(page, path)
    }

    /// Checks that the page may be written now, and has it written.
    pub(super) fn scatter(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        page.enter(path);
        let is_backed = path.is_backed();
        if page.stripe(&path.views).is_none() {
            if is_backed {
                return self.store_alone(page, path);
            }
            return match path.core.want(page.place.extent) {
                Mapping::Refused => Next::End(Err(IoError::NoSpace)),
                _ => Next::Park,
            };
        }
        if self.is_held_up(page, path) {
            return Next::Park;
        }
        let stripe = page.stripe(&path.views).expect("just seen");
        self.note_fence(path, stripe.fence.contains(page.place.index));
        if is_backed && (!stripe.is_there() || stripe.has_unreachable()) {
            return self.store_alone(page, path);
        }
        if !stripe.is_there() {
            // Until slabs are back, or it is unmapped and mapped again.
            return match stripe.is_awaited() || stripe.is_past_hope() {
                true => Next::Park,
                false => Next::End(Err(IoError::Lost)),
            };
        }
        let members = page.required(path, stripe);
        if !page.is_redo() {
            protection::protect(page, path);
        }
        if is_backed && !disk::stage(page, path, Route::Both) {
            return Next::Park;
        }
        // Early, so that a regeneration or a reclaim that drains this write sees its page.
        page.list(path);
        self.phase = Phase::Writing;
        page.verbs.reset();
        self.prepare_acknowledgement(page, path);
        Next::Write { members }
    }

    /// Whether a write of the page has to wait for what is done to its chunk, or for slabs that will be back and
    /// have to have it. In an epoch.
    fn is_held_up(&mut self, page: &Page, path: &DataPath) -> bool {
        let Some(stripe) = page.stripe(&path.views) else {
            return false;
        };
        let awaits_slabs = stripe.has_unreachable()
            && match path.is_backed() {
                true => page.is_only_on_slabs(path),
                false => stripe.is_there(),
            };
        if stripe.fence.contains(page.place.index) {
            let now = (path.core.clock)();
            let since = self.fenced.unwrap_or(now);
            if !stripe.fence.lets_in(now.since(since)) {
                self.fenced = Some(since);
                return true;
            }
        }
        awaits_slabs
    }

    /// Nothing is in the way of the write any more: counts what was.
    fn note_fence(&mut self, path: &DataPath, is_fenced: bool) {
        let measures = &path.core.measures;
        match self.fenced.take() {
            Some(since) => measures
                .timings
                .fence
                .note((path.core.clock)().since(since)),
            None if is_fenced => {
                let passes = &measures.counters.fence_passes;
                passes.fetch_add(1, Ordering::Relaxed);
            }
            None => {}
        }
    }

    /// Everything posted has completed: completes what a failure left open, waits for older
    /// epochs where a slab was skipped, acknowledges.
    fn end_scatter(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        // Before the page is given back or the epoch left: readers and rebuilders look then.
        order_stores();
        if page.verbs.failed
            && let Some(next) = self.mend(page, path)
        {
            return next;
        }
        let stripe = page.stripe(&path.views);
        let changed_in = stripe.expect("a write works in a mapped extent").changed_in;
        let is_known =
            path.core.directory.is_settled(changed_in) || is_injected(InjectedFault::StaleSnapshot);
        if is_known && path.core.is_journaled(changed_in) {
            page.mark_remote(path);
            return Next::End(Ok(()));
        }
        if path.is_closed() {
            // Nobody writes the journal any more.
            return Next::End(Err(IoError::Closed));
        }
        self.phase = Phase::Settling;
        Next::Pause
    }

    /// Some member has failed under the write, which goes on in the newest epoch: how, unless every member
    /// that must have the page has it there.
    fn mend(&mut self, page: &mut Page, path: &mut DataPath) -> Option<Next> {
        let before = page.stripe(&path.views).cloned();
        // Before the epoch is left: whoever rebuilds a split meanwhile finds that this page's
        // cannot be made from the others. The end of the write heals it.
        path.core.pages.marks.doubt(page.number);
        page.leave(path);
        page.enter(path);
        page.verbs.failed = false;
        page.disk.is_parted = true;
        let is_out_of_reach = page.is_out_of_reach(path);
        page.set_stranded(&path.core, is_out_of_reach);
        if is_out_of_reach {
            return Some(self.strand(page, path));
        }
        let stripe = page.stripe(&path.views);
        // The disk needs no slab to come back.
        let is_backed = path.is_backed();
        let goes_on =
            |stripe: &&Stripe| stripe.is_there() && !(is_backed && stripe.has_unreachable());
        let Some(stripe) = stripe.filter(goes_on) else {
            let is_held = stripe.is_some_and(Stripe::has_unreachable);
            if is_backed && !(is_held && page.is_only_on_slabs(path)) {
                return Some(self.await_disk(page, path));
            }
            if is_backed || stripe.is_some_and(Stripe::is_awaited) {
                return Some(self.hold(page, path));
            }
            if page.is_redo() {
                // Its extent is given up, and mapped again: the page is whole there.
                return Some(Next::Park);
            }
            return Some(Next::End(Err(IoError::Lost)));
        };
        let same = before.map_or(0, |before| unchanged_members(&before, stripe));
        let acked = page.verbs.acked & same;
        let missing = page.required(path, stripe) & !acked;
        let is_fenced = stripe.fence.contains(page.place.index);
        if stripe.has_unreachable() || (missing != 0 && is_fenced) {
            return Some(self.hold(page, path));
        }
        page.verbs.acked = acked;
        page.publish_landed(path);
        (missing != 0).then(|| {
            self.phase = Phase::Writing;
            Next::Write { members: missing }
        })
    }

    /// Lets go of the epoch, so that a rebuilder can end, and writes the page to every member again
    /// once nothing stands in the way.
    fn hold(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        if path.is_closed() {
            return Next::End(Err(IoError::Closed));
        }
        page.withdraw_landed(&path.core);
        page.leave(path);
        (page.verbs.acked, page.verbs.failed) = (0, true);
        self.phase = Phase::Holding;
        Next::Pause
    }

    /// Its slabs are out of reach, and nobody knows for how long: its request is an error by now, as any other
    /// of its extent. The page is not given up with it: some hosts may have its old splits and others its new
    /// ones, and nobody but this write has all of it. It is written once its slabs are back, or lost for good.
    fn strand(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        if page.is_redo() {
            // Its place in the list has the page.
            return Next::End(Err(IoError::Lost));
        }
        let next = self.hold(page, path);
        if next != Next::Pause || page.heard != Heard::Nothing {
            return next;
        }
        // The request's buffer goes back to its owner.
        page.memory.copy_to_scratch();
        page.heard = Heard::Failed;
        Next::Refuse(IoError::Lost)
    }

    /// Writes the page to the disk alone: no slab is there to take it, or one that is to be back misses it.
    /// Its bit stands until the disk has the page: what slabs have of it is the newest till then.
    fn store_alone(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        let is_mapped = page.stripe(&path.views).is_some();
        page.leave(path);
        if !is_mapped && path.core.is_hot_already(page.place.extent) {
            // Whether it is refused is for the next write: this one is the disk's.
            path.core.want(page.place.extent);
        }
        if !page.is_redo() {
            protection::protect(page, path);
        }
        if !disk::stage(page, path, Route::Disk) {
            return Next::Park;
        }
        page.list(path);
        self.phase = Phase::Storing;
        path.at_disk += 1;
        Next::Wait
    }

    /// Hosts have failed under the write: its disk part is what acknowledges it.
    fn await_disk(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        match disk::await_disk(page, path) {
            DiskPart::Ended { is_ok } => self.on_stored(page, path, is_ok),
            DiskPart::Pending => {
                self.phase = Phase::Storing;
                Next::Wait
            }
        }
    }

    /// The disk has written the page, or refused it.
    pub fn on_stored(&mut self, page: &mut Page, path: &mut DataPath, is_ok: bool) -> Next {
        let is_parted = page.disk.is_parted;
        if is_ok {
            let mistake = match is_parted {
                true => InjectedFault::KeepBitFailed,
                false => InjectedFault::KeepBitAway,
            };
            if !is_injected(mistake) {
                page.unmark_remote(path);
            }
            return Next::End(Ok(()));
        }
        if is_parted && disk::may_reach_slabs(page, path) {
            return self.hold(page, path);
        }
        if is_injected(InjectedFault::ClearBitRefused) {
            page.unmark_remote(path);
        } else if !is_parted && page.is_remote(path) {
            page.retract(path);
        }
        Next::End(Err(disk::error(path)))
    }

    pub fn park(&mut self) {
        self.phase = Phase::Parked;
    }

    /// Whether it waits for a rebuilder, a slab, or the journal, and for nothing that is on its way.
    pub fn is_paused(&self) -> bool {
        matches!(self.phase, Phase::Holding | Phase::Settling)
    }

    /// Whether verbs of it are out that write.
    pub fn is_writing(&self) -> bool {
        self.phase == Phase::Writing
    }

    /// Whether its page is as it was, everywhere what it is to be, or in the order of a disk queue.
    pub fn is_whole(&self) -> bool {
        matches!(
            self.phase,
            Phase::Gathering | Phase::Fetching | Phase::Settling | Phase::Storing
        )
    }

    /// Whether hosts may have part of its page, in slabs that may be taken back, or the disk may yet take what
    /// it has.
    pub fn may_leave_parts(&self) -> bool {
        matches!(self.phase, Phase::Writing | Phase::Holding | Phase::Storing)
    }
}

impl Page {
    /// Members that must have a page before its write is acknowledged: all that have the pages before
    /// it, whatever the volume's scheme is by now.
    pub(super) fn required(&self, path: &DataPath, stripe: &Stripe) -> u64 {
        let members = stripe.writable(self.place.index);
        if is_injected(InjectedFault::AckAtK) {
            return members & ((1 << stripe.cut.k()) - 1);
        }
        if is_injected(InjectedFault::AheadOfStripe) {
            let scheme = path.views.known().resilience.scheme();
            return members & ((1 << scheme.members()) - 1);
        }
        members
    }
}

impl Page {
    /// Whether too few slabs of its stripe are in reach, and requests do not wait for those that may come back.
    /// In an epoch. The disk of a volume that has one needs no slab.
    fn is_out_of_reach(&self, path: &DataPath) -> bool {
        let stripe = self.stripe(&path.views).filter(|_| !path.is_backed());
        stripe.is_some_and(|stripe| {
            !stripe.is_there() && !stripe.is_awaited() && !stripe.is_past_hope()
        })
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
