//! The paper's cluster experiment: 32 machines, some 90 containers, some of them too small.
//!
//! Memory of programs is a model (`containers`). Where it does not fit it is swapped, to disk or,
//! with Infiniswap, to slabs of other machines (`remote`): the placer chooses the host, the
//! pressure of the host's own programs says how many slabs it has room for, the evictor which go.
//! Those three are the functions of `cenote_pool` that hosts and clients call. One step is a
//! second, the period of the paper's averages.
//!
//! What the paper does not say is an option or a variant here, each with its reason in decision
//! 19; nothing is fitted to the paper's results. Units: GiB where a name says so, the paper's GB
//! is taken for it. Paper: \[infiniswap17\] 7.4.1, figure 15.

mod containers;
mod remote;
mod report;

use anyhow::{Result, ensure};
use cenote_measure::random::Random;
use cenote_measure::statistics::{Imbalance, MedianRange};
use serde::Serialize;

use self::containers::Container;
use self::remote::Remote;

pub use self::report::{PAPER, Paper, csv, plot};

/// The experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Random seed; run i has the seed plus i.
    pub seed: u64,
    /// Clusters, each with its containers placed again.
    pub runs: u32,
    /// Machines of a cluster.
    pub machines: usize,
    /// Memory of a machine.
    pub memory_gib: u32,
    /// Containers on all of them.
    pub containers: usize,
    /// Whether Spark's `PageRank` is among the workloads.
    pub with_spark: bool,
    /// What a machine's system uses.
    pub system_gib: f64,
    /// Pages that a program at its peak touches in a second, evenly over its memory.
    pub touches: f64,
    /// Free memory that a host keeps.
    pub headroom_gib: f64,
    /// Page I/Os per second above which a slab is mapped.
    pub hot_slab: f64,
    /// Slabs that are asked for beside those that are evicted.
    pub extra: usize,
    /// What the experiment takes.
    pub seconds: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            runs: 50,
            machines: 32,
            memory_gib: 64,
            containers: 90,
            with_spark: false,
            system_gib: 2.0,
            touches: 10_000.0,
            headroom_gib: 8.0,
            hot_slab: 20.0,
            extra: cenote_pool::eviction::EXTRA,
            seconds: 1300,
        }
    }
}

/// Which pages of a program that does not fit have a place in swap space, and so in slabs. The
/// paper does not say; Linux keeps the place of a page that was read back until half of the swap
/// space is in use, which is between the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Swapped {
    /// Those that do not fit at a time.
    Overflow,
    /// Every page, once the program does not fit: each was out once.
    Whole,
}

/// Both.
pub const VARIANTS: [Swapped; 2] = [Swapped::Overflow, Swapped::Whole];

/// What was found in all runs, for one variant. The JSON line has exactly these keys, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Always: no machine took part.
    pub simulated: bool,
    /// As asked for.
    pub seed: u64,
    /// As asked for.
    pub runs: u32,
    /// The variant.
    pub swapped: Swapped,
    /// Share of the cluster's memory in use, swapping to disk.
    pub utilisation_without: MedianRange,
    /// And to other machines.
    pub utilisation_with: MedianRange,
    /// The second by the first.
    pub utilisation_ratio: MedianRange,
    /// Fullest machine by the median one, swapping to disk.
    pub max_to_median_without: MedianRange,
    /// And to other machines.
    pub max_to_median_with: MedianRange,
    /// Fullest machine by the emptiest, swapping to disk.
    pub max_to_min_without: MedianRange,
    /// And to other machines.
    pub max_to_min_with: MedianRange,
    /// Pages over the network, per machine.
    pub network_mbps: MedianRange,
    /// That, of 56 Gbps.
    pub network_share: MedianRange,
    /// Slabs evicted.
    pub evictions: MedianRange,
    /// Swapped memory that is in slabs of other machines at the end, of all that is swapped.
    pub remote_share: MedianRange,
    /// Share of its memory in use on each machine of the first run, in order: swapping to disk.
    pub machines_without: Vec<f64>,
    /// And to other machines.
    pub machines_with: Vec<f64>,
}

/// Last seconds of a run, over which figures are averages: programs are at their peak.
const STEADY_S: u32 = 300;
/// The paper's network, in bits per second.
const NETWORK_BPS: f64 = 56e9;

/// One run.
struct Found {
    without: Vec<f64>,
    with: Vec<f64>,
    network_bps: f64,
    evictions: f64,
    remote_share: f64,
}

