//! What brings pages to a volume's other layout, chunk by chunk as the control thread says.
//!
//! It has a worker of its own, begun with the first change of k, and does a chunk at a time: pages that hold
//! nothing by their bit alone, the others by page operations (`worker::page::migration`). What it could not
//! do of a chunk is done when that is asked for again.
//!
//! [`run`] decides what is next, without thread or clock, and drives that: on a thread, or step by step
//! where its caller does the steps.
//!
//! Concurrency: one order and one answer, under a lock; the control thread is woken by the answer.

pub mod run;

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the migrator is to do, and how the last chunk ended.
#[derive(Default)]
pub struct Migrator {
    orders: Mutex<Orders>,
    bell: Condvar,
}

#[derive(Default)]
struct Orders {
    chunk: Option<Range<u64>>,
    is_whole: Option<bool>,
    ends: bool,
}

impl Migrator {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has these pages moved; the answer is taken by [`Migrator::answer`].
    pub fn ask(&self, pages: Range<u64>) {
        self.orders().chunk = Some(pages);
        self.bell.notify_all();
    }

    /// Whether all of the chunk that was asked for is moved; `None`: it is at it.
    pub fn answer(&self) -> Option<bool> {
        self.orders().is_whole.take()
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.orders().ends = true;
        self.bell.notify_all();
    }

    fn tell(&self, is_whole: bool) {
        self.orders().is_whole = Some(is_whole);
    }

    /// The next chunk; `None`: to end.
    fn wait(&self) -> Option<Range<u64>> {
        let mut orders = self.orders();
        loop {
            if orders.ends {
                return None;
            }
            if let Some(chunk) = orders.chunk.take() {
                return Some(chunk);
            }
            let waited = self.bell.wait(orders);
            orders = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
