//! What shows a disk to the kernel: its pages, and the files whose bytes they are.
//!
//! The threads of `dev_fuse`, `fuse_rings` or `kernel_nbd` call in here, each with a worker of its
//! own. There are as many workers as threads, so one is always free.
//! Invariants: no allocation per page, since buffers are made, and touched, before the device
//! exists; a page whose read failed is remembered until it is written again.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use cenote_volume::{Done, IoError, Op, Request};

use super::area::PAGE_BYTES;
use crate::disk::{Disk, Queue};

/// The disk, and what is known of its pages. Over FUSE it is a root, the disk's file, and one file
/// per thread to warm it up with.
pub(super) struct Export {
    size_bytes: u64,
    workers: Vec<Mutex<Worker>>,
    shared: Arc<Shared>,
    /// Holds each thread until all of them have taken a warm-up request.
    pub(super) warm: Barrier,
}

/// What the export and its device both see.
pub(super) struct Shared {
    pub(super) counters: Counters,
    /// The queue's merge switch, open before it is needed; see [`Export::note_unreadable`].
    pub(super) merge_switch: OnceLock<File>,
}

/// What a swap device did so far; written by its threads, read by anyone.
pub struct Counters {
    /// Requests to read, of one or more pages.
    pub reads: AtomicU64,
    /// Requests to write, of one or more pages.
    pub writes: AtomicU64,
    /// Requests to discard.
    pub discards: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Bytes written.
    pub written_bytes: AtomicU64,
    /// Requests of any kind that failed.
    pub errors: AtomicU64,
    unreadable_count: AtomicU64,
    /// A bit per page of the device: its last read failed and it was not written since.
    unreadable: Box<[AtomicU64]>,
}

