//! What became of a load under which nodes were killed: curves, tables and rows.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use cenote_measure::statistics::median;
use serde::Serialize;

use super::node_status::{Summary, Takeover};
use super::recovery::Options;
use super::tally::{Kind, SLICE, Slice, Tally};
use crate::Row;

/// One round of one variant.
#[derive(Clone)]
pub(super) struct Survey {
    slices: Vec<Slice>,
    /// Before the first kill, after each of them; in recoveries and after the last, where they are told.
    phases: Vec<(String, Phase)>,
    /// Of each kill, and of one without a load.
    recoveries: Vec<(String, Recovery)>,
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
    /// p50, p90 and p99 of GETs, then of SETs, in us.
    times: [Option<f64>; 6],
}

/// What nodes told of one death.
#[derive(Clone)]
struct Recovery {
    killed_us: u64,
    summary: Summary,
    takeovers: Vec<Takeover>,
}

impl Recovery {
    fn of(killed_us: u64, takeovers: Vec<Takeover>) -> Self {
        Self {
            killed_us,
            summary: Summary::of(&takeovers, killed_us),
            takeovers,
        }
    }
}

impl Survey {
    /// `ends` are the ends of the recoveries after each kill, where there are some.
    pub(super) fn of(
        tally: Tally,
        back: &Tally,
        moments: &[Duration],
        ends: &[Option<Duration>],
    ) -> Result<Self> {
        let mut phases = Vec::new();
        for (at, two) in moments.windows(2).enumerate() {
            let name = match at {
                0 => BEFORE.to_owned(),
                _ => format!("after kill {at}"),
            };
            phases.push((name, Phase::of(&tally.slices, two[0], two[1])?));
        }
        let end = moments[moments.len() - 1];
        for (at, found) in ends.iter().enumerate() {
            let (from, next) = (moments[at + 1], moments[at + 2]);
            if let Some(found) = found {
                // The slice in which it ended counts.
                let to = next.min(*found + SLICE);
                let phase = Phase::of(&tally.slices, from, to.max(from + SLICE))?;
                phases.push((format!("recovery {}", at + 1), phase));
            }
        }
        let last = ends.iter().flatten().max().map(|last| *last + SLICE);
        if let Some(last) = last.filter(|last| *last + SLICE <= end) {
            let phase = Phase::of(&tally.slices, last, end)?;
            phases.push(("recovered".to_owned(), phase));
        }
        Ok(Self {
            longest_dip: longest_dip(&tally.slices, moments[1], phases[0].1.rate),
            recoveries: Vec::new(),
            // A GET of the load may have missed what a SET has stored again since.
            lost_items: (back.misses + back.unserved).max(u64::from(tally.misses > 0)),
            failures: tally.failures(),
            is_sound: tally.is_sound() && back.is_sound(),
            troubles: format!("{}; read back: {}", tally.troubles(), back.troubles()),
            phases,
            slices: tally.slices,
        })
    }

    /// What nodes told of the kills of the load.
    pub(super) fn with_told(mut self, killed_us: &[u64], told: Vec<Vec<Takeover>>) -> Self {
        for (at, (killed_us, told)) in killed_us.iter().zip(told).enumerate() {
            if !told.is_empty() {
                let recovery = Recovery::of(*killed_us, told);
                self.recoveries.push((format!("kill {}", at + 1), recovery));
            }
        }
        self
    }

    /// And of one without a load.
    pub(super) fn with_idle(mut self, told: Option<(u64, Vec<Takeover>)>) -> Self {
        if let Some((killed_us, told)) = told.filter(|(_, told)| !told.is_empty()) {
            let recovery = Recovery::of(killed_us, told);
            self.recoveries.push((IDLE.to_owned(), recovery));
        }
        self
    }

    fn phase(&self, name: &str) -> Option<&Phase> {
        let found = self.phases.iter().find(|(known, _)| known == name);
        found.map(|(_, phase)| phase)
    }

    fn recovery(&self, name: &str) -> Option<&Summary> {
        let found = self.recoveries.iter().find(|(known, _)| known == name);
        found.map(|(_, recovery)| &recovery.summary)
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

fn times(slice: &Slice) -> [Option<f64>; 6] {
    let of = |kind| [0.5, 0.9, 0.99].map(|quantile| slice.quantile_us(kind, quantile));
    let ([a, b, c], [d, e, f]) = (of(Kind::Get), of(Kind::Set));
    [a, b, c, d, e, f]
}

impl fmt::Display for Survey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "requests/s")?;
        for (name, phase) in &self.phases {
            write!(out, " {:.0} {name},", phase.rate)?;
        }
        let dip = self.longest_dip.as_secs_f64();
        write!(out, " longest dip {dip:.1} s; {}", self.troubles)?;
        for (name, recovery) in &self.recoveries {
            write!(out, "; {name}: {}", recovery.summary)?;
        }
        Ok(())
    }
}

