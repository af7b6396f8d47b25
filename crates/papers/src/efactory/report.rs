//! What an experiment came to: points, tables for people and for programs, pictures.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use serde::Serialize;

use super::{Measured, Mix, Parameters};

/// One run of a scheme. The JSON line of a point has these keys, in this order.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Always: no figure here was measured on hardware.
    pub simulated: bool,
    /// As `cenote_store::schemes` has it; `-bounded` with a bound on what waits to be durable.
    pub scheme: String,
    /// `95% GET`.
    pub mix: &'static str,
    /// Length of each value.
    pub value_bytes: u64,
    /// Clients, one operation at a time each.
    pub clients: u32,
    /// Operations of all clients.
    pub ops_per_second: f64,
    /// The median of all operations.
    pub p50_us: f64,
    /// One of a hundred takes longer.
    pub p99_us: f64,
    /// The rest of what the run came to.
    #[serde(skip)]
    pub measured: Measured,
}

impl Point {
    /// Of a run.
    #[must_use]
    pub fn new(scheme: &str, mix: Mix, shape: (u64, u32), measured: Measured) -> Self {
        Self {
            simulated: true,
            scheme: scheme.to_owned(),
            mix: mix.name(),
            value_bytes: shape.0,
            clients: shape.1,
            ops_per_second: measured.ops_per_second,
            p50_us: measured.p50_us,
            p99_us: measured.p99_us,
            measured,
        }
    }
}

/// A table of text cells.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Above it.
    pub title: String,
    /// Names of the columns.
    pub header: Vec<String>,
    /// As many cells each.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("{}\n\n", self.title);
        text += &line(&self.header);
        text += &line(&vec!["---".to_owned(); self.header.len()]);
        for row in &self.rows {
            text += &line(row);
        }
        text
    }
}

/// All of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Of its files.
    pub name: &'static str,
    /// Each run.
    pub points: Vec<Point>,
    /// What follows from them.
    pub tables: Vec<Table>,
    /// Names of files without their ending, and what is in them.
    pub pictures: Vec<(String, Plot)>,
    /// Further tables for programs, likewise.
    pub series: Vec<(String, Csv)>,
}

impl Report {
    /// Every point with all that was measured.
    #[must_use]
    pub fn csv(&self) -> Csv {
        let mut csv = Csv::new(
            "simulated,scheme,mix,value_bytes,clients,ops_per_second,p50_us,p99_us,\
             get_p50_us,put_p50_us,check_us,persist_us,called_share,torn_share,\
             undurable_share,backlog_end,refused,cores_used,background_used,link_used",
        );
        for point in &self.points {
            let measured = &point.measured;
            let rounded = |number: f64| (number * 1e4).round() / 1e4;
            csv.row(&[
                &point.simulated,
                &point.scheme,
                &point.mix,
                &point.value_bytes,
                &point.clients,
                &point.ops_per_second.round(),
                &rounded(point.p50_us),
                &rounded(point.p99_us),
                &rounded(measured.get_p50_us),
                &rounded(measured.put_p50_us),
                &rounded(measured.check_us),
                &rounded(measured.persist_us),
                &rounded(measured.called_share),
                &rounded(measured.torn_share),
                &rounded(measured.undurable_share),
                &measured.backlog,
                &measured.refused,
                &rounded(measured.use_of.cores),
                &rounded(measured.use_of.background),
                &rounded(measured.use_of.link),
            ]);
        }
        csv
    }

    /// The points of one mix, with schemes down and what `column` says of a point across.
    #[must_use]
    pub fn grid(
        &self,
        mix: Mix,
        title: &str,
        column: impl Fn(&Point) -> u64,
        cell: impl Fn(&Point) -> String,
    ) -> Table {
        let points = || self.points.iter().filter(|point| point.mix == mix.name());
        let mut columns: Vec<u64> = points().map(&column).collect();
        columns.sort_unstable();
        columns.dedup();
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut cells: BTreeMap<(&str, u64), String> = BTreeMap::new();
        for point in points() {
            cells.insert((&point.scheme, column(point)), cell(point));
            if !rows.iter().any(|row| row[0] == point.scheme) {
                rows.push(vec![point.scheme.clone()]);
            }
        }
        for row in &mut rows {
            let scheme = row[0].clone();
            let found = columns.iter().map(|at| cells.get(&(scheme.as_str(), *at)));
            row.extend(found.map(|cell| cell.cloned().unwrap_or_default()));
        }
        let header = std::iter::once("scheme".to_owned());
        Table {
            title: title.to_owned(),
            header: header
                .chain(columns.iter().map(ToString::to_string))
                .collect(),
            rows,
        }
    }

    /// How many times as much `scheme` does as each other, of one mix.
    #[must_use]
    pub fn ratios(&self, mix: Mix, scheme: &str, column: impl Fn(&Point) -> u64) -> Table {
        let of_scheme = |point: &Point| {
            let same = |other: &&Point| {
                other.scheme == scheme
                    && other.mix == point.mix
                    && (other.value_bytes, other.clients) == (point.value_bytes, point.clients)
            };
            let ours = self.points.iter().find(same);
            ours.map_or(f64::NAN, |ours| ours.ops_per_second / point.ops_per_second)
        };
        let title = format!("{}, operations of {scheme} / operations of", mix.name());
        let mut table = self.grid(mix, &title, column, |point| {
            format!("{:.2}", of_scheme(point))
        });
        table.rows.retain(|row| row[0] != scheme);
        table
    }

