//! The backing store: a file or block device that holds every page of a volume, a little late.
//!
//! Slabs are then a cache of it that may vanish: a page that hosts acknowledged is on its way to
//! the disk too, and what no slab holds is read from there. Extents are mapped where pages are
//! busy (`control::activity`), not on their first write.
//!
//! ```text
//!            worker                     lane of the page                   disk queue
//! write ---> entry, its buffer ---+---> jobs, in order  -------------->    newest per page, runs
//!                                 +---> hosts: acknowledged, bit set       ended: entry free
//! read  ---> bit clear  --------------> jobs, in order  -------------->    served or read: told
//! ```
//!
//! A bit stays set while the page's slab is away and will be back: it says what that slab has.
//!
//! Invariants: I1 (`entries`); I2, a page's bit is set only while hosts hold its newest
//! acknowledged bytes (`worker::page::disk`, `control::slab_drop`); I5, a page goes
//! through one lane, however it is cut, in the order of its claims, and reads among them (`order`).
//! What the disk refused is marked **stale** and is an error once no slab holds it, never old bytes.
//! Paper: \[infiniswap17\] 4.1, 4.3.

mod device;
mod entries;
mod open;
mod order;
mod queue;

pub use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use cenote_fabric::Waker;
use crossbeam_queue::ArrayQueue;

use crate::PAGE_BYTES;
use crate::limits::{OPS_MAX, WORKERS_MAX};
use crate::marks::{Bitmap, PageBits};
pub use device::{Device, FLIGHTS_MAX, Transfer};
pub use entries::{DiskPart, Entries, Route};
pub use open::{Backing, BackingError, backing_works};
pub use queue::DiskQueue;

/// What workers, the control thread and the disk queues share.
pub struct Store {
    pub lanes: Box<[DiskLane]>,
    /// Pages in a row that go through one lane: those of a slab of whole pages.
    run_pages: u64,
    pub pages: Pages,
    inboxes: Box<[Inbox]>,
    is_closed: AtomicBool,
    /// Activity from which an extent is mapped, ...
    pub hot_slab: f64,
    /// ... and below which it is given back.
    pub cold_slab: f64,
    pub counters: Counters,
}

/// What is known of each page beside its marks.
pub struct Pages {
    /// Hosts hold the newest acknowledged bytes (I2). Changes under the page's claim, or when the
    /// extent has no slabs and nobody works in an epoch in which it had.
    pub remote: Bitmap,
    /// The disk refused the newest bytes. Changed by the page's disk queue alone.
    pub stale: Bitmap,
    /// The disk queue has a write of it that has not ended. Changed by that queue alone.
    pub queued: Bitmap,
}

/// The way to one disk queue.
pub struct DiskLane {
    pub writes: Entries,
    pub reads: Entries,
    jobs: ArrayQueue<Job>,
    /// Jobs that were put in, or are about to be, and those that were taken out: in one order.
    asked: AtomicU64,
    taken: AtomicU64,
    /// By entry of the writes: whom to tell.
    tokens: Box<[AtomicU64]>,
    bell: Waker,
    /// Whether the queue need not be woken for a job that nobody waits for, ...
    has_rung: AtomicBool,
    /// ... and for one that somebody does.
    has_rung_urgently: AtomicBool,
    /// Whether somebody waits now for a write that nobody waited for.
    hurries: AtomicBool,
    has_ended: AtomicBool,
}

/// A page to move.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub kind: Kind,
    pub page: u64,
    /// Of the lane's writes or reads.
    pub entry: u32,
    /// Of whom is told of the end of a read; a write's is with its entry.
    pub token: Token,
}

/// A worker's operation and which of its jobs: told with the job's end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Token(u64);

impl Token {
    /// Of a worker's operation. The sequence number in the middle never comes to its end.
    fn new(worker: usize, sequence: u64, op: u16) -> Self {
        debug_assert!(worker < WORKERS_MAX && usize::from(op) < OPS_MAX);
        Self((worker as u64) << 56 | sequence << 8 | u64::from(op))
    }

    /// The operation.
    pub fn op(self) -> u16 {
        u16::from(self.0 as u8)
    }

    /// Whether it was made before the token of a sequence number.
    fn is_before(self, sequence: u64) -> bool {
        (self.0 << 8 >> 16) < sequence
    }

