//! The arguments of `cenote bench kv`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use cenote_bench::Row;
use cenote_bench::kv::{self, Mix, Options, Server, Shape, Sizes, recovery};
use cenote_cli::size::Size;
use cenote_cli::span;

/// `bench kv` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench kv --quick
  cenote bench kv --server memcached --server memcached --server redis --mix 100:0
  cenote bench kv --server ours-3+2 --server ours-3x --server memcached --mix 50:50
  cenote bench kv --server 'spread=memcached://10.0.0.1:11211,10.0.0.2:11211' --server 'memcached*2'
  cenote bench kv --codes --mix 50:50 --depth 1
  cenote bench kv --recovery --files out --kill-at 6s --kill-at 10s --mix 95:5 --mix 50:50
  cenote bench kv --recovery --server ours-3+2 \\
    --server 'copies@3x=memcached:group:up-copies ;; down-copies ;; status-copies'

A server is memcached, redis or cenote (cenote-memcached beside this program), each with *N for N
processes over which the client spreads the keys; or ours-K+M or ours-Nx for a cluster of five nodes
started by kv up (needs etcd), with a code or N copies. Its clients ask owners directly; with the
suffix -any they ask any node, and with -blocked writes wait while anything is recovered. Or
NAME[@K+M|@Nx]=PROTOCOL:HOW. PROTOCOL is
memcached or redis. HOW is a command with {port} and {mib} in it; or //ADDRESS[/PID[+PID]],... of
running nodes, any of which answers for all keys; or group:UP[;;DOWN[;;STATUS]], commands that start
nodes, printing ADDRESS and `pid NUMBER` of each on a line, stop them, and report on them as
cenote kv status --json does; {dir} is a new folder. K+M and Nx say how a group stores a value. The
first server is ours, the others are its peers.

Keys, popularity and mixes are YCSB's (Zipf 0.99, scrambled). Every value read is checked.
throughput_per_cpu is requests per second of the servers' processor time, which is the fairest figure
when client and servers share a machine. With --recovery, for each mix, a node is killed under load at
each given time; --files writes tables (CSV, JSON lines) and curves (SVG) in steps of a tenth of a
second. Our clusters report when recoveries started, began to serve and ended; each also has a node
killed without load.")]
pub struct Args {
    /// Server to measure; repeat for its peers [default: cenote, memcached, redis; with --recovery,
    /// ours-3+2, ours-3+2-blocked, ours-3x]
    #[arg(long = "server", value_name = "SERVER")]
    servers: Vec<Server>,
    /// Percentages of reads and writes; may be repeated [default: 50:50, 95:5, 100:0]
    #[arg(long = "mix", value_name = "READS:WRITES", value_parser = mix)]
    mixes: Vec<Mix>,
    /// Value size: bytes, as in 512 or 4K, or zipf for 10 B to 1 KiB; may be repeated [default: 1K,
    /// 4K, 16K and zipf; with --recovery, 1K]
    #[arg(long = "size", value_name = "BYTES", value_parser = size)]
    sizes: Vec<Sizes>,
    /// Requests in flight per client; may be repeated [default: 1 and 16; with --recovery, 1]
    #[arg(long = "depth", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    depths: Vec<u16>,
    /// Number of closed-loop clients
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// Threads of the load generator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Total size of the values, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=65536))]
    memory: u64,
    /// Length of a measurement [default: 1s; with --recovery, 16s]
    #[arg(long, value_name = "DURATION", value_parser = span::within("100ms", "1h"))]
    duration: Option<Duration>,
    /// Smoke test: few cases, one round
    #[arg(long)]
    quick: bool,
    /// Compare the codes 3+2, 2+3 and 4+1 on five nodes
    #[arg(long, conflicts_with_all = ["servers", "recovery"])]
    codes: bool,
    /// Kill nodes under load
    #[arg(long)]
    recovery: bool,
    /// Time of a kill after the start of the load; may be repeated [default: 6s and 10s]
    #[arg(long, value_name = "DURATION", requires = "recovery", value_parser = span::within("100ms", "1h"))]
    kill_at: Vec<Duration>,
    /// Write tables and curves to this folder, in a subfolder for each mix
    #[arg(long, value_name = "DIR", requires = "recovery")]
    files: Option<PathBuf>,
}

