//! A worker: one thread's way into a volume.
//!
//! Requests are cut into page operations (`page`), which post verbs on the worker's own
//! endpoints (`lanes`) and are moved on by completions. `submit`/`poll` serve a front end
//! with many requests in flight; `read`/`write`/`discard` run one to its end on the
//! calling thread (Hydra's run-to-completion). Nothing on the page path allocates or
//! takes a lock shared with other workers.
//!
//! Drop order matters: the endpoints go first, after which nothing can land in buffers.

mod lanes;
mod page;
mod random;
mod switches;
mod timing;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use cenote_fabric::{CompletionQueue, FAILURE_TIMEOUT, Time};

use cenote_pool::planted::{Planted, is_planted};

use crate::control::Command;
use crate::core::Core;
use crate::directory::{Snapshot, WorkerEpoch};
use crate::volume::Farewell;
use crate::{Done, IoError, Op, PAGE_BYTES, Request};
use lanes::Lanes;
use page::{Guard, PageOp};
use random::Random;

pub use switches::{Switches, Work};

/// Requests that one worker accepts before it wants to be polled.
pub const REQUESTS_MAX: usize = 256;

/// Page operations in flight per worker; fewer than an endpoint's queue, so that a post always fits.
pub(crate) const OPS_MAX: usize = 256;

/// One thread's endpoints, operations and landing buffers.
pub struct Worker {
    lanes: Lanes,
    queue: CompletionQueue,
    // Completions of endpoints that complete at once; empty between posts.
    inline: CompletionQueue,
    // Operations whose last verb completed at once.
    ready: Vec<u16>,
    core: Arc<Core>,
    // Said before the epoch slot is free for another worker.
    farewell: Farewell,
    epoch: WorkerEpoch,
    views: VecDeque<View>,
    // Page operations that work in some view.
    working: u32,
    ops: Box<[PageOp]>,
    free_ops: Vec<u16>,
    // OPS_MAX blocks of one page and r parities.
    scratch: Box<[UnsafeCell<u8>]>,
    // Operations that have ended, and of which verbs are still out.
    lingering: usize,
    // Writes that were acknowledged, and are not everywhere yet.
    landing: usize,
    // How long a host is waited for before any other will do.
    patience: Duration,
    // Decides which splits are read.
    random: Random,
    switches: Switches,
    // Hears of the processor's work, in a simulation.
    meter: Option<fn(Work)>,
    guard: Guard,
    // Operations that wait for something other than a completion.
    parked: Vec<u16>,
    retry: Vec<u16>,
    // Operations that wait for the disk.
    at_disk: usize,
    // Operations whose data splits are posted and whose parities are not.
    encode: Vec<u16>,
    requests: Box<[Slot]>,
    free_requests: Vec<u16>,
    // Requests with pages not yet started, oldest first.
    starting: VecDeque<u16>,
    done: VecDeque<Done>,
    // Requests so far; one of a few is timed.
    started: u32,
    is_abandoned: bool,
}

/// A snapshot that operations work in.
struct View {
    snapshot: Arc<Snapshot>,
    count: u32,
    // Operations that have ended here, and of which verbs are still out.
    late: u32,
}

/// A request in flight.
struct Slot {
    tag: u64,
    kind: Kind,
    // The operation with its buffer; `None` for a borrowed buffer or a free slot.
    owned: Option<Op>,
    buffer: *mut u8,
    offset: u64,
    len_bytes: u64,
    // Bytes for which a page operation was started, or that were discarded.
    started_bytes: u64,
    // Page operations in flight.
    pending: u32,
    // When it began, if it is timed.
    timed: Option<Time>,
    result: Result<(), IoError>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Read,
    Write,
    Discard,
    /// Reads pages that hold data for nobody, to find splits that are wrong.
    Scrub,
}

// SAFETY: the raw pointers in slots point into buffers that the slots own (or that a
// caller of `run` lends for the call); nothing is tied to a thread.
unsafe impl Send for Worker {}

