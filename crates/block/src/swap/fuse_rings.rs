//! An export over FUSE's io_uring queues: threads that each serve the queues of some processors.
//!
//! With as many threads as processors each is bound to one, and serves what that processor asks:
//! a request is handed over, served and ended without another processor being woken, which costs
//! more than all the rest of it. A thread moves its requests on together: what the kernel hands
//! over goes to the disk at once, in the buffer that the kernel copies from or to.
//! What a waking costs is also why `standby` is there.
//! Invariants: nothing on the path of a page allocates; a ring's memory was touched, and its
//! thread's worker used, before the kernel is told of it.
//! Elsewhere: mounting and INIT (`dev_fuse`), the transport (`cenote_fuse`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use cenote_fuse::reply::{self, Attributes, Statfs};
use cenote_fuse::request::{Malformed, Operation};
use cenote_fuse::{Ring, Slot};
use cenote_volume::{Done, IoError, Op, Request};

use super::area::PAGE_BYTES;
use super::dev_fuse::open_flags;
use super::export::{DISK, Export, IDLE_POLLS_MAX, REQUEST_BYTES_MAX, TTL_S, Worker};
use super::standby::{Pulse, Standby};

/// The threads, from before the mount to the end of its connection.
pub(super) struct Rings {
    threads: Vec<Thread>,
    standby: Option<Standby>,
}

struct Thread {
    /// Tells it the connection; `None` when it was told.
    device: Option<mpsc::SyncSender<Arc<OwnedFd>>>,
    /// That it is ready, then that it is registered.
    news: mpsc::Receiver<io::Result<()>>,
    handle: JoinHandle<()>,
}

/// How the kernel's queues are divided among threads, and what each slot has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    queue_count: u16,
    thread_count: u16,
    /// Slots of each queue.
    depth: u16,
    pub(super) payload_bytes: usize,
}

impl Shape {
    /// For at most `thread_count` threads on a machine of `queue_count` processors.
    pub(super) fn new(queue_count: u16, thread_count: usize) -> Self {
        let is_small = queue_count <= LARGE_FROM;
        let depth = match (is_small, queue_count <= 128) {
            (true, _) => 4,
            (false, true) => 2,
            (false, false) => 1,
        };
        Self {
            queue_count,
            thread_count: queue_count.min(thread_count.clamp(1, usize::from(u16::MAX)) as u16),
            depth,
            // Every queue has to have slots, also those of processors that nobody faults on.
            payload_bytes: if is_small {
                REQUEST_BYTES_MAX
            } else {
                REQUEST_BYTES_MAX / 8
            },
        }
    }

    /// Whether each thread is bound to the processor whose queue it serves.
    fn is_bound(&self) -> bool {
        self.thread_count == self.queue_count
    }

    /// Queues of a thread.
    fn queues(&self, thread: u16) -> Vec<u16> {
        let mine = |queue: &u16| queue % self.thread_count == thread;
        (0..self.queue_count).filter(mine).collect()
    }
}

impl Rings {
    /// Starts a thread for each worker of `export`, each with its ring.
    ///
    /// # Errors
    /// When the system refuses threads or rings.
    pub(super) fn prepare(export: &Arc<Export>, shape: Shape) -> io::Result<Self> {
        let has_two = || std::thread::available_parallelism().is_ok_and(|count| count.get() == 2);
        let standby = match shape.is_bound() && shape.queue_count == 2 && has_two() {
            true => Some(Standby::start()?),
            false => None,
        };
        let mut rings = Self {
            threads: Vec::with_capacity(usize::from(shape.thread_count)),
            standby,
        };
        for index in 0..shape.thread_count {
            let (device, told) = mpsc::sync_channel(1);
            let (tell, news) = mpsc::sync_channel(2);
            let export = Arc::clone(export);
            let pulse = rings.standby.as_ref().and_then(Standby::pulse);
            let started = std::thread::Builder::new()
                .name(format!("swap-{index}"))
                .spawn(move || live(&export, shape, index, pulse, (&told, &tell)));
            let handle = match started {
                Ok(handle) => handle,
                Err(error) => {
                    rings.join();
                    return Err(error);
                }
            };
            rings.threads.push(Thread {
                device: Some(device),
                news,
                handle,
            });
        }
        match rings.hear() {
            Ok(()) => Ok(rings),
            Err(error) => {
                rings.join();
                Err(error)
            }
        }
    }

