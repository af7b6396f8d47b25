//! Latencies of a page in trouble: `cenote lab latency --trouble`.
//!
//! Each of a network's and a cluster's troubles alone, and what ours, two copies and one copy with a
//! disk behind it make of it. All **simulated**; the processor's work costs what the paper says
//! (`hydra::ablation`), and the disk what a usual one takes. A system that does not come through a
//! trouble has no row of it: two copies of which both are lost, and wrong bytes where nothing is
//! compared.
//!
//! Paper: \[hydra22\] 2.3, 7.1.2, Figures 11 and 12.

use std::time::Duration;

use anyhow::{Result, ensure};
use cenote_measure::statistics::quantile;
use cenote_volume::{Mode, Resilience};
use serde::Serialize;

use super::cluster::{Cluster, Setup};
use super::{Network, Operation};
use crate::hydra::ablation::{DISK_NS, PAPER_COSTS};

/// What is wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// Nothing.
    None,
    /// Two hosts serve somebody else as well.
    Flows,
    /// Every message to one host is late.
    SlowHost,
    /// One host is gone, and none is there in its place.
    OneDead,
    /// Two are.
    TwoDead,
    /// A split of each fiftieth page is wrong when it is read.
    Rot,
    /// Requests come sixteen at a time.
    Bursts,
}

const TROUBLES: [Trouble; 7] = [
    Trouble::None,
    Trouble::Flows,
    Trouble::SlowHost,
    Trouble::OneDead,
    Trouble::TwoDead,
    Trouble::Rot,
    Trouble::Bursts,
];

impl Trouble {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Flows => "flows",
            Self::SlowHost => "slow host",
            Self::OneDead => "one dead",
            Self::TwoDead => "two dead",
            Self::Rot => "rot",
            Self::Bursts => "bursts",
        }
    }
}

/// Of one host, ten pages' time: it is there, and nobody should wait for it.
const SLOW: Duration = Duration::from_micros(30);
/// One page of so many is read with a wrong split.
const ROTTEN: usize = 50;
/// Requests of a burst.
const BURST: usize = 16;

/// How much.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Random seed.
    pub seed: u64,
    /// Pages read, and pages written, of each row.
    pub operations: usize,
}

/// One line of the result. The JSON line of a row has exactly these keys, in this order.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Row {
    /// Always: no figure here was measured on hardware.
    pub simulated: bool,
    /// As asked for.
    pub seed: u64,
    /// What was measured.
    pub system: &'static str,
    /// Read or written.
    pub operation: Operation,
    /// Under what.
    pub trouble: Trouble,
    /// Pages.
    pub operations: usize,
    /// The median.
    pub p50_ns: u64,
    /// One page of a hundred takes longer.
    pub p99_ns: u64,
    /// One of a thousand does.
    pub p999_ns: u64,
}

/// Ours, with one split more read than needed.
pub const OURS: &str = "rs:8+2";
/// The same with none.
pub const OURS_EXACTLY: &str = "rs:8+2 delta 0";
/// Ours where splits are compared, with a wrong one put right.
pub const CORRECTION: &str = "rs:8+3 correction";
/// Written to both, read from one: as replication does without late binding.
pub const COPIES: &str = "mirror:2";
/// One copy, and a disk.
pub const BACKUP: &str = "disk backup";

fn systems() -> Result<[(&'static str, Setup); 5]> {
    let setup = |scheme: &str, mode, delta| -> Result<Setup> {
        let scheme = scheme.parse()?;
        Ok(Setup {
            resilience: Resilience::new(scheme, mode, delta)?,
            costs: PAPER_COSTS,
            ..Setup::of(scheme)
        })
    };
    let backup = setup("plain", Mode::FailureRecovery, 0)?.on_disk(DISK_NS);
    Ok([
        (OURS, setup("rs:8+2", Mode::FailureRecovery, 1)?),
        (OURS_EXACTLY, setup("rs:8+2", Mode::FailureRecovery, 0)?),
        (CORRECTION, setup("rs:8+3", Mode::Correction, 1)?),
        (COPIES, setup("mirror:2", Mode::FailureRecovery, 0)?),
        (BACKUP, backup),
    ])
}

/// Measures all; the same options give the same rows on every machine.
///
/// # Errors
/// Options that make no sense.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    ensure!(options.operations > 0, "no operations: nothing to measure");
    let mut rows = Vec::new();
    for trouble in TROUBLES {
        for (system, setup) in systems()? {
            if !comes_through(&setup, trouble) {
                continue;
            }
            for operation in [Operation::Read, Operation::Write] {
                let mut times = measure(setup, trouble, operation, options)?;
                times.sort_unstable();
                rows.push(Row {
                    simulated: true,
                    seed: options.seed,
                    system,
                    operation,
                    trouble,
                    operations: times.len(),
                    p50_ns: quantile(&times, 500),
                    p99_ns: quantile(&times, 990),
                    p999_ns: quantile(&times, 999),
                });
            }
        }
    }
    Ok(rows)
}

fn comes_through(setup: &Setup, trouble: Trouble) -> bool {
    let r = setup.resilience.scheme().r();
    match trouble {
        Trouble::OneDead => r >= 1 || setup.disk_ns.is_some(),
        Trouble::TwoDead => r >= 2 || setup.disk_ns.is_some(),
        Trouble::Rot => setup.resilience.mode() == Mode::Correction,
        Trouble::None | Trouble::Flows | Trouble::SlowHost | Trouble::Bursts => true,
    }
}

fn measure(
    mut setup: Setup,
    trouble: Trouble,
    operation: Operation,
    options: &Options,
) -> Result<Vec<u64>> {
    let dead = match trouble {
        Trouble::OneDead => 1,
        // With a disk, one host has all there is.
        Trouble::TwoDead if setup.disk_ns.is_some() => 1,
        Trouble::TwoDead => 2,
        _ => 0,
    };
    if dead > 0 {
        // None is there in place of the dead.
        setup.hosts = Some(setup.resilience.scheme().members());
    }
    let mut cluster = Cluster::new(options.seed, setup)?;
    cluster.set_network(match trouble {
        Trouble::Flows => Network::Flows,
        _ => Network::Quiet,
    });
    if trouble == Trouble::SlowHost {
        let host = cluster.first_host()?;
        cluster.slow_down(host, SLOW);
    }
    for _ in 0..dead {
        cluster.lose_host()?;
    }
    let mut times = Vec::with_capacity(options.operations);
    while times.len() < options.operations {
        if trouble == Trouble::Bursts {
            let count = BURST.min(options.operations - times.len());
            cluster.measure_burst(operation, count, &mut times)?;
            continue;
        }
        if trouble == Trouble::Rot && times.len().is_multiple_of(ROTTEN) {
            times.push(cluster.measure_rotten(operation)?);
            continue;
        }
        times.push(cluster.measure(operation)?);
    }
    Ok(times)
}

/// The row of a system, an operation and a trouble.
#[must_use]
pub fn find<'a>(
    rows: &'a [Row],
    system: &str,
    operation: Operation,
    trouble: Trouble,
) -> Option<&'a Row> {
    rows.iter()
        .find(|row| row.system == system && (row.operation, row.trouble) == (operation, trouble))
}
