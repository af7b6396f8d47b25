//! Requests in flight: cut into page operations, and told of their end.
//!
//! `submit` takes a request whose end comes out of `Worker::poll`; `read`, `write`, `discard` and
//! `scrub` run one with a borrowed buffer to its end on the calling thread. Either way a request
//! waits its turn for free page operations, oldest first, and is over when its last page is.
//!
//! Whole pages that are discarded take no operation: their bit goes under the page's claim. A discard
//! that meets a claim of another, or has dropped many pages, lets other requests go first.

mod run;

use std::collections::VecDeque;
use std::ops::{Index, IndexMut, Range};
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::{REQUESTS_MAX, Worker};
use crate::marks::Unfinished;
use crate::{Done, IoError, Op, PAGE_BYTES, Request};
use run::Run;

/// A request in flight.
pub(super) struct Slot {
    tag: u64,
    pub(super) kind: Kind,
    // The operation with its buffer; `None` for a borrowed buffer or a free slot.
    owned: Option<Op>,
    pub(super) buffer: *mut u8,
    offset: u64,
    pub(super) len_bytes: u64,
    // Bytes for which a page operation was started, or that were discarded.
    pub(super) started_bytes: u64,
    // Page operations in flight.
    pub(super) pending: u32,
    // The place in the list of pages in flight of the write that it redoes.
    pub(super) redoes: Option<u32>,
    // When it began, if it is timed.
    pub(super) timed: Option<Time>,
    pub(super) result: Result<(), IoError>,
}

/// The requests of a worker, by their number.
pub(super) struct Requests {
    slots: Box<[Slot]>,
    /// Numbers of those that are not in use.
    pub(super) free: Vec<u16>,
    /// Requests with pages not yet started, oldest first.
    pub(super) starting: VecDeque<u16>,
    /// Requests that wait for something that no other request here waits for, until the next turn.
    pub(super) deferred: VecDeque<u16>,
    /// Those that have ended and were not handed out.
    pub(super) done: VecDeque<Done>,
    /// Requests so far; one of a few is timed.
    pub(super) started: u32,
}

impl Requests {
    pub(super) fn new() -> Self {
        let list = || VecDeque::with_capacity(REQUESTS_MAX);
        Self {
            slots: (0..REQUESTS_MAX).map(|_| Slot::free()).collect(),
            free: (0..REQUESTS_MAX as u16).rev().collect(),
            starting: list(),
            deferred: list(),
            done: VecDeque::with_capacity(REQUESTS_MAX),
            started: 0,
        }
    }

    /// One that is over: its number is free.
    fn take(&mut self, request: u16) -> Slot {
        self.free.push(request);
        std::mem::replace(&mut self.slots[usize::from(request)], Slot::free())
    }
}

impl Index<usize> for Requests {
    type Output = Slot;

    #[inline]
    fn index(&self, at: usize) -> &Slot {
        &self.slots[at]
    }
}

impl IndexMut<usize> for Requests {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut Slot {
        &mut self.slots[at]
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Read,
    Write,
    Discard,
    /// Reads pages that hold data for nobody, to find splits that are wrong.
    Scrub,
    /// Brings pages to the volume's other layout.
    Move,
    /// Writes a page that the last owner was writing.
    Redo,
}

/// How far a request's pages got in one turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Progress {
    /// All are started.
    AllStarted,
    /// Operations ran out: whoever comes next needs them as well.
    NoOperations,
    /// It waits for something of its own: others go on.
    Deferred,
}

/// Pages that one discard drops in a turn; about a millisecond's work.
const DROPPED_AT_ONCE: u32 = 16 << 10;

