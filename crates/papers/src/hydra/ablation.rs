//! What each part of Hydra's page path is worth, in a model of its network: `lab hydra ablation`.
//!
//! The real code of hosts and of one volume, as in `latency`, with parts of it turned off, beside
//! what else might be done: a copy with a disk behind it, copies, and codes as EC-Cache does them.
//! Every figure here is **simulated**. The network has the paper's figures; what the processor does
//! costs what `Costs` says and nothing else does: a difference that a part makes comes from these
//! numbers. Stragglers and flows are those of `latency`, which are arbitrary: tails compare, they
//! predict nothing.
//!
//! Units: virtual nanoseconds. Paper: \[hydra22\] 7.1, 7.2, Figures 9 to 12 and 19.

mod figures;
pub mod measurement;
pub mod pictures;

use anyhow::{Result, ensure};
use cenote_measure::statistics::quantile;
use cenote_pool::placement::Policy;
use cenote_volume::{Mode, Placement, Resilience, Switches};
use serde::Serialize;

use crate::latency::cluster::{Cluster, Setup};
use crate::latency::costs::Costs;
use crate::latency::{Network, Operation};

pub use figures::{COMPARISONS, Comparison, Value};

/// What the paper gives: 0.7 us to encode a page, 1.5 us to decode one (section 7.1). Of copies and
/// of waking up it gives no number: a cold copy of 4 KiB as measured for decision 8, and 2 us for an
/// interrupt or a thread that wakes another, which is within what is usual (1 to 5 us).
pub const PAPER_COSTS: Costs = Costs {
    encode_ns: 700,
    decode_ns: 1500,
    copy_ns: 460,
    wake_ns: 2000,
};

/// What `cenote bench codec` measures of a page in the cache (AVX2), the rest as above.
pub const OUR_COSTS: Costs = Costs {
    encode_ns: 150,
    decode_ns: 130,
    ..PAPER_COSTS
};

/// A page of a solid-state disk. The paper does not say; usual ones are between 60 and 120 us.
pub const DISK_NS: u64 = 80_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Random seed.
    pub seed: u64,
    /// Pages read, and pages written, of each row.
    pub operations: usize,
    /// What the processor's work costs.
    pub costs: Costs,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            operations: 5_000,
            costs: PAPER_COSTS,
        }
    }
}

/// Under what a row was measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// Nothing is in the way.
    Quiet,
    /// One message of a hundred is late.
    Stragglers,
    /// Two hosts serve somebody else as well.
    Flows,
    /// One host is gone, and none is there in its place.
    Failure,
}

/// One line of the result. The JSON line of a row has exactly these keys, in this order.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Row {
    /// Always: no figure here was measured on hardware.
    pub simulated: bool,
    /// As asked for.
    pub seed: u64,
    /// What was measured.
    pub system: String,
    /// Read or written.
    pub operation: Operation,
    /// Under what.
    pub condition: Condition,
    /// Pages.
    pub operations: usize,
    /// The median.
    pub p50_ns: u64,
    /// One page of a hundred takes longer.
    pub p99_ns: u64,
}

/// Hydra with everything on, as the other rows name it.
pub const HYDRA: &str = "hydra";

/// Everything that is measured under every condition, by name.
fn systems(options: &Options) -> Result<Vec<(String, Setup)>> {
    let hydra = coded(8, 2, Mode::FailureRecovery, 1, options)?;
    let with = |change: fn(&mut Switches)| {
        let mut setup = hydra;
        change(&mut setup.switches);
        setup
    };
    let off = Switches {
        late_binding: false,
        async_encode: false,
        in_place: false,
        run_to_completion: false,
    };
    let step = |switches| Setup { switches, ..hydra };
    let mut systems: Vec<(String, Setup)> = [
        (HYDRA, hydra),
        ("no late binding", with(|it| it.late_binding = false)),
        ("no async encoding", with(|it| it.async_encode = false)),
        ("no in-place coding", with(|it| it.in_place = false)),
        (
            "no run-to-completion",
            with(|it| it.run_to_completion = false),
        ),
        // From nothing to everything, in the paper's order.
        ("coding alone", step(off)),
        (
            "and run-to-completion",
            step(Switches {
                run_to_completion: true,
                ..off
            }),
        ),
        (
            "and in-place coding",
            step(Switches {
                run_to_completion: true,
                in_place: true,
                ..off
            }),
        ),
        // It reads k+1 as well, and does everything else as it was done before: encodes first, copies,
        // is woken by events, and has each stripe on a group of hosts of its own, drawn at random.
        (
            "ec-cache",
            Setup {
                placement: Placement::Policy(Policy::Random),
                ..step(Switches {
                    late_binding: true,
                    ..off
                })
            },
        ),
        ("ec-only", coded(8, 2, Mode::EcOnly, 0, options)?),
        (
            "ec-only, no async encoding",
            Setup {
                switches: Switches {
                    async_encode: false,
                    ..Switches::default()
                },
                ..coded(8, 2, Mode::EcOnly, 0, options)?
            },
        ),
        ("replication, both", copies(Mode::FailureRecovery, options)?),
        ("replication, first", copies(Mode::EcOnly, options)?),
    ]
    .map(|(name, setup)| (name.to_owned(), setup))
    .into();
    systems.push(("disk backup".into(), plain(options)?.on_disk(DISK_NS)));
    Ok(systems)
}

