//! Key-value stores beside each other under YCSB's mixes: ours, memcached, Redis.
//!
//! All stores run and hold the same items at once; each case is measured on one after the other,
//! several rounds in turn, and a row holds medians of rounds and how much their ratios differed.
//! The first store is ours, the others are its peers. Every value that comes back is checked to its
//! last byte, and against what was acknowledged: a wrong one is the end of the run, not a figure.
//!
//! Throughput of one machine is shared between server and client, so the fairest figure is
//! requests per second of the servers' processor time. Latencies are those of closed loops.
//! Elsewhere: the client (`load` and what it uses), stores (`server`, `running`), what is aimed at
//! (`goals`), stores whose nodes are killed (`recovery`).
//! Paper: \[cocytus16\] section 6.

pub(crate) mod connection;
mod goals;
pub(crate) mod items;
mod load;
mod node_status;
pub(crate) mod processes;
pub mod recovery;
mod server;
mod shards;
pub(crate) mod source;
mod survey;
pub(crate) mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod usage;
pub(crate) mod wire;
pub(crate) mod worker;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cenote_measure::statistics::median;

use super::Row;
use crate::rounds::turns;
use crate::swap_rig::interrupt::Interrupt;
pub use items::Sizes;
use items::{Book, HEADER_BYTES, Items, VALUE_BYTES_MAX};
use load::Load;
pub use load::{Route, Shape};
use processes::Processes;
pub use server::{Redundancy, Server, Start};
pub use source::Mix;
use tally::{Kind, Tally};
pub use wire::Protocol;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ours first, then its peers.
    pub servers: Vec<Server>,
    /// Shares of reads and writes.
    pub mixes: Vec<Mix>,
    /// Lengths of values.
    pub sizes: Vec<Sizes>,
    /// Requests under way per client.
    pub depths: Vec<usize>,
    /// Closed loops.
    pub clients: usize,
    /// Threads that serve them.
    pub threads: usize,
    /// About how many MiB of values each store gets.
    pub mib: u64,
    /// Length of one measurement.
    pub seconds: f64,
    /// Measurements of each case on each store.
    pub rounds: usize,
    /// Seed of items and of the order of requests.
    pub seed: u64,
}

impl Options {
    /// With these stores, and the paper's mixes and sizes.
    #[must_use]
    pub fn new(servers: Vec<Server>) -> Self {
        Self {
            servers,
            mixes: vec![Mix::HALF, Mix::MOSTLY_READS, Mix::READS],
            sizes: vec![
                Sizes::Fixed(1 << 10),
                Sizes::Fixed(4 << 10),
                Sizes::Fixed(16 << 10),
                Sizes::Zipf,
            ],
            depths: vec![1, 16],
            clients: 32,
            threads: 1,
            mib: 128,
            seconds: 1.0,
            rounds: 5,
            seed: 1,
        }
    }

    fn check(&self) -> Result<()> {
        ensure!(self.servers.len() > 1, "ours and at least one peer");
        ensure!(self.rounds > 0 && self.seconds > 0.0, "no rounds asked for");
        for sizes in &self.sizes {
            if let Sizes::Fixed(bytes) = sizes {
                ensure!(
                    (HEADER_BYTES..=VALUE_BYTES_MAX).contains(&(*bytes as usize)),
                    "values of {HEADER_BYTES} to {VALUE_BYTES_MAX} bytes"
                );
            }
        }
        Ok(())
    }

    fn shape(&self, depth: usize) -> Shape {
        Shape {
            clients: self.clients,
            depth,
            threads: self.threads,
        }
    }

    fn items(&self, sizes: Sizes) -> Result<Items> {
        let mean_bytes = match sizes {
            Sizes::Fixed(bytes) => u64::from(bytes),
            Sizes::Zipf => ZIPF_MEAN_BYTES,
        };
        let count = (self.mib << 20) / mean_bytes;
        let count = u32::try_from(count).context("fewer items")?.max(1);
        Ok(Items::new(count, sizes, self.seed))
    }
}

/// Of [`Sizes::Zipf`], about.
const ZIPF_MEAN_BYTES: u64 = 140;

