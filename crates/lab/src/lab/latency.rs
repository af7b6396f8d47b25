//! `cenote lab latency`: latencies of a page in virtual time.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_cli::span::Span;
use cenote_papers::latency::{self, ENCODE_NS, Operation, Options, Row, trouble};
use cenote_volume::Scheme;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Pages to read, and pages to write, in each network
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,
    /// Redundancy scheme; may be repeated [default: plain, mirror:2, rs:8+2]
    #[arg(long)]
    scheme: Vec<Scheme>,
    /// Cost of encoding a page
    #[arg(long, value_name = "DURATION", default_value_t = Span::from(Duration::from_nanos(ENCODE_NS)))]
    encode_time: Span,
    /// Compare ours, two copies and a disk under one trouble at a time: background flows, a slow
    /// host, dead hosts, wrong splits, bursts; processor work has the paper's costs
    #[arg(long, conflicts_with_all = ["scheme", "encode_time"])]
    trouble: bool,
    /// Print one JSON line per row
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    if args.trouble {
        return run_trouble(args);
    }
    let mut options = Options {
        seed: args.seed,
        operations: usize::try_from(args.operations)?,
        encode_ns: args.encode_time.ns(),
        ..Options::default()
    };
    if !args.scheme.is_empty() {
        options.schemes.clone_from(&args.scheme);
    }
    let rows = latency::run(&options)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        for row in &rows {
            serde_json::to_writer(&mut out, row)?;
            writeln!(out)?;
        }
    } else {
        print(&mut out, &options, &rows)?;
    }
    Ok(DONE)
}

fn run_trouble(args: &Args) -> Result<u8> {
    let options = trouble::Options {
        seed: args.seed,
        operations: usize::try_from(args.operations)?,
    };
    let rows = trouble::run(&options)?;
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(
            out,
            "Simulated, seed {}: microseconds of virtual time per page, {} pages a row\n\
             {:<10} {:<18} {:<6} {:>9} {:>9} {:>9}",
            options.seed, options.operations, "trouble", "system", "", "p50", "p99", "p99.9"
        )?;
    }
    let micros = |ns: u64| ns as f64 / 1000.0;
    for row in &rows {
        if args.json {
            serde_json::to_writer(&mut out, row)?;
            writeln!(out)?;
            continue;
        }
        writeln!(
            out,
            "{:<10} {:<18} {:<6} {:>9.2} {:>9.2} {:>9.2}",
            row.trouble.name(),
            row.system,
            verb(row.operation),
            micros(row.p50_ns),
            micros(row.p99_ns),
            micros(row.p999_ns)
        )?;
    }
    Ok(DONE)
}

fn verb(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    }
}

fn print(out: &mut impl Write, options: &Options, rows: &[Row]) -> Result<()> {
    writeln!(
        out,
        "Simulated, seed {}: microseconds of virtual time per page, {} pages a row",
        options.seed, options.operations
    )?;
    writeln!(
        out,
        "{:<10} {:<6} {:<21} {:>9} {:>9} {:>9}",
        "scheme", "", "network", "p50", "p99", "p99.9"
    )?;
    let micros = |ns: u64| ns as f64 / 1000.0;
    for row in rows {
        let operation = verb(row.operation);
        writeln!(
            out,
            "{:<10} {:<6} {:<21} {:>9.2} {:>9.2} {:>9.2}",
            row.scheme,
            operation,
            row.network.name(),
            micros(row.p50_ns),
            micros(row.p99_ns),
            micros(row.p999_ns)
        )?;
    }
    Ok(())
}
