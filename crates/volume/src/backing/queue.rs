//! One disk queue: a thread, or a step at a time, that takes jobs in order and moves pages.
//!
//! Neighbouring pages that are ready together go in one transfer: a swap area is written in runs.
//! Concurrency: everything here belongs to one thread; what it shares is the [`Lane`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cenote_pool::planted::{Planted, is_planted};

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
    /// Writes that may go: page and entry.
    ready: Vec<(u64, u32)>,
    /// Where the last run of them ended.
    arm: u64,
    /// Reads that may go, oldest last.
    reads: Vec<Job>,
    ended: Vec<(u32, io::Result<()>)>,
}

/// A transfer under way.
struct Flight {
    vectors: [libc::iovec; RUN_MAX],
    /// Of a write: its pages are a run.
    first: u64,
    count: u32,
    /// Of a read.
    job: Option<Job>,
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
        };
        Self {
            order: Order::new(entries),
            flights: (0..FLIGHTS_MAX).map(|_| empty()).collect(),
            free: (0..FLIGHTS_MAX as u32).rev().collect(),
            ready: Vec::with_capacity(entries),
            arm: 0,
            reads: Vec::with_capacity(reads),
            ended: Vec::with_capacity(FLIGHTS_MAX),
            store,
            lane,
            device,
        }
    }

    /// Runs until the store is closed and everything put in the lane is on the disk.
    pub fn run(mut self) {
        /// Pause after the kernel refused to be asked.
        const PAUSE: Duration = Duration::from_millis(10);
        while !(self.store.is_closed() && self.is_idle()) {
            if let Err(error) = self.turn(true) {
                tracing::error!(%error, "ask the backing store's disk");
                std::thread::sleep(PAUSE);
            }
        }
        self.store.end_lane(self.lane);
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
        self.device.wait(lane.bell.fd(), waits, &mut self.ended)?;
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
                    if self.order.write(job.page, job.entry) {
                        self.ready.push((job.page, job.entry));
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
                    None => self.reads.insert(0, job),
                },
            }
        }
    }

    fn newest(&self, page: u64) -> Option<u32> {
        let newest = self.order.newest(page);
        newest.filter(|_| !is_planted(Planted::DiskOvertakes))
    }

    /// Starts what may go while there is room: reads, which somebody waits for, first.
    fn launch(&mut self) {
        // Some are left to writes, or readers could hold them up for good.
        while self.free.len() > FLIGHTS_MAX / 4 {
            let Some(job) = self.reads.pop() else { break };
            let token = self.free.pop().expect("more than a few");
            let buffer = self.store.lanes[self.lane].reads.buffer(job.entry);
            self.load(token, 0, buffer);
            let flight = &mut self.flights[token as usize];
            (flight.first, flight.count, flight.job) = (job.page, 1, Some(job));
            self.start(token, false);
        }
        if self.free.is_empty() || self.ready.is_empty() {
            return;
        }
        self.ready.sort_unstable();
        while !self.ready.is_empty()
            && let Some(token) = self.free.pop()
        {
            // Onwards from the last run and around, so that every page has its turn.
            let at = self.ready.partition_point(|&(page, _)| page < self.arm);
            let at = if at == self.ready.len() { 0 } else { at };
            let first = self.ready[at].0;
            let run = self.ready[at..].iter().zip(first..).take(RUN_MAX);
            let count = run.take_while(|((page, _), next)| page == next).count();
            for slot in 0..count {
                let entry = self.ready[at + slot].1;
                let buffer = self.store.lanes[self.lane].writes.buffer(entry);
                self.load(token, slot, buffer);
            }
            self.ready.drain(at..at + count);
            self.arm = first + count as u64;
            let flight = &mut self.flights[token as usize];
            (flight.first, flight.job) = (first, None);
            flight.count = u32::try_from(count).expect("at most RUN_MAX");
            self.start(token, true);
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
        } else {
            store.pages.stale.insert(page);
        }
        let next = self
            .order
            .end(page, |entry| store.end_write(self.lane, entry, is_ok));
        if let Some(entry) = next {
            self.ready.push((page, entry));
        }
    }
}
