//! One page read, written or moved: the steps between its first verb and its last.
//!
//! [`PageOp`] is a page and a state machine, one for each kind of operation: [`Read`] (also for scrubbing),
//! [`Write`] (also of zeros, and of what the last owner did not end) and [`Move`]. A machine is told what
//! happened (its verbs have ended, the disk has read its page, it is time to try again) and answers with
//! what is to be done next ([`Next`]). It posts nothing itself; the engine does. So a machine is tested
//! without a worker, and without hosts.
//!
//! What machines share: a [`Page`]; `gather` reads one and judges what came. Under them, with no page:
//! `worker::splits` is where splits lie, with the code that makes one of the others; `worker::verbs` is what is
//! on its way; `worker::guard` believes bytes by their tag.
//!
//! A write moves on only when all verbs it posted have completed, so a failed host is marked in the
//! directory before anything is posted again. A read moves on as soon as enough splits are there;
//! nothing of the others lands any more by then, and its place is free when they have ended (`late`).
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

mod claim;
mod comparison;
mod disk;
mod early;
mod gather;
mod heal;
mod late;
mod listing;
mod memory;
mod migration;
mod protection;
mod read;
mod redo;
mod state;
mod write;

use std::sync::atomic::Ordering;

use super::data_path::DataPath;
use super::order::{Kind, Order};
use crate::IoError;
use crate::core::Core;
use claim::Claim;
use listing::Listing;
use memory::Memory;
use migration::Move;
use read::Read;
pub(super) use redo::give_up;
use state::Page;
pub(super) use state::{Heard, Next, Then};
use write::Write;

/// A page operation: its page, and what is done with it.
#[derive(Clone, Copy, Default)]
pub(super) struct PageOp {
    pub page: Page,
    machine: Machine,
}

#[derive(Clone, Copy, Default)]
enum Machine {
    /// The operation is not in use.
    #[default]
    Free,
    /// It has ended, and verbs of it have not.
    Lingering,
    Read(Read),
    Write(Write),
    Move(Move),
}

impl PageOp {
    /// An operation that is not in use, with a block of scratch.
    pub fn free(op: u16, block: u16) -> Self {
        let mut free = Self::default();
        free.page.op = op;
        free.page.memory.block = block;
        free
    }

    /// Takes an order; [`PageOp::begin`] is next.
    pub fn accept(&mut self, order: &Order, path: &DataPath) {
        let Self { page, machine } = self;
        let own_slot = listing::own_slot(path.worker, page.op);
        *page = Page {
            op: page.op,
            request: order.request,
            kind: order.kind,
            number: order.chunk.page,
            memory: Memory::new(&path.scratch, page.memory.block, order.chunk, order.target),
            listing: Listing::at(order.redoes.unwrap_or(own_slot)),
            claim: Claim::new(order.is_claimed),
            ..Page::default()
        };
        *machine = match order.kind {
            Kind::Read | Kind::Scrub => Machine::Read(Read::default()),
            Kind::Write | Kind::Discard | Kind::Redo => Machine::Write(Write::default()),
            Kind::Move => Machine::Move(Move::default()),
        };
    }

    /// Takes the operation from the start.
    pub fn begin(&mut self, path: &mut DataPath) -> Next {
        if path.is_closed() {
            return Next::End(Err(IoError::Closed));
        }
        let Self { page, machine } = self;
        match machine {
            Machine::Read(read) => read.begin(page, path),
            Machine::Write(write) => write.begin(page, path),
            Machine::Move(moving) => moving.begin(page, path),
            Machine::Free | Machine::Lingering => unreachable!("it is in use"),
        }
    }

    /// Tries an operation again that waited for something other than a completion.
    pub fn resume(&mut self, path: &mut DataPath) -> Next {
        if self.is_paused() {
            return self.on_verbs(path);
        }
        self.begin(path)
    }

    /// No verb of it is out, or of a read as many have ended as it needs, and nothing of the others
    /// lands any more.
    pub fn on_verbs(&mut self, path: &mut DataPath) -> Next {
        let Self { page, machine } = self;
        match machine {
            Machine::Read(read) => read.on_verbs(page, path),
            Machine::Write(write) => write.on_verbs(page, path),
            Machine::Move(moving) => moving.on_verbs(page, path),
            Machine::Free | Machine::Lingering => unreachable!("no verb of it matters"),
        }
    }

    /// It goes on so, with no verb out.
    pub fn go_on(&mut self, then: Then, path: &mut DataPath) -> Next {
        match then {
            Then::Park => Next::Park,
            Then::Step => self.on_verbs(path),
            Then::Widen => self.widen(path),
        }
    }

    /// Reads all there is of its page.
    fn widen(&mut self, path: &mut DataPath) -> Next {
        let Self { page, machine } = self;
        page.leave(path);
        match machine {
            Machine::Read(read) => read.widen(page, path),
            Machine::Write(write) => write.widen(page, path),
            Machine::Move(moving) => moving.widen(page, path),
            Machine::Free | Machine::Lingering => unreachable!("it reads"),
        }
    }

    /// A verb of it has ended, and others that it waits for are out: whether its request is told of its
    /// end.
    pub fn on_verb(&mut self, path: &mut DataPath) -> bool {
        let Self { page, machine } = self;
        if page.heard != Heard::Nothing {
            page.publish_landed(path);
            return false;
        }
        match machine {
            Machine::Write(write) => write.acknowledge_early(page, path),
            _ => false,
        }
    }

