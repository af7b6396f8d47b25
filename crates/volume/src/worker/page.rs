//! One page read or written: the steps between its first verb and its last.
//!
//! A write moves on only when all verbs it posted have completed, so a failed host is marked in the
//! directory before anything is posted again. A read moves on as soon as enough splits are there;
//! nothing of the others lands any more by then, and its place is free when they have ended (`late`).
//!
//! States: `Parked -> Reading [-> Healing] -> (done)` for a read; for a write
//! `Parked -> [Merging ->] Writing -> [Holding -> Writing ->] [Settling ->] (done)`; one that an earlier owner
//! did not end goes the same way (`redone`). What has not
//! posted a write falls back to `Parked` when it has to wait for a writer, a fence or a mapping.
//! What goes to the disk of a backed volume is `Fetching` or `Storing` meanwhile (`backed`).
//!
//! Invariants:
//! - A write holds the page's claim from its first read or post to its end.
//! - Nothing is posted of a page that is not listed, with all that it is to be (`marks::List`).
//! - A write is acknowledged when every member of the newest stripe that must have it has
//!   acknowledged, and every epoch in which a skipped slab was live has settled (H3).
//! - A read returns k splits of one snapshot, with no writer in between; of a page in flight, those
//!   that have landed (`landed`).
//!
//! Paper: \[hydra22\] 4.1.1 (asynchronously encoded write), 4.1.4 (in-place coding), 4.2.

mod backed;
mod bytes;
mod comparison;
mod early;
mod epoch;
mod heal;
mod in_flight;
mod late;
mod migration;
mod read;
mod redone;
mod tags;
mod verbs;
mod verdict;
mod write;

use std::sync::atomic::Ordering;

use cenote_fabric::Time;

use super::Worker;
use super::requests::{Chunk, Kind};
use crate::backing::Token;
use crate::directory::Session;
use crate::extents::LayoutId;
use crate::integrity::Tag;
use crate::scheme::Cut;
use crate::{IoError, Mode};
use epoch::stripe_of;
use in_flight::Landed;
pub(in crate::worker) use tags::Guard;
use verbs::bits;

