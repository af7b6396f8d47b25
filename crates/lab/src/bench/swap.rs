//! The arguments of `cenote bench swap`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use cenote_bench::Row;
use cenote_bench::swap::{self, Options};
use cenote_cli::span;

/// `bench swap` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench swap --quick
  cenote bench swap --rounds 9 --save swap.jsonl
  cenote bench swap --threads 1 --resident 25 --json

A program in a memory cgroup touches its pages at random and in order. It swaps to an rs:8+2 volume on
twelve hosts over shared memory, by FUSE over io_uring or over /dev/fuse, and to nbdkit's memory plugin
in the same place. FUSE over io_uring is switched on in the kernel meanwhile.
It needs root, no other swap, nbdkit and nbdfuse (Debian package libnbd-bin), and a kernel with
CONFIG_FUSE_IO_URING. It cleans up after itself.")]
pub struct Args {
    /// Threads of the program; a comma-separated list
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1_u8, 2],
          value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Vec<u8>,
    /// Resident share of the memory, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(10..=99))]
    resident: u8,
    /// Memory of the program, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=65536))]
    memory: Option<u64>,
    /// Length of each measurement
    #[arg(long, value_name = "DURATION", value_parser = span::within("100ms", "10m"))]
    duration: Option<Duration>,
    /// Smoke test: less memory, one round
    #[arg(long)]
    quick: bool,
    /// Folder for temporary files
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub fn run(args: &Args, rounds: Option<usize>) -> Result<Vec<Row>> {
    let mut options = Options::default();
    if args.quick {
        options.shorten();
    }
    options.threads = args
        .threads
        .iter()
        .map(|count| usize::from(*count))
        .collect();
    options.resident = args.resident;
    options.memory_mib = args.memory.unwrap_or(options.memory_mib);
    options.seconds = args
        .duration
        .map_or(options.seconds, |time| time.as_secs_f64());
    options.rounds = rounds.unwrap_or(options.rounds);
    if let Some(dir) = &args.dir {
        options.dir.clone_from(dir);
    }
    swap::run(&options)
}
