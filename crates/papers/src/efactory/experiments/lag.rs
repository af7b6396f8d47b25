//! How far durability falls behind when everybody writes, and what a bound on that does.

use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use cenote_store::schemes::Durable;
use serde::Serialize;

use super::{Options, Variant, mega, variants};
use crate::efactory::report::{Axes, Point, Report};
use crate::efactory::tally::Bucket;
use crate::efactory::{Mix, Setup};

/// Lengths of values.
const SIZES: [u64; 4] = [64, 256, 1024, 4096];
/// Milliseconds of each run.
const LENGTH_MS: u64 = 100;
/// The part that the totals are of: bounds are long reached then.
const COUNTED_MS: u64 = 40;

/// Runs of it.
pub(super) const RUNS: usize = SIZES.len() * 4;

/// One millisecond of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Lag {
    /// Always.
    pub simulated: bool,
    /// With or without a bound.
    pub scheme: String,
    /// 100% PUT.
    pub mix: &'static str,
    /// Length of each value.
    pub value_bytes: u64,
    /// Clients.
    pub clients: u32,
    /// Its end, from the start.
    pub at_ms: u64,
    /// Operations that ended in it.
    pub ops_per_second: u64,
    /// Versions that wait to be durable, at its end.
    pub backlog_versions: u64,
    /// From allocation until durable, of the last that became so.
    pub lag_us: f64,
    /// Calls for space that were refused in it.
    pub refused: u64,
}

/// 100 % PUT over time with and without a bound, beside IMM and SAW, which have no backlog.
#[must_use]
pub fn lag(options: &Options, mut done: impl FnMut()) -> (Report, Vec<Lag>) {
    let mut points = Vec::new();
    let mut lags = Vec::new();
    let is_shown =
        |one: &Variant| matches!(&*one.name, "efactory" | "efactory-bounded" | "imm" | "saw");
    for variant in variants(true).into_iter().filter(is_shown) {
        for bytes in SIZES {
            let setup = Setup {
                parameters: options.parameters.clone(),
                is_bounded: variant.is_bounded,
                warm_up_us: (LENGTH_MS - COUNTED_MS) * 1000,
                measured_us: COUNTED_MS * 1000,
                ..Setup::new(options.seed, Mix::Puts, bytes, options.clients)
            };
            let measured = setup.run(&*variant.scheme);
            done();
            if variant.scheme.durable() == Durable::InBackground {
                let shape = (&*variant.name, bytes, options.clients);
                lags.extend(series(shape, &measured.series));
            }
            let shape = (bytes, options.clients);
            points.push(Point::new(&variant.name, Mix::Puts, shape, measured));
        }
    }
    let mut report = Report {
        name: "lag",
        points,
        ..Report::default()
    };
    let bytes = |point: &Point| point.value_bytes;
    let title = "100% PUT, the last 40 ms of 100: million operations a second, by bytes of a value";
    let grid = report.grid(Mix::Puts, title, bytes, mega);
    let title = "Versions that wait to be durable at the end, by bytes of a value";
    let backlog = report.grid(Mix::Puts, title, bytes, |point| {
        point.measured.backlog.to_string()
    });
    let ratios = report.ratios(Mix::Puts, "efactory-bounded", bytes);
    report.tables = vec![grid, backlog, ratios];
    report.pictures = vec![
        ("lag".to_owned(), picture(&lags, true)),
        ("lag-operations".to_owned(), picture(&lags, false)),
    ];
    report.series = vec![("lag-series".to_owned(), series_csv(&lags))];
    (report, lags)
}

fn series_csv(lags: &[Lag]) -> Csv {
    let mut csv = Csv::new(
        "simulated,scheme,mix,value_bytes,clients,at_ms,ops_per_second,backlog_versions,\
         lag_us,refused",
    );
    for lag in lags {
        csv.row(&[
            &lag.simulated,
            &lag.scheme,
            &lag.mix,
            &lag.value_bytes,
            &lag.clients,
            &lag.at_ms,
            &lag.ops_per_second,
            &lag.backlog_versions,
            &lag.lag_us.round(),
            &lag.refused,
        ]);
    }
    csv
}

fn series<'a>(
    (scheme, value_bytes, clients): (&'a str, u64, u32),
    buckets: &'a [Bucket],
) -> impl Iterator<Item = Lag> + 'a {
    (1..).zip(buckets).map(move |(at_ms, bucket)| Lag {
        simulated: true,
        scheme: scheme.to_owned(),
        mix: Mix::Puts.name(),
        value_bytes,
        clients,
        at_ms,
        ops_per_second: bucket.ended * 1000,
        backlog_versions: bucket.backlog,
        lag_us: bucket.lag_ps as f64 / 1e6,
        refused: bucket.refused,
    })
}

fn picture(lags: &[Lag], is_backlog: bool) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    for bytes in [1024, 4096] {
        for scheme in ["efactory", "efactory-bounded"] {
            let name = format!("{scheme}, {bytes} B");
            let of_it =
                (lags.iter()).filter(|lag| (&*lag.scheme, lag.value_bytes) == (scheme, bytes));
            let height = |lag: &Lag| match is_backlog {
                true => lag.backlog_versions as f64 / 1e3,
                false => lag.ops_per_second as f64 / 1e6,
            };
            let points = of_it.map(|lag| (lag.at_ms as f64, height(lag)));
            lines.push(Line::new(&name, points.collect()));
        }
    }
    let axes = Axes {
        title: match is_backlog {
            true => "100% PUT: versions that wait to be durable".to_owned(),
            false => "100% PUT with and without a bound on what waits".to_owned(),
        },
        x_label: "ms",
        y_label: match is_backlog {
            true => "thousand versions",
            false => "million operations a second",
        },
        x_scale: Scale::Linear,
        legend: if is_backlog {
            Legend::UpperLeft
        } else {
            Legend::MiddleRight
        },
    };
    let mut plot = axes.plot(lines);
    plot.lines.iter_mut().for_each(|line| line.marks.clear());
    plot
}
