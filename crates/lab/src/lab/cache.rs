//! `cenote lab cache`: a cache whose machines come and go, by seed.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cenote_cli::failure::{DONE, FAILED};
use cenote_cli::span::{self, Span};
use cenote_sim::cache::{self, Options};

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
    let (mut requests, mut faults, mut moves) = (0, 0, 0);
    for seed in (args.seed..).take(usize::try_from(args.seeds)?) {
        let report = cache::run(&options(args, seed)?);
        requests += report.requests;
        faults += report.faults;
        moves += report.moves;
        if args.json {
            let mut out = std::io::stdout().lock();
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        }
        if let Some(violation) = &report.violation {
            eprintln!("Last events:");
            report.log.iter().for_each(|line| eprintln!("  {line}"));
            eprintln!("Seed {seed}: {violation}");
            eprintln!("Reproduce with: {}", repeat(args, seed));
            return Ok(FAILED);
        }
    }
    if !args.json {
        println!(
            "{} simulations from seed {}: {requests} requests, {faults} faults, {moves} regions \
             moved: all guarantees hold",
            args.seeds, args.seed
        );
    }
    Ok(DONE)
}

fn options(args: &Args, seed: u64) -> Result<Options> {
    let any = match &args.plant {
        Some(_) if cfg!(not(feature = "injected-faults")) => {
            bail!("this program was built without the feature injected")
        }
        Some(name) => {
            let injected = cache::injected(name).with_context(|| {
                let known: Vec<&str> = cache::fault_names().collect();
                format!(
                    "there is no injected bug {name:?}; there are {}",
                    known.join(", ")
                )
            })?;
            Options::suited(injected, seed)
        }
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
