//! Messages through memory that both processes map: one ring each way.
//!
//! The host makes the memory and grants it, as it does with windows. Each ring has one writer and
//! one reader. The writer owns `tail`, the reader `head`; both count bytes and never wrap. Each side
//! keeps its own count in private memory and looks at the peer's only to learn how far it went, so
//! a peer that writes nonsense harms nothing but its connection. Bytes are copied out before they
//! are looked at. A peer that truncates the memory leaves zeros ([`View`]), which are nonsense too.
//!
//! Sleep: a side that is about to block sets its flag and looks once more; a side that published
//! looks at the flag, takes it back and sends one byte on the socket. Between the store and the
//! look stands a `SeqCst` fence on both sides, so at least one of them sees the other. Every
//! interleaving is tried by `tests/protocols_loom.rs`, which compiles this file with the model's atomics.

use std::cell::Cell;
use std::sync::Arc;

use super::{Broken, CALL_BYTES_MAX, HEADER_BYTES, decode_header, encode_header};
use crate::memory::View;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::{Mapping, Region, RegionOptions, Result, order_stores};

/// Bytes of one ring, a power of two: holds the longest message, or some hundred of a page each.
const RING_BYTES: usize = 512 * 1024;
/// Both rings, behind a page for their counts and flags.
pub(super) const MEMORY_BYTES: usize = DATA_START + 2 * RING_BYTES;
const DATA_START: usize = 4096;
/// Each ring's counts and flags, in lines of their own.
const CONTROL_BYTES: usize = 256;
const TAIL: usize = 0;
const HEAD: usize = 64;
const READER_SLEEPS: usize = 128;
const WRITER_SLEEPS: usize = 192;
const _: () = assert!(RING_BYTES.is_power_of_two() && RING_BYTES >= 2 * CALL_BYTES_MAX);
const _: () = assert!(2 * CONTROL_BYTES <= DATA_START);

/// Makes the memory of one connection, zeroed.
///
/// # Errors
/// `Os`: the system has no memory or no descriptor left.
pub(crate) fn create() -> Result<Region> {
    Region::create(
        "cenote-calls",
        MEMORY_BYTES as u64,
        RegionOptions::default(),
    )
}

/// One side's mapping.
pub(super) enum Memory {
    Host(Arc<Region>),
    Client(Box<Mapping>),
}

impl Memory {
    fn view(&self) -> &View {
        match self {
            Self::Host(region) => region.view(),
            Self::Client(mapping) => &mapping.view,
        }
    }
}

/// Which way a ring goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    Calls = 0,
    Answers = 1,
}

/// What the writer and the reader of a ring have alike.
struct Ring {
    memory: Arc<Memory>,
    way: Way,
}

impl Ring {
    fn cell(&self, field: usize) -> &AtomicU64 {
        let cell = self.way as usize * CONTROL_BYTES + field;
        self.memory.view().atomic(cell)
    }

    /// The two parts of `len` bytes at a count: place and length of each.
    fn parts(&self, count: u64, len: usize) -> [(usize, usize); 2] {
        let start = DATA_START + self.way as usize * RING_BYTES;
        let at = (count % RING_BYTES as u64) as usize;
        let first = len.min(RING_BYTES - at);
        [(start + at, first), (start, len - first)]
    }

    /// Sets a flag before sleep; the fence orders it before the look that must follow.
    fn raise(&self, flag: usize) {
        self.cell(flag).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes the peer's flag back after a count was published; true: it is to be woken.
    fn take(&self, flag: usize) -> bool {
        fence(Ordering::SeqCst);
        let cell = self.cell(flag);
        cell.load(Ordering::Relaxed) != 0 && cell.swap(0, Ordering::Relaxed) != 0
    }
}

/// The end that messages go in.
pub(super) struct Writer {
    ring: Ring,
    /// Bytes put in so far; published up to `published`.
    tail: u64,
    published: u64,
    /// The reader's count as it was seen last.
    head: u64,
}

/// The end that they come out.
pub(super) struct Reader {
    ring: Ring,
    /// Bytes taken so far; told to the writer up to `released`.
    head: u64,
    released: u64,
    /// The writer's count as it was seen last.
    tail: u64,
    /// Whether the flag was raised since the last look: clearing it costs the writer a cache miss.
    sleeps: Cell<bool>,
}

/// Both ends of one process.
pub(super) fn ends(memory: Memory, out: Way) -> (Writer, Reader) {
    let memory = Arc::new(memory);
    let back = match out {
        Way::Calls => Way::Answers,
        Way::Answers => Way::Calls,
    };
    let writer = Writer {
        ring: Ring {
            memory: Arc::clone(&memory),
            way: out,
        },
        tail: 0,
        published: 0,
        head: 0,
    };
    let ring = Ring { memory, way: back };
    let reader = Reader {
        ring,
        head: 0,
        released: 0,
        tail: 0,
        sleeps: Cell::new(false),
    };
    (writer, reader)
}

impl Writer {
    /// Puts a message in, unpublished; false: there is no room for it now.
    pub(super) fn push(&mut self, id: u32, body: &[u8]) -> std::result::Result<bool, Broken> {
        let len = HEADER_BYTES + body.len();
        if self.room() < len {
            self.look()?;
            if self.room() < len {
                return Ok(false);
            }
        }
        self.put(&encode_header(id, body.len()));
        self.put(body);
        Ok(true)
    }