impl Counters {
    fn new(size_bytes: u64) -> Self {
        let word_count = size_bytes.div_ceil(PAGE_BYTES as u64).div_ceil(64);
        Self {
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            unreadable_count: AtomicU64::new(0),
            unreadable: (0..word_count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Pages whose last read failed and that were not written since.
    #[must_use]
    pub fn unreadable_pages(&self) -> u64 {
        self.unreadable_count.load(Ordering::Relaxed)
    }

    /// Forgets what was counted, but not which pages are unreadable.
    pub(super) fn start_over(&self) {
        let all = [
            &self.reads,
            &self.writes,
            &self.discards,
            &self.read_bytes,
            &self.written_bytes,
            &self.errors,
        ];
        all.iter()
            .for_each(|count| count.store(0, Ordering::Relaxed));
    }

    fn mark(&self, page: u64, unreadable: bool) {
        let Some(word) = self.unreadable.get((page / 64) as usize) else {
            return;
        };
        let bit = 1 << (page % 64);
        if unreadable {
            if word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                self.unreadable_count.fetch_add(1, Ordering::Relaxed);
            }
        } else if word.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
            self.unreadable_count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Export {
    pub(super) fn new(
        disk: &dyn Disk,
        size_bytes: u64,
        thread_count: usize,
    ) -> io::Result<(Self, Arc<Shared>)> {
        let workers = (0..thread_count)
            .map(|_| Ok(Mutex::new(Worker::new(disk.queue()?))))
            .collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared {
            counters: Counters::new(size_bytes),
            merge_switch: OnceLock::new(),
        });
        let export = Self {
            size_bytes,
            workers,
            shared: Arc::clone(&shared),
            warm: Barrier::new(thread_count),
        };
        Ok((export, shared))
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The worker of the serving thread `index`, for all of its life.
    pub(super) fn worker_at(&self, index: usize) -> MutexGuard<'_, Worker> {
        let worker = self.workers[index].lock();
        worker.unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker that no other thread uses.
    pub(super) fn worker(&self) -> MutexGuard<'_, Worker> {
        loop {
            for worker in &self.workers {
                match worker.try_lock() {
                    Ok(guard) => return guard,
                    Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) => {}
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Reads into the worker's buffer; returns how many bytes from the start are good.
    pub(super) fn read_pages(
        &self,
        worker: &mut Worker,
        offset: u64,
        len: usize,
    ) -> Result<usize, IoError> {
        let outcome = worker.read(offset, len);
        match self.count_read(len, outcome) {
            Ok(()) => Ok(len),
            Err(error) => self.note_unreadable(worker, offset, len, error),
        }
    }

    /// Counts a read that has ended. One that failed goes on to [`Export::note_unreadable`].
    pub(super) fn count_read(
        &self,
        len: usize,
        outcome: Result<(), IoError>,
    ) -> Result<(), IoError> {
        let counters = &self.shared.counters;
        counters.reads.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(()) => counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed),
            Err(_) => counters.errors.fetch_add(1, Ordering::Relaxed),
        };
        outcome
    }

    /// Finds which pages of a failed read cannot be read, by reading them one by one, and leaves
    /// the good ones before the first such page in the buffer: the kernel asks again for the rest.
    /// From here on the kernel is told to merge no requests, so that a lost page fails alone.
    #[cold]
    pub(super) fn note_unreadable(
        &self,
        worker: &mut Worker,
        offset: u64,
        len: usize,
        error: IoError,
    ) -> Result<usize, IoError> {
        if let Some(mut switch) = self.shared.merge_switch.get()
            && let Err(error) = switch.write_all(b"2")
        {
            tracing::warn!(%error, "stop merging requests");
        }
        let mut first_bad = None;
        let end = offset + len as u64;
        let mut page = offset / PAGE_BYTES as u64;
        while page * (PAGE_BYTES as u64) < end {
            let at = page * PAGE_BYTES as u64;
            let bad = worker.read(at, PAGE_BYTES).is_err();
            self.shared.counters.mark(page, bad);
            if bad && first_bad.is_none() {
                first_bad = Some(at.max(offset));
            }
            page += 1;
        }
        let good = match first_bad {
            Some(at) if at == offset => return Err(error),
            Some(at) => (at - offset) as usize,
            None => len,
        };
        worker.read(offset, good).map(|()| good)
    }

    /// Reads into the worker's buffer for a kernel that takes a read as good or as failed, and
    /// fails every page of it: they all count as unreadable then.
    pub(super) fn read_whole(
        &self,
        worker: &mut Worker,
        offset: u64,
        len: usize,
    ) -> Result<(), IoError> {
        let outcome = self.read_pages(worker, offset, len);
        if outcome == Ok(len) {
            return Ok(());
        }
        let page_bytes = PAGE_BYTES as u64;
        let end = (offset + len as u64).div_ceil(page_bytes);
        for page in offset / page_bytes..end {
            self.shared.counters.mark(page, true);
        }
        outcome.and(Err(IoError::Lost))
    }

    /// Writes what was put into the worker's buffer.
    pub(super) fn write_pages(&self, worker: &mut Worker, offset: u64) -> Result<(), IoError> {
        let len = worker.buffer.len();
        let outcome = worker.write(offset);
        self.count_write(offset, len, outcome)
    }

    /// Counts a write that has ended; its pages can be read again if it went well.
    pub(super) fn count_write(
        &self,
        offset: u64,
        len: usize,
        outcome: Result<(), IoError>,
    ) -> Result<(), IoError> {
        let counters = &self.shared.counters;
        counters.writes.fetch_add(1, Ordering::Relaxed);
        let bytes = len as u64;
        if outcome.is_err() {
            counters.errors.fetch_add(1, Ordering::Relaxed);
            return outcome;
        }
        counters.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        if counters.unreadable_pages() > 0 {
            let first = offset.div_ceil(PAGE_BYTES as u64);
            for page in first..(offset + bytes) / PAGE_BYTES as u64 {
                counters.mark(page, false);
            }
        }
        Ok(())
    }

    /// Tells the disk that nobody needs these bytes any more.
    pub(super) fn discard(
        &self,
        worker: &mut Worker,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), IoError> {
        let done = worker.run(offset, Op::Discard { len_bytes });
        self.count_discard(done.result)
    }

    /// Counts a discard that has ended.
    pub(super) fn count_discard(&self, outcome: Result<(), IoError>) -> Result<(), IoError> {
        let counters = &self.shared.counters;
        counters.discards.fetch_add(1, Ordering::Relaxed);
        if outcome.is_err() {
            counters.errors.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// The inode of a name in the root; `None` when nothing is called so.
    pub(super) fn inode_of(&self, name: &[u8]) -> Option<u64> {
        if name == DISK_NAME.as_bytes() {
            return Some(DISK);
        }
        let index = name.strip_prefix(WARM_NAME.as_bytes())?;
        let index: u64 = std::str::from_utf8(index).ok()?.parse().ok()?;
        WARM.checked_add(index).filter(|ino| self.is_warm(*ino))
    }

    /// Size of an inode, and type and permissions as of `stat(2)`; `None` when there is no such
    /// inode.
    pub(super) fn stat(&self, ino: u64) -> Option<(u64, u32)> {
        match ino {
            ROOT => Some((0, libc::S_IFDIR | 0o500)),
            DISK => Some((self.size_bytes, libc::S_IFREG | 0o600)),
            other if self.is_warm(other) => Some((REQUEST_BYTES_MAX as u64, libc::S_IFREG | 0o600)),
            _ => None,
        }
    }

    pub(super) fn is_warm(&self, ino: u64) -> bool {
        (WARM..WARM + self.workers.len() as u64).contains(&ino)
    }
}

/// One thread's queue and buffers.
pub(super) struct Worker {
    queue: Box<dyn Queue>,
    /// Goes out with a request and comes back with its end.
    buffer: Vec<u8>,
    done: Vec<Done>,
    fds: Vec<RawFd>,
    poll_fds: Vec<libc::pollfd>,
}

impl Worker {
    fn new(queue: Box<dyn Queue>) -> Self {
        let mut buffer = vec![1; REQUEST_BYTES_MAX];
        buffer.fill(0);
        Self {
            queue,
            buffer,
            done: Vec::with_capacity(DONE_MAX),
            fds: Vec::with_capacity(64),
            poll_fds: Vec::with_capacity(64),
        }
    }

    pub(super) fn read(&mut self, offset: u64, len: usize) -> Result<(), IoError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(len, 0);
        let done = self.run(offset, Op::Read(buffer));
        self.keep(done)
    }

    /// What was read, or is to be written.
    pub(super) fn data(&self) -> &[u8] {
        &self.buffer
    }

    /// The buffer for `len` bytes, at most `REQUEST_BYTES_MAX`, to be written.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        self.buffer.resize(len, 0);
        &mut self.buffer
    }

    fn write(&mut self, offset: u64) -> Result<(), IoError> {
        let buffer = std::mem::take(&mut self.buffer);
        let done = self.run(offset, Op::Write(buffer));
        self.keep(done)
    }

    fn keep(&mut self, done: Done) -> Result<(), IoError> {
        if let Op::Read(buffer) | Op::Write(buffer) = done.op {
            self.buffer = buffer;
        }
        done.result
    }

    /// Runs one operation to its end. Others that end meanwhile are kept for [`Worker::collect`].
    fn run(&mut self, offset: u64, op: Op) -> Done {
        let tag = ALONE;
        let mut request = Request { tag, offset, op };
        while let Err(back) = self.queue.submit(request) {
            request = back;
            self.queue.poll(&mut self.done);
        }
        let mut idle_polls = 0;
        loop {
            self.queue.poll(&mut self.done);
            if let Some(at) = self.done.iter().position(|done| done.tag == ALONE) {
                return self.done.swap_remove(at);
            }
            idle_polls += 1;
            if idle_polls >= IDLE_POLLS_MAX {
                self.wait(None);
            }
        }
    }

    /// Starts an operation whose end [`Worker::collect`] brings; its tag is not [`ALONE`].
    ///
    /// # Errors
    /// Gives the request back when the queue is full.
    pub(super) fn start(&mut self, request: Request) -> Result<(), Request> {
        debug_assert_ne!(request.tag, ALONE);
        self.queue.submit(request)
    }

    /// Whether nothing of the queue needs to be moved on: also no write that was acknowledged and has not
    /// landed everywhere, for which others wait.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.deadline().is_none()
    }

    /// Moves what was started on, and appends what has ended.
    pub(super) fn collect(&mut self, done: &mut Vec<Done>) {
        self.queue.poll(&mut self.done);
        done.append(&mut self.done);
    }

    /// Moves on what was acknowledged and has not landed everywhere, which nobody else can, until it has or
    /// `request` is readable.
    pub(super) fn land(&mut self, request: Option<RawFd>) {
        while !self.is_quiet() {
            self.queue.poll(&mut self.done);
            if !self.is_quiet() && self.wait(request) {
                return;
            }
        }
    }

    /// Sleeps until the queue can go on, or `also` is readable; whether that is.
    pub(super) fn wait(&mut self, also: Option<RawFd>) -> bool {
        self.fds.clear();
        self.queue.wait_fds(&mut self.fds);
        let deadline = self.queue.deadline();
        if self.fds.is_empty() && deadline.is_none() {
            std::thread::yield_now();
            return false;
        }
        self.fds.extend(also);
        self.poll_fds.clear();
        let waits = self.fds.iter().map(|fd| libc::pollfd {
            fd: *fd,
            events: libc::POLLIN,
            revents: 0,
        });
        self.poll_fds.extend(waits);
        // Rounded up, so that a deadline below a millisecond does not spin.
        let timeout_ms = deadline.map_or(-1, |left| {
            left.as_nanos().div_ceil(1_000_000).min(1 << 30) as libc::c_int
        });
        let count = self.poll_fds.len() as libc::nfds_t;
        // SAFETY: `poll_fds` is a live array of `count` entries for the call.
        let ready = unsafe { libc::poll(self.poll_fds.as_mut_ptr(), count, timeout_ms) };
        let last = self.poll_fds.last();
        ready > 0 && also.is_some() && last.is_some_and(|fd| fd.revents != 0)
    }
}

/// Name of the disk's file under the mount.
pub(super) const DISK_NAME: &str = "disk";
/// Prefix of the warm-up files' names, followed by the thread's index.
pub(super) const WARM_NAME: &str = "warm";
/// Longest write, and read, that the kernel may send: its own limit (256 pages).
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Inode of the disk's file.
pub(super) const DISK: u64 = 2;
const ROOT: u64 = 1;
const WARM: u64 = 16;
/// Polls before a thread sleeps for its queue; arbitrary, a few microseconds.
pub(super) const IDLE_POLLS_MAX: u32 = 64;
/// Tag of an operation that its caller waits for.
const ALONE: u64 = u64::MAX;
/// Operations of one worker under way, for which there is room from the start; more would be
/// allocated for.
const DONE_MAX: usize = cenote_volume::REQUESTS_MAX;
/// How long the kernel may believe attributes: they never change while the file is served.
pub(super) const TTL_S: u64 = 365 * 24 * 3600;
