//! The arguments of `cenote bench store`.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_bench::kv::Mix;
use cenote_bench::store::{self, Options};
use cenote_cli::size::Size;
use cenote_cli::span;

use super::kv::{choose, mix};

/// `bench store` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench store --value 1K --clients 32
  cenote bench store --mix 0:100 --mix 100:0 --value 64 --value 4K --transport tcp
  cenote bench store --scheme efactory --scheme saw --scheme imm --value 1K
  cenote bench store --dir /mnt/nvme --duration 5s --rounds 5 --json --save store.jsonl

Keys, popularity and mixes are YCSB's (Zipf 0.99, scrambled). Every value read is checked. A client is a
closed loop with one request in flight. Ours is cenote store serve in a separate process, with one
thread that serves clients and tcp not encrypted; efactory puts with the durability of Redis everysec,
efactory-durable with that of always. redis-server and RocksDB (librocksdb-dev) are measured if they
are installed: Redis with appendonly and appendfsync everysec or always, over a Unix socket (shm) and
loopback (tcp), with one thread; RocksDB in this process, with sync=false or sync=true and one thread
for each client. All have their files in --dir.

A JSON line has the keys scheme, mix, value_bytes, clients, transport, ops_per_second, p50_us and
p99_us (GETs and PUTs together), server_cpu_us_per_op (for RocksDB including the load), and
write_amplification: bytes written to disk for each byte of a stored value.")]
pub struct Args {
    /// Percentages of GETs and PUTs; may be repeated [default: 100:0, 95:5, 50:50, 0:100]
    #[arg(long = "mix", value_name = "GETS:PUTS", value_parser = mix)]
    mixes: Vec<Mix>,
    /// Value size, as in 256 or 4K; may be repeated [default: 64, 256, 1K, 4K, 64K]
    #[arg(long = "value", value_name = "SIZE")]
    values: Vec<Size>,
    /// Number of clients, each with one request in flight; may be repeated [default: 1 and 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: Vec<u16>,
    /// Transport to the servers; may be repeated [default: shm and tcp]
    #[arg(long = "transport", value_enum)]
    transports: Vec<Transport>,
    /// Scheme of our server, as for cenote store serve; may be repeated [default: efactory]
    #[arg(long = "scheme", value_name = "NAME")]
    schemes: Vec<String>,
    /// Also measure this many of our servers with a copy of every object each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    copies: u8,
    /// Memory of each of our servers for values not yet on disk
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    landing: Size,
    /// Length of a measurement
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = span::within("100ms", "1h"))]
    duration: Duration,
    /// Folder for temporary stores, on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
}

/// How servers on this machine are reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Transport {
    /// Shared memory, or a Unix socket
    Shm,
    /// Loopback TCP
    Tcp,
}

pub fn run(args: &Args, rounds: Option<usize>, to: (bool, Option<&Path>)) -> Result<()> {
    let mut options = Options {
        dir: args.dir.clone(),
        seconds: args.duration.as_secs_f64(),
        schemes: match args.schemes.is_empty() {
            true => vec!["efactory".to_owned()],
            false => args.schemes.clone(),
        },
        copies: usize::from(args.copies),
        landing_bytes: args.landing.bytes(),
        ..Options::default()
    };
    options.rounds = rounds.unwrap_or(options.rounds);
    choose(&mut options.mixes, &args.mixes);
    let values = args.values.iter().map(|size| u32::try_from(size.bytes()));
    choose(
        &mut options.value_bytes,
        &values.collect::<Result<Vec<_>, _>>()?,
    );
    let clients: Vec<usize> = args.clients.iter().map(|count| (*count).into()).collect();
    choose(&mut options.clients, &clients);
    let transports = args.transports.iter().map(|one| match one {
        Transport::Shm => store::Transport::Shm,
        Transport::Tcp => store::Transport::Tcp,
    });
    choose(&mut options.transports, &transports.collect::<Vec<_>>());
    let report = store::run(&options)?;
    let (is_json, file) = to;
    if let Some(path) = file {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        report
            .write_json(&mut BufWriter::new(file))
            .with_context(|| path.display().to_string())?;
    }
    let mut out = std::io::stdout().lock();
    if is_json {
        report.write_json(&mut out)?;
    } else {
        report.write_table(&mut out)?;
    }
    Ok(())
}