/// Measures every case; narrates on stderr.
///
/// # Errors
/// A store that cannot be started or goes away, and any answer that is wrong.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    options.check()?;
    let interrupt = Interrupt::catch()?;
    let mut rows = Vec::new();
    for sizes in &options.sizes {
        let items = options.items(*sizes)?;
        let bench = Bench {
            options,
            interrupt: &interrupt,
            items: &items,
            sizes: *sizes,
        };
        rows.extend(bench.run()?);
    }
    goals::print(&options.servers, &rows);
    Ok(rows)
}

/// Room for items, in MiB.
fn room_mib(items: &Items) -> u64 {
    // Twice: slab classes and allocators round up, and Redis counts its buffers.
    (items.filled_bytes() >> 20) * 2 + 128
}

/// All stores with items of one kind.
struct Bench<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    items: &'a Items,
    sizes: Sizes,
}

/// A store and what is known of its items.
struct Store<'a> {
    server: &'a Server,
    running: Processes,
    book: Book,
    memory: Memory,
}

/// What a store holds in memory for what was filled in.
#[derive(Clone, Copy)]
struct Memory {
    /// Beyond what it held when it was empty.
    grown_bytes: u64,
    resident_bytes: u64,
}

impl Bench<'_> {
    fn run(&self) -> Result<Vec<Row>> {
        let label = self.sizes.label();
        eprintln!(
            "{} items of {label}, {} MiB with their keys",
            self.items.count(),
            self.items.filled_bytes() >> 20
        );
        let servers = self.options.servers.iter();
        let stores = servers
            .map(|server| self.fill(server).with_context(|| server.name.clone()))
            .collect::<Result<Vec<_>>>()?;
        let mut rows = self.memory_rows(&stores);
        for mix in &self.options.mixes {
            for depth in &self.options.depths {
                rows.extend(self.measure(&stores, *mix, *depth)?);
            }
        }
        Ok(rows)
    }

    fn fill<'s>(&self, server: &'s Server) -> Result<Store<'s>> {
        self.interrupt.check()?;
        let running = Processes::start(server, room_mib(self.items))?;
        let pids = running.pids();
        let empty_bytes = usage::resident_bytes(&pids)?;
        let mut store = Store {
            server,
            running,
            book: Book::new(self.items),
            memory: Memory {
                grown_bytes: 0,
                resident_bytes: 0,
            },
        };
        self.load(&store, 1).fill()?;
        let resident_bytes = usage::resident_bytes(&pids)?;
        store.memory = Memory {
            grown_bytes: resident_bytes.saturating_sub(empty_bytes),
            resident_bytes,
        };
        eprintln!("{server}: filled, {} MiB resident", resident_bytes >> 20);
        Ok(store)
    }

    fn load<'s>(&'s self, store: &'s Store<'_>, depth: usize) -> Load<'s> {
        Load {
            target: &store.running.target,
            items: self.items,
            book: &store.book,
            shape: self.options.shape(depth),
            is_tolerant: false,
        }
    }

    fn memory_rows(&self, stores: &[Store<'_>]) -> Vec<Row> {
        let stored = self.items.filled_bytes() as f64;
        let of = |store: &Store<'_>| {
            let values = stored * store.server.redundancy.factor();
            let beside = store.memory.grown_bytes as f64 - values;
            [
                (
                    ("resident_per_byte", "B/B"),
                    store.memory.resident_bytes as f64 / stored,
                ),
                (
                    ("beside_values", "B/item"),
                    beside / f64::from(self.items.count()),
                ),
            ]
        };
        let case = format!("{} {}", stores[0].server, self.sizes.label());
        let mut rows = Vec::new();
        for peer in &stores[1..] {
            for ((metric, ours), (_, theirs)) in of(&stores[0]).into_iter().zip(of(peer)) {
                let name = peer.server.name.as_str();
                rows.push(Row::new(("kv", case.clone()), metric, ours, (name, theirs)));
            }
        }
        rows
    }

    /// One case on every store, in turn.
    fn measure(&self, stores: &[Store<'_>], mix: Mix, depth: usize) -> Result<Vec<Row>> {
        let case = format!("{} {} depth {depth}", self.sizes.label(), mix.label());
        let mut figures = vec![Vec::new(); stores.len()];
        for round in 0..self.options.rounds {
            for index in turns(stores.len(), round) {
                let seed = self.options.seed + round as u64;
                let store = &stores[index];
                if round == 0 {
                    self.measure_once(store, mix, depth, seed, WARM_UP)?;
                }
                let time = Duration::from_secs_f64(self.options.seconds);
                let round = self
                    .measure_once(store, mix, depth, seed, time)
                    .with_context(|| format!("{case} on {}", store.server))?;
                figures[index].push(round);
            }
        }
        for (store, rounds) in stores.iter().zip(&figures) {
            let middle = |metric: usize| median(rounds.iter().filter_map(|round| round.0[metric]));
            eprintln!(
                "{case}, {}: {:.0} requests/s, {:.0} per second of its processor, p99 {:.0} us",
                store.server,
                middle(0),
                middle(1),
                middle(if mix == Mix::READS { 5 } else { 7 }),
            );
        }
        let ours = format!("{} {case}", stores[0].server);
        let mut rows = Vec::new();
        for (peer, theirs) in stores[1..].iter().zip(&figures[1..]) {
            rows.extend(rows_of(&ours, &figures[0], &peer.server.name, theirs));
        }
        Ok(rows)
    }

    fn measure_once(
        &self,
        store: &Store<'_>,
        mix: Mix,
        depth: usize,
        seed: u64,
        time: Duration,
    ) -> Result<Figures> {
        let servers = store.running.pids();
        let client = [std::process::id()];
        let load = self.load(store, depth);
        let (tally, used) = load.run((mix, seed), Duration::ZERO, |_| {
            let began = Instant::now();
            let before = (usage::cpu(&servers)?, usage::cpu(&client)?);
            self.interrupt.sleep(time)?;
            Ok(Used {
                servers: usage::cpu(&servers)? - before.0,
                client: usage::cpu(&client)? - before.1,
                time: began.elapsed(),
            })
        })?;
        let is_clean = tally.is_sound() && tally.failures() == 0 && tally.misses == 0;
        if !is_clean {
            bail!("{}", tally.troubles());
        }
        Ok(Figures::of(&tally, &used))
    }
}

