//! The arguments of `cenote bench files` and of the processes that serve what it measures beside.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use cenote_bench::Row;
use cenote_bench::files::{self, Options, Role};
use cenote_cli::span;
use cenote_cli::transport::Transport;
use cenote_volume::Scheme;

/// `bench files` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench files --quick
  cenote bench files --files 20000 --rounds 5 --json
  cenote bench files --duration 0 --transport tcp

The same load in five places: cenote mount (rs:8+2, 12 hosts) over io_uring; cenote mount over
/dev/fuse; a FUSE file system that passes requests through to tmpfs, which is the upper bound of
/dev/fuse; tmpfs; and ext4 on a block device backed by another volume of the same hosts. FUSE over
io_uring is switched on in the kernel meanwhile; if the kernel lacks it, the first uses /dev/fuse.
fio bypasses the kernel's cache. One thread creates, stats and deletes files, 1000 in a folder, first
with names in the kernel's cache and then without. In every row more is better. It needs root,
/dev/fuse, fio, and mkfs.ext4.")]
pub struct Args {
    /// Transport to the hosts
    #[arg(long, value_enum, default_value_t = Transport::Shm)]
    transport: Transport,
    /// Number of files to create; 0 measures data only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=2_000_000))]
    files: Option<u64>,
    /// Size of fio's file, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(8..=16384))]
    data: Option<u64>,
    /// Length of each fio run; 0 measures metadata only
    #[arg(long, value_name = "DURATION", value_parser = span::within("0s", "10m"))]
    duration: Option<Duration>,
    /// Smoke test: fewer files, less data, one round
    #[arg(long)]
    quick: bool,
}

pub fn run(args: &Args, rounds: Option<usize>) -> Result<Vec<Row>> {
    let mut options = Options::default();
    if args.quick {
        options.shorten();
    }
    options.transport = args.transport.to_string();
    options.files = args.files.unwrap_or(options.files);
    options.data_bytes = args.data.map_or(options.data_bytes, |mib| mib << 20);
    options.seconds = args
        .duration
        .map_or(options.seconds, |time| time.as_secs_f64());
    options.rounds = rounds.unwrap_or(options.rounds);
    files::run(&options)
}

/// `bench files-server`: a passthrough at `--point`, or a volume as a block device.
#[derive(clap::Args, Debug)]
pub struct Server {
    /// Where the passthrough is mounted
    #[arg(long, requires = "backing", conflicts_with = "cluster")]
    point: Option<PathBuf>,
    /// The folder that it shows
    #[arg(long)]
    backing: Option<PathBuf>,
    /// The cluster of the volume
    #[arg(long, requires_all = ["scheme", "bytes", "dir"])]
    cluster: Option<PathBuf>,
    /// Its scheme
    #[arg(long)]
    scheme: Option<Scheme>,
    /// Its size
    #[arg(long)]
    bytes: Option<u64>,
    /// Folder of the device's socket
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub fn serve(args: &Server) -> Result<()> {
    let Server { point, backing, .. } = args;
    if let (Some(point), Some(backing)) = (point, backing) {
        return files::serve(&Role::Passthrough(point.clone(), backing.clone()));
    }
    match (&args.cluster, args.scheme, args.bytes, &args.dir) {
        (Some(cluster), Some(scheme), Some(bytes), Some(dir)) => files::serve(&Role::Device {
            cluster: cluster.clone(),
            scheme,
            bytes,
            dir: dir.clone(),
        }),
        _ => anyhow::bail!("a passthrough's --point, or a device's --cluster"),
    }
}
