//! `cenote lab store crash`: crashes of the object store at every boundary, by seed.

use anyhow::{Context, Result};
use cenote_lab::store;
use cenote_store::schemes::{all, by_name};

use crate::failure::{DONE, FAILED};
use crate::progress;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand, Debug)]
enum Experiment {
    /// Crash a store at every write-back and every fence of random workloads
    #[command(after_help = "Examples:
  cenote lab store crash --rounds 1000
  cenote lab store crash --scheme efactory --seed 7 --rounds 1 --json")]
    Crash(Crash),
}

#[derive(clap::Args, Debug)]
struct Crash {
    /// Workloads for each scheme; each crashes some hundred times
    #[arg(long, value_name = "N", default_value_t = 20)]
    rounds: u64,
    /// Seed of the first workload
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Schemes [default: all]
    #[arg(long, value_name = "NAME")]
    scheme: Vec<String>,
    /// One JSON list on standard output, an object for each scheme
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let Experiment::Crash(args) = &args.experiment;
    let schemes = match args.scheme.is_empty() {
        true => all(),
        false => {
            let find = |name: &String| {
                by_name(name).with_context(|| {
                    let known: Vec<&str> = all().iter().map(|scheme| scheme.name()).collect();
                    format!("--scheme {name}: one of {}", known.join(", "))
                })
            };
            args.scheme.iter().map(find).collect::<Result<_>>()?
        }
    };
    let mut found = Vec::new();
    for scheme in schemes {
        let bar = progress::steps(args.rounds, scheme.name());
        found.push(store::crashes(&*scheme, args.seed, args.rounds, |round| {
            bar.set_position(round);
        }));
        bar.finish_and_clear();
    }
    if args.json {
        println!("{}", serde_json::to_string(&found)?);
    } else {
        for crashes in &found {
            let (scheme, rounds, boundaries) =
                (&crashes.scheme, crashes.rounds, crashes.boundaries);
            println!("{scheme}: {boundaries} crashes in {rounds} workloads");
            for wrong in &crashes.violations {
                println!("  broken: {wrong}");
            }
        }
    }
    let is_sound = found.iter().all(|crashes| crashes.violations.is_empty());
    Ok(if is_sound { DONE } else { FAILED })
}
