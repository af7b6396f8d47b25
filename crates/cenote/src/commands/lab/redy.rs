//! `cenote lab redy`: what Redy's paper claims, computed again.

mod slo;

use anyhow::Result;

/// `lab redy` and what follows it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand, Debug)]
enum Experiment {
    /// Random SLOs, and how the configurations that are chosen for them really do
    #[command(after_help = "Examples:
  cenote lab redy slo --samples 100 --seed 7
  cenote lab redy slo --samples 100 --seed 7 --compare --json
  cenote lab redy slo --model sim.model --latency-of p99

SLOs are drawn that the model says can be met: any size of records between those that were measured, any throughput,
a latency from the shortest at that throughput to eight times that. Each configuration that is chosen is run
with another seed. Ratios are real by asked: a throughput of 1 or more and a latency of 1 or less are
kept. Without --model one is measured first. Figures of sim are simulated.")]
    Slo(slo::Args),
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.experiment {
        Experiment::Slo(args) => slo::run(args),
    }
}
