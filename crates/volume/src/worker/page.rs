//! One page read or written: the steps between its first verb and its last.
//!
//! A write moves on only when all verbs it posted have completed, so a failed host is marked in the
//! directory before anything is posted again. A read moves on as soon as enough splits are there;
//! nothing of the others lands any more by then, and its place is free when they have ended (`late`).
//!
//! States: `Parked -> Reading [-> Healing] -> (done)` for a read; for a write
//! `Parked -> [Merging ->] Writing -> [Holding -> Writing ->] [Settling ->] (done)`; one that an earlier owner
//! did not end goes the same way (`redo`). What has not
//! posted a write falls back to `Parked` when it has to wait for a writer, a fence or a mapping.
//! What goes to the disk of a backed volume is `Fetching` or `Storing` meanwhile (`disk`).
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

mod bytes;
mod comparison;
mod disk;
mod early;
mod heal;
mod in_flight;
mod late;
mod migration;
mod read;
mod redo;
mod tags;
mod verbs;
mod verdict;
mod write;

use std::ops::{Index, IndexMut};
use std::sync::atomic::Ordering;

use cenote_codec::Code;
use cenote_fabric::Time;

use super::requests::{Chunk, Kind};
use super::views::{Expected, Views};
use super::{OPS_MAX, Worker};
use crate::backing::Token;
use crate::directory::{Session, Stripe};
use crate::extents::LayoutId;
use crate::integrity::Tag;
use crate::layout::PageLocation;
use crate::scheme::Cut;
use crate::{IoError, Resilience};
use in_flight::Landed;
pub(in crate::worker) use tags::Guard;
use verbs::{ENCODING, Verbs, bits};

/// A page operation; unused while its state is `Free`.
#[derive(Clone, Copy, Default)]
pub(super) struct PageOp {
    state: State,
    request: u16,
    chunk: Chunk,
    place: PageLocation,
    view: Expected,
    verbs: Verbs,
    early: Early,
    memory: Memory,
    listing: Listing,
    claim: Claim,
    disk: AtDisk,
    aim: Aim,
    // Since when a chunk that is rebuilt is in its way.
    fenced: Option<Time>,
    // What the client keeps of the page, or is to keep.
    tag: Tag,
    // Splits that were read and found wrong.
    wrong: u64,
}

/// The operations of a worker, by their number.
pub(super) struct Ops {
    all: Box<[PageOp]>,
    /// Numbers of those that are not in use.
    pub(super) free: Vec<u16>,
    /// Writes that were acknowledged, and are not everywhere yet.
    pub(super) landing: usize,
    /// Operations that wait for the disk.
    pub(super) at_disk: usize,
}

/// How far its early acknowledgement is.
#[derive(Clone, Copy, Default)]
struct Early {
    // Splits after which a write is acknowledged; 0: all.
    acks_wanted: u32,
    // Its request has been told of its end.
    is_told: bool,
}

/// Where its bytes are.
#[derive(Clone, Copy, Default)]
struct Memory {
    // Its page is in scratch, though the request's buffer covers it.
    in_scratch: bool,
    // Which block of the worker's scratch it has.
    block: u16,
}

/// Its place in the list of pages in flight.
#[derive(Clone, Copy, Default)]
struct Listing {
    // Its own, or that of the write that it redoes.
    slot: u32,
    // Whether the page is listed there.
    listed: bool,
}

/// What it has, or knows, of the page's claim.
#[derive(Clone, Copy, Default)]
struct Claim {
    held: bool,
    // The claim's version when a read began.
    version: u64,
    // What it may read of a page in flight.
    landed: Landed,
}

/// What it has to do with the disk of a backed volume.
#[derive(Clone, Copy, Default)]
struct AtDisk {
    // Where a page that goes to the disk besides is, until no verb refers to it.
    entry: Option<u32>,
    // Names its job there.
    token: Option<Token>,
    // Hosts have failed under its write, and may have part of the page.
    is_parted: bool,
    // Of a move the jobs that the page's disk queue had been asked for when it began.
    asked: Option<u64>,
}

