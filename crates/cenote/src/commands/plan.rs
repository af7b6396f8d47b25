//! `cenote plan`: what code and groups a cluster should have, and what lending pays.

mod tco;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::number::{amount, share};
use cenote_cli::progress;
use cenote_cli::stdout;
use cenote_cli::table::Table;
use cenote_plan::choice::{CANDIDATES_MAX, Candidate, Plan, Wish, plan, plot};
use cenote_plan::loss::Case;
use cenote_plan::odds::Failing;
use clap::builder::RangedU64ValueParser;

/// `plan` and what follows it.
#[derive(clap::Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  cenote plan --hosts 1000 --loss 1e-6 --overhead 1.3
  cenote plan --hosts 1000 --racks 25 --failed-racks 2 --loss 1e-3 --overhead 2 --svg plan.svg
  cenote plan tco

Among the schemes that meet --loss and --overhead, the one with the fewest data splits is chosen, then
the one whose writes touch the fewest hosts. The table shows five, each with the reason for or against
it; --json has the whole Pareto front. LOSS is the probability that data is lost when that many hosts
or racks fail at once, by Hydra's formula for CodingSets; where fewer than 10 hosts fail on average, a
binomial model is used, in which hosts fail independently. The line below the table says which one was
used. Rack probabilities are exact, or upper bounds if many racks fail. LOAD is the load of the fullest
host relative to the mean, simulated. Exit code 1: no scheme fits."
)]
pub struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// Number of hosts in the cluster
    #[arg(long, value_name = "N", required = true,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    hosts: Option<usize>,
    /// Maximum probability of data loss when hosts fail at once
    #[arg(long, value_name = "SHARE", required = true, value_parser = share)]
    loss: Option<f64>,
    /// Maximum memory overhead: 1.25 bytes of memory for each byte of data
    #[arg(long, value_name = "RATIO", required = true, value_parser = overhead)]
    overhead: Option<f64>,
    /// Share of the hosts that fail at once
    #[arg(long, value_name = "SHARE", default_value_t = Case::PAPER.failed, value_parser = share)]
    failed: f64,
    /// Slabs in use on each host
    #[arg(long, value_name = "N", default_value_t = Case::PAPER.slabs_per_host, value_parser = clap::value_parser!(u32).range(1..=1000))]
    slabs_per_host: u32,
    /// Number of racks [default: each host fails on its own]
    #[arg(long, value_name = "N")]
    racks: Option<usize>,
    /// Racks that fail at once; the worse of this and --failed counts
    #[arg(long, value_name = "N", default_value_t = 1, requires = "racks")]
    failed_racks: usize,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a plot of loss probability over memory overhead
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(clap::Subcommand, Debug)]
enum Other {
    /// Estimate savings in machine cost from leasing idle memory
    #[command(after_help = "Examples:
  cenote plan tco
  cenote plan tco --k 4 --r 2 --share 0.2 --json
  cenote plan tco --machine-usd 900 --percent-usd 3

Default prices are those of three clouds in table 5 of Hydra's paper. Savings are in percent of the
machine's price over all months.")]
    Tco(tco::Args),
}

/// Memory for each byte of data.
fn overhead(text: &str) -> Result<f64, String> {
    match amount(text)? {
        ratio if ratio < 1.0 => Err("must be at least 1, which is no redundancy".to_owned()),
        ratio => Ok(ratio),
    }
}

pub fn run(args: &Args) -> Result<u8> {
    if let Some(Other::Tco(args)) = &args.other {
        return tco::run(args);
    }
    let given = args.hosts.zip(args.loss).zip(args.overhead);
    let ((hosts, loss), overhead) = given.expect("clap requires all three");
    let wish = Wish {
        hosts,
        racks: args.racks,
        failed_racks: args.failed_racks,
        failed: args.failed,
        slabs_per_host: args.slabs_per_host,
        loss,
        overhead,
    };
    let bar = progress::steps(CANDIDATES_MAX as u64, "schemes evaluated");
    let plan = plan(&wish, args.seed, || bar.inc(1))?;
    bar.finish_and_clear();
    if let Some(path) = &args.svg {
        let drawn = plot(&wish).svg()?;
        fs::write(path, drawn).with_context(|| path.display().to_string())?;
    }
    let mut out = stdout::lock();
    if args.json {
        serde_json::to_writer(&mut out, &plan)?;
        writeln!(out)?;
    } else {
        print(&mut out, &plan)?;
    }
    if plan.choice.is_some() {
        return Ok(DONE);
    }
    Err(nothing_fits(&plan).into())
}

