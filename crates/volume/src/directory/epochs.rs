//! Who works in which epoch of a directory.
//!
//! A worker publishes its epoch and looks whether it is still the newest; who publishes an epoch makes it
//! the newest and looks at the workers. So either the worker learns of the new epoch, or it is waited for.
//!
//! Every interleaving is tried by `tests/interleavings.rs`, which compiles this file with the model's
//! atomics as `crate::sync`.

use crate::sync::{AtomicU64, Ordering, fence};

/// The newest epoch, and the oldest that each worker works in.
#[derive(Debug)]
pub struct Epochs {
    newest: AtomicU64,
    workers: Box<[WorkerSlot]>,
    /// Every epoch below it is settled.
    settled: AtomicU64,
}

/// The oldest epoch a worker works in; `IDLE` when in none. A cache line each.
#[derive(Debug)]
#[repr(align(64))]
struct WorkerSlot(AtomicU64);

const FREE: u64 = u64::MAX;
const IDLE: u64 = u64::MAX - 1;

impl Epochs {
    /// Epoch 1, with room for so many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            newest: AtomicU64::new(1),
            workers: (0..workers)
                .map(|_| WorkerSlot(AtomicU64::new(FREE)))
                .collect(),
            settled: AtomicU64::new(1),
        }
    }

    /// The newest.
    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::SeqCst)
    }

    /// Makes an epoch the newest. One caller at a time.
    pub fn begin(&self, epoch: u64) {
        self.newest.store(epoch, Ordering::SeqCst);
    }

    /// Whether no worker works in an epoch before `epoch`.
    pub fn is_settled(&self, epoch: u64) -> bool {
        if self.settled.load(Ordering::Acquire) >= epoch {
            return true;
        }
        // With the loads and stores of `enter`, which are in one order with this: either this scan
        // sees the worker's slot, or the worker sees the epoch that was begun before this call.
        fence(Ordering::SeqCst);
        let settled = self
            .workers
            .iter()
            .all(|slot| slot.0.load(Ordering::SeqCst) >= epoch);
        if settled {
            self.settled.fetch_max(epoch, Ordering::AcqRel);
        }
        settled
    }

    /// A slot for a worker, unless all are taken.
    pub fn claim(&self) -> Option<usize> {
        self.workers.iter().position(|slot| {
            slot.0
                .compare_exchange(FREE, IDLE, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Publishes the newest epoch as worked in, unless the worker still `holds_older`. It knows `known`, and
    /// `look` tells it a newer one.
    pub fn enter(
        &self,
        worker: usize,
        holds_older: bool,
        mut known: u64,
        mut look: impl FnMut() -> u64,
    ) {
        loop {
            if !holds_older {
                self.workers[worker].0.store(known, Ordering::SeqCst);
            }
            if self.newest.load(Ordering::SeqCst) == known {
                return;
            }
            known = look();
        }
    }

    /// Publishes that the worker works in nothing older than `epoch` any more; `None`: in nothing at all.
    pub fn leave(&self, worker: usize, oldest: Option<u64>) {
        let oldest = oldest.unwrap_or(IDLE);
        self.workers[worker].0.store(oldest, Ordering::Release);
    }

    /// Gives a slot back.
    pub fn release(&self, worker: usize) {
        self.workers[worker].0.store(FREE, Ordering::SeqCst);
    }
}
