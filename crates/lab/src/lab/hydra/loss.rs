//! `loss`.

use std::io::{Write, stdout};

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_cli::progress;
use cenote_papers::hydra::simulation::{Effort, USUAL};
use cenote_papers::hydra::sweeps;
use cenote_plan::odds::{COVERED_ENOUGH, Failing, covered};
use serde::Serialize;

use super::case::CaseArgs;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    case: CaseArgs,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = USUAL.seed)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON line.
#[derive(Serialize)]
struct Line {
    failing: Failing,
    covered: f64,
    ec_cache: f64,
    coding_sets: f64,
    ec_cache_simulated: f64,
    coding_sets_simulated: f64,
}

pub fn run(args: &Args) -> Result<u8> {
    let case = args.case.case();
    case.check()?;
    let failing = Failing::of(&case);
    let effort = Effort {
        seed: args.seed,
        ..USUAL
    };
    let effort = effort.within_seconds(&case);
    let bar = progress::steps(2 * u64::from(effort.clusters), "clusters simulated");
    let row = sweeps::row(("l", case.l as f64), &case, failing, effort, || bar.inc(1))?;
    bar.finish_and_clear();
    let covered = covered(&case);
    let (random, sets) = (row.ec_cache_simulated, row.coding_sets_simulated);
    let mut out = stdout().lock();
    if args.json {
        let line = Line {
            failing,
            covered,
            ec_cache: row.ec_cache,
            coding_sets: row.coding_sets,
            ec_cache_simulated: random.mean,
            coding_sets_simulated: sets.mean,
        };
        serde_json::to_writer(&mut out, &line)?;
        writeln!(out)?;
        return Ok(DONE);
    }
    let (which, formula) = match failing {
        Failing::Share => (
            format!("{} of {} hosts fail at once", case.failing(), case.hosts),
            "formula",
        ),
        Failing::Each => (
            format!(
                "each of {} hosts fails with probability {}",
                case.hosts, case.failed
            ),
            "binomial",
        ),
    };
    writeln!(out, "Probability of data loss when {which}")?;
    writeln!(out, "{:<12}  {formula:<10}  simulated", "")?;
    for (name, formula, found) in [
        ("EC-Cache", row.ec_cache, random),
        ("CodingSets", row.coding_sets, sets),
    ] {
        writeln!(
            out,
            "{name:<12}  {formula:<10.3e}  {:.3e} +- {:.0e}",
            found.mean, found.error
        )?;
    }
    if covered < COVERED_ENOUGH {
        writeln!(
            out,
            "The {formula} probability for CodingSets is too high here: it counts every {} hosts \
             of a group of {},\nand {:.0} % of those have a stripe together. Trust the simulation.",
            case.r + 1,
            case.width(),
            covered * 100.0
        )?;
    }
    Ok(DONE)
}