/// Metric, unit, and whether more is better; of each phase.
const METRICS: [(&str, &str, bool); 7] = [
    ("throughput", "ops/s", true),
    ("get_p50", "us", false),
    ("get_p90", "us", false),
    ("get_p99", "us", false),
    ("set_p50", "us", false),
    ("set_p90", "us", false),
    ("set_p99", "us", false),
];

/// Names of a phase, of a recovery, and of who stands in where there is no peer.
const BEFORE: &str = "before";
const IDLE: &str = "idle";
const NOBODY: &str = "none";

fn metric(survey: &Survey, phase: &str, metric: usize) -> Option<f64> {
    let phase = survey.phase(phase)?;
    match metric {
        0 => Some(phase.rate),
        _ => phase.times[metric - 1],
    }
}

/// Names in the order in which the rounds have them, each once.
fn names<'a, T>(rounds: &'a [Survey], of: impl Fn(&'a Survey) -> &'a [(String, T)]) -> Vec<&'a str>
where
    T: 'a,
{
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in rounds.iter().flat_map(of) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// The first variant beside each other one, and beside itself before the first kill.
pub(super) fn rows(options: &Options, surveys: &[Vec<Survey>]) -> Vec<Row> {
    let (ours, peers) = surveys.split_first().expect("a variant at least");
    let name = format!("{} {}", options.variants[0], options.case());
    let peers = options.variants[1..].iter().zip(peers);
    let peers: Vec<(&str, &[Survey])> = peers
        .map(|(variant, theirs)| (variant.name.as_str(), &theirs[..]))
        .collect();
    let mut rows = Vec::new();
    for phase in names(ours, |survey| &survey.phases) {
        let case = format!("{name}, {phase}");
        for (at, (word, unit, more)) in METRICS.into_iter().enumerate() {
            let mut push = |peer: &str, theirs: &[Survey], their_phase| {
                let pairs: Vec<_> = ours
                    .iter()
                    .zip(theirs)
                    .filter_map(|(a, b)| Some((metric(a, phase, at)?, metric(b, their_phase, at)?)))
                    .collect();
                if !pairs.is_empty() {
                    let (case, metric) = (("kv", &case), (word, unit));
                    rows.push(Row::of_rounds(case, metric, Some(more), peer, &pairs));
                }
            };
            for (peer, theirs) in &peers {
                push(peer, theirs, phase);
            }
            if phase != BEFORE {
                push(ITSELF, ours, BEFORE);
            }
        }
    }
    // One that stands alone has nobody beside it.
    let mut beside: Vec<(&str, Option<&[Survey]>)> = Vec::new();
    beside.extend(peers.iter().map(|(peer, theirs)| (*peer, Some(*theirs))));
    if beside.is_empty() {
        beside.push((NOBODY, None));
    }
    type Of<'a> = &'a dyn Fn(&Survey) -> Option<f64>;
    let mut push = |case: &str, metric: (&'static str, &'static str, bool), of: Of<'_>| {
        for (peer, theirs) in &beside {
            let theirs = |at: usize| theirs.map_or(Some(0.0), |theirs| of(&theirs[at]));
            let pairs = ours.iter().enumerate();
            // What a peer does not tell is none.
            let pairs: Vec<_> = pairs
                .filter_map(|(at, one)| Some((of(one)?, theirs(at).unwrap_or(0.0))))
                .collect();
            if !pairs.is_empty() {
                let (word, unit, more) = metric;
                let (case, metric) = (("kv", case), (word, unit));
                rows.push(Row::of_rounds(case, metric, Some(more), *peer, &pairs));
            }
        }
    };
    for recovery in names(ours, |survey| &survey.recoveries) {
        let case = format!("{name}, {recovery}");
        for (word, unit, more, of) in Summary::METRICS {
            push(&case, (word, unit, more), &|survey| {
                of(survey.recovery(recovery)?)
            });
        }
    }
    push(&name, ("longest_dip", "s", false), &|one| {
        Some(one.longest_dip.as_secs_f64())
    });
    push(&name, ("requests_failed", "requests", false), &|one| {
        Some(one.failures as f64)
    });
    push(&name, ("items_lost", "items", false), &|one| {
        Some(one.lost_items as f64)
    });
    rows
}

