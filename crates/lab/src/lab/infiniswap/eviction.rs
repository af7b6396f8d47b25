//! `eviction`.

use std::io::{self, Write};

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_cli::number::share;
use cenote_papers::infiniswap::eviction::{self, EVICT_MAX, Options, Row};
use cenote_pool::eviction::EXTRA;

use super::super::output::Output;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Slabs to evict (E)
    #[arg(long, value_name = "E", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=i64::from(EVICT_MAX)))]
    evict: u32,
    /// Additional slabs to consider (E') [default: as hosts do; in a sweep, E]
    #[arg(long, value_name = "E'", value_parser = clap::value_parser!(u32).range(..=i64::from(EVICT_MAX)))]
    extra: Option<u32>,
    /// Share of slabs that are busy [default: a sweep]
    #[arg(long, value_name = "P", value_parser = share)]
    busy: Option<f64>,
    /// Batches to simulate for each point
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

pub fn run(args: &Args) -> Result<u8> {
    match args.busy {
        Some(busy) => one(args, busy)?,
        None => sweep(args)?,
    }
    Ok(DONE)
}

fn one(args: &Args, busy: f64) -> Result<()> {
    let as_hosts = u32::try_from(EXTRA)?.min(args.evict);
    let options = Options {
        evict: args.evict,
        extra: args.extra.unwrap_or(as_hosts),
        busy,
        runs: args.runs,
        seed: args.seed,
    };
    let figure = eviction::run(&options)?;
    if args.output.wants_files() {
        let Options {
            evict, extra, seed, ..
        } = options;
        let rows = eviction::sweep(evict, extra, &[busy], args.runs, seed)?;
        args.output
            .write_files(&eviction::csv(&rows), &eviction::plot(&rows))?;
    }
    args.output.print(&[figure], |out| {
        writeln!(
            out,
            "No busy slab among {} evicted of {} asked for, where {busy} of all are busy",
            options.evict,
            options.evict + options.extra
        )?;
        writeln!(out, "analytic   {:.4}", figure.analytic)?;
        writeln!(
            out,
            "simulated  {:.4}   {} batches from seed {}",
            figure.simulated, options.runs, options.seed
        )
    })
}

fn sweep(args: &Args) -> Result<()> {
    let extra_max = args.extra.unwrap_or(args.evict);
    let shares = eviction::figure_8_shares();
    let rows = eviction::sweep(args.evict, extra_max, &shares, args.runs, args.seed)?;
    args.output
        .write_files(&eviction::csv(&rows), &eviction::plot(&rows))?;
    args.output.print(&rows, |out| {
        writeln!(
            out,
            "No busy slab among {} evicted, by the share p that is busy and by E'",
            args.evict
        )?;
        table(out, "analytic", &rows, |row| row.analytic)?;
        let title = format!(
            "simulated, {} batches each from seed {}",
            args.runs, args.seed
        );
        table(out, &title, &rows, |row| row.simulated)
    })
}

fn table(
    out: &mut dyn Write,
    title: &str,
    rows: &[Row],
    figure: fn(&Row) -> f64,
) -> io::Result<()> {
    writeln!(out, "\n{title}")?;
    let lines: Vec<&[Row]> = rows.chunk_by(|a, b| a.busy == b.busy).collect();
    write!(out, "   p  E'")?;
    for row in lines.first().copied().unwrap_or_default() {
        write!(out, "{:>7}", row.extra)?;
    }
    writeln!(out)?;
    for line in lines {
        write!(out, "{:.2}    ", line.first().map_or(0.0, |row| row.busy))?;
        for row in line {
            write!(out, "{:>7.4}", figure(row))?;
        }
        writeln!(out)?;
    }
    Ok(())
}
