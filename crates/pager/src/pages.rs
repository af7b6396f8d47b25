//! What becomes of each page of a shard: a table of states that faults and ends of I/O move on.
//!
//! ```text
//! Empty  --fault--> Zeroing  --zeros-> Dirty    never stored: zeros, without I/O
//! Stored --fault--> Fetching --read--> Clean    or Dirty, when somebody waits to write, or will
//! Stored --ahead--> Ahead    --read--> Clean
//! Clean  --write fault--> Dirty
//! Clean  --chosen--> Stored                     dropped without a write
//! Dirty  --chosen--> Cleaning --written--> Stored
//! Cleaning --write fault--> Redirtied --written--> Dirty
//! Fetching --failed--> Lost                     poisoned
//! Lost   --again--> Retried --read--> Stored    not poisoned any more; or Lost, when it fails
//! ```
//! Clean and Cleaning pages are write-protected, so that the first write is a fault; reads of them
//! go on. A page is dropped only when it is protected and the store has its bytes.
//!
//! A page that was read and then written is likely to be so again (a program that counts uses in its
//! objects): it comes back writable, which saves its second fault. One in [`LEARN_EVERY`] of them
//! comes back protected all the same, so that one that is only read now is dropped without a write.
//!
//! Invariant: pages that are resident or on their way are at most [`Pages::room`]. Faults beyond
//! wait for a page to go; pages go ahead of that, so that faults seldom wait.

use std::collections::VecDeque;
use std::time::Duration;

use crate::counters::Counters;
use crate::injected_faults::{InjectedFault, is_injected};
use crate::queues::Queues;
use crate::rooms::ROOM_MIN;
use crate::stream::{RUN_MAX, Streams};
pub use action::{Action, Arrival, WrittenAs};
use lost::LostPages;

/// Writes under way at once. Arbitrary: enough to fill a network, and few beside a volume's queue.
pub const WRITES_MAX: u32 = 64;

/// Pages that go at once, so that whoever drops them asks the kernel once: it interrupts every core
/// that runs the program, which costs more than the drop.
pub(crate) const BATCH_MAX: u32 = 32;

/// Of pages that are likely to be written, each such comes back protected. Arbitrary: a needless
/// write costs a part of a fault.
const LEARN_EVERY: u32 = 8;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Not resident; reads as zeros.
    Empty,
    /// Not resident; the store has it.
    Stored,
    /// Gets zeros, for somebody who waits.
    Zeroing,
    /// Being read for somebody who waits to read.
    Fetching,
    /// Being read for somebody who waits to write.
    FetchingToWrite,
    /// Being read ahead.
    Ahead,
    /// Being read, or to get zeros, and discarded meanwhile.
    Void,
    /// Resident, protected, as the store has it.
    Clean,
    /// Resident and writable.
    Dirty,
    /// Resident, protected, being written.
    Cleaning,
    /// Resident and writable; what is being written is older.
    Redirtied,
    /// Discarded, and being erased.
    Erasing,
    /// Nobody has its bytes, or nobody who has them answers: poisoned.
    Lost,
    /// Lost, and being read again.
    Retried,
}

#[derive(Clone, Copy)]
struct Page {
    state: State,
    /// Whether the store has bytes of it, of now or of before.
    is_stored: bool,
    /// Whether it was written after it had been read, when it was last seen.
    is_rewritten: bool,
}

/// The pages of a shard of a heap. 17 bytes for each.
pub struct Pages {
    pages: Vec<Page>,
    queues: Queues,
    streams: Streams,
    actions: VecDeque<Action>,
    /// Pages with faults that wait for room, or that are neither here nor there; each once, and
    /// whether one of its faults is to write.
    waiting: VecDeque<(u32, bool)>,
    /// Pages that are resident or on their way.
    resident: u32,
    room: u32,
    /// Pages that are clean.
    clean: u32,
    /// Pages under way to the store.
    writing: u32,
    /// Writes under way of pages that were discarded since.
    orphans: u32,
    /// When the last of the writes ended, or the first of those under way began.
    progress_at: Duration,
    /// When the last clean page arrived.
    arrived_at: Duration,
    /// Nothing is written before.
    retry_at: Duration,
    /// Pages that came back and are likely to be written, modulo [`LEARN_EVERY`].
    likely: u32,
    lost: LostPages,
    counters: Counters,
}

