//! A client of a cache that reads and writes at a steady rate, and knows what every byte has to be.
//!
//! Requests are due at fixed moments whether or not earlier ones have ended, and a latency counts from
//! when its request was due: requests that wait behind a stop are seen.
//!
//! It is the only writer, and requests that overlap keep their order: a read has to return what was
//! submitted last before it, nothing older and nothing newer.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::{Bytes, BytesMut};
use cenote_cache::client::{Client, Ended, Geometry};
use cenote_cache::connections::Attached;
use cenote_cache::links::{HostConfig, Threads};
use cenote_cache::owner::Access;
use cenote_fabric::Time;
use cenote_pool::random::Random;
use hdrhistogram::Histogram;

use super::cells::{CELL_BYTES, UNKNOWN, put_cell, wrong_bytes};
use super::link::{OwnerLink, ToClient, ToOwner, caller};
use super::stop::Stops;

/// Cells of a request that fills the cache, or reads all of it.
const BULK_CELLS: u64 = 1024;
/// Requests under way: a rate of which more wait has fallen behind.
const OUTSTANDING_MAX: usize = 4000;
/// Bulk requests under way.
const BULK_DEPTH: usize = 8;
/// Of a hundred requests, those that write.
const WRITES_PERCENT: usize = 5;
/// How often the lease is renewed.
const ALIVE: Duration = Duration::from_millis(500);
/// Between two looks at sessions, which are system calls.
const LOOK: Duration = Duration::from_micros(200);
/// How long a request may wait: longer than anything that is measured.
const PATIENCE: Duration = Duration::from_secs(60);
/// Width of a bucket of the series.
pub const BUCKET: Duration = Duration::from_millis(20);

struct Request {
    due: Time,
    first: u64,
    kind: Kind,
    /// Losses that the client had been told of when it was submitted.
    losses: usize,
}

enum Kind {
    /// Versions that its cells have to have.
    Read(Vec<u32>),
    Write,
}

/// What the load saw of a stretch of time.
pub struct Seen {
    pub reads: Histogram<u64>,
    pub writes: Histogram<u64>,
}

impl Seen {
    fn new() -> Self {
        // Up to ten minutes; a request waits for one at most.
        let histogram = || Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("fixed bounds");
        Self {
            reads: histogram(),
            writes: histogram(),
        }
    }
}

/// Requests that ended in one bucket of time: how long each took, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    pub reads: Vec<u64>,
    pub writes: Vec<u64>,
}

/// The 99th percentile of what ended in a bucket, in microseconds; 0 if nothing did.
pub fn p99_us(latencies_ns: &[u64]) -> f64 {
    let mut sorted = latencies_ns.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * 99).div_ceil(100);
    let at = rank.checked_sub(1).and_then(|at| sorted.get(at));
    at.map_or(0.0, |&ns| ns as f64 / 1e3)
}

/// When something is to be measured.
#[derive(Clone, Copy, Debug)]
struct Move {
    begun: Time,
    ended: Option<Time>,
}

/// See the module's text.
pub struct Load {
    attached: Attached,
    owner: OwnerLink,
    random: Random,
    /// The version of each cell that was submitted last; 0: zeros.
    cells: Vec<u32>,
    region_cells: u64,
    under_way: HashMap<u64, Request>,
    tokens: u64,
    period: Duration,
    /// When the next request is due.
    due: Time,
    asked_at: Time,
    looked_at: Time,
    /// What the owner said last of whether all regions are where they may stay.
    settled: Option<(bool, Time)>,
    /// When it last said that some are not.
    unsettled_at: Option<Time>,
    the_move: Option<Move>,
    /// When the first region was stopped that moves, and when the last was open again.
    first_stop: Option<Time>,
    last_open: Option<Time>,
    /// What the stop of each region consists of.
    pub stops: Stops,
    /// When this thread looked last, and the longest that it did not during the move.
    turned_at: Time,
    pub longest_pause: Duration,
    /// Whether the thread blocks while nothing is due: the network's other end needs the processor.
    blocks: bool,
    ended: Vec<Ended>,
    /// Before the move, and during it.
    pub before: Seen,
    pub during: Seen,
    pub buckets: Vec<Bucket>,
    origin: Time,
    pub requests: u64,
    pub errors: u64,
    pub wrong_bytes: u64,
    /// Regions that the client was told to be lost, and when.
    pub lost: Vec<(u32, Time)>,
}

