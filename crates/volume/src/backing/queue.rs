//! One disk queue: a thread, or a step at a time, that takes jobs in order and moves pages.
//!
//! Neighbouring pages that are ready together go in one transfer: a swap area is written in runs.
//! Concurrency: everything here belongs to one thread; what it shares is its lane of the store.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::device::{Device, FLIGHTS_MAX, RUN_MAX, Transfer};
use super::order::Order;
use super::{Job, Kind, Store};
use crate::PAGE_BYTES;

/// The consumer of one lane.
pub struct DiskQueue {
    store: Arc<Store>,
    lane: usize,
    device: Box<dyn Device>,
    order: Order,
    flights: Box<[Flight]>,
    free: Vec<u32>,
    /// Writes that may go, page and entry: those that somebody waits for, ...
    urgent: VecDeque<(u64, u32)>,
    /// ... those whose turn it is, the last page first, ...
    batch: Vec<(u64, u32)>,
    /// ... and those that come after them.
    ready: Vec<(u64, u32)>,
    /// Entries of the run that is being started.
    run: [u32; RUN_MAX],
    /// Reads that may go.
    reads: VecDeque<Job>,
    /// By kind and entry: how often the disk has failed a page so that it may take it the next time.
    failures: [Box<[u8]>; 2],
    /// Whether something failed so in this turn: it goes again.
    tries_again: bool,
    /// Flights under way: reads, writes, and those of the writes that nobody waits for.
    reading: usize,
    writing: usize,
    trailing: usize,
    ended: Vec<(u32, io::Result<()>)>,
}

/// Most flights that are reads, and most that are writes.
const SHARE_MAX: usize = FLIGHTS_MAX * 3 / 4;

/// Times that a page is offered again to a disk that may take it the next time.
const FAILURES_MAX: u8 = 8;

/// Neighbouring pages that go in one transfer.
struct Run {
    first: u64,
    count: usize,
    /// Whether nobody waits for them.
    trails: bool,
}

/// A transfer under way.
struct Flight {
    vectors: [libc::iovec; RUN_MAX],
    /// Of a write: its pages are a run.
    first: u64,
    count: u32,
    /// Of a read.
    job: Option<Job>,
    /// Of a write that nobody waits for.
    trails: bool,
}

// SAFETY: the vectors point into the store's entries, which it keeps alive; nothing is tied to a thread.
unsafe impl Send for DiskQueue {}

