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

Keys, popularity and mixes are YCSB's (Zipf 0.99, scrambled). Every value that is read is checked.
A client is a closed loop with one request under way. Ours is cenote store serve in a process of its own,
its clients served by one thread, tcp not encrypted: efactory puts as Redis everysec does,
efactory-durable as always. redis-server and RocksDB (librocksdb-dev) are
measured where they are installed: Redis with appendonly and appendfsync everysec or always, over a
Unix socket (shm) and over loopback (tcp), its connections served by one thread; RocksDB within this
process, with sync=false or sync=true, on a thread for each client. All have their files in --dir.

A JSON line has the keys scheme, mix, value_bytes, clients, transport, ops_per_second, p50_us and
p99_us (of GETs and PUTs together), server_cpu_us_per_op (of RocksDB with the load), and
write_amplification: bytes that went to the disk for each byte of a value that was put.")]
pub struct Args {
    /// Shares of GETs and PUTs; may be given again [default: 100:0, 95:5, 50:50, 0:100]
    #[arg(long = "mix", value_name = "GETS:PUTS", value_parser = mix)]
    mixes: Vec<Mix>,
    /// Length of values, as in 256 or 4K; may be given again [default: 64, 256, 1K, 4K, 64K]
    #[arg(long = "value", value_name = "SIZE")]
    values: Vec<Size>,
    /// Clients, each with one request under way; may be given again [default: 1 and 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: Vec<u16>,
    /// How servers are reached; may be given again [default: shm and tcp]
    #[arg(long = "transport", value_enum)]
    transports: Vec<Transport>,
    /// Schemes of our server, as of cenote store serve; may be given again [default: efactory]
    #[arg(long = "scheme", value_name = "NAME")]
    schemes: Vec<String>,
    /// A row of so many of our servers besides, each of which has every object
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    copies: u8,
    /// Memory of each of our servers for values that are not on the disk yet
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    landing: Size,
    /// Length of a measurement
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = span::within("100ms", "1h"))]
    duration: Duration,
    /// Folder for the stores, on the disk that is to be measured; made, and removed
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
}

/// How servers on this machine are reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Transport {
    /// As near as they allow: shared memory, or a Unix socket
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
