//! One page read or written: the steps between its first verb and its last.
//!
//! A write moves on only when all verbs it posted have completed, so a failed host is marked in the
//! directory before anything is posted again. A read moves on as soon as enough splits are there;
//! nothing of the others lands any more by then, and its place is free when they have ended (`late`).
//!
//! States: `Parked -> Reading [-> Healing] -> (done)` for a read; for a write
//! `Parked -> [Merging ->] Writing -> [Holding -> Writing ->] [Settling ->] (done)`. What has not
//! posted a write falls back to `Parked` when it has to wait for a writer, a fence or a mapping.
//! What goes to the disk of a backed volume is `Fetching` or `Storing` meanwhile (`backed`).
//!
//! Invariants:
//! - A write holds the page's claim from its first read or post to its end.
//! - A write is acknowledged when every member of the newest stripe that must have it has
//!   acknowledged, and every epoch in which a skipped slab was live has settled (H3).
//! - A read returns k splits of one snapshot, with no writer in between.
//!
//! Paper: \[hydra22\] 4.1.1 (asynchronously encoded write), 4.1.4 (in-place coding), 4.3.

mod backed;
mod bytes;
mod checked;
mod early;
mod epoch;
mod healed;
mod judged;
mod late;
mod tagged;
mod verbs;

use std::sync::atomic::Ordering;

use cenote_fabric::{Time, order_stores};

use super::{Chunk, Kind, OPS_MAX, Work, Worker};
use cenote_pool::planted::{Planted, is_planted};

use crate::backing::{Route, Token};
use crate::core::Mapping;
use crate::directory::Stripe;
use crate::integrity::Tag;
use crate::marks::Soundness;
use crate::{IoError, PAGE_BYTES};
use epoch::stripe_of;
pub(in crate::worker) use tagged::Guard;
use verbs::Verb;

/// A page operation; unused while its state is `Free`.
#[derive(Clone, Copy, Default)]
pub(super) struct PageOp {
    state: State,
    request: u16,
    page: u64,
    extent: usize,
    // Index of the page in its extent.
    index: u32,
    start: usize,
    len_bytes: usize,
    buffer_offset: usize,
    // Epoch it works in; 0: in none.
    epoch: u64,
    // Members whose verb is out, as a bit set; `ENCODING` while parities are not posted.
    pending: u64,
    // Members whose verb succeeded; of a read, whose splits are there.
    acked: u64,
    failed: bool,
    // Splits that a read needs.
    wants: u32,
    // Nothing lands any more of what is out.
    revoked: bool,
    // Of copies that are read, the one that lands in the page.
    primary: u8,
    // Splits after which a write is acknowledged; 0: all.
    acks_wanted: u32,
    // Its request has been told of its end.
    is_told: bool,
    // Its page is in scratch, though the request's buffer covers it.
    in_scratch: bool,
    // Which block of the worker's scratch it has.
    block: u16,
    claimed: bool,
    // Listed as in flight.
    listed: bool,
    // The page's claim version when the read began.
    version: u64,
    // Where a page that goes to the disk besides is, until no verb refers to it.
    entry: Option<u32>,
    // Since when a chunk that is rebuilt is in its way.
    fenced: Option<Time>,
    // Names its job at the disk.
    token: Option<Token>,
    // What the client keeps of the page, or is to keep.
    tag: Tag,
    // Splits that were read and found wrong.
    wrong: u64,
    // Whether it reads for nobody, to find what is wrong.
    is_scrub: bool,
    // Whether what it read first was wrong, so that it reads all there is.
    is_wider: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    #[default]
    Free,
    Parked,
    Reading,
    /// Its page was read, and splits of it that were wrong are written anew.
    Healing,
    Merging,
    Writing,
    /// Partly written; waits for a rebuilder, or for a slab that may come back.
    Holding,
    Settling,
    /// The disk reads its page.
    Fetching,
    /// Its page was read from the disk, and goes to hosts as well.
    Promoting,
    /// The disk writes its page, and nobody else does.
    Storing,
    /// It has ended, and verbs of it have not.
    Lingering,
}

/// Bit of `pending` that stands for "the parities are yet to be posted".
const ENCODING: u64 = 1 << 63;

impl PageOp {
    /// A free operation with this block of scratch.
    pub(super) fn on_block(block: u16) -> Self {
        Self {
            block,
            ..Self::default()
        }
    }
}

