//! `cache search`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use cenote_cache::Writes;
use cenote_cache::tuner::Transport;
use cenote_cli::failure::{DONE, NOT_WHOLE};
use cenote_cli::span::Span;
use cenote_cli::stdout;
use cenote_measurer::files;
use serde::Serialize;

use super::slo::{Best, Choice, SloArgs, refused, told, transport_of};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model file of cache model
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    #[command(flatten)]
    slo: SloArgs,
    /// Transport of requests [default: the only one in the model]
    #[arg(long, value_name = "NAME")]
    transport: Option<Transport>,
    /// Share of requests that write, as measured
    #[arg(long, value_name = "PERCENT", default_value_t)]
    writes: Writes,
    /// One-way network latency between client and server; rounded up to the next measured one
    #[arg(long, value_name = "DURATION", default_value = "0us")]
    distance: Span,
    /// Print one JSON line
    #[arg(long)]
    json: bool,
}

/// The JSON line of an answer.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    choice: Choice,
    search_us: f64,
}

/// The JSON line of a refusal.
#[derive(Serialize)]
struct Refused {
    best: Best,
    search_us: f64,
}

pub fn run(args: &Args) -> Result<u8> {
    let slo = args.slo.slo()?;
    let model = files::model(&args.model)?;
    let transport = transport_of(&model, args.transport, &args.model)?;
    let distance_ns = args.distance.ns();
    let mix = model.of_writes(args.writes);
    let surface = mix.surface(transport, distance_ns, slo.record_bytes, slo.latency_of)?;
    let begun = Instant::now();
    let answer = surface.search(&slo);
    let search_us = begun.elapsed().as_secs_f64() * 1e6;
    let mut out = stdout::lock();
    match &answer {
        Ok(found) if args.json => {
            let choice = Choice::from(*found);
            serde_json::to_writer(&mut out, &Line { choice, search_us })?;
            writeln!(out)?;
        }
        Ok(found) => {
            writeln!(out, "{}", told(found, slo.latency_of))?;
            writeln!(out, "found in {search_us:.0} us")?;
        }
        Err(refusal) if args.json => {
            let best = Best::from(&**refusal);
            serde_json::to_writer(&mut out, &Refused { best, search_us })?;
            writeln!(out)?;
        }
        Err(refusal) => writeln!(out, "{}", refused(refusal, &slo))?,
    }
    Ok(if answer.is_ok() { DONE } else { NOT_WHOLE })
}
