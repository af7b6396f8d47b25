//! Object stores beside each other under YCSB's mixes: ours by its schemes, Redis with its append-only
//! file, RocksDB.
//!
//! For each length of values all stores are started on one disk and filled with the same items;
//! each case is measured on one after the other, several rounds in turn, and a figure is the
//! median. Every value that is read is checked to its last byte, and against what was acknowledged.
//!
//! Stores stand beside those that promise the same: a PUT that may be lost (`everysec`,
//! `sync=false`) and one that is durable when it is answered (`always`, `sync=true`). Between two
//! measurements what the one before left to be written is written out: nobody pays for another.
//! Elsewhere: the load (`load`), who stands in the table (`contender`), what is printed
//! (`figures`).
//! Paper: eFactory, ICPP 2021, evaluation.

mod contender;
mod copies;
mod disk;
mod figures;
mod goals;
mod load;
mod ours;
mod redis;
mod rocksdb;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use self::contender::{Store, Way};
use self::copies::Copies;
use self::figures::{Case, Measured, Round};
pub use self::figures::{Figure, Report};
use self::load::{Clients, Known};
use self::ours::Ours;
use self::redis::{Redis, Sync};
use self::rocksdb::RocksDb;
use super::kv::items::{Book, HEADER_BYTES, Items, VALUE_BYTES_MAX};
use super::kv::{Mix, Sizes, usage};
use crate::rounds::turns;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::{Folder, fresh, is_installed};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Shares of GETs and PUTs.
    pub mixes: Vec<Mix>,
    /// Lengths of values.
    pub value_bytes: Vec<u32>,
    /// Closed loops, each number a case.
    pub clients: Vec<usize>,
    /// How a server on this machine is reached.
    pub transports: Vec<Transport>,
    /// Schemes of our server that stand in the table; ours is `efactory`.
    pub schemes: Vec<String>,
    /// Stores that have each object, in a row of theirs; 1: there is no such row.
    pub copies: usize,
    /// Of each of our servers: values that wait there until they are on the disk.
    pub landing_bytes: u64,
    /// Folder for the stores, on the disk that is to be measured; made, and removed.
    pub dir: PathBuf,
    /// Length of a measurement.
    pub seconds: f64,
    /// Measurements of each case on each store.
    pub rounds: usize,
    /// Seed of items and of the order of requests.
    pub seed: u64,
}

/// How a server on this machine is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// As near as the server allows: memory of both, or a Unix socket.
    Shm,
    /// Over loopback.
    Tcp,
}

impl Transport {
    /// What a server has that maps no memory.
    fn of_sockets(self) -> &'static str {
        match self {
            Self::Shm => "unix",
            Self::Tcp => "tcp",
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mixes: [100, 95, 50, 0]
                .map(|get_percent| Mix { get_percent })
                .to_vec(),
            value_bytes: vec![64, 256, 1 << 10, 4 << 10, 64 << 10],
            clients: vec![1, 32],
            transports: vec![Transport::Shm, Transport::Tcp],
            schemes: Vec::new(),
            copies: 1,
            landing_bytes: 16 << 20,
            dir: PathBuf::from("/var/tmp"),
            seconds: 0.5,
            rounds: 3,
            seed: 1,
        }
    }
}

/// Values of one store together, unless there are too many.
const STORED_BYTES: u32 = 64 << 20;
/// Filling a store that waits for the disk takes no longer than a minute; arbitrary.
const ITEMS_MAX: u32 = 100_000;
/// Closed loops that fill a store.
const FILL_LOOPS: usize = 32;
/// Until connections and caches are as they will be, of the length of a measurement; arbitrary.
const WARM_UP_SHARE: f64 = 0.4;

impl Options {
    fn check(&self) -> Result<()> {
        ensure!(self.rounds > 0 && self.seconds > 0.0, "no rounds asked for");
        let lengths = HEADER_BYTES..=VALUE_BYTES_MAX;
        let are_right = |bytes: &u32| lengths.contains(&(*bytes as usize));
        ensure!(
            self.value_bytes.iter().all(are_right),
            "values of {HEADER_BYTES} to {VALUE_BYTES_MAX} bytes"
        );
        ensure!(
            self.clients.iter().all(|clients| *clients > 0),
            "a client asks, at least"
        );
        Ok(())
    }