impl Worker {
    pub(crate) fn new(
        core: Arc<Core>,
        id: usize,
        epoch: WorkerEpoch,
        host_count: usize,
        commands: Sender<Command>,
    ) -> std::io::Result<Self> {
        let block = PAGE_BYTES + core.scheme.r() * core.scheme.split_bytes();
        // First: it takes the worker back when what follows fails.
        let farewell = Farewell { id, commands };
        let mut worker = Self {
            lanes: Lanes::new(host_count)?,
            // A slab that is being moved is written twice.
            queue: CompletionQueue::with_capacity(OPS_MAX * (core.scheme.members() + 1)),
            inline: CompletionQueue::with_capacity(1),
            ready: Vec::with_capacity(OPS_MAX),
            epoch,
            views: VecDeque::with_capacity(16),
            working: 0,
            ops: (0..OPS_MAX as u16).map(PageOp::on_block).collect(),
            free_ops: (0..OPS_MAX as u16).rev().collect(),
            scratch: (0..OPS_MAX * block).map(|_| UnsafeCell::new(0)).collect(),
            lingering: 0,
            landing: 0,
            patience: Duration::MAX,
            random: Random::new(id as u64),
            switches: Switches::default(),
            meter: None,
            guard: Guard::new(block),
            parked: Vec::with_capacity(OPS_MAX),
            retry: Vec::with_capacity(OPS_MAX),
            at_disk: 0,
            encode: Vec::with_capacity(OPS_MAX),
            requests: (0..REQUESTS_MAX).map(|_| Slot::free()).collect(),
            free_requests: (0..REQUESTS_MAX as u16).rev().collect(),
            starting: VecDeque::with_capacity(REQUESTS_MAX),
            done: VecDeque::with_capacity(REQUESTS_MAX),
            started: 0,
            is_abandoned: false,
            farewell,
            core,
        };
        if let Some(store) = &worker.core.backing {
            worker.lanes.watch_disk(store.bell_of(id)?.fd());
            store.disown(id);
        }
        worker.take_mail();
        Ok(worker)
    }