impl Worker {
    /// Starts a request; its end comes out of [`Worker::poll`].
    ///
    /// # Errors
    /// Gives the request back when [`super::REQUESTS_MAX`] are in flight: poll first.
    pub fn submit(&mut self, mut request: Request) -> Result<(), Request> {
        let Some(slot) = self.requests.free.pop() else {
            return Err(request);
        };
        let (kind, buffer, len_bytes) = match &mut request.op {
            Op::Read(buffer) => (Kind::Read, buffer.as_mut_ptr(), buffer.len() as u64),
            Op::Write(buffer) => (Kind::Write, buffer.as_mut_ptr(), buffer.len() as u64),
            Op::Discard { len_bytes } => (Kind::Discard, std::ptr::null_mut(), *len_bytes),
        };
        self.start(
            slot,
            Slot {
                tag: request.tag,
                owned: Some(request.op),
                ..Slot::new(kind, buffer, request.offset, len_bytes)
            },
        );
        Ok(())
    }

    /// Reads `buffer.len()` bytes at `offset`, to the end.
    ///
    /// # Errors
    /// Why not every byte could be read; the buffer's content is then unspecified.
    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let len_bytes = buffer.len() as u64;
        self.run(Slot::new(
            Kind::Read,
            buffer.as_mut_ptr(),
            offset,
            len_bytes,
        ))
    }

    /// Writes `bytes` at `offset`, to the acknowledgement of every member.
    ///
    /// # Errors
    /// Why not every byte could be written; pages of the range then hold old or new bytes, or are lost.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        // The pointer is only read through for a write.
        self.run(Slot::new(
            Kind::Write,
            bytes.as_ptr().cast_mut(),
            offset,
            bytes.len() as u64,
        ))
    }

    /// Makes `len_bytes` at `offset` read as zeros.
    ///
    /// # Errors
    /// Why an edge page could not be written.
    pub fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), IoError> {
        self.run(Slot::new(
            Kind::Discard,
            std::ptr::null_mut(),
            offset,
            len_bytes,
        ))
    }

    /// Compares all that hosts hold of one page, and writes again what is wrong of it.
    ///
    /// # Errors
    /// `Corrupt`: it cannot be told what is right. As [`Worker::read`] besides.
    pub fn scrub(&mut self, page: u64) -> Result<(), IoError> {
        self.run(Slot::scrub(page))
    }

    /// Begins a [`Worker::scrub`] whose end [`Worker::end_scrub`] tells, by whoever polls; `None` while too
    /// much is under way.
    pub(crate) fn begin_scrub(&mut self, page: u64) -> Option<u16> {
        let index = self.requests.free.pop()?;
        self.start(index, Slot::scrub(page));
        Some(index)
    }

    /// How it ended, once it has.
    pub(crate) fn end_scrub(&mut self, request: u16) -> Option<Result<(), IoError>> {
        self.end_of(request)
    }

    /// Does again what the last owner did not end. Before anything else of the volume is written.
    ///
    /// # Errors
    /// As [`Worker::write`]; `Corrupt`: what the page was to be is not what its tag says. The page is then as
    /// any whose write ended unknown.
    pub(crate) fn redo(&mut self, unfinished: Unfinished) -> Result<(), IoError> {
        let result = self.run(Slot::redoing(unfinished));
        self.settle_redo(unfinished, result)
    }

    /// Begins to redo a write; [`Worker::redone`] tells its end, by whoever polls.
    ///
    /// # Panics
    /// If [`super::REQUESTS_MAX`] are in flight.
    pub fn submit_redo(&mut self, unfinished: Unfinished) -> u16 {
        let index = self.requests.free.pop().expect("nothing else is under way");
        self.start(index, Slot::redoing(unfinished));
        index
    }

    /// How a write that is redone ended, once it has.
    pub fn redone(&mut self, request: u16, unfinished: Unfinished) -> Option<Result<(), IoError>> {
        let result = self.end_of(request)?;
        Some(self.settle_redo(unfinished, result))
    }

    /// What cannot be redone is marked, so that its place is free; unless the volume has ended, and the next
    /// owner tries.
    fn settle_redo(
        &mut self,
        unfinished: Unfinished,
        result: Result<(), IoError>,
    ) -> Result<(), IoError> {
        if let Err(error) = result
            && error != IoError::Closed
        {
            tracing::warn!(page = unfinished.page, %error, "a write that the last owner did not end cannot be redone");
            self.give_up(unfinished);
        }
        result
    }

    /// Brings pages to the layout where they are to be.
    ///
    /// # Errors
    /// Some are where they were, and may be tried again.
    pub(crate) fn move_pages(&mut self, pages: Range<u64>) -> Result<(), IoError> {
        self.run(Slot::moving(&pages))
    }

    /// Begins what [`Worker::move_pages`] does; its end comes out of [`Worker::moved`].
    ///
    /// # Panics
    /// If [`super::REQUESTS_MAX`] are in flight.
    pub(crate) fn submit_move(&mut self, pages: Range<u64>) -> u16 {
        let request = self
            .requests
            .free
            .pop()
            .expect("a migrator asks for little");
        self.start(request, Slot::moving(&pages));
        request
    }

    /// Makes progress without blocking; how a move ended, if it has.
    pub(crate) fn moved(&mut self, request: u16) -> Option<Result<(), IoError>> {
        self.drive();
        self.end_of(request)
    }

    /// How a request of this crate's own has ended, once: it is free then.
    fn end_of(&mut self, request: u16) -> Option<Result<(), IoError>> {
        let is_over = self.requests[usize::from(request)].is_over();
        is_over.then(|| self.requests.take(request).result)
    }

    /// Makes progress without blocking.
    pub(crate) fn drive(&mut self) {
        self.turn(Duration::ZERO);
    }

    /// Runs one request with a borrowed buffer to its end.
    fn run(&mut self, slot: Slot) -> Result<(), IoError> {
        /// Turns without progress before the thread blocks instead of spinning.
        const SPINS: u32 = 64;
        /// And turns after which it sleeps instead of yielding its core.
        const YIELDS: u32 = 512;
        /// An ordinary answer over loopback and the wake-up by it, with room to spare.
        const PATIENCE: Duration = Duration::from_micros(200);
        // A panic must not leave verbs behind that refer to the caller's buffer.
        let guard = AbortOnUnwind;
        let index = loop {
            match self.requests.free.pop() {
                Some(index) => break index,
                None => self.turn(Duration::from_millis(1)),
            }
        };
        let at = usize::from(index);
        let is_read = slot.kind == Kind::Read;
        let resilience = self.views.known().resilience;
        let binds_late = is_read && self.binds_late(resilience);
        self.patience = if binds_late { PATIENCE } else { Duration::MAX };
        self.start(index, slot);
        let mut turns = 0;
        // Nobody polls when a write has returned: what was acknowledged early lands first.
        while !self.requests[at].is_over() || (self.ops.landing > 0 && !is_read) {
            turns += 1;
            let timeout = match (self.endpoints.outstanding(), turns) {
                (0, ..SPINS) => Duration::ZERO,
                (0, ..YIELDS) => {
                    std::thread::yield_now();
                    Duration::ZERO
                }
                (0, _) => Duration::from_millis(1),
                _ if self.agenda.parked.is_empty()
                    && self.requests.starting.is_empty()
                    && self.requests.deferred.is_empty() =>
                {
                    Duration::from_millis(100)
                }
                _ => Duration::from_millis(1),
            };
            self.turn(timeout);
        }
        self.patience = Duration::MAX;
        std::mem::forget(guard);
        self.note_time(at);
        self.requests.take(index).result
    }

    fn start(&mut self, index: u16, slot: Slot) {
        let in_range = slot
            .offset
            .checked_add(slot.len_bytes)
            .is_some_and(|end| end <= self.size_bytes());
        let at = usize::from(index);
        self.requests[at] = slot;
        self.begin_time(at);
        if self.core.life.closed.load(Ordering::Acquire) {
            self.refuse(at, IoError::Closed);
        } else if !in_range {
            self.refuse(at, IoError::OutOfRange);
        }
        self.requests.starting.push_back(index);
        self.advance();
    }

    fn refuse(&mut self, at: usize, error: IoError) {
        let slot = &mut self.requests[at];
        slot.result = Err(error);
        slot.started_bytes = slot.len_bytes;
    }

    /// Starts page operations of waiting requests while there is room.
    pub(super) fn start_pages(&mut self) {
        while let Some(&request) = self.requests.starting.front() {
            let at = usize::from(request);
            let progress = match self.requests[at].kind {
                Kind::Discard => self.discard_pages(request),
                _ => self.start_chunks(request),
            };
            match progress {
                Progress::NoOperations => break,
                Progress::AllStarted => {
                    self.requests.starting.pop_front();
                    self.finish_if_over(at);
                }
                Progress::Deferred => {
                    self.requests.starting.pop_front();
                    self.requests.deferred.push_back(request);
                }
            }
        }
    }

    /// Has requests that waited for something of their own try again, behind those that came meanwhile.
    pub(super) fn start_deferred(&mut self) {
        self.requests.starting.append(&mut self.requests.deferred);
    }

    /// Starts the request's remaining pages.
    fn start_chunks(&mut self, request: u16) -> Progress {
        let at = usize::from(request);
        let mut run = Run::default();
        let mut progress = Progress::AllStarted;
        while self.requests[at].started_bytes < self.requests[at].len_bytes {
            let chunk = self.requests[at].next_chunk();
            if !run.contains(chunk.page) && self.requests[at].is_long_write() {
                run = self.claim_run(request, chunk.page);
            }
            if !self.start_op(request, chunk, run.has(chunk.page)) {
                progress = Progress::NoOperations;
                break;
            }
            run.hand_over(chunk.page);
        }
        run.give_back(&self.core.pages.claims);
        progress
    }

    /// Claims the request's pages from `first` on, as far as operations are free for them.
    fn claim_run(&self, request: u16, first: u64) -> Run {
        let slot = &self.requests[usize::from(request)];
        let end = (slot.offset + slot.len_bytes).div_ceil(PAGE_BYTES as u64);
        let end = end.min(first + self.ops.free.len() as u64);
        Run::claim(&self.core.pages.claims, first..end)
    }

    /// Drops whole pages and starts writes of zeros at the edges.
    fn discard_pages(&mut self, request: u16) -> Progress {
        let at = usize::from(request);
        const PAGE: u64 = PAGE_BYTES as u64;
        let mut dropped = 0;
        while self.requests[at].started_bytes < self.requests[at].len_bytes {
            let slot = &self.requests[at];
            let chunk = slot.next_chunk();
            if chunk.len_bytes < PAGE_BYTES {
                if !self.start_op(request, chunk, false) {
                    return Progress::NoOperations;
                }
                continue;
            }
            let end = (slot.offset + slot.len_bytes) / PAGE;
            if self.core.life.closed.load(Ordering::Acquire) {
                // Pages of writes that are left to the next owner stay claimed.
                self.refuse(at, IoError::Closed);
                break;
            }
            let Some(page) = self.core.pages.marks.written.next(chunk.page, end, true) else {
                self.requests[at].started_bytes = end * PAGE - self.requests[at].offset;
                continue;
            };
            // A writer may have the claim for as long as it takes to give a silent host up.
            if dropped == DROPPED_AT_ONCE || !self.core.pages.claims.try_claim(page) {
                return Progress::Deferred;
            }
            dropped += 1;
            if !is_injected(InjectedFault::LateBit) {
                self.core.pages.marks.written.remove(page);
                self.core.pages.marks.heal(page);
                self.forget_tag(page);
                if let Some(store) = &self.core.backing {
                    store.pages.remote.remove(page);
                }
            }
            self.core.pages.claims.release(page);
            self.core.demand.discarded.store(true, Ordering::Release);
            self.requests[at].started_bytes = (page + 1) * PAGE - self.requests[at].offset;
        }
        Progress::AllStarted
    }

    /// Ends the request when its last page operation has ended.
    pub(super) fn finish_if_over(&mut self, at: usize) {
        let slot = &mut self.requests[at];
        if !slot.is_over() {
            return;
        }
        if slot.owned.is_some() && slot.timed.is_some() {
            self.note_time(at);
        }
        let slot = &mut self.requests[at];
        if slot.result.is_err() && !matches!(slot.kind, Kind::Move | Kind::Redo) {
            self.core
                .measures
                .counters
                .requests_failed
                .fetch_add(1, Ordering::Relaxed);
        }
        // A borrowed buffer's caller looks at the slot by itself.
        if let Some(op) = slot.owned.take() {
            let done = Done {
                tag: slot.tag,
                op,
                result: slot.result,
            };
            *slot = Slot::free();
            self.requests.done.push_back(done);
            self.requests
                .free
                .push(u16::try_from(at).expect("REQUESTS_MAX fits"));
        }
    }
}

