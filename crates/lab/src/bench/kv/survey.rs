//! What became of a load under which nodes were killed: curves, tables and rows.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::recovery::Options;
use super::tally::{Kind, SLICE, Slice, Tally};
use crate::bench::Row;
use crate::bench::apps::figures::{self, median};
use crate::figure::{Csv, Legend, Line, Plot, Scale};

/// One round of one variant.
#[derive(Clone)]
pub(super) struct Survey {
    slices: Vec<Slice>,
    /// Before the first kill, after each of them.
    phases: Vec<Phase>,
    /// Longest time from the first kill on in which every slice had less than half of before.
    longest_dip: Duration,
    lost_items: u64,
    failures: u64,
    is_sound: bool,
    troubles: String,
}

#[derive(Clone, Copy)]
struct Phase {
    rate: f64,
    /// p50 and p99 of GETs, then of SETs, in us.
    times: [Option<f64>; 4],
}

impl Survey {
    pub(super) fn of(tally: Tally, back: &Tally, moments: &[Duration]) -> Result<Self> {
        let phases = moments
            .windows(2)
            .map(|two| Phase::of(&tally.slices, two[0], two[1]))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            longest_dip: longest_dip(&tally.slices, moments[1], phases[0].rate),
            // A GET of the load may have missed what a SET has stored again since.
            lost_items: (back.misses + back.unserved).max(u64::from(tally.misses > 0)),
            failures: tally.failures(),
            is_sound: tally.is_sound() && back.is_sound(),
            troubles: format!("{}; read back: {}", tally.troubles(), back.troubles()),
            phases,
            slices: tally.slices,
        })
    }

    /// What must not be.
    pub(super) fn fault(&self, may_lose: bool) -> Option<String> {
        if !self.is_sound {
            return Some(format!("values are wrong: {}", self.troubles));
        }
        let is_lost = self.lost_items > 0 && !may_lose;
        is_lost.then(|| format!("items are gone: {}", self.troubles))
    }
}

fn longest_dip(slices: &[Slice], from: Duration, rate: f64) -> Duration {
    let half = rate / 2.0 * SLICE.as_secs_f64();
    let (mut longest, mut now) = (0_u32, 0);
    for slice in &slices[index(from).min(slices.len())..] {
        now = if (slice.total() as f64) < half {
            now + 1
        } else {
            0
        };
        longest = longest.max(now);
    }
    SLICE * longest
}

/// The slice in which a moment lies.
fn index(moment: Duration) -> usize {
    usize::try_from(moment.as_nanos() / SLICE.as_nanos()).expect("few slices")
}

impl Phase {
    fn of(slices: &[Slice], from: Duration, to: Duration) -> Result<Self> {
        let within = &slices[index(from)..index(to).min(slices.len())];
        let sum = Slice::joined(within.iter())?;
        Ok(Self {
            rate: sum.total() as f64 / (within.len() as f64 * SLICE.as_secs_f64()),
            times: times(&sum),
        })
    }
}

fn times(slice: &Slice) -> [Option<f64>; 4] {
    [
        slice.quantile_us(Kind::Get, 0.5),
        slice.quantile_us(Kind::Get, 0.99),
        slice.quantile_us(Kind::Set, 0.5),
        slice.quantile_us(Kind::Set, 0.99),
    ]
}

impl fmt::Display for Survey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, phase) in self.phases.iter().enumerate() {
            let rate = phase.rate;
            match at {
                0 => write!(out, "{rate:.0} requests/s")?,
                _ => write!(out, ", {rate:.0} after kill {at}")?,
            }
        }
        let dip = self.longest_dip.as_secs_f64();
        write!(out, "; longest dip {dip:.1} s; {}", self.troubles)
    }
}

/// Metric, unit, and whether more is better; of each phase.
const METRICS: [(&str, &str, bool); 5] = [
    ("throughput", "ops/s", true),
    ("get_p50", "us", false),
    ("get_p99", "us", false),
    ("set_p50", "us", false),
    ("set_p99", "us", false),
];

fn metric(survey: &Survey, phase: usize, metric: usize) -> Option<f64> {
    let phase = &survey.phases[phase];
    match metric {
        0 => Some(phase.rate),
        _ => phase.times[metric - 1],
    }
}

/// The first variant beside each other one, and beside itself before the first kill.
pub(super) fn rows(options: &Options, surveys: &[Vec<Survey>]) -> Vec<Row> {
    let (ours, peers) = surveys.split_first().expect("a variant at least");
    let name = format!("{} {}", options.variants[0], options.case());
    let mut rows = Vec::new();
    for phase in 0..=options.kills.len() {
        let case = match phase {
            0 => format!("{name}, before"),
            _ => format!("{name}, after kill {phase}"),
        };
        for (at, (word, unit, more)) in METRICS.into_iter().enumerate() {
            let mut push = |peer: &str, theirs: &[Survey], their_phase| {
                let pairs: Vec<_> = ours
                    .iter()
                    .zip(theirs)
                    .filter_map(|(a, b)| Some((metric(a, phase, at)?, metric(b, their_phase, at)?)))
                    .collect();
                if !pairs.is_empty() {
                    rows.push(figures::row(&case, (word, unit), Some(more), peer, &pairs));
                }
            };
            for (variant, theirs) in options.variants[1..].iter().zip(peers) {
                push(&variant.name, theirs, phase);
            }
            if phase > 0 {
                push("itself before", ours, 0);
            }
        }
    }
    // One that stands alone has nobody beside it.
    let nobody = ("none".to_owned(), None);
    let mut beside: Vec<(String, Option<&Vec<Survey>>)> = options.variants[1..]
        .iter()
        .zip(peers)
        .map(|(variant, theirs)| (variant.name.clone(), Some(theirs)))
        .collect();
    if beside.is_empty() {
        beside.push(nobody);
    }
    type Of = fn(&Survey) -> f64;
    let counts: [(&str, &str, Of); 3] = [
        ("longest_dip", "s", |one| one.longest_dip.as_secs_f64()),
        ("requests_failed", "requests", |one| one.failures as f64),
        ("items_lost", "items", |one| one.lost_items as f64),
    ];
    for (word, unit, of) in counts {
        for (peer, theirs) in &beside {
            let theirs = |at: usize| theirs.map_or(0.0, |theirs| of(&theirs[at]));
            let pairs = ours.iter().enumerate();
            let pairs: Vec<_> = pairs.map(|(at, one)| (of(one), theirs(at))).collect();
            rows.push(figures::row(&name, (word, unit), Some(false), peer, &pairs));
        }
    }
    for row in &mut rows {
        row.bench = "kv";
    }
    rows
}

