//! Epochs: when has every thread seen a change that was made.
//!
//! A thread pins the current epoch while it works on the log, and unpins when it is done. Who moves
//! an address that others compare with (the read-only address, the head) bumps the epoch; once
//! [`Epochs::is_past`] says so, nobody works with the old address any more. No thread blocks while
//! it is pinned.
//!
//! Own and not `crossbeam-epoch`: the question here is "has everybody passed?", asked in between
//! other work, and not "run this some time later"; nothing is allocated, and a model checker can go
//! through it (`tests/log_loom.rs`).

use super::sync::{AtomicU64, Ordering, fence};

/// The current epoch, and what each thread has pinned.
pub struct Epochs {
    /// Starts at 1; 0 in a slot means unpinned.
    current: AtomicU64,
    slots: Box<[Slot]>,
}

/// One thread's. A pair of cache lines, since processors fetch them in pairs.
#[repr(align(128))]
struct Slot {
    /// The epoch that the thread pinned, or 0. Written by that thread alone.
    pinned: AtomicU64,
    /// 1 while a thread owns the slot.
    taken: AtomicU64,
}

impl Epochs {
    /// Epochs for up to `threads` threads at a time.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let slot = |_| Slot {
            pinned: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        };
        Self {
            current: AtomicU64::new(1),
            slots: (0..threads).map(slot).collect(),
        }
    }

    /// A slot for a thread, unless all are taken.
    pub fn claim(&self) -> Option<usize> {
        self.slots.iter().position(|slot| {
            slot.taken
                .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Gives a slot back that was claimed and is not pinned.
    pub fn release(&self, slot: usize) {
        self.slots[slot].taken.store(0, Ordering::Release);
    }

    /// Pins the current epoch for the thread that owns `slot`, until the result is dropped.
    #[inline]
    #[must_use]
    pub fn pin(&self, slot: usize) -> Pin<'_> {
        let pinned = &self.slots[slot].pinned;
        pinned.store(self.current.load(Ordering::Acquire), Ordering::Relaxed);
        // With the one of `is_past`: either that one sees this slot, or what is loaded from here
        // on is what was stored before the bump.
        fence(Ordering::SeqCst);
        Pin { pinned }
    }

    /// Begins a new epoch and returns the one that ends. What the caller stored before is seen by
    /// everybody once [`Epochs::is_past`] the result.
    pub fn bump(&self) -> u64 {
        self.current.fetch_add(1, Ordering::AcqRel)
    }

    /// Whether no thread works in `epoch` or one before it.
    #[must_use]
    pub fn is_past(&self, epoch: u64) -> bool {
        fence(Ordering::SeqCst);
        self.slots.iter().all(|slot| {
            let pinned = slot.pinned.load(Ordering::Acquire);
            pinned == 0 || pinned > epoch
        })
    }
}

/// A thread at work. Unpins when it is dropped.
pub struct Pin<'a> {
    pinned: &'a AtomicU64,
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.pinned.store(0, Ordering::Release);
    }
}
