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

Simulated: placer, pressure and evictor are the code that hosts and clients run, memory and page
I/Os of the containers are a model. Two variants, since the paper does not say how much of a
program that does not fit has a place in swap space: overflow, what does not fit at a time; whole,
every page of it. The network's share follows from --touches, which is arbitrary. The picture
shows the first run.")]
    Cluster(cluster::Args),
    /// How often a batch of evicted slabs spares every busy one: the paper's figure 8
    #[command(after_help = "Examples:
  cenote lab infiniswap eviction
  cenote lab infiniswap eviction --evict 10 --extra 2 --busy 0.3 --json
  cenote lab infiniswap eviction --csv figure8.csv --svg figure8.svg

A host asks for E + E' slabs at random and gives up the E least active. Analytic is the paper's
formula; simulated is the evictor that hosts run, on slabs that are busy each on its own. Without
--busy: all shares from 0.05 to 0.6, and E' from 0 to --extra, or to E.")]
    Eviction(eviction::Args),
    /// What the network of remote memory costs a machine in a month
    #[command(after_help = "Examples:
  cenote lab infiniswap cost
  cenote lab infiniswap cost --switch-ports 18 --usd-per-kwh 0.3
  cenote lab infiniswap cost --svg cost.svg --csv cost.csv

The parameters are those of the paper's table 2, and give its $1.45. CSV and SVG show the cost by
the number of machines on the switch.")]
    Cost(cost::Cost),
    /// Savings from lending
    #[command(
        override_usage = "cenote lab infiniswap revenue [OPTIONS] --machine-usd <USD> \\
                                     --memory-usd <USD>"
    )]
    #[command(after_help = "Example:
  cenote lab infiniswap revenue --machine-usd 400 --memory-usd 120 --share 0.2

The gain is the price of the memory that is sold a second time, less what the network costs, in
percent of the machine's price. The paper gives no prices, so there are no defaults. CSV and SVG
show the gain by the share.")]
    Revenue(cost::Revenue),
    /// How evenly slabs lie on hosts, by placement policy and number of machines
    #[command(after_help = "Examples:
  cenote lab infiniswap placement
  cenote lab infiniswap placement --machines 32..100000 --svg placement.svg
  cenote lab infiniswap placement --machines 1000 --slabs 8 --runs 20 --json

A range goes from size to size in half powers of ten. Every machine maps as many slabs on others;
hosts are alike, and no host is ever full. Policies: two-choices is the paper's, hosts without a
slab of the client first; single is the same with one draw; random is one draw from all hosts;
least-loaded looks at all.")]
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