    fn room(&self) -> usize {
        // `look` keeps head within RING_BYTES of tail.
        RING_BYTES - (self.tail - self.head) as usize
    }

    /// Learns how far the reader went.
    fn look(&mut self) -> std::result::Result<(), Broken> {
        let head = self.ring.cell(HEAD).load(Ordering::Acquire);
        if head < self.head || head > self.published {
            return Err(Broken::Protocol("a reader's count that cannot be"));
        }
        self.head = head;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        for (place, len) in self.ring.parts(self.tail, bytes.len()) {
            let (part, after) = rest.split_at(len);
            // SAFETY: `parts` lie inside the ring, and so in the view, which was mapped writable;
            // `part` is readable. Lost memory is the next look's to find.
            let _lost = unsafe { self.ring.memory.view().write(place, part.as_ptr(), len) };
            rest = after;
        }
        self.tail += bytes.len() as u64;
    }

    /// Shows the reader what was put in; true: it sleeps and is to be woken.
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        // Longer copies may be streaming stores, which `Release` does not order.
        order_stores();
        self.published = self.tail;
        self.ring.cell(TAIL).store(self.tail, Ordering::Release);
        self.ring.take(READER_SLEEPS)
    }

    /// Asks to be woken when the reader has made room. False: it has made some since.
    pub(super) fn sleep(&self) -> bool {
        self.ring.raise(WRITER_SLEEPS);
        self.ring.cell(HEAD).load(Ordering::Acquire) == self.head
    }
}

impl Reader {
    /// Copies the next message into `body`, as much as it is long; its id and length.
    ///
    /// # Panics
    /// If `body` is shorter than the longest message.
    pub(super) fn next(
        &mut self,
        body: &mut [u8],
    ) -> std::result::Result<Option<(u32, usize)>, Broken> {
        if self.head == self.tail && !self.look()? {
            return Ok(None);
        }
        let there = self.tail - self.head;
        if there < HEADER_BYTES as u64 {
            return Err(Broken::Protocol("half a header was published"));
        }
        let mut header = [0; HEADER_BYTES];
        self.copy(self.head, &mut header)?;
        let (len, id) = decode_header(header)?;
        if there < (HEADER_BYTES + len) as u64 {
            return Err(Broken::Protocol("half a message was published"));
        }
        self.copy(self.head + HEADER_BYTES as u64, &mut body[..len])?;
        self.head += (HEADER_BYTES + len) as u64;
        Ok(Some((id, len)))
    }

    /// Learns how far the writer went; false: nothing is there.
    fn look(&mut self) -> std::result::Result<bool, Broken> {
        let tail = self.ring.cell(TAIL).load(Ordering::Acquire);
        let there = tail.checked_sub(self.tail);
        if there.is_none_or(|there| there > RING_BYTES as u64) {
            return Err(Broken::Protocol("a writer's count that cannot be"));
        }
        self.tail = tail;
        Ok(tail != self.head)
    }

    fn copy(&self, count: u64, bytes: &mut [u8]) -> std::result::Result<(), Broken> {
        let mut rest = bytes;
        let len = rest.len();
        for (place, len) in self.ring.parts(count, len) {
            let (part, after) = rest.split_at_mut(len);
            // SAFETY: `parts` lie inside the ring, and so in the view; `part` is writable.
            let copied = unsafe { self.ring.memory.view().read(place, part.as_mut_ptr(), len) };
            copied.map_err(|_| Broken::Protocol("the shared memory was truncated"))?;
            rest = after;
        }
        Ok(())
    }

    /// Gives the place of what was taken back; true: the writer waits for it and is to be woken.
    pub(super) fn release(&mut self) -> bool {
        if self.released == self.head {
            return false;
        }
        self.released = self.head;
        self.ring.cell(HEAD).store(self.head, Ordering::Release);
        self.ring.take(WRITER_SLEEPS)
    }

    /// Asks to be woken by the next message. False: one is there already.
    pub(super) fn sleep(&self) -> bool {
        self.sleeps.set(true);
        self.ring.raise(READER_SLEEPS);
        self.ring.cell(TAIL).load(Ordering::Acquire) == self.head
    }

    /// Takes the wish to be woken back; whether there was one.
    pub(super) fn wake(&self) -> bool {
        let slept = self.sleeps.replace(false);
        if slept {
            self.ring.cell(READER_SLEEPS).store(0, Ordering::Relaxed);
        }
        slept
    }
}
