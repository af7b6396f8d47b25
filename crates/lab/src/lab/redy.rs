//! `cenote lab redy`: what Redy's paper claims, computed again.

mod ablation;
mod migrate;
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
    /// Check whether chosen configurations meet random SLOs
    #[command(after_help = "Examples:
  cenote lab redy slo --samples 100 --seed 7
  cenote lab redy slo --samples 100 --seed 7 --compare --json
  cenote lab redy slo --model sim.model --latency-of p99

SLOs are drawn that can be met according to the model: any record size between the measured ones, any
throughput, and a latency from the lowest at that throughput to eight times that. Each chosen
configuration is run with another seed. Ratios are measured / requested: an SLO is kept with a
throughput of 1 or more and a latency of 1 or less. Without --model one is measured first. Figures of
sim are simulated. On other transports both ends are on this machine, with half of its processors each,
and the host is a separate process; nothing else should run.")]
    Slo(slo::Args),
    /// Ablation of the static optimisations, switched on one after the other; 8-byte operations,
    /// one thread each
    #[command(after_help = "Examples:
  cenote lab redy ablation --transport tcp
  cenote lab redy ablation --transport shm --json

Client and host are processes of this machine with one thread each. A row has all the switches of the
rows above it. Figures are medians of interleaved runs. If a switch does not apply to a transport, the
row says why. Figures of sim are simulated.")]
    Ablation(ablation::Args),
    /// Take hosts back while a cache is in use and check every byte
    #[command(after_help = "Examples:
  cenote lab redy migrate --regions 4 --region-bytes 256M
  cenote lab redy migrate --regions 4 --region-bytes 256M --transport tcp --naive --svg migration.svg
  cenote lab redy migrate --regions 6 --region-bytes 64M --reclaimed 3 --json

Real hosts on this machine, and a client that reads and writes at a steady rate, 95 to 5. Each region is
copied by the host that it moves to; reads continue, writes to it wait. Latencies count from when a
request was due. Exit code 1: a request failed, or a byte was wrong.")]
    Migrate(migrate::Args),
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.experiment {
        Experiment::Slo(args) => slo::run(args),
        Experiment::Ablation(args) => ablation::run(args),
        Experiment::Migrate(args) => migrate::run(args),
    }
}
