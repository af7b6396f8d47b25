//! `cenote kv`: a cluster of key-value nodes.

mod down;
mod drain;
mod join;
mod metrics;
mod node;
pub mod place;
mod reset_lost;
mod service_flags;
mod start;
pub mod status;
mod up;

use anyhow::Result;

/// `kv` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote kv up --nodes 5 --groups 5 --code 3+2 --memory 1G --dir ~/.cenote/well
  cenote kv status --dir ~/.cenote/well
  cenote kv join --name n02 --dir ~/.cenote/well
  cenote kv down --dir ~/.cenote/well

A store for memcached clients, in the memory of several nodes. Values are erasure-coded: any M nodes of
a K+M group may die without losing an acknowledged write.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Start a cluster on this machine: etcd, and one process for each node
    Up(up::Args),
    /// Start another node on this machine, in the background
    Join(join::Args),
    /// Run one node in the foreground
    Node(node::Args),
    /// Show nodes, groups and memory
    Status(status::Args),
    /// Move a node's partitions to other nodes
    Drain(drain::Args),
    /// Declare lost partitions gone, and restart them empty
    ResetLost(reset_lost::Args),
    /// Stop the nodes of this machine, and etcd if kv up started it
    Down(down::Args),
}

impl Args {
    /// Whether a node is to run here.
    pub fn serves(&self) -> bool {
        matches!(self.command, Command::Node(_))
    }
}

pub fn run(args: &Args) -> Result<u8> {
    let (done, which) = match &args.command {
        Command::Up(args) => (up::run(args), None),
        Command::Join(args) => (join::run(args), Some(&args.which)),
        Command::Node(args) => (node::run(args), None),
        Command::Status(args) => (status::run(args), Some(&args.which)),
        Command::Drain(args) => (drain::run(args), Some(&args.which)),
        Command::ResetLost(args) => (reset_lost::run(args), Some(&args.which)),
        Command::Down(args) => (down::run(args), None),
    };
    done.map_err(|error| match which {
        Some(which) => which.explain(error),
        None => error,
    })
}
