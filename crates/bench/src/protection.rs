//! `cenote bench page --protected`: what checksums and seals add to a page.
//!
//! Three rs:8+2 volumes on the same hosts, without protection, with checksums and sealed. Slices of
//! reads and writes of random pages take turns, volume by volume, so that all meet the same
//! moments; a figure is the median over rounds of the difference of two medians of one round.
//! Goal: less than half a microsecond added.

use cenote_measure::random::Random;
use cenote_volume::{PAGE_BYTES, Volume, Worker};
use hdrhistogram::Histogram;

use super::Row;
use super::page::{fill, histogram, protection_of, ticks, ticks_to_ns};
use crate::cluster::LocalCluster;
use crate::rounds::turns;
use crate::swap_rig::interrupt::{self, Interrupt};

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// `shm` or `tcp`.
    pub transport: String,
    /// Rounds of which the median is taken.
    pub rounds: usize,
    /// Slices of each case in a round.
    pub slices: usize,
    /// Pages that are read or written in one.
    pub slice_ops: usize,
    /// Size of each volume in MiB.
    pub size_mib: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: "shm".to_owned(),
            rounds: 7,
            slices: 20,
            slice_ops: 2000,
            size_mib: 384,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verb {
    Read,
    Write,
}

/// A verb, and whether all of the volume is meant or a part that fits the caches.
type Case = (Verb, bool);

const CASES: [Case; 4] = [
    (Verb::Read, false),
    (Verb::Write, false),
    (Verb::Read, true),
    (Verb::Write, true),
];

/// Runs the benchmark; narrates on stderr.
///
/// # Errors
/// When the local cluster or a volume cannot be started, an operation fails, or the run was
/// interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    let _interrupt = Interrupt::catch()?;
    // Three times 1.25 times the size, and half as much again for uneven placement.
    let memory_mib = (options.size_mib * 6).div_ceil(HOSTS as u64);
    let memory_mib = memory_mib.next_multiple_of(64) + 128;
    let cluster = LocalCluster::start(HOSTS, memory_mib, &options.transport)?;
    let mut volumes = Vec::new();
    for name in VOLUMES {
        interrupt::check()?;
        let (scheme, protection) = protection_of(name);
        let scheme = scheme.parse().expect("listed schemes are valid");
        let volume = cluster.protected_volume(scheme, protection, options.size_mib << 20)?;
        fill(&volume)?;
        volumes.push(volume);
    }
    let workers = volumes.iter().map(|volume| Volume::worker(volume));
    let mut workers: Vec<Worker> = workers.collect::<Result<_, _>>()?;
    // By case, then by volume: a median for each round, in ns.
    let mut medians = vec![vec![Vec::new(); VOLUMES.len()]; CASES.len()];
    for round in 0..options.rounds {
        for (case, medians) in CASES.iter().zip(&mut medians) {
            interrupt::check()?;
            let taken = take(*case, round, options, &mut workers)?;
            for (volume, times) in taken.iter().enumerate() {
                medians[volume].push(times.value_at_quantile(0.5) as f64);
            }
            let text: Vec<String> = VOLUMES
                .iter()
                .zip(medians)
                .map(|(name, medians)| format!("{name} {:.0} ns", medians[round]))
                .collect();
            eprintln!("{}, round {round}: {}", label(*case), text.join(", "));
        }
    }
    Ok(rows(options, &medians))
}

/// One round of one case: the times of each volume.
fn take(
    (verb, is_cold): Case,
    round: usize,
    options: &Options,
    workers: &mut [Worker],
) -> anyhow::Result<Vec<Histogram<u64>>> {
    let mut taken: Vec<_> = workers.iter().map(|_| histogram()).collect();
    let pages = if is_cold {
        (options.size_mib << 20) / PAGE_BYTES as u64
    } else {
        WARM_PAGES
    };
    let mut page = vec![0x5a; PAGE_BYTES];
    for slice in 0..options.slices {
        for index in turns(workers.len(), slice + round) {
            let (worker, times) = (&mut workers[index], &mut taken[index]);
            let mut random = Random::new((round * options.slices + slice) as u64);
            for _ in 0..options.slice_ops {
                let offset = random.below(pages) * PAGE_BYTES as u64;
                let began = ticks();
                match verb {
                    Verb::Read => worker.read(offset, &mut page)?,
                    Verb::Write => worker.write(offset, &page)?,
                }
                times.saturating_record(ticks_to_ns(ticks() - began));
            }
        }
    }
    Ok(taken)
}

fn label((verb, is_cold): Case) -> String {
    let verb = if verb == Verb::Read { "read" } else { "write" };
    format!("{verb} {}", if is_cold { "cold" } else { "warm" })
}

/// What each protection takes beside the volume without, and what it adds.
fn rows(options: &Options, medians: &[Vec<Vec<f64>>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (case, volumes) in CASES.iter().zip(medians) {
        let (bare, protected) = (&volumes[0], &volumes[1..]);
        for (name, ours) in VOLUMES[1..].iter().zip(protected) {
            let name = format!("{} {name} {} 1 thread", options.transport, label(*case));
            let pairs: Vec<_> = ours.iter().copied().zip(bare.iter().copied()).collect();
            let added: Vec<_> = pairs
                .iter()
                .map(|(ours, bare)| (ours - bare, GOAL_NS))
                .collect();
            let beside = format!("our {}", VOLUMES[0]);
            for (metric, peer, pairs) in [
                ("latency_p50", beside.as_str(), &pairs),
                ("added_p50", "goal", &added),
            ] {
                let (case, metric) = (("page", &name), (metric, "ns"));
                rows.push(Row::of_rounds(case, metric, Some(false), peer, pairs));
            }
        }
    }
    rows
}

const HOSTS: usize = 12;
/// The first is what the others are compared with.
const VOLUMES: [&str; 3] = ["rs:8+2", "rs:8+2 checksum", "rs:8+2 sealed"];
/// A working set inside the caches.
const WARM_PAGES: u64 = 256;
const GOAL_NS: f64 = 500.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_of_the_same_round() {
        let case = |read: [f64; 3]| {
            // The machine was twice as slow in the second round.
            read.map(|ns| vec![ns, ns * 2.0, ns]).to_vec()
        };
        let medians: Vec<_> = CASES
            .iter()
            .map(|_| case([1000.0, 1200.0, 1800.0]))
            .collect();
        let rows = rows(&Options::default(), &medians);
        assert_eq!(rows.len(), CASES.len() * 2 * 2);
        let added: Vec<_> = rows
            .iter()
            .filter(|row| row.metric == "added_p50")
            .collect();
        assert_eq!((added[0].ours, added[1].ours), (200.0, 800.0));
        let spread = added[0].spread.as_ref().expect("of three rounds");
        assert_eq!((spread.ratio_min, spread.ratio_max), (0.4, 0.8));
        assert_eq!(rows[0].case, "shm rs:8+2 checksum read warm 1 thread");
    }
}
