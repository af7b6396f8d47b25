//! `cenote lab hydra`: what Hydra's paper claims, computed again.

mod ablation;
mod case;
mod loss;
mod placement;

use anyhow::Result;

/// `lab hydra` and what follows it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand, Debug)]
enum Experiment {
    /// Ablation of the page path, compared with figures 9 to 12 and 19
    #[command(after_help = "Examples:
  cenote lab hydra ablation
  cenote lab hydra ablation --costs ours --json
  cenote lab hydra ablation --transport tcp --rounds 9

On sim every figure is simulated: volumes and hosts run their real code over a model of the paper's
network, with processor work at stated costs. On tcp and shm, hosts are started on this machine. shm
has no late binding and no asynchronous encoding, since no verb is ever in flight.")]
    Ablation(ablation::Args),
    /// Probability of data loss when hosts fail at once
    #[command(after_help = "Examples:
  cenote lab hydra loss
  cenote lab hydra loss --k 8 --r 2 --l 2 --slabs-per-host 16 --failed 0.01 --hosts 1000 --json

Computed with the paper's formula and simulated with the placer that clients run, for stripes on random
hosts (EC-Cache, two choices) and in CodingSets. The error is one standard deviation.")]
    Loss(loss::Args),
    /// Figures 15 and 16: data loss by parameter and by racks, and load balance
    #[command(after_help = "Examples:
  cenote lab hydra placement --figure loss
  cenote lab hydra placement --figure balance --hosts-max 1000000 --json
  cenote lab hydra placement --files docs/papers/hydra

The placer is the code that clients run; hosts and failures are models. Load imbalance is the slabs of
the fullest host relative to the mean. coding-sets:L draws a group for each stripe; \"of two\" \
takes the
less loaded of two groups, as volumes do.")]
    Placement(placement::Args),
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.experiment {
        Experiment::Ablation(args) => ablation::run(args),
        Experiment::Loss(args) => loss::run(args),
        Experiment::Placement(args) => placement::run(args),
    }
}