/// A line of the table: one slice of one round.
#[derive(Serialize)]
struct Point<'a> {
    variant: &'a str,
    round: usize,
    seconds: f64,
    operations_per_second: f64,
    get_p50_us: Option<f64>,
    get_p99_us: Option<f64>,
    set_p50_us: Option<f64>,
    set_p99_us: Option<f64>,
    failed: u64,
}

impl<'a> Point<'a> {
    fn of(variant: &'a str, round: usize, at: usize, slice: &Slice) -> Self {
        let [get_p50_us, get_p99_us, set_p50_us, set_p99_us] = times(slice);
        Self {
            variant,
            round,
            seconds: seconds(at),
            operations_per_second: slice.total() as f64 / SLICE.as_secs_f64(),
            get_p50_us,
            get_p99_us,
            set_p50_us,
            set_p99_us,
            failed: slice.failed,
        }
    }

    fn times(&self) -> [Option<f64>; 4] {
        [
            self.get_p50_us,
            self.get_p99_us,
            self.set_p50_us,
            self.set_p99_us,
        ]
    }
}

/// To the tenth, without the noise of a product.
fn seconds(at: usize) -> f64 {
    (at as f64 * SLICE.as_secs_f64() * 10.0).round() / 10.0
}

/// Leaves a table of every slice, as CSV and as JSON lines, and curves of medians over the rounds.
pub(super) fn draw(dir: &Path, options: &Options, surveys: &[Vec<Survey>]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let mut csv = Csv::new(&[
        "variant",
        "round",
        "seconds",
        "operations_per_second",
        "get_p50_us",
        "get_p99_us",
        "set_p50_us",
        "set_p99_us",
        "failed",
    ]);
    let mut lines = String::new();
    for (variant, rounds) in options.variants.iter().zip(surveys) {
        for (round, survey) in rounds.iter().enumerate() {
            for (at, slice) in survey.slices.iter().enumerate() {
                let point = Point::of(&variant.name, round, at, slice);
                let cell = |time: Option<f64>| time.map_or(String::new(), |us| us.to_string());
                let [a, b, c, d] = point.times().map(cell);
                let rate = point.operations_per_second;
                csv.row(&[
                    &point.variant,
                    &round,
                    &point.seconds,
                    &rate,
                    &a,
                    &b,
                    &c,
                    &d,
                    &point.failed,
                ]);
                lines += &(serde_json::to_string(&point)? + "\n");
            }
        }
    }
    write(dir, "recovery.csv", csv.text())?;
    write(dir, "recovery.jsonl", &lines)?;
    let rate = |slice: &Slice| Some(slice.total() as f64 / SLICE.as_secs_f64());
    curve(dir, options, surveys, ("throughput", "requests/s"), &rate)?;
    for kind in Kind::ALL {
        let name = match kind {
            Kind::Get => "get_p99",
            Kind::Set => "set_p99",
        };
        let p99 = |slice: &Slice| slice.quantile_us(kind, 0.99);
        curve(dir, options, surveys, (name, "us"), &p99)?;
    }
    Ok(())
}

fn curve(
    dir: &Path,
    options: &Options,
    surveys: &[Vec<Survey>],
    (name, unit): (&str, &'static str),
    of: &dyn Fn(&Slice) -> Option<f64>,
) -> Result<()> {
    let line = |(variant, rounds): (&super::Server, &Vec<Survey>)| {
        let count = rounds
            .iter()
            .map(|one| one.slices.len())
            .min()
            .unwrap_or_default();
        let points = (0..count).filter_map(|at| {
            let values: Vec<f64> = rounds
                .iter()
                .filter_map(|one| of(&one.slices[at]))
                .collect();
            (!values.is_empty()).then(|| (seconds(at), median(values)))
        });
        Line::new(&variant.name, points.collect())
    };
    let lines: Vec<Line> = options.variants.iter().zip(surveys).map(line).collect();
    let values = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|point| point.1);
    let most = values.fold(1.0, f64::max);
    let kills: Vec<String> = options
        .kills
        .iter()
        .map(|at| at.as_secs_f64().to_string())
        .collect();
    let plot = Plot {
        title: format!(
            "{}: {name}; a node killed at {} s",
            options.case(),
            kills.join(", ")
        ),
        x_label: "s",
        y_label: unit,
        x: 0.0..options.time.as_secs_f64(),
        x_scale: Scale::Linear,
        y: 0.0..most * 1.1,
        lines,
        legend: Legend::UpperRight,
    };
    write(dir, &format!("{name}.svg"), &plot.svg()?)
}

fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}
