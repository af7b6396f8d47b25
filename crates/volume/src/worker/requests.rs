//! Requests in flight: cut into page operations, and told of their end.
//!
//! `submit` takes a request whose end comes out of `Worker::poll`; `read`, `write`, `discard` and
//! `scrub` run one with a borrowed buffer to its end on the calling thread. Either way a request
//! waits its turn for free page operations, oldest first, and is over when its last page is. Reads
//! do not wait behind writes that cannot end: some operations are kept for them.
//!
//! Whole pages that are discarded take no operation: their bit goes under the page's claim. A discard
//! that meets a claim of another, or has dropped many pages, lets other requests go first.

mod run;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use cenote_fabric::Time;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::engine::{Ended, Engine};
use super::order::{Chunk, Kind, Order};
use crate::core::Core;
use crate::limits::REQUESTS_MAX;
use crate::marks::Unfinished;
use crate::{Done, IoError, Op, PAGE_BYTES, Request};
use run::Run;

/// A request in flight.
pub(super) struct Slot {
    tag: u64,
    // How many came before it.
    arrival: u64,
    pub(super) kind: Kind,
    // The operation with its buffer; `None` for a borrowed buffer or a free slot.
    owned: Option<Op>,
    buffer: *mut u8,
    offset: u64,
    pub(super) len_bytes: u64,
    // Bytes for which a page operation was started, or that were discarded.
    started_bytes: u64,
    // Page operations in flight.
    pending: u32,
    // The place in the list of pages in flight of the write that it redoes.
    redoes: Option<u32>,
    // When it began, if it is timed.
    pub(super) timed: Option<Time>,
    pub(super) result: Result<(), IoError>,
}

/// The requests of a worker, by their number.
pub(super) struct Requests {
    pub(super) slots: Box<[Slot]>,
    // Numbers of those that are not in use.
    free: Vec<u16>,
    // Requests with pages not yet started, oldest first: reads, and all others.
    starting_reads: VecDeque<u16>,
    starting: VecDeque<u16>,
    // Requests that wait for something that no other request here waits for, until the next turn.
    deferred: VecDeque<u16>,
    /// Those that have ended and were not handed out.
    pub(super) done: VecDeque<Done>,
    // Requests so far that were begun.
    arrived: u64,
    /// Requests so far; one of a few is timed.
    pub(super) started: u32,
}

impl Requests {
    pub(super) fn new() -> Self {
        let list = || VecDeque::with_capacity(REQUESTS_MAX);
        Self {
            slots: (0..REQUESTS_MAX).map(|_| Slot::free()).collect(),
            free: (0..REQUESTS_MAX as u16).rev().collect(),
            starting_reads: list(),
            starting: list(),
            deferred: list(),
            done: VecDeque::with_capacity(REQUESTS_MAX),
            arrived: 0,
            started: 0,
        }
    }

    /// One that is over: its number is free.
    fn take(&mut self, request: u16) -> Slot {
        self.free.push(request);
        std::mem::replace(&mut self.slots[usize::from(request)], Slot::free())
    }
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

impl Requests {
    /// Whether none is under way and none has ended that was not handed out.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }

    /// Requests that were begun and not handed out.
    pub(super) fn in_flight(&self) -> usize {
        REQUESTS_MAX - self.free.len() + self.done.len()
    }

    /// Whether some have pages that are not started.
    pub(super) fn has_waiting(&self) -> bool {
        !(self.starting_reads.is_empty() && self.starting.is_empty() && self.deferred.is_empty())
    }

    /// Forgets what is not started.
    pub(super) fn forget_waiting(&mut self) {
        self.starting_reads.clear();
        self.starting.clear();
        self.deferred.clear();
    }