/// Figure 19: one of k, delta and r is another, the rest as in the paper.
fn sweeps(options: &Options) -> Result<Vec<(String, Setup)>> {
    let mut systems = Vec::new();
    for k in [1, 2, 4, 8, 16] {
        let setup = coded(k, 2, Mode::FailureRecovery, 1, options)?;
        systems.push((format!("k {k}"), setup));
    }
    for delta in 0..=3 {
        let setup = coded(8, 3, Mode::FailureRecovery, delta, options)?;
        systems.push((format!("delta {delta}"), setup));
    }
    for r in 1..=4 {
        let setup = coded(8, r, Mode::FailureRecovery, 1, options)?;
        systems.push((format!("r {r}"), setup));
    }
    Ok(systems)
}

fn coded(k: usize, r: usize, mode: Mode, delta: usize, options: &Options) -> Result<Setup> {
    let scheme = match k {
        1 => format!("mirror:{}", r + 1),
        _ => format!("rs:{k}+{r}"),
    };
    setup(&scheme, mode, delta, options)
}

fn copies(mode: Mode, options: &Options) -> Result<Setup> {
    setup("mirror:2", mode, 0, options)
}

fn plain(options: &Options) -> Result<Setup> {
    setup("plain", Mode::FailureRecovery, 0, options)
}

fn setup(scheme: &str, mode: Mode, delta: usize, options: &Options) -> Result<Setup> {
    let scheme = scheme.parse()?;
    Ok(Setup {
        resilience: Resilience::new(scheme, mode, delta)?,
        costs: options.costs,
        ..Setup::of(scheme)
    })
}

/// Measures everything; the same options give the same rows on every machine.
///
/// # Errors
/// Options that make no sense.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    ensure!(options.operations > 0, "no operations: nothing to measure");
    let mut rows = Vec::new();
    for condition in [
        Condition::Quiet,
        Condition::Stragglers,
        Condition::Flows,
        Condition::Failure,
    ] {
        for (name, setup) in systems(options)? {
            rows.extend(measure(&name, setup, condition, options)?);
        }
    }
    for (name, setup) in sweeps(options)? {
        rows.extend(measure(&name, setup, Condition::Stragglers, options)?);
    }
    Ok(rows)
}

fn measure(name: &str, setup: Setup, condition: Condition, options: &Options) -> Result<Vec<Row>> {
    [Operation::Read, Operation::Write]
        .into_iter()
        .map(|operation| {
            let mut times = sample(setup, condition, operation, options)?;
            times.sort_unstable();
            Ok(Row {
                simulated: true,
                seed: options.seed,
                system: name.to_owned(),
                operation,
                condition,
                operations: times.len(),
                p50_ns: quantile(&times, 500),
                p99_ns: quantile(&times, 990),
            })
        })
        .collect()
}

fn sample(
    mut setup: Setup,
    condition: Condition,
    operation: Operation,
    options: &Options,
) -> Result<Vec<u64>> {
    let is_failure = condition == Condition::Failure;
    // Of a volume with a disk, extents get slabs elsewhere as soon as they are written: nowhere.
    let spare = usize::from(setup.disk_ns.is_none() && setup.resilience.scheme().members() == 1);
    if is_failure {
        setup.hosts = Some(setup.resilience.scheme().members() + spare);
    }
    let mut cluster = Cluster::new(options.seed, setup)?;
    match condition {
        Condition::Quiet => cluster.set_network(Network::Quiet),
        Condition::Stragglers => cluster.set_network(Network::Stragglers),
        Condition::Flows => cluster.set_network(Network::Flows),
        Condition::Failure => cluster.lose_host()?,
    }
    (0..options.operations)
        .map(|_| cluster.measure(operation))
        .collect()
}

/// The row of a system, an operation and a condition.
#[must_use]
pub fn find<'a>(
    rows: &'a [Row],
    system: &str,
    operation: Operation,
    condition: Condition,
) -> Option<&'a Row> {
    rows.iter().find(|row| {
        row.system == system && (row.operation, row.condition) == (operation, condition)
    })
}
