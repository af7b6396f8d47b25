//! `cenote lab kv`: a coding group of key-value nodes, or whole nodes and their etcd, under faults, by seed.

use anyhow::Result;
use cenote_sim::kv::{self, Options, Scheme, Service, Tally, cluster};

use super::seeds::{Seeds, planted};

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
    let seeds = Seeds {
        first: args.seed,
        count: args.runs,
        json: args.json,
    };
    if args.whole_nodes {
        return run_clusters(args, &seeds);
    }
    let simulate = |seed| {
        let options = options(args, seed)?;
        Ok((kv::run(&options), options.command()))
    };
    seeds.run(simulate, |all| {
        let mut sum = Tally::default();
        all.iter().for_each(|tally| sum.add(tally));
        format!(
            "{} operations, {} faults, {} views",
            sum.operations, sum.faults, sum.views
        )
    })
}

fn run_clusters(args: &Args, seeds: &Seeds) -> Result<u8> {
    let simulate = |seed| {
        let options = match &args.plant {
            Some(name) => cluster::Options::suited(planted(name, &cluster::FAULTS)?, seed),
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
        };
        Ok((cluster::run(&options), options.command()))
    };
    seeds.run(simulate, |all| {
        let operations: u64 = all.iter().map(|tally| tally.operations).sum();
        let troubles: u64 = all.iter().map(|tally| tally.troubles).sum();
        format!("{operations} operations, {troubles} troubles")
    })
}

fn options(args: &Args, seed: u64) -> Result<Options> {
    if let Some(name) = &args.plant {
        return Ok(Options::suited(planted(name, &kv::FAULTS)?, seed));
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
