//! `cenote cache`: from what a cache has to do to how, and on which machines; and caches that run.

mod bench;
mod change;
mod checkpoint;
mod claim;
mod create;
mod machine;
pub mod manage;
mod metrics;
mod model;
mod plan;
mod proc;
mod search;
mod slo;
mod state;
mod supply;

use anyhow::Result;

/// `cache` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote cache model --transport sim --record 16 --record 1K --out sim.model
  cenote cache search --model sim.model --throughput 2000000 --latency 100us --record 16
  cenote cache plan --catalogue machines.toml --size 64G --model sim.model --throughput 2000000 --latency 100us --record 16
  cenote cache create c0 --size 4G --copies 2 --dir ~/.cenote/well
  cenote cache status c0 --dir ~/.cenote/well
  cenote cache bench c0 --record 64 --reads 95 --dir ~/.cenote/well
  cenote cache delete c0 --dir ~/.cenote/well

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
    #[command(
        override_usage = "cenote cache search [OPTIONS] --model <FILE> --throughput <N> \\
                           --latency <DURATION> --record <SIZE>"
    )]
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
    /// Make a cache in the memory of a cluster's hosts
    #[command(after_help = "Examples:
  cenote cache create c0 --size 4G --dir ~/.cenote/well
  cenote cache create c0 --size 4G --copies 2 --duration 12h --dir ~/.cenote/well
  cenote cache create c0 --size 64G --catalogue machines.toml --spot --dir ~/.cenote/well
  cenote cache create c0 --size 4G --model shm.model --throughput 200000 --latency 100us --record 16 --dir ~/.cenote/well

With a model, the cheapest configuration is chosen that does what is asked; see cenote cache search. A process
in the background, the cache's manager, decides which host has each region, and moves regions off hosts that
are taken back; cenote down ends it, and cenote cache start brings it back. Without --catalogue it uses the hosts
of the cluster file as that is now. With it the manager gets the cheapest machines, others where one dies or is taken
back, and cheaper ones where that pays for the move; it gives them back when the cache shrinks or ends. Exit code 3: nothing does what is
asked, or some region has no memory yet.")]
    Create(Box<create::Args>),
    /// Show regions, hosts, moves, losses and clients of a cache, or a line for each cache
    #[command(after_help = "Examples:
  cenote cache status --dir ~/.cenote/well
  cenote cache status c0 --dir ~/.cenote/well --json

Exit code 3: not every region has all its copies on hosts that stay, or the journal cannot be written.")]
    Status(state::Args),
    /// Give a cache another size, or another configuration, while it is in use
    #[command(after_help = "Examples:
  cenote cache reshape c0 --size 8G --dir ~/.cenote/well
  cenote cache reshape c0 --model shm.model --throughput 1e6 --latency 200us --record 16 --dir ~/.cenote/well

What is cut off is lost, and what is new holds zeros. Clients that come from then on use the new
configuration.")]
    Reshape(change::ReshapeArgs),
    /// Say when a cache ends
    #[command(after_help = "Examples:
  cenote cache renew c0 --duration 12h --dir ~/.cenote/well
  cenote cache renew c0 --dir ~/.cenote/well")]
    Renew(change::RenewArgs),
    /// Copy a cache to a file while it is in use; regions that are lost later come back from it
    #[command(after_help = "Examples:
  cenote cache checkpoint c0 --dir ~/.cenote/well
  cenote cache checkpoint c0 /backup/c0.checkpoint --json --dir ~/.cenote/well

Writes of one region after the other wait while it is copied; reads go on. Each region is there as it was at one
moment. A region that goes with its machine comes back from the last checkpoint; cenote cache status says of when.")]
    Checkpoint(checkpoint::Args),
    /// Give all memory of a cache back, and forget it
    #[command(after_help = "Example:\n  cenote cache delete c0 --dir ~/.cenote/well")]
    Delete(change::DeleteArgs),
    /// Measure a cache that runs: reads and writes of records at random
    #[command(after_help = "Examples:
  cenote cache bench c0 --dir ~/.cenote/well
  cenote cache bench c0 --record 64 --reads 50 --threads 2 --under-way 32 --duration 10s --json --dir ~/.cenote/well

Exit code 1: a request failed.")]
    Bench(bench::Args),
    /// Start the manager of a cache that has none
    #[command(after_help = "Example:\n  cenote cache start c0 --dir ~/.cenote/well")]
    Start(create::Named),
    /// End the manager of a cache; hosts keep what it holds, and the next one goes on
    #[command(after_help = "Example:\n  cenote cache stop c0 --dir ~/.cenote/well")]
    Stop(create::Named),
    /// Be the manager of a cache, in the foreground, as a service manager starts it
    #[command(after_help = "Example:\n  cenote cache manage c0 --dir ~/.cenote/well")]
    Manage(manage::Args),
    /// Start or end a host of a cache's catalogue on this machine; its manager runs this
    #[command(
        hide = true,
        after_help = "Example:
  CENOTE_ORDER=ID-1-1 cenote cache machine release c0 --dir ~/.cenote/well"
    )]
    Machine(machine::Args),
    /// The host that model measures
    #[command(hide = true)]
    Measured(cenote_measurer::peer::Args),
    /// Procedures that run beside the data: put one on hosts, list them, take one away
    Proc(proc::Args),
}

impl Args {
    /// Whether a manager is to run here.
    pub fn serves(&self) -> bool {
        matches!(self.command, Command::Manage(_))
    }
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.command {
        Command::Model(args) => model::run(args),
        Command::Search(args) => search::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Create(args) => create::run(args),
        Command::Status(args) => state::run(args),
        Command::Reshape(args) => change::reshape(args),
        Command::Renew(args) => change::renew(args),
        Command::Checkpoint(args) => checkpoint::run(args),
        Command::Delete(args) => change::delete(args),
        Command::Bench(args) => bench::run(args),
        Command::Start(args) => create::start(args),
        Command::Stop(args) => create::stop(args),
        Command::Manage(args) => manage::run(args),
        Command::Machine(args) => machine::run(args),
        Command::Measured(args) => cenote_measurer::peer::serve(args),
        Command::Proc(args) => proc::run(args),
    }
}
