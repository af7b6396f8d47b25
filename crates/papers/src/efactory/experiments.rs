//! The experiments behind the slides' figures, each of which is a command.

use cenote_measure::figure::{Legend, Scale};
use cenote_store::schemes::{Durable, Scheme, all};

use super::report::{Axes, Point, Report, Table};
use super::{Measured, Mix, Parameters, Setup};

mod cleaning_cost;
mod lag;

pub use cleaning_cost::cleaning;
pub use lag::{Lag, lag};

/// What every experiment may be asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Random seed.
    pub seed: u64,
    /// What things cost.
    pub parameters: Parameters,
    /// Clients, where their number is not what is looked at.
    pub clients: u32,
    /// Length of values, where that is not what is looked at.
    pub value_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            parameters: Parameters::default(),
            clients: 8,
            value_bytes: 2048,
        }
    }
}

/// A scheme as an experiment has it.
pub struct Variant {
    /// In tables.
    pub name: String,
    /// What it does.
    pub scheme: Box<dyn Scheme>,
    /// Whether too much of a backlog is refused.
    pub is_bounded: bool,
}

/// Every scheme; behind the one with a backlog the same with a bound on it, if that is asked for.
#[must_use]
pub fn variants(with_bounded: bool) -> Vec<Variant> {
    let variant = |scheme: Box<dyn Scheme>, is_bounded: bool| Variant {
        name: match is_bounded {
            true => format!("{}-bounded", scheme.name()),
            false => scheme.name().to_owned(),
        },
        scheme,
        is_bounded,
    };
    let mut variants: Vec<Variant> = all().into_iter().map(|one| variant(one, false)).collect();
    if with_bounded {
        let has_backlog = |one: &Variant| one.scheme.durable() == Durable::InBackground;
        let bounded = all().into_iter().map(|one| variant(one, true));
        variants.extend(bounded.filter(has_backlog));
    }
    variants
}

/// Lengths of values that the slides may have had, and one beyond.
const SIZES: [u64; 6] = [64, 256, 1024, 2048, 4096, 65_536];
/// Those that latencies are drawn for.
const LATENCY_SIZES: [u64; 8] = [64, 256, 1024, 4096, 8192, 12_288, 16_384, 65_536];
/// Clients that are tried.
const CLIENTS: [u32; 9] = [1, 2, 4, 8, 12, 16, 20, 24, 32];
/// The largest of `SIZES` that is drawn: the axis is for the slides' range.
const DRAWN_BYTES_MAX: u64 = 4096;
/// The same of latencies.
const DRAWN_LATENCY_BYTES_MAX: u64 = 16_384;

/// A bounded run begins to count when its backlog has long been full.
const BOUNDED_WARM_UP_US: u64 = 100_000;

fn run(options: &Options, variant: &Variant, mix: Mix, shape: (u64, u32)) -> Point {
    let usual = Setup::new(options.seed, mix, shape.0, shape.1);
    let setup = Setup {
        parameters: options.parameters.clone(),
        is_bounded: variant.is_bounded,
        warm_up_us: match variant.is_bounded && mix != Mix::Gets {
            true => BOUNDED_WARM_UP_US,
            false => usual.warm_up_us,
        },
        ..usual
    };
    let measured: Measured = setup.run(&*variant.scheme);
    Point::new(&variant.name, mix, shape, measured)
}

fn sweep(
    options: &Options,
    name: &'static str,
    (variants, mixes): (&[Variant], &[Mix]),
    shapes: &[(u64, u32)],
    mut done: impl FnMut(),
) -> Report {
    let mut points = Vec::new();
    for &mix in mixes {
        for variant in variants {
            for &shape in shapes {
                points.push(run(options, variant, mix, shape));
                done();
            }
        }
    }
    Report {
        name,
        points,
        ..Report::default()
    }
}

/// Runs of an experiment, for those who show how far it is.
#[must_use]
pub fn runs(name: &str) -> usize {
    let (usual, bounded) = (variants(false).len(), variants(true).len());
    match name {
        "latency" => 2 * usual * LATENCY_SIZES.len(),
        "read" => 2 * usual * SIZES.len(),
        "write" => 2 * bounded * SIZES.len(),
        "scale" => 4 * bounded * CLIENTS.len(),
        "cleaning" => cleaning_cost::RUNS,
        "lag" => lag::RUNS,
        _ => 0,
    }
}

fn mega(point: &Point) -> String {
    format!("{:.2}", point.ops_per_second / 1e6)
}

/// A share in percent; nothing is not below nothing.
fn percent(share: f64) -> String {
    let tenths = (share * 1000.0).round() + 0.0;
    format!("{:.1}", tenths / 10.0)
}

