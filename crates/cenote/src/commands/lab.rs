//! `cenote lab`: experiments that need no cluster.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use cenote_lab::sim::{self, Options, Report};
use cenote_volume::Scheme;

use crate::failure::{DONE, FAILED};

/// `lab` and what follows it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    lab: Lab,
}

#[derive(clap::Subcommand, Debug)]
enum Lab {
    /// Simulate a whole cluster under faults, and check every byte
    #[command(after_help = "Examples:
  cenote lab sim --seed 7 --hours 2
  cenote lab sim --hosts 30 --scheme rs:8+2 --json
  cenote lab sim --swarm

The code of hosts and volumes is the real one; network, time and faults are simulated. The same
options give the same trace hash on every machine. Ends with 1 when a promise was broken, after
the seed, what happened last, and the command that repeats it.")]
    Sim(SimArgs),
}

#[derive(clap::Args, Debug)]
struct SimArgs {
    /// Decides everything that chance decides [default: a fresh one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Virtual time to simulate
    #[arg(long, value_name = "HOURS", default_value_t = 1.0)]
    hours: f64,
    /// Begin no further minute of it after this many seconds of real time
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// Hosts of the cluster
    #[arg(long, value_name = "N", default_value_t = 16)]
    hosts: usize,
    /// Clients, each with a volume of its own
    #[arg(long, value_name = "N", default_value_t = 3)]
    clients: usize,
    /// Threads of each client
    #[arg(long, value_name = "N", default_value_t = 2)]
    workers: usize,
    /// Redundancy of every volume
    #[arg(long, default_value = "rs:4+2")]
    scheme: Scheme,
    /// Requests per virtual second and thread
    #[arg(long, value_name = "N", default_value_t = 200)]
    rate: u64,
    /// One seed after the other, until one fails or you stop it
    #[arg(long)]
    swarm: bool,
    /// One JSON line per simulation in place of text
    #[arg(long)]
    json: bool,
    /// Make a known mistake on purpose, to see it found (builds with feature `planted` only)
    #[arg(long, value_name = "NAME", hide = !cfg!(feature = "planted"))]
    plant: Option<String>,
}

pub fn run(args: &Args) -> Result<u8> {
    let Lab::Sim(args) = &args.lab;
    let mut seed = match args.seed {
        Some(seed) => seed,
        None => fresh_seed()?,
    };
    loop {
        let options = options(args, seed);
        let report = sim::run(&options, |so_far| progress(args, so_far))?;
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

fn options(args: &SimArgs, seed: u64) -> Options {
    Options {
        seed,
        duration: Duration::from_secs_f64((args.hours * 3600.0).clamp(1.0, 1e9)),
        limit: args.limit.map(Duration::from_secs),
        hosts: args.hosts,
        clients: args.clients,
        workers: args.workers,
        scheme: args.scheme,
        rate: args.rate,
        plant: args.plant.clone(),
        ..Options::default()
    }
}

fn fresh_seed() -> Result<u64> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes)?;
    // Short enough to be typed again.
    Ok(u64::from(u32::from_le_bytes(bytes)))
}

fn progress(args: &SimArgs, so_far: &Report) {
    if !args.json {
        eprint!(
            "\rseed {}: {} s simulated, {} page operations, {} faults ",
            so_far.seed, so_far.simulated_seconds, so_far.page_ops, so_far.faults
        );
    }
}

fn print(args: &SimArgs, options: &Options, report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        eprintln!();
        writeln!(
            out,
            "seed {}: {} s of {} hosts, {} page operations, {} faults, trace {}: {}",
            report.seed,
            report.simulated_seconds,
            report.hosts,
            report.page_ops,
            report.faults,
            report.trace_hash,
            if report.violations.is_empty() {
                "every promise kept"
            } else {
                "a promise was broken"
            }
        )?;
    }
    for violation in &report.violations {
        eprintln!("What happened last:");
        violation.log.iter().for_each(|line| eprintln!("  {line}"));
        eprintln!(
            "At {:.6} s: {}",
            violation.at_ns as f64 / 1e9,
            violation.what
        );
        eprintln!("To repeat it: {}", options.command());
    }
    Ok(())
}
