//! Looking for rot before readers find it: every page that holds data, compared and healed.
//!
//! One thread with a worker of its own, begun when it is first asked for. A pass reads all that hosts
//! have of each page; what disagrees is healed or counted as corrupt by the same rules as a read
//! (`worker::page::gather`), under the same claims and epochs. It yields: it runs at the lowest
//! priority, a few pages at a time, waits while others are at work, and keeps to its rate.
//!
//! Concurrency: orders come through a lock and a bell; what it did is told by atomics.

mod thread;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use thread::Stopped;
pub use thread::run;

/// Pause between passes, so that a small volume is not read all the time.
const PASS_PAUSE: Duration = Duration::from_secs(60);

/// What the scrubber is to do, and what it did.
#[derive(Default)]
pub struct Scrub {
    orders: Mutex<Orders>,
    bell: Condvar,
    is_running: AtomicBool,
    passes: AtomicU64,
    pages_done: AtomicU64,
    pages_total: AtomicU64,
    last: Mutex<Option<ScrubReport>>,
}

#[derive(Clone, Copy, Default)]
struct Orders {
    /// Bytes per second, all the time; 0: not.
    rate: u64,
    /// One pass as fast as it goes.
    at_once: bool,
    ends: bool,
}

/// How scrubbing stands.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ScrubStatus {
    /// Bytes of pages per second that it looks at by itself; 0: none.
    pub rate_bytes: u64,
    /// Whether a pass is under way or ordered.
    pub is_running: bool,
    /// Pages of this pass looked at.
    pub pages_done: u64,
    /// Pages that held data when it began.
    pub pages_total: u64,
    /// Passes ended so far.
    pub passes: u64,
    /// What the last one found.
    pub last: Option<ScrubReport>,
}

/// What a pass found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ScrubReport {
    /// Pages looked at.
    pub pages: u64,
    /// Splits that were wrong.
    pub wrong_splits: u64,
    /// Of those, splits that were written again.
    pub healed_splits: u64,
    /// Pages of which it could not be told what is right.
    pub corrupt_pages: u64,
    /// Pages that could not be read.
    pub unreadable_pages: u64,
    /// How long it took.
    pub took_ms: u64,
}

impl Scrub {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders());
        self.bell.notify_all();
    }

    /// Looks at pages all the time, at so many bytes per second; 0: no more, which ends the pass.
    pub fn set_rate(&self, rate: u64) {
        self.order(|orders| orders.rate = rate);
    }

    /// Has one pass begin at once.
    pub fn begin(&self) {
        self.order(|orders| orders.at_once = true);
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.order(|orders| orders.ends = true);
    }

    /// How it stands.
    pub fn status(&self) -> ScrubStatus {
        let orders = *self.orders();
        ScrubStatus {
            rate_bytes: orders.rate,
            is_running: self.is_running.load(Ordering::Acquire) || orders.at_once,
            pages_done: self.pages_done.load(Ordering::Relaxed),
            pages_total: self.pages_total.load(Ordering::Relaxed),
            passes: self.passes.load(Ordering::Acquire),
            last: *self.last.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Waits for something to do; `None`: to end. Whether the pass keeps to the rate.
    fn wait(&self, mut pause: Duration) -> Option<bool> {
        let mut orders = self.orders();
        loop {
            if orders.ends {
                return None;
            }
            if std::mem::take(&mut orders.at_once) {
                self.is_running.store(true, Ordering::Release);
                return Some(false);
            }
            if orders.rate > 0 && pause.is_zero() {
                self.is_running.store(true, Ordering::Release);
                return Some(true);
            }
            let limit = if orders.rate > 0 {
                pause
            } else {
                Duration::MAX
            };
            let waited = self.bell.wait_timeout(orders, limit.min(PASS_PAUSE));
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            orders = back;
            if timeout.timed_out() && orders.rate > 0 {
                pause = Duration::ZERO;
            }
        }
    }

    /// Stands back for a while, or until `ends_early`.
    fn pause(&self, pause: Duration, ends_early: impl Fn(&Orders) -> bool) -> Result<(), Stopped> {
        let until = Instant::now() + pause;
        let mut orders = self.orders();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if orders.ends {
                return Err(Stopped::Closed);
            }
            if left.is_zero() || ends_early(&orders) {
                return Ok(());
            }
            let waited = self.bell.wait_timeout(orders, left);
            orders = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
