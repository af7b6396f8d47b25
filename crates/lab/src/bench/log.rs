//! `cenote bench log`: the log store over its tiers, beside RocksDB and FASTER.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cenote_bench::Row;
use cenote_bench::log::{self, Options};
use cenote_cli::size::Size;
use cenote_cli::span;

/// `bench log`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Size of the log, of which a sixth fits in memory
    #[arg(long, value_name = "SIZE", default_value = "384M")]
    size: Size,
    /// Folder for temporary files, on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Length of each round
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = span::whole_seconds("1s", "1h"))]
    duration: Duration,
    /// Folder with the peers rocksdb and faster, built by scripts/build-for-bench.sh [default:
    /// bench-peers beside this program's folder]
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
}

pub fn run(args: &Args, rounds: Option<usize>) -> Result<Vec<Row>> {
    let mib = args.size.bytes() >> 20;
    ensure!(
        (12..=1 << 16).contains(&mib),
        "--size is from 12M to 64G: a sixth of it is memory"
    );
    let peers = match &args.peers {
        Some(peers) => peers.clone(),
        None => std::env::current_exe()
            .context("find this program's file")?
            .parent()
            .and_then(|folder| Some(folder.parent()?.join("bench-peers")))
            .context("find the folder of this program")?,
    };
    log::run(&Options {
        log_bytes: args.size.bytes(),
        dir: args.dir.clone(),
        seconds: args.duration.as_secs(),
        rounds: rounds.unwrap_or(3),
        peers,
    })
}
