//! The service for caches: server threads that carry out batches of reads and writes.
//!
//! Each thread answers the calls of the connections that the listener gave it, and blocks when
//! there are none. The window's generation is checked when an operation runs. Pages
//! of volumes and grants never wait for these threads. A panic ends the process (decision 65).
//! Calls that are no batches are procedures' ([`crate::procedures`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cenote_fabric::calls::{Answered, Answerer, Answering, Call, Spin, Spinner};
use cenote_fabric::{Connector, Generation, Status, Time, Waker, WindowId, Windows};
use cenote_pool::batch::{BATCH, BATCH_BYTES_MAX, Item, Items, Outcome, begin_answer};
use cenote_pool::control::Malformed;

use crate::owners::Owners;
use crate::procedures::{Running, Shared, Worker};
use crate::{Error, Result, procedures};

/// The threads. Dropping it ends them.
pub(crate) struct CacheThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<(Waker, JoinHandle<()>)>,
}

impl CacheThreads {
    /// No thread.
    pub(crate) fn none() -> Self {
        Self {
            stop: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// One thread for each of `answerers`. To other hosts this one is `name`.
    ///
    /// # Errors
    /// `Os`: the system has no thread left.
    pub(crate) fn start(
        answerers: Vec<Answerer>,
        windows: &Windows,
        owners: &Owners,
        running: Running,
        (name, connector): (&str, Box<dyn Connector>),
        modules: Option<std::path::PathBuf>,
    ) -> Result<Self> {
        let mut all = Self::none();
        if answerers.is_empty() {
            return Ok(all);
        }
        let wakers = answerers.iter().map(Answerer::waker).collect();
        let (shared, workers) =
            procedures::start(wakers, windows, owners, running, (name, connector), modules)?;
        for (index, (answerer, worker)) in answerers.into_iter().zip(workers).enumerate() {
            let waker = answerer.waker();
            let thread = Thread {
                index,
                stop: Arc::clone(&all.stop),
                windows: windows.clone(),
                shared: Arc::clone(&shared),
                spin: running.spin,
                answerer,
                worker,
            };
            let thread = std::thread::Builder::new()
                .name("cache-server".into())
                .spawn(move || thread.serve())
                .map_err(|source| Error::Os {
                    what: "start a server thread for caches",
                    source,
                })?;
            all.threads.push((waker, thread));
        }
        Ok(all)
    }
}

/// One of them.
struct Thread {
    index: usize,
    stop: Arc<AtomicBool>,
    windows: Windows,
    shared: Arc<Shared>,
    spin: Spin,
    answerer: Answerer,
    worker: Worker,
}

impl Thread {
    /// Polls and executes until it is to stop: looks for work as long as that pays, then helps
    /// others, then blocks.
    fn serve(mut self) {
        let mut spinner = Spinner::new(self.spin);
        let mut may_block = false;
        while !self.stop.load(Ordering::Acquire) {
            let now = Time::now();
            if self.turn(now, may_block) || self.shared.helps() && self.worker.help() {
                spinner.found();
                may_block = false;
            } else {
                may_block = !spinner.looks_on(now);
            }
        }
    }

    fn turn(&mut self, now: Time, may_block: bool) -> bool {
        let mut patience = Some(Duration::ZERO);
        if may_block && !self.worker.has_work() {
            self.shared.set_idle(self.index, true);
            // Who has too much to do looks for idle threads after it took that on.
            if self.shared.helps() && self.worker.help() {
                return true;
            }
            patience = self.worker.patience();
        }
        let (windows, worker) = (&self.windows, &mut self.worker);
        let mut handler = |call: Call<'_>, answer: &mut Vec<u8>| {
            if call.request.first() == Some(&BATCH) {
                answer_call(&call, answer, windows)
            } else {
                worker.take_call(&call, answer)
            }
        };
        let turn = self.answerer.turn(patience, &mut handler);
        let mut any = turn.unwrap_or_else(|error| panic!("a server thread for caches: {error}"));
        self.shared.set_idle(self.index, false);
        for connection in self.answerer.take_ended() {
            self.worker.connection_ended(connection);
        }
        let now = match patience {
            Some(Duration::ZERO) => now,
            _ => Time::now(),
        };
        any |= self.worker.turn(now);
        for (call, answer) in self.worker.answers.drain(..) {
            self.answerer.answer(call, &answer);
        }
        any
    }
}

impl Drop for CacheThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for (waker, thread) in self.threads.drain(..) {
            waker.wake();
            if thread.join().is_err() {
                tracing::error!("a server thread for caches panicked");
            }
        }
    }
}

/// Carries a batch out. The name of a window's life is what lets a client in, as it does for verbs.
pub(crate) fn answer_call(call: &Call<'_>, answer: &mut Vec<u8>, windows: &Windows) -> Answered {
    begin_answer(answer);
    let done = carry_out(call.request, answer, |id, generation| {
        Some(Slab {
            windows,
            name: (WindowId(id), Generation(generation)),
        })
    });
    match done {
        Ok(()) => Answered::Now,
        Err(malformed) => Answered::Never(malformed.0),
    }
}

/// A slab that the caller holds.
struct Slab<'w> {
    windows: &'w Windows,
    name: (WindowId, Generation),
}

fn carry_out<'w>(
    batch: &[u8],
    answer: &mut Vec<u8>,
    find: impl Fn(u32, u64) -> Option<Slab<'w>>,
) -> std::result::Result<(), Malformed> {
    let mut items = Items::new(batch)?;
    let mut slab = None;
    while let Some(item) = items.next_item()? {
        match item {
            Item::Window(id, generation) => slab = find(id, generation),
            Item::Read(offset, len_bytes) => {
                if answer.len() + 1 + len_bytes > BATCH_BYTES_MAX {
                    return Err(Malformed("a batch whose answer is too long"));
                }
                let place = answer.len();
                answer.push(Outcome::Stale as u8);
                if let Some(slab) = &slab {
                    let read = slab.windows.read(slab.name, offset, len_bytes, answer);
                    answer[place] = outcome(read) as u8;
                }
            }
            Item::Write(offset, bytes) => {
                let outcome = slab.as_ref().map_or(Outcome::Stale, |slab| {
                    outcome(slab.windows.write(slab.name, offset, bytes))
                });
                answer.push(outcome as u8);
            }
        }
        if answer.len() > BATCH_BYTES_MAX {
            return Err(Malformed("a batch whose answer is too long"));
        }
    }
    Ok(())
}

fn outcome(ended: std::result::Result<(), Status>) -> Outcome {
    match ended {
        Ok(()) => Outcome::Done,
        Err(Status::OutOfBounds) => Outcome::OutOfBounds,
        Err(Status::NoRights) => Outcome::NoRights,
        Err(Status::Revoked) => Outcome::Revoked,
        Err(_) => Outcome::Stale,
    }
}
