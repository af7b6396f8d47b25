//! The paper's Figures 9 to 12 and 19 as tables and pictures, of our rows.
//!
//! Each picture says that it is simulated, and under what. Which of the paper's conditions ours stand
//! for is a choice: nothing is in the way in Figure 9, messages are late in 10, 11 and 19, since late
//! binding is for those, and 12 has flows and a lost host as it says.

use anyhow::{Context, Result};
use cenote_measure::figure::{Bars, Csv, Legend, Line, Plot, Scale};

use super::{Condition, HYDRA, Row, find};
use crate::latency::Operation;

/// A figure's part, ready for two files.
pub struct Drawn {
    /// Of the files, without what tells them apart.
    pub name: String,
    /// The numbers.
    pub csv: Csv,
    /// The picture.
    pub svg: String,
}

/// Bars of a figure: systems under one condition.
struct Chart {
    figure: &'static str,
    title: &'static str,
    operation: Operation,
    condition: Condition,
    systems: &'static [&'static str],
}

/// Lines of Figure 19: one parameter is another.
struct Sweep {
    figure: &'static str,
    parameter: &'static str,
    operation: Operation,
    values: &'static [u32],
}

/// What pages are brought to, in the paper's Figures 9 and 12.
const RIVALS: &[&str] = &["disk backup", "ec-cache", "replication, both", HYDRA];
/// From nothing to everything; what the last step adds is late binding or asynchronous encoding.
const STEPS: &[&str] = &[
    "coding alone",
    "and run-to-completion",
    "and in-place coding",
    HYDRA,
];

use Condition::{Failure, Flows, Quiet, Stragglers};
use Operation::{Read, Write};

const CHARTS: [Chart; 10] = [
    chart("9-read", "nothing in the way", Read, Quiet, RIVALS),
    chart("9-write", "nothing in the way", Write, Quiet, RIVALS),
    chart("10-read", "late messages", Read, Stragglers, STEPS),
    chart("10-write", "late messages", Write, Stragglers, STEPS),
    chart(
        "11-read",
        "late messages",
        Read,
        Stragglers,
        &["no late binding", HYDRA],
    ),
    chart(
        "11-write",
        "late messages",
        Write,
        Stragglers,
        &["no async encoding", HYDRA],
    ),
    chart("12a-read", "flows of others", Read, Flows, RIVALS),
    chart("12a-write", "flows of others", Write, Flows, RIVALS),
    chart("12b-read", "a host lost", Read, Failure, RIVALS),
    chart("12b-write", "a host lost", Write, Failure, RIVALS),
];

const SWEEPS: [Sweep; 3] = [
    sweep("19a", "k", Read, &[1, 2, 4, 8, 16]),
    sweep("19b", "delta", Read, &[0, 1, 2, 3]),
    sweep("19c", "r", Write, &[1, 2, 3, 4]),
];

const fn chart(
    figure: &'static str,
    title: &'static str,
    operation: Operation,
    condition: Condition,
    systems: &'static [&'static str],
) -> Chart {
    Chart {
        figure,
        title,
        operation,
        condition,
        systems,
    }
}

const fn sweep(
    figure: &'static str,
    parameter: &'static str,
    operation: Operation,
    values: &'static [u32],
) -> Sweep {
    Sweep {
        figure,
        parameter,
        operation,
        values,
    }
}

/// Draws all of them.
///
/// # Errors
/// A row is missing.
pub fn draw(rows: &[Row]) -> Result<Vec<Drawn>> {
    let charts = CHARTS.iter().map(|chart| chart.draw(rows));
    let sweeps = SWEEPS.iter().map(|sweep| sweep.draw(rows));
    charts.chain(sweeps).collect()
}

fn row<'a>(
    rows: &'a [Row],
    system: &str,
    operation: Operation,
    condition: Condition,
) -> Result<&'a Row> {
    find(rows, system, operation, condition).with_context(|| format!("{system} was not measured"))
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn verb(operation: Operation) -> &'static str {
    match operation {
        Read => "read",
        Write => "write",
    }
}

/// Whole powers of ten around what is shown, so that bars begin at one.
fn decades(values: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(0.0, f64::max);
    10_f64.powf(low.log10().floor())..10_f64.powf(high.log10().ceil())
}

impl Chart {
    fn draw(&self, rows: &[Row]) -> Result<Drawn> {
        let mut csv = Csv::new("system,p50_us,p99_us");
        let mut groups = Vec::new();
        for system in self.systems {
            let row = row(rows, system, self.operation, self.condition)?;
            let heights = vec![micros(row.p50_ns), micros(row.p99_ns)];
            // A name with a comma in it would be two cells.
            let name = system.replace(',', "");
            csv.row(&[&name, &heights[0], &heights[1]]);
            groups.push((name, heights));
        }
        let all = groups.iter().flat_map(|(_, heights)| heights).copied();
        let bars = Bars {
            title: format!(
                "Figure {}: a page's {}, {} (simulated)",
                self.figure,
                verb(self.operation),
                self.title
            ),
            y_label: "us",
            y: decades(all),
            series: vec!["p50", "p99"],
            groups: groups.clone(),
        };
        Ok(Drawn {
            name: format!("figure-{}", self.figure),
            csv,
            svg: bars.svg()?,
        })
    }
}

impl Sweep {
    fn draw(&self, rows: &[Row]) -> Result<Drawn> {
        let mut csv = Csv::new(&format!("{},p50_us,p99_us", self.parameter));
        let (mut medians, mut tails) = (Vec::new(), Vec::new());
        for value in self.values {
            let system = format!("{} {value}", self.parameter);
            let row = row(rows, &system, self.operation, Stragglers)?;
            csv.row(&[value, &micros(row.p50_ns), &micros(row.p99_ns)]);
            medians.push((f64::from(*value), micros(row.p50_ns)));
            tails.push((f64::from(*value), micros(row.p99_ns)));
        }
        let high = tails.iter().map(|tail| tail.1).fold(0.0, f64::max);
        let line = |name, points: &Vec<(f64, f64)>| Line {
            marks: points.clone(),
            ..Line::new(name, points.clone())
        };
        let plot = Plot {
            title: format!(
                "Figure {}: a page's {} by {}, late messages (simulated)",
                self.figure,
                verb(self.operation),
                self.parameter
            ),
            x_label: self.parameter,
            y_label: "us",
            x: medians[0].0..medians[medians.len() - 1].0,
            x_scale: Scale::Linear,
            y: 0.0..high * 1.1,
            lines: vec![line("p50", &medians), line("p99", &tails)],
            legend: Legend::MiddleRight,
        };
        Ok(Drawn {
            name: format!("figure-{}", self.figure),
            csv,
            svg: plot.svg()?,
        })
    }
}