/// Time on processors during a measurement.
struct Used {
    servers: Duration,
    client: Duration,
    time: Duration,
}

/// One measurement, in the order of [`METRICS`]; `None` where there was no such request.
#[derive(Clone)]
struct Figures([Option<f64>; METRICS.len()]);

/// Metric, unit and whether more of it is better.
const METRICS: [(&str, &str, Option<bool>); 8] = [
    ("throughput", "ops/s", Some(true)),
    ("throughput_per_cpu", "ops/cpu s", Some(true)),
    ("server_cpu", "us/op", Some(false)),
    ("client_cpu", "us/op", None),
    ("get_p50", "us", Some(false)),
    ("get_p99", "us", Some(false)),
    ("set_p50", "us", Some(false)),
    ("set_p99", "us", Some(false)),
];

impl Figures {
    fn of(tally: &Tally, used: &Used) -> Self {
        let count = tally.total() as f64;
        let per_request_us =
            |time: Duration| (count > 0.0).then(|| time.as_secs_f64() * 1e6 / count);
        let server_s = used.servers.as_secs_f64();
        Self([
            Some(count / used.time.as_secs_f64()),
            (server_s > 0.0).then(|| count / server_s),
            per_request_us(used.servers),
            per_request_us(used.client),
            tally.quantile_us(Kind::Get, 0.5),
            tally.quantile_us(Kind::Get, 0.99),
            tally.quantile_us(Kind::Set, 0.5),
            tally.quantile_us(Kind::Set, 0.99),
        ])
    }
}

/// Ours beside one peer: figures of the same round are compared.
fn rows_of(case: &str, ours: &[Figures], peer: &str, theirs: &[Figures]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, (metric, unit, more_is_better)) in METRICS.into_iter().enumerate() {
        let rounds = ours.iter().zip(theirs);
        let pairs: Vec<_> = rounds
            .filter_map(|(ours, theirs)| Some((ours.0[index]?, theirs.0[index]?)))
            .collect();
        if pairs.is_empty() {
            continue;
        }
        let metric = (metric, unit);
        rows.push(Row::of_rounds(
            ("kv", case),
            metric,
            more_is_better,
            peer,
            &pairs,
        ));
    }
    rows
}

/// Until connections and caches are as they will be; arbitrary.
const WARM_UP: Duration = Duration::from_millis(300);
