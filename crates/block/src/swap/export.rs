//! What shows a disk to the kernel: its pages, and the one FUSE file that they are.
//!
//! The threads of `fuse_loop` or `kernel_nbd` call in here, one request at a time each; every call
//! runs the request to its end on a worker of its own. There are as many workers as threads, so
//! one is always free.
//! Invariants: no allocation per page, since buffers are made, and touched, before the loop
//! device exists; a page whose read failed is remembered until it is written again.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, SystemTime};

use cenote_volume::{Done, IoError, Op, Request};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, WriteFlags,
};

use super::area::PAGE_BYTES;
use crate::disk::{Disk, Queue};

/// The filesystem: a root, the disk's file, and one file per thread to warm it up with.
pub(super) struct Export {
    size_bytes: u64,
    workers: Vec<Mutex<Worker>>,
    shared: Arc<Shared>,
    /// Holds each thread until all of them have taken a warm-up request.
    warm: Barrier,
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
    fn worker(&self) -> MutexGuard<'_, Worker> {
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
    fn read_pages(&self, worker: &mut Worker, offset: u64, len: usize) -> Result<usize, IoError> {
        let counters = &self.shared.counters;
        counters.reads.fetch_add(1, Ordering::Relaxed);
        match worker.read(offset, len) {
            Ok(()) => {
                let bytes = len as u64;
                counters.read_bytes.fetch_add(bytes, Ordering::Relaxed);
                Ok(len)
            }
            Err(error) => {
                counters.errors.fetch_add(1, Ordering::Relaxed);
                self.note_unreadable(worker, offset, len, error)
            }
        }
    }

    /// Finds which pages of a failed read cannot be read, by reading them one by one, and leaves
    /// the good ones before the first such page in the buffer: the kernel asks again for the rest.
    /// From here on the kernel is told to merge no requests, so that a lost page fails alone.
    #[cold]
    fn note_unreadable(
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
        let counters = &self.shared.counters;
        counters.writes.fetch_add(1, Ordering::Relaxed);
        let bytes = worker.buffer.len() as u64;
        let written = worker.write(offset);
        if written.is_err() {
            counters.errors.fetch_add(1, Ordering::Relaxed);
            return written;
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
        let counters = &self.shared.counters;
        counters.discards.fetch_add(1, Ordering::Relaxed);
        let done = worker.run(offset, Op::Discard { len_bytes });
        if done.result.is_err() {
            counters.errors.fetch_add(1, Ordering::Relaxed);
        }
        done.result
    }

    /// Attributes of an inode; `None` when there is no such inode.
    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let (size, kind, perm) = match ino.0 {
            ROOT => (0, FileType::Directory, 0o500),
            DISK => (self.size_bytes, FileType::RegularFile, 0o600),
            other if self.is_warm(other) => {
                (REQUEST_BYTES_MAX as u64, FileType::RegularFile, 0o600)
            }
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: PAGE_BYTES as u32,
            flags: 0,
        })
    }

    fn is_warm(&self, ino: u64) -> bool {
        (WARM..WARM + self.workers.len() as u64).contains(&ino)
    }
}

impl Filesystem for Export {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // Not worth failing for: the kernel then sends smaller or fewer requests at once.
        if config.set_max_write(REQUEST_BYTES_MAX as u32).is_err()
            || config.set_max_background(BACKGROUND_MAX).is_err()
            || config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).is_err()
        {
            tracing::warn!("the kernel's FUSE lacks large or asynchronous direct I/O");
        }
        Ok(())
    }

    fn lookup(&self, _: &fuser::Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ino = match name.to_str() {
            Some(DISK_NAME) => Some(DISK),
            Some(name) => name
                .strip_prefix(WARM_NAME)
                .and_then(|index| index.parse::<u64>().ok())
                .and_then(|index| WARM.checked_add(index)),
            None => None,
        };
        match ino.and_then(|ino| self.attributes(INodeNo(ino))) {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &fuser::Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(ino.0), flags);
    }

    fn read(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino.0 != DISK {
            return reply.error(Errno::EINVAL);
        }
        let len = u64::from(size).min(self.size_bytes.saturating_sub(offset)) as usize;
        let mut worker = self.worker();
        match self.read_pages(&mut worker, offset, len) {
            Ok(good) => reply.data(&worker.buffer[..good]),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.is_warm(ino.0) {
            // Only the first part of a request that the kernel had to split.
            if offset == 0 {
                let worker = self.worker();
                self.warm.wait();
                drop(worker);
            }
            return reply.written(data.len() as u32);
        }
        if ino.0 != DISK || offset + data.len() as u64 > self.size_bytes {
            return reply.error(Errno::EINVAL);
        }
        let mut worker = self.worker();
        worker.room(data.len()).copy_from_slice(data);
        match self.write_pages(&mut worker, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(IoError::NoSpace) => reply.error(Errno::ENOSPC),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let zeroes = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        if ino.0 != DISK || !zeroes {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let len_bytes = length.min(self.size_bytes.saturating_sub(offset));
        let mut worker = self.worker();
        match self.discard(&mut worker, offset, len_bytes) {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // An acknowledged write is as safe as it will ever be.
        reply.ok();
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        // The loop device takes its discard granularity from the block size given here.
        let block_bytes = PAGE_BYTES as u32;
        let blocks = self.size_bytes / u64::from(block_bytes);
        reply.statfs(blocks, 0, 0, 2, 0, block_bytes, 255, block_bytes);
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
            done: Vec::with_capacity(4),
            fds: Vec::with_capacity(64),
            poll_fds: Vec::with_capacity(64),
        }
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<(), IoError> {
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

    /// Runs one operation to its end.
    fn run(&mut self, offset: u64, op: Op) -> Done {
        let mut request = Request { tag: 0, offset, op };
        while let Err(back) = self.queue.submit(request) {
            request = back;
            self.queue.poll(&mut self.done);
        }
        let mut idle_polls = 0;
        loop {
            self.queue.poll(&mut self.done);
            if let Some(done) = self.done.pop() {
                return done;
            }
            idle_polls += 1;
            if idle_polls >= IDLE_POLLS_MAX {
                self.wait();
            }
        }
    }

    /// Sleeps until the queue can go on.
    fn wait(&mut self) {
        self.fds.clear();
        self.queue.wait_fds(&mut self.fds);
        let deadline = self.queue.deadline();
        if self.fds.is_empty() && deadline.is_none() {
            std::thread::yield_now();
            return;
        }
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
        unsafe { libc::poll(self.poll_fds.as_mut_ptr(), count, timeout_ms) };
    }
}

/// Name of the disk's file under the mount.
pub(super) const DISK_NAME: &str = "disk";
/// Prefix of the warm-up files' names, followed by the thread's index.
pub(super) const WARM_NAME: &str = "warm";
/// Longest write, and read, that the kernel may send: its own limit (256 pages).
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 20;

const ROOT: u64 = 1;
const DISK: u64 = 2;
const WARM: u64 = 16;
/// Asynchronous requests that the kernel may have open at once; arbitrary, above what one
/// machine's reclaim has in flight.
const BACKGROUND_MAX: u16 = 128;
/// Polls before a thread sleeps for its queue; arbitrary, a few microseconds.
const IDLE_POLLS_MAX: u32 = 64;
/// Attributes never change while the file is served.
const TTL: Duration = Duration::from_secs(365 * 24 * 3600);