    /// Current size of the volume in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.core.size_bytes.load(Ordering::Acquire)
    }

    /// Starts a request; its end comes out of [`Worker::poll`].
    ///
    /// # Errors
    /// Gives the request back when [`REQUESTS_MAX`] are in flight: poll first.
    pub fn submit(&mut self, mut request: Request) -> Result<(), Request> {
        let Some(slot) = self.free_requests.pop() else {
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

    fn start(&mut self, index: u16, slot: Slot) {
        let in_range = slot
            .offset
            .checked_add(slot.len_bytes)
            .is_some_and(|end| end <= self.size_bytes());
        let at = usize::from(index);
        self.requests[at] = slot;
        self.begin_time(at);
        if self.core.closed.load(Ordering::Acquire) {
            self.refuse(at, IoError::Closed);
        } else if !in_range {
            self.refuse(at, IoError::OutOfRange);
        }
        self.starting.push_back(index);
        self.advance();
    }

    fn refuse(&mut self, at: usize, error: IoError) {
        let slot = &mut self.requests[at];
        slot.result = Err(error);
        slot.started_bytes = slot.len_bytes;
    }

    /// Makes progress without blocking and moves ended requests to `done`.
    pub fn poll(&mut self, done: &mut Vec<Done>) {
        self.turn(Duration::ZERO);
        done.extend(self.done.drain(..));
    }

    /// Requests submitted and not yet handed out by [`Worker::poll`].
    #[must_use]
    pub fn in_flight(&self) -> usize {
        REQUESTS_MAX - self.free_requests.len() + self.done.len()
    }

    /// Readable when [`Worker::poll`] would make progress.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.lanes.fd()
    }

    /// Poll again within this time even when the descriptor stays quiet: something waits for
    /// another worker or for the control thread. `None`: the descriptor says it all.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        /// Short beside any network, long beside a spin.
        const PARKED: Duration = Duration::from_millis(1);
        const OUTSTANDING: Duration = Duration::from_millis(100);
        if !self.done.is_empty() {
            Some(Duration::ZERO)
        } else if !self.parked.is_empty() || !self.starting.is_empty() {
            Some(PARKED)
        } else if self.working > 0 || self.at_disk > 0 || self.lingering > 0 {
            Some(OUTSTANDING)
        } else {
            None
        }
    }

    /// Turns parts of the page path off. Between requests.
    ///
    /// # Panics
    /// If a request is under way.
    pub fn set_switches(&mut self, switches: Switches) {
        assert_eq!(self.in_flight(), 0, "requests are under way");
        self.switches = switches;
    }

    /// Has `meter` hear of each piece of the processor's work before it counts as done: a simulated
    /// one takes its time there.
    pub fn set_meter(&mut self, meter: fn(Work)) {
        self.meter = Some(meter);
    }

    #[inline]
    fn spend(&self, work: Work) {
        if let Some(meter) = self.meter {
            meter(work);
        }
    }

    /// Pages whose writes were acknowledged, and that not every member has yet: should this process
    /// end now, they are errors to the next owner.
    pub fn landing_pages(&self) -> impl Iterator<Item = u64> {
        self.ops.iter().filter_map(PageOp::landing_page)
    }

    /// System calls made on the data path so far, for benchmarks.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.lanes.system_calls()
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

    /// Compares all that hosts hold of one page, and writes anew what is wrong of it.
    ///
    /// # Errors
    /// `Corrupt`: it cannot be told what is right. As [`Worker::read`] besides.
    pub fn scrub(&mut self, page: u64) -> Result<(), IoError> {
        let (offset, len_bytes) = (page * PAGE_BYTES as u64, PAGE_BYTES as u64);
        let nobody = std::ptr::null_mut();
        self.run(Slot::new(Kind::Scrub, nobody, offset, len_bytes))
    }

    /// Splits that [`Worker::scrub`] found wrong so far, and those of them that it wrote anew.
    pub(crate) fn scrubbed(&self) -> (u64, u64) {
        (self.guard.wrong_count, self.guard.healed_count)
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
            match self.free_requests.pop() {
                Some(index) => break index,
                None => self.turn(Duration::from_millis(1)),
            }
        };
        let at = usize::from(index);
        let binds_late = slot.kind == Kind::Read && self.binds_late();
        self.patience = if binds_late { PATIENCE } else { Duration::MAX };
        self.start(index, slot);
        let mut turns = 0;
        // Nobody polls when this has returned: what was acknowledged early lands first.
        while !self.requests[at].is_over() || self.landing > 0 {
            turns += 1;
            let timeout = match (self.lanes.outstanding(), turns) {
                (0, ..SPINS) => Duration::ZERO,
                (0, ..YIELDS) => {
                    std::thread::yield_now();
                    Duration::ZERO
                }
                (0, _) => Duration::from_millis(1),
                _ if self.parked.is_empty() && self.starting.is_empty() => {
                    Duration::from_millis(100)
                }
                _ => Duration::from_millis(1),
            };
            self.turn(timeout);
        }
        self.patience = Duration::MAX;
        std::mem::forget(guard);
        self.note_time(at);
        let result = self.requests[at].result;
        self.requests[at] = Slot::free();
        self.free_requests.push(index);
        result
    }

    /// One turn of the loop: arrivals, completions, parked operations, new pages.
    fn turn(&mut self, timeout: Duration) {
        if self.core.has_mail(self.farewell.id) {
            self.take_mail();
        }
        // Woken with nothing in flight: a connection has something to say.
        let is_idle = self.free_requests.len() == REQUESTS_MAX && self.done.is_empty();
        let owed = self.lanes.outstanding() > 0;
        if is_idle || !timeout.is_zero() || owed {
            let (lanes, clock, queue) = (&mut self.lanes, self.core.clock, &mut self.queue);
            let dead = match timeout {
                Duration::ZERO => lanes.poll(timeout, clock, queue),
                _ if !self.switches.run_to_completion => lanes.poll(timeout, clock, queue),
                _ => lanes.wait(timeout, self.patience, clock, queue),
            };
            for session in dead {
                self.fail_session(session);
            }
        }
        self.queue.received.clear();
        self.hear_disk();
        std::mem::swap(&mut self.parked, &mut self.retry);
        while let Some(op) = self.retry.pop() {
            self.resume(op);
        }
        self.advance();
    }

    pub(crate) fn take_mail(&mut self) {
        for (session, endpoint) in self.core.collect(self.farewell.id) {
            self.lanes.adopt(session, endpoint);
        }
    }

    /// Starts pages, rings doorbells, encodes while data splits fly, and handles completions
    /// until nothing more can be done at once.
    fn advance(&mut self) {
        loop {
            self.start_pages();
            if !self.encode.is_empty() {
                self.lanes.flush(&mut self.queue);
                while let Some(op) = self.encode.pop() {
                    self.post_parities(op);
                }
            }
            self.lanes.flush(&mut self.queue);
            if self.queue.is_empty() && self.ready.is_empty() {
                break;
            }
            while let Some(op) = self.ready.pop() {
                self.step(op);
            }
            while let Some(completion) = self.queue.pop() {
                self.complete(completion);
            }
        }
    }

    /// Starts page operations of waiting requests while there is room.
    fn start_pages(&mut self) {
        while let Some(&request) = self.starting.front() {
            let at = usize::from(request);
            let all_started = match self.requests[at].kind {
                Kind::Discard => self.discard_pages(request),
                Kind::Read | Kind::Write | Kind::Scrub => self.start_chunks(request),
            };
            if !all_started {
                break;
            }
            self.starting.pop_front();
            self.finish_if_over(at);
        }
    }

    /// Starts the request's remaining pages; false when operations ran out.
    fn start_chunks(&mut self, request: u16) -> bool {
        let at = usize::from(request);
        while self.requests[at].started_bytes < self.requests[at].len_bytes {
            let chunk = self.requests[at].next_chunk();
            if !self.start_op(request, chunk) {
                return false;
            }
        }
        true
    }

    /// Drops whole pages and starts writes of zeros at the edges; false when it has to wait.
    fn discard_pages(&mut self, request: u16) -> bool {
        let at = usize::from(request);
        const PAGE: u64 = PAGE_BYTES as u64;
        while self.requests[at].started_bytes < self.requests[at].len_bytes {
            let slot = &self.requests[at];
            let chunk = slot.next_chunk();
            if chunk.len_bytes < PAGE_BYTES {
                if !self.start_op(request, chunk) {
                    return false;
                }
                continue;
            }
            let end = (slot.offset + slot.len_bytes) / PAGE;
            let Some(page) = self.core.marks.written.next(chunk.page, end, true) else {
                self.requests[at].started_bytes = end * PAGE - self.requests[at].offset;
                continue;
            };
            if !self.core.claims.try_claim(page) {
                return false;
            }
            if !is_planted(Planted::LateBit) {
                self.core.marks.written.remove(page);
                self.core.marks.heal(page);
                self.forget_tag(page);
                if let Some(store) = &self.core.backing {
                    store.pages.remote.remove(page);
                }
            }
            self.core.claims.release(page);
            self.core.discarded.store(true, Ordering::Release);
            self.requests[at].started_bytes = (page + 1) * PAGE - self.requests[at].offset;
        }
        true
    }

    /// Ends the request when its last page operation has ended.
    fn finish_if_over(&mut self, at: usize) {
        let slot = &mut self.requests[at];
        if !slot.is_over() {
            return;
        }
        if slot.owned.is_some() && slot.timed.is_some() {
            self.note_time(at);
        }
        let slot = &mut self.requests[at];
        if slot.result.is_err() {
            self.core
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
            self.done.push_back(done);
            self.free_requests
                .push(u16::try_from(at).expect("REQUESTS_MAX fits"));
        }
    }
}

