//! The arguments of `cenote bench apps` and of the process that it runs for PageRank.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use cenote_bench::Row;
use cenote_bench::apps::{self, App, Options, Slot, pagerank};
use cenote_cli::span;

/// `bench apps` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench apps --quick
  cenote bench apps --only etc --only sys --limits 50 --rounds 5
  cenote bench apps --slots rs --slots nbdkit --save apps.jsonl
  cenote bench apps --slots rs --slots mirror --only sys --quick

Each program runs in memory, then in 75% and 50% of its peak over each kind of swap. A row also has
the range of the rounds' ratios; if it contains 1, there is no difference. The last example compares
coding with two copies: rows at 75% and 50%, and against memory, which is 100% and the same for both. A
program that does not finish at a limit is reported and left out there. It needs root, no other swap,
and the Debian packages that scripts/install-packages.sh lists for bench. It cleans up after
itself.")]
pub struct Args {
    /// Program to run; may be repeated [default: all but memaslap]
    #[arg(long, value_enum, value_name = "PROGRAM")]
    only: Vec<Program>,
    /// Kind of swap to measure; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "SLOT")]
    slots: Vec<SwapKind>,
    /// Memory limits in percent of a program's peak, largest first
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [75_u8, 50])]
    limits: Vec<u8>,
    /// Approximate memory of a program, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=65536))]
    memory: Option<u64>,
    /// Length of each measurement of a server
    #[arg(long, value_name = "DURATION", value_parser = span::within("1s", "10m"))]
    duration: Option<Duration>,
    /// Smoke test: smaller programs, one round
    #[arg(long)]
    quick: bool,
    /// Folder for temporary files, on a real disk, for the swap file
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// [`App`] as words of the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Program {
    /// memcached, 5% SETs of small values
    Etc,
    /// memcached, 25% SETs of larger values
    Sys,
    /// redis-server under redis-benchmark
    Redis,
    /// PostgreSQL under pgbench
    Postgres,
    /// PageRank over a generated graph
    Pagerank,
    /// coreutils sort
    Sort,
    /// memcached under memaslap, as a second opinion
    Memaslap,
}

impl From<Program> for App {
    fn from(program: Program) -> Self {
        match program {
            Program::Etc => Self::Etc,
            Program::Sys => Self::Sys,
            Program::Redis => Self::Redis,
            Program::Postgres => Self::Postgres,
            Program::Pagerank => Self::Pagerank,
            Program::Sort => Self::Sort,
            Program::Memaslap => Self::Memaslap,
        }
    }
}

/// [`Slot`] as words of the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum SwapKind {
    /// Ours, without redundancy, with a backing file
    Plain,
    /// Ours, rs:8+2
    Rs,
    /// Ours, two copies, on the same hosts
    Mirror,
    /// nbdkit's memory plugin
    Nbdkit,
    /// A swap file on disk
    File,
    /// Compressed memory
    Zram,
}

impl From<SwapKind> for Slot {
    fn from(kind: SwapKind) -> Self {
        match kind {
            SwapKind::Plain => Self::Plain,
            SwapKind::Rs => Self::Coded,
            SwapKind::Mirror => Self::Mirrored,
            SwapKind::Nbdkit => Self::Nbdkit,
            SwapKind::File => Self::File,
            SwapKind::Zram => Self::Zram,
        }
    }
}

pub fn run(args: &Args, rounds: Option<usize>) -> Result<Vec<Row>> {
    let mut options = Options::default();
    if args.quick {
        options.shorten();
    }
    if !args.only.is_empty() {
        options.apps = args.only.iter().map(|one| App::from(*one)).collect();
    }
    if !args.slots.is_empty() {
        options.slots = args.slots.iter().map(|one| Slot::from(*one)).collect();
    }
    options.limits.clone_from(&args.limits);
    options.rounds = rounds.unwrap_or(options.rounds);
    options.program_mib = args.memory.unwrap_or(options.program_mib);
    options.seconds = args
        .duration
        .map_or(options.seconds, |time| time.as_secs_f64());
    if let Some(dir) = &args.dir {
        options.dir.clone_from(dir);
    }
    apps::run(&options)
}

/// `bench apps-worker`.
#[derive(clap::Args, Debug)]
pub struct Worker {
    /// The graph has two to the power of this many vertices
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=31))]
    scale: u32,
    /// Edges of the graph
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=4_000_000_000))]
    edges: u64,
    /// Seed of the graph
    #[arg(long)]
    seed: u64,
}

pub fn work(args: &Worker) -> Result<()> {
    pagerank::work(pagerank::Job {
        scale: args.scale,
        edges: args.edges,
        seed: args.seed,
    })
}
