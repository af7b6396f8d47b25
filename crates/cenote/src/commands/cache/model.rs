//! `cache model`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_cache::Writes;
use cenote_cache::tuner::{Key, Model, RISE_MIN, Spacing, Survey, Table, Transport};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::size::Size;
use cenote_cli::span::Span;
use cenote_cli::stdout;
use cenote_measurer::files::record_bytes;
use cenote_measurer::{self as measurer, Effort, files, go_on, passes, repeat};
use serde::Serialize;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Transport: sim; or shm, tcp or rdma to a host on this machine
    #[arg(long, value_name = "NAME")]
    transport: Transport,
    /// Record size; repeat for several, between which the model interpolates
    #[arg(long, value_name = "SIZE", required = true)]
    record: Vec<Size>,
    /// Share of requests that write
    #[arg(long, value_name = "PERCENT", default_value_t)]
    writes: Writes,
    /// One-way network latency between client and server
    #[arg(long, value_name = "DURATION", default_value = "1.5us")]
    distance: Span,
    /// Model file; an existing one is resumed
    #[arg(
        long,
        visible_alias = "model",
        value_name = "FILE",
        default_value = "cache.model"
    )]
    out: PathBuf,
    /// Measure every power of two, without stopping where throughput no longer rises
    #[arg(long)]
    full_grid: bool,
    /// Also measure the end of each range (30 threads, 500 requests), so that the whole range can
    /// be chosen from
    #[arg(long)]
    ends: bool,
    /// Stop after this many configurations; run it again to resume
    #[arg(long, value_name = "N")]
    configurations: Option<usize>,
    /// Runs of each configuration, of which the worst is kept [default: 1 on sim, 3 on others]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    passes: Option<u32>,
    /// Random seed, on sim
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON: a line for each record size, and one summary line
    #[arg(long)]
    json: bool,
}

/// The JSON line of a table.
#[derive(Serialize)]
struct Line {
    transport: &'static str,
    distance_us: f64,
    record_bytes: u32,
    writes_percent: u8,
    #[serde(flatten)]
    count: Count,
}

/// The last JSON line.
#[derive(Serialize)]
struct LastLine<'a> {
    file: &'a Path,
    #[serde(flatten)]
    count: Count,
}

/// How much was measured.
#[derive(Clone, Copy, Serialize)]
pub struct Count {
    /// Configurations that were measured, now or before.
    pub measured: usize,
    /// Of so many of the full grid.
    pub grid: usize,
    /// Whether nothing is left to measure.
    pub complete: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let (path, distance_ns) = (&args.out, args.distance.ns());
    let spacing = if args.ends {
        Spacing::PowersAndEnds
    } else {
        Spacing::Powers
    };
    let (seed, writes) = (args.seed, args.writes);
    let mut measurer = measurer::open(args.transport, distance_ns, writes, seed, Effort::Survey)?;
    let space = measurer::space(args.transport);
    let mut model = match files::find_model(path)? {
        None => Model::new(space, spacing),
        Some(model) if model.spacing() == spacing && model.space() == space => model,
        Some(_) => {
            let what = format!(
                "{} has measurements of other configurations",
                path.display()
            );
            let remedy = "use another --out, or the --ends that the file was made with";
            return Err(Failure::new(what, remedy).into());
        }
    };
    let mut out = stdout::lock();
    let mut sum = Count {
        measured: 0,
        grid: 0,
        complete: true,
    };
    let mut left = args.configurations.unwrap_or(usize::MAX);
    for &record in &args.record {
        let record_bytes = record_bytes(record)?;
        let key = Key {
            transport: args.transport,
            distance_ns,
            record_bytes,
            writes,
        };
        let table = model.table(key).cloned();
        let table = table.unwrap_or_else(|| Table::new(model.grid(record_bytes)));
        let mut survey = Survey::new(table, (!args.full_grid).then_some(RISE_MIN));
        let mut saved = Instant::now();
        let mut save = |table: &Table| {
            if saved.elapsed() > SAVED_EVERY {
                model.insert(key, table.clone());
                files::save(path, &model)?;
                saved = Instant::now();
            }
            Ok(())
        };
        go_on(
            &mut survey,
            &mut measurer,
            record_bytes,
            &mut left,
            &mut save,
        )?;
        let count = count(&survey);
        let mut table = survey.into_table();
        if count.complete {
            for _ in 1..args.passes.unwrap_or_else(|| passes(args.transport)) {
                repeat(&mut table, &mut measurer, record_bytes)?;
            }
        }
        model.insert(key, table);
        files::save(path, &model)?;
        sum.measured += count.measured;
        sum.grid += count.grid;
        sum.complete &= count.complete;
        if args.json {
            let line = Line {
                transport: key.transport.name(),
                distance_us: args.distance.us(),
                record_bytes,
                writes_percent: writes.percent(),
                count,
            };
            serde_json::to_writer(&mut out, &line)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{record_bytes}-byte records: {}", told(count))?;
        }
    }
    if args.json {
        let line = LastLine {
            file: path,
            count: sum,
        };
        serde_json::to_writer(&mut out, &line)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}: {}", path.display(), told(sum))?;
        if args.transport == Transport::Sim {
            writeln!(out, "all figures are simulated")?;
        }
    }
    Ok(DONE)
}

/// How often the file is written meanwhile.
const SAVED_EVERY: Duration = Duration::from_secs(1);

/// How far a survey is.
pub fn count(survey: &Survey) -> Count {
    Count {
        measured: survey.table().measured_count(),
        grid: survey.grid_count(),
        complete: survey.next().is_none(),
    }
}

fn told(count: Count) -> String {
    let Count {
        measured,
        grid,
        complete,
    } = count;
    let share = measured as f64 / grid.max(1) as f64 * 100.0;
    let rest = if complete {
        ""
    } else {
        "; incomplete, run it again"
    };
    format!("measured {measured} of {grid} configurations of the full grid ({share:.0} %){rest}")
}
