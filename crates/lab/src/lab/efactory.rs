//! `cenote lab efactory`: what eFactory's paper claims, computed again in virtual time.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cenote_cli::failure::DONE;
use cenote_cli::progress;
use cenote_papers::efactory::Parameters;
use cenote_papers::efactory::experiments::{self, Options};
use cenote_papers::efactory::parameters::{CRC_BY_MULTIPLICATION_NS, CRC_BY_TABLE_NS};
use cenote_papers::efactory::report::{Report, parameters_csv};
use serde::Serialize;

/// `lab efactory` and what follows it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand, Debug)]
enum Experiment {
    /// PUT and GET latency of one client, by value size
    #[command(after_help = "Example:
  cenote lab efactory latency --out figures

Prints medians, by how much PUTs are below those of RPC, and the share of checksums and
persistence in a GET.")]
    Latency(Common),
    /// Throughput of 100 % and 95 % GET, by value size
    #[command(after_help = "Examples:
  cenote lab efactory read
  cenote lab efactory read --crc multiplication --clients 8")]
    Read(Common),
    /// Throughput of 100 % PUT and 50 % GET, by value size
    #[command(after_help = "Examples:
  cenote lab efactory write
  cenote lab efactory write --cores 1 --lines 4
  cenote lab efactory write --json

efactory does not bound the versions that wait to become durable, as in the slides, and is measured
while they pile up; efactory-bounded bounds them, and shows the sustained rate.")]
    Write(Common),
    /// Throughput of four mixes, by the number of clients
    #[command(after_help = "Example:
  cenote lab efactory scale --value-bytes 4096 --out figures")]
    Scale(Common),
    /// Cost of log cleaning, by mix and value size
    #[command(after_help = "Example:
  cenote lab efactory cleaning

Measured twice: all GETs call the server during cleaning, as in the paper; or only those that read an
entry that has not been moved yet.")]
    Cleaning(Common),
    /// Durability lag at 100 % PUT over time, with and without a bound
    #[command(after_help = "Examples:
  cenote lab efactory lag
  cenote lab efactory lag --json

--json prints a line for each millisecond of efactory and efactory-bounded.")]
    Lag(Common),
}

#[derive(clap::Args, Debug)]
struct Common {
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of clients, each with one operation at a time; latency uses 1, scale 1 to 32
    #[arg(long, value_name = "N", default_value_t = Options::default().clients,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// Value size, for scale
    #[arg(long, value_name = "BYTES", default_value_t = Options::default().value_bytes,
        value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    value_bytes: u64,
    /// Server cores that handle requests; one more runs in the background
    #[arg(long, value_name = "N", default_value_t = Parameters::default().server_cores as u64,
        value_parser = clap::value_parser!(u64).range(1..=256))]
    cores: u64,
    /// Cache lines that a core can have in flight in a flush
    #[arg(long, value_name = "N", default_value_t = Parameters::default().lines_in_flight as u32,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    lines: u32,
    /// Number of keys, except for cleaning
    #[arg(long, value_name = "N", default_value_t = Parameters::default().keys,
        value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    keys: u32,
    /// Checksum implementation
    #[arg(long, value_enum, default_value_t = Crc::Table)]
    crc: Crc,
    /// Print one JSON line per point
    #[arg(long)]
    json: bool,
    /// Write figures as SVG, and tables and parameters as CSV, to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Crc {
    /// Table-driven, 1 GB/s
    Table,
    /// Carry-less multiplication, 20 GB/s, as in this project
    Multiplication,
}

impl Common {
    fn options(&self) -> Result<Options> {
        Ok(Options {
            seed: self.seed,
            parameters: Parameters {
                server_cores: usize::try_from(self.cores)?,
                lines_in_flight: f64::from(self.lines),
                keys: self.keys,
                crc_byte_ns: match self.crc {
                    Crc::Table => CRC_BY_TABLE_NS,
                    Crc::Multiplication => CRC_BY_MULTIPLICATION_NS,
                },
                ..Parameters::default()
            },
            clients: self.clients,
            value_bytes: self.value_bytes,
        })
    }
}

pub fn run(args: &Args) -> Result<u8> {
    let (name, common) = match &args.experiment {
        Experiment::Latency(common) => ("latency", common),
        Experiment::Read(common) => ("read", common),
        Experiment::Write(common) => ("write", common),
        Experiment::Scale(common) => ("scale", common),
        Experiment::Cleaning(common) => ("cleaning", common),
        Experiment::Lag(common) => ("lag", common),
    };
    let options = common.options()?;
    let bar = progress::steps(experiments::runs(name) as u64, "runs");
    let done = || bar.inc(1);
    let report = match &args.experiment {
        Experiment::Latency(_) => experiments::latency(&options, done),
        Experiment::Read(_) => experiments::read(&options, done),
        Experiment::Write(_) => experiments::write(&options, done),
        Experiment::Scale(_) => experiments::scale(&options, done),
        Experiment::Cleaning(_) => experiments::cleaning(&options, done),
        Experiment::Lag(_) => {
            let (report, lags) = experiments::lag(&options, done);
            bar.finish_and_clear();
            return print(common, &options, &report, &lags);
        }
    };
    bar.finish_and_clear();
    print(common, &options, &report, &report.points)
}

/// Writes the files that were asked for, and prints text or `lines`.
fn print<T: Serialize>(
    common: &Common,
    options: &Options,
    report: &Report,
    lines: &[T],
) -> Result<u8> {
    if let Some(folder) = &common.out {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let table = folder.join(format!("{}.csv", report.name));
        write(&table, report.csv().text())?;
        let parameters = parameters_csv(&options.parameters);
        write(&folder.join("parameters.csv"), parameters.text())?;
        for (name, csv) in &report.series {
            write(&folder.join(format!("{name}.csv")), csv.text())?;
        }
        for (name, plot) in &report.pictures {
            write(&folder.join(format!("{name}.svg")), &plot.svg()?)?;
        }
    }
    let mut out = stdout().lock();
    if common.json {
        for line in lines {
            serde_json::to_writer(&mut out, line)?;
            writeln!(out)?;
        }
    } else {
        let text = report.text(&options.parameters, options.seed)?;
        out.write_all(text.as_bytes())?;
    }
    Ok(DONE)
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| path.display().to_string())
}