/// What a load is of.
pub struct Shape {
    pub geometry: Geometry,
    pub regions: u32,
    /// Requests a second.
    pub rate: u32,
    pub seed: u64,
    pub blocks: bool,
}

impl Load {
    pub fn new(
        shape: &Shape,
        hosts: &[HostConfig],
        connector: &std::sync::Arc<dyn cenote_fabric::Connector>,
        owner: OwnerLink,
    ) -> Self {
        let client = Client::new(shape.geometry, hosts.len(), PATIENCE);
        let dial = Threads::new(caller(connector, "cache load", true));
        let attached = Attached::new(client, hosts.to_vec(), Box::new(dial), 1024);
        let region_cells = shape.geometry.region_bytes() / CELL_BYTES as u64;
        let cells = region_cells * u64::from(shape.regions);
        let now = Time::now();
        Self {
            attached,
            owner,
            random: Random::new(shape.seed),
            cells: vec![0; usize::try_from(cells).expect("it is in memory")],
            region_cells,
            under_way: HashMap::new(),
            tokens: 0,
            period: Duration::from_secs(1) / shape.rate,
            due: now,
            asked_at: Time(0),
            looked_at: Time(0),
            settled: None,
            unsettled_at: None,
            the_move: None,
            first_stop: None,
            last_open: None,
            stops: Stops::default(),
            turned_at: now,
            longest_pause: Duration::ZERO,
            blocks: shape.blocks,
            ended: Vec::new(),
            before: Seen::new(),
            during: Seen::new(),
            buckets: Vec::new(),
            origin: now,
            requests: 0,
            errors: 0,
            wrong_bytes: 0,
            lost: Vec::new(),
        }
    }

    pub fn owner(&self) -> &OwnerLink {
        &self.owner
    }

    /// Goes on without requests until `is_done`.
    ///
    /// # Errors
    /// That took too long, or the owner has ended.
    pub fn wait_until(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) -> Result<()> {
        let begun = Time::now();
        loop {
            let now = Time::now();
            self.step(now)?;
            if is_done(self) {
                return Ok(());
            }
            if now.since(begun) > PATIENCE {
                bail!("{what}: not within {PATIENCE:?}");
            }
            self.block(now.after(LOOK));
        }
    }

    /// Whether every region is where it may stay, as the owner said last.
    pub fn is_settled(&self) -> bool {
        matches!(self.settled, Some((true, _)))
    }

    /// Whether the client was told of all its regions, and has its lease.
    pub fn is_ready(&self) -> bool {
        self.is_settled() && self.attached.client.regions() as u64 == self.region_count()
    }

    fn region_count(&self) -> u64 {
        self.cells.len() as u64 / self.region_cells
    }

    /// Writes every cell, the first version of it.
    ///
    /// # Errors
    /// The owner has ended.
    pub fn fill(&mut self) -> Result<()> {
        self.in_bulk(|load, now, first, count| {
            load.write(now, now, first, count);
        })
    }

    /// Reads every cell once nothing is under way.
    ///
    /// # Errors
    /// The owner has ended.
    pub fn read_all(&mut self) -> Result<()> {
        self.wait_until("what is under way", |load| load.under_way.is_empty())?;
        self.in_bulk(|load, now, first, count| {
            load.read(now, now, first, count);
        })
    }

    fn in_bulk(&mut self, mut submit: impl FnMut(&mut Self, Time, u64, u64)) -> Result<()> {
        let cells = self.cells.len() as u64;
        let mut next = 0;
        while next < cells || !self.under_way.is_empty() {
            let now = Time::now();
            self.step(now)?;
            while next < cells && self.under_way.len() < BULK_DEPTH {
                let count = BULK_CELLS.min(cells - next);
                submit(self, now, next, count);
                next += count;
            }
            self.poll(now);
        }
        Ok(())
    }

    /// What is due from now on is measured; it begins at once.
    pub fn begin(&mut self) {
        let now = Time::now();
        self.origin = now;
        self.due = now;
        self.buckets.clear();
        (self.before, self.during) = (Seen::new(), Seen::new());
        (self.the_move, self.requests) = (None, 0);
        self.stops = Stops::default();
    }

    /// What is due from now on is due at the rate again, and nothing for the time that the caller took.
    pub fn resume(&mut self) {
        let now = Time::now();
        (self.due, self.turned_at) = (now, now);
    }

    /// Reads and writes at the rate for some time.
    ///
    /// # Errors
    /// The owner has ended.
    pub fn run_for(&mut self, duration: Duration) -> Result<()> {
        let until = Time::now().after(duration);
        while Time::now() < until {
            self.turn(true)?;
        }
        Ok(())
    }

