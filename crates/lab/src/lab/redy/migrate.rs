//! `migrate`.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cenote_bench::migration::{self, Options, Report, Shown};
use cenote_cli::failure::{DONE, FAILED};
use cenote_cli::size::Size;
use cenote_cli::span::Span;
use cenote_cli::transport::Transport;
use serde::Serialize;

use super::super::output::Output;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Regions of the cache
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    regions: u32,
    /// Size of a region, at most 1 GiB
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    region_bytes: Size,
    /// How clients reach the hosts
    #[arg(long, value_enum, default_value_t = Transport::Shm)]
    transport: Transport,
    /// Hosts that have the regions at first; all are taken back at the same moment
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    reclaimed: u32,
    /// How long these have after SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    notice: Span,
    /// Copies of each region
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    copies: u8,
    /// Requests a second, of 1 KiB each
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// Random seed of what is read and written
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Leave the client's thread to the scheduler. Over shm, where it polls, it has a processor of its own
    #[arg(long)]
    unpinned: bool,
    /// Also stop the load at the first region's stop until all have moved, to have both beside each other
    #[arg(long)]
    naive: bool,
    /// Draw the 99th percentile of the latency over time, too
    #[arg(long, value_name = "FILE")]
    plot_p99: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// The last JSON line.
#[derive(Debug, Serialize)]
struct Line {
    migrated_ms: f64,
    longest_write_stop_ms: f64,
    errors: u64,
    wrong_bytes: u64,
}

/// Load before the notice.
const BEFORE: Duration = Duration::from_secs(2);

pub fn run(args: &Args) -> Result<u8> {
    let options = Options {
        regions: args.regions,
        region_bytes: args.region_bytes.bytes(),
        transport: args.transport.to_string(),
        reclaimed: args.reclaimed as usize,
        copies: args.copies.into(),
        notice: Duration::from_nanos(args.notice.ns()),
        rate: args.rate,
        before: BEFORE,
        seed: args.seed,
        // Over tcp it sleeps, and hosts need all processors.
        pins: !args.unpinned && args.transport == Transport::Shm,
    };
    let reports = migration::run(&options, args.naive)?;
    let plot = migration::plot(&reports, Shown::Throughput);
    args.output.write_files(&migration::csv(&reports), &plot)?;
    if let Some(path) = &args.plot_p99 {
        let picture = migration::plot(&reports, Shown::P99).svg()?;
        std::fs::write(path, picture).with_context(|| path.display().to_string())?;
    }
    args.output.print(&reports, |out| {
        reports.iter().try_for_each(|report| describe(out, report))
    })?;
    let ours = &reports[0];
    if args.output.is_json() {
        let line = Line {
            migrated_ms: ours.migrated_ms,
            longest_write_stop_ms: ours.longest_write_stop_ms,
            errors: ours.errors,
            wrong_bytes: ours.wrong_bytes,
        };
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, &line)?;
        writeln!(out)?;
    }
    let is_sound = reports.iter().all(Report::is_sound);
    Ok(if is_sound { DONE } else { FAILED })
}

fn describe(out: &mut dyn std::io::Write, report: &Report) -> std::io::Result<()> {
    let region_ms = report.bare_ms / f64::from(report.regions);
    writeln!(
        out,
        "{}: {} regions of {} over {}, copies: {}{}",
        report.variant,
        report.regions,
        Size(report.region_bytes),
        report.transport,
        report.copies,
        if report.is_pinned {
            ", a processor for the client alone"
        } else {
            ""
        }
    )?;
    writeln!(
        out,
        "  moved in {:.0} ms after the first stop, {:.2} times the bare copy of {:.0} ms",
        report.moving_ms,
        report.moving_ms / report.bare_ms,
        report.bare_ms
    )?;
    writeln!(
        out,
        "  {:.0} ms after the notice, {:.2} times the copy and its memory, made in {:.0} ms",
        report.migrated_ms,
        report.migrated_ms / (report.bare_ms + report.bare_memory_ms),
        report.bare_memory_ms
    )?;
    writeln!(
        out,
        "  a write waited {:.1} ms at most, {:.2} times the bare copy of a region",
        report.longest_write_stop_ms,
        report.longest_write_stop_ms / region_ms
    )?;
    let longest = report.stops.iter();
    if let Some(stop) = longest.max_by(|a, b| a.whole_ms().total_cmp(&b.whole_ms())) {
        writeln!(
            out,
            "  the longest stop of a region: {:.1} ms, of it {:.1} until writes ended, {:.1} for the copy, {:.1} until it was used",
            stop.whole_ms(),
            stop.drain_ms,
            stop.copy_ms,
            stop.switch_ms
        )?;
    }
    writeln!(
        out,
        "  reads: p50 {:.1} us before and {:.1} us meanwhile, p99 {:.1} and {:.1} us, {:.1} ms at most",
        report.read_p50_before_us,
        report.read_p50_during_us,
        report.read_p99_before_us,
        report.read_p99_during_us,
        report.longest_read_ms
    )?;
    writeln!(
        out,
        "  the client's thread stood still for {:.1} ms at most",
        report.longest_pause_ms
    )?;
    writeln!(
        out,
        "  writes before: p50 {:.1} us, p99 {:.1} us",
        report.write_p50_before_us, report.write_p99_before_us
    )?;
    writeln!(
        out,
        "  {} requests, {} failed; {} wrong bytes; {} regions lost",
        report.requests,
        report.errors,
        report.wrong_bytes,
        report.lost_regions.len()
    )
}
