//! `slo`.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_cache::tuner::trial::{Sample, Wishes};
use cenote_cache::tuner::{Key, Model, RISE_MIN, Spacing, Survey, Table, Transport};
use cenote_cache::{LatencyOf, Writes};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::progress;
use cenote_cli::size::Size;
use cenote_cli::span::Span;
use cenote_measurer::files::record_bytes;
use cenote_measurer::{self as measurer, Effort, files, go_on, passes, repeat};
use serde::Serialize;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of SLOs to draw
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Transport: sim; or shm, tcp or rdma to a host on this machine
    #[arg(long, value_name = "NAME", default_value = "sim")]
    transport: Transport,
    /// One-way network latency between client and server
    #[arg(long, value_name = "DURATION", default_value = "1.5us")]
    distance: Span,
    /// Share of requests that write
    #[arg(long, value_name = "PERCENT", default_value_t)]
    writes: Writes,
    /// Record sizes to measure without --model
    #[arg(long, value_name = "SIZE", default_values = ["16", "64", "256", "1K"])]
    record: Vec<Size>,
    /// Model file of cache model
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Runs of each configuration, of which the worst is kept [default: 1 on sim, 3 on others]
    #[arg(long, value_name = "N", conflicts_with = "model", value_parser = clap::value_parser!(u32).range(1..=100))]
    passes: Option<u32>,
    /// Latency to bound: mean, p50 or p99
    #[arg(long, value_name = "WHICH", default_value_t)]
    latency_of: LatencyOf,
    /// Also measure the full grid, and report how often it gives the same choice
    #[arg(long, conflicts_with = "model")]
    compare: bool,
    /// Print JSON: misses and comparison first, then a summary line
    #[arg(long)]
    json: bool,
}

/// The last JSON line.
#[derive(Debug, Serialize)]
struct Line {
    samples: u32,
    met_throughput: u32,
    met_latency: u32,
    worst_throughput_ratio: f64,
    worst_latency_ratio: f64,
}

/// The JSON line of an SLO that was not kept.
#[derive(Serialize)]
struct Miss {
    missed: String,
    throughput_ratio: f64,
    latency_ratio: f64,
}

/// The JSON line of the comparison with the full grid.
#[derive(Serialize)]
struct Comparison {
    measured: usize,
    grid: usize,
    same_choice: u32,
    samples: u32,
}