    /// The disk has read its page into `bytes`, or refused to.
    pub fn on_fetched(&mut self, path: &mut DataPath, bytes: *const u8, is_ok: bool) -> Next {
        let Self { page, machine } = self;
        if !is_ok && page.is_only_on_slabs(path) {
            // The disk refused the write before it, which hosts have.
            return Next::Park;
        }
        if !is_ok {
            return Next::End(Err(disk::error(path)));
        }
        match machine {
            Machine::Read(read) => read.on_fetched(page, path, bytes),
            Machine::Write(write) => write.on_fetched(page, path, bytes),
            _ => unreachable!("nobody else reads from the disk"),
        }
    }

    /// The disk has written its page, or refused to.
    pub fn on_stored(&mut self, path: &mut DataPath, is_ok: bool) -> Next {
        let Self { page, machine } = self;
        match machine {
            Machine::Write(write) => write.on_stored(page, path, is_ok),
            _ => unreachable!("nobody else writes to the disk alone"),
        }
    }

    /// Lets go of everything, for the operation to begin again later.
    pub fn park(&mut self, path: &mut DataPath) {
        self.page.leave(path);
        self.page.unclaim(&path.core);
        match &mut self.machine {
            Machine::Read(read) => read.park(),
            Machine::Write(write) => write.park(),
            Machine::Move(moving) => moving.park(),
            Machine::Free | Machine::Lingering => unreachable!("it is in use"),
        }
    }

    /// Ends: whether its place is free; if not it is when its last verb has ended.
    pub fn end(&mut self, path: &mut DataPath, is_ok: bool) -> bool {
        let Self { page, machine } = self;
        if !is_ok && page.disk.is_parted {
            page.unmark_remote(path);
        }
        // Before the epoch is left: whoever rebuilds a split must know what it cannot be made from.
        page.unlist(path, is_ok);
        page.release_entry(path);
        // Nobody uses what is only looked at, or moved.
        if !page.is_nobodys() {
            let touched = &path.core.demand.touched[page.place.extent];
            touched.fetch_add(1, Ordering::Relaxed);
        }
        let is_over = page.verbs.is_over();
        if is_over {
            page.leave(path);
            *machine = Machine::Free;
        } else {
            page.linger(path);
            *machine = Machine::Lingering;
        }
        page.unclaim(&path.core);
        is_over
    }

    /// Has another operation go on with the page, while verbs of this one are out.
    pub fn detach(&mut self, other: &mut Self, path: &mut DataPath) {
        let (op, block) = (other.page.op, other.page.memory.block);
        let page = Page {
            op,
            listing: self.page.listing.of_other(path.worker, op),
            verbs: self.page.verbs.without_late(),
            view: self.page.view.left(),
            ..self.page
        };
        *other = Self { page, ..*self };
        // The bytes go with it.
        self.page.memory.block = block;
        self.page.claim = Claim::default();
        self.page.linger(path);
        self.machine = Machine::Lingering;
    }

    /// The last verb of an operation has ended that had ended before: its place is free.
    pub fn forget(&mut self, path: &mut DataPath) {
        let epoch = std::mem::take(&mut self.page.view.epoch);
        path.views.forget(epoch);
        self.machine = Machine::Free;
    }

    /// Whether it has ended, and verbs of it have not.
    #[inline]
    pub fn is_lingering(&self) -> bool {
        matches!(self.machine, Machine::Lingering)
    }

    /// Whether it waits for slabs that are out of reach, and its request for nothing any more.
    pub fn is_stranded(&self) -> bool {
        self.page.is_stranded()
    }

    /// Whether it waits for a rebuilder, a slab, or the journal, and for nothing that is on its way.
    pub fn is_paused(&self) -> bool {
        matches!(&self.machine, Machine::Write(write) if write.is_paused())
    }

    /// Whether verbs of it are out that write.
    pub fn is_writing(&self) -> bool {
        match &self.machine {
            Machine::Read(read) => read.is_writing(),
            Machine::Write(write) => write.is_writing(),
            Machine::Move(moving) => moving.is_writing(),
            Machine::Free | Machine::Lingering => false,
        }
    }
}

/// Of operations that will not go on. Nothing of theirs lands any more.
impl PageOp {
    /// Gives the page back, or nobody would write it again: what may be left of it is known to the marks.
    pub fn give_back(&mut self, core: &Core) {
        self.page.unclaim(core);
    }

    /// Of a process that has ended as if it were killed, gives back what a test that goes on has to find
    /// free: pages of which nothing changed where they are, those that every member has acknowledged, and
    /// those that are in the order of a disk queue.
    pub fn give_back_whole(&mut self, core: &Core) {
        let is_partly_written = matches!(&self.machine, Machine::Write(write) if !write.is_whole());
        if !is_partly_written {
            self.page.unclaim(core);
        }
    }

    /// Its page is no more where its bit says that hosts have it, should some have only part.
    pub fn unmark_unended(&self, path: &DataPath) {
        if let Machine::Write(write) = &self.machine
            && write.may_leave_parts()
        {
            self.page.unmark_remote(path);
        }
    }

    /// Its write ended unknown, or is left to the next owner.
    pub fn fail_write(&mut self, path: &DataPath) {
        // Nothing begins in these places any more.
        let is_ending = path.core.life.ending.load(Ordering::Acquire);
        self.page.unlist_at_end(path, false, is_ending);
    }

    /// Nothing of it waits for the disk.
    pub fn forget_disk(&mut self, path: &DataPath) {
        self.page.release_entry(path);
    }
}

#[cfg(test)]
mod tests;