/// What it is for, if nobody reads or writes the page.
#[derive(Clone, Copy, Default)]
struct Aim {
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

impl PageOp {
    /// A free operation with this block of scratch.
    pub(super) fn on_block(block: u16) -> Self {
        Self {
            memory: Memory {
                in_scratch: false,
                block,
            },
            ..Self::default()
        }
    }
}

impl Ops {
    pub(super) fn new() -> Self {
        Self {
            all: (0..OPS_MAX as u16).map(PageOp::on_block).collect(),
            free: (0..OPS_MAX as u16).rev().collect(),
            landing: 0,
            at_disk: 0,
        }
    }

    fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PageOp> {
        self.all.iter()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut PageOp> {
        self.all.iter_mut()
    }
}

impl Index<usize> for Ops {
    type Output = PageOp;

    #[inline]
    fn index(&self, at: usize) -> &PageOp {
        &self.all[at]
    }
}

impl IndexMut<usize> for Ops {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut PageOp {
        &mut self.all[at]
    }
}

impl Worker {
    /// Starts an operation on part of one page, which it may have claimed; false when none is free.
    pub(super) fn start_op(&mut self, request: u16, chunk: Chunk, claimed: bool) -> bool {
        let Some(op) = self.ops.free.pop() else {
            return false;
        };
        let slot = &mut self.requests[usize::from(request)];
        slot.started_bytes += chunk.len_bytes as u64;
        slot.pending += 1;
        let kind = slot.kind;
        let list_slot = slot.redoes.unwrap_or(self.own_slot(op));
        self.ops[usize::from(op)] = PageOp {
            state: State::Parked,
            aim: Aim {
                is_scrub: kind == Kind::Scrub,
                is_move: kind == Kind::Move,
                ..Aim::default()
            },
            request,
            chunk,
            listing: Listing {
                slot: list_slot,
                listed: false,
            },
            claim: Claim {
                held: claimed,
                ..Claim::default()
            },
            ..PageOp::on_block(self.ops[usize::from(op)].memory.block)
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
        self.agenda.parked.retain(has_begun);
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
            let members =
                bits(state.verbs.out()).filter_map(|member| stripe?.members.get(member)?.as_ref());
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
            ) || (op.aim.is_move && op.state == State::Writing)
        });
    }

    fn unclaim_if(&mut self, is_free: impl Fn(&PageOp) -> bool) {
        for op in self.ops.iter_mut() {
            if is_free(op) && std::mem::take(&mut op.claim.held) {
                if op.early.is_told {
                    self.core.pages.flights.withdraw(op.chunk.page);
                }
                self.core.pages.claims.release(op.chunk.page);
            }
        }
    }