impl Worker {
    /// Starts an operation on part of one page; false when none is free.
    pub(super) fn start_op(&mut self, request: u16, chunk: Chunk) -> bool {
        let Some(op) = self.free_ops.pop() else {
            return false;
        };
        let slot = &mut self.requests[usize::from(request)];
        slot.started_bytes += chunk.len_bytes as u64;
        slot.pending += 1;
        let (extent, index) = self.core.locate(chunk.page);
        let is_scrub = slot.kind == Kind::Scrub;
        self.ops[usize::from(op)] = PageOp {
            state: State::Parked,
            is_scrub,
            request,
            page: chunk.page,
            extent,
            index,
            start: chunk.start,
            len_bytes: chunk.len_bytes,
            buffer_offset: chunk.buffer_offset,
            ..PageOp::on_block(self.ops[usize::from(op)].block)
        };
        self.begin(op);
        true
    }

    /// Tries a parked or settling operation again.
    pub(super) fn resume(&mut self, op: u16) {
        match self.ops[usize::from(op)].state {
            State::Settling | State::Holding => self.end_write(op),
            _ => self.begin(op),
        }
    }

    /// Forgets parked operations that have not begun.
    pub(super) fn retain_settling(&mut self) {
        let has_begun = |&op: &u16| {
            let state = self.ops[usize::from(op)].state;
            matches!(state, State::Settling | State::Holding)
        };
        self.parked.retain(has_begun);
    }

    /// Gives back the pages of operations that will not go on: those that changed nothing, those
    /// that every member has acknowledged, and those that are in the order of a disk queue.
    pub(super) fn unclaim_all(&mut self) {
        for op in &mut self.ops {
            let is_whole = matches!(
                op.state,
                State::Merging
                    | State::Healing
                    | State::Settling
                    | State::Fetching
                    | State::Promoting
                    | State::Storing
            );
            if is_whole && std::mem::take(&mut op.claimed) {
                self.core.claims.release(op.page);
            }
        }
    }

    /// Takes an operation from the start.
    fn begin(&mut self, op: u16) {
        if self.core.closed.load(Ordering::Acquire) {
            return self.finish(op, Err(IoError::Closed));
        }
        match self.requests[usize::from(self.ops[usize::from(op)].request)].kind {
            Kind::Read | Kind::Scrub => self.begin_read(op),
            Kind::Write | Kind::Discard => self.begin_write(op),
        }
    }

    fn begin_read(&mut self, op: u16) {
        let at = usize::from(op);
        let page = self.ops[at].page;
        let Some(version) = self.core.claims.version(page) else {
            return self.park(op);
        };
        if !self.core.marks.written.contains(page) {
            if !self.core.claims.unchanged(page, version) {
                return self.park(op);
            }
            if !self.is_scrub(op) {
                let target = self.target(op);
                // SAFETY: the target is the chunk's part of the request's buffer, which lives until the request ends.
                unsafe { target.write_bytes(0, self.ops[at].len_bytes) };
            }
            return self.finish(op, Ok(()));
        }
        self.ops[at].version = version;
        self.ops[at].state = State::Reading;
        self.gather(op);
    }