    fn items(&self, value_bytes: u32) -> Items {
        let count = (STORED_BYTES / value_bytes).clamp(1, ITEMS_MAX);
        Items::new(count, Sizes::Fixed(value_bytes), self.seed)
    }
}

/// Measures every case on all stores that are there; narrates on stderr.
///
/// # Errors
/// A store that goes away, any answer that is wrong, that no store is there, or an interruption.
pub fn run(options: &Options) -> Result<Report> {
    options.check()?;
    let interrupt = Interrupt::catch()?;
    let folder = Folder::make(fresh(&options.dir, "store"))?;
    eprintln!("{}", disk::latencies(&folder.0)?);
    let mut report = Report::default();
    for value_bytes in &options.value_bytes {
        let bench = Bench {
            options,
            interrupt: &interrupt,
            items: &options.items(*value_bytes),
            value_bytes: *value_bytes,
            // Removed before the next: the largest logs are not kept together.
            folder: &Folder::make(folder.0.join(value_bytes.to_string()))?,
        };
        bench.run(&mut report)?;
    }
    for line in &report.goals {
        eprintln!("{line}");
    }
    Ok(report)
}

/// All stores with values of one length.
struct Bench<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    items: &'a Items,
    value_bytes: u32,
    folder: &'a Folder,
}

/// A store and what is known of its items.
struct Held {
    store: Box<dyn Store>,
    book: Book,
}

/// A way to use a store, in one case.
struct Contestant<'a> {
    held: &'a Held,
    way: &'a Way,
    clients: Clients,
    rounds: Vec<Round>,
}

