//! Filling memcached, reading and writing it for a while, and checking every value.
//!
//! A key belongs to one connection, so its thread knows how often it was written, which is all
//! that is needed to tell what a read must return. Each operation's time and each wrong value are
//! counted to the part of the run that it began in.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use hdrhistogram::Histogram;
use memcache::MemcacheError;

use super::Options;
use super::memcached::Client;
use super::report::{Latency, Period, Phase};
use super::values::Values;
use crate::swapping::interrupt::Interrupt;
use crate::swapping::memcached::Memcached;
use crate::swapping::random::{STEP, mix};

/// Where a run stands. Without a kill all of it is `Before`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    /// All hosts live.
    Before,
    /// Between the kill and the last lost slab's return.
    During,
    /// All slabs are whole again.
    After,
}

/// Connections to one memcached, and what they know.
pub(super) struct Load {
    connections: Vec<Connection>,
    times: [Duration; 3],
    fill_s: f64,
}

struct Connection {
    client: Client,
    /// This connection has every key whose number leaves `index` when divided by `stride`.
    index: usize,
    stride: usize,
    /// How often each of its keys was written, the filling not counted.
    writes: Vec<u32>,
    state: u64,
    histograms: [Histogram<u64>; 3],
    wrong: u64,
    checked: u64,
    /// What is written, or what a read must return.
    value: Vec<u8>,
}

impl Load {
    /// Connects, and stores every value once.
    pub(super) fn fill(
        server: &Memcached,
        values: &Values,
        options: &Options,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Self> {
        let stride = options.connection_count.max(1);
        let connections = (0..stride)
            .map(|index| Connection::open(server, values, index, stride, options.seed))
            .collect::<anyhow::Result<_>>()?;
        let mut load = Self {
            connections,
            times: [Duration::ZERO; 3],
            fill_s: 0.0,
        };
        let began = Instant::now();
        load.each(
            |connection, shared| connection.fill(values, shared),
            |shared| shared.wait("stored", values.count(), interrupt, progress),
        )?;
        load.fill_s = began.elapsed().as_secs_f64();
        Ok(load)
    }

    /// Reads and writes at random in the background for as long as `direct` takes.
    pub(super) fn drive<T>(
        &mut self,
        values: &Values,
        direct: impl FnOnce(&mut Driver<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (result, times) = self.each(
            |connection, shared| connection.drive(values, shared),
            |shared| {
                let mut driver = Driver {
                    shared,
                    part: Part::Before,
                    entered: Instant::now(),
                    times: [Duration::ZERO; 3],
                };
                let result = direct(&mut driver)?;
                driver.enter(driver.part);
                Ok((result, driver.times))
            },
        )?;
        self.times = times;
        Ok(result)
    }

    /// Reads every value back and compares it; then says what the whole phase came to.
    pub(super) fn check_all(
        mut self,
        values: &Values,
        limit_bytes: u64,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Phase> {
        let read_before: u64 = self.connections.iter().map(|one| one.checked).sum();
        self.each(
            |connection, shared| connection.check(values, shared),
            |shared| shared.wait("checked", values.count(), interrupt, progress),
        )?;
        let checked: u64 = self.connections.iter().map(|one| one.checked).sum();
        Ok(Phase {
            limit_bytes,
            fill_s: self.fill_s,
            values_checked: checked - read_before,
            reads_checked: read_before,
            wrong: self.connections.iter().map(|one| one.wrong).sum(),
            before: self.period(Part::Before)?,
            during: self.period(Part::During)?,
            after: self.period(Part::After)?,
        })
    }

    /// Runs `work` on a thread per connection, and `lead` on this one; when `lead` returns, or
    /// panics, the threads are told to end.
    fn each<T>(
        &mut self,
        work: impl Fn(&mut Connection, &Shared) -> Result<(), MemcacheError> + Sync,
        lead: impl FnOnce(&Shared) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let shared = Shared {
            part: AtomicUsize::new(Part::Before as usize),
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
            running: AtomicUsize::new(self.connections.len()),
            error: Mutex::new(None),
        };
        let led = std::thread::scope(|scope| {
            let _stop = StopOnDrop(&shared.stop);
            for connection in &mut self.connections {
                let (shared, work) = (&shared, &work);
                scope.spawn(move || {
                    if let Err(error) = work(connection, shared) {
                        let mut first = shared.error.lock().expect("no holder panics");
                        first.get_or_insert(error);
                    }
                    shared.running.fetch_sub(1, Ordering::Release);
                });
            }
            lead(&shared)
        });
        match shared.error.into_inner().expect("no holder panics") {
            Some(error) => Err(anyhow!(error).context("talk to memcached")),
            None => led,
        }
    }

    fn period(&self, part: Part) -> anyhow::Result<Option<Period>> {
        let seconds = self.times[part as usize].as_secs_f64();
        if seconds == 0.0 {
            return Ok(None);
        }
        let mut all: Histogram<u64> = Histogram::new(3)?;
        for connection in &self.connections {
            all.add(&connection.histograms[part as usize])?;
        }
        Ok(Some(Period {
            seconds,
            operations: all.len(),
            operations_per_s: all.len() as f64 / seconds,
            latency: Latency {
                p50_us: all.value_at_quantile(0.5) as f64 / 1e3,
                p99_us: all.value_at_quantile(0.99) as f64 / 1e3,
                max_us: all.max() as f64 / 1e3,
            },
        }))
    }
}

/// Steers a load that runs.
pub(super) struct Driver<'a> {
    shared: &'a Shared,
    part: Part,
    entered: Instant,
    times: [Duration; 3],
}

impl Driver<'_> {
    /// Operations that begin from now on count to `part`.
    pub(super) fn enter(&mut self, part: Part) {
        self.shared.part.store(part as usize, Ordering::Relaxed);
        let now = Instant::now();
        self.times[self.part as usize] += now - self.entered;
        self.part = part;
        self.entered = now;
    }

    /// Lets the load run for `time`.
    pub(super) fn run_for(&self, time: Duration, interrupt: &Interrupt) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if self.shared.has_failed() {
                bail!("the load ended early");
            }
            interrupt.sleep(left.min(Duration::from_millis(100)))?;
        }
        Ok(())
    }
}

