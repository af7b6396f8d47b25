//! What cleaning the log costs those who read and write meanwhile.

use cenote_measure::figure::{Legend, Line, Scale};
use cenote_store::schemes::EFactory;

use super::{Options, percent};
use crate::efactory::report::{Axes, Point, Report, Table};
use crate::efactory::{Fallback, Measured, Mix, Parameters, Setup};

/// Lengths of values.
const SIZES: [u64; 4] = [64, 256, 1024, 4096];
/// Entries to be moved: fewer than elsewhere, so that a run sees the whole cleaning.
const KEYS: u32 = 20_000;
/// What of a cleaning is looked at, if it takes longer: where PUTs come faster than they are made
/// durable, it ends only after them.
const MEASURED_US: u64 = 60_000;

/// Runs of it.
pub(super) const RUNS: usize = Mix::ALL.len() * SIZES.len() * 3;

fn setup(options: &Options, mix: Mix, bytes: u64) -> Setup {
    Setup {
        parameters: Parameters {
            keys: KEYS,
            ..options.parameters.clone()
        },
        measured_us: MEASURED_US,
        ..Setup::new(options.seed, mix, bytes, options.clients)
    }
}

struct Loss {
    mix: Mix,
    bytes: u64,
    /// By all calling, and by those whose entry was not moved.
    runs: [(f64, Measured); 2],
}

const FALLBACKS: [(Fallback, &str); 2] = [
    (Fallback::WhileCleaning, "efactory-cleaning"),
    (Fallback::UntilMoved, "efactory-cleaning-until-moved"),
];

/// Operations a second while the log is cleaned, beside the same without cleaning.
#[must_use]
pub fn cleaning(options: &Options, mut done: impl FnMut()) -> Report {
    let mut points = Vec::new();
    let mut losses = Vec::new();
    for mix in Mix::ALL {
        for bytes in SIZES {
            let usual = setup(options, mix, bytes);
            let shape = (bytes, options.clients);
            let quiet = usual.run(&EFactory);
            done();
            let runs = FALLBACKS.map(|(fallback, name)| {
                let cleaned = Setup {
                    cleaning: Some(fallback),
                    ..usual.clone()
                };
                let measured = cleaned.run(&EFactory);
                done();
                points.push(Point::new(name, mix, shape, measured.clone()));
                (
                    1.0 - measured.ops_per_second / quiet.ops_per_second,
                    measured,
                )
            });
            points.push(Point::new("efactory", mix, shape, quiet));
            losses.push(Loss { mix, bytes, runs });
        }
    }
    let picture = |at: usize| {
        let line = |mix: Mix| {
            let of_mix = losses.iter().filter(|loss| loss.mix == mix);
            let points = of_mix.map(|loss| (loss.bytes as f64, loss.runs[at].0.max(0.0) * 100.0));
            Line::new(mix.name(), points.collect())
        };
        let who = ["every GET calls", "GETs call until their entry is moved"][at];
        let axes = Axes {
            title: format!("Loss while the log is cleaned: {who}"),
            x_label: "bytes of a value",
            y_label: "% of operations a second",
            x_scale: Scale::Logarithmic,
            legend: Legend::UpperRight,
        };
        let mut plot = axes.plot(Mix::ALL.map(line).to_vec());
        // Room for the names above all lines.
        plot.y.end *= 1.4;
        plot
    };
    let pictures = vec![
        ("cleaning".to_owned(), picture(0)),
        ("cleaning-until-moved".to_owned(), picture(1)),
    ];
    Report {
        name: "cleaning",
        tables: vec![table(&losses, 0), table(&losses, 1)],
        points,
        pictures,
        series: Vec::new(),
    }
}

fn table(losses: &[Loss], at: usize) -> Table {
    let row = |mix: Mix| {
        let of_mix = losses.iter().filter(|loss| loss.mix == mix);
        let cell = |loss: &Loss| {
            let (lost, measured) = &loss.runs[at];
            let took = match measured.cleaning_ms {
                Some(ms) => format!("{ms:.0} ms"),
                None => "not over".to_owned(),
            };
            format!("{} ({took})", percent(*lost))
        };
        std::iter::once(mix.name().to_owned())
            .chain(of_mix.map(cell))
            .collect()
    };
    let who = [
        "every GET calls meanwhile",
        "a GET calls until its entry is moved",
    ][at];
    Table {
        title: format!(
            "Loss of operations a second while the log is cleaned, %, by bytes of a value: {who}"
        ),
        header: std::iter::once("mix".to_owned())
            .chain(SIZES.iter().map(ToString::to_string))
            .collect(),
        rows: Mix::ALL.map(row).to_vec(),
    }
}
