//! `cenote bench`: ours beside a peer, in one run.

mod apps;
mod events;
mod files;
mod kv;
mod log;
mod page;
mod pager;
mod proc;
mod reclaim;
pub mod store;
mod swap;

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use cenote_bench::cluster::LocalCluster;
use cenote_bench::{self as bench, Row, codec, fabric, nbd, page as pages, regeneration};
use cenote_cli::failure::DONE;
use cenote_cli::size::Size;
use cenote_cli::{child, program};

/// `bench` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench codec
  cenote bench page --transport shm --json
  cenote bench nbd --rounds 5 --save nbd.jsonl

A JSON line has the keys bench, case, metric, unit, ours, peer, theirs and ratio (ours / theirs);
apps, reclaim and swap add ratio_min, ratio_max and verdict. Rounds of ours and of the peer alternate;
the figure is the median.")]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
    /// Print JSON lines in place of a table
    #[arg(long, global = true)]
    json: bool,
    /// Also write JSON lines to this file
    #[arg(long, global = true, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Number of rounds, of which the median is taken [default: depends on the benchmark]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
}

#[derive(clap::Subcommand, Debug)]
enum Bench {
    /// Encoding and decoding of a page, against memcpy, ISA-L and the best Rust crate
    #[command(
        after_help = "Examples:\n  cenote bench codec --rounds 9\n  cenote bench codec --json --save codec.jsonl"
    )]
    Codec,
    /// READ, WRITE and messages of each backend, against memcpy and bare sockets
    #[command(after_help = "Example:\n  cenote bench fabric --transport tcp")]
    Fabric {
        /// Transport to measure; may be repeated [default: shm and tcp]
        #[arg(long, value_enum)]
        transport: Vec<cenote_cli::transport::Transport>,
    },
    /// The process at the other end of what `fabric` measures
    #[command(hide = true)]
    FabricPeer {
        /// Protocol to serve: raw or messages
        role: fabric::peer::Role,
    },
    /// Random page reads and writes, against a bare copy; with --trouble, against copies and a
    /// disk; with --protected, against unprotected volumes
    #[command(
        after_help = "Examples:\n  cenote bench page --transport shm\n  cenote bench page --trouble all\n  cenote bench page --protected"
    )]
    Page {
        /// Transport to measure; may be repeated [default: shm and tcp; with --trouble, tcp]
        #[arg(long, value_enum)]
        transport: Vec<cenote_cli::transport::Transport>,
        /// Trouble to inject meanwhile, or all; may be repeated
        #[arg(long, value_enum, value_name = "TROUBLE")]
        trouble: Vec<page::Trouble>,
        /// Measure only the cost of checksums and seals [default transport: shm]
        #[arg(long, conflicts_with = "trouble")]
        protected: bool,
    },
    /// A program's memory as a paged heap, against swap on our volumes, nbdkit and zram
    Pager(pager::Args),
    /// The process whose memory `pager` measures
    #[command(hide = true)]
    PagerWorker(pager::Worker),
    /// fio over NBD, against nbdkit's memory plugin
    #[command(after_help = "Example:\n  cenote bench nbd --rounds 5")]
    Nbd,
    /// Files of cenote mount, data and metadata, against a FUSE passthrough, tmpfs and ext4 on our
    /// device
    Files(files::Args),
    /// What serves the files that ours are measured beside
    #[command(hide = true)]
    FilesServer(files::Server),
    /// Swap-in from our volumes, by io_uring and by /dev/fuse, against nbdkit
    Swap(swap::Args),
    /// Unmodified programs over our swap, against nbdkit, a swap file and zram
    Apps(apps::Args),
    /// The process whose PageRank `apps` measures
    #[command(hide = true)]
    AppsWorker(apps::Worker),
    /// A program while hosts die or take memory back; times to get and return a slab
    Reclaim(reclaim::Args),
    /// Throughput of a program over time, coded or copied, through a host's death, memory rot,
    /// other traffic and a burst
    Events(events::Args),
    /// Key-value stores under YCSB mixes, against memcached and Redis; also while nodes are killed
    Kv(kv::Args),
    /// The log store over memory, disk and remote cache, against RocksDB and FASTER
    #[command(after_help = "Example:\n  cenote bench log --size 3G --dir /mnt/nvme --duration 10s")]
    Log(log::Args),
    /// The object store under YCSB mixes, against Redis with its log and RocksDB
    Store(store::Args),
    /// Procedures beside the data, native and WebAssembly, against verbs that fetch the data
    Proc(proc::Args),
    /// Rebuilds of lost slabs, against memcpy; latency of reads and writes meanwhile
    #[command(after_help = "Example:\n  cenote bench regeneration --slab 1G --rounds 3")]
    Regeneration {
        /// Size of the slab to evict and to lose, 1M to 4G
        #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = slab)]
        slab: Size,
    },
}

fn slab(text: &str) -> Result<Size> {
    let size: Size = text.parse()?;
    let is_whole =
        size.bytes().is_multiple_of(1 << 20) && (1..=4096).contains(&(size.bytes() >> 20));
    anyhow::ensure!(is_whole, "whole MiB from 1M to 4G");
    Ok(size)
}