/// What is beside a phase where that is the same store before the first kill.
const ITSELF: &str = "itself before";

/// What is aimed at, beside what was measured: on standard error.
pub(super) fn print_goals(rows: &[Row]) {
    let said = |row: &Row, what: &str, is_reached: bool| {
        let end = if is_reached { "reached" } else { "missed" };
        eprintln!("goal: {} {} {what}, {end}", row.case, row.metric);
    };
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let is_idle = row.case.ends_with(IDLE);
        let is_new = !seen.contains(&(&row.case, row.metric));
        match row.metric {
            "recovery_rate" if is_idle && is_new => {
                let what = format!("at least 1000 MB/s: {:.0}", row.ours);
                said(row, &what, row.ours >= 1000.0);
            }
            "preparation" if is_new => {
                let what = format!("at most 10 ms: {:.1}", row.ours);
                said(row, &what, row.ours <= 10.0);
            }
            "get_p99" if row.case.contains(", recovery ") && row.peer == ITSELF => {
                let what = format!("at most 3 times that before: {:.2}", row.ratio);
                said(row, &what, row.ratio <= 3.0);
            }
            _ => continue,
        }
        seen.push((&row.case, row.metric));
    }
}

/// A line of the table: one slice of one round.
#[derive(Serialize)]
struct Point<'a> {
    variant: &'a str,
    round: usize,
    seconds: f64,
    operations_per_second: f64,
    get_p50_us: Option<f64>,
    get_p90_us: Option<f64>,
    get_p99_us: Option<f64>,
    set_p50_us: Option<f64>,
    set_p90_us: Option<f64>,
    set_p99_us: Option<f64>,
    failed: u64,
}

impl<'a> Point<'a> {
    fn of(variant: &'a str, round: usize, at: usize, slice: &Slice) -> Self {
        let [
            get_p50_us,
            get_p90_us,
            get_p99_us,
            set_p50_us,
            set_p90_us,
            set_p99_us,
        ] = times(slice);
        Self {
            variant,
            round,
            seconds: seconds(at),
            operations_per_second: slice.total() as f64 / SLICE.as_secs_f64(),
            get_p50_us,
            get_p90_us,
            get_p99_us,
            set_p50_us,
            set_p90_us,
            set_p99_us,
            failed: slice.failed,
        }
    }

    fn times(&self) -> [Option<f64>; 6] {
        [
            self.get_p50_us,
            self.get_p90_us,
            self.get_p99_us,
            self.set_p50_us,
            self.set_p90_us,
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
    let mut csv = Csv::new(
        "variant,round,seconds,operations_per_second,get_p50_us,get_p90_us,get_p99_us,\
         set_p50_us,set_p90_us,set_p99_us,failed",
    );
    let mut lines = String::new();
    for (variant, rounds) in options.variants.iter().zip(surveys) {
        for (round, survey) in rounds.iter().enumerate() {
            for (at, slice) in survey.slices.iter().enumerate() {
                let point = Point::of(&variant.name, round, at, slice);
                let cell = |time: Option<f64>| time.map_or(String::new(), |us| us.to_string());
                let [a, b, c, d, e, f] = point.times().map(cell);
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
                    &e,
                    &f,
                    &point.failed,
                ]);
                lines += &(serde_json::to_string(&point)? + "\n");
            }
        }
    }
    write(dir, "recovery.csv", csv.text())?;
    write(dir, "recovery.jsonl", &lines)?;
    write(dir, "takeovers.csv", takeovers(options, surveys).text())?;
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

/// A line for each partition that was taken over.
fn takeovers(options: &Options, surveys: &[Vec<Survey>]) -> Csv {
    let mut csv = Csv::new(&format!("variant,round,when,{}", Takeover::COLUMNS));
    for (variant, rounds) in options.variants.iter().zip(surveys) {
        for (round, survey) in rounds.iter().enumerate() {
            for (when, recovery) in &survey.recoveries {
                for takeover in &recovery.takeovers {
                    let cells = takeover.cells(recovery.killed_us);
                    let mut row: Vec<&dyn fmt::Display> = vec![&variant.name, &round, when];
                    row.extend(cells.iter().map(|cell| cell as &dyn fmt::Display));
                    csv.row(&row);
                }
            }
        }
    }
    csv
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