    /// Goes on until the owner says that regions had to move and that all have; how long that took from
    /// `begun`. `stops`: nothing is submitted from the first region's stop on.
    ///
    /// # Errors
    /// That took too long, or the owner has ended.
    pub fn run_through(&mut self, begun: Time, stops: bool) -> Result<Duration> {
        self.the_move = Some(Move { begun, ended: None });
        loop {
            self.turn(!stops || self.first_stop.is_none())?;
            let has_begun = self.unsettled_at.is_some_and(|at| at >= begun);
            if let Some((true, at)) = self.settled
                && has_begun
            {
                self.the_move = Some(Move {
                    begun,
                    ended: Some(at),
                });
                return Ok(at.since(begun));
            }
            if Time::now().since(begun) > PATIENCE {
                bail!("the regions did not move within {PATIENCE:?}");
            }
        }
    }

    /// From the first stop of a region to the opening of the last.
    pub fn moving(&self) -> Duration {
        match (self.first_stop, self.last_open) {
            (Some(begun), Some(ended)) => ended.since(begun),
            _ => Duration::ZERO,
        }
    }

    /// When the experiment began, for the series.
    pub fn since_begin(&self, at: Time) -> Duration {
        at.since(self.origin)
    }

    fn turn(&mut self, submits: bool) -> Result<()> {
        let now = Time::now();
        if self
            .the_move
            .is_some_and(|the_move| the_move.ended.is_none())
        {
            self.longest_pause = self.longest_pause.max(now.since(self.turned_at));
        }
        self.turned_at = now;
        self.step(now)?;
        while submits && self.due <= now && self.under_way.len() < OUTSTANDING_MAX {
            let due = self.due;
            self.due = due.after(self.period);
            let cell = self.random.below(self.cells.len()) as u64;
            if self.random.below(100) < WRITES_PERCENT {
                self.write(now, due, cell, 1);
            } else {
                self.read(now, due, cell, 1);
            }
        }
        self.poll(now);
        let wake = if submits { self.due } else { now.after(LOOK) };
        self.block(wake);
        Ok(())
    }

    /// Waits for the network, until `wake` at most.
    fn block(&self, wake: Time) {
        if !self.blocks {
            return std::hint::spin_loop();
        }
        let patience = wake.since(Time::now()).min(LOOK);
        let fds: Vec<_> = self.attached.client.fds().collect();
        if !patience.is_zero() {
            cenote_fabric::wait(&fds, Some(patience)).expect("its descriptors are open");
        }
    }

    fn step(&mut self, now: Time) -> Result<()> {
        let mut has_news = false;
        while let Some(word) = self.owner.take()? {
            has_news = true;
            match word {
                ToClient::Entry(entry) => {
                    if self
                        .the_move
                        .is_some_and(|the_move| the_move.ended.is_none())
                    {
                        match entry.access {
                            Access::Frozen => {
                                self.first_stop.get_or_insert(now);
                            }
                            Access::Open => self.last_open = Some(now),
                            Access::Absent | Access::Cut => {}
                        }
                    }
                    self.attached.client.handle_entry(entry);
                }
                ToClient::Lease(asked_at) => self.attached.client.handle_lease(now, asked_at),
                ToClient::Stage(region, stage, at) => self.stops.note(region, stage, at),
                ToClient::Settled(is_settled, at) => {
                    self.settled = Some((is_settled, at));
                    if !is_settled {
                        self.unsettled_at = Some(at);
                    }
                }
            }
        }
        if has_news || now.since(self.looked_at) >= LOOK {
            self.looked_at = now;
            self.attached.step(now);
        }
        if now.since(self.asked_at) >= ALIVE {
            self.asked_at = now;
            self.owner.send(ToOwner::Alive(now));
        }
        self.poll(now);
        Ok(())
    }

    fn poll(&mut self, now: Time) {
        let mut ended = std::mem::take(&mut self.ended);
        let client = &mut self.attached.client;
        client.poll(now, &mut ended);
        while let Some((region, generation)) = client.take_doubt() {
            self.owner.send(ToOwner::Doubt(region, generation));
        }
        while let Some((region, generation)) = client.take_known() {
            self.owner.send(ToOwner::Known(region, generation));
        }
        while let Some(host) = client.take_trouble() {
            self.owner.send(ToOwner::Trouble(host));
        }
        while let Some(lost) = self.attached.client.take_lost() {
            self.lost.push((lost.region, now));
            let first = u64::from(lost.region) * self.region_cells;
            for cell in first..first + self.region_cells {
                self.cells[index(cell)] = UNKNOWN;
            }
        }
        for end in ended.drain(..) {
            self.judge(end);
        }
        self.ended = ended;
    }

