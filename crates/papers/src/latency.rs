//! Latencies of a page in virtual time: `cenote lab latency`.
//!
//! The real code of hosts and of one volume with one worker over the simulated network, one page
//! at a time, run to its end as a thread that polls would. All figures are **simulated**: they are
//! those of the network's model, which has the papers' numbers, and of what the code asks of it.
//!
//! The model charges links, cards, stragglers and flows of others. Of the processor it charges
//! encoding alone, in full though it runs while data splits fly: posting, polling and decoding what
//! late binding left out cost nothing. `hydra::ablation` charges more.
//!
//! Units: virtual nanoseconds. Paper: \[hydra22\] 7.1.

pub(crate) mod cluster;
pub mod costs;
pub mod trouble;

use anyhow::{Result, ensure};
use cenote_fabric::sim::{Background, LinkModel, Nic, Stragglers};
use cenote_measure::statistics::quantile;
use cenote_volume::Scheme;
use serde::Serialize;

use cluster::{Cluster, Setup};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Random seed.
    pub seed: u64,
    /// Pages read, and pages written, in each of the networks.
    pub operations: usize,
    /// Schemes side by side.
    pub schemes: Vec<Scheme>,
    /// What encoding a page costs where a scheme encodes.
    pub encode_ns: u64,
}

/// Encoding a page of rs:8+2 that is in the cache, as one that is being written is, with the AVX2
/// kernel: `cenote bench codec`.
pub const ENCODE_NS: u64 = 150;

impl Default for Options {
    fn default() -> Self {
        let scheme = |text: &str| text.parse().expect("a valid scheme");
        Self {
            seed: 1,
            operations: 20_000,
            schemes: vec![scheme("plain"), scheme("mirror:2"), scheme("rs:8+2")],
            encode_ns: ENCODE_NS,
        }
    }
}

/// What stands in the way of a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Nothing.
    Quiet,
    /// One message of a hundred is late.
    Stragglers,
    /// Two hosts serve somebody else as well.
    Flows,
    /// Both.
    StragglersAndFlows,
}

const NETWORKS: [Network; 4] = [
    Network::Quiet,
    Network::Stragglers,
    Network::Flows,
    Network::StragglersAndFlows,
];

/// One message of a hundred: by 10 us or more, half of those by 20 or more, up to 1.28 ms.
/// Arbitrary; only their order is meant to be like that of a real network.
const STRAGGLERS: Stragglers = Stragglers {
    chance_ppm: 10_000,
    scale_ns: 10_000,
    doublings_max: 6,
};

/// Another's transfer of 140 KB at a time through the host's card, a fifth of its time.
const FLOW: Background = Background {
    burst_ns: 20_000,
    period_ns: 100_000,
};

/// Hosts that carry such flows.
pub const FLOW_HOSTS: usize = 2;

impl Network {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Stragglers => "stragglers",
            Self::Flows => "flows",
            Self::StragglersAndFlows => "stragglers and flows",
        }
    }

    fn link(self) -> LinkModel {
        let is_late = matches!(self, Self::Stragglers | Self::StragglersAndFlows);
        LinkModel {
            stragglers: if is_late {
                STRAGGLERS
            } else {
                Stragglers::NONE
            },
            ..LinkModel::default()
        }
    }

    fn busy_card(self) -> Nic {
        let has_flows = matches!(self, Self::Flows | Self::StragglersAndFlows);
        Nic {
            background: has_flows.then_some(FLOW),
            ..Nic::default()
        }
    }
}

/// A page read or written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// A whole page, of k data splits.
    Read,
    /// A whole page, to every member.
    Write,
}

/// One line of the result. The JSON line of a row has exactly these keys, in this order.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Row {
    /// Always: no figure here was measured on hardware.
    pub simulated: bool,
    /// As asked for.
    pub seed: u64,
    /// As written: `rs:8+2`.
    pub scheme: String,
    /// Read or written.
    pub operation: Operation,
    /// Over which network.
    pub network: Network,
    /// Pages.
    pub operations: usize,
    /// The median.
    pub p50_ns: u64,
    /// One page of a hundred takes longer.
    pub p99_ns: u64,
    /// One of a thousand does.
    pub p999_ns: u64,
}

/// Measures every scheme over every network; the same options give the same rows on every machine.
///
/// # Errors
/// Options that make no sense.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    ensure!(options.operations > 0, "no operations: nothing to measure");
    let mut rows = Vec::new();
    for &scheme in &options.schemes {
        for network in NETWORKS {
            for operation in [Operation::Read, Operation::Write] {
                let mut cluster = Cluster::new(options.seed, Setup::of(scheme))?;
                cluster.set_network(network);
                let mut times = (0..options.operations)
                    .map(|_| cluster.measure(operation))
                    .collect::<Result<Vec<u64>>>()?;
                let encodes = operation == Operation::Write && scheme.k() > 1;
                if encodes {
                    times.iter_mut().for_each(|ns| *ns += options.encode_ns);
                }
                times.sort_unstable();
                rows.push(Row {
                    simulated: true,
                    seed: options.seed,
                    scheme: scheme.to_string(),
                    operation,
                    network,
                    operations: options.operations,
                    p50_ns: quantile(&times, 500),
                    p99_ns: quantile(&times, 990),
                    p999_ns: quantile(&times, 999),
                });
            }
        }
    }
    Ok(rows)
}