    fn worker(self) -> usize {
        usize::try_from(self.0 >> 56).expect("8 bits")
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Read,
    Write,
}

/// The end of a job that its worker waits for.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub token: Token,
    /// Of a read, in this lane: its bytes, and the taker's to free.
    pub read: Option<(usize, u32)>,
    pub is_ok: bool,
}

/// Ends that a worker has not taken yet.
struct Inbox {
    told: ArrayQueue<Told>,
    sequence: AtomicU64,
    has_rung: AtomicBool,
    /// First of the sequence that the worker of now asked for.
    owned_from: AtomicU64,
    /// Made when the first worker of this number is.
    bell: OnceLock<Waker>,
}

const _: () = assert!(
    WORKERS_MAX <= 1 << 8 && OPS_MAX <= 1 << 8,
    "a token has 8 bits for each"
);

/// What the disk did so far; for status and metrics.
#[derive(Debug, Default)]
pub struct Counters {
    pub pages_read: AtomicU64,
    pub pages_written: AtomicU64,
    /// Pages that were read from the disk and given to hosts.
    pub pages_promoted: AtomicU64,
    pub transfers: AtomicU64,
    pub errors: AtomicU64,
}

impl Store {
    /// What stands behind a volume of so many pages, with its disk queues, which are to be run.
    ///
    /// # Errors
    /// The system has no memory or descriptors.
    pub fn new(
        page_count: u64,
        slab_bytes: u64,
        backing: Backing,
    ) -> io::Result<(Arc<Self>, Vec<DiskQueue>)> {
        let lanes = backing
            .devices
            .iter()
            .map(|_| DiskLane::new(backing.entries));
        let lanes: io::Result<Box<[DiskLane]>> = lanes.collect();
        let bits = PageBits::anonymous(page_count)?;
        let inboxes = (0..WORKERS_MAX).map(|_| Inbox {
            // An operation waits for one job at a time; as much again for what was told while one
            // worker followed another.
            told: ArrayQueue::new(OPS_MAX * 2),
            sequence: AtomicU64::new(0),
            has_rung: AtomicBool::new(false),
            owned_from: AtomicU64::new(0),
            bell: OnceLock::new(),
        });
        let store = Arc::new(Self {
            lanes: lanes?,
            run_pages: (slab_bytes / PAGE_BYTES as u64).max(1),
            pages: Pages {
                remote: bits.bitmap(0),
                stale: bits.bitmap(1),
                queued: bits.bitmap(2),
            },
            inboxes: inboxes.collect(),
            is_closed: AtomicBool::new(false),
            hot_slab: backing.hot_slab,
            cold_slab: backing.cold_slab,
            counters: Counters::default(),
        });
        let devices = backing.devices.into_iter().enumerate();
        let queues = devices.map(|(lane, device)| DiskQueue::new(Arc::clone(&store), lane, device));
        let queues = queues.collect();
        Ok((store, queues))
    }

    /// The lane that a page always goes through, however it is cut.
    pub fn lane_of(&self, page: u64) -> usize {
        let lane = page / self.run_pages % self.lanes.len() as u64;
        usize::try_from(lane).expect("below the number of lanes")
    }

    /// Whether an extent of this activity is to have slabs.
    pub fn is_hot(&self, activity: f64) -> bool {
        activity > self.hot_slab.max(self.cold_slab)
    }

    /// What becomes readable when a worker is told something.
    ///
    /// # Errors
    /// The system has no descriptors.
    pub fn bell_of(&self, worker: usize) -> io::Result<&Waker> {
        let bell = &self.inboxes[worker].bell;
        if bell.get().is_none() {
            // Nobody else makes it: a number has one worker at a time. A second one is dropped.
            drop(bell.set(Waker::new().map_err(io::Error::other)?));
        }
        Ok(bell.get().expect("just made"))
    }

    /// Whether a worker was told something since it last asked.
    pub fn has_told(&self, worker: usize) -> bool {
        self.inboxes[worker].has_rung.load(Ordering::Acquire)
    }

    /// To be called before a worker takes what it was told.
    pub fn hear(&self, worker: usize) {
        let inbox = &self.inboxes[worker];
        // In this order: what rings from here on is heard the next time.
        if let Some(bell) = inbox.bell.get() {
            bell.clear();
        }
        inbox.has_rung.store(false, Ordering::SeqCst);
        // Pairs with the exchange in `tell`: what is not found from here on rings.
        fence(Ordering::SeqCst);
    }