impl DiskQueue {
    pub fn new(store: Arc<Store>, lane: usize, device: Box<dyn Device>) -> Self {
        let entries = store.lanes[lane].writes.count();
        let reads = store.lanes[lane].reads.count();
        let empty = || Flight {
            vectors: [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: PAGE_BYTES,
            }; RUN_MAX],
            first: 0,
            count: 0,
            job: None,
            trails: false,
        };
        Self {
            order: Order::new(entries),
            flights: (0..FLIGHTS_MAX).map(|_| empty()).collect(),
            free: (0..FLIGHTS_MAX as u32).rev().collect(),
            urgent: VecDeque::with_capacity(entries),
            batch: Vec::with_capacity(entries),
            ready: Vec::with_capacity(entries),
            run: [0; RUN_MAX],
            reads: VecDeque::with_capacity(reads),
            failures: [reads, entries].map(|count| vec![0; count].into()),
            tries_again: false,
            reading: 0,
            writing: 0,
            trailing: 0,
            ended: Vec::with_capacity(FLIGHTS_MAX),
            store,
            lane,
            device,
        }
    }

    /// Runs until the store is closed and everything put in the lane is on the disk.
    pub fn run(mut self) {
        /// Pause after the kernel refused to be asked, or the disk something that it may not refuse again.
        const PAUSE: Duration = Duration::from_millis(10);
        while !(self.store.is_closed() && self.is_idle()) {
            if let Err(error) = self.turn(true) {
                tracing::error!(%error, "ask the backing store's disk");
                std::thread::sleep(PAUSE);
            }
            if std::mem::take(&mut self.tries_again) {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn is_idle(&self) -> bool {
        let lane = &self.store.lanes[self.lane];
        lane.jobs.is_empty() && self.order.is_empty() && self.free.len() == FLIGHTS_MAX
    }

    /// Takes in what was asked, starts what may go, and hears what ended; waits for something to do
    /// if there is nothing and it may.
    ///
    /// # Errors
    /// Those of [`Device::wait`].
    pub fn turn(&mut self, may_block: bool) -> io::Result<()> {
        if may_block && self.free.len() == FLIGHTS_MAX {
            self.store.lanes[self.lane].gather();
        }
        self.take_jobs();
        self.launch();
        let lane = &self.store.lanes[self.lane];
        if self.free.len() < FLIGHTS_MAX {
            lane.hush();
        }
        let waits = may_block && !(self.store.is_closed() && self.is_idle());
        self.device
            .wait(lane.bell.as_fd().as_raw_fd(), waits, &mut self.ended)?;
        while let Some((token, result)) = self.ended.pop() {
            self.land(token, result);
        }
        Ok(())
    }

    fn take_jobs(&mut self) {
        let store = Arc::clone(&self.store);
        let lane = &store.lanes[self.lane];
        lane.hear();
        while let Some(job) = lane.jobs.pop() {
            match job.kind {
                Kind::Write => {
                    store.pages.queued.insert(job.page);
                    if self.order.write(job.page, job.entry) {
                        self.make_ready(job.page, job.entry);
                    }
                }
                Kind::Read => match self.newest(job.page) {
                    Some(entry) => {
                        let (from, to) = (lane.writes.buffer(entry), lane.reads.buffer(job.entry));
                        // SAFETY: both are whole pages of their own; a queued write's bytes do not
                        // change, and the read's entry is this queue's until it is told.
                        unsafe { to.copy_from_nonoverlapping(from, PAGE_BYTES) };
                        store.end_read(self.lane, &job, true);
                    }
                    None if store.pages.stale.contains(job.page) => {
                        store.end_read(self.lane, &job, false)
                    }
                    None => self.reads.push_back(job),
                },
            }
            // After its page counts as queued.
            lane.taken.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn newest(&self, page: u64) -> Option<u32> {
        let newest = self.order.newest(page);
        newest.filter(|_| !is_injected(InjectedFault::DiskOvertakes))
    }

    /// Starts what may go while there is room. Some flights are left to reads and some to writes,
    /// so that neither holds up the other.
    fn launch(&mut self) {
        while self.reading < SHARE_MAX
            && !self.free.is_empty()
            && let Some(job) = self.reads.pop_front()
        {
            let token = self.free.pop().expect("just looked");
            self.reading += 1;
            let buffer = self.store.lanes[self.lane].reads.buffer(job.entry);
            self.load(token, 0, buffer);
            let flight = &mut self.flights[token as usize];
            (flight.first, flight.count, flight.job) = (job.page, 1, Some(job));
            self.start(token, false);
        }
        if self.store.lanes[self.lane]
            .hurries
            .swap(false, Ordering::SeqCst)
        {
            self.prefer_awaited();
        }
        // What nobody waits for goes many at a time: starting them costs as much as one. Unless the
        // disk is what writers are about to wait for.
        let writes = &self.store.lanes[self.lane].writes;
        let takes_all = self.trailing == 0 || writes.used() * 2 > writes.count();
        while self.writing < SHARE_MAX
            && !self.free.is_empty()
            && let Some(Run {
                first,
                count,
                trails,
            }) = self.next_run(takes_all)
        {
            let token = self.free.pop().expect("just looked");
            self.writing += 1;
            for slot in 0..count {
                let entry = self.run[slot];
                let buffer = self.store.lanes[self.lane].writes.buffer(entry);
                self.load(token, slot, buffer);
            }
            let flight = &mut self.flights[token as usize];
            (flight.first, flight.job, flight.trails) = (first, None, trails);
            self.trailing += usize::from(trails);
            flight.count = u32::try_from(count).expect("at most RUN_MAX");
            self.start(token, true);
        }
    }

    /// Puts the entries of the next neighbouring pages in `run`. What somebody waits for comes first. The rest goes batch by batch, each in the order of its pages;
    /// who comes later is in the next, so every page has its turn.
    fn next_run(&mut self, takes_all: bool) -> Option<Run> {
        if let Some((page, entry)) = self.urgent.pop_front() {
            self.run[0] = entry;
            return Some(Run {
                first: page,
                count: 1,
                trails: false,
            });
        }
        if !takes_all {
            return None;
        }
        if self.batch.is_empty() {
            std::mem::swap(&mut self.batch, &mut self.ready);
            // Descending, so that runs are taken off the end.
            self.batch.sort_unstable_by(|a, b| b.cmp(a));
        }
        let &(first, _) = self.batch.last()?;
        let mut count = 0;
        while let Some(&(page, entry)) = self.batch.last()
            && page == first + count as u64
            && count < RUN_MAX
        {
            self.batch.pop();
            self.run[count] = entry;
            count += 1;
        }
        Some(Run {
            first,
            count,
            trails: true,
        })
    }

    /// A write may go now.
    fn make_ready(&mut self, page: u64, entry: u32) {
        let writes = &self.store.lanes[self.lane].writes;
        if writes.is_awaited(entry) {
            self.urgent.push_back((page, entry));
        } else {
            self.ready.push((page, entry));
        }
    }

    /// Somebody waits for a write that nobody waited for when it came.
    fn prefer_awaited(&mut self) {
        let writes = &self.store.lanes[self.lane].writes;
        for waiting in [&mut self.batch, &mut self.ready] {
            waiting.retain(|&(page, entry)| {
                let is_awaited = writes.is_awaited(entry);
                if is_awaited {
                    self.urgent.push_back((page, entry));
                }
                !is_awaited
            });
        }
    }

    fn load(&mut self, token: u32, at: usize, buffer: *mut u8) {
        self.flights[token as usize].vectors[at].iov_base = buffer.cast();
    }

    fn start(&mut self, token: u32, is_write: bool) {
        let flight = &self.flights[token as usize];
        let transfer = Transfer {
            token,
            is_write,
            offset: flight.first * PAGE_BYTES as u64,
            vectors: flight.vectors.as_ptr(),
            count: flight.count,
        };
        // SAFETY: the vectors are in a box that this queue never replaces, and the flight is not
        // reused before its end; each buffer is an entry that stays in use until then.
        unsafe { self.device.start(transfer) };
    }

    /// A transfer has ended.
    fn land(&mut self, token: u32, result: io::Result<()>) {
        self.free.push(token);
        let flight = &mut self.flights[token as usize];
        let (first, count, job) = (flight.first, u64::from(flight.count), flight.job.take());
        let is_ok = result.is_ok();
        if job.is_some() {
            self.reading -= 1;
        } else {
            self.writing -= 1;
            self.trailing -= usize::from(std::mem::take(&mut flight.trails));
        }
        if !is_ok && count > 1 {
            // One page of the run may be all that is wrong: each is tried by itself.
            let pages = first..first + count;
            self.urgent
                .extend(pages.map(|page| (page, self.order.flying(page))));
            return;
        }
        let (kind, entry) = match job {
            Some(job) => (Kind::Read, job.entry),
            None => (Kind::Write, self.order.flying(first)),
        };
        let failures = &mut self.failures[kind as usize][entry as usize];
        let may_pass = matches!(&result, Err(error) if may_pass(error));
        if count == 1 && may_pass && *failures < FAILURES_MAX {
            *failures += 1;
            self.tries_again = true;
            match job {
                Some(job) => self.reads.push_back(job),
                None => self.urgent.push_back((first, entry)),
            }
            return;
        }
        *failures = 0;
        if let Err(error) = result {
            let (what, page) = (if job.is_some() { "read" } else { "write" }, first);
            tracing::error!(%error, what, page, count, "the backing store's disk failed");
        }
        let store = Arc::clone(&self.store);
        store.count_transfer(job.is_some(), count, is_ok);
        match job {
            Some(job) => store.end_read(self.lane, &job, is_ok),
            None => (first..first + count).for_each(|page| self.end_write(&store, page, is_ok)),
        }
    }

    fn end_write(&mut self, store: &Store, page: u64, is_ok: bool) {
        // Before anybody is told. Only this queue changes the bit of this page.
        if is_ok {
            store.pages.stale.remove(page);
        } else if !is_injected(InjectedFault::ForgetRefusal) {
            store.pages.stale.insert(page);
        }
        let next = self
            .order
            .end(page, |entry| store.end_write(self.lane, entry, is_ok));
        match next {
            Some(entry) => self.make_ready(page, entry),
            // After what became of it is known.
            None => {
                store.pages.queued.remove(page);
            }
        }
    }
}

/// Whether the same transfer may succeed the next time: the system was short of something, or moved part of it.
fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, OutOfMemory, UnexpectedEof, WouldBlock};
    matches!(
        error.kind(),
        Interrupted | OutOfMemory | UnexpectedEof | WouldBlock
    )
}

impl Drop for DiskQueue {
    /// Nobody waits for a queue that is gone, however it went.
    fn drop(&mut self) {
        self.store.end_lane(self.lane);
    }
}
