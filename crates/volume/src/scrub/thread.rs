//! The scrubber's thread.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{PASS_PAUSE, ScrubReport};
use crate::core::Core;
use crate::worker::Worker;
use crate::{IoError, PAGE_BYTES};

/// Pages between two looks at orders, at the rate and at who else is at work.
const BATCH: u64 = 16;
/// How long it stands back when others are at work, at most as long as it worked itself.
const STEP_BACK: Duration = Duration::from_millis(1);

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

/// Lets others go first, and keeps to the rate unless a pass at once waits for the end of this one;
/// false when it is to end.
fn yields(core: &Core, begun: Instant, pages: u64, keeps_rate: bool) -> bool {
    let scrub = &core.helpers.scrub;
    let orders = *scrub.orders();
    let due = match orders.rate {
        _ if !keeps_rate || orders.at_once => Duration::ZERO,
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
        return scrub.pause(ahead, |orders| orders.at_once);
    }
    let before = at_work();
    std::thread::yield_now();
    if at_work() != before {
        return scrub.pause(STEP_BACK, |_| false);
    }
    scrub.pause(Duration::ZERO, |_| false)
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