impl Pages {
    /// `count` pages, of which `room` may be resident; all read as zeros.
    ///
    /// # Panics
    /// If there is room for less than [`ROOM_MIN`] pages.
    #[must_use]
    pub fn new(count: u32, room: u32) -> Self {
        assert!(room >= ROOM_MIN, "pages need room for {ROOM_MIN}");
        let page = Page {
            state: State::Empty,
            is_stored: false,
            is_rewritten: false,
        };
        Self {
            pages: vec![page; count as usize],
            queues: Queues::new(count as usize),
            streams: Streams::new(count),
            actions: VecDeque::new(),
            waiting: VecDeque::new(),
            resident: 0,
            room,
            clean: 0,
            writing: 0,
            orphans: 0,
            progress_at: Duration::ZERO,
            arrived_at: Duration::ZERO,
            retry_at: Duration::ZERO,
            likely: 0,
            lost: LostPages::default(),
            counters: Counters::default(),
        }
    }

    /// Pages that may be resident.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Pages that are resident or on their way.
    #[must_use]
    pub fn resident(&self) -> u32 {
        self.resident
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            reads_ahead_useful: self.streams.useful(),
            ..self.counters
        }
    }

    /// Whether a thread waits for room, or for a page that is neither here nor there.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What is to be done next.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Gives the pages more room, or less: then pages go until it is kept.
    pub fn set_room(&mut self, room: u32, now: Duration) {
        self.room = room.max(ROOM_MIN);
        self.tick(now);
    }

    /// A thread waits at `page`, `to_write` or to read.
    pub fn fault(&mut self, page: u32, to_write: bool, now: Duration) {
        let was_stored = self.pages[page as usize].state == State::Stored;
        self.serve(page, to_write);
        if was_stored {
            self.look_ahead(page);
        }
        self.tick(now);
    }

    fn serve(&mut self, page: u32, to_write: bool) {
        let fetching = |to_write| match to_write {
            true => State::FetchingToWrite,
            false => State::Fetching,
        };
        match self.pages[page as usize].state {
            State::Empty | State::Stored if self.free() == 0 => {
                self.counters.waits += u64::from(self.wait(page, to_write));
            }
            State::Empty => {
                self.counters.faults += 1;
                self.counters.zeroed += 1;
                self.resident += 1;
                match is_injected(InjectedFault::ZerosUnawaited) {
                    true => self.settle(page, State::Dirty),
                    false => self.set(page, State::Zeroing),
                }
                self.actions.push_back(Action::Zero(page));
            }
            State::Stored => {
                self.counters.faults += 1;
                self.counters.reads += 1;
                self.resident += 1;
                self.set(page, fetching(to_write));
                self.actions.push_back(Action::Read(page));
            }
            State::Ahead => {
                self.counters.faults += 1;
                self.set(page, fetching(to_write));
            }
            State::Fetching if to_write => self.set(page, State::FetchingToWrite),
            State::Fetching | State::FetchingToWrite | State::Zeroing => {}
            State::Clean if to_write => self.unprotect(page, State::Dirty),
            State::Cleaning if to_write => self.unprotect(page, State::Redirtied),
            State::Void | State::Erasing => {
                self.wait(page, to_write);
            }
            // It came after what it asks for; or it finds out that the page is lost.
            State::Clean
            | State::Cleaning
            | State::Dirty
            | State::Redirtied
            | State::Lost
            | State::Retried => {
                self.actions.push_back(Action::Wake(page));
            }
        }
    }

    /// Has a fault wait. Whether it is the first one of its page. A thread that takes signals while
    /// it waits faults again each time, so that faults have no bound, and pages have.
    fn wait(&mut self, page: u32, to_write: bool) -> bool {
        let same = self.waiting.iter_mut().find(|(waits, _)| *waits == page);
        if let Some((_, writes)) = same {
            *writes |= to_write;
            return false;
        }
        self.waiting.push_back((page, to_write));
        true
    }

    /// A page that was protected is about to be changed.
    fn unprotect(&mut self, page: u32, next: State) {
        self.counters.write_faults += 1;
        self.pages[page as usize].is_rewritten = true;
        self.queues.count_use(page);
        if !is_injected(InjectedFault::WriteUnseen) {
            self.set(page, next);
        }
        self.actions.push_back(Action::Unprotect(page));
    }

    /// Fetches what is likely to be touched after `page`, into room that is free.
    fn look_ahead(&mut self, page: u32) {
        let Some(run) = self.streams.fault(page) else {
            return;
        };
        // Half of what is kept free is for faults.
        let mut left = self.free().saturating_sub(self.spare() / 2);
        if is_injected(InjectedFault::BoundIgnored) {
            left = RUN_MAX;
        }
        let (mut passed, mut fetched) = (0, 0);
        for page in run.pages() {
            if left == 0 {
                break;
            }
            passed += 1;
            if self.pages[page as usize].state == State::Stored {
                left -= 1;
                fetched += 1;
                self.counters.reads_ahead += 1;
                self.resident += 1;
                self.set(page, State::Ahead);
                self.actions.push_back(Action::Read(page));
            }
        }
        self.streams.note_fetched(passed, fetched);
    }

    /// A read has ended; `is_read` says whether the bytes are there.
    pub fn read_done(&mut self, page: u32, is_read: bool, now: Duration) -> Arrival {
        let state = self.pages[page as usize].state;
        let arrival = match state {
            State::Void => {
                self.leave();
                self.erase(page);
                if is_injected(InjectedFault::StaleInstalled) {
                    Arrival::Install { protected: true }
                } else {
                    Arrival::Ignore
                }
            }
            State::Ahead if !is_read => {
                // Whoever needs it asks again.
                self.leave();
                self.set(page, State::Stored);
                Arrival::Ignore
            }
            State::Fetching | State::FetchingToWrite if !is_read => {
                self.counters.lost += 1;
                if is_injected(InjectedFault::LostAsZeros) {
                    self.set(page, State::Zeroing);
                    self.actions.push_back(Action::Zero(page));
                    return Arrival::Ignore;
                }
                self.leave();
                self.set(page, State::Lost);
                self.lost.enter(page, now);
                Arrival::Poison
            }
            State::Retried => {
                self.leave();
                self.retried(page, is_read, now);
                Arrival::Ignore
            }
            State::FetchingToWrite => {
                self.settle(page, State::Dirty);
                Arrival::Install { protected: false }
            }
            State::Fetching if self.will_be_written(page) => {
                self.settle(page, State::Dirty);
                Arrival::Install { protected: false }
            }
            State::Fetching | State::Ahead => {
                if state == State::Ahead && is_injected(InjectedFault::PrefetchForgotten) {
                    self.pages[page as usize].is_stored = false;
                }
                self.settle(page, State::Clean);
                self.arrived_at = now;
                Arrival::Install { protected: true }
            }
            _ => unreachable!("page {page} was read while it is {state:?}"),
        };
        self.tick(now);
        arrival
    }

    /// Whether a page that is read is to come back writable.
    fn will_be_written(&mut self, page: u32) -> bool {
        if !self.pages[page as usize].is_rewritten {
            return false;
        }
        self.likely = (self.likely + 1) % LEARN_EVERY;
        self.likely != 0
    }

    /// A page that is to get zeros is out of the memory. Until then nobody may choose it to go:
    /// what it is by the books is not there.
    pub fn zero_done(&mut self, page: u32, now: Duration) -> Arrival {
        let arrival = match self.pages[page as usize].state {
            State::Void => {
                self.leave();
                self.erase(page);
                Arrival::Ignore
            }
            State::Zeroing => {
                // The kernel's page of zeros is not told from one that was written.
                self.settle(page, State::Dirty);
                Arrival::Install { protected: false }
            }
            _ if is_injected(InjectedFault::ZerosUnawaited) => {
                Arrival::Install { protected: false }
            }
            state => unreachable!("page {page} gets zeros while it is {state:?}"),
        };
        self.tick(now);
        arrival
    }

    /// How a page that is to be written is written.
    #[must_use]
    pub fn written_as(&self, page: u32, is_zeros: bool) -> WrittenAs {
        let is_stored = self.pages[page as usize].is_stored;
        match (is_zeros, is_stored) {
            (false, _) => WrittenAs::Bytes,
            (true, true) if is_injected(InjectedFault::ZerosNotWritten) => WrittenAs::Nothing,
            (true, true) => WrittenAs::Erased,
            (true, false) => WrittenAs::Nothing,
        }
    }

    /// A write has ended: how it was written, or that it failed.
    pub fn write_done(&mut self, page: u32, written: Option<WrittenAs>, now: Duration) {
        self.writing -= 1;
        let is_failed = written.is_none() && !is_injected(InjectedFault::FailedWriteCounted);
        let entry = &mut self.pages[page as usize];
        match written {
            Some(WrittenAs::Bytes) => entry.is_stored = true,
            Some(WrittenAs::Erased) => entry.is_stored = false,
            Some(WrittenAs::Nothing) => {}
            // It may be there all the same, or some of it.
            None => entry.is_stored = true,
        }
        if written == Some(WrittenAs::Nothing) {
            self.progress_at = now;
        } else {
            self.note_write(!is_failed, now);
        }
        match self.pages[page as usize].state {
            State::Cleaning if is_failed => {
                self.set(page, State::Dirty);
                self.queues.stay(page);
                self.actions.push_back(Action::Unprotect(page));
            }
            State::Cleaning => self.go(page),
            State::Redirtied if is_injected(InjectedFault::RedirtiedDropped) => self.go(page),
            State::Redirtied => {
                self.set(page, State::Dirty);
                self.queues.stay(page);
            }
            // An injected fault let it go before.
            _ => {}
        }
        self.tick(now);
    }

    /// Lets pages go until some are free, and serves who waited for that.
    pub fn tick(&mut self, now: Duration) {
        loop {
            self.make_room(now);
            let ready = (self.waiting.iter()).position(|(page, _)| self.can_serve(*page));
            let Some((page, to_write)) = ready.and_then(|at| self.waiting.remove(at)) else {
                return;
            };
            if is_injected(InjectedFault::WaiterForgotten) && !self.waiting.is_empty() {
                continue;
            }
            self.serve(page, to_write);
        }
    }

    fn can_serve(&self, page: u32) -> bool {
        match self.pages[page as usize].state {
            State::Empty | State::Stored => self.free() > 0,
            State::Void | State::Erasing => false,
            _ => true,
        }
    }

    /// The store has done a write, or refused it.
    fn note_write(&mut self, is_done: bool, now: Duration) {
        self.progress_at = now;
        if is_done {
            self.counters.writes += 1;
        } else {
            self.counters.write_failures += 1;
            self.retry_at = now + room::RETRY_AFTER;
        }
    }

    fn clean(&mut self, page: u32, now: Duration) {
        if self.writes() == 0 {
            self.progress_at = now;
        }
        self.writing += 1;
        self.set(page, State::Cleaning);
        if !is_injected(InjectedFault::NotProtected) {
            self.actions.push_back(Action::Protect(page));
        }
        self.actions.push_back(Action::Write(page));
        if is_injected(InjectedFault::DroppedBeforeWritten) {
            self.pages[page as usize].is_stored = true;
            self.go(page);
        }
    }

    /// A page that was chosen leaves the memory.
    fn go(&mut self, page: u32) {
        self.counters.drops += 1;
        self.pages[page as usize].is_rewritten &= self.pages[page as usize].state != State::Clean;
        self.leave();
        self.queues.go(page);
        let is_stored = self.pages[page as usize].is_stored;
        let state = if is_stored {
            State::Stored
        } else {
            State::Empty
        };
        self.set(page, state);
        self.actions.push_back(Action::Drop(page));
    }

    /// A page became resident.
    fn settle(&mut self, page: u32, state: State) {
        self.set(page, state);
        let memory = self.room - self.room / 10;
        self.queues.enter(page, memory);
    }

    fn leave(&mut self) {
        self.resident -= 1;
    }

    /// A page that is resident is not in the memory: its program took it out by itself, and reads
    /// zeros.
    pub(crate) fn vanished(&mut self, page: u32) {
        match self.pages[page as usize].state {
            State::Clean => self.set(page, State::Dirty),
            State::Cleaning => self.set(page, State::Redirtied),
            _ => {}
        }
    }

    /// Whether a page is resident.
    pub(crate) fn is_resident(&self, page: u32) -> bool {
        use State::{Clean, Cleaning, Dirty, Redirtied};
        let state = self.pages[page as usize].state;
        matches!(state, Clean | Dirty | Cleaning | Redirtied)
    }

    /// Whether a page is resident, and writes to it are let through.
    pub(crate) fn is_writable(&self, page: u32) -> bool {
        let state = self.pages[page as usize].state;
        matches!(state, State::Dirty | State::Redirtied)
    }

    /// Whether the store has bytes of a page.
    pub(crate) fn is_stored(&self, page: u32) -> bool {
        self.pages[page as usize].is_stored
    }

    /// Writes under way.
    fn writes(&self) -> u32 {
        self.writing + self.orphans
    }

    fn set(&mut self, page: u32, state: State) {
        let before = std::mem::replace(&mut self.pages[page as usize].state, state);
        self.clean -= u32::from(before == State::Clean);
        self.clean += u32::from(state == State::Clean);
    }
}

mod action;
mod copy;
mod discard;
mod lost;
mod room;
#[cfg(test)]
mod tests;
