//! `cenote bench log`: the log store over its tiers, beside RocksDB and FASTER.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use cenote_lab::bench::Row;
use cenote_lab::bench::log::{self, Options};

use crate::size::Size;

/// `bench log`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Bytes of the log, of which a sixth fits into memory
    #[arg(long, value_name = "SIZE", default_value = "384M")]
    size: Size,
    /// Folder for logs and clusters, on the disk that is to be measured; made, and removed
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Seconds of a round
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Folder with the peers rocksdb and faster, which scripts/build-for-bench.sh builds [default:
    /// bench-peers beside the folder of this program]
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
        seconds: args.seconds,
        rounds: rounds.unwrap_or(3),
        peers,
    })
}
