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
    /// What each part of the page path is worth, beside figures 9 to 12 and 19
    #[command(after_help = "Examples:
  cenote lab hydra ablation
  cenote lab hydra ablation --costs ours --json
  cenote lab hydra ablation --transport tcp --rounds 9

On sim every figure is simulated: the code of volumes and hosts over a model of the paper's network,
the processor's work at a stated price. On tcp and shm hosts are started on this machine; there
shm knows no late binding and no asynchronous encoding, since no verb is ever under way.")]
    Ablation(ablation::Args),
    /// How likely hosts that fail at once take data with them
    #[command(after_help = "Examples:
  cenote lab hydra loss
  cenote lab hydra loss --k 8 --r 2 --l 2 --slabs-per-host 16 --failed 0.01 --hosts 1000 --json

By the paper's formula, and simulated with the placer that clients run: for stripes on random hosts
(EC-Cache, two choices) and in CodingSets. The error is one standard deviation.")]
    Loss(loss::Args),
    /// Figures 15 and 16: loss by every parameter and by racks, and how even the load is
    #[command(after_help = "Examples:
  cenote lab hydra placement --figure loss
  cenote lab hydra placement --figure balance --hosts-max 1000000 --json
  cenote lab hydra placement --files docs/papers/hydra

The placer is the code that clients run; hosts and failures are models. The load's metric is the
most slabs on a host by the mean. coding-sets:L draws a group for each stripe; \"of two\" is what
volumes do: the less loaded of two groups.")]
    Placement(placement::Args),
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.experiment {
        Experiment::Ablation(args) => ablation::run(args),
        Experiment::Loss(args) => loss::run(args),
        Experiment::Placement(args) => placement::run(args),
    }
}
