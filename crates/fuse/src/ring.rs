//! One thread's io_uring, over which the kernel hands FUSE requests of some of its queues.
//!
//! The kernel has a queue for each processor, and puts a request into that of the processor which
//! makes it. A ring has one or more [`Slot`]s for each queue that it serves: a header and a payload
//! that the kernel fills. The reply goes back in the same place, and the command that hands it over
//! asks for the slot's next request: one system call ends a request and waits for another.
//! Concurrency: a ring belongs to the thread that made it; the kernel refuses others.

use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::abi::{self, RequestHeader};
use crate::reply::{self, OUT_HEADER_BYTES};
use crate::request::Request;

/// What a ring serves, and with how much memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// Queues of the kernel, by processor; not empty.
    pub queues: Vec<u16>,
    /// Slots of each queue, at least 1: requests that it hands over before the first is replied to.
    pub depth: u16,
    /// Longest payload, at least what INIT agreed on for one write, and 8192. Each slot has that
    /// much memory, touched when the ring is made.
    pub payload_bytes_max: usize,
}

/// A place for one request, by number; below [`Ring::slot_count`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Slot(pub usize);

/// The rings of one thread. Dropping it takes its slots from the kernel; requests that have come
/// and were not replied to fail when the connection ends.
pub struct Ring {
    // Dropped first: afterwards the kernel touches no slot.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    device: Option<Arc<OwnedFd>>,
    slots: Box<[Memory]>,
    payload_bytes_max: usize,
    /// Slots that the kernel has, or will with the next submission.
    fetching: usize,
    /// Commands that were added and not handed over.
    unsubmitted: bool,
    /// Bound to its thread.
    _thread: PhantomData<*const ()>,
}

/// The memory of a slot.
struct Memory {
    queue: u16,
    header: Box<UnsafeCell<RequestHeader>>,
    /// Empty while the caller has it.
    payload: Vec<u8>,
    payload_at: *mut u8,
    /// What REGISTER points to.
    parts: Box<[libc::iovec; 2]>,
    holder: Holder,
}

/// Who may touch a slot's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Holder {
    /// Nobody registered it, or the connection is over.
    None,
    Kernel,
    /// A request is in it that is named so.
    Server {
        commit_id: u64,
    },
}

impl Ring {
    /// Makes the ring and touches all of its memory. No connection is needed yet, so that a machine
    /// that refuses rings is found out before a mount counts on them.
    ///
    /// # Errors
    /// Linux before 6.1, a sandbox without io_uring, or too little memory that may be locked.
    ///
    /// # Panics
    /// Without a queue or a slot, or with a payload that no kernel takes.
    pub fn new(options: &Options) -> io::Result<Self> {
        let slot_count = options.queues.len() * usize::from(options.depth);
        assert!(slot_count > 0, "a ring serves something");
        assert!(
            options.payload_bytes_max >= abi::PAYLOAD_BYTES_MIN,
            "a payload is 8192 bytes at least"
        );
        let entries = u32::try_from(slot_count.next_power_of_two()).map_err(io::Error::other)?;
        // Requests are copied by this thread, when it asks: no interrupt is sent to it while it
        // runs, and a flag in shared memory says that there is something to ask for.
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .build(entries)?;
        let slots = (0..slot_count)
            .map(|index| {
                let queue = options.queues[index / usize::from(options.depth)];
                Memory::new(queue, options.payload_bytes_max)
            })
            .collect();
        Ok(Self {
            ring,
            device: None,
            slots,
            payload_bytes_max: options.payload_bytes_max,
            fetching: 0,
            unsubmitted: false,
            _thread: PhantomData,
        })
    }

    /// Gives every slot to the kernel, for requests of the connection that `device` is an open
    /// `/dev/fuse` of; its INIT has been replied to with FUSE_OVER_IO_URING.
    ///
    /// # Errors
    /// What the kernel refused: it takes no rings on this connection then, which goes on over
    /// `/dev/fuse` or not at all. Drop the ring.
    ///
    /// # Panics
    /// When it was registered before: the kernel would have memory that the caller may have by now.
    pub fn register(&mut self, device: Arc<OwnedFd>) -> io::Result<()> {
        assert!(self.device.is_none(), "a ring is registered once");
        self.device = Some(device);
        for index in 0..self.slots.len() {
            self.push(Slot(index), abi::REGISTER, 0)?;
        }
        self.submit()?;
        // What is refused is answered at once. No request is: those come when the ring is entered again.
        let refused = self.ring.completion().find(|entry| entry.result() < 0);
        match refused {
            Some(refused) => Err(io::Error::from_raw_os_error(-refused.result())),
            None => Ok(()),
        }
    }

