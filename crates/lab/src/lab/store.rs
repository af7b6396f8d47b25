//! `cenote lab store`: crashes of the object store at every boundary, and its clients on a network of faults.

use anyhow::{Context, Result, bail};
use cenote_cli::failure::{DONE, FAILED};
use cenote_cli::progress;
use cenote_sim::store;
use cenote_sim::store::network::{self, Ran};
use cenote_store::schemes::{Scheme, all, by_name};
use serde::Serialize;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand, Debug)]
enum Experiment {
    /// Crash a store at every write-back and fence of random workloads
    #[command(after_help = "Examples:
  cenote lab store crash --rounds 1000
  cenote lab store crash --scheme efactory --seed 7 --rounds 1 --json")]
    Crash(Rounds),
    /// Serve clients over a simulated network with torn reads, broken links, crashes and power
    /// failures
    #[command(after_help = "Examples:
  cenote lab store network --rounds 100
  cenote lab store network --scheme efactory --seed 7 --rounds 1 --json")]
    Network(Rounds),
}

#[derive(clap::Args, Debug)]
struct Rounds {
    /// Workloads for each scheme; in crash, each has some hundred crashes
    #[arg(long, value_name = "N", default_value_t = 20)]
    rounds: u64,
    /// Seed of the first workload
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Scheme; may be repeated [default: all with a guarantee]
    #[arg(long, value_name = "NAME")]
    scheme: Vec<String>,
    /// Print a JSON list with an object for each scheme
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.experiment {
        Experiment::Crash(args) => {
            let found = each(args, |_| true, store::crashes)?;
            tell(args, &found, |one| {
                let counts = format!("{} crashes in {} workloads", one.boundaries, one.rounds);
                (&one.scheme, counts, &one.violations)
            })
        }
        Experiment::Network(args) => {
            let known = |scheme: &dyn Scheme| network::promises_anything(scheme);
            let found = each(args, known, network::storms)?;
            tell(args, &found, |one| {
                let Ran {
                    done,
                    lost,
                    crashes,
                    ..
                } = one.ran;
                let counts = format!(
                    "{done} commands done, {lost} interrupted, {crashes} power failures in {} \
                     workloads",
                    one.rounds
                );
                (&one.scheme, counts, &one.violations)
            })
        }
    }
}

/// What came of each scheme, and a bar meanwhile.
fn each<T>(
    args: &Rounds,
    promises: impl Fn(&dyn Scheme) -> bool,
    run: impl Fn(&dyn Scheme, u64, u64, &mut dyn FnMut(u64)) -> T,
) -> Result<Vec<T>> {
    let schemes: Vec<Box<dyn Scheme>> = match args.scheme.is_empty() {
        true => all().into_iter().filter(|one| promises(&**one)).collect(),
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
    if let Some(scheme) = schemes.iter().find(|one| !promises(&***one)) {
        bail!(
            "--scheme {}: its reads have no guarantee to check",
            scheme.name()
        );
    }
    let mut found = Vec::new();
    for scheme in schemes {
        let bar = progress::steps(args.rounds, scheme.name());
        found.push(run(&*scheme, args.seed, args.rounds, &mut |round| {
            bar.set_position(round);
        }));
        bar.finish_and_clear();
    }
    Ok(found)
}

/// Prints what was found; how the command ends.
fn tell<T: Serialize>(
    args: &Rounds,
    found: &[T],
    of: impl Fn(&T) -> (&String, String, &Vec<String>),
) -> Result<u8> {
    if args.json {
        println!("{}", serde_json::to_string(found)?);
    }
    let mut is_sound = true;
    for one in found {
        let (scheme, counts, violations) = of(one);
        is_sound &= violations.is_empty();
        if !args.json {
            println!("{scheme}: {counts}");
            violations
                .iter()
                .for_each(|wrong| println!("  broken: {wrong}"));
        }
    }
    Ok(if is_sound { DONE } else { FAILED })
}