impl Worker {
    /// Ends without waiting for what is on its way, as the end of its process would: writes may
    /// have reached some members and not others. For tests of what survives that.
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }

    /// Without endpoints nothing can land any more; only then may buffers go.
    fn drop_endpoints(&mut self) {
        if let Ok(empty) = Lanes::new(0) {
            self.lanes = empty;
            if !self.is_abandoned {
                self.fail_writes();
            }
            self.unclaim_all();
            self.forget_disk();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_abandoned {
            return self.drop_endpoints();
        }
        // A write cut off in the middle would leave a stripe that agrees with neither the old
        // page nor the new: what is on its way ends first, what waits does not begin.
        self.starting.clear();
        self.retain_settling();
        let deadline = (self.core.clock)().after(FAILURE_TIMEOUT * 2);
        while (self.working > 0 || self.at_disk > 0) && (self.core.clock)() < deadline {
            self.turn(Duration::from_millis(1));
            self.retain_settling();
        }
        self.drop_endpoints();
    }
}

/// Part of a request inside one page.
#[derive(Clone, Copy)]
struct Chunk {
    page: u64,
    // First byte inside the page.
    start: usize,
    len_bytes: usize,
    // Where the chunk's bytes are in the request's buffer.
    buffer_offset: usize,
}

impl Slot {
    fn free() -> Self {
        Self::new(Kind::Read, std::ptr::null_mut(), 0, 0)
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
            timed: None,
            result: Ok(()),
        }
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
