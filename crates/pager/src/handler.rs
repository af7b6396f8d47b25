//! A thread that answers the faults of a region's shard.
//!
//! It reads faults, moves the volume's worker on, and does what [`Pages`] says. Nothing else knows
//! the shard's pages; what handlers share is the [`Rooms`], which none holds across a system call.
//! While faults come it polls; then it sleeps until a fault, a completion or a command wakes it. It
//! never touches a page that is not resident, so it never waits for itself. If it panics the process
//! ends: threads that wait in faults would do so for ever.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cenote_volume::{Done, Op, PAGE_BYTES, Request, Waker, Worker};

use crate::memory::{Fault, Shard};
use crate::pages::{Action, Arrival, BATCH_MAX, Pages, WrittenAs};
use crate::region::{RegionError, RegionStatus};
use crate::reports::Failures;
use crate::rooms::{Held, Next, Rooms};

/// How long the handler polls after the last thing that happened. Arbitrary: longer than a fault
/// takes to come back from a program that walks, short beside a time slice.
const SPIN: Duration = Duration::from_micros(50);

/// The same of several: long beside a turn, short beside a wake-up.
const SPIN_OF_SEVERAL: Duration = Duration::from_micros(5);

/// How often a handler says what it has, while it is at work. Arbitrary: long beside a walk through
/// a stripe, so that room does not follow it; short for people.
pub(crate) const SETTLE_PERIOD: Duration = Duration::from_millis(50);

/// Buffers that are kept for the next reads and writes.
const BUFFERS_MAX: usize = 256;

/// What a region asks its handler.
pub(crate) enum Command {
    /// Make pages of the shard zeros, then answer.
    Discard(std::ops::Range<u32>, SyncSender<()>),
    /// The bound has changed.
    Settle,
    /// Tell what happened.
    Status(SyncSender<RegionStatus>),
}

/// What the handlers of a region share.
pub(crate) struct Peers {
    pub rooms: Mutex<Rooms>,
    /// One for each.
    pub bells: Vec<Waker>,
}

impl Peers {
    /// A bell for each handler.
    pub fn bells(count: usize) -> Result<Vec<Waker>, RegionError> {
        let bells = (0..count).map(|_| Waker::new());
        bells
            .collect::<Result<_, _>>()
            .map_err(|error| RegionError::Os {
                what: "wake a fault handler",
                source: std::io::Error::other(error),
            })
    }

    pub fn rooms(&self) -> MutexGuard<'_, Rooms> {
        let rooms = self.rooms.lock();
        rooms.expect("a handler that panics ends the process")
    }

    /// How long a handler polls after the last thing that happened. One that is alone keeps its core
    /// for the program's next fault. Several are soon asleep: the cores are the program's, and two
    /// that kept both had 0.7 of the touches. To yield instead did as well on a machine with nothing
    /// else to do; beside others, who then run for milliseconds, a fault waited for them.
    pub fn spin(&self) -> Duration {
        match self.bells.len() {
            1 => SPIN,
            _ => SPIN_OF_SEVERAL,
        }
    }

    /// A handler says what it has of its shard, and is told its room. If others have what it is
    /// to get, they are woken.
    pub fn settle(&self, index: usize, held: Held) -> (u32, Next) {
        let room = self.rooms().settle(index, held);
        if room.next == Next::Others {
            let others = self.bells.iter().enumerate().filter(|(at, _)| *at != index);
            others.for_each(|(_, bell)| bell.wake());
        }
        (room.pages, room.next)
    }
}

/// The handler of one shard.
pub(crate) struct Handler {
    memory: Shard,
    pages: Pages,
    worker: Worker,
    /// Where the region begins in the volume.
    offset: u64,
    commands: Receiver<Command>,
    peers: Arc<Peers>,
    /// Its place among them.
    index: usize,
    /// When it settles again.
    settle_at: Duration,
    /// What has to follow its last settlement.
    next: Next,
    demand: Demand,
    faults: Vec<Fault>,
    done: Vec<Done>,
    buffers: Vec<Vec<u8>>,
    /// Pages that are gone by the books. They go before another is installed, or the turn is over.
    gone: Vec<u32>,
    /// Requests that the worker had no room for.
    queued: VecDeque<Request>,
    /// Discards whose pages were not quiet.
    discards: VecDeque<(std::ops::Range<u32>, SyncSender<()>)>,
    failures: Failures,
    started: Instant,
    /// When the last turn looked for what is due. What falls due after that is so when it sleeps.
    looked_at: Duration,
}

/// Whether threads waited for a shard's pages of late.
#[derive(Default)]
pub(crate) struct Demand {
    faults: u64,
    pub is_idle: bool,
}

impl Demand {
    /// So many faults happened so far, and some thread waits still. To be noted once a period.
    pub fn note(&mut self, faults: u64, is_awaited: bool) {
        self.is_idle = faults == self.faults && !is_awaited;
        self.faults = faults;
    }
}

/// What a request is for; in its tag above the page.
#[derive(Clone, Copy)]
enum Purpose {
    Read,
    Write,
    EraseWrite,
    Erase,
}

