//! `cenote lab infiniswap`: algorithms and money of Infiniswap's paper, computed again.

mod cost;
mod output;

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
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.experiment {
        Experiment::Cost(args) => cost::cost(args),
        Experiment::Revenue(args) => cost::revenue(args),
    }
}
