//! `loss`.

use std::io::{Write, stdout};

use anyhow::Result;
use cenote_lab::hydra::simulated::{Effort, USUAL};
use cenote_lab::hydra::sweeps;
use serde::Serialize;

use super::case::CaseArgs;
use crate::failure::DONE;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    case: CaseArgs,
    /// Decides everything that chance decides
    #[arg(long, value_name = "N", default_value_t = USUAL.seed)]
    seed: u64,
    /// JSON on standard output in place of text
    #[arg(long)]
    json: bool,
}

/// The JSON line.
#[derive(Serialize)]
struct Line {
    ec_cache: f64,
    coding_sets: f64,
    ec_cache_simulated: f64,
    coding_sets_simulated: f64,
}

pub fn run(args: &Args) -> Result<u8> {
    let case = args.case.case();
    let effort = Effort {
        seed: args.seed,
        ..USUAL
    };
    let row = sweeps::row("l", case.l as f64, &case, effort)?;
    let (random, sets) = (row.ec_cache_simulated, row.coding_sets_simulated);
    let mut out = stdout().lock();
    if args.json {
        let line = Line {
            ec_cache: row.ec_cache,
            coding_sets: row.coding_sets,
            ec_cache_simulated: random.mean,
            coding_sets_simulated: sets.mean,
        };
        serde_json::to_writer(&mut out, &line)?;
        writeln!(out)?;
        return Ok(DONE);
    }
    writeln!(
        out,
        "Probability that data is lost when {} of {} hosts fail at once",
        case.failing(),
        case.hosts
    )?;
    writeln!(out, "{:<12}  {:<10}  simulated", "", "formula")?;
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
    Ok(DONE)
}