impl Bench<'_> {
    fn run(&self, report: &mut Report) -> Result<()> {
        let count = self.items.count();
        eprintln!("{count} items of {} B", self.value_bytes);
        let stores = self.start()?;
        ensure!(!stores.is_empty(), "none of the stores is here");
        for clients in &self.options.clients {
            for mix in &self.options.mixes {
                let case = Case {
                    mix: *mix,
                    value_bytes: self.value_bytes,
                    clients: *clients,
                };
                let measured = self.measure(&stores, case);
                report.add(case, &measured.with_context(|| case.label())?);
            }
        }
        for held in &stores {
            let way = &held.store.ways()[0];
            let known = self.known(held);
            let read = known.read_back(&mut held.store.connect(way, FILL_LOOPS)?);
            read.with_context(|| format!("read all of {}", way.label))?;
        }
        Ok(())
    }

    /// Starts and fills every store that is installed; says which are not.
    fn start(&self) -> Result<Vec<Held>> {
        let sockets = self.options.transports.iter();
        let sockets: Vec<_> = sockets.map(|one| one.of_sockets()).collect();
        let mut stores = Vec::new();
        for scheme in &self.options.schemes {
            let dir = self.subfolder(&format!("ours-{scheme}"))?;
            let size = (self.items.count(), self.value_bytes);
            let ours = Ours::start(scheme, size, &dir, self.served())?;
            stores.push(self.fill(Box::new(ours))?);
        }
        if self.options.copies > 1 {
            let mut row = Vec::new();
            for place in 0..self.options.copies {
                let dir = self.subfolder(&format!("copy-{place}"))?;
                // A copy has a head of its own.
                let size = (self.items.count(), self.value_bytes + 16);
                row.push(Ours::start("efactory", size, &dir, self.served())?);
            }
            stores.push(self.fill(Box::new(Copies::new(row)))?);
        }
        for sync in [Sync::EverySecond, Sync::Always] {
            if !is_installed("redis-server") {
                eprintln!("left out: {}, redis-server is not installed", sync.scheme());
                continue;
            }
            let dir = self.subfolder(sync.scheme())?;
            stores.push(self.fill(Box::new(Redis::start(sync, &dir, &sockets)?))?);
        }
        match RocksDb::create(&self.subfolder("rocksdb")?) {
            Ok(database) => stores.push(self.fill(Box::new(database))?),
            Err(error) => eprintln!("left out: rocksdb: {error:#}"),
        }
        Ok(stores)
    }

    fn served(&self) -> (&[Transport], u64) {
        (&self.options.transports, self.options.landing_bytes)
    }

    fn subfolder(&self, name: &str) -> Result<PathBuf> {
        let dir = self.folder.0.join(name);
        std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        Ok(dir)
    }

    fn fill(&self, store: Box<dyn Store>) -> Result<Held> {
        self.interrupt.check()?;
        let held = Held {
            book: Book::new(self.items),
            store,
        };
        let way = &held.store.ways()[0];
        let mut clients = held.store.connect(way, FILL_LOOPS)?;
        let filled = self.known(&held).fill(&mut clients);
        filled.with_context(|| format!("fill {}", way.label))?;
        Ok(held)
    }

    fn known<'s>(&'s self, held: &'s Held) -> Known<'s> {
        Known {
            items: self.items,
            book: &held.book,
        }
    }

    /// One case on every store, in turn.
    fn measure(&self, stores: &[Held], case: Case) -> Result<Vec<Measured>> {
        let mut contestants = Vec::new();
        for held in stores {
            for way in held.store.ways() {
                if case.mix == Mix::READS && way.reads_like_another {
                    continue;
                }
                contestants.push(Contestant {
                    held,
                    way,
                    clients: held.store.connect(way, case.clients)?,
                    rounds: Vec::new(),
                });
            }
        }
        for round in 0..=self.options.rounds {
            for index in turns(contestants.len(), round) {
                let contestant = &mut contestants[index];
                let measured = self.measure_once(contestant, case, round);
                let measured = measured.with_context(|| contestant.way.label.clone())?;
                // The first one warms up.
                if round > 0 {
                    contestant.rounds.push(measured);
                }
            }
        }
        let ended = contestants.into_iter();
        let ended: Vec<Measured> = ended.map(|one| (one.way.clone(), one.rounds)).collect();
        for (way, rounds) in &ended {
            let rates: Vec<String> = rounds
                .iter()
                .map(|one| format!("{:.0}", one.ops_per_second))
                .collect();
            eprintln!(
                "{}: {}: {} ops/s",
                case.label(),
                way.label,
                rates.join(", ")
            );
        }
        Ok(ended)
    }

    fn measure_once(
        &self,
        contestant: &mut Contestant<'_>,
        case: Case,
        round: usize,
    ) -> Result<Round> {
        let store = &contestant.held.store;
        let share = if round == 0 { WARM_UP_SHARE } else { 1.0 };
        let time = Duration::from_secs_f64(self.options.seconds * share);
        let seed = self.options.seed + round as u64;
        let pids = store.pids();
        let (cpu, written) = (usage::cpu(&pids)?, store.medium_bytes());
        let known = self.known(contestant.held);
        let ran = known.run(
            &mut contestant.clients,
            (case.mix, seed),
            (time, self.interrupt),
        )?;
        let cpu = usage::cpu(&pids)? - cpu;
        store.settle()?;
        let written = store
            .medium_bytes()
            .zip(written)
            .map(|(now, before)| now - before);
        disk::write_out(&self.folder.0)?;
        let tally = &ran.tally;
        let put_bytes = ran.ended.puts * u64::from(case.value_bytes);
        let all = ran.ended.all.max(1) as f64;
        Ok(Round {
            ops_per_second: tally.total() as f64 / ran.took.as_secs_f64(),
            p50_us: tally.quantile_of_all_us(0.5)?.unwrap_or(f64::NAN),
            p99_us: tally.quantile_of_all_us(0.99)?.unwrap_or(f64::NAN),
            server_cpu_us: cpu.as_secs_f64() * 1e6 / all,
            write_amplification: written
                .filter(|_| put_bytes > 0)
                .map(|bytes| bytes as f64 / put_bytes as f64),
        })
    }
}
