//! `cenote lab infiniswap`: algorithms and money of Infiniswap's paper, computed again.

mod cluster;
mod cost;
mod eviction;
mod placement;

use anyhow::Result;

/// `lab infiniswap` and what follows it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand, Debug)]
enum Experiment {
    /// The paper's cluster of 32 machines and 90 containers, with and without remote memory
    #[command(after_help = "Examples:
  cenote lab infiniswap cluster
  cenote lab infiniswap cluster --runs 200 --seed 7 --json
  cenote lab infiniswap cluster --csv cluster.csv --svg cluster.svg

Simulated: placer, pressure and evictor are the code that hosts and clients run; memory and page I/Os
of the containers are a model. The paper does not say how much of a program that does not fit is in
swap space, so there are two variants: overflow (what does not fit at a time) and whole (all of its
pages). The network's share follows from --touches, which is arbitrary. The picture shows the first
run.")]
    Cluster(cluster::Args),
    /// Probability that a batch of evicted slabs has no busy one: the paper's figure 8
    #[command(after_help = "Examples:
  cenote lab infiniswap eviction
  cenote lab infiniswap eviction --evict 10 --extra 2 --busy 0.3 --json
  cenote lab infiniswap eviction --csv figure8.csv --svg figure8.svg

A host samples E + E' slabs at random and evicts the E least active. Analytic is the paper's formula;
simulated is the evictor that hosts run, on slabs that are busy independently. Without --busy: all
shares from 0.05 to 0.6, and E' from 0 to --extra, or to E.")]
    Eviction(eviction::Args),
    /// Monthly cost per machine of the network for remote memory
    #[command(after_help = "Examples:
  cenote lab infiniswap cost
  cenote lab infiniswap cost --switch-ports 18 --usd-per-kwh 0.3
  cenote lab infiniswap cost --svg cost.svg --csv cost.csv

The default parameters are those of the paper's table 2, and give its $1.45. CSV and SVG show the cost
by the number of machines on the switch.")]
    Cost(cost::Cost),
    /// Estimate savings from lending
    #[command(
        override_usage = "cenote lab infiniswap revenue [OPTIONS] --machine-usd <USD> \\
                                     --memory-usd <USD>"
    )]
    #[command(after_help = "Example:
  cenote lab infiniswap revenue --machine-usd 400 --memory-usd 120 --share 0.2

Savings are the price of the memory that is lent out, less the network's cost, in percent of the
machine's price. The paper gives no prices, so there are no defaults. CSV and SVG show savings by the
share of memory that is lent.")]
    Revenue(cost::Revenue),
    /// Load balance of slabs over hosts, by placement policy and number of machines
    #[command(after_help = "Examples:
  cenote lab infiniswap placement
  cenote lab infiniswap placement --machines 32..100000 --svg placement.svg
  cenote lab infiniswap placement --machines 1000 --slabs 8 --runs 20 --json

A range is stepped in half powers of ten. Every machine maps the same number of slabs on others; hosts
are alike and never full. Policies: two-choices is the paper's, which prefers hosts without a slab of
the client; single is the same with one draw; random draws one host from all; least-loaded looks at
all hosts.")]
    Placement(placement::Args),
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.experiment {
        Experiment::Eviction(args) => eviction::run(args),
        Experiment::Cluster(args) => cluster::run(args),
        Experiment::Cost(args) => cost::cost(args),
        Experiment::Revenue(args) => cost::revenue(args),
        Experiment::Placement(args) => placement::run(args),
    }
}