pub fn run(args: &Args) -> Result<u8> {
    let (transport, distance_ns) = (args.transport, args.distance.ns());
    let seed = args.seed ^ USE_SEED;
    let mut measurer = measurer::open(transport, distance_ns, args.writes, seed, Effort::Use)?;
    let (model, measured) = match &args.model {
        Some(path) => (files::model(path)?, 0),
        None => survey(args, Some(RISE_MIN))?,
    };
    let full = if args.compare {
        Some(survey(args, None)?)
    } else {
        None
    };
    let mix = model.of_writes(args.writes);
    let mut wishes = Wishes::new(mix, transport, distance_ns, args.latency_of, args.seed)?;
    let mut line = Line {
        samples: args.samples,
        met_throughput: 0,
        met_latency: 0,
        worst_throughput_ratio: f64::INFINITY,
        worst_latency_ratio: 0.0,
    };
    let mut out = stdout().lock();
    let (mut same, mut searching) = (0, Duration::ZERO);
    let bar = progress::steps(u64::from(args.samples), "SLOs");
    for _ in 0..args.samples {
        let nothing = || {
            Failure::new(
                "the model has no measurements at this distance",
                files::MODEL,
            )
        };
        let (slo, surface) = wishes.next().ok_or_else(nothing)?;
        let begun = Instant::now();
        let found = surface.search(&slo);
        searching += begun.elapsed();
        let found =
            found.map_err(|_| Failure::new("an SLO drawn from the model was refused", ""))?;
        if let Some((full, _)) = &full {
            let full = full.of_writes(args.writes);
            let surface = full.surface(transport, distance_ns, slo.record_bytes, slo.latency_of)?;
            let of_full = surface.search(&slo).map(|found| found.configuration);
            same += u32::from(of_full == Ok(found.configuration));
        }
        let sample = Sample::run(slo, found, &mut *measurer)?;
        let (throughput, latency) = (sample.throughput_ratio(), sample.latency_ratio());
        line.met_throughput += u32::from(throughput >= 1.0);
        line.met_latency += u32::from(latency <= 1.0);
        line.worst_throughput_ratio = line.worst_throughput_ratio.min(throughput);
        line.worst_latency_ratio = line.worst_latency_ratio.max(latency);
        if throughput < 1.0 || latency > 1.0 {
            print_miss(&mut out, args, &sample)?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let comparison = full.map(|(_, grid)| Comparison {
        measured,
        grid,
        same_choice: same,
        samples: args.samples,
    });
    print(&mut out, args, &line, comparison, searching)?;
    Ok(DONE)
}

/// Keeps the network of the runs apart from the one that was measured.
const USE_SEED: u64 = 0x7573_6520_6974;

/// A model of all sizes of records, and how many configurations were measured.
fn survey(args: &Args, rise_min: Option<f64>) -> Result<(Model, usize)> {
    let (transport, distance_ns) = (args.transport, args.distance.ns());
    let (seed, writes) = (args.seed, args.writes);
    let mut measurer = measurer::open(transport, distance_ns, writes, seed, Effort::Survey)?;
    let mut model = Model::new(measurer::space(transport), Spacing::Powers);
    let mut keys = Vec::new();
    for &record in &args.record {
        let record_bytes = record_bytes(record)?;
        let mut survey = Survey::new(Table::new(model.grid(record_bytes)), rise_min);
        let mut left = usize::MAX;
        go_on(
            &mut survey,
            &mut measurer,
            record_bytes,
            &mut left,
            &mut |_| Ok(()),
        )?;
        let key = Key {
            transport,
            distance_ns,
            record_bytes,
            writes,
        };
        model.insert(key, survey.into_table());
        keys.push(key);
    }
    for _ in 1..args.passes.unwrap_or_else(|| passes(transport)) {
        for &key in &keys {
            let mut table = model.table(key).expect("just put in").clone();
            repeat(&mut table, &mut measurer, key.record_bytes)?;
            model.insert(key, table);
        }
    }
    let measured = model.tables().map(|(_, table)| table.measured_count());
    let measured = measured.sum();
    Ok((model, measured))
}

fn print_miss(out: &mut impl Write, args: &Args, sample: &Sample) -> Result<()> {
    let missed = format!(
        "{}, {}-byte records, {:.0} requests per second within {:.2} us",
        sample.found.configuration,
        sample.slo.record_bytes,
        sample.slo.throughput_per_second,
        sample.slo.latency_us
    );
    let (throughput_ratio, latency_ratio) = (sample.throughput_ratio(), sample.latency_ratio());
    if args.json {
        let line = Miss {
            missed,
            throughput_ratio,
            latency_ratio,
        };
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)?;
    } else {
        writeln!(
            out,
            "missed: {missed}: throughput {throughput_ratio:.3}, latency {latency_ratio:.3}"
        )?;
    }
    Ok(())
}

fn print(
    out: &mut impl Write,
    args: &Args,
    line: &Line,
    comparison: Option<Comparison>,
    searching: Duration,
) -> Result<()> {
    if args.json {
        if let Some(comparison) = &comparison {
            serde_json::to_writer(&mut *out, comparison)?;
            writeln!(out)?;
        }
        serde_json::to_writer(&mut *out, line)?;
        writeln!(out)?;
        return Ok(());
    }
    if args.transport == Transport::Sim {
        writeln!(out, "Simulated, seed {}", args.seed)?;
    }
    let samples = args.samples;
    writeln!(
        out,
        "throughput kept: {} of {samples}, worst {:.3} of the SLO",
        line.met_throughput, line.worst_throughput_ratio
    )?;
    writeln!(
        out,
        "latency kept:    {} of {samples}, worst {:.3} of the SLO",
        line.met_latency, line.worst_latency_ratio
    )?;
    let mean = searching.as_secs_f64() * 1e6 / f64::from(samples);
    writeln!(out, "search:          {mean:.0} us on average")?;
    if let Some(comparison) = comparison {
        let Comparison {
            measured,
            grid,
            same_choice,
            ..
        } = comparison;
        writeln!(
            out,
            "early stop:      measured {measured} of {grid}; same choice as the full grid for \
             {same_choice} of {samples}"
        )?;
    }
    Ok(())
}