/// Part of a request inside one page.
#[derive(Clone, Copy, Default)]
pub(super) struct Chunk {
    pub(super) page: u64,
    // First byte inside the page.
    pub(super) start: usize,
    pub(super) len_bytes: usize,
    // Where the chunk's bytes are in the request's buffer.
    pub(super) buffer_offset: usize,
}

impl Slot {
    pub(super) fn free() -> Self {
        Self::new(Kind::Read, std::ptr::null_mut(), 0, 0)
    }

    /// Has nobody's bytes.
    fn moving(pages: &Range<u64>) -> Self {
        const PAGE: u64 = PAGE_BYTES as u64;
        let len_bytes = (pages.end - pages.start) * PAGE;
        Self::new(
            Kind::Move,
            std::ptr::null_mut(),
            pages.start * PAGE,
            len_bytes,
        )
    }

    fn redoing(unfinished: Unfinished) -> Self {
        let offset = unfinished.page * PAGE_BYTES as u64;
        let slot = u32::try_from(unfinished.slot).expect("IN_FLIGHT_MAX fits");
        Self {
            redoes: Some(slot),
            ..Self::new(Kind::Redo, std::ptr::null_mut(), offset, PAGE_BYTES as u64)
        }
    }

    fn new(kind: Kind, buffer: *mut u8, offset: u64, len_bytes: u64) -> Self {
        Self {
            tag: 0,
            kind,
            owned: None,
            buffer,
            offset,
            len_bytes,
            started_bytes: 0,
            pending: 0,
            redoes: None,
            timed: None,
            result: Ok(()),
        }
    }

