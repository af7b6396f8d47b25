//! The mappings that the SIGBUS handler knows: added and removed under a lock, found without one.
//!
//! A slot's base changes only while its length is 0, and a lookup believes a base only between two equal
//! lengths. What it finds is the mapping that faulted, or none: that one cannot go, since whoever made the
//! access borrows it.
//!
//! Every interleaving is tried by `tests/protocols_loom.rs`, which compiles this file with the model's
//! atomics as `crate::sync`.

use std::io;
use std::ptr;
use std::sync::PoisonError;

use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize, Mutex, Ordering, fence};

/// What the handler knows about one mapping. Never freed, reused by later mappings.
#[repr(align(32))]
pub struct Slot {
    base: AtomicUsize,
    len_bytes: AtomicUsize,
    dead: AtomicBool,
}

impl Slot {
    fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            len_bytes: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
        }
    }

    /// Whether the mapping has lost its memory. Ask after the access.
    #[inline]
    pub fn is_dead(&self) -> bool {
        // The accesses before must not be seen after the flag: a fault elsewhere sets it first and
        // replaces the memory second.
        fence(Ordering::Acquire);
        self.dead.load(Ordering::Relaxed)
    }

    /// Declares the memory lost, before it is.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    /// Where the mapping begins, and its length. For whoever knows that it cannot go.
    pub fn range(&self) -> (usize, usize) {
        (
            self.base.load(Ordering::Acquire),
            self.len_bytes.load(Ordering::Acquire),
        )
    }

    fn covers(&self, address: usize) -> bool {
        let len_bytes = self.len_bytes.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Acquire);
        len_bytes != 0
            && self.len_bytes.load(Ordering::Acquire) == len_bytes
            && address.wrapping_sub(base) < len_bytes
    }
}

/// All slots, in chunks of which each is twice as long as the one before.
pub struct Table {
    chunks: [AtomicPtr<Slot>; CHUNK_COUNT_MAX],
    free: Mutex<Free>,
    /// Slots of the first chunk.
    first: usize,
}

/// Slots without a mapping, and how many chunks stand.
struct Free {
    slots: Vec<&'static Slot>,
    chunk_count: usize,
}

impl Table {
    pub fn new(first: usize) -> Self {
        Self {
            chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            free: Mutex::new(Free {
                slots: Vec::new(),
                chunk_count: 0,
            }),
            first,
        }
    }

    /// Makes the mapping at `base` known.
    ///
    /// # Errors
    /// There are more than any kernel allows.
    pub fn add(&self, base: usize, len_bytes: usize) -> io::Result<&'static Slot> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match free.slots.pop() {
            Some(slot) => slot,
            None => self.grow(&mut free)?,
        };
        slot.base.store(base, Ordering::Release);
        slot.dead.store(false, Ordering::Release);
        slot.len_bytes.store(len_bytes, Ordering::SeqCst);
        Ok(slot)
    }

    /// Forgets a mapping that nobody accesses any more; call it before the unmapping.
    pub fn remove(&self, slot: &'static Slot) {
        // The base stays: a lookup believes one between two equal lengths, and these may be of two mappings.
        // Another base that neither has would make the first addresses of others one of the next.
        slot.len_bytes.store(0, Ordering::SeqCst);
        self.free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .slots
            .push(slot);
    }

    /// Adds a chunk and takes its first slot.
    fn grow(&self, free: &mut Free) -> io::Result<&'static Slot> {
        let place = self
            .chunks
            .get(free.chunk_count)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let len = self.first << free.chunk_count;
        let chunk: &'static [Slot] = (0..len).map(|_| Slot::new()).collect::<Vec<_>>().leak();
        place.store(chunk.as_ptr().cast_mut(), Ordering::Release);
        free.chunk_count += 1;
        free.slots.extend(chunk[1..].iter().rev());
        Ok(&chunk[0])
    }

    /// The mapping that an address belongs to which was just accessed, without a lock.
    pub fn find(&self, address: usize) -> Option<&'static Slot> {
        for (index, chunk) in self.chunks.iter().enumerate() {
            let start = chunk.load(Ordering::Acquire);
            if start.is_null() {
                return None;
            }
            // SAFETY: a chunk that is stored was leaked with exactly this length, initialised before.
            let slots = unsafe { std::slice::from_raw_parts(start, self.first << index) };
            if let Some(slot) = slots.iter().find(|slot| slot.covers(address)) {
                return Some(slot);
            }
        }
        None
    }
}

/// With 256 slots in the first, 256 * (2^16 - 1) mappings: far above the kernel's own limit of 65530 per
/// process.
const CHUNK_COUNT_MAX: usize = 16;