    /// A worker of this number begins or ends: what was asked under it so far is nobody's. Its ends
    /// are dropped, and what it read is free.
    pub fn disown(&self, worker: usize) {
        let inbox = &self.inboxes[worker];
        let sequence = inbox.sequence.load(Ordering::SeqCst);
        inbox.owned_from.store(sequence, Ordering::SeqCst);
        while let Some(told) = self.told(worker) {
            self.drop_told(&told);
        }
    }

    fn drop_told(&self, told: &Told) {
        if let Some((lane, entry)) = told.read {
            self.lanes[lane].reads.free(entry);
        }
    }

    /// The next thing that a worker was told.
    pub fn told(&self, worker: usize) -> Option<Told> {
        self.inboxes[worker].told.pop()
    }

    /// A token that no other job has.
    pub fn token(&self, worker: usize, op: u16) -> Token {
        let sequence = self.inboxes[worker]
            .sequence
            .fetch_add(1, Ordering::Relaxed);
        Token::new(worker, sequence, op)
    }

    /// Puts a job in a lane. One that nobody waits for may lie there until others end.
    pub fn ask(&self, number: usize, job: Job, is_urgent: bool) {
        let lane = &self.lanes[number];
        if job.kind == Kind::Write {
            lane.tokens[job.entry as usize].store(job.token.0, Ordering::Relaxed);
        }
        // Before it is there: who has taken as many as this says has taken this one.
        lane.asked.fetch_add(1, Ordering::SeqCst);
        if lane.jobs.push(job).is_err() {
            unreachable!("room for a job of every entry");
        }
        // Pairs with `end_lane`: either its last look finds the job, or this finds it ended.
        fence(Ordering::SeqCst);
        if lane.has_ended.load(Ordering::SeqCst) {
            return self.refuse(number);
        }
        lane.ring(is_urgent || lane.jobs.len() == DiskLane::CROWD);
    }

    /// Somebody waits for a job of the lane now.
    pub fn hurry(&self, number: usize) {
        self.lanes[number].hurries.store(true, Ordering::SeqCst);
        self.lanes[number].ring(true);
    }

    /// Has the disk queues end once everything is on the disk.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.lanes.iter().for_each(|lane| lane.bell.wake());
    }

    /// Nobody takes jobs of the lane any more.
    fn end_lane(&self, number: usize) {
        self.lanes[number].has_ended.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.refuse(number);
    }

    fn refuse(&self, number: usize) {
        while let Some(job) = self.lanes[number].jobs.pop() {
            self.lanes[number].taken.fetch_add(1, Ordering::SeqCst);
            match job.kind {
                Kind::Read => self.end_read(number, &job, false),
                Kind::Write => self.end_write(number, job.entry, false),
            }
        }
    }

    /// Jobs that were asked for so far, by lane.
    pub fn asked(&self) -> Vec<u64> {
        let lanes = 0..self.lanes.len();
        lanes.map(|lane| self.asked_of(lane)).collect()
    }

    /// Jobs that one lane was asked for so far.
    pub fn asked_of(&self, lane: usize) -> u64 {
        self.lanes[lane].asked.load(Ordering::SeqCst)
    }

    /// Whether disk queues know of so many jobs: their writes are queued, or have ended.
    pub fn has_taken(&self, asked: &[u64]) -> bool {
        let mut lanes = asked.iter().enumerate();
        lanes.all(|(lane, &asked)| self.has_taken_of(lane, asked))
    }

    /// Whether the queue of a lane knows of so many.
    pub fn has_taken_of(&self, lane: usize, asked: u64) -> bool {
        self.lanes[lane].taken.load(Ordering::SeqCst) >= asked
    }

    /// Writes that are not on the disk yet.
    pub fn pending(&self) -> usize {
        self.lanes.iter().map(|lane| lane.writes.used()).sum()
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// A read has ended.
    fn end_read(&self, lane: usize, job: &Job, is_ok: bool) {
        let (token, read) = (job.token, Some((lane, job.entry)));
        self.tell(Told { token, read, is_ok });
    }

    /// A write has ended.
    fn end_write(&self, lane: usize, entry: u32, is_ok: bool) {
        // Once it ended the entry is another's.
        let token = self.lanes[lane].tokens[entry as usize].load(Ordering::Relaxed);
        if self.lanes[lane].writes.end_disk(entry, is_ok) {
            let (token, read) = (Token(token), None);
            self.tell(Told { token, read, is_ok });
        }
    }

    fn tell(&self, told: Told) {
        let inbox = &self.inboxes[told.token.worker()];
        let owned_from = inbox.owned_from.load(Ordering::SeqCst);
        if told.token.is_before(owned_from) {
            return self.drop_told(&told);
        }
        // One that a worker leaves just now is found, and dropped, by the next of its number.
        if inbox.told.push(told).is_err() {
            unreachable!("room for every operation of two workers");
        }
        if !inbox.has_rung.swap(true, Ordering::SeqCst)
            && let Some(bell) = inbox.bell.get()
        {
            bell.wake();
        }
    }

    fn count_transfer(&self, is_read: bool, pages: u64, is_ok: bool) {
        let Counters {
            pages_read,
            pages_written,
            transfers,
            errors,
            ..
        } = &self.counters;
        let moved = if is_read { pages_read } else { pages_written };
        moved.fetch_add(pages, Ordering::Relaxed);
        transfers.fetch_add(1, Ordering::Relaxed);
        errors.fetch_add(u64::from(!is_ok), Ordering::Relaxed);
    }
}

