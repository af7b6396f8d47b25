//! `cenote lab kv`: a coding group of key-value nodes, or whole nodes and their etcd, under faults, by seed.

use std::io::Write;

use anyhow::{Result, bail};
use cenote_cli::failure::{DONE, FAILED};
use cenote_sim::kv::{self, Options, Report, Scheme, Service, cluster};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Random seed; of the first run where there are many
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of simulations, one seed after the other, until one fails
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: u64,
    /// Partitions of the group
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    k: u8,
    /// Parities of the group; as many processes may be lost
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    m: u8,
    /// Redundancy: coded or replicated
    #[arg(long, default_value = "coded", value_parser = scheme)]
    scheme: Scheme,
    /// Block writes while anything is recovered, as kv up --recovery blocked
    #[arg(long)]
    blocked: bool,
    /// Steps under faults, after which everything must recover
    #[arg(long, value_name = "N", default_value_t = 4000)]
    steps: u64,
    /// Maximum number of deaths and false suspicions
    #[arg(long, value_name = "N", default_value_t = 6)]
    faults: u64,
    /// Units of 4 KiB of each partition's memory
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u64).range(2..=65536))]
    units: u64,
    /// Probability, in percent, that a process restarts at each chance
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=100))]
    returns: u64,
    /// Kind of fault to favour: mixed, deposed, recovery, moves, leaving or spreading [default:
    /// drawn from the seed]
    #[arg(long, value_parser = focus)]
    focus: Option<kv::Focus>,
    /// Simulate whole nodes with etcd (registrations, views, failure detection), not just a group
    #[arg(long, conflicts_with_all = ["scheme", "blocked", "steps", "faults", "units", "returns", "focus"])]
    whole_nodes: bool,
    /// Number of groups with --whole-nodes, rotated over K+M nodes. With more than one, owners must
    /// end up evenly spread
    #[arg(long, value_name = "N", default_value_t = 1, requires = "whole_nodes", value_parser = clap::value_parser!(u8).range(1..=16))]
    groups: u8,
    /// Print one JSON line per simulation
    #[arg(long)]
    json: bool,
    /// Inject a known bug into a group of its own, to see it detected (only in builds with feature
    /// injected-faults)
    #[arg(long, value_name = "NAME", hide = !cfg!(feature = "injected-faults"))]
    plant: Option<String>,
}

fn scheme(name: &str) -> Result<Scheme, String> {
    match name {
        "coded" => Ok(Scheme::Coded),
        "replicated" => Ok(Scheme::Replicated),
        _ => Err("use coded or replicated".to_owned()),
    }
}

fn focus(name: &str) -> Result<kv::Focus, String> {
    let known = kv::Focus::ALL.iter().find(|(known, _)| *known == name);
    let known = known.map(|(_, focus)| *focus);
    known.ok_or_else(|| "use mixed, deposed, recovery, moves, leaving or spreading".to_owned())
}

pub fn run(args: &Args) -> Result<u8> {
    if args.whole_nodes {
        return run_clusters(args);
    }
    let mut sum = Report::default();
    for seed in (args.seed..).take(usize::try_from(args.runs)?) {
        let options = options(args, seed)?;
        let report = kv::run(&options);
        sum.add(&report);
        if args.json {
            let mut out = std::io::stdout().lock();
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        }
        if let Some(violation) = &report.violation {
            return Ok(failed(&report.log, seed, violation, &options.command()));
        }
    }
    if !args.json {
        println!(
            "{} simulations from seed {}: {} operations, {} faults, {} views: all guarantees hold",
            args.runs, args.seed, sum.operations, sum.faults, sum.views
        );
    }
    Ok(DONE)
}

fn failed(log: &[String], seed: u64, violation: &str, command: &str) -> u8 {
    eprintln!("Last events:");
    log.iter().for_each(|line| eprintln!("  {line}"));
    eprintln!("Seed {seed}: {violation}");
    eprintln!("Reproduce with: {command}");
    FAILED
}

fn run_clusters(args: &Args) -> Result<u8> {
    let (mut operations, mut troubles) = (0, 0);
    for seed in (args.seed..).take(usize::try_from(args.runs)?) {
        if args.plant.is_some() && cfg!(not(feature = "injected-faults")) {
            bail!("this program was built without the feature injected");
        }
        let options = match &args.plant {
            None => cluster::Options {
                seed,
                k: args.k.into(),
                m: args.m.into(),
                groups: args.groups.into(),
                ..match args.groups {
                    1 => cluster::Options::default(),
                    _ => cluster::Options::many_groups(),
                }
            },
            Some(name) => {
                let injected = cluster::injected(name);
                let injected = injected.ok_or_else(|| unknown(name, cluster::fault_names()))?;
                cluster::Options::suited(injected, seed)
            }
        };
        let report = cluster::run(&options);
        operations += report.operations;
        troubles += report.troubles;
        if args.json {
            let mut out = std::io::stdout().lock();
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        }
        if let Some(violation) = &report.violation {
            return Ok(failed(&report.log, seed, violation, &options.command()));
        }
    }
    if !args.json {
        println!(
            "{} simulations from seed {}: {operations} operations, {troubles} troubles: all \
             guarantees hold",
            args.runs, args.seed
        );
    }
    Ok(DONE)
}

/// Why a mistake cannot be injected.
fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> anyhow::Error {
    let known: Vec<&str> = known.collect();
    anyhow::anyhow!(
        "there is no injected bug {name}; there are {}",
        known.join(", ")
    )
}

fn options(args: &Args, seed: u64) -> Result<Options> {
    if let Some(name) = &args.plant {
        let Some(injected) = kv::injected(name) else {
            return Err(unknown(name, kv::fault_names()));
        };
        if cfg!(not(feature = "injected-faults")) {
            bail!("this program was built without the feature injected");
        }
        return Ok(Options::suited(injected, seed));
    }
    Ok(Options {
        seed,
        k: args.k.into(),
        m: args.m.into(),
        scheme: args.scheme,
        service: if args.blocked {
            Service::Blocked
        } else {
            Service::Online
        },
        steps: args.steps,
        faults: args.faults,
        units: args.units,
        returns: args.returns,
        focus: args.focus,
        injected: None,
    })
}