pub fn run(args: &Args) -> Result<u8> {
    let rounds = args.rounds.map(usize::from);
    let rows = match &args.bench {
        Bench::Codec => codec::run(rounds.unwrap_or(CODEC_ROUNDS))?,
        Bench::Fabric { transport } => {
            let mut options = fabric::Options::default();
            choose(&mut options.transports, transport);
            options.rounds = rounds.unwrap_or(options.rounds);
            fabric::run(&options)?
        }
        Bench::FabricPeer { role } => {
            fabric::peer::serve(*role)?;
            return Ok(DONE);
        }
        Bench::Page {
            transport,
            protected: true,
            ..
        } => page::run_protected(transport, rounds)?,
        Bench::Page {
            transport, trouble, ..
        } if !trouble.is_empty() => page::run(transport, trouble, rounds)?,
        Bench::Page { transport, .. } => {
            let mut options = pages::Options::default();
            choose(&mut options.transports, transport);
            options.rounds = rounds.unwrap_or(options.rounds);
            pages::run(&options)?
        }
        Bench::Pager(args) => pager::run(args, rounds)?,
        Bench::PagerWorker(job) => {
            pager::work(job)?;
            return Ok(DONE);
        }
        Bench::Files(args) => files::run(args, rounds)?,
        Bench::FilesServer(args) => {
            files::serve(args)?;
            return Ok(DONE);
        }
        Bench::Nbd => nbd_rows(rounds.unwrap_or(NBD_ROUNDS))?,
        Bench::Swap(args) => swap::run(args, rounds)?,
        Bench::Apps(args) => apps::run(args, rounds)?,
        Bench::Reclaim(args) => reclaim::run(args, rounds)?,
        Bench::Events(args) => events::run(args, rounds)?,
        Bench::Kv(args) => kv::run(args, rounds)?,
        Bench::Log(args) => log::run(args, rounds)?,
        Bench::Store(chosen) => {
            store::run(chosen, rounds, (args.json, args.save.as_deref()))?;
            return Ok(DONE);
        }
        Bench::Proc(chosen) => {
            return proc::run(chosen, rounds, (args.json, args.save.as_deref()));
        }
        Bench::AppsWorker(job) => {
            apps::work(job)?;
            return Ok(DONE);
        }
        Bench::Regeneration { slab } => {
            let mut options = regeneration::Options::default();
            options.rounds = rounds.unwrap_or(options.rounds);
            options.slab_mib = slab.bytes() >> 20;
            regeneration::run(&options)?
        }
    };
    print(args, &rows)?;
    Ok(DONE)
}

/// Those that were asked for, or as they are.
fn choose(transports: &mut Vec<String>, asked: &[cenote_cli::transport::Transport]) {
    if !asked.is_empty() {
        *transports = asked.iter().map(ToString::to_string).collect();
    }
}

/// Short rounds: the median settles early.
const CODEC_ROUNDS: usize = 9;
/// A round is seconds of fio in each of many cases.
const NBD_ROUNDS: usize = 3;
/// Larger than the caches, small enough to fill quickly.
const NBD_BYTES: u64 = 512 << 20;
/// The same shape as the demonstration.
const NBD_SCHEME: &str = "rs:8+2";

fn print(args: &Args, rows: &[Row]) -> Result<()> {
    if let Some(path) = &args.save {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        bench::write_json(&mut BufWriter::new(file), rows)
            .with_context(|| path.display().to_string())?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        bench::write_json(&mut out, rows)?;
    } else {
        bench::write_table(&mut out, rows)?;
    }
    Ok(())
}

/// Starts a cluster and our server as a user would, each a process of its own.
fn nbd_rows(rounds: usize) -> Result<Vec<Row>> {
    let cluster = LocalCluster::start(12, 128, "shm")?;
    let socket = cluster.file().with_file_name("bench.sock");
    let server = Served::start(&cluster, &socket)?;
    let options = nbd::Options {
        our_uri: server.uri.clone(),
        our_label: format!("{NBD_SCHEME} shm"),
        size_bytes: NBD_BYTES,
        run_seconds: 2,
        rounds,
    };
    nbd::run(&options)
}

/// Our NBD server; ended when dropped.
struct Served {
    process: Child,
    uri: String,
}

impl Served {
    fn start(cluster: &LocalCluster, socket: &std::path::Path) -> Result<Self> {
        let mut process = Command::new(program::cenote()?)
            .arg("nbd")
            .arg("--cluster")
            .arg(cluster.file())
            .args(["--size", &NBD_BYTES.to_string(), "--scheme", NBD_SCHEME])
            .arg("--socket")
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start our NBD server")?;
        let stdout = process.stdout.take().expect("stdout is piped");
        let mut served = Self {
            process,
            uri: String::new(),
        };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let uri = line
            .trim_end()
            .rsplit(" at ")
            .next()
            .filter(|uri| uri.starts_with("nbd"));
        ensure!(uri.is_some(), "our NBD server did not become ready");
        served.uri = uri.unwrap_or_default().to_owned();
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        child::end(&mut self.process, child::Signal::TERM);
    }
}
