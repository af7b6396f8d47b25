//! The log store with memory alone, over a disk, and over a cache and a disk, beside RocksDB and
//! FASTER with as much memory.
//!
//! Records have a key of 8 bytes and a value of 16; in our log they take 40. Whoever stands in the
//! table has one thread, but RocksDB, whose reads wait for the disk: it has as many as FASTER and
//! ours have reads under way at most. All are open at once, and one of them works at a time.
//! Paper: \[redy22\] section FASTER.

mod contender;
mod load;
mod ours;
mod peer;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use cenote_measure::statistics::median;

use self::contender::{Contender, Rate};
use self::ours::{Below, Ours};
use self::peer::Peer;
use super::{RatioRange, Row};
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt::{self, Interrupt};
use crate::swap_rig::{Folder, fresh};

/// Bytes of a record in our log.
const RECORD_BYTES: u64 = 40;
/// The database is so many times the memory.
const DATABASE_PER_MEMORY: u64 = 6;
/// Hosts of a cache.
const HOSTS: usize = 2;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Folder for logs and clusters, on a real disk; made, and removed.
    pub dir: PathBuf,
    /// Seconds of a round.
    pub seconds: u64,
    /// Measurements of each case.
    pub rounds: usize,
    /// Where the peers' programs are.
    pub peers: PathBuf,
}

/// How keys are chosen, and what is done with them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mix {
    /// Reads, each key as often, and one in a call where others are 32.
    Single,
    /// Reads, each key as often.
    Uniform,
    /// Zipf 0.99, half of it reads and half of it upserts.
    Zipf,
}

impl Mix {
    /// All.
    pub const ALL: [Self; 3] = [Self::Single, Self::Uniform, Self::Zipf];

    fn name(self) -> &'static str {
        match self {
            Self::Single | Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Single => "uniform reads, one a call",
            Self::Uniform => "uniform reads",
            Self::Zipf => "Zipf 0.99, half upserts",
        }
    }
}

/// Of each round of one contender.
type Rates = Vec<Rate>;

/// Which of a round's rates is compared.
type Figure = fn(&Rate) -> f64;

/// Measures all contenders that are there; narrates on stderr.
///
/// # Errors
/// What could not be started or went away, an answer that is wrong, or that the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    ensure!(options.rounds > 0, "no rounds asked for");
    let _interrupt = Interrupt::catch()?;
    let keys = options.log_bytes / RECORD_BYTES;
    // The store's memory is a power of two, and no more than its share.
    let memory_bytes = 1 << (options.log_bytes / DATABASE_PER_MEMORY).ilog2();
    let folder = Folder::make(fresh(&options.dir, "log"))?;
    eprintln!(
        "{keys} records, {} MiB of log, {} MiB of memory; in {}",
        options.log_bytes >> 20,
        memory_bytes >> 20,
        folder.0.display()
    );
    let [shm, tcp] = ["shm", "tcp"].map(|transport| {
        let mib = (options.log_bytes >> 20) / HOSTS as u64 + 96;
        let dir = folder.0.join(transport);
        LocalCluster::start_in(&dir, HOSTS, mib, transport, &["--slab", "16M"])
    });
    let (shm, tcp) = (shm?, tcp?);
    let sizes = ours::Sizes { keys, memory_bytes };
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(Ours::start(Below::Nothing, sizes, &folder.0)?),
        Box::new(Ours::start(Below::Disk, sizes, &folder.0)?),
        Box::new(Ours::start(Below::Cache(&shm, "shm"), sizes, &folder.0)?),
        Box::new(Ours::start(Below::Cache(&tcp, "tcp"), sizes, &folder.0)?),
    ];
    for name in ["rocksdb", "faster"] {
        let program = options.peers.join(name);
        if !program.is_file() {
            eprintln!("left out: {name}, there is no {}", program.display());
            continue;
        }
        let peer = Peer::start(&program, sizes, &folder.0.join(name));
        contenders.push(Box::new(peer.with_context(|| name.to_owned())?));
    }
    let mut rows = Vec::new();
    for mix in Mix::ALL {
        rows.extend(measure(&mut contenders, mix, options)?);
    }
    Ok(rows)
}

fn measure(
    contenders: &mut [Box<dyn Contender>],
    mix: Mix,
    options: &Options,
) -> anyhow::Result<Vec<Row>> {
    // One key a call is a matter of memory.
    let count = if mix == Mix::Single {
        2
    } else {
        contenders.len()
    };
    let contenders = &mut contenders[..count];
    let mut rates: Vec<Rates> = vec![Rates::new(); count];
    for round in 0..=options.rounds {
        for (contender, rates) in contenders.iter_mut().zip(&mut rates) {
            interrupt::check()?;
            let rate = contender.run(mix, options.seconds, round as u64)?;
            eprintln!(
                "{}: {}: {:.3} M/s, {:.3} M per processor second",
                mix.words(),
                contender.name(),
                rate.clock,
                rate.processor
            );
            // The first round warms up what is in memory and in caches.
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    let names: Vec<String> = contenders.iter().map(|it| it.name()).collect();
    let mut rows = Vec::new();
    let mut compare = |ours: usize, theirs: usize| {
        let metrics: [(_, Figure); 2] = [
            ("throughput", |rate| rate.clock),
            ("throughput_per_cpu", |rate| rate.processor),
        ];
        for (metric, of) in metrics {
            let [mine, peer]: [Vec<f64>; 2] =
                [ours, theirs].map(|it| rates[it].iter().map(of).collect());
            let case = format!("{}, {}", mix.words(), names[ours]);
            let peers = (names[theirs].clone(), median(peer.iter().copied()));
            let mut row = Row::new(
                ("log", case),
                (metric, "M/s"),
                median(mine.iter().copied()),
                peers,
            );
            let ratios = mine.iter().zip(&peer).map(|(mine, peer)| mine / peer);
            row.spread = RatioRange::of(&ratios.collect::<Vec<f64>>(), true);
            rows.push(row);
        }
    };
    // Memory alone, beside the disk; what is below memory beside the disk alone, and beside peers.
    compare(0, 1);
    if mix != Mix::Single {
        compare(2, 1);
        compare(3, 1);
        for peer in 4..contenders.len() {
            (1..4).for_each(|ours| compare(ours, peer));
        }
    }
    Ok(rows)
}

/// The file of a contender's log.
fn log_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.log"))
}
