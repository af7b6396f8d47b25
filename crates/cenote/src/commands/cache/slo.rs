//! What was asked of a model and what it answers, as arguments, text and JSON.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use cenote_cache::tuner::{Found, Model, Refusal, Transport};
use cenote_cache::{LatencyOf, Slo};
use cenote_cli::failure::Failure;
use cenote_cli::number::amount;
use cenote_cli::size::Size;
use cenote_cli::span::Span;
use cenote_measurer::files::record_bytes;
use serde::Serialize;

/// What a cache has to do.
#[derive(clap::Args, Debug)]
pub struct SloArgs {
    /// Minimum throughput in requests per second, over all client threads
    #[arg(long, value_name = "N", value_parser = amount)]
    pub throughput: f64,
    /// Maximum latency of a request, with its unit, as in 20us
    #[arg(long, value_name = "DURATION")]
    pub latency: Span,
    /// Record size
    #[arg(long, value_name = "SIZE")]
    pub record: Size,
    /// Latency that --latency bounds: mean, p50 or p99
    #[arg(long, value_name = "WHICH", default_value_t)]
    pub latency_of: LatencyOf,
}

impl SloArgs {
    /// The wish.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn slo(&self) -> Result<Slo> {
        Ok(Slo {
            throughput_per_second: self.throughput,
            latency_us: self.latency.us(),
            latency_of: self.latency_of,
            record_bytes: record_bytes(self.record)?,
        })
    }
}

/// A model, and what a cache has to do by it: all of that, or nothing.
#[derive(clap::Args, Debug)]
pub struct ModelArgs {
    /// Model file of cache model, from which the cheapest configuration that meets the SLO is
    /// chosen
    #[arg(long, value_name = "FILE", requires_all = ["throughput", "latency", "record"])]
    model: Option<PathBuf>,
    /// Minimum throughput in requests per second, over all client threads
    #[arg(long, value_name = "N", value_parser = amount, requires = "model")]
    throughput: Option<f64>,
    /// Maximum latency of a request, with its unit, as in 20us
    #[arg(long, value_name = "DURATION", requires = "model")]
    latency: Option<Span>,
    /// Record size
    #[arg(long, value_name = "SIZE", requires = "model")]
    record: Option<Size>,
    /// Latency that --latency bounds: mean, p50 or p99
    #[arg(long, value_name = "WHICH", default_value_t)]
    pub latency_of: LatencyOf,
}

impl ModelArgs {
    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.model.is_some()
    }

    /// The model's file and the wish.
    ///
    /// # Errors
    /// The wish makes no sense.
    pub fn asked(&self) -> Result<Option<(&Path, Slo)>> {
        let (Some(path), Some(throughput), Some(latency), Some(record)) =
            (&self.model, self.throughput, self.latency, self.record)
        else {
            return Ok(None);
        };
        let latency_of = self.latency_of;
        let asked = SloArgs {
            throughput,
            latency,
            record,
            latency_of,
        };
        Ok(Some((path, asked.slo()?)))
    }
}

/// The transport that was asked for, or the only one that was measured.
///
/// # Errors
/// There are several, or none.
pub fn transport_of(model: &Model, asked: Option<Transport>, path: &Path) -> Result<Transport> {
    if let Some(asked) = asked {
        return Ok(asked);
    }
    let mut transports: Vec<Transport> = model.tables().map(|(key, _)| key.transport).collect();
    transports.dedup();
    match transports[..] {
        [only] => Ok(only),
        [] => Err(Failure::new(
            format!("{} has no measurements yet", path.display()),
            cenote_measurer::files::MODEL,
        )
        .into()),
        _ => Err(Failure::usage(
            format!("{} has several transports", path.display()),
            "--transport",
        )
        .into()),
    }
}

/// What was chosen, as a JSON object.
#[derive(Clone, Copy, Serialize)]
pub struct Choice {
    c: u32,
    s: u32,
    b: u32,
    q: u32,
    predicted_throughput: f64,
    predicted_latency_us: f64,
}

impl From<Found> for Choice {
    fn from(found: Found) -> Self {
        let Found {
            configuration,
            prediction,
        } = found;
        Self {
            c: configuration.c,
            s: configuration.s,
            b: configuration.b,
            q: configuration.q,
            predicted_throughput: prediction.throughput_per_second,
            predicted_latency_us: prediction.latency_us,
        }
    }
}

/// What comes nearest, as a JSON object.
#[derive(Serialize)]
pub struct Best {
    within_latency: Option<Choice>,
    at_throughput: Option<Choice>,
}

impl From<&Refusal> for Best {
    fn from(refusal: &Refusal) -> Self {
        Self {
            within_latency: refusal.within_latency.map(Choice::from),
            at_throughput: refusal.at_throughput.map(Choice::from),
        }
    }
}

/// A choice in words.
pub fn told(found: &Found, of: LatencyOf) -> String {
    let throughput = found.prediction.throughput_per_second;
    let latency = found.prediction.latency_us;
    format!(
        "{}: at least {throughput:.0} requests a second, {of} at most {latency:.2} us",
        found.configuration
    )
}

/// A refusal in words.
pub fn refused(refusal: &Refusal, slo: &Slo) -> String {
    let mut text = String::from("no measured configuration meets the SLO");
    let nearest = [
        ("within that latency", refusal.within_latency),
        ("at that throughput", refusal.at_throughput),
    ];
    for (when, found) in nearest {
        let best = match &found {
            Some(found) => told(found, slo.latency_of),
            None => "nothing".to_owned(),
        };
        write!(text, "\n  {when} {best}").expect("a string takes it");
    }
    text
}