    /// Gives the slots of every thread to the connection that `device` is an open `/dev/fuse` of.
    ///
    /// # Errors
    /// When the kernel refused one; the connection is of no use then.
    pub(super) fn register(&mut self, device: OwnedFd) -> io::Result<()> {
        let device = Arc::new(device);
        for thread in &mut self.threads {
            if let Some(tell) = thread.device.take() {
                tell.send(Arc::clone(&device)).map_err(|_| gone())?;
            }
        }
        self.hear()
    }

    /// The next word of each thread.
    fn hear(&self) -> io::Result<()> {
        self.threads.iter().try_for_each(|thread| {
            let said = thread.news.recv();
            said.unwrap_or_else(|_| Err(gone()))
        })
    }

    /// Whether every thread has seen the end of the connection.
    pub(super) fn are_over(&self) -> bool {
        self.threads
            .iter()
            .all(|thread| thread.handle.is_finished())
    }

    /// Waits for the end of every thread: the connection is over, or was never made.
    pub(super) fn join(self) {
        for thread in self.threads {
            drop(thread.device);
            if thread.handle.join().is_err() {
                tracing::error!("a thread of a swap device panicked");
            }
        }
        drop(self.standby);
    }
}

fn gone() -> io::Error {
    io::Error::other("a thread of the swap device ended early")
}

/// The life of a thread: makes its ring, waits for the connection, serves it.
fn live(
    export: &Export,
    shape: Shape,
    index: u16,
    pulse: Option<Pulse>,
    (told, tell): (
        &mpsc::Receiver<Arc<OwnedFd>>,
        &mpsc::SyncSender<io::Result<()>>,
    ),
) {
    let say = |outcome| tell.send(outcome).is_ok();
    let mut server = match Server::new(export, shape, index, pulse) {
        Ok(server) => server,
        Err(error) => {
            say(Err(error));
            return;
        }
    };
    if !say(Ok(())) {
        return;
    }
    // The start went no further.
    let Ok(device) = told.recv() else { return };
    let registered = server.ring.register(device);
    let serves = registered.is_ok();
    if !say(registered) || !serves {
        return;
    }
    if let Err(error) = server.run() {
        // Others would serve on, and who asks this thread's queues would wait for ever. The kernel fails
        // what waits when the process ends.
        tracing::error!(%error, "serve a swap device; its process ends");
        std::process::abort();
    }
}

/// One thread's ring, and the worker that its requests go to.
struct Server<'a> {
    ring: Ring,
    export: &'a Export,
    worker: MutexGuard<'a, Worker>,
    pulse: Option<Pulse>,
    /// By slot: bytes of the disk that its request is about.
    ranges: Box<[(u64, u64)]>,
    /// Requests that the disk had no room for.
    held: VecDeque<Request>,
    /// Requests that the disk has.
    in_flight: usize,
    done: Vec<Done>,
}

impl<'a> Server<'a> {
    fn new(export: &'a Export, shape: Shape, index: u16, pulse: Option<Pulse>) -> io::Result<Self> {
        if shape.is_bound()
            && let Err(error) = bind_to(index).and_then(|()| level_with_programs())
        {
            tracing::debug!(%error, index, "bind a serving thread to its processor");
        }
        let ring = Ring::new(&cenote_fuse::Options {
            queues: shape.queues(index),
            depth: shape.depth,
            payload_bytes_max: shape.payload_bytes,
        })?;
        let mut worker = export.worker_at(usize::from(index));
        // What a read takes of the stack and of the disk's own memory is there from here on.
        let len = export.size_bytes().min(shape.payload_bytes as u64) as usize;
        if let Err(error) = worker.read(0, len) {
            tracing::debug!(%error, "warm a serving thread up");
        }
        let slot_count = ring.slot_count();
        Ok(Self {
            ring,
            export,
            worker,
            pulse,
            ranges: vec![(0, 0); slot_count].into(),
            held: VecDeque::with_capacity(slot_count),
            in_flight: 0,
            done: Vec::with_capacity(slot_count),
        })
    }