    fn write(&mut self, now: Time, due: Time, first: u64, count: u64) {
        let mut bytes = BytesMut::zeroed(index(count) * CELL_BYTES);
        for (cell, room) in (first..).zip(bytes.chunks_exact_mut(CELL_BYTES)) {
            let version = &mut self.cells[index(cell)];
            *version = if *version >= UNKNOWN - 1 {
                1
            } else {
                *version + 1
            };
            put_cell(cell, *version, room);
        }
        let token = self.admit(due, first, Kind::Write);
        let address = first * CELL_BYTES as u64;
        let client = &mut self.attached.client;
        let submitted = client.submit_write(now, address, Bytes::from(bytes), token);
        self.note_submitted(token, submitted.is_ok());
    }

    fn read(&mut self, now: Time, due: Time, first: u64, count: u64) {
        let expected = self.cells[index(first)..index(first + count)].to_vec();
        let token = self.admit(due, first, Kind::Read(expected));
        let address = first * CELL_BYTES as u64;
        let buffer = BytesMut::zeroed(index(count) * CELL_BYTES);
        let client = &mut self.attached.client;
        let submitted = client.submit_read(now, address, buffer, token);
        self.note_submitted(token, submitted.is_ok());
    }

    fn admit(&mut self, due: Time, first: u64, kind: Kind) -> u64 {
        self.tokens += 1;
        let losses = self.lost.len();
        let request = Request {
            due,
            first,
            kind,
            losses,
        };
        self.under_way.insert(self.tokens, request);
        self.tokens
    }

    fn note_submitted(&mut self, token: u64, is_submitted: bool) {
        self.requests += 1;
        if !is_submitted {
            self.errors += 1;
            let request = self.under_way.remove(&token).expect("just put there");
            if matches!(request.kind, Kind::Write) {
                self.cells[index(request.first)] = UNKNOWN;
            }
        }
    }

    fn judge(&mut self, end: Ended) {
        let request = self.under_way.remove(&end.token).expect("it ends once");
        let now = Time::now();
        if end.result.is_err() {
            self.errors += 1;
            if matches!(request.kind, Kind::Write) {
                self.cells[index(request.first)] = UNKNOWN;
            }
            return;
        }
        let is_read = match &request.kind {
            Kind::Read(expected) => {
                let lost = &self.lost[request.losses..];
                let is_lost = |cell: u64| {
                    let region = cell / self.region_cells;
                    lost.iter().any(|(lost, _)| u64::from(*lost) == region)
                };
                self.wrong_bytes += wrong_bytes(request.first, expected, &end.buffer, is_lost);
                true
            }
            Kind::Write => false,
        };
        self.note(request.due, now, is_read);
    }

    fn note(&mut self, due: Time, now: Time, is_read: bool) {
        let seen = match self.the_move {
            Some(Move { begun, ended }) if now >= begun => {
                if ended.is_some_and(|ended| due >= ended) {
                    None
                } else {
                    Some(&mut self.during)
                }
            }
            _ => Some(&mut self.before),
        };
        let ns = u64::try_from(now.since(due).as_nanos()).unwrap_or(u64::MAX);
        if let Some(seen) = seen {
            let histogram = if is_read {
                &mut seen.reads
            } else {
                &mut seen.writes
            };
            histogram.saturating_record(ns);
        }
        let at = now.since(self.origin).as_nanos() / BUCKET.as_nanos();
        let at = usize::try_from(at).expect("less than an hour");
        if self.buckets.len() <= at {
            self.buckets.resize(at + 1, Bucket::default());
        }
        let bucket = &mut self.buckets[at];
        if is_read {
            bucket.reads.push(ns);
        } else {
            bucket.writes.push(ns);
        }
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("it is in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_is_a_latency_that_was_seen() {
        let ns: Vec<u64> = (1..=200).rev().map(|us| us * 1000).collect();
        assert!((p99_us(&ns) - 198.0).abs() < 1e-9);
        assert!((p99_us(&[7000]) - 7.0).abs() < 1e-9);
        assert!(p99_us(&[]) < 1e-9);
    }
}