fn nothing_fits(plan: &Plan) -> Failure {
    let wish = &plan.wish;
    let what = format!(
        "no scheme has a loss probability of at most {:e} and an overhead of at most {}",
        wish.loss, wish.overhead
    );
    let named =
        |one: &Candidate, flag: String| format!("{} with l = {} at {flag}", one.scheme, one.l);
    let memory = plan.with_more_memory.as_ref();
    let memory = memory.map(|one| named(one, format!("--overhead {:.4}", one.overhead)));
    let loss = plan.with_more_loss.as_ref();
    let loss = loss.map(|one| named(one, format!("--loss {:.1e}", one.loss)));
    let ways: Vec<String> = memory.into_iter().chain(loss).collect();
    match ways.is_empty() {
        true => Failure::new(what, "use more hosts, or fewer that fail at once"),
        false => Failure::new(what, format!("these would: {}", ways.join("; "))),
    }
}

/// Rows that are shown to people; JSON has all of the front.
const SHOWN: usize = 5;

fn print(out: &mut impl Write, plan: &Plan) -> Result<()> {
    let mut table = Table::new([
        "", "SCHEME", "L", "LOSS", "MEMORY", "LOAD", "READ", "WRITTEN", "GROUPS", "SPARE", "WHY",
    ]);
    for one in shown(plan) {
        let mark = match one.fits {
            _ if Some(one) == plan.choice.as_ref() => "*",
            true => "+",
            false => "-",
        };
        table.row(vec![
            mark.to_owned(),
            one.scheme.clone(),
            one.l.to_string(),
            format!("{:.1e}", one.loss),
            format!("{:.3}", one.overhead),
            format!("{:.2}", one.load),
            one.splits_read.to_string(),
            one.splits_written.to_string(),
            one.groups.to_string(),
            one.spare_hosts.to_string(),
            why(plan, one),
        ]);
    }
    table.write(out)?;
    writeln!(out, "* chosen, + fits, - does not fit")?;
    let wish = &plan.wish;
    match plan.failing {
        Failing::Share => writeln!(
            out,
            "LOSS: the paper's formula, {} of {} hosts fail at once",
            wish.failing_hosts(),
            wish.hosts
        )?,
        Failing::Each => writeln!(
            out,
            "LOSS: binomial, as each of {} hosts fails with probability {}",
            wish.hosts, wish.failed
        )?,
    }
    if let Some(choice) = &plan.choice {
        writeln!(
            out,
            "cenote volume create NAME --size SIZE --scheme {} --placement coding-sets:{}",
            choice.scheme, choice.l
        )?;
    }
    Ok(())
}

/// The choice, up to two codes of fewer splits that come nearest to the wish, then those that fit, then
/// the nearest of the rest.
fn shown(plan: &Plan) -> Vec<&Candidate> {
    let mut misses: Vec<&Candidate> = plan.front.iter().filter(|one| !one.fits).collect();
    misses.sort_by(|a, b| excess(plan, a).total_cmp(&excess(plan, b)));
    let is_other = |one: &&Candidate| one.fits && Some(*one) != plan.choice.as_ref();
    let mut fits: Vec<&Candidate> = plan.front.iter().filter(is_other).collect();
    fits.sort_by_key(|one| (one.k, one.splits_written));
    let most = plan.choice.as_ref().map_or(usize::MAX, |choice| choice.k);
    let (smaller, rest): (Vec<_>, Vec<_>) = misses.into_iter().partition(|one| one.k < most);
    let (near, far) = smaller.split_at(smaller.len().min(2));
    let all = plan.choice.iter().chain(near.iter().copied()).chain(fits);
    let all = all.chain(far.iter().copied()).chain(rest);
    all.take(SHOWN).collect()
}

/// How far a code is from the wish: powers of ten of the odds, and tenths of the memory.
fn excess(plan: &Plan, one: &Candidate) -> f64 {
    let odds = (one.loss / plan.wish.loss).log10().max(0.0);
    odds + 10.0 * (one.overhead / plan.wish.overhead - 1.0).max(0.0)
}

/// Why a code is chosen, or is not.
fn why(plan: &Plan, one: &Candidate) -> String {
    let wish = &plan.wish;
    let odds = (one.loss > wish.loss).then(|| match one.loss / wish.loss {
        // With a loss of 0 as the wish it is infinite.
        times if times < 2.0 || times.is_infinite() => format!("loss above {:e}", wish.loss),
        times => format!("loss {times:.0} times too high"),
    });
    let memory = (one.overhead > wish.overhead).then(|| format!("memory above {}", wish.overhead));
    let misses: Vec<String> = odds.into_iter().chain(memory).collect();
    if !misses.is_empty() {
        return misses.join(", ");
    }
    match &plan.choice {
        Some(choice) if choice == one => "fewest splits per read of all that fit".to_owned(),
        Some(choice) if one.k > choice.k => {
            format!("a read needs {} splits, not {}", one.k, choice.k)
        }
        Some(choice) if one.splits_written > choice.splits_written => {
            format!(
                "a write needs {} splits, not {}",
                one.splits_written, choice.splits_written
            )
        }
        _ => "fits as well".to_owned(),
    }
}
