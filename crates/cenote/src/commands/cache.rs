//! `cenote cache`: from what a cache has to do to how, and on which machines.

pub mod files;
pub mod measurer;
mod model;
mod plan;
pub mod printed;
mod search;

use anyhow::Result;

/// `cache` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote cache model --transport sim --record 16 --record 1K --out sim.model
  cenote cache search --model sim.model --throughput 2000000 --latency 100us --record 16
  cenote cache plan --catalogue machines.toml --size 64G --model sim.model --throughput 2000000 --latency 100us --record 16

A remote cache is asked for by what it has to do. A network is measured once, ahead; from that the
cheapest configuration is chosen that does it: client threads (c), server threads (s; 0 for one-sided
verbs), requests in a message (b), messages under way on a connection (q).")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Measure configurations of a network, into a file
    #[command(after_help = "Examples:
  cenote cache model --transport sim --record 16
  cenote cache model --transport sim --distance 5us --record 16 --record 64 --record 1K --out far.model
  cenote cache model --transport sim --record 16 --full-grid --json

Powers of two of each parameter are measured. Along each, it ends once a step raises throughput
by less than 1 %, unless --full-grid is given. A file that is there is gone on with: what it has is not measured again,
and other sizes of records and other distances are added to it. It is saved each second, whole.
Figures of sim are simulated, on a network of 100 Gbit/s; docs/papers/redy.md says what is assumed.")]
    Model(model::Args),
    /// Find the cheapest configuration that does what is asked
    #[command(after_help = "Examples:
  cenote cache search --model sim.model --throughput 200000 --latency 100us --record 16
  cenote cache search --model sim.model --throughput 5e6 --latency 20us --latency-of p99 --record 64 --json

Cheapest is: the fewest server threads, then client threads, then requests in a message, then messages under
way. Exit code 3: nothing does it; what can be had is said.")]
    Search(search::Args),
    /// Choose the cheapest machines for a cache
    #[command(after_help = "Examples:
  cenote cache plan --catalogue machines.toml --size 64G --server-threads 4
  cenote cache plan --catalogue machines.toml --size 64G --spot --json
  cenote cache plan --catalogue machines.toml --size 64G --model sim.model --throughput 2e6 --latency 50us --record 16

The catalogue is TOML, docs/guides/cache.md has an example. With a model, for each distance that was
measured the configuration that does it decides how many server threads are needed; the cheapest of these
plans is taken. Exit code 3: nothing does it, or the machines are too few.")]
    Plan(plan::Args),
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.command {
        Command::Model(args) => model::run(args),
        Command::Search(args) => search::run(args),
        Command::Plan(args) => plan::run(args),
    }
}
