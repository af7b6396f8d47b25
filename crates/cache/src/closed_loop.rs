//! Closed loops over real paths: how a configuration does on a transport, measured.
//!
//! One thread for each path (the configuration's c). Each keeps as many requests under way as its
//! path takes, up to b times q, each for a record at random. A thread that sees nothing for a
//! while blocks until the path has something, so that threads share few cores.
//!
//! Paper: \[redy22\], offline modelling.

use std::collections::VecDeque;
use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_fabric::calls::{Spin, Spinner};
use cenote_fabric::{RemoteWindow, Time, wait};
use hdrhistogram::Histogram;

use crate::Writes;
use crate::path::{Completion, Failure, Operation, Path};
use crate::tuner::Measurement;
use cenote_pool::random::Random;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many requests write a record; the others read one.
    pub writes: Writes,
    /// Bytes of each record, at least 1.
    pub record_bytes: u32,
    /// Requests under way on each path: b times q.
    pub under_way: usize,
    /// How long it warms up before it counts.
    pub warm_up: Duration,
    /// How long it counts.
    pub span: Duration,
    /// How long threads look for completions before they block.
    pub spin: Spin,
    /// Random seed of which records are touched.
    pub seed: u64,
}

/// A run came to no end.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A request failed.
    #[error("a request failed: {0}")]
    Request(#[from] Failure),
    /// Nothing ended in the time that was counted.
    #[error("no request ended in the time of the measurement")]
    Nothing,
    /// The system refused to wait.
    #[error("a thread cannot wait for its path")]
    Wait,
    /// The system has too few threads.
    #[error(transparent)]
    Thread(#[from] NoThread),
}

/// The system has no thread for a loop.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("start {threads} threads for a measurement: {why}")]
pub struct NoThread {
    /// How many were to run.
    threads: usize,
    why: io::ErrorKind,
}

/// What one thread saw.
struct Seen {
    /// Nanoseconds.
    latency: Histogram<u64>,
    ended: u64,
}

/// Runs `plan` on every path, each on a thread of its own, over records of all `windows`.
///
/// # Errors
/// [`RunError`]: of the thread that failed first.
///
/// # Panics
/// If there is no path or no window, a window is shorter than a record, or nothing is to be under way.
pub fn run(
    paths: &mut [Box<dyn Path>],
    windows: &[RemoteWindow],
    plan: &Plan,
) -> Result<Measurement, RunError> {
    assert!(!paths.is_empty() && !windows.is_empty() && plan.under_way > 0);
    let ends = on_threads(paths, plan.seed, |path, random, failed| {
        Loop::new(&mut **path, windows, plan, random).run(failed)
    })?;
    let mut latency = histogram();
    let mut ended = 0;
    for seen in ends {
        latency.add(&seen.latency).map_err(|_| RunError::Nothing)?;
        ended += seen.ended;
    }
    let us = |ns: f64| ns / 1000.0;
    let at = |quantile| us(latency.value_at_quantile(quantile) as f64);
    Measurement::new(
        ended as f64 / plan.span.as_secs_f64(),
        us(latency.mean()),
        at(0.5),
        at(0.99),
    )
    .ok_or(RunError::Nothing)
}

/// Has a loop over each of `ends`, on a thread of its own, begin at the same time; what they saw.
/// Each has random numbers of its own, and looks whether another failed.
///
/// # Errors
/// [`NoThread`], or of the first in their order that failed.
pub(crate) fn on_threads<P: Send, S: Send, E: Send + From<NoThread>>(
    ends: &mut [P],
    seed: u64,
    run: impl Fn(&mut P, Random, &AtomicBool) -> Result<S, E> + Sync,
) -> Result<Vec<S>, E> {
    let builder = |number| Builder::new().name(format!("loop-{number}"));
    on_threads_of(builder, ends, seed, run)
}

fn on_threads_of<P: Send, S: Send, E: Send + From<NoThread>>(
    builder: impl Fn(u64) -> Builder,
    ends: &mut [P],
    seed: u64,
    run: impl Fn(&mut P, Random, &AtomicBool) -> Result<S, E> + Sync,
) -> Result<Vec<S>, E> {
    let (gate, failed, count) = (RwLock::new(()), AtomicBool::new(false), ends.len());
    std::thread::scope(|scope| {
        let (run, gate, failed) = (&run, &gate, &failed);
        // Opened once all are there, or one cannot be: then the others have nothing to do.
        let closed = gate.write();
        let threads = ends.iter_mut().zip(1_u64..).map(|(end, number)| {
            builder(number).spawn_scoped(scope, move || {
                let random = Random::new(seed ^ number << 32);
                drop(gate.read());
                let seen = run(end, random, failed);
                failed.fetch_or(seen.is_err(), Ordering::Relaxed);
                seen
            })
        });
        let threads = threads.collect::<io::Result<Vec<_>>>();
        failed.store(threads.is_err(), Ordering::Relaxed);
        drop(closed);
        let threads = threads.map_err(|error| NoThread {
            threads: count,
            why: error.kind(),
        })?;
        let seen = threads.into_iter().map(|thread| thread.join());
        seen.map(|seen| seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3).expect("bounds that the histogram takes")
}

/// One thread's loop.
struct Loop<'a> {
    path: &'a mut dyn Path,
    windows: &'a [RemoteWindow],
    plan: &'a Plan,
    random: Random,
    /// When each request was submitted, by token.
    submitted: Vec<Time>,
    /// Tokens of requests to submit.
    idle: Vec<u64>,
    /// Where they read to, and what all of them write.
    landings: Vec<BytesMut>,
    record: Bytes,
    spinner: Spinner,
    ended: VecDeque<Completion>,
}

impl<'a> Loop<'a> {
    fn new(
        path: &'a mut dyn Path,
        windows: &'a [RemoteWindow],
        plan: &'a Plan,
        random: Random,
    ) -> Self {
        let record = vec![0x5A; plan.record_bytes as usize];
        let landings = (0..plan.under_way).map(|_| BytesMut::from(&record[..]));
        Self {
            path,
            windows,
            plan,
            random,
            submitted: vec![Time(0); plan.under_way],
            idle: (0..plan.under_way as u64).collect(),
            landings: landings.collect(),
            record: record.into(),
            spinner: Spinner::new(plan.spin),
            ended: VecDeque::new(),
        }
    }

    /// Runs until the plan's time is over, or another thread failed; then takes what is under way.
    fn run(mut self, failed: &AtomicBool) -> Result<Seen, RunError> {
        let mut seen = Seen {
            latency: histogram(),
            ended: 0,
        };
        let begun = Time::now();
        let counted = begun.after(self.plan.warm_up);
        let over = counted.after(self.plan.span);
        let mut now = begun;
        while now < over && !failed.load(Ordering::Relaxed) {
            self.submit(now);
            self.path.poll(now, &mut self.ended);
            now = Time::now();
            if self.ended.is_empty() {
                self.rest(now)?;
                continue;
            }
            self.spinner.found();
            while let Some(completion) = self.ended.pop_front() {
                completion.result?;
                if now >= counted && now < over {
                    let begun = self.submitted[completion.token as usize];
                    let ns = u64::try_from(now.since(begun).as_nanos()).unwrap_or(u64::MAX);
                    seen.latency.saturating_record(ns.max(1));
                    seen.ended += 1;
                }
                self.take_back(completion.token, completion.operation);
            }
        }
        self.drain()?;
        Ok(seen)
    }

    fn submit(&mut self, now: Time) {
        let record_bytes = u64::from(self.plan.record_bytes);
        let mut any = false;
        while let Some(token) = self.idle.pop() {
            let operation = self.operation();
            let number = self.random.number();
            let window = &self.windows[(number >> 32) as usize % self.windows.len()];
            let records = window.descriptor.len_bytes / record_bytes;
            let offset = self.random.number() % records * record_bytes;
            self.submitted[token as usize] = now;
            if let Err(full) = self.path.submit(window, offset, operation, token) {
                self.take_back(token, full.0);
                break;
            }
            any = true;
        }
        if any {
            self.path.flush();
        }
    }

    fn operation(&mut self) -> Operation {
        if self.plan.writes.has(self.random.number()) {
            return Operation::Write(self.record.clone());
        }
        let landing = self.landings.pop();
        Operation::Read(landing.expect("one for each token"))
    }

    fn take_back(&mut self, token: u64, operation: Operation) {
        self.idle.push(token);
        if let Operation::Read(landing) = operation {
            self.landings.push(landing);
        }
    }

    /// Blocks when nothing has come for a while.
    fn rest(&mut self, now: Time) -> Result<(), RunError> {
        if self.spinner.looks_on(now) {
            std::hint::spin_loop();
            return Ok(());
        }
        let fds: Vec<_> = self.path.fd().into_iter().collect();
        wait(&fds, Some(REST)).map(drop).map_err(|_| RunError::Wait)
    }

    fn drain(&mut self) -> Result<(), RunError> {
        self.path.flush();
        while self.path.outstanding() > 0 {
            let now = Time::now();
            self.path.poll(now, &mut self.ended);
            if self.ended.is_empty() {
                self.rest(now)?;
            } else {
                self.spinner.found();
            }
            self.ended.clear();
        }
        Ok(())
    }
}

/// Longest sleep of a thread: a path that died is noticed by polling.
const REST: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_ends_the_others() {
        // No system has memory for the stack of the last.
        let builder = |number| match number {
            3 => Builder::new().stack_size(1 << 60),
            _ => Builder::new(),
        };
        let run = |_: &mut (), _, failed: &AtomicBool| {
            assert!(failed.load(Ordering::Relaxed));
            Ok::<_, NoThread>(())
        };
        let error = on_threads_of(builder, &mut [(); 3], 7, run).unwrap_err();
        assert_eq!(error.threads, 3);
    }
}