    /// Serves until the connection is over.
    fn run(&mut self) -> io::Result<()> {
        let mut idle_polls = 0;
        while !self.ring.is_over() {
            let mut is_idle = true;
            while let Some(next) = self.ring.next_request() {
                is_idle = false;
                match next {
                    Ok(slot) => self.start(slot)?,
                    // Its reply is lost: somebody waits for it.
                    Err(error) => return Err(error),
                }
            }
            self.submit_held();
            is_idle &= !self.end_requests()?;
            if self.rests() {
                // One call hands replies over and waits.
                self.ring.submit_and_wait()?;
                continue;
            }
            if self.ring.is_due() {
                self.ring.submit()?;
            }
            idle_polls = if is_idle { idle_polls + 1 } else { 0 };
            if idle_polls >= IDLE_POLLS_MAX && !self.ring.has_news() {
                self.worker.wait(Some(self.ring.as_raw_fd()));
            }
        }
        Ok(())
    }

    /// Starts the request of a slot, or ends it at once.
    fn start(&mut self, slot: Slot) -> io::Result<()> {
        let request = self.ring.request(slot);
        let inode = request.inode();
        let size = self.export.size_bytes();
        let operation = match request.operation() {
            Ok(operation) => operation,
            Err(Malformed) => return self.ring.reply(slot, Err(libc::EINVAL)),
        };
        let (offset, op) = match operation {
            Operation::Read { offset, len_bytes } if inode == DISK => {
                if len_bytes as usize > self.ring.payload_bytes_max() {
                    return self.ring.reply(slot, Err(libc::EINVAL));
                }
                let len = u64::from(len_bytes).min(size.saturating_sub(offset));
                if len == 0 {
                    return self.ring.reply(slot, Ok(0));
                }
                self.ranges[slot.0] = (offset, len);
                (offset, Op::Read(self.ring.take_payload(slot, len as usize)))
            }
            Operation::Write { offset, data, .. } if inode == DISK => {
                let len = data.len() as u64;
                if offset.checked_add(len).is_none_or(|end| end > size) {
                    return self.ring.reply(slot, Err(libc::EINVAL));
                }
                self.ranges[slot.0] = (offset, len);
                (
                    offset,
                    Op::Write(self.ring.take_payload(slot, len as usize)),
                )
            }
            Operation::Fallocate {
                offset,
                len_bytes,
                mode,
            } => {
                let zeroes = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE);
                if inode != DISK || zeroes == 0 {
                    return self.ring.reply(slot, Err(libc::EOPNOTSUPP));
                }
                let len_bytes = len_bytes.min(size.saturating_sub(offset));
                self.ranges[slot.0] = (offset, len_bytes);
                (offset, Op::Discard { len_bytes })
            }
            other => {
                return match self.told(inode, other) {
                    Ok((bytes, len)) => self.answer(slot, &bytes[..len]),
                    Err(errno) => self.ring.reply(slot, Err(errno)),
                };
            }
        };
        self.held.push_back(Request {
            tag: slot.0 as u64,
            offset,
            op,
        });
        Ok(())
    }

    /// The reply to a request that is about the file itself, with its length, or an error number.
    fn told(&self, inode: u64, operation: Operation<'_>) -> Result<([u8; 128], usize), i32> {
        let attributes = |inode| {
            let (size_bytes, mode) = self.export.stat(inode)?;
            Some(Attributes {
                inode,
                size_bytes,
                mode,
                block_count: size_bytes / 512,
                link_count: 1,
                block_bytes: PAGE_BYTES as u32,
                ..Attributes::default()
            })
        };
        match operation {
            Operation::Lookup(name) => {
                let found = self.export.inode_of(name).and_then(attributes);
                let found = found.ok_or(libc::ENOENT)?;
                Ok(padded(&reply::entry(&found, TTL_S)))
            }
            Operation::Getattr => {
                let found = attributes(inode).ok_or(libc::ENOENT)?;
                Ok(padded(&reply::attributes(&found, TTL_S)))
            }
            Operation::Open { .. } => Ok(padded(&reply::opened(inode, open_flags().bits()))),
            // The loop device takes its discard granularity from the block size given here.
            Operation::Statfs => Ok(padded(&reply::statfs(&Statfs {
                block_count: self.export.size_bytes() / PAGE_BYTES as u64,
                file_count: 2,
                block_bytes: PAGE_BYTES as u32,
                name_bytes_max: 255,
                ..Statfs::default()
            }))),
            // An acknowledged write is as safe as it will ever be.
            Operation::Fsync
            | Operation::Flush
            | Operation::Release { .. }
            | Operation::Destroy => Ok(padded(&[])),
            Operation::Read { .. } | Operation::Write { .. } => Err(libc::EINVAL),
            _ => Err(libc::ENOSYS),
        }
    }

    fn answer(&mut self, slot: Slot, bytes: &[u8]) -> io::Result<()> {
        self.ring.write_payload(slot, bytes);
        self.ring.reply(slot, Ok(bytes.len()))
    }

    /// Gives requests to the disk, in order, until it takes no more.
    fn submit_held(&mut self) {
        while let Some(request) = self.held.pop_front() {
            if let Err(request) = self.worker.start(request) {
                return self.held.push_front(request);
            }
            self.in_flight += 1;
        }
    }

    /// Whether nothing is to be moved on.
    fn rests(&self) -> bool {
        self.in_flight == 0 && self.held.is_empty() && self.worker.is_quiet()
    }

    /// Ends what the disk has done; false when that is nothing.
    fn end_requests(&mut self) -> io::Result<bool> {
        if self.rests() {
            return Ok(false);
        }
        let mut done = std::mem::take(&mut self.done);
        self.worker.collect(&mut done);
        let any = !done.is_empty();
        self.in_flight -= done.len();
        for done in done.drain(..) {
            self.end(done)?;
        }
        self.done = done;
        Ok(any)
    }

    fn end(&mut self, done: Done) -> io::Result<()> {
        let slot = Slot(done.tag as usize);
        let (offset, len) = self.ranges[slot.0];
        match done.op {
            Op::Read(payload) => {
                if let Some(pulse) = &mut self.pulse {
                    pulse.beat(Instant::now());
                }
                self.ring.put_payload(slot, payload);
                let read = self.end_read(slot, offset, len as usize, done.result);
                self.ring.reply(slot, read.map_err(errno_of))
            }
            Op::Write(payload) => {
                self.ring.put_payload(slot, payload);
                match self.export.count_write(offset, len as usize, done.result) {
                    Ok(()) => self.answer(slot, &reply::written(len as u32)),
                    Err(error) => self.ring.reply(slot, Err(errno_of(error))),
                }
            }
            Op::Discard { .. } => {
                let ended = self.export.count_discard(done.result);
                self.ring
                    .reply(slot, ended.map(|()| 0).map_err(|_| libc::EIO))
            }
        }
    }

    /// How many bytes of a read are good.
    fn end_read(
        &mut self,
        slot: Slot,
        offset: u64,
        len: usize,
        result: Result<(), IoError>,
    ) -> Result<usize, IoError> {
        let Err(error) = self.export.count_read(len, result) else {
            return Ok(len);
        };
        let found = self
            .export
            .note_unreadable(&mut self.worker, offset, len, error);
        let good = found?;
        self.ring.write_payload(slot, &self.worker.data()[..good]);
        Ok(good)
    }
}