/// A page operation; unused while its state is `Free`.
#[derive(Clone, Copy, Default)]
pub(super) struct PageOp {
    state: State,
    request: u16,
    page: u64,
    extent: usize,
    // Index of the page in its extent.
    index: u32,
    // How the extent's pages are cut.
    cut: Cut,
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
    // Its place in the list of pages in flight: its own, or that of the write that it redoes.
    slot: u32,
    // Listed there.
    listed: bool,
    // The page's claim version when the read began, ...
    version: u64,
    // ... and of a move the jobs that the page's disk queue had been asked for then.
    asked: Option<u64>,
    // What it may read of a page in flight.
    landed: Landed,
    // Where a page that goes to the disk besides is, until no verb refers to it.
    entry: Option<u32>,
    // Hosts have failed under its write, and may have part of the page.
    is_parted: bool,
    // Since when a chunk that is rebuilt is in its way.
    fenced: Option<Time>,
    // Names its job at the disk.
    token: Option<Token>,
    // What the client keeps of the page, or is to keep.
    tag: Tag,
    // Splits that were read and found wrong.
    wrong: u64,
    // What the epoch that it entered last expects of hosts, ...
    mode: Mode,
    delta: u8,
    // ... and how many parities its stripe has there.
    parities: u8,
    // Whether it reads for nobody, to find what is wrong.
    is_scrub: bool,
    // Whether it brings its page to the volume's other layout, ...
    is_move: bool,
    // ... which is this.
    to: LayoutId,
    // Whether what it read first was wrong, so that it reads all there is.
    is_wider: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    #[default]
    Free,
    Parked,
    Reading,
    /// Its page was read, and splits of it that were wrong are written again.
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
    /// Starts an operation on part of one page, which it may have claimed; false when none is free.
    pub(super) fn start_op(&mut self, request: u16, chunk: Chunk, claimed: bool) -> bool {
        let Some(op) = self.free_ops.pop() else {
            return false;
        };
        let slot = &mut self.requests[usize::from(request)];
        slot.started_bytes += chunk.len_bytes as u64;
        slot.pending += 1;
        let kind = slot.kind;
        let list_slot = slot.redoes.unwrap_or(self.own_slot(op));
        self.ops[usize::from(op)] = PageOp {
            state: State::Parked,
            is_scrub: kind == Kind::Scrub,
            is_move: kind == Kind::Move,
            request,
            page: chunk.page,
            start: chunk.start,
            len_bytes: chunk.len_bytes,
            buffer_offset: chunk.buffer_offset,
            slot: list_slot,
            claimed,
            ..PageOp::on_block(self.ops[usize::from(op)].block)
        };
        // Which finds out where the page is.
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

    /// Gives up hosts that have not answered the writes of operations that will not go on: what may still land
    /// of these is in slabs that nobody reads, or that are taken back and have none of these pages
    /// (`unmark_unended`), and their pages can be given back.
    pub(super) fn fail_unanswered(&mut self) {
        for op in 0..self.ops.len() {
            let state = &self.ops[op];
            let writes = matches!(
                state.state,
                State::Writing | State::Healing | State::Promoting
            );
            if !writes {
                continue;
            }
            let stripe = stripe_of(&self.views, state);
            let members = bits(state.pending & !ENCODING)
                .filter_map(|member| stripe?.members.get(member)?.as_ref());
            let sessions: Vec<Session> = members.map(|member| member.session).collect();
            for session in sessions {
                self.fail_session(session);
            }
        }
    }

    /// Gives back the pages of operations that will not go on, or nobody would write them again. Nothing lands
    /// of them any more, and what they may have left is known to the marks.
    pub(super) fn unclaim_all(&mut self) {
        self.unclaim_if(|_| true);
    }

    /// Of operations of a process that has ended as if it were killed, gives back what a test that goes on has to
    /// find free: pages of those that changed nothing where the page is, those that every member has
    /// acknowledged, and those that are in the order of a disk queue.
    pub(super) fn unclaim_whole(&mut self) {
        self.unclaim_if(|op| {
            matches!(
                op.state,
                State::Merging
                    | State::Healing
                    | State::Settling
                    | State::Fetching
                    | State::Promoting
                    | State::Storing
            ) || (op.is_move && op.state == State::Writing)
        });
    }

    fn unclaim_if(&mut self, is_free: impl Fn(&PageOp) -> bool) {
        for op in &mut self.ops {
            if is_free(op) && std::mem::take(&mut op.claimed) {
                if op.is_told {
                    self.core.flights.withdraw(op.page);
                }
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
            Kind::Move => self.begin_move(op),
            Kind::Redo => self.begin_redo(op),
        }
    }

    /// Moves on an operation with no verb out, or a read that has what it needs.
    pub(super) fn step(&mut self, op: u16) {
        match self.ops[usize::from(op)].state {
            State::Reading => self.end_read(op),
            State::Healing => self.end_heal(op),
            State::Merging => self.end_merge(op),
            State::Writing if self.ops[usize::from(op)].is_move => self.end_move(op),
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

    fn is_scrub(&self, op: u16) -> bool {
        self.ops[usize::from(op)].is_scrub
    }

    fn is_discard(&self, op: u16) -> bool {
        self.requests[usize::from(self.ops[usize::from(op)].request)].kind == Kind::Discard
    }

    /// Ends an operation of which nothing that is out can land, and tells its request.
    fn finish(&mut self, op: u16, result: Result<(), IoError>) {
        let at = usize::from(op);
        if result.is_err() && self.ops[at].is_parted {
            self.unmark_remote(op);
        }
        // Before the epoch is left: whoever rebuilds a split must know what it cannot be made from.
        self.end_listing(op, result.is_ok());
        self.release_entry(op);
        // Nobody uses what is only looked at, or moved.
        if !self.is_scrub(op) && !self.ops[at].is_move {
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
        let counters = &self.core.counters;
        match slot.kind {
            Kind::Read | Kind::Scrub => counters.pages_read.fetch_add(1, Ordering::Relaxed),
            Kind::Write | Kind::Discard => counters.pages_written.fetch_add(1, Ordering::Relaxed),
            // Nobody asked for it.
            Kind::Move | Kind::Redo => 0,
        };
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

    fn unclaim(&mut self, op: u16) {
        self.withdraw_landed(op);
        let op = &mut self.ops[usize::from(op)];
        if std::mem::take(&mut op.claimed) {
            self.core.claims.release(op.page);
        }
    }
}

#[cfg(test)]
mod tests;
