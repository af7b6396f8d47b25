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

A remote cache is created for an SLO. cache model measures the network once; from that model the
cheapest configuration that meets the SLO is chosen: client threads (c), server threads (s; 0 for
one-sided verbs), requests in a message (b), messages in flight on a connection (q).")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Measure configurations of a network and save the model to a file
    #[command(after_help = "Examples:
  cenote cache model --transport sim --record 16
  cenote cache model --transport sim --distance 5us --record 16 --record 64 --record 1K --out far.model
  cenote cache model --transport sim --record 16 --full-grid --json

Each parameter is measured at powers of two, until a step raises throughput by less than 1 %; with
--full-grid, at all of them. An existing file is resumed: configurations that it has are not
measured again, and other record sizes and distances are added. The file is saved each second.
Figures of sim are simulated, on a network of 100 Gbit/s; docs/papers/redy.md states the
assumptions.")]
    Model(model::Args),
    /// Find the cheapest configuration that meets an SLO
    #[command(
        override_usage = "cenote cache search [OPTIONS] --model <FILE> --throughput <N> \\
                           --latency <DURATION> --record <SIZE>"
    )]
    #[command(after_help = "Examples:
  cenote cache search --model sim.model --throughput 200000 --latency 100us --record 16
  cenote cache search --model sim.model --throughput 5e6 --latency 20us --latency-of p99 --record 64 --json

The cheapest has the fewest server threads, then the fewest client threads, requests in a message and
messages in flight. Exit code 3: no configuration meets the SLO; the nearest one is printed.")]
    Search(search::Args),
    /// Choose the cheapest machines for a cache
    #[command(after_help = "Examples:
  cenote cache plan --catalogue machines.toml --size 64G --server-threads 4
  cenote cache plan --catalogue machines.toml --size 64G --spot --json
  cenote cache plan --catalogue machines.toml --size 64G --model sim.model --throughput 2e6 --latency 50us --record 16

The catalogue is a TOML file; docs/guides/cache.md has an example. With a model, the configuration that
meets the SLO at each measured distance gives the number of server threads, and the cheapest of these
plans is chosen. Exit code 3: nothing meets the SLO, or there are too few machines.")]
    Plan(plan::Args),
    /// Create a cache in the memory of a cluster's hosts
    #[command(after_help = "Examples:
  cenote cache create c0 --size 4G --dir ~/.cenote/well
  cenote cache create c0 --size 4G --copies 2 --duration 12h --dir ~/.cenote/well
  cenote cache create c0 --size 64G --catalogue machines.toml --spot --dir ~/.cenote/well
  cenote cache create c0 --size 4G --model shm.model --throughput 200000 --latency 100us --record 16 --dir ~/.cenote/well

With a model, the cheapest configuration that meets the SLO is chosen; see cenote cache search. A
background process, the cache's manager, places regions on hosts and moves them off hosts that are
taken back; cenote down stops it, and cenote cache start starts it again. Without --catalogue it uses
the hosts that the cluster file lists, and follows changes of that file. With --catalogue the manager
acquires the cheapest machines, replaces those that die or are taken back, moves to cheaper ones where
that pays for the move, and releases machines when the cache shrinks or ends. Exit code 3: nothing
meets the SLO, or some region has no memory yet.")]
    Create(Box<create::Args>),
    /// Show regions, hosts, moves, losses and clients of a cache; without a name, one line for each
    /// cache
    #[command(after_help = "Examples:
  cenote cache status --dir ~/.cenote/well
  cenote cache status c0 --dir ~/.cenote/well --json

Exit code 3: a region lacks copies, a copy is on a host that is leaving, or the journal cannot be
written.")]
    Status(state::Args),
    /// Change the size or the configuration of a cache in use
    #[command(after_help = "Examples:
  cenote cache reshape c0 --size 8G --dir ~/.cenote/well
  cenote cache reshape c0 --model shm.model --throughput 1e6 --latency 200us --record 16 --dir ~/.cenote/well

Data beyond a smaller size is lost; added space reads as zeros. Clients that join later use the new
configuration.")]
    Reshape(change::ReshapeArgs),
    /// Set when a cache expires
    #[command(after_help = "Examples:
  cenote cache renew c0 --duration 12h --dir ~/.cenote/well
  cenote cache renew c0 --dir ~/.cenote/well")]
    Renew(change::RenewArgs),
    /// Save a cache in use to a file; regions lost later are restored from it
    #[command(after_help = "Examples:
  cenote cache checkpoint c0 --dir ~/.cenote/well
  cenote cache checkpoint c0 /backup/c0.checkpoint --json --dir ~/.cenote/well

Regions are copied one at a time; writes to the region being copied wait, reads continue. The copy of
each region is from one point in time. A region lost with its machine is restored from the last
checkpoint; cenote cache status shows its age.")]
    Checkpoint(checkpoint::Args),
    /// Delete a cache and free its memory
    #[command(after_help = "Example:\n  cenote cache delete c0 --dir ~/.cenote/well")]
    Delete(change::DeleteArgs),
    /// Benchmark a running cache with random reads and writes
    #[command(after_help = "Examples:
  cenote cache bench c0 --dir ~/.cenote/well
  cenote cache bench c0 --record 64 --reads 50 --threads 2 --under-way 32 --duration 10s --json --dir ~/.cenote/well

Exit code 1: a request failed.")]
    Bench(bench::Args),
    /// Start the manager of a cache
    #[command(after_help = "Example:\n  cenote cache start c0 --dir ~/.cenote/well")]
    Start(create::Named),
    /// Stop the manager of a cache; hosts keep the data for the next manager
    #[command(after_help = "Example:\n  cenote cache stop c0 --dir ~/.cenote/well")]
    Stop(create::Named),
    /// Run the manager of a cache in the foreground, for service managers
    #[command(after_help = "Example:\n  cenote cache manage c0 --dir ~/.cenote/well")]
    Manage(manage::Args),
    /// Start or stop a host of a cache's catalogue on this machine; run by the cache's manager
    #[command(
        hide = true,
        after_help = "Example:
  CENOTE_ORDER=ID-1-1 cenote cache machine release c0 --dir ~/.cenote/well"
    )]
    Machine(machine::Args),
    /// The host that cache model measures
    #[command(hide = true)]
    Measured(cenote_measurer::peer::Args),
    /// Procedures that run beside the data: put, list, remove, run
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