    /// Takes an operation from the start.
    fn begin(&mut self, op: u16) {
        if self.core.life.closed.load(Ordering::Acquire) {
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
            State::Writing if self.ops[usize::from(op)].aim.is_move => self.end_move(op),
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

    /// Enters the newest epoch.
    fn enter(&mut self, op: u16) {
        let at = usize::from(op);
        let extent = self.ops[at].place.extent;
        if self.views.enter(extent, self.ops[at].verbs.failed) {
            // Endpoints are delivered before anything granted on their session is published.
            self.take_mail();
        }
        let expected = self.views.expected(extent);
        self.ops[at].view = expected;
        let cut = self.ops[at].place.cut;
        self.scratch.reserve(cut, expected.parities.into());
    }

    /// Leaves the operation's epoch and publishes the oldest that is still worked in. What the
    /// verbs that are still out speak of is kept until they have ended: see [`Worker::forget`].
    fn leave(&mut self, op: u16) {
        let state = &mut self.ops[usize::from(op)];
        let epoch = state.view.epoch;
        if epoch == 0 || state.state == State::Lingering {
            return;
        }
        let is_late = !state.verbs.is_over();
        if is_late {
            state.state = State::Lingering;
        } else {
            state.view.epoch = 0;
        }
        self.views.leave(epoch, is_late);
    }

    /// The last verb of an operation has ended that had ended before: its place is free.
    fn forget(&mut self, op: u16) {
        let state = &mut self.ops[usize::from(op)];
        self.views.forget(std::mem::take(&mut state.view.epoch));
        state.state = State::Free;
        self.ops.free.push(op);
    }

    /// How the operation's page is cut.
    #[inline]
    fn cut(&self, op: u16) -> Cut {
        self.ops[usize::from(op)].place.cut
    }

    /// What the operation expects of its stripe's hosts.
    #[inline]
    fn resilience(&self, op: u16) -> Resilience {
        self.ops[usize::from(op)].view.resilience(self.cut(op))
    }

    /// Splits of the operation's page.
    fn splits(&self, op: u16) -> usize {
        self.cut(op).k() + usize::from(self.ops[usize::from(op)].view.parities)
    }

    /// The code of the operation's stripe; `None`: its pages are copied.
    fn code(&self, op: u16) -> Option<&Code> {
        let parities = self.ops[usize::from(op)].view.parities;
        self.core.codes.with(self.cut(op), parities.into())
    }

    fn is_scrub(&self, op: u16) -> bool {
        self.ops[usize::from(op)].aim.is_scrub
    }

    fn is_discard(&self, op: u16) -> bool {
        self.requests[usize::from(self.ops[usize::from(op)].request)].kind == Kind::Discard
    }

    /// Ends an operation of which nothing that is out can land, and tells its request.
    fn finish(&mut self, op: u16, result: Result<(), IoError>) {
        let at = usize::from(op);
        if result.is_err() && self.ops[at].disk.is_parted {
            self.unmark_remote(op);
        }
        // Before the epoch is left: whoever rebuilds a split must know what it cannot be made from.
        self.end_listing(op, result.is_ok());
        self.release_entry(op);
        // Nobody uses what is only looked at, or moved.
        if !self.is_scrub(op) && !self.ops[at].aim.is_move {
            self.core.demand.touched[self.ops[at].place.extent].fetch_add(1, Ordering::Relaxed);
        }
        self.leave(op);
        self.unclaim(op);
        if self.ops[at].state != State::Lingering {
            self.ops[at].state = State::Free;
            self.ops.free.push(op);
        }
        if self.ops[at].early.is_told {
            self.ops.landing -= 1;
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
        let counters = &self.core.measures.counters;
        match slot.kind {
            Kind::Read | Kind::Scrub => counters.pages_read.fetch_add(1, Ordering::Relaxed),
            Kind::Write | Kind::Discard => counters.pages_written.fetch_add(1, Ordering::Relaxed),
            // Nobody asked for it.
            Kind::Move | Kind::Redo => 0,
        };
        if self.requests.starting.front()
            != Some(&u16::try_from(request).expect("REQUESTS_MAX fits"))
        {
            self.finish_if_over(request);
        }
    }

    /// Lets go of everything and tries again from the start, later.
    fn park(&mut self, op: u16) {
        self.leave(op);
        self.unclaim(op);
        self.ops[usize::from(op)].state = State::Parked;
        self.agenda.parked.push(op);
    }

    fn unclaim(&mut self, op: u16) {
        self.withdraw_landed(op);
        let op = &mut self.ops[usize::from(op)];
        if std::mem::take(&mut op.claim.held) {
            self.core.pages.claims.release(op.chunk.page);
        }
    }
}

/// The stripe of the operation's extent, in the epoch that it works in.
fn stripe_of<'a>(views: &'a Views, op: &PageOp) -> Option<&'a Stripe> {
    views.stripe(op.view.epoch, &op.place)
}

#[cfg(test)]
mod tests;
