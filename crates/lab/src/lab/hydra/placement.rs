//! `placement`.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cenote_cli::failure::DONE;
use cenote_cli::progress;
use cenote_measure::figure::{Csv, Plot};
use cenote_papers::hydra::simulation::{Effort, USUAL};
use cenote_papers::hydra::{racks, sweeps};
use cenote_plan::balance;
use cenote_plan::loss::Case;
use indicatif::ProgressBar;
use serde::Serialize;

use super::case::CaseArgs;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    case: CaseArgs,
    /// Figure to compute [default: all]
    #[arg(long, value_name = "FIGURE")]
    figure: Option<Figure>,
    /// Number of racks, for racks
    #[arg(long, value_name = "N", default_value_t = 25)]
    racks: usize,
    /// Largest cluster, for balance; up to a million hosts
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    hosts_max: usize,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = USUAL.seed)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write each figure to this folder as CSV and SVG
    #[arg(long, value_name = "FOLDER")]
    files: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Figure {
    /// Figure 15: probability of loss by r, l, S, f and k
    Loss,
    /// Probability of loss when whole racks fail
    Racks,
    /// Figure 16: load balance by the number of hosts
    Balance,
}

/// Sizes of the clusters of figure 16.
const SIZES: [usize; 9] = [
    100, 316, 1000, 3162, 10_000, 31_623, 100_000, 316_228, 1_000_000,
];

/// Where results go.
struct Sink<'a> {
    args: &'a Args,
    bar: ProgressBar,
}

impl Sink<'_> {
    fn write(&self, name: &str, csv: &Csv, plot: &Plot) -> Result<()> {
        let Some(folder) = &self.args.files else {
            return Ok(());
        };
        write(&folder.join(format!("{name}.csv")), csv.text())?;
        write(&folder.join(format!("{name}.svg")), &plot.svg()?)
    }

    /// JSON lines, or the header and a line of text for each row.
    fn print<T: Serialize>(
        &self,
        rows: &[T],
        header: &str,
        line: impl Fn(&T) -> String,
    ) -> Result<()> {
        self.bar.suspend(|| {
            let mut out = stdout().lock();
            if self.args.json {
                for row in rows {
                    serde_json::to_writer(&mut out, row)?;
                    writeln!(out)?;
                }
                return Ok(());
            }
            writeln!(out, "{header}")?;
            for row in rows {
                writeln!(out, "{}", line(row))?;
            }
            writeln!(out)?;
            Ok(())
        })
    }
}

pub fn run(args: &Args) -> Result<u8> {
    let case = args.case.case();
    case.check()?;
    if let Some(folder) = &args.files {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let wanted = |figure: Figure| args.figure.is_none_or(|only| only == figure);
    let sizes: Vec<usize> = (SIZES.into_iter())
        .filter(|&size| size <= args.hosts_max && size >= case.width())
        .collect();
    let (losses, balances) = (wanted(Figure::Loss), wanted(Figure::Balance));
    let values: usize = sweeps::SWEEPS.iter().map(|sweep| sweep.values.len()).sum();
    let steps = usize::from(losses) * values
        + usize::from(wanted(Figure::Racks))
        + usize::from(balances) * sizes.len() * balance::PLACERS.len();
    let sink = Sink {
        args,
        bar: progress::steps(steps as u64, "figures' points"),
    };
    if losses {
        loss(&sink, &case)?;
    }
    if wanted(Figure::Racks) {
        fail_racks(&sink, &case)?;
    }
    if balances {
        even(&sink, &case, &sizes)?;
    }
    sink.bar.finish_and_clear();
    Ok(DONE)
}

fn effort(args: &Args) -> Effort {
    Effort {
        seed: args.seed,
        ..USUAL
    }
}

fn loss(sink: &Sink<'_>, case: &Case) -> Result<()> {
    for sweep in sweeps::SWEEPS {
        let rows = sweep.run(case, effort(sink.args), || sink.bar.inc(1))?;
        let name = format!("loss-{}", sweep.parameter.to_lowercase());
        sink.write(&name, &sweeps::csv(&rows), &sweep.plot(&rows))?;
        let header = format!(
            "{:<8}  {:<10}  {:<20}  {:<10}  CodingSets simulated",
            sweep.parameter, "EC-Cache", "simulated", "CodingSets"
        );
        sink.print(&rows, &header, |row| {
            let (random, sets) = (row.ec_cache_simulated, row.coding_sets_simulated);
            format!(
                "{:<8}  {:<10.3e}  {:.3e} +- {:.0e}   {:<10.3e}  {:.3e} +- {:.0e}",
                row.value,
                row.ec_cache,
                random.mean,
                random.error,
                row.coding_sets,
                sets.mean,
                sets.error
            )
        })?;
    }
    Ok(())
}

fn fail_racks(sink: &Sink<'_>, case: &Case) -> Result<()> {
    let rows = racks::run(case, sink.args.racks, effort(sink.args))?;
    sink.bar.inc(1);
    sink.write("racks", &racks::csv(&rows), &racks::plot(&rows))?;
    let header = format!(
        "{} racks, those that fail at once\n{:<6}  {:<12}  {:<11}  loss, simulated",
        sink.args.racks, "failed", "placer", "knows racks"
    );
    sink.print(&rows, &header, |row| {
        let knows = if row.knows_racks { "yes" } else { "no" };
        format!(
            "{:<6}  {:<12}  {knows:<11}  {:.4} +- {:.4}",
            row.failed, row.placer, row.loss.mean, row.loss.error
        )
    })
}

fn even(sink: &Sink<'_>, case: &Case, sizes: &[usize]) -> Result<()> {
    let rows = balance::run(case, sizes, sink.args.seed, || sink.bar.inc(1))?;
    sink.write("balance", &balance::csv(&rows), &balance::plot(&rows))?;
    let header = format!(
        "{:>8}  {:<20}  max / mean, simulated   left over",
        "hosts", "placer"
    );
    sink.print(&rows, &header, |row| {
        format!(
            "{:>8}  {:<20}  {:.3} ({:.3}-{:.3})     {}",
            row.hosts, row.placer, row.max_to_mean, row.low, row.high, row.left_over
        )
    })
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| path.display().to_string())
}