    /// How many slots there are.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Longest payload of a slot.
    #[must_use]
    pub fn payload_bytes_max(&self) -> usize {
        self.payload_bytes_max
    }

    /// Whether the kernel has no slot any more, and none is being served: the connection is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.slots.iter().all(|slot| slot.holder == Holder::None)
    }

    /// The slot of a request that has come; `None` when no more have.
    ///
    /// # Errors
    /// The kernel took a slot back for another reason than the end of the connection; the others
    /// go on.
    pub fn next_request(&mut self) -> Option<io::Result<Slot>> {
        loop {
            let entry = self.ring.completion().next()?;
            let slot = Slot(entry.user_data() as usize);
            let memory = &mut self.slots[slot.0];
            self.fetching -= 1;
            match entry.result() {
                0.. => {
                    // SAFETY: the completion says that the kernel is done with the slot.
                    let commit_id = unsafe { (*memory.header.get()).entry.commit_id };
                    memory.holder = Holder::Server { commit_id };
                    return Some(Ok(slot));
                }
                error => {
                    memory.holder = Holder::None;
                    let error = -error;
                    if !ENDINGS.contains(&error) {
                        return Some(Err(io::Error::from_raw_os_error(error)));
                    }
                }
            }
        }
    }

    /// The request in a slot.
    ///
    /// # Panics
    /// When no request is in it, or its payload was taken.
    #[must_use]
    pub fn request(&self, slot: Slot) -> Request<'_> {
        let memory = &self.slots[slot.0];
        assert!(
            matches!(memory.holder, Holder::Server { .. }) && !memory.is_taken(),
            "a request that came"
        );
        // SAFETY: the slot is the server's: the kernel writes nothing before the reply is handed
        // over, which takes `&mut self`.
        let header = unsafe { &*memory.header.get() };
        let len = (header.entry.payload_bytes as usize).min(self.payload_bytes_max);
        // SAFETY: the payload has `payload_bytes_max` bytes, all initialised when it was made.
        let payload = unsafe { std::slice::from_raw_parts(memory.payload_at, len) };
        Request::of_parts(&header.in_out, &header.op_in, payload)
    }

    /// Takes the payload of a slot out, with its first `len` bytes as its content: those of a write,
    /// or room for those of a read. It goes back by [`Ring::put_payload`].
    ///
    /// # Panics
    /// When no request is in the slot, or `len` is more than the payload has.
    pub fn take_payload(&mut self, slot: Slot, len: usize) -> Vec<u8> {
        let memory = &mut self.slots[slot.0];
        assert!(
            matches!(memory.holder, Holder::Server { .. }) && len <= self.payload_bytes_max,
            "room for a request that came"
        );
        let mut payload = std::mem::take(&mut memory.payload);
        assert!(payload.capacity() > 0, "a payload that was not taken");
        // SAFETY: all of the capacity was initialised when the payload was made.
        unsafe { payload.set_len(len) };
        payload
    }

    /// Gives a payload back that was taken.
    ///
    /// # Panics
    /// When it is another one: the kernel knows the slot's by its address.
    pub fn put_payload(&mut self, slot: Slot, mut payload: Vec<u8>) {
        let memory = &mut self.slots[slot.0];
        assert!(
            payload.as_mut_ptr() == memory.payload_at
                && payload.capacity() >= self.payload_bytes_max,
            "the slot's own payload"
        );
        memory.payload = payload;
    }

    /// Writes the start of a slot's payload: a reply that is no data of a read.
    ///
    /// # Panics
    /// As [`Ring::take_payload`].
    pub fn write_payload(&mut self, slot: Slot, bytes: &[u8]) {
        let mut payload = self.take_payload(slot, bytes.len());
        payload.copy_from_slice(bytes);
        self.put_payload(slot, payload);
    }

    /// Replies to a slot's request: with the first bytes of its payload, or with an error number.
    /// It goes with the next [`Ring::submit`].
    ///
    /// # Errors
    /// The ring takes no more, which it always does for each slot once.
    ///
    /// # Panics
    /// When no request is in the slot, its payload was not put back, or the reply is longer.
    pub fn reply(&mut self, slot: Slot, outcome: Result<usize, i32>) -> io::Result<()> {
        let memory = &mut self.slots[slot.0];
        let Holder::Server { commit_id } = memory.holder else {
            panic!("a reply to a request that came");
        };
        assert!(!memory.is_taken(), "a payload that was put back");
        let len = outcome.unwrap_or(0);
        assert!(len <= self.payload_bytes_max, "a reply that fits");
        // SAFETY: the slot is the server's, and `&mut self` says that nobody else looks at it.
        let header = unsafe { &mut *memory.header.get() };
        header.entry.payload_bytes = len as u32;
        header.in_out[..OUT_HEADER_BYTES].copy_from_slice(&reply::header(commit_id, outcome));
        self.push(slot, abi::COMMIT_AND_FETCH, commit_id)
    }

    /// Hands replies over, and has the kernel hand over what has come; does not wait.
    ///
    /// # Errors
    /// Those of `io_uring_enter(2)` after which another try makes no sense.
    pub fn submit(&mut self) -> io::Result<()> {
        let outcome = self.ring.submit();
        self.end_submission(outcome)
    }

    /// What could not be handed over for now goes with the next call.
    fn end_submission(&mut self, outcome: io::Result<usize>) -> io::Result<()> {
        self.unsubmitted = !self.ring.submission().is_empty();
        match outcome {
            Ok(_) => Ok(()),
            Err(error) if AGAIN.contains(&error.raw_os_error().unwrap_or(0)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// As [`Ring::submit`], and waits for a request unless one is there; returns as well when the
    /// kernel has no slot any more.
    ///
    /// # Errors
    /// As [`Ring::submit`].
    pub fn submit_and_wait(&mut self) -> io::Result<()> {
        let wanted = usize::from(self.fetching > 0);
        let outcome = self.ring.submit_and_wait(wanted);
        self.end_submission(outcome)
    }

    /// Whether a request has come, or will with the next [`Ring::submit`]. No system call.
    #[must_use]
    pub fn has_news(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    /// Whether [`Ring::submit`] would do something now. No system call.
    #[must_use]
    pub fn is_due(&mut self) -> bool {
        self.unsubmitted || self.has_news()
    }

    /// Adds a command for a slot.
    fn push(&mut self, slot: Slot, number: u32, commit_id: u64) -> io::Result<()> {
        let device = self.device.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let memory = &mut self.slots[slot.0];
        let mut entry = opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), number)
            .cmd(abi::command(commit_id, memory.queue))
            .addr(Some(memory.parts.as_ptr() as u64))
            .build()
            .user_data(slot.0 as u64);
        set_len(&mut entry, memory.parts.len() as u32);
        // SAFETY: the device is open while `self` is; header, payload and the array that names them
        // stay where they are until the slot's next completion, and longer than the ring.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        memory.holder = Holder::Kernel;
        self.unsubmitted = true;
        self.fetching += 1;
        Ok(())
    }
}

impl AsRawFd for Ring {
    /// Readable when [`Ring::has_news`]; for `poll(2)` alone.
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

impl Memory {
    fn new(queue: u16, payload_bytes_max: usize) -> Self {
        let header = Box::new(UnsafeCell::new(RequestHeader::EMPTY));
        // Every page of it is written once: zeros alone may be memory that is not there yet.
        let mut payload = vec![1; payload_bytes_max];
        payload.fill(0);
        let payload_at = payload.as_mut_ptr();
        let part = |base: *mut libc::c_void, len| libc::iovec {
            iov_base: base,
            iov_len: len,
        };
        let parts = Box::new([
            part(header.get().cast(), size_of::<RequestHeader>()),
            part(payload_at.cast(), payload_bytes_max),
        ]);
        Self {
            queue,
            header,
            payload,
            payload_at,
            parts,
            holder: Holder::None,
        }
    }

    /// Whether the caller has the payload.
    fn is_taken(&self) -> bool {
        self.payload.capacity() == 0
    }
}

/// Sets the length of what a command's address points to, for which the builder has no way.
fn set_len(entry: &mut squeue::Entry128, len: u32) {
    let at: *mut u8 = (&raw mut *entry).cast();
    // SAFETY: a submission entry of 128 bytes is the kernel's `io_uring_sqe`, whose `len` is the
    // 32 bits at this offset; it is plain data, aligned to 8.
    unsafe { at.add(SQE_LEN_OFFSET).cast::<u32>().write(len) };
}

/// A signal came, or the system is short of memory for now.
const AGAIN: [i32; 4] = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM];
/// `offsetof(struct io_uring_sqe, len)`.
const SQE_LEN_OFFSET: usize = 24;
const _: () = assert!(size_of::<squeue::Entry128>() == 128);
/// What the kernel ends a slot's last command with when the connection is over.
const ENDINGS: [i32; 4] = [
    libc::ENOTCONN,
    libc::ECONNABORTED,
    libc::ECANCELED,
    libc::ENOENT,
];