/// Ends the process when the handler does not end as it should.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Handler {
    pub fn new(
        (memory, index): (Shard, usize),
        pages: Pages,
        worker: Worker,
        offset: u64,
        commands: Receiver<Command>,
        peers: Arc<Peers>,
    ) -> Self {
        Self {
            memory,
            pages,
            worker,
            offset,
            commands,
            peers,
            index,
            settle_at: Duration::ZERO,
            next: Next::Nothing,
            demand: Demand::default(),
            faults: Vec::new(),
            done: Vec::new(),
            buffers: Vec::new(),
            gone: Vec::new(),
            queued: VecDeque::new(),
            discards: VecDeque::new(),
            failures: Failures::default(),
            started: Instant::now(),
            looked_at: Duration::ZERO,
        }
    }

    /// Answers faults until the region is gone.
    pub fn run(mut self) {
        let _guard = AbortOnPanic;
        let mut busy_until = Instant::now();
        loop {
            match self.turn() {
                None => return,
                Some(true) => busy_until = Instant::now() + self.peers.spin(),
                Some(false) if Instant::now() < busy_until => std::hint::spin_loop(),
                Some(false) => self.sleep(),
            }
        }
    }

    /// Whether anything happened; `None` when the region is gone.
    fn turn(&mut self) -> Option<bool> {
        let mut is_busy = self.obey()?;
        is_busy |= self.take_faults();
        is_busy |= self.take_ends();
        self.retry_discards();
        if self.now() >= self.settle_at {
            self.settle();
        }
        self.drop_gone();
        Some(is_busy)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn settle(&mut self) {
        let now = self.now();
        if now >= self.settle_at {
            self.settle_at = now + SETTLE_PERIOD;
            let faults = self.pages.counters().faults;
            self.demand.note(faults, self.pages.is_awaited());
        }
        let held = Held {
            resident: self.pages.resident(),
            leaving: 0,
            is_idle: self.demand.is_idle,
        };
        let (room, next) = self.peers.settle(self.index, held);
        self.next = next;
        if room != self.pages.room() {
            self.pages.set_room(room, now);
            self.act();
        }
    }

    fn obey(&mut self) -> Option<bool> {
        let mut is_busy = false;
        loop {
            match self.commands.try_recv() {
                Ok(Command::Discard(range, answer)) => self.discards.push_back((range, answer)),
                Ok(Command::Settle) => self.settle(),
                Ok(Command::Status(answer)) => {
                    // What is told is gone is gone.
                    self.drop_gone();
                    let status = RegionStatus {
                        resident_bytes: u64::from(self.pages.resident()) * PAGE_BYTES as u64,
                        room_bytes: u64::from(self.pages.room()) * PAGE_BYTES as u64,
                        counters: self.pages.counters(),
                    };
                    // Whoever asked may have gone.
                    answer.send(status).ok();
                }
                Err(TryRecvError::Empty) => return Some(is_busy),
                Err(TryRecvError::Disconnected) => return None,
            }
            is_busy = true;
        }
    }

    fn take_faults(&mut self) -> bool {
        let mut faults = std::mem::take(&mut self.faults);
        loop {
            let more = self.memory.faults(&mut faults);
            if !more.expect("the region's descriptor is open") {
                break;
            }
        }
        let is_busy = !faults.is_empty();
        let now = self.now();
        for fault in faults.drain(..) {
            self.pages.fault(fault.page, fault.to_write, now);
            self.act();
        }
        self.faults = faults;
        is_busy
    }

    fn take_ends(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.worker.poll(&mut done);
        let is_busy = !done.is_empty();
        for end in done.drain(..) {
            self.end(end);
        }
        self.done = done;
        while let Some(request) = self.queued.pop_front() {
            if let Err(back) = self.worker.submit(request) {
                self.queued.push_front(back);
                break;
            }
        }
        self.looked_at = self.now();
        self.pages.look(self.looked_at);
        self.pages.retry_lost(self.looked_at);
        self.act();
        is_busy
    }

    fn end(&mut self, end: Done) {
        let (page, purpose) = untag(end.tag);
        let (now, is_ok) = (self.now(), end.result.is_ok());
        if let Err(error) = &end.result {
            let what = "pages of a region cannot be moved";
            self.failures.note(now, what, error);
        }
        if matches!(purpose, Purpose::Write) {
            self.failures.note_write(now, is_ok);
        }
        let written = |how| is_ok.then_some(how);
        match purpose {
            Purpose::Read => match self.pages.read_done(page, is_ok, now) {
                Arrival::Install { protected } => {
                    let Op::Read(bytes) = &end.op else {
                        unreachable!("a read ends as one");
                    };
                    self.drop_gone();
                    let installed = self.memory.install(page, bytes, protected);
                    installed.expect("a page that was fetched has a place");
                }
                Arrival::Ignore => {}
                Arrival::Poison => {
                    self.drop_gone();
                    let poisoned = self.memory.poison(page);
                    poisoned.expect("a page that was to be fetched can be poisoned");
                    self.wake(page);
                }
            },
            Purpose::Write => self.pages.write_done(page, written(WrittenAs::Bytes), now),
            Purpose::EraseWrite => self.pages.write_done(page, written(WrittenAs::Erased), now),
            Purpose::Erase => self.pages.erase_done(page, now),
        }
        if let Op::Read(buffer) | Op::Write(buffer) = end.op
            && self.buffers.len() < BUFFERS_MAX
        {
            self.buffers.push(buffer);
        }
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.pages.next_action() {
            let done = match action {
                Action::Zero(page) => {
                    self.drop_gone();
                    match self.pages.zero_done(page, self.now()) {
                        Arrival::Install { .. } => self.memory.zero(page),
                        Arrival::Ignore | Arrival::Poison => Ok(()),
                    }
                }
                Action::Protect(page) => self.memory.protect(page, true),
                Action::Unprotect(page) => self.memory.protect(page, false),
                Action::Drop(page) | Action::Unpoison(page) => {
                    self.gone.push(page);
                    if self.gone.len() >= BATCH_MAX as usize {
                        self.drop_gone();
                    }
                    Ok(())
                }
                Action::Wake(page) => self.memory.wake(page),
                Action::Read(page) => {
                    let buffer = self.buffer();
                    self.submit(page, Purpose::Read, Op::Read(buffer));
                    Ok(())
                }
                Action::Write(page) => {
                    self.write(page);
                    Ok(())
                }
                Action::Erase(page) => {
                    let len_bytes = PAGE_BYTES as u64;
                    self.submit(page, Purpose::Erase, Op::Discard { len_bytes });
                    Ok(())
                }
            };
            // These fail for a range that is not this region's alone.
            done.unwrap_or_else(|error| panic!("{action:?}: {error}"));
        }
    }

    /// Takes pages out of the memory that are gone by the books.
    fn drop_gone(&mut self) {
        let dropped = self.memory.drop_pages(&self.gone);
        dropped.expect("pages that are this region's alone can be dropped");
        self.gone.clear();
    }

    fn write(&mut self, page: u32) {
        let mut buffer = self.buffer();
        self.memory.copy_out(page, &mut buffer);
        let is_zeros = buffer.iter().all(|byte| *byte == 0);
        match self.pages.written_as(page, is_zeros) {
            WrittenAs::Bytes => return self.submit(page, Purpose::Write, Op::Write(buffer)),
            WrittenAs::Erased => {
                let len_bytes = PAGE_BYTES as u64;
                self.submit(page, Purpose::EraseWrite, Op::Discard { len_bytes });
            }
            how @ WrittenAs::Nothing => {
                let now = self.now();
                self.pages.write_done(page, Some(how), now);
            }
        }
        self.buffers.push(buffer);
    }

    fn wake(&self, page: u32) {
        self.memory
            .wake(page)
            .expect("the region's descriptor is open");
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_else(|| vec![0; PAGE_BYTES])
    }

    fn submit(&mut self, page: u32, purpose: Purpose, op: Op) {
        let request = Request {
            tag: tag(page, purpose),
            offset: self.offset + self.memory.page(page) * PAGE_BYTES as u64,
            op,
        };
        if !self.queued.is_empty() {
            self.queued.push_back(request);
        } else if let Err(back) = self.worker.submit(request) {
            self.queued.push_back(back);
        }
    }

    /// Goes on with discards, in order, up to a page that is not quiet.
    fn retry_discards(&mut self) {
        let now = self.now();
        while let Some((mut range, answer)) = self.discards.pop_front() {
            while let Some(page) = range.next() {
                let is_done = self.pages.discard(page, now);
                self.act();
                if !is_done {
                    range.start = page;
                    self.discards.push_front((range, answer));
                    return;
                }
            }
            self.drop_gone();
            // Whoever asked may have gone.
            answer.send(()).ok();
        }
    }

    /// Sleeps until something happens.
    fn sleep(&self) {
        let wait = |fd: RawFd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let bell = &self.peers.bells[self.index];
        let mut fds = [self.memory.fd(), self.worker.fd(), bell.as_fd().as_raw_fd()].map(wait);
        let settles = (self.next == Next::Again).then_some(SETTLE_PERIOD);
        let deadlines = [
            self.worker.deadline(),
            self.pages.deadline(self.looked_at),
            settles,
        ];
        let deadline = deadlines.into_iter().flatten().min();
        // Rounded up, so that a deadline below a millisecond does not spin.
        let timeout_ms = deadline.map_or(-1, |left| {
            left.as_nanos().div_ceil(1_000_000).min(1 << 30) as libc::c_int
        });
        // SAFETY: `fds` is a live array of its length.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        if fds[2].revents != 0 {
            bell.clear();
        }
    }
}

fn tag(page: u32, purpose: Purpose) -> u64 {
    (purpose as u64) << 32 | u64::from(page)
}

fn untag(tag: u64) -> (u32, Purpose) {
    const PURPOSES: [Purpose; 4] = [
        Purpose::Read,
        Purpose::Write,
        Purpose::EraseWrite,
        Purpose::Erase,
    ];
    (tag as u32, PURPOSES[(tag >> 32) as usize])
}
