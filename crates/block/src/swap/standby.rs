//! Keeps the second processor of a small machine awake while pages are asked for.
//!
//! The kernel starts the loop device's worker for each request, on a processor that idles where
//! there is one. With two of them that is always the one that the program is not on, and waking it,
//! and the program from there, takes longer than all else of a fault: on a virtual machine some
//! 6 us each, beside 2 us for a switch on the same processor. A thread of the lowest priority that
//! yields in a loop makes that processor look busy: the worker, the serving thread and the program
//! then follow each other on one. It runs while requests follow each other closely, and sleeps
//! otherwise, and when something else wants the processor: priorities count within a group of the
//! scheduler alone.
//! Not for more than two processors: there would be many to keep awake.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The thread; it ends when this is dropped.
pub(super) struct Standby {
    shared: Arc<Shared>,
    /// `None` while it is dropped.
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Requests so far; serving threads count them.
    requests: AtomicU64,
    /// Set by the thread before it sleeps, cleared by who wakes it.
    sleeps: AtomicBool,
    ends: AtomicBool,
}

/// Tells the thread of requests; each serving thread has one.
pub(super) struct Pulse {
    shared: Arc<Shared>,
    thread: Thread,
    last: Option<Instant>,
}

impl Standby {
    /// Starts the thread, asleep.
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("swap-standby".to_owned())
            .spawn(move || stand_by(&told))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// For a serving thread.
    pub(super) fn pulse(&self) -> Option<Pulse> {
        let thread = self.thread.as_ref()?.thread().clone();
        Some(Pulse {
            shared: Arc::clone(&self.shared),
            thread,
            last: None,
        })
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.sleeps.store(false, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else {
            return;
        };
        thread.thread().unpark();
        if thread.join().is_err() {
            tracing::error!("the thread that keeps a processor awake panicked");
        }
    }
}

impl Pulse {
    /// A request was served at `now`. Wakes the thread when the one before it was close; whether it did.
    pub(super) fn beat(&mut self, now: Instant) -> bool {
        let last = self.last.replace(now);
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        let is_close = last.is_some_and(|last| now.saturating_duration_since(last) < GAP);
        let wakes = is_close
            && self.shared.sleeps.load(Ordering::Relaxed)
            && self.shared.sleeps.swap(false, Ordering::SeqCst);
        if wakes {
            self.thread.unpark();
        }
        wakes
    }
}

/// The life of the thread.
fn stand_by(shared: &Shared) {
    // Without that it would take a share from programs: then none of it.
    // SAFETY: setpriority takes integers only; 0 is this thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LEAST_PRIORITY) } != 0 {
        let error = io::Error::last_os_error();
        tracing::warn!(%error, "lower the priority of a thread; processors idle between requests");
        return;
    }
    while !shared.ends.load(Ordering::SeqCst) {
        shared.sleeps.store(true, Ordering::SeqCst);
        while shared.sleeps.load(Ordering::SeqCst) && !shared.ends.load(Ordering::SeqCst) {
            std::thread::park();
        }
        let mut watch = Watch::new(shared.requests.load(Ordering::Relaxed), Instant::now());
        while watch.goes_on(shared.requests.load(Ordering::Relaxed), Instant::now()) {
            let before = Instant::now();
            std::thread::yield_now();
            if before.elapsed() > RUN {
                break;
            }
        }
    }
}

/// Whether requests still follow each other closely.
struct Watch {
    requests: u64,
    since: Instant,
}

impl Watch {
    fn new(requests: u64, now: Instant) -> Self {
        Self {
            requests,
            since: now,
        }
    }

    /// False once the count has stood still for [`GAP`].
    fn goes_on(&mut self, requests: u64, now: Instant) -> bool {
        if requests != self.requests {
            *self = Self::new(requests, now);
        }
        now.saturating_duration_since(self.since) < GAP
    }
}

/// Requests that are further apart do not follow each other closely. Arbitrary, several times what
/// a fault takes.
const GAP: Duration = Duration::from_micros(200);
/// Away for longer, the thread was not alone on its processor. Arbitrary, longer than a request is served.
const RUN: Duration = Duration::from_micros(50);
const LEAST_PRIORITY: libc::c_int = 19;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_as_long_as_requests_come() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut watch = Watch::new(7, start);
        assert!(watch.goes_on(7, at(199)));
        assert!(watch.goes_on(8, at(199)));
        assert!(watch.goes_on(8, at(398)));
        assert!(!watch.goes_on(8, at(399)));
        assert!(watch.goes_on(9, at(1000)), "awake again with the next");
    }

    #[test]
    fn requests_that_are_close_wake_it_and_others_do_not() {
        let standby = Standby::start().unwrap();
        let shared = Arc::clone(&standby.shared);
        let sleeps = || shared.sleeps.load(Ordering::SeqCst);
        while !sleeps() {
            std::thread::yield_now();
        }
        let start = Instant::now();
        let mut pulse = standby.pulse().unwrap();
        assert!(!pulse.beat(start));
        assert!(!pulse.beat(start + GAP), "requests that are far apart");
        assert!(sleeps());
        assert!(pulse.beat(start + GAP * 3 / 2));
        // It is awake until it has seen no request for a while, then asleep again.
        while !sleeps() {
            std::thread::yield_now();
        }
        assert_eq!(shared.requests.load(Ordering::Relaxed), 3);
        drop(standby);
        assert_eq!(
            Arc::strong_count(&shared),
            2,
            "the thread is gone, a pulse is left"
        );
    }
}
