//! The arguments of `cenote bench events`.

use std::path::PathBuf;

use anyhow::Result;
use cenote_bench::Row;
use cenote_bench::events::{self, Kind, Options, Trouble};
use cenote_cli::transport::Transport;

/// `bench events` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench events
  cenote bench events --only death --rounds 5 --plots curves
  cenote bench events --only corruption --plots curves
  cenote bench events --transport tcp --volumes rs --volumes mirror

memcached runs in half of its peak memory over each volume in turn; its throughput during an event is
compared with that of the other volumes in the same round. A dip is time below half of the throughput
before the event. It needs root, no other swap, and memcached. It cleans up after itself.")]
pub struct Args {
    /// Event to measure; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "EVENT")]
    only: Vec<Event>,
    /// Kind of volume, ours first; may be repeated [default: rs, mirror, plain]
    #[arg(long, value_enum, value_name = "VOLUME")]
    volumes: Vec<VolumeKind>,
    /// Transport to the hosts
    #[arg(long, value_enum, default_value_t = Transport::Shm)]
    transport: Transport,
    /// Memory limit in percent of memcached's peak
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(10..=99))]
    limit: u8,
    /// Approximate memory of memcached, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=65536))]
    memory: Option<u64>,
    /// Write a curve (SVG) and a table (CSV) of each event to this folder
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Folder for temporary files, on a real disk
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// [`Trouble`] as words of the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Event {
    /// No event: the variation of the load itself
    Nothing,
    /// One host is killed
    Death,
    /// Another client sends as much traffic as it can
    Flows,
    /// Twice as many connections send requests
    Burst,
    /// The memory of one host rots; rs:8+3 with correction and mirror:2 with checksums, no disk
    Corruption,
}

impl From<Event> for Trouble {
    fn from(event: Event) -> Self {
        match event {
            Event::Nothing => Self::Nothing,
            Event::Death => Self::Death,
            Event::Flows => Self::Flows,
            Event::Burst => Self::Burst,
            Event::Corruption => Self::Corruption,
        }
    }
}

/// [`Kind`] as words of the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum VolumeKind {
    /// rs:8+2
    Rs,
    /// Two copies
    Mirror,
    /// One copy, with a backing disk
    Plain,
}

impl From<VolumeKind> for Kind {
    fn from(kind: VolumeKind) -> Self {
        match kind {
            VolumeKind::Rs => Self::Coded,
            VolumeKind::Mirror => Self::Copied,
            VolumeKind::Plain => Self::Backed,
        }
    }
}

pub fn run(args: &Args, rounds: Option<usize>) -> Result<Vec<Row>> {
    let mut options = Options {
        transport: args.transport.to_string(),
        limit: args.limit,
        plots: args.plots.clone(),
        ..Options::default()
    };
    if !args.only.is_empty() {
        options.troubles = args.only.iter().map(|one| Trouble::from(*one)).collect();
    }
    if !args.volumes.is_empty() {
        options.volumes = args.volumes.iter().map(|one| Kind::from(*one)).collect();
    }
    options.rounds = rounds.unwrap_or(options.rounds);
    options.program_mib = args.memory.unwrap_or(options.program_mib);
    if let Some(dir) = &args.dir {
        options.dir.clone_from(dir);
    }
    events::run(&options)
}
