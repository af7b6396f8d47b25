//! A closed loop of connections that read and write a memcached by a [`Mix`], and check every
//! value that they read.
//!
//! An item belongs to one connection, whose thread so knows how often it was written. Each
//! connection has one request under way at a time; the filling sends many at once.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use cenote_measure::random::Random;
use hdrhistogram::Histogram;

use super::mix::{Items, Mix, Popularity};
use crate::beside::beside;
use crate::memcached_text::Client;
use crate::swap_rig::interrupt::Interrupt;

/// Connections to one memcached, and what each knows of its items.
pub(crate) struct MemcachedLoad {
    kind: Mix,
    seed: u64,
    items: Items,
    popularity: Popularity,
    connections: Vec<Connection>,
}

/// What a stretch of load came to.
pub(crate) struct Stretch {
    /// Its length.
    pub(crate) time: Duration,
    /// Time of each operation, in ns.
    pub(crate) times: Histogram<u64>,
    /// Operations that ended in each period of [`PERIOD`] from its start.
    pub(crate) periods: Vec<u64>,
}

impl Stretch {
    pub(crate) fn rate(&self) -> f64 {
        self.times.len() as f64 / self.time.as_secs_f64()
    }

    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Operations per second from one time after the start to another.
    pub(crate) fn rate_between(&self, from: Duration, to: Duration) -> f64 {
        let index = |time: Duration| (time.as_nanos() / PERIOD.as_nanos()) as usize;
        let (from, to) = (index(from), index(to).min(self.periods.len()));
        let count: u64 = self.periods.get(from..to).unwrap_or_default().iter().sum();
        count as f64 / ((to.saturating_sub(from)) as f64 * PERIOD.as_secs_f64())
    }
}

impl MemcachedLoad {
    /// Works the items out; nothing is connected yet.
    pub(crate) fn new(kind: Mix, seed: u64, total_bytes: u64) -> Self {
        let items = Items::new(kind, seed, total_bytes);
        let each = items.count() / CONNECTION_COUNT;
        Self {
            kind,
            seed,
            items,
            popularity: Popularity::new(kind, each, seed),
            connections: Vec::new(),
        }
    }

    pub(crate) fn items(&self) -> &Items {
        &self.items
    }

    /// Connects to the memcached at `socket`, and stores every item once.
    pub(crate) fn fill(&mut self, socket: &Path, interrupt: &Interrupt) -> anyhow::Result<()> {
        let each = self.items.count() / CONNECTION_COUNT;
        self.connections = (0..CONNECTION_COUNT)
            .map(|index| Connection::open(socket, index * each, each, self.seed))
            .collect::<anyhow::Result<_>>()?;
        self.each(interrupt, Connection::fill)
    }

    /// Reads every item that was stored once, and compares it; how many that are.
    pub(crate) fn check(&mut self, interrupt: &Interrupt) -> anyhow::Result<usize> {
        self.each(interrupt, Connection::check)?;
        Ok(self.connections.iter().map(|one| one.writes.len()).sum())
    }

    /// Runs `work` on a thread for each connection, which looks whether it is to stop.
    fn each(
        &mut self,
        interrupt: &Interrupt,
        work: impl Fn(&mut Connection, &Items, &AtomicBool) -> anyhow::Result<()> + Sync,
    ) -> anyhow::Result<()> {
        let items = &self.items;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .connections
                .iter_mut()
                .map(|connection| scope.spawn(|| work(connection, items, &stop)))
                .collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                if interrupt.sleep(Duration::from_millis(20)).is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("a connection does not panic"))
        })?;
        interrupt.check()
    }

    /// Reads and writes for `time`.
    pub(crate) fn run_for(
        &mut self,
        time: Duration,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Stretch> {
        self.run(time, |_| interrupt.sleep(time))
    }

    /// Reads and writes in the background for as long as `lead` takes, which may steer it; at most
    /// `time_max` is told apart by period.
    pub(crate) fn run(
        &mut self,
        time_max: Duration,
        lead: impl FnOnce(&Steering<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Stretch> {
        let (items, popularity, kind) = (&self.items, &self.popularity, self.kind);
        let period_count = (time_max.as_nanos() / PERIOD.as_nanos()) as usize + 1;
        let active = AtomicUsize::new(CONNECTION_COUNT);
        let began = Instant::now();
        let run = Run {
            items,
            popularity,
            kind,
            began,
            active: &active,
        };
        let drive = |(connection, index): (&mut Connection, _), stop: &AtomicBool| {
            connection.drive(&run, index, period_count, stop)
        };
        let steering = Steering {
            began,
            active: &active,
        };
        let lead = || lead(&steering).map(|()| began.elapsed());
        let (time, ended) = beside(self.connections.iter_mut().zip(0..), drive, lead);
        let time = time?;
        let mut stretch = Stretch {
            time,
            times: histogram()?,
            periods: vec![0; period_count],
        };
        for part in ended {
            let (times, periods) = part?;
            stretch.times.add(&times)?;
            for (sum, count) in stretch.periods.iter_mut().zip(periods) {
                *sum += count;
            }
        }
        ensure!(!stretch.times.is_empty(), "memcached answered nothing");
        Ok(stretch)
    }
}

/// A load that is running.
pub(crate) struct Steering<'a> {
    pub(crate) began: Instant,
    active: &'a AtomicUsize,
}

impl Steering<'_> {
    /// Has so many connections go on, and the others rest; all do at first.
    pub(crate) fn set_active(&self, count: usize) {
        self.active.store(count, Ordering::Relaxed);
    }
}