/// A reply of at most 128 bytes, and how many it has.
fn padded(reply: &[u8]) -> ([u8; 128], usize) {
    let mut bytes = [0; 128];
    bytes[..reply.len()].copy_from_slice(reply);
    (bytes, reply.len())
}

fn errno_of(error: IoError) -> i32 {
    match error {
        IoError::NoSpace => libc::ENOSPC,
        _ => libc::EIO,
    }
}

/// Gives this thread the priority of a program. At that of the process, -20, the kernel counts it as
/// a load of 87 of them, and moves its own worker and the program off the processor that this thread
/// is bound to. See decision 124.
fn level_with_programs() -> io::Result<()> {
    // SAFETY: setpriority takes integers only; 0 is this thread.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has this thread run on one processor alone.
fn bind_to(processor: u16) -> io::Result<()> {
    // SAFETY: the set is plain bits, zeroed and then set within its size; the call reads it alone.
    let outcome = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if usize::from(processor) >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        libc::CPU_SET(usize::from(processor), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Machines of more processors have smaller and fewer slots for each. Arbitrary: 32 MiB in all, as far as
/// 256 processors.
const LARGE_FROM: u16 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_one_thread() {
        for (queues, threads) in [(1, 2), (2, 2), (3, 2), (64, 5), (64, 64), (2, 0), (256, 2)] {
            let shape = Shape::new(queues, threads);
            let mut served: Vec<u16> = (0..shape.thread_count)
                .flat_map(|thread| shape.queues(thread))
                .collect();
            served.sort_unstable();
            assert_eq!(served, (0..queues).collect::<Vec<_>>(), "{shape:?}");
            let slots = usize::from(shape.queue_count * shape.depth);
            assert!(slots * shape.payload_bytes <= 32 << 20, "{shape:?}");
        }
    }
}