/// PUT and GET of one client by the length of values: the slides' latency and breakdown.
#[must_use]
pub fn latency(options: &Options, done: impl FnMut()) -> Report {
    let shapes = LATENCY_SIZES.map(|bytes| (bytes, 1));
    let variants = variants(false);
    let what = (&variants[..], &[Mix::Puts, Mix::Gets][..]);
    let mut report = sweep(options, "latency", what, &shapes, done);
    let bytes = |point: &Point| point.value_bytes;
    for (mix, name) in [(Mix::Puts, "put"), (Mix::Gets, "get")] {
        let title = format!("{}, one client: p50, us, by bytes of a value", mix.name());
        let grid = report.grid(mix, &title, bytes, |point| format!("{:.2}", point.p50_us));
        report.tables.push(grid);
        let axes = Axes {
            title: format!("{}, one client", mix.name()),
            x_label: "bytes of a value",
            y_label: "us, median",
            x_scale: Scale::Logarithmic,
            legend: Legend::UpperLeft,
        };
        let plot = report.plot(mix, axes, |point| {
            let is_drawn = point.value_bytes <= DRAWN_LATENCY_BYTES_MAX;
            is_drawn.then_some((point.value_bytes as f64, point.p50_us))
        });
        report.pictures.push((format!("latency-{name}"), plot));
    }
    let below = below_rpc(&report);
    report.tables.push(below);
    let title = "GET breakdown: of it checksums + persistence, us";
    let breakdown = report.grid(Mix::Gets, title, bytes, |point| {
        let measured = &point.measured;
        format!("{:.2} + {:.2}", measured.check_us, measured.persist_us)
    });
    report.tables.push(breakdown);
    report
}

/// By how much a PUT is below that of RPC.
fn below_rpc(report: &Report) -> Table {
    let rpc_us = |bytes: u64| {
        let is_it = |point: &&Point| {
            (point.scheme.as_str(), point.value_bytes) == ("rpc", bytes)
                && point.mix == Mix::Puts.name()
        };
        let found = report.points.iter().find(is_it);
        found.map_or(f64::NAN, |point| point.p50_us)
    };
    let title = "PUT latency below that of rpc, %";
    let below = |point: &Point| percent(1.0 - point.p50_us / rpc_us(point.value_bytes));
    let mut table = report.grid(Mix::Puts, title, |point| point.value_bytes, below);
    table
        .rows
        .retain(|row| matches!(row[0].as_str(), "ca" | "saw" | "imm"));
    table
}

fn by_size(options: &Options, report: &mut Report, mixes: &[Mix]) {
    let bytes = |point: &Point| point.value_bytes;
    for &mix in mixes {
        let clients = options.clients;
        let title = format!(
            "{}, {clients} clients: million operations a second, by bytes of a value",
            mix.name()
        );
        let grid = report.grid(mix, &title, bytes, mega);
        let ratios = report.ratios(mix, "efactory", bytes);
        report.tables.extend([grid, ratios]);
        let gets = mix.gets_percent();
        let axes = Axes {
            title: format!("{}, {clients} clients", mix.name()),
            x_label: "bytes of a value",
            y_label: "million operations a second",
            x_scale: Scale::Logarithmic,
            legend: Legend::LowerLeft,
        };
        let plot = report.plot(mix, axes, |point| {
            let is_drawn = point.value_bytes <= DRAWN_BYTES_MAX;
            is_drawn.then_some((point.value_bytes as f64, point.ops_per_second / 1e6))
        });
        let name = format!("{}-{gets}-get", report.name);
        report.pictures.push((name, plot));
    }
}

/// What a use of cores, background and link says of why a scheme is as fast as it is.
fn uses(report: &Report, mix: Mix, column: impl Fn(&Point) -> u64) -> Table {
    let title = format!(
        "{}: cores / background core / link in use, and GETs that called, %",
        mix.name()
    );
    report.grid(mix, &title, column, |point| {
        let used = point.measured.use_of;
        format!(
            "{:.0} / {:.0} / {:.0}; {}",
            used.cores * 100.0,
            used.background * 100.0,
            used.link * 100.0,
            percent(point.measured.called_share)
        )
    })
}

/// Throughput of mixes that read, by the length of values.
#[must_use]
pub fn read(options: &Options, done: impl FnMut()) -> Report {
    let mixes = [Mix::Gets, Mix::MostlyGets];
    throughput(options, "read", &variants(false), mixes, done)
}

/// Throughput of mixes that write, by the length of values.
#[must_use]
pub fn write(options: &Options, done: impl FnMut()) -> Report {
    let mixes = [Mix::Puts, Mix::Half];
    throughput(options, "write", &variants(true), mixes, done)
}

fn throughput(
    options: &Options,
    name: &'static str,
    variants: &[Variant],
    mixes: [Mix; 2],
    done: impl FnMut(),
) -> Report {
    let shapes = SIZES.map(|bytes| (bytes, options.clients));
    let mut report = sweep(options, name, (variants, &mixes), &shapes, done);
    by_size(options, &mut report, &mixes);
    for mix in mixes {
        let table = uses(&report, mix, |point| point.value_bytes);
        report.tables.push(table);
    }
    report
}

/// Throughput of every mix by the number of clients.
#[must_use]
pub fn scale(options: &Options, done: impl FnMut()) -> Report {
    let shapes = CLIENTS.map(|clients| (options.value_bytes, clients));
    let variants = variants(true);
    let mut report = sweep(options, "scale", (&variants, &Mix::ALL), &shapes, done);
    let clients = |point: &Point| u64::from(point.clients);
    for mix in Mix::ALL {
        let bytes = options.value_bytes;
        let title = format!(
            "{}, values of {bytes} bytes: million operations a second, by clients",
            mix.name()
        );
        let grid = report.grid(mix, &title, clients, mega);
        report.tables.push(grid);
        let axes = Axes {
            title: format!("{}, values of {bytes} bytes", mix.name()),
            x_label: "clients",
            y_label: "million operations a second",
            x_scale: Scale::Linear,
            legend: Legend::UpperLeft,
        };
        let plot = report.plot(mix, axes, |point| {
            Some((f64::from(point.clients), point.ops_per_second / 1e6))
        });
        let name = format!("scale-{}-get", mix.gets_percent());
        report.pictures.push((name, plot));
    }
    report
}