/// What the threads of a run share.
struct Run<'a> {
    items: &'a Items,
    popularity: &'a Popularity,
    kind: Mix,
    began: Instant,
    active: &'a AtomicUsize,
}

struct Connection {
    client: Client<UnixStream>,
    /// Its items are this one and those after it, as many as `writes` has.
    first: usize,
    /// How often each of its items was written, the filling not counted.
    writes: Vec<u32>,
    random: Random,
    /// What is sent, or what must come back.
    out: Vec<u8>,
    /// What came back.
    value: Vec<u8>,
}

impl Connection {
    fn open(socket: &Path, first: usize, count: usize, seed: u64) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).context("connect to memcached")?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self {
            client: Client::new(stream),
            first,
            writes: vec![0; count],
            random: Random::new(seed ^ first as u64),
            out: Vec::new(),
            value: Vec::new(),
        })
    }

    fn fill(&mut self, items: &Items, stop: &AtomicBool) -> anyhow::Result<()> {
        for batch in (0..self.writes.len()).step_by(FILL_BATCH) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let slots = batch..(batch + FILL_BATCH).min(self.writes.len());
            self.out.clear();
            for slot in slots.clone() {
                self.push_set(items, slot);
            }
            self.send()?;
            for _ in slots {
                self.expect_stored()?;
            }
        }
        Ok(())
    }

    fn drive(
        &mut self,
        run: &Run<'_>,
        index: usize,
        period_count: usize,
        stop: &AtomicBool,
    ) -> anyhow::Result<(Histogram<u64>, Vec<u64>)> {
        let mut times = histogram()?;
        let mut periods = vec![0; period_count];
        while !stop.load(Ordering::Relaxed) {
            if index >= run.active.load(Ordering::Relaxed) {
                std::thread::sleep(REST);
                continue;
            }
            let slot = run.popularity.draw(&mut self.random);
            let is_set = self.random.below(100) < run.kind.set_percent();
            self.out.clear();
            if is_set {
                self.writes[slot] += 1;
                self.push_set(run.items, slot);
            } else {
                self.push_get(run.items, slot);
            }
            let began = Instant::now();
            self.send()?;
            if is_set {
                self.expect_stored()?;
            } else {
                self.expect_value(run.items, slot)?;
            }
            let now = Instant::now();
            times.saturating_record((now - began).as_nanos() as u64);
            let period = ((now - run.began).as_nanos() / PERIOD.as_nanos()) as usize;
            if let Some(count) = periods.get_mut(period) {
                *count += 1;
            }
        }
        Ok((times, periods))
    }

    fn check(&mut self, items: &Items, stop: &AtomicBool) -> anyhow::Result<()> {
        for slot in 0..self.writes.len() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            self.out.clear();
            self.push_get(items, slot);
            self.send()?;
            self.expect_value(items, slot)?;
        }
        Ok(())
    }

    fn push_get(&mut self, items: &Items, slot: usize) {
        self.out.extend_from_slice(b"get ");
        items.push_key(self.first + slot, &mut self.out);
        self.out.extend_from_slice(b"\r\n");
    }

    fn push_set(&mut self, items: &Items, slot: usize) {
        let item = self.first + slot;
        self.out.extend_from_slice(b"set ");
        items.push_key(item, &mut self.out);
        let head = format!(" 0 0 {}\r\n", items.value_len(item));
        self.out.extend_from_slice(head.as_bytes());
        items.push_value(item, self.writes[slot], &mut self.out);
        self.out.extend_from_slice(b"\r\n");
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.client.send(&self.out).context("ask memcached")
    }

    fn expect_stored(&mut self) -> anyhow::Result<()> {
        let said = self.client.next_line().context("hear from memcached")?;
        ensure!(said == "STORED", "memcached stored nothing: {said}");
        Ok(())
    }

    /// A value that is not there is as wrong as one with other bytes, and ends the run.
    fn expect_value(&mut self, items: &Items, slot: usize) -> anyhow::Result<()> {
        let item = self.first + slot;
        let found = self.client.value_into(&mut self.value);
        match found.context("hear from memcached")? {
            Ok(Some(_)) => {}
            Ok(None) => bail!("item {item} is lost"),
            Err(said) => bail!("item {item} is lost: {said}"),
        }
        self.out.clear();
        items.push_value(item, self.writes[slot], &mut self.out);
        ensure!(self.value == self.out, "item {item} has other bytes");
        Ok(())
    }
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(100, 60_000_000_000, 3)?)
}

/// As many as the demonstration has.
pub(crate) const CONNECTION_COUNT: usize = 4;
/// How often a connection that rests looks whether it is to go on; a small part of a period.
const REST: Duration = Duration::from_millis(1);
/// SETs under way at a time while filling; arbitrary, some tens of KiB.
const FILL_BATCH: usize = 32;
/// Resolution of throughput over time.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);
/// A page that is lost is an error at once; this only bounds a machine that stands still.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