    /// A number for a new one; `None` when so many are in flight.
    pub(super) fn take_number(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Has a request begin, with the next pages that are started.
    pub(super) fn begin(&mut self, core: &Core, number: u16, slot: Slot) {
        let size_bytes = core.size_bytes.load(Ordering::Acquire);
        let end = slot.offset.checked_add(slot.len_bytes);
        let in_range = end.is_some_and(|end| end <= size_bytes);
        let at = usize::from(number);
        self.slots[at] = slot;
        self.slots[at].arrival = self.arrived;
        self.arrived += 1;
        self.begin_time(core, at);
        if core.life.closed.load(Ordering::Acquire) {
            self.slots[at].refuse(IoError::Closed);
        } else if !in_range {
            self.slots[at].refuse(IoError::OutOfRange);
        }
        self.queue_of(number).push_back(number);
    }

    /// Where it waits for free operations.
    fn queue_of(&mut self, number: u16) -> &mut VecDeque<u16> {
        match self.slots[usize::from(number)].kind {
            Kind::Read => &mut self.starting_reads,
            _ => &mut self.starting,
        }
    }

    /// The oldest that waits for free operations; of reads alone, where one that is no read found none.
    fn oldest(&self, only_reads: bool) -> Option<u16> {
        let read = self.starting_reads.front().copied();
        let other = self.starting.front().copied().filter(|_| !only_reads);
        let arrival = |number: &u16| self.slots[usize::from(*number)].arrival;
        read.into_iter().chain(other).min_by_key(arrival)
    }

    /// Whether one of this crate's own, or with a borrowed buffer, has ended.
    pub(super) fn is_over(&self, number: u16) -> bool {
        self.slots[usize::from(number)].is_over()
    }

    /// How it ended, once: its number is free then.
    pub(super) fn end_of(&mut self, number: u16) -> Option<Result<(), IoError>> {
        self.is_over(number).then(|| self.take(number).result)
    }

    /// As [`Requests::end_of`], of one that is over, which is timed now if it is its turn.
    pub(super) fn end_timed(&mut self, core: &Core, number: u16) -> Result<(), IoError> {
        self.slots[usize::from(number)].note_time(core);
        self.take(number).result
    }

    /// Starts page operations of waiting requests while there is room.
    pub(super) fn start_pages(&mut self, engine: &mut Engine) {
        let mut only_reads = false;
        while let Some(number) = self.oldest(only_reads) {
            let at = usize::from(number);
            let kind = self.slots[at].kind;
            let progress = match kind {
                Kind::Discard => self.discard_pages(engine, number),
                _ => self.start_chunks(engine, number, only_reads),
            };
            match progress {
                Progress::NoOperations if kind == Kind::Read => break,
                // None will be free before hosts are back: requests are errors till then.
                Progress::NoOperations if engine.is_stranded() => {
                    self.queue_of(number).pop_front();
                    self.slots[at].refuse(IoError::Lost);
                    self.finish_if_over(&engine.path.core, at);
                }
                Progress::NoOperations => only_reads = true,
                Progress::AllStarted => {
                    self.queue_of(number).pop_front();
                    self.finish_if_over(&engine.path.core, at);
                }
                Progress::Deferred => {
                    self.queue_of(number).pop_front();
                    self.deferred.push_back(number);
                }
            }
        }
    }

    /// Has requests that waited for something of their own try again, behind those that came meanwhile.
    pub(super) fn start_deferred(&mut self) {
        self.starting.append(&mut self.deferred);
    }

    /// Starts the request's remaining pages. `is_behind`: see [`Order`].
    fn start_chunks(&mut self, engine: &mut Engine, number: u16, is_behind: bool) -> Progress {
        let slot = &mut self.slots[usize::from(number)];
        let mut run = Run::default();
        let mut progress = Progress::AllStarted;
        while slot.started_bytes < slot.len_bytes {
            let chunk = slot.next_chunk();
            if !run.contains(chunk.page) && slot.is_long_write() {
                run = slot.claim_run(engine, chunk.page);
            }
            let order = Order {
                is_claimed: run.has(chunk.page),
                is_behind,
                ..slot.order(number, chunk)
            };
            if !slot.start_chunk(engine, &order) {
                progress = Progress::NoOperations;
                break;
            }
            run.hand_over(chunk.page);
        }
        run.give_back(&engine.path.core.pages.claims);
        progress
    }

    /// Drops whole pages and starts writes of zeros at the edges.
    fn discard_pages(&mut self, engine: &mut Engine, number: u16) -> Progress {
        const PAGE: u64 = PAGE_BYTES as u64;
        let slot = &mut self.slots[usize::from(number)];
        let mut dropped = 0;
        while slot.started_bytes < slot.len_bytes {
            let chunk = slot.next_chunk();
            if chunk.len_bytes < PAGE_BYTES {
                if !slot.start_chunk(engine, &slot.order(number, chunk)) {
                    return Progress::NoOperations;
                }
                continue;
            }
            let end = (slot.offset + slot.len_bytes) / PAGE;
            let core = &engine.path.core;
            if core.life.closed.load(Ordering::Acquire) {
                // Pages of writes that are left to the next owner stay claimed.
                slot.refuse(IoError::Closed);
                break;
            }
            let Some(page) = core.pages.marks.written.next(chunk.page, end, true) else {
                slot.started_bytes = end * PAGE - slot.offset;
                continue;
            };
            // A writer may have the claim for as long as it takes to give a silent host up.
            let claims = &core.pages.claims;
            if dropped == DROPPED_AT_ONCE || !claims.try_claim(page) {
                if claims.is_stranded(page) {
                    slot.refuse(IoError::Lost);
                    break;
                }
                return Progress::Deferred;
            }
            dropped += 1;
            if !is_injected(InjectedFault::LateBit) {
                drop_page(core, page);
            }
            core.pages.claims.release(page);
            core.demand.discarded.store(true, Ordering::Release);
            slot.started_bytes = (page + 1) * PAGE - slot.offset;
        }
        Progress::AllStarted
    }

    /// A page operation of a request has ended.
    pub(super) fn on_ended(&mut self, core: &Core, ended: &Ended) {
        let slot = &mut self.slots[usize::from(ended.request)];
        slot.pending -= 1;
        if slot.result.is_ok() {
            slot.result = ended.result;
        }
        let counters = &core.measures.counters;
        match ended.kind {
            Kind::Read => counters.pages_read.fetch_add(1, Ordering::Relaxed),
            Kind::Write | Kind::Discard => counters.pages_written.fetch_add(1, Ordering::Relaxed),
            // Nobody asked for it: repairs do not yield to it.
            Kind::Scrub | Kind::Move | Kind::Redo => 0,
        };
        if self.queue_of(ended.request).front() != Some(&ended.request) {
            self.finish_if_over(core, usize::from(ended.request));
        }
    }

    /// Ends the request when its last page operation has ended.
    fn finish_if_over(&mut self, core: &Core, at: usize) {
        let slot = &mut self.slots[at];
        if !slot.is_over() {
            return;
        }
        if slot.owned.is_some() {
            slot.note_time(core);
        }
        if slot.result.is_err() && !matches!(slot.kind, Kind::Move | Kind::Redo) {
            let counters = &core.measures.counters;
            counters.requests_failed.fetch_add(1, Ordering::Relaxed);
        }
        // A borrowed buffer's caller looks at the slot by itself.
        if let Some(op) = slot.owned.take() {
            let done = Done {
                tag: slot.tag,
                op,
                result: slot.result,
            };
            *slot = Slot::free();
            self.done.push_back(done);
            self.free
                .push(u16::try_from(at).expect("REQUESTS_MAX fits"));
        }
    }
}

/// The page holds nothing any more. Under its claim.
fn drop_page(core: &Core, page: u64) {
    core.pages.marks.written.remove(page);
    core.pages.marks.heal(page);
    if let Some(tags) = &core.pages.integrity.tags {
        tags.forget_pending(page);
    }
    if let Some(store) = &core.backing {
        store.pages.remote.remove(page);
    }
}

impl Slot {
    pub(super) fn free() -> Self {
        Self::new(Kind::Read, std::ptr::null_mut(), 0, 0)
    }

