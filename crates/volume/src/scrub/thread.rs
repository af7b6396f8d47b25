//! The scrubber's thread.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Orders, PASS_PAUSE, ScrubReport};
use crate::core::Core;
use crate::worker::Worker;
use crate::{IoError, PAGE_BYTES};

/// Pages between two looks at orders, at the rate and at who else is at work.
const BATCH: u64 = 16;
/// How long it stands back when others are at work, at most as long as it worked itself.
const STEP_BACK: Duration = Duration::from_millis(1);

/// Why a pass ends early.
pub(super) enum Stopped {
    /// Pages are not to be looked at by themselves any more.
    Off,
    /// The volume ends.
    Closed,
}

/// How fast a pass may go, since that was said last.
struct Pace {
    keeps_rate: bool,
    rate: u64,
    since: Instant,
    pages: u64,
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
        let ended = pass(core, &mut worker, keeps_rate);
        if let Ok(report) = ended {
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
        pause = match ended {
            Ok(_) | Err(Stopped::Closed) => PASS_PAUSE,
            // It begins at once when it is turned on again.
            Err(Stopped::Off) => Duration::ZERO,
        };
    }
}

/// Looks at every page once.
fn pass(core: &Core, worker: &mut Worker, keeps_rate: bool) -> Result<ScrubReport, Stopped> {
    let scrub = &core.helpers.scrub;
    let end = core.size_bytes.load(Ordering::Acquire) / PAGE_BYTES as u64;
    let total = core.pages.marks.written.count(0, end);
    scrub.pages_total.store(total, Ordering::Relaxed);
    scrub.pages_done.store(0, Ordering::Relaxed);
    let begun = Instant::now();
    let mut pace = Pace {
        keeps_rate,
        rate: scrub.orders().rate,
        since: begun,
        pages: 0,
    };
    let (mut report, mut next) = (ScrubReport::default(), 0);
    let (wrong_before, healed_before) = worker.scrubbed();
    while let Some(page) = core.pages.marks.written.next(next, end, true) {
        next = page + 1;
        match worker.scrub(page) {
            Ok(()) => {}
            Err(IoError::Corrupt) => report.corrupt_pages += 1,
            Err(IoError::Closed) => return Err(Stopped::Closed),
            Err(_) => report.unreadable_pages += 1,
        }
        report.pages += 1;
        scrub.pages_done.store(report.pages, Ordering::Relaxed);
        if report.pages % BATCH == 0 {
            pace.pages += BATCH;
            pace.keep(core)?;
        }
    }
    let (wrong, healed) = worker.scrubbed();
    report.wrong_splits = wrong - wrong_before;
    report.healed_splits = healed - healed_before;
    report.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

impl Pace {
    /// Keeps to the rate, then lets others go first.
    fn keep(&mut self, core: &Core) -> Result<(), Stopped> {
        let scrub = &core.helpers.scrub;
        loop {
            let ahead = self.ahead(*scrub.orders())?;
            if ahead.is_zero() {
                break;
            }
            let rate = self.rate;
            scrub.pause(ahead, |orders| orders.at_once || orders.rate != rate)?;
        }
        let counters = &core.measures.counters;
        let at_work = || {
            let (reads, writes) = (&counters.pages_read, &counters.pages_written);
            reads.load(Ordering::Relaxed) + writes.load(Ordering::Relaxed)
        };
        let before = at_work();
        std::thread::yield_now();
        let pause = match at_work() == before {
            true => Duration::ZERO,
            false => STEP_BACK,
        };
        scrub.pause(pause, |_| false)
    }

    /// How far it is ahead of the rate, which a pass at once does not wait for.
    fn ahead(&mut self, orders: Orders) -> Result<Duration, Stopped> {
        if orders.rate != self.rate {
            (self.rate, self.since, self.pages) = (orders.rate, Instant::now(), 0);
        }
        if self.keeps_rate && self.rate == 0 {
            return Err(Stopped::Off);
        }
        if !self.keeps_rate || orders.at_once {
            return Ok(Duration::ZERO);
        }
        let bytes = self.pages * PAGE_BYTES as u64;
        let due = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        Ok(due.saturating_sub(self.since.elapsed()))
    }
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
