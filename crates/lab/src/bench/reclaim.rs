//! The arguments of `cenote bench reclaim`.

use std::path::PathBuf;

use anyhow::Result;
use cenote_bench::Row;
use cenote_bench::reclaim::{self, Options, Part};

/// `bench reclaim` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench reclaim
  cenote bench reclaim --only slabs --rounds 9
  cenote bench reclaim --only loss --save reclaim.jsonl

The peer of most rows is the figure of the Infiniswap paper, section 7.3, measured on its machines with
another program. It needs root, no other swap, and memcached. It cleans up after itself.")]
pub struct Args {
    /// Part to run; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<What>,
    /// Approximate memory of memcached, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=65536))]
    memory: Option<u64>,
    /// Folder for temporary files, on a real disk
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// [`Part`] as words of the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// Times to get and to return a slab
    Slabs,
    /// One of six hosts is killed under memcached
    Loss,
    /// Hosts take slabs back: under a program that pages, and under one that does not
    Pressure,
}

impl From<What> for Part {
    fn from(what: What) -> Self {
        match what {
            What::Slabs => Self::Slabs,
            What::Loss => Self::Loss,
            What::Pressure => Self::Pressure,
        }
    }
}

pub fn run(args: &Args, rounds: Option<usize>) -> Result<Vec<Row>> {
    let mut options = Options::default();
    if !args.only.is_empty() {
        options.parts = args.only.iter().map(|one| Part::from(*one)).collect();
    }
    options.rounds = rounds.unwrap_or(options.rounds);
    options.program_mib = args.memory.unwrap_or(options.program_mib);
    if let Some(dir) = &args.dir {
        options.dir.clone_from(dir);
    }
    reclaim::run(&options)
}