    /// A line for each scheme of one mix; `at` gives a point's place, if it is to be drawn.
    #[must_use]
    pub fn plot(&self, mix: Mix, axes: Axes, at: impl Fn(&Point) -> Option<(f64, f64)>) -> Plot {
        let mut lines: Vec<Line> = Vec::new();
        for point in self.points.iter().filter(|point| point.mix == mix.name()) {
            let Some(place) = at(point) else { continue };
            match lines.iter_mut().find(|line| line.name == point.scheme) {
                Some(line) => line.points.push(place),
                None => lines.push(Line::new(&point.scheme, vec![place])),
            }
        }
        axes.plot(lines)
    }
}

/// What a picture's axes are.
#[derive(Clone, Debug)]
pub struct Axes {
    /// Above it; that it is simulated is added.
    pub title: String,
    /// Under it.
    pub x_label: &'static str,
    /// Beside it.
    pub y_label: &'static str,
    /// How it is divided.
    pub x_scale: Scale,
    /// Where the names are.
    pub legend: Legend,
}

impl Axes {
    /// These lines, with the axes as long as they need.
    #[must_use]
    pub fn plot(self, mut lines: Vec<Line>) -> Plot {
        for line in &mut lines {
            line.marks.clone_from(&line.points);
        }
        let all = || lines.iter().flat_map(|line| line.points.iter());
        let x_min = all().map(|at| at.0).fold(f64::INFINITY, f64::min);
        let x_max = all().map(|at| at.0).fold(0.0, f64::max);
        let y_max = all().map(|at| at.1).fold(0.0, f64::max);
        Plot {
            title: format!("{} (simulated)", self.title),
            x_label: self.x_label,
            y_label: self.y_label,
            x: x_min..x_max,
            x_scale: self.x_scale,
            y: 0.0..y_max * 1.1,
            lines,
            legend: self.legend,
        }
    }
}

/// The parameters, for people.
#[must_use]
pub fn parameters_table(parameters: &Parameters) -> Table {
    let described = parameters.described();
    let row = |one: &super::parameters::Described| {
        let unit = one.unit;
        vec![
            one.name.to_owned(),
            format!("{} {unit}", one.value).trim_end().to_owned(),
            one.source.name().to_owned(),
            one.reason.to_owned(),
        ]
    };
    Table {
        title: "Parameters".to_owned(),
        header: ["parameter", "value", "from", "why"]
            .map(str::to_owned)
            .to_vec(),
        rows: described.iter().map(row).collect(),
    }
}

/// The parameters, for programs.
#[must_use]
pub fn parameters_csv(parameters: &Parameters) -> Csv {
    let mut csv = Csv::new("parameter,value,unit,from,why");
    for one in parameters.described() {
        let source = one.source.name();
        csv.row(&[&one.name, &one.value, &one.unit, &source, &one.reason]);
    }
    csv
}

impl Report {
    /// All of it as text; it says that it is simulated.
    ///
    /// # Errors
    /// None: a string takes everything.
    pub fn text(&self, parameters: &Parameters, seed: u64) -> Result<String> {
        let mut text = format!(
            "Simulated, seed {seed}: cenote lab efactory {}\n",
            self.name
        );
        for table in self.tables.iter().chain([&parameters_table(parameters)]) {
            write!(text, "\n{}", table.markdown())?;
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(scheme: &str, value_bytes: u64, ops_per_second: f64) -> Point {
        let measured = Measured {
            ops_per_second,
            p50_us: 2.0,
            p99_us: 3.0,
            ..Measured::default()
        };
        Point::new(scheme, Mix::Half, (value_bytes, 8), measured)
    }

    fn report() -> Report {
        Report {
            name: "write",
            points: vec![
                point("imm", 64, 2e6),
                point("imm", 1024, 1e6),
                point("efactory", 64, 3e6),
                point("efactory", 1024, 3e6),
            ],
            ..Report::default()
        }
    }

    #[test]
    fn ratios_are_of_the_same_mix_size_and_clients() {
        let table = report().ratios(Mix::Half, "efactory", |point| point.value_bytes);
        assert_eq!(table.header, ["scheme", "64", "1024"]);
        assert_eq!(table.rows, [["imm", "1.50", "3.00"]]);
        assert!(table.markdown().contains("| imm | 1.50 | 3.00 |\n"));
        let none = report().ratios(Mix::Puts, "efactory", |point| point.value_bytes);
        assert!(none.rows.is_empty());
    }

    #[test]
    fn everything_says_that_it_is_simulated() {
        let report = report();
        let json = serde_json::to_string(&report.points[0]).unwrap();
        assert_eq!(
            json,
            "{\"simulated\":true,\"scheme\":\"imm\",\"mix\":\"50% GET\",\"value_bytes\":64,\
             \"clients\":8,\"ops_per_second\":2000000.0,\"p50_us\":2.0,\"p99_us\":3.0}"
        );
        let csv = report.csv();
        assert_eq!(csv.text().lines().count(), 5);
        assert!(csv.text().starts_with("simulated,scheme,mix,"));
        let text = report.text(&Parameters::default(), 1).unwrap();
        assert!(text.starts_with("Simulated, seed 1"));
        assert!(text.contains("| rtt_ns | 2000 ns | slides |"));
        let axes = Axes {
            title: "Half".to_owned(),
            x_label: "bytes",
            y_label: "a second",
            x_scale: Scale::Logarithmic,
            legend: Legend::UpperLeft,
        };
        let at = |point: &Point| Some((point.value_bytes as f64, point.ops_per_second));
        let plot = report.plot(Mix::Half, axes, at);
        assert_eq!(plot.lines.len(), 2);
        assert!(plot.svg().unwrap().contains("Half (simulated)"));
    }
}
