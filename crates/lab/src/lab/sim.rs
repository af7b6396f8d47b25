//! `cenote lab sim`: a whole cluster under faults, by seed.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::{DONE, FAILED};
use cenote_cli::span;
use cenote_sim::cluster::{self, Options, Report};
use cenote_volume::{Mode, Placement, Protection, Scheme};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Random seed [default: a fresh one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Virtual time to simulate
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = span::within("1s", "11000d"))]
    duration: Duration,
    /// Real time after which no further virtual minute starts
    #[arg(long, value_name = "DURATION", value_parser = span::any)]
    timeout: Option<Duration>,
    /// Number of hosts
    #[arg(long, value_name = "N", default_value_t = 16)]
    hosts: usize,
    /// Number of clients, each with its own volume
    #[arg(long, value_name = "N", default_value_t = 3)]
    clients: usize,
    /// Threads of each client
    #[arg(long, value_name = "N", default_value_t = 2)]
    workers: usize,
    /// Redundancy scheme of every volume [default: rs:4+2; plain with --backed]
    #[arg(long)]
    scheme: Option<Scheme>,
    /// Resilience mode of every volume: failure-recovery, detection, correction or ec-only
    /// [default: drawn from those that the scheme allows]
    #[arg(long)]
    mode: Option<Mode>,
    /// Clients keep a checksum of every page
    #[arg(long)]
    checksum: bool,
    /// Clients encrypt pages
    #[arg(long, conflicts_with = "checksum")]
    seal: bool,
    /// Corrupt splits in hosts' memory as well, one of a page at a time, of volumes that detect it
    #[arg(long)]
    rot: bool,
    /// Placement policy: coding-sets:L, least-loaded, two-choices or random [default: least-loaded;
    /// two-choices with --backed]
    #[arg(long, value_name = "PLACEMENT")]
    placement: Option<Placement>,
    /// Put a backing disk that sometimes fails behind every volume; any host may leave at any time
    #[arg(long)]
    backed: bool,
    /// Requests per virtual second and thread
    #[arg(long, value_name = "N", default_value_t = 200)]
    rate: u64,
    /// Mean virtual time between faults
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = span::within("1ms", "10d"))]
    fault_pause: Duration,
    /// Simulate one seed after the other until one fails or you stop it
    #[arg(long)]
    swarm: bool,
    /// Print one JSON line per simulation
    #[arg(long)]
    json: bool,
    /// Inject a known bug into a cluster of its own, to see it detected (only in builds with
    /// feature injected-faults)
    #[arg(long, value_name = "NAME", hide = !cfg!(feature = "injected-faults"))]
    plant: Option<String>,
}

pub fn run(args: &Args) -> Result<u8> {
    let mut seed = match args.seed {
        Some(seed) => seed,
        None => fresh_seed()?,
    };
    loop {
        let options = options(args, seed);
        let report = cluster::run(&options, |so_far| progress(args, so_far))?;
        print(args, &options, &report)?;
        if !report.violations.is_empty() {
            return Ok(FAILED);
        }
        if !args.swarm {
            return Ok(DONE);
        }
        seed = seed.wrapping_add(1);
    }
}

fn options(args: &Args, seed: u64) -> Options {
    if let Some(plant) = &args.plant {
        return cluster::injected(plant, seed);
    }
    let protection = match (args.checksum, args.seal) {
        (true, _) => Protection::Checksum,
        (_, true) => Protection::Sealed(cluster::seal_key()),
        _ => Protection::None,
    };
    let defaults = Options::default();
    let options = Options {
        seed,
        duration: args.duration,
        limit: args.timeout,
        hosts: args.hosts,
        clients: args.clients,
        workers: args.workers,
        scheme: args.scheme.unwrap_or(defaults.scheme),
        mode: args.mode,
        protection,
        placement: args.placement,
        rate: args.rate,
        fault_pause: args.fault_pause,
        ..defaults
    };
    let options = if args.rot { options.rotting() } else { options };
    if args.backed {
        options.backed_as(args.scheme.unwrap_or(Scheme::PLAIN))
    } else {
        options
    }
}

fn fresh_seed() -> Result<u64> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes)?;
    // Short enough to be typed again.
    Ok(u64::from(u32::from_le_bytes(bytes)))
}

fn progress(args: &Args, so_far: &Report) {
    if !args.json {
        eprint!(
            "\rseed {}: {} s simulated, {} page operations ({:.0}/s), {} faults ",
            so_far.seed,
            so_far.simulated_seconds,
            so_far.page_ops,
            per_second(so_far),
            so_far.faults
        );
    }
}

fn print(args: &Args, options: &Options, report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        eprintln!();
        writeln!(
            out,
            "seed {}: {} s of {} hosts, {} page operations ({:.0} per second of real time), {} faults, trace {}: {}",
            report.seed,
            report.simulated_seconds,
            report.hosts,
            report.page_ops,
            per_second(report),
            report.faults,
            report.trace_hash,
            if report.violations.is_empty() {
                "all guarantees hold"
            } else {
                "a guarantee was violated"
            }
        )?;
    }
    for violation in &report.violations {
        eprintln!("Last events:");
        violation.log.iter().for_each(|line| eprintln!("  {line}"));
        eprintln!(
            "At {:.6} s: {}",
            violation.at_ns as f64 / 1e9,
            violation.what
        );
        eprintln!("Reproduce with: {}", options.command());
    }
    Ok(())
}

/// Simulated page operations per second of real time, on the one core that a simulation uses.
fn per_second(report: &Report) -> f64 {
    report.page_ops as f64 / report.elapsed.as_secs_f64().max(1e-9)
}