    fn begin_write(&mut self, op: u16) {
        let at = usize::from(op);
        let page = self.ops[at].page;
        let claimed = self.core.claims.try_claim(page);
        if !claimed && !is_planted(Planted::TwoWriters) {
            return self.park(op);
        }
        self.ops[at].claimed = claimed;
        if self.ops[at].len_bytes == PAGE_BYTES {
            return self.begin_scatter(op);
        }
        let written = self.core.marks.written.contains(page);
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

    /// Posts reads of as many members' splits as the mode asks for. Enters the newest epoch first.
    fn gather(&mut self, op: u16) {
        let at = usize::from(op);
        self.enter(op);
        let k = self.core.scheme.k();
        let mut readable = stripe_of(&self.views, &self.ops[at]).map_or(0, Stripe::readable);
        if is_planted(Planted::DecodeStale) {
            readable = stripe_of(&self.views, &self.ops[at]).map_or(0, Stripe::present);
        }
        let is_there = readable.count_ones() as usize >= k;
        if self.core.backing.is_some() && !(is_there && self.is_remote(op)) {
            return self.fetch(op);
        }
        if !is_there {
            // Between the look at the bitmap and the epoch it may have been discarded and unmapped.
            let state = &self.ops[at];
            if state.state == State::Reading
                && !self.core.claims.unchanged(state.page, state.version)
            {
                return self.park(op);
            }
            return self.finish(op, Err(IoError::Lost));
        }
        let data = (1 << k) - 1;
        let soundness = self.core.marks.soundness(self.ops[at].page);
        let is_compared = self.is_compared(op, soundness);
        let chosen = match soundness {
            _ if is_compared => self.first_look(op, readable),
            Soundness::Sound => self.choose(op, readable),
            // Copies may differ: all readers take the same one.
            Soundness::Doubtful if k == 1 => readable & readable.wrapping_neg(),
            Soundness::Doubtful if readable & data == data => data,
            Soundness::Doubtful | Soundness::Torn => return self.finish(op, Err(IoError::Lost)),
        };
        let waits = match is_compared {
            true => chosen.count_ones(),
            false => self.core.resilience.read_waits() as u32,
        };
        let is_sealed = self.core.integrity.is_sealed();
        let state = &mut self.ops[at];
        state.in_scratch = !self.switches.in_place || is_sealed || state.is_scrub;
        (state.pending, state.acked, state.failed) = (chosen, 0, false);
        state.wants = chosen.count_ones().min(waits);
        if k == 1 && chosen & 1 << state.primary == 0 {
            state.primary = chosen.trailing_zeros() as u8;
        }
        self.prefetch(op, chosen, Verb::Read);
        self.post(op, chosen, Verb::Read);
    }

    /// Checks that the page may be written now, then posts its data splits.
    fn begin_scatter(&mut self, op: u16) {
        let at = usize::from(op);
        self.enter(op);
        let index = self.ops[at].index;
        let is_backed = self.core.backing.is_some();
        let Some(stripe) = stripe_of(&self.views, &self.ops[at]) else {
            if is_backed {
                return self.store_alone(op);
            }
            return match self.core.want(self.ops[at].extent) {
                Mapping::Refused => self.finish(op, Err(IoError::NoSpace)),
                _ => self.park(op),
            };
        };
        if stripe.fence.contains(&index) {
            let now = self.core.clock;
            self.ops[at].fenced.get_or_insert_with(now);
            return self.park(op);
        }
        if let Some(since) = self.ops[at].fenced.take() {
            self.core
                .timings
                .fence
                .note((self.core.clock)().since(since));
        }
        if (stripe.readable().count_ones() as usize) < self.core.scheme.k() {
            if is_backed {
                return self.store_alone(op);
            }
            return self.finish(op, Err(IoError::Lost));
        }
        if stripe.has_stranded() {
            return self.park(op);
        }
        let members = required(stripe, index, self.core.scheme.k());
        self.protect(op);
        if is_backed && !self.stage(op, Route::Both) {
            return self.park(op);
        }
        // Early, so that a regeneration or a reclaim that drains this write sees its page.
        self.list(op);
        let state = &mut self.ops[at];
        (state.state, state.acked, state.failed) = (State::Writing, 0, false);
        self.prepare_acknowledgement(op);
        self.scatter(op, members);
    }

    /// Lists the page as being written.
    fn list(&mut self, op: u16) {
        let (slot, page) = (self.list_slot(op), self.ops[usize::from(op)].page);
        self.stage_tag(op, slot);
        self.core.marks.begin_write(slot, page);
        self.ops[usize::from(op)].listed = true;
    }

    /// Posts the data splits among `members` and leaves the parities to be encoded meanwhile.
    fn scatter(&mut self, op: u16, members: u64) {
        let k = self.core.scheme.k();
        let parities = members >> k << k;
        let encodes = k > 1 && parities != 0;
        self.prefetch(op, members, Verb::Write);
        if encodes && self.switches.async_encode && !self.lanes.complete_at_once() {
            self.ops[usize::from(op)].pending = members | ENCODING;
            self.post(op, members & !parities, Verb::Write);
            return self.encode.push(op);
        }
        // Nothing flies meanwhile; but what was asked for early arrives.
        if encodes {
            self.encode_page(op);
        }
        self.ops[usize::from(op)].pending = members;
        self.post(op, members, Verb::Write);
    }

    /// Encodes the page's parities, whose data splits are on their way, and posts them.
    pub(in crate::worker) fn post_parities(&mut self, op: u16) {
        self.encode_page(op);
        let at = usize::from(op);
        let k = self.core.scheme.k();
        self.ops[at].pending &= !ENCODING;
        // Members may have failed meanwhile; their posts fail and are handled like any other.
        let unposted = self.ops[at].pending >> k << k;
        self.post(op, unposted, Verb::Write);
    }

    /// Moves on an operation with no verb out, or a read that has what it needs.
    pub(super) fn step(&mut self, op: u16) {
        match self.ops[usize::from(op)].state {
            State::Reading => self.end_read(op),
            State::Healing => self.end_heal(op),
            State::Merging => self.end_merge(op),
            State::Writing => self.end_write(op),
            State::Promoting => self.end_promotion(op),
            State::Free
            | State::Parked
            | State::Holding
            | State::Settling
            | State::Fetching
            | State::Storing
            | State::Lingering => {
                unreachable!("no verb is out in these states, or none that matters")
            }
        }
    }

    fn end_read(&mut self, op: u16) {
        let at = usize::from(op);
        if self.is_short(op) {
            self.count_repeat();
            self.leave(op);
            return self.begin_read(op);
        }
        self.revoke_late(op);
        if !self.judge(op) {
            return;
        }
        if !self.is_unchanged(op) && !is_planted(Planted::TornRead) {
            self.count_repeat();
            if let Some(op) = self.detach(op) {
                self.park(op);
            }
            return;
        }
        if !self.is_in_place(op) && !self.core.integrity.is_sealed() && !self.ops[at].is_scrub {
            let (start, len_bytes) = (self.ops[at].start, self.ops[at].len_bytes);
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

    /// Whether nobody wrote the page since the read of it began.
    fn is_unchanged(&self, op: u16) -> bool {
        let op = &self.ops[usize::from(op)];
        self.core.claims.unchanged(op.page, op.version)
    }

    fn end_merge(&mut self, op: u16) {
        if self.is_short(op) {
            self.leave(op);
            return self.gather(op);
        }
        self.revoke_late(op);
        let Some(op) = self.detach(op) else { return };
        if !self.judge(op) {
            return;
        }
        // All of the page is written anew.
        self.count_healed(op);
        self.merge(op);
        self.leave(op);
        self.begin_scatter(op);
    }

    /// Everything posted has completed: completes what a failure left open, waits for older
    /// epochs where a slab was skipped, acknowledges.
    fn end_write(&mut self, op: u16) {
        let at = usize::from(op);
        // Before the page is given back or the epoch left: readers and rebuilders look then.
        order_stores();
        if self.ops[at].failed {
            let before = stripe_of(&self.views, &self.ops[at]).cloned();
            // Before the epoch is left: whoever rebuilds a split meanwhile finds that this page's
            // cannot be made from the others. The end of the write heals it.
            self.core.marks.doubt(self.ops[at].page);
            self.unmark_remote(op);
            self.leave(op);
            self.enter(op);
            self.ops[at].failed = false;
            let stripe = stripe_of(&self.views, &self.ops[at])
                .filter(|stripe| stripe.readable().count_ones() as usize >= self.core.scheme.k());
            let Some(stripe) = stripe else {
                if self.ops[at].entry.is_some() {
                    return self.await_disk(op);
                }
                return self.finish(op, Err(IoError::Lost));
            };
            let same = before.map_or(0, |before| unchanged_members(&before, stripe));
            let acked = self.ops[at].acked & same;
            let k = self.core.scheme.k();
            let missing = required(stripe, self.ops[at].index, k) & !acked;
            let is_fenced = stripe.fence.contains(&self.ops[at].index);
            if stripe.has_stranded() || (missing != 0 && is_fenced) {
                return self.hold(op);
            }
            self.ops[at].acked = acked;
            if missing != 0 {
                self.ops[at].state = State::Writing;
                return self.scatter(op, missing);
            }
        }
        let stripe =
            stripe_of(&self.views, &self.ops[at]).expect("a write works in a mapped extent");
        let is_known =
            self.core.directory.is_settled(stripe.changed_in) || is_planted(Planted::StaleSnapshot);
        if is_known && self.core.is_journaled(stripe.changed_in) {
            self.mark_remote(op);
            self.finish(op, Ok(()));
        } else if self.core.closed.load(Ordering::Acquire) {
            // Nobody writes the journal any more.
            self.finish(op, Err(IoError::Closed));
        } else {
            self.ops[at].state = State::Settling;
            self.parked.push(op);
        }
    }

    /// Lets go of the epoch, so that a rebuilder can end, and writes the page to every member again
    /// once nothing stands in the way.
    fn hold(&mut self, op: u16) {
        if self.core.closed.load(Ordering::Acquire) {
            return self.finish(op, Err(IoError::Closed));
        }
        self.leave(op);
        let state = &mut self.ops[usize::from(op)];
        (state.state, state.acked, state.failed) = (State::Holding, 0, true);
        self.parked.push(op);
    }

    fn is_scrub(&self, op: u16) -> bool {
        self.ops[usize::from(op)].is_scrub
    }

    fn is_discard(&self, op: u16) -> bool {
        self.requests[usize::from(self.ops[usize::from(op)].request)].kind == Kind::Discard
    }

    /// Ends an operation of which nothing that is out can land, and tells its request.
    fn finish(&mut self, op: u16, result: Result<(), IoError>) {
        let at = usize::from(op);
        // Before the epoch is left: whoever rebuilds a split must know what it cannot be made from.
        if std::mem::take(&mut self.ops[at].listed) {
            self.unlist(op, result.is_ok());
        }
        self.release_entry(op);
        // Nobody uses what is only looked at.
        if !self.is_scrub(op) {
            self.core.touched[self.ops[at].extent].fetch_add(1, Ordering::Relaxed);
        }
        self.leave(op);
        self.unclaim(op);
        if self.ops[at].state != State::Lingering {
            self.ops[at].state = State::Free;
            self.free_ops.push(op);
        }
        if self.ops[at].is_told {
            self.landing -= 1;
        } else {
            self.tell(op, result);
        }
    }

    /// Tells the operation's request how it ended.
    fn tell(&mut self, op: u16, result: Result<(), IoError>) {
        let request = usize::from(self.ops[usize::from(op)].request);
        let slot = &mut self.requests[request];
        slot.pending -= 1;
        if slot.result.is_ok() {
            slot.result = result;
        }
        let counter = match slot.kind {
            Kind::Read | Kind::Scrub => &self.core.counters.pages_read,
            Kind::Write | Kind::Discard => &self.core.counters.pages_written,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if self.starting.front() != Some(&u16::try_from(request).expect("REQUESTS_MAX fits")) {
            self.finish_if_over(request);
        }
    }

    /// Lets go of everything and tries again from the start, later.
    fn park(&mut self, op: u16) {
        self.leave(op);
        self.unclaim(op);
        self.ops[usize::from(op)].state = State::Parked;
        self.parked.push(op);
    }

    /// Writes that will not go on ended unknown.
    pub(super) fn fail_writes(&mut self) {
        for op in 0..self.ops.len() {
            if std::mem::take(&mut self.ops[op].listed) {
                self.unlist(u16::try_from(op).expect("OPS_MAX fits"), false);
            }
        }
    }

    /// Takes the operation's page off the list of pages in flight.
    fn unlist(&self, op: u16, is_whole: bool) {
        let slot = self.list_slot(op);
        self.settle_tag(op, slot, is_whole);
        if is_whole {
            let page = self.ops[usize::from(op)].page;
            self.core.marks.end_write(slot, page);
        } else {
            self.core.marks.fail_write(slot);
        }
    }

    /// The operation's place in the list of pages in flight.
    fn list_slot(&self, op: u16) -> usize {
        self.farewell.id * OPS_MAX + usize::from(op)
    }

    fn unclaim(&mut self, op: u16) {
        let op = &mut self.ops[usize::from(op)];
        if std::mem::take(&mut op.claimed) {
            self.core.claims.release(op.page);
        }
    }

    fn count_repeat(&self) {
        self.core
            .counters
            .reads_repeated
            .fetch_add(1, Ordering::Relaxed);
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

/// Members that must have a page before its write is acknowledged.
fn required(stripe: &Stripe, page: u32, k: usize) -> u64 {
    let members = stripe.writable(page);
    if is_planted(Planted::AckAtK) {
        return members & ((1 << k) - 1);
    }
    members
}
