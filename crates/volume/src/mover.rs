//! The thread that brings pages to a volume's other side, chunk by chunk as the control thread says.
//!
//! It has a worker of its own, begun with the first change of k, and does a chunk at a time: pages that hold
//! nothing by their bit alone, the others by page operations (`worker::page::moved`). What it could not
//! do of a chunk is done when that is asked for again.
//!
//! Concurrency: one order and one answer, under a lock; the control thread is woken by the answer.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::PAGE_BYTES;
use crate::core::Core;
use crate::worker::Worker;

/// What the mover is to do, and how the last chunk ended.
#[derive(Default)]
pub struct Mover {
    orders: Mutex<Orders>,
    bell: Condvar,
}

#[derive(Default)]
struct Orders {
    chunk: Option<Range<u64>>,
    is_whole: Option<bool>,
    ends: bool,
}

/// Pages of one request: what a worker has operations for.
const RUN_PAGES: u64 = crate::worker::OPS_MAX as u64;

impl Mover {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has these pages moved; the answer is taken by [`Mover::answer`].
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

/// The mover's thread.
pub fn run(core: &Core, mut worker: Worker) {
    while let Some(chunk) = core.mover.wait() {
        let is_whole = move_chunk(core, &mut worker, chunk);
        core.mover.orders().is_whole = Some(is_whole);
        core.wake.wake();
    }
}

/// Moves what it can of a chunk; whether that is all.
fn move_chunk(core: &Core, worker: &mut Worker, chunk: Range<u64>) -> bool {
    let (mut next, mut is_whole) = (chunk.start, true);
    while next < chunk.end {
        let written = core.marks.written.next(next, chunk.end, true);
        let first = written.unwrap_or(chunk.end);
        for page in next..first {
            is_whole &= pass_empty(core, page);
        }
        if first == chunk.end {
            break;
        }
        let most = chunk.end.min(first + RUN_PAGES).min(page_end(core));
        let end = core.marks.written.next(first, most, false).unwrap_or(most);
        is_whole &= worker.move_pages(first, end - first).is_ok();
        next = end;
    }
    is_whole
}

/// Past the last page that may be written now.
fn page_end(core: &Core) -> u64 {
    core.size_bytes.load(Ordering::Acquire) / PAGE_BYTES as u64
}

/// Has a page that holds nothing be on the side where it is to be; false when somebody is at it.
fn pass_empty(core: &Core, page: u64) -> bool {
    let target = core.sides.target();
    if core.sides.side_of(page) == target {
        return true;
    }
    if !core.claims.try_claim(page) {
        return false;
    }
    let is_empty = !core.marks.written.contains(page);
    if is_empty {
        core.sides.pass(page, target);
    }
    core.claims.release(page);
    is_empty
}
