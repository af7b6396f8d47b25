//! `cenote lab infiniswap`: algorithms and money of Infiniswap's paper, computed again.

mod cost;
mod output;
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
    /// What the network of remote memory costs a machine in a month
    #[command(after_help = "Examples:
  cenote lab infiniswap cost
  cenote lab infiniswap cost --switch-ports 18 --usd-per-kwh 0.3
  cenote lab infiniswap cost --svg cost.svg --csv cost.csv

The parameters are those of the paper's table 2, and give its $1.45. CSV and SVG show the cost by
the number of machines on the switch.")]
    Cost(cost::Cost),
    /// What memory that is sold a second time brings
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
        Experiment::Cost(args) => cost::cost(args),
        Experiment::Revenue(args) => cost::revenue(args),
        Experiment::Placement(args) => placement::run(args),
    }
}