    pub(super) fn of(mut request: Request) -> Self {
        let (kind, buffer, len_bytes) = match &mut request.op {
            Op::Read(buffer) => (Kind::Read, buffer.as_mut_ptr(), buffer.len() as u64),
            Op::Write(buffer) => (Kind::Write, buffer.as_mut_ptr(), buffer.len() as u64),
            Op::Discard { len_bytes } => (Kind::Discard, std::ptr::null_mut(), *len_bytes),
        };
        Self {
            tag: request.tag,
            owned: Some(request.op),
            ..Self::new(kind, buffer, request.offset, len_bytes)
        }
    }

    /// Has nobody's bytes.
    pub(super) fn moving(pages: &Range<u64>) -> Self {
        const PAGE: u64 = PAGE_BYTES as u64;
        let len_bytes = (pages.end - pages.start) * PAGE;
        Self::new(
            Kind::Move,
            std::ptr::null_mut(),
            pages.start * PAGE,
            len_bytes,
        )
    }

    pub(super) fn redoing(unfinished: Unfinished) -> Self {
        let offset = unfinished.page * PAGE_BYTES as u64;
        let slot = u32::try_from(unfinished.slot).expect("IN_FLIGHT_MAX fits");
        Self {
            redoes: Some(slot),
            ..Self::new(Kind::Redo, std::ptr::null_mut(), offset, PAGE_BYTES as u64)
        }
    }

    pub(super) fn new(kind: Kind, buffer: *mut u8, offset: u64, len_bytes: u64) -> Self {
        Self {
            tag: 0,
            arrival: 0,
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

    pub(super) fn scrub(page: u64) -> Self {
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

    /// None of its pages that are not started will be.
    fn refuse(&mut self, error: IoError) {
        self.result = Err(error);
        self.started_bytes = self.len_bytes;
    }

    /// Claims its pages from `first` on, as far as operations are free for them.
    fn claim_run(&self, engine: &Engine, first: u64) -> Run {
        let end = (self.offset + self.len_bytes).div_ceil(PAGE_BYTES as u64);
        let end = end.min(first + engine.free_count() as u64);
        Run::claim(&engine.path.core.pages.claims, first..end)
    }

    /// What is asked for of one of its pages.
    fn order(&self, number: u16, chunk: Chunk) -> Order {
        let target = match self.buffer.is_null() {
            true => self.buffer,
            // The chunk was cut from the request's range: its offset lies inside the buffer.
            false => self.buffer.wrapping_add(chunk.buffer_offset),
        };
        Order {
            request: number,
            kind: self.kind,
            chunk,
            target,
            redoes: self.redoes,
            is_claimed: false,
            is_behind: false,
        }
    }

    /// Starts an operation on its next page; false when none is free for it.
    fn start_chunk(&mut self, engine: &mut Engine, order: &Order) -> bool {
        let is_started = engine.start(order);
        if is_started {
            self.started_bytes += order.chunk.len_bytes as u64;
            self.pending += 1;
        }
        is_started
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