/// Runs the experiment, for each variant on the same containers.
///
/// # Errors
/// Options that make no sense, or containers that do not fit.
pub fn run(options: &Options) -> Result<Vec<Outcome>> {
    ensure!(options.runs > 0, "no runs: nothing to simulate");
    ensure!(
        (2..=MACHINES_MAX).contains(&options.machines),
        "from 2 to {MACHINES_MAX} machines"
    );
    ensure!(
        options.seconds >= STEADY_S,
        "figures are of the last {STEADY_S} seconds"
    );
    ensure!(
        options.system_gib > 0.0,
        "a machine without a system has no share to compare with"
    );
    VARIANTS
        .into_iter()
        .map(|swapped| {
            let runs = (0..options.runs)
                .map(|run| one(options, swapped, options.seed.wrapping_add(u64::from(run))))
                .collect::<Result<Vec<Found>>>()?;
            Ok(outcome(options, swapped, &runs))
        })
        .collect()
}

/// Most machines. Arbitrary.
pub const MACHINES_MAX: usize = 10_000;

fn one(options: &Options, swapped: Swapped, seed: u64) -> Result<Found> {
    let mut random = Random::new(seed);
    let containers = containers::deal(options, &mut random)?;
    let mut remote = Remote::new(options);
    let mut without = vec![0.0; options.machines];
    let mut with = vec![0.0; options.machines];
    let steady_from = options.seconds - STEADY_S;
    for second in 0..options.seconds {
        let loads = loads(options, &containers, swapped, second);
        remote.step(&loads, &mut random);
        if second < steady_from {
            continue;
        }
        let share = f64::from(options.memory_gib) * f64::from(STEADY_S);
        for (machine, load) in loads.iter().enumerate() {
            without[machine] += load.used_gib / share;
            with[machine] += (load.used_gib + remote.lent_gib(machine)) / share;
        }
    }
    Ok(Found {
        without,
        with,
        network_bps: remote.network_bytes() * 8.0
            / f64::from(options.seconds)
            / options.machines as f64,
        evictions: remote.evictions() as f64,
        remote_share: remote.share(),
    })
}

/// What the programs of one machine do in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Load {
    /// Memory in use, the system's included.
    used_gib: f64,
    /// Memory that has its place in swap space.
    swapped_gib: f64,
    /// Pages read back; as many are written out.
    faults: f64,
}

fn loads(options: &Options, containers: &[Container], swapped: Swapped, second: u32) -> Vec<Load> {
    let system = Load {
        used_gib: options.system_gib,
        ..Load::default()
    };
    let mut loads = vec![system; options.machines];
    for container in containers {
        let load = &mut loads[container.machine];
        let (fits_gib, over_gib) = container.memory_gib(second);
        load.used_gib += fits_gib;
        if over_gib > 0.0 {
            let all_gib = fits_gib + over_gib;
            load.swapped_gib += match swapped {
                Swapped::Overflow => over_gib,
                Swapped::Whole => all_gib,
            };
            load.faults += options.touches * over_gib / all_gib;
        }
    }
    loads
}

fn outcome(options: &Options, swapped: Swapped, runs: &[Found]) -> Outcome {
    let spread = |figure: &dyn Fn(&Found) -> f64| {
        MedianRange::of(runs.iter().map(figure).collect::<Vec<_>>())
    };
    let mean = |shares: &[f64]| shares.iter().sum::<f64>() / shares.len() as f64;
    let uneven = |shares: &[f64]| Imbalance::of(shares.to_vec());
    Outcome {
        simulated: true,
        seed: options.seed,
        runs: options.runs,
        swapped,
        utilisation_without: spread(&|run| mean(&run.without)),
        utilisation_with: spread(&|run| mean(&run.with)),
        utilisation_ratio: spread(&|run| mean(&run.with) / mean(&run.without)),
        max_to_median_without: spread(&|run| uneven(&run.without).max_to_median),
        max_to_median_with: spread(&|run| uneven(&run.with).max_to_median),
        max_to_min_without: spread(&|run| uneven(&run.without).max_to_min),
        max_to_min_with: spread(&|run| uneven(&run.with).max_to_min),
        network_mbps: spread(&|run| run.network_bps / 1e6),
        network_share: spread(&|run| run.network_bps / NETWORK_BPS),
        evictions: spread(&|run| run.evictions),
        remote_share: spread(&|run| run.remote_share),
        machines_without: runs[0].without.clone(),
        machines_with: runs[0].with.clone(),
    }
}

#[cfg(test)]
mod tests;
