//! The arguments of `cenote bench pager` and of the process that it measures.

use std::path::PathBuf;

use anyhow::Result;
use cenote_bench::Row;
use cenote_bench::apps::Slot;
use cenote_bench::pager::{self, Handlers, Job, Options, Program};
use cenote_cli::transport::Transport;
use cenote_volume::Scheme;

use super::apps::SwapKind;

/// `bench pager` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench pager --quick
  cenote bench pager --program memcached --transport shm --resident 50
  cenote bench pager --transport shm --slots rs --resident 50 --rounds 5 --json

The same programs run with a paged heap and with memory that swaps to each kind of swap: one touches
pages, the other is memcached, under which two hosts are killed and all of whose values are checked. They
need root, no other swap, and the Debian packages that scripts/install-packages.sh lists for bench.")]
pub struct Args {
    /// Program to measure; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "PROGRAM")]
    program: Vec<Kind>,
    /// Transport to the hosts; may be repeated [default: shm and tcp]
    #[arg(long, value_enum)]
    transport: Vec<Transport>,
    /// Kind of swap to compare with; may be repeated [default: rs, nbdkit and zram]
    #[arg(long, value_enum, value_name = "SLOT")]
    slots: Vec<SwapKind>,
    /// Fault handlers of the heap; several numbers are measured in turn [default: the heap's own]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    handlers: Vec<Handlers>,
    /// Resident share of the memory in percent, largest first
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [50_u8, 25])]
    resident: Vec<u8>,
    /// Memory of the program that touches pages, and bytes of memcached's values, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=65536))]
    memory: Option<u64>,
    /// Smoke test: less memory, one round
    #[arg(long)]
    quick: bool,
}

/// The programs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    /// Touches pages
    Touches,
    /// memcached, at the largest resident share, with two hosts killed
    Memcached,
}

impl From<Kind> for Program {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Touches => Self::Touches,
            Kind::Memcached => Self::Memcached,
        }
    }
}

pub fn run(args: &Args, rounds: Option<usize>) -> Result<Vec<Row>> {
    let mut options = Options::default();
    if args.quick {
        options.shorten();
    }
    options.programs = args.program.iter().map(|one| Program::from(*one)).collect();
    super::choose(&mut options.transports, &args.transport);
    if !args.slots.is_empty() {
        options.slots = args.slots.iter().map(|one| Slot::from(*one)).collect();
    }
    if !args.handlers.is_empty() {
        options.handlers.clone_from(&args.handlers);
    }
    options.resident.clone_from(&args.resident);
    options.memory_mib = args.memory.unwrap_or(options.memory_mib);
    options.values_mib = args.memory.unwrap_or(options.values_mib);
    options.rounds = rounds.unwrap_or(options.rounds);
    pager::run(&options)
}

/// `bench pager-worker`.
#[derive(clap::Args, Debug)]
pub struct Worker {
    /// Memory that it touches
    #[arg(long, value_parser = clap::value_parser!(u64).range(4096..=1 << 40))]
    bytes: u64,
    /// The cluster of its region; without, its memory may be swapped
    #[arg(long, requires = "scheme")]
    cluster: Option<PathBuf>,
    /// The scheme of its region's volume
    #[arg(long)]
    scheme: Option<Scheme>,
    /// Fault handlers of its region
    #[arg(long, default_value_t)]
    handlers: Handlers,
}

pub fn work(args: &Worker) -> Result<()> {
    pager::work(&Job {
        bytes: args.bytes,
        region: (args.cluster.clone().zip(args.scheme))
            .map(|(cluster, scheme)| (cluster, scheme, args.handlers)),
    })
}
