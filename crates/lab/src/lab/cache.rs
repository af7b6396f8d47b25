//! `cenote lab cache`: a cache whose machines come and go, by seed.

use std::time::Duration;

use anyhow::Result;
use cenote_cli::span::{self, Span};
use cenote_sim::cache::{self, Options, Tally};

use super::seeds::{Seeds, planted};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Random seed; of the first run where there are many
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of seeds to simulate, one after the other, until one fails
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    /// Virtual time under faults, after which everything must recover
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = span::any)]
    duration: Duration,
    /// Copies of each region, 1 or 2 [default: drawn from the seed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=2))]
    copies: Option<u8>,
    /// Send requests in batches to server threads, in place of one-sided verbs
    #[arg(long)]
    batched: bool,
    /// Print one JSON line per simulation
    #[arg(long)]
    json: bool,
    /// Inject a known bug, to see it detected (only in builds with feature injected-faults)
    #[arg(long, value_name = "NAME", hide = !cfg!(feature = "injected-faults"))]
    plant: Option<String>,
}

pub fn run(args: &Args) -> Result<u8> {
    let seeds = Seeds {
        first: args.seed,
        count: args.seeds,
        json: args.json,
    };
    let simulate = |seed| {
        let report = cache::run(&options(args, seed)?);
        Ok((report, repeat(args, seed)))
    };
    seeds.run(simulate, |all| {
        let sum = |count: fn(&Tally) -> u64| all.iter().map(count).sum::<u64>();
        format!(
            "{} requests, {} faults, {} regions moved",
            sum(|tally| tally.requests),
            sum(|tally| tally.faults),
            sum(|tally| tally.moves)
        )
    })
}

fn options(args: &Args, seed: u64) -> Result<Options> {
    let any = match &args.plant {
        Some(name) => Options::suited(planted(name, &cache::FAULTS)?, seed),
        None => Options {
            seed,
            ..Options::default()
        },
    };
    Ok(Options {
        duration: args.duration,
        copies: args.copies.map(usize::from).or(any.copies),
        is_batched: args.batched,
        ..any
    })
}

fn repeat(args: &Args, seed: u64) -> String {
    let copies = args
        .copies
        .map_or(String::new(), |copies| format!(" --copies {copies}"));
    let plant = args
        .plant
        .as_ref()
        .map_or(String::new(), |name| format!(" --plant {name}"));
    let batched = if args.batched { " --batched" } else { "" };
    format!(
        "cenote lab cache --seed {seed} --duration {}{copies}{batched}{plant}",
        Span::from(args.duration)
    )
}