pub(super) fn mix(text: &str) -> Result<Mix> {
    let shares = text.split_once(':').and_then(|(gets, sets)| {
        let (gets, sets): (u8, u8) = (gets.parse().ok()?, sets.parse().ok()?);
        (gets.checked_add(sets)? == 100).then_some(gets)
    });
    let get_percent =
        shares.ok_or_else(|| anyhow!("use two percentages that add up to 100, as in 95:5"))?;
    Ok(Mix { get_percent })
}

fn size(text: &str) -> Result<Sizes> {
    if text == "zipf" {
        return Ok(Sizes::Zipf);
    }
    let bytes: Size = text.parse()?;
    Ok(Sizes::Fixed(u32::try_from(bytes.bytes())?))
}

pub fn run(args: &Args, rounds: Option<usize>) -> Result<Vec<Row>> {
    let mut servers = args.servers.clone();
    let named =
        |names: &[&str]| -> Result<Vec<Server>> { names.iter().map(|name| name.parse()).collect() };
    if servers.is_empty() {
        servers = if args.codes {
            named(&["ours-3+2", "ours-2+3", "ours-4+1"])?
        } else if args.recovery {
            named(&["ours-3+2", "ours-3+2-blocked", "ours-3x"])?
        } else {
            vec![Server::ours()?, Server::memcached(), Server::redis()]
        };
    }
    if args.recovery {
        let mut mixes = vec![Mix::READS, Mix::MOSTLY_READS, Mix::HALF];
        choose(&mut mixes, &args.mixes);
        let mut rows = Vec::new();
        for mix in mixes {
            let options = recovery_options(args, servers.clone(), mix, rounds);
            rows.extend(recovery::run(&options)?);
        }
        return Ok(rows);
    }
    let mut options = Options::new(servers);
    if args.quick {
        options.rounds = 1;
        options.seconds = 0.3;
        options.mixes = vec![Mix::HALF, Mix::READS];
        options.sizes = vec![Sizes::Fixed(1 << 10), Sizes::Zipf];
    }
    choose(&mut options.mixes, &args.mixes);
    choose(&mut options.sizes, &args.sizes);
    let depths: Vec<usize> = args.depths.iter().map(|depth| (*depth).into()).collect();
    choose(&mut options.depths, &depths);
    options.clients = args.clients.into();
    options.threads = args.threads.into();
    options.mib = args.memory;
    options.seconds = args
        .duration
        .map_or(options.seconds, |time| time.as_secs_f64());
    options.rounds = rounds.unwrap_or(options.rounds);
    kv::run(&options)
}

fn recovery_options(
    args: &Args,
    variants: Vec<Server>,
    mix: Mix,
    rounds: Option<usize>,
) -> recovery::Options {
    let mut options = recovery::Options::new(variants);
    if args.quick {
        options.rounds = 1;
    }
    options.mix = mix;
    options.sizes = args.sizes.first().copied().unwrap_or(options.sizes);
    options.shape = Shape {
        clients: args.clients.into(),
        depth: args
            .depths
            .first()
            .map_or(options.shape.depth, |depth| (*depth).into()),
        threads: args.threads.into(),
    };
    options.mib = args.memory;
    options.time = args.duration.unwrap_or(options.time);
    choose(&mut options.kills, &args.kill_at);
    options.rounds = rounds.unwrap_or(options.rounds);
    let folder = mix.label().replace(':', "-");
    options.files = args.files.as_ref().map(|dir| dir.join(folder));
    options
}

/// What was asked for, or what is there.
pub(super) fn choose<T: Clone>(these: &mut Vec<T>, asked: &[T]) {
    if !asked.is_empty() {
        *these = asked.to_vec();
    }
}