/// What the threads of a load and their leader share.
struct Shared {
    part: AtomicUsize,
    stop: AtomicBool,
    /// Keys that are dealt with.
    done: AtomicU64,
    running: AtomicUsize,
    error: Mutex<Option<MemcacheError>>,
}

impl Shared {
    fn has_failed(&self) -> bool {
        self.error.lock().is_ok_and(|error| error.is_some())
    }

    /// Waits until every thread has ended, and tells each quarter of the way.
    fn wait(
        &self,
        verb: &str,
        count: usize,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<()> {
        let mut told = 0;
        while self.running.load(Ordering::Acquire) > 0 {
            interrupt.sleep(Duration::from_millis(50))?;
            let done = self.done.load(Ordering::Relaxed);
            let quarter = done * 4 / count.max(1) as u64;
            if quarter > told && quarter < 4 {
                told = quarter;
                progress(&format!("{verb} {done} of {count} values"));
            }
        }
        if !self.has_failed() {
            progress(&format!("{verb} {count} values"));
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Connection {
    fn open(
        server: &Memcached,
        values: &Values,
        index: usize,
        stride: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let histogram = || Histogram::new_with_bounds(100, 60_000_000_000, 3);
        Ok(Self {
            client: Client::open(server)?,
            index,
            stride,
            writes: vec![0; values.count().saturating_sub(index).div_ceil(stride)],
            state: mix(seed.wrapping_add(index as u64)),
            histograms: [histogram()?, histogram()?, histogram()?],
            wrong: 0,
            checked: 0,
            value: Vec::new(),
        })
    }

    fn key(&self, slot: usize) -> usize {
        slot * self.stride + self.index
    }

    fn fill(&mut self, values: &Values, shared: &Shared) -> Result<(), MemcacheError> {
        for slot in 0..self.writes.len() {
            if !shared.goes_on() {
                break;
            }
            values.fill(self.key(slot), 0, &mut self.value);
            self.client.set(self.key(slot), &self.value)?;
            shared.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn drive(&mut self, values: &Values, shared: &Shared) -> Result<(), MemcacheError> {
        while shared.goes_on() && !self.writes.is_empty() {
            self.state = self.state.wrapping_add(STEP);
            let random = mix(self.state);
            let slot = (random >> 16) as usize % self.writes.len();
            let is_write = random % 100 < WRITE_PERCENT;
            let part = shared.part.load(Ordering::Relaxed);
            let key = self.key(slot);
            if is_write {
                self.writes[slot] += 1;
                values.fill(key, self.writes[slot], &mut self.value);
            }
            let began = Instant::now();
            let found = if is_write {
                self.client.set(key, &self.value)?;
                None
            } else {
                self.client.get(key)?
            };
            self.histograms[part].saturating_record(began.elapsed().as_nanos() as u64);
            if !is_write {
                self.compare(values, slot, found.as_deref());
            }
        }
        Ok(())
    }

    fn check(&mut self, values: &Values, shared: &Shared) -> Result<(), MemcacheError> {
        for slot in 0..self.writes.len() {
            if !shared.goes_on() {
                break;
            }
            let found = self.client.get(self.key(slot))?;
            self.compare(values, slot, found.as_deref());
            shared.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A value that is not there is as wrong as one with other bytes.
    fn compare(&mut self, values: &Values, slot: usize, found: Option<&[u8]>) {
        values.fill(self.key(slot), self.writes[slot], &mut self.value);
        self.checked += 1;
        if found != Some(self.value.as_slice()) {
            self.wrong += 1;
        }
    }
}

/// Of 100 operations: a cache's usual mix.
const WRITE_PERCENT: u64 = 10;