    fn scrub(page: u64) -> Self {
        let (offset, len_bytes) = (page * PAGE_BYTES as u64, PAGE_BYTES as u64);
        Self::new(Kind::Scrub, std::ptr::null_mut(), offset, len_bytes)
    }

    /// Whether it writes more than one page.
    fn is_long_write(&self) -> bool {
        self.kind == Kind::Write && self.len_bytes > PAGE_BYTES as u64
    }

    fn is_over(&self) -> bool {
        self.pending == 0 && self.started_bytes == self.len_bytes
    }

    /// The next part of the request that lies in one page.
    fn next_chunk(&self) -> Chunk {
        let at = self.offset + self.started_bytes;
        let start = usize::try_from(at % PAGE_BYTES as u64).expect("inside a page");
        let left = self.len_bytes - self.started_bytes;
        let len_bytes =
            usize::try_from(left.min((PAGE_BYTES - start) as u64)).expect("inside a page");
        // Discards have no buffer and may be longer than memory; their offset is not used.
        let buffer_offset = usize::try_from(self.started_bytes).unwrap_or(0);
        Chunk {
            page: at / PAGE_BYTES as u64,
            start,
            len_bytes,
            buffer_offset,
        }
    }
}

/// Aborts when dropped: stands on the stack while a borrowed buffer is in use.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
