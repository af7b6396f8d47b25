//! Turns workers of a pool that no thread is using, and that have something left to do.
//!
//! A write that failed for want of reach keeps its page, and is written once hosts answer again: by its
//! worker. The thread that used it may never come back, and others take another worker.
//!
//! Invariant: a worker that was given back with a deadline is turned within [`TEND_EVERY`], or in use. Who
//! gives one back asks before its lock is free; the thread forgets what was asked before it looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::shared::Shared;
use crate::{VolumeError, Worker};

/// Between two turns of workers that nobody is using. Short beside the wait for a host; arbitrary.
const TEND_EVERY: Duration = Duration::from_millis(100);

/// The thread that does it: it sleeps while no worker has a deadline, and ends with this.
pub struct Tender {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Orders {
    is_asked: AtomicBool,
    is_over: AtomicBool,
}

impl Tender {
    /// # Errors
    /// The system has no more threads.
    pub fn start(workers: Arc<Shared<Worker>>) -> Result<Self, VolumeError> {
        let orders = Arc::<Orders>::default();
        let thread = {
            let orders = Arc::clone(&orders);
            crate::volume::start("cenote-tend", move || run(&workers, &orders))?
        };
        Ok(Self {
            orders,
            thread: Some(thread),
        })
    }

    /// A worker that is about to be given back has something left to do.
    pub fn ask(&self) {
        let was_asked = self.orders.is_asked.swap(true, Ordering::AcqRel);
        if let Some(thread) = self.thread.as_ref().filter(|_| !was_asked) {
            thread.thread().unpark();
        }
    }
}

impl Drop for Tender {
    fn drop(&mut self) {
        self.orders.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that tends workers has panicked");
            }
        }
    }
}

impl Orders {
    /// Waits until it is asked for, and for the time between two turns; false when it is over.
    fn wait(&self) -> bool {
        let is_over = || self.is_over.load(Ordering::Acquire);
        while !self.is_asked.load(Ordering::Acquire) && !is_over() {
            std::thread::park();
        }
        let due = Instant::now() + TEND_EVERY;
        while !is_over() {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::park_timeout(left);
        }
        false
    }
}

fn run(workers: &Shared<Worker>, orders: &Orders) {
    while orders.wait() {
        orders.is_asked.swap(false, Ordering::AcqRel);
        if tend(workers) {
            orders.is_asked.store(true, Ordering::Release);
        }
    }
}

/// Turns each worker that is free and has a deadline; whether some are to be looked at again.
fn tend(workers: &Shared<Worker>) -> bool {
    let mut has_more = false;
    for at in 0..workers.count() {
        let Some(mut worker) = workers.try_get(at) else {
            // Who has it may have asked before.
            has_more = true;
            continue;
        };
        if worker.deadline().is_some() {
            worker.drive();
            has_more |= worker.deadline().is_some();
        }
    }
    has_more
}