impl DiskLane {
    /// Pages that are being read at a time.
    const READS: u32 = 256;
    /// Jobs for which a queue that gathers waits no longer.
    const CROWD: usize = 128;

    fn new(entries: u32) -> io::Result<Self> {
        let reads = Entries::new(Self::READS)?;
        Ok(Self {
            writes: Entries::new(entries)?,
            // Every job has an entry: there is always room.
            jobs: ArrayQueue::new(entries as usize + reads.count()),
            asked: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            tokens: (0..entries).map(|_| AtomicU64::new(0)).collect(),
            reads,
            bell: Waker::new().map_err(io::Error::other)?,
            has_rung: AtomicBool::new(false),
            has_rung_urgently: AtomicBool::new(false),
            hurries: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    fn ring(&self, is_urgent: bool) {
        let rung = if is_urgent {
            &self.has_rung_urgently
        } else {
            &self.has_rung
        };
        // Most find it rung: a load is cheaper than an exchange.
        if !rung.load(Ordering::SeqCst) && !rung.swap(true, Ordering::SeqCst) {
            self.bell.wake();
        }
    }

    /// To be called before jobs are taken: whoever puts one in from now on rings.
    fn hear(&self) {
        // In this order, and always: what rings from here on is heard the next time.
        self.bell.clear();
        self.has_rung.store(false, Ordering::SeqCst);
        self.has_rung_urgently.store(false, Ordering::SeqCst);
        // Pairs with the fence in `ask`: a job that is not found from here on rings.
        fence(Ordering::SeqCst);
    }

    /// The end of a transfer will have the queue look: jobs that nobody waits for need not ring.
    fn hush(&self) {
        self.has_rung.store(true, Ordering::SeqCst);
    }

    /// Waits a little for more jobs that nobody waits for, if there are no others: they are fewer
    /// transfers then.
    fn gather(&self) {
        /// Long beside a request to a disk, which costs a processor as much for one page as for
        /// many; what hosts have acknowledged may take it.
        const GATHER_NS: i64 = 5_000_000;
        let has_lazy = self.has_rung.load(Ordering::SeqCst) && !self.jobs.is_empty();
        if !has_lazy || self.has_rung_urgently.load(Ordering::SeqCst) {
            return;
        }
        // Readable from the first job on: only an urgent one is to be heard.
        self.bell.clear();
        let mut fd = libc::pollfd {
            fd: self.bell.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let spec = libc::timespec {
            tv_sec: 0,
            tv_nsec: GATHER_NS,
        };
        if !self.has_rung_urgently.load(Ordering::SeqCst) {
            // SAFETY: `fd` and `spec` are valid for the call; no signal mask is given.
            unsafe { libc::ppoll(&raw mut fd, 1, &raw const spec, std::ptr::null()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_before_a_later_one_however_many_there_were() {
        let now = 1 << 33;
        let token = Token::new(WORKERS_MAX - 1, now, 255);
        assert_eq!((token.worker(), token.op()), (WORKERS_MAX - 1, 255));
        assert!(!token.is_before(0) && !token.is_before(now) && token.is_before(now + 1));
    }
}
