//! Looking for rot before readers find it: every page that holds data, compared and healed.
//!
//! One thread with a worker of its own, begun when it is first asked for. A pass reads all that hosts
//! have of each page; what disagrees is healed or counted as corrupt by the same rules as a read
//! (`worker::page::gather`), under the same claims and epochs. It yields: it runs at the lowest
//! priority, a few pages at a time, waits while others are at work, and keeps to its rate.
//!
//! Concurrency: orders come through a lock and a bell; what it did is told by atomics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::core::Core;
use crate::worker::Worker;
use crate::{IoError, PAGE_BYTES};

/// Pages between two looks at orders, at the rate and at who else is at work.
const BATCH: u64 = 16;
/// How long it stands back when others are at work, at most as long as it worked itself.
const STEP_BACK: Duration = Duration::from_millis(1);
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

    /// Looks at pages all the time, at so many bytes per second; 0: no more.
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

    /// Stands back for a while; false when it is to end.
    fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut orders = self.orders();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if orders.ends || left.is_zero() {
                return !orders.ends;
            }
            let waited = self.bell.wait_timeout(orders, left);
            orders = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The scrubber's thread.
pub fn run(core: &Core, mut worker: Worker) {
    step_back();
    let scrub = &core.helpers.scrub;
    let mut pause = Duration::ZERO;
    while let Some(keeps_rate) = scrub.wait(pause) {
        let span = tracing::info_span!(
            "scrub volume",
            cenote.pages = tracing::field::Empty,
            cenote.wrong_splits = tracing::field::Empty,
        );
        let report = pass(core, &mut worker, keeps_rate);
        if let Some(report) = report {
            span.record("cenote.pages", report.pages as i64);
            span.record("cenote.wrong_splits", report.wrong_splits as i64);
            let wrong = report.wrong_splits + report.corrupt_pages;
            if wrong > 0 {
                tracing::warn!(?report, "a scrub found what was wrong");
            }
            *scrub.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
            scrub.passes.fetch_add(1, Ordering::AcqRel);
        }
        scrub.is_running.store(false, Ordering::Release);
        pause = PASS_PAUSE;
    }
}

/// Looks at every page once; `None` when it is to end.
fn pass(core: &Core, worker: &mut Worker, keeps_rate: bool) -> Option<ScrubReport> {
    let scrub = &core.helpers.scrub;
    let end = core.size_bytes.load(Ordering::Acquire) / PAGE_BYTES as u64;
    let total = core.pages.marks.written.count(0, end);
    scrub.pages_total.store(total, Ordering::Relaxed);
    scrub.pages_done.store(0, Ordering::Relaxed);
    let begun = Instant::now();
    let (mut report, mut next) = (ScrubReport::default(), 0);
    let (wrong_before, healed_before) = worker.scrubbed();
    while let Some(page) = core.pages.marks.written.next(next, end, true) {
        next = page + 1;
        match worker.scrub(page) {
            Ok(()) => {}
            Err(IoError::Corrupt) => report.corrupt_pages += 1,
            Err(IoError::Closed) => return None,
            Err(_) => report.unreadable_pages += 1,
        }
        report.pages += 1;
        scrub.pages_done.store(report.pages, Ordering::Relaxed);
        if report.pages % BATCH == 0 && !yields(core, begun, report.pages, keeps_rate) {
            return None;
        }
    }
    let (wrong, healed) = worker.scrubbed();
    report.wrong_splits = wrong - wrong_before;
    report.healed_splits = healed - healed_before;
    report.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Some(report)
}

/// Lets others go first, and keeps to the rate; false when it is to end.
fn yields(core: &Core, begun: Instant, pages: u64, keeps_rate: bool) -> bool {
    let scrub = &core.helpers.scrub;
    let rate = scrub.orders().rate;
    let due = match rate {
        _ if !keeps_rate => Duration::ZERO,
        0 => Duration::ZERO,
        rate => Duration::from_secs_f64((pages * PAGE_BYTES as u64) as f64 / rate as f64),
    };
    let ahead = due.saturating_sub(begun.elapsed());
    let counters = &core.measures.counters;
    let at_work = || {
        let (reads, writes) = (&counters.pages_read, &counters.pages_written);
        reads.load(Ordering::Relaxed) + writes.load(Ordering::Relaxed)
    };
    if !ahead.is_zero() {
        return scrub.pause(ahead);
    }
    let before = at_work();
    std::thread::yield_now();
    if at_work() != before {
        return scrub.pause(STEP_BACK);
    }
    scrub.pause(Duration::ZERO)
}

/// Gives this thread the lowest priority.
fn step_back() {
    // SAFETY: no pointers; 0 is the calling thread.
    let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) } != 0;
    if refused {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "lower the scrubber's priority");
    }
}
