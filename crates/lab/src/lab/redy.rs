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
    /// Random SLOs, and how the configurations that are chosen for them really do
    #[command(after_help = "Examples:
  cenote lab redy slo --samples 100 --seed 7
  cenote lab redy slo --samples 100 --seed 7 --compare --json
  cenote lab redy slo --model sim.model --latency-of p99

SLOs are drawn that the model says can be met: any size of records between those that were measured, any throughput,
a latency from the shortest at that throughput to eight times that. Each configuration that is chosen is run
with another seed. Ratios are real by asked: a throughput of 1 or more and a latency of 1 or less are
kept. Without --model one is measured first. Figures of sim are simulated. On other transports both ends are on
this machine, with half of its processors each, and the host is a process of its own; nothing else should run.")]
    Slo(slo::Args),
    /// What each static optimisation is worth: switched on one after the other, 8-byte operations, one thread each
    #[command(after_help = "Examples:
  cenote lab redy ablation --transport tcp
  cenote lab redy ablation --transport shm --json

Client and host are processes of this machine with one thread each. A row has all the switches of the rows above it.
Medians of runs that are interleaved. A switch that a transport has no use for says why. Figures of sim are
simulated.")]
    Ablation(ablation::Args),
    /// Take hosts back while a cache is in use, and check every byte
    #[command(after_help = "Examples:
  cenote lab redy migrate --regions 4 --region-bytes 256M
  cenote lab redy migrate --regions 4 --region-bytes 256M --transport tcp --naive --svg migration.svg
  cenote lab redy migrate --regions 6 --region-bytes 64M --reclaimed 3 --json

Real hosts on this machine, and a client that reads and writes at a steady rate, 95 to 5. Each region is copied by
the host that it moves to; reads of it go on, writes to it wait. Latencies count from when a request was due.
Ends with 1 when a request failed, or a byte was not what it had to be.")]
    Migrate(migrate::Args),
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.experiment {
        Experiment::Slo(args) => slo::run(args),
        Experiment::Ablation(args) => ablation::run(args),
        Experiment::Migrate(args) => migrate::run(args),
    }
}
