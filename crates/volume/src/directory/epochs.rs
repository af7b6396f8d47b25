//! Which epoch is current, and the slots in which workers say what they work in.
//!
//! A worker stores the epoch in its slot and then looks whether it is still the current one; who asks
//! whether an epoch is settled looks at the slots after it was made the current one. So either the slot
//! is seen, or the worker sees the new epoch and does nothing in the old one.
//!
//! Every interleaving is tried by `tests/protocols_loom.rs`, which compiles this file with the model's
//! atomics as `crate::sync`.

use crate::sync::{AtomicU64, Ordering, fence};

/// Epochs of one volume, counted from 1.
#[derive(Debug)]
pub struct Epochs {
    current: AtomicU64,
    slots: Box<[Slot]>,
    /// Every epoch below it is settled.
    settled: AtomicU64,
}

/// The oldest epoch a worker works in; `IDLE` when in none. A cache line each.
#[derive(Debug)]
#[repr(align(64))]
struct Slot(AtomicU64);

const FREE: u64 = u64::MAX;
const IDLE: u64 = u64::MAX - 1;

impl Epochs {
    /// With room for so many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            current: AtomicU64::new(1),
            slots: (0..workers).map(|_| Slot(AtomicU64::new(FREE))).collect(),
            settled: AtomicU64::new(1),
        }
    }

    /// The current epoch.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::SeqCst)
    }

    /// Makes an epoch the current one, once who enters it finds its snapshot.
    pub fn advance(&self, epoch: u64) {
        self.current.store(epoch, Ordering::SeqCst);
    }

    /// Whether no worker works in an epoch before `epoch`, which is not later than the current one.
    pub fn is_settled(&self, epoch: u64) -> bool {
        if self.settled.load(Ordering::Acquire) >= epoch {
            return true;
        }
        // Pairs with the store and the load of `enter`: either this scan sees the worker's
        // slot, or the worker sees the epoch that was published before this call.
        fence(Ordering::SeqCst);
        let settled = self
            .slots
            .iter()
            .all(|slot| slot.0.load(Ordering::SeqCst) >= epoch);
        if settled {
            self.settled.fetch_max(epoch, Ordering::AcqRel);
        }
        settled
    }

    /// Takes a slot; `None` when all are taken.
    pub fn take(&self) -> Option<usize> {
        self.slots.iter().position(|slot| {
            slot.0
                .compare_exchange(FREE, IDLE, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Gives a slot back.
    pub fn give_back(&self, slot: usize) {
        self.slots[slot].0.store(FREE, Ordering::SeqCst);
    }

    /// Says that nothing older than `epoch` is worked in, unless the worker still `holds_older`. Whether
    /// that is the current epoch, so that the worker may begin: otherwise it enters the current one.
    #[inline]
    pub fn enter(&self, slot: usize, epoch: u64, holds_older: bool) -> bool {
        if !holds_older {
            self.slots[slot].0.store(epoch, Ordering::SeqCst);
        }
        self.current.load(Ordering::SeqCst) == epoch
    }

    /// Says that nothing older than `oldest` is worked in any more; `None`: nothing at all.
    #[inline]
    pub fn leave(&self, slot: usize, oldest: Option<u64>) {
        self.slots[slot]
            .0
            .store(oldest.unwrap_or(IDLE), Ordering::Release);
    }
}
