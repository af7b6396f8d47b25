//! `cache bench`: a closed loop on a live cache.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cache::service::bench::{Figures, Plan, run as measure};
use cenote_cache::service::{Cache, OpenError, Options};
use cenote_cli::failure::{DONE, FAILED, Failure};
use cenote_cli::size::Size;
use cenote_cli::span;
use cenote_cli::stdout;
use cenote_fabric::Address;
use cenote_measurer::files::record_bytes;
use serde::Serialize;

use crate::caches::CacheDir;
use crate::place::Which;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Name of the cache. The benchmark overwrites its content
    name: String,
    /// Record size [default: that of the cache's SLO; with --manager, or without an SLO, 16]
    #[arg(long, value_name = "SIZE")]
    record: Option<Size>,
    /// Percentage of requests that read
    #[arg(long, value_name = "PERCENT", default_value_t = 95, value_parser = clap::value_parser!(u32).range(0..=100))]
    reads: u32,
    /// Client threads [default: those of the configuration]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Option<u32>,
    /// Requests in flight on each thread [default: b times q of the configuration]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    under_way: Option<u32>,
    /// Length of the measurement
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = span::within("1s", "1h"))]
    duration: Duration,
    /// Address of the cache's manager, from another machine [default: its socket on this machine]
    #[arg(long, value_name = "ADDRESS")]
    manager: Vec<Address>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    which: Which,
    /// Print one JSON line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    c: u32,
    s: u32,
    b: u32,
    q: u32,
    threads: u32,
    under_way: usize,
    record_bytes: u32,
    #[serde(flatten)]
    figures: Figures,
}

pub fn run(args: &Args) -> Result<u8> {
    let loaded = args.which.load()?;
    let options = Options {
        name: "cenote cache bench".to_owned(),
        page_traffic: loaded.page_traffic,
        ..Options::default()
    };
    // The folder of a cache that another machine manages is on that machine.
    let (managers, asked) = match args.manager.is_empty() {
        true => {
            let cache = CacheDir::open(&loaded.dir, &args.name)?;
            let slo = cache.spec()?.slo;
            (vec![cache.socket()], slo.map(|slo| slo.record_bytes))
        }
        false => (args.manager.clone(), None),
    };
    let open = || {
        let opened = Cache::open(managers.clone(), &loaded.key, &options);
        opened.map_err(|error| not_opened(error, &args.name))
    };
    let first = open()?;
    let configuration = first.configuration();
    let threads = args.threads.unwrap_or(configuration.c);
    let mut caches = vec![first];
    for _ in 1..threads {
        caches.push(open()?);
    }
    let record_bytes = match args.record {
        Some(record) => record_bytes(record)?,
        None => asked.unwrap_or(16),
    };
    let depth = u64::from(configuration.b) * u64::from(configuration.q);
    let under_way = args.under_way.map_or(depth, u64::from).min(4096);
    let plan = Plan {
        record_bytes,
        reads_percent: args.reads,
        under_way: usize::try_from(under_way).expect("at most 4096"),
        warm_up: Duration::from_millis(200),
        span: args.duration,
        seed: args.seed,
    };
    let figures = measure(&mut caches, &plan).with_context(|| format!("cache {}", args.name))?;
    let mut out = stdout::lock();
    let line = Line {
        c: configuration.c,
        s: configuration.s,
        b: configuration.b,
        q: configuration.q,
        threads,
        under_way: plan.under_way,
        record_bytes,
        figures,
    };
    if args.json {
        serde_json::to_writer(&mut out, &line)?;
        writeln!(out)?;
    } else {
        writeln!(
            out,
            "{configuration}, {threads} threads with {under_way} requests of {record_bytes} bytes under way, {}% reads",
            args.reads
        )?;
        writeln!(
            out,
            "{:.0} requests a second; mean {:.2} us, p50 {:.2} us, p99 {:.2} us, longest {:.0} us; {} failed",
            figures.requests_per_second,
            figures.mean_us,
            figures.p50_us,
            figures.p99_us,
            figures.max_us,
            figures.failed
        )?;
    }
    Ok(if figures.failed == 0 { DONE } else { FAILED })
}

fn not_opened(error: OpenError, name: &str) -> anyhow::Error {
    match error {
        OpenError::NoManager(_) => Failure::new(
            format!("cache {name}: {error}"),
            format!("cenote cache start {name}"),
        )
        .into(),
        _ => anyhow::Error::new(error).context(format!("cache {name}")),
    }
}
