//! `ablation`.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cenote_cli::failure::DONE;
use cenote_papers::hydra::ablation::{
    self, COMPARISONS, OUR_COSTS, Options, PAPER_COSTS, Row, Value,
};
use cenote_papers::hydra::ablation::{measurement, pictures};
use cenote_papers::latency::Operation;
use serde::Serialize;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Transport: sim, in virtual time, compared with the paper; or tcp or shm, on this machine
    #[arg(long, value_name = "FABRIC", default_value = "sim", value_parser = ["sim", "tcp", "shm"])]
    transport: String,
    /// Random seed, on sim
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Pages to read, and pages to write, for each row (on tcp and shm: in each round)
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,
    /// Number of rounds on tcp and shm, of which the median is taken
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Splits to read beyond K on tcp and shm
    #[arg(long, value_name = "N", default_value_t = 1)]
    delta: usize,
    /// Costs of encoding and decoding on sim: the paper's, or those measured here
    #[arg(long, value_name = "WHOSE", default_value = "paper", value_parser = ["paper", "ours"])]
    costs: String,
    /// Print one JSON line per row
    #[arg(long)]
    json: bool,
    /// Also write figures 9 to 12 and 19 to this folder as CSV and SVG; sim only
    #[arg(long, value_name = "FOLDER")]
    files: Option<PathBuf>,
}

/// A ratio of the paper's beside ours.
#[derive(Serialize)]
struct Beside {
    simulated: bool,
    figure: &'static str,
    what: &'static str,
    operation: Operation,
    condition: ablation::Condition,
    value: Value,
    over: &'static str,
    under: &'static str,
    paper: f64,
    ours: Option<f64>,
}

pub fn run(args: &Args) -> Result<u8> {
    let operations = usize::try_from(args.operations)?;
    let mut out = stdout().lock();
    if args.transport != "sim" {
        ensure!(
            args.files.is_none(),
            "--files: the paper's figures are drawn on sim"
        );
        let options = measurement::Options {
            transport: args.transport.clone(),
            rounds: usize::try_from(args.rounds)?,
            operations,
            delta: args.delta,
        };
        let rows = measurement::run(&options)?;
        print_measured(&mut out, args.json, &rows)?;
        return Ok(DONE);
    }
    let options = Options {
        seed: args.seed,
        operations,
        costs: if args.costs == "ours" {
            OUR_COSTS
        } else {
            PAPER_COSTS
        },
    };
    let rows = ablation::run(&options)?;
    if let Some(folder) = &args.files {
        write_figures(folder, &rows)?;
    }
    if args.json {
        for row in &rows {
            serde_json::to_writer(&mut out, row)?;
            writeln!(out)?;
        }
        for beside in besides(&rows) {
            serde_json::to_writer(&mut out, &beside)?;
            writeln!(out)?;
        }
    } else {
        print(&mut out, &options, &rows)?;
    }
    Ok(DONE)
}

fn write_figures(folder: &Path, rows: &[Row]) -> Result<()> {
    let write = |name: String, content: &str| {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| path.display().to_string())
    };
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for figure in pictures::draw(rows)? {
        write(format!("{}.csv", figure.name), figure.csv.text())?;
        write(format!("{}.svg", figure.name), &figure.svg)?;
    }
    Ok(())
}

fn besides(rows: &[Row]) -> Vec<Beside> {
    let beside = |it: &ablation::Comparison| Beside {
        simulated: true,
        figure: it.figure,
        what: it.what,
        operation: it.operation,
        condition: it.condition,
        value: it.value,
        over: it.over,
        under: it.under,
        paper: it.paper,
        ours: it.ours(rows),
    };
    COMPARISONS.iter().map(beside).collect()
}

fn print(out: &mut impl Write, options: &Options, rows: &[Row]) -> Result<()> {
    let costs = options.costs;
    writeln!(
        out,
        "Simulated, seed {}: microseconds of virtual time per page, {} pages a row.\n\
         The processor's work: encode {} ns, decode {} ns, copy {} ns, wake {} ns.\n",
        options.seed,
        options.operations,
        costs.encode_ns,
        costs.decode_ns,
        costs.copy_ns,
        costs.wake_ns
    )?;
    writeln!(
        out,
        "{:<27} {:<6} {:<11} {:>9} {:>9}",
        "system", "", "condition", "p50", "p99"
    )?;
    for row in rows {
        writeln!(
            out,
            "{:<27} {:<6} {:<11} {:>9.2} {:>9.2}",
            row.system,
            name(row.operation),
            format!("{:?}", row.condition).to_lowercase(),
            row.p50_ns as f64 / 1000.0,
            row.p99_ns as f64 / 1000.0
        )?;
    }
    writeln!(
        out,
        "\nRatios, simulated, beside the paper's\n{:<6} {:<36} {:<6} {:<11} {:<4} {:>7} {:>7}",
        "figure", "", "", "condition", "", "paper", "ours"
    )?;
    for it in besides(rows) {
        writeln!(
            out,
            "{:<6} {:<36} {:<6} {:<11} {:<4} {:>7.2} {:>7.2}",
            it.figure,
            it.what,
            name(it.operation),
            format!("{:?}", it.condition).to_lowercase(),
            format!("{:?}", it.value).to_lowercase(),
            it.paper,
            it.ours.unwrap_or(f64::NAN)
        )?;
    }
    Ok(())
}

fn print_measured(out: &mut impl Write, json: bool, rows: &[measurement::Row]) -> Result<()> {
    if !json {
        writeln!(
            out,
            "Measured on this machine: microseconds per page, median round (fastest to slowest)\n\
             {:<22} {:<6} {:>28} {:>28}",
            "system", "", "p50", "p99"
        )?;
    }
    let micros = |ns: u64| ns as f64 / 1000.0;
    let cell = |ns, (low, high)| {
        format!(
            "{:.2} ({:.2} to {:.2})",
            micros(ns),
            micros(low),
            micros(high)
        )
    };
    for row in rows {
        if json {
            serde_json::to_writer(&mut *out, row)?;
            writeln!(out)?;
            continue;
        }
        writeln!(
            out,
            "{:<22} {:<6} {:>28} {:>28}",
            row.system,
            name(row.operation),
            cell(row.p50_ns, row.p50_spread_ns),
            cell(row.p99_ns, row.p99_spread_ns)
        )?;
    }
    Ok(())
}

fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    }
}
