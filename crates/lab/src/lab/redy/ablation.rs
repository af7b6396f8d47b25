//! `ablation`.

use std::io::{Write, stdout};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cache::closed_loop::Plan;
use cenote_cache::simulation::{Network, SimulatedMeasurer};
use cenote_cache::tuner::{Measurement, Transport};
use cenote_cache::{Configuration, LatencyOf, Writes};
use cenote_cli::failure::DONE;
use cenote_cli::span::Span;
use cenote_cli::table::Table;
use cenote_cli::{pin, progress};
use cenote_fabric::calls::Spin;
use cenote_fabric::rdma::Tuning;
use cenote_measure::statistics::median;
use cenote_measurer::{Places, peer, run_patiently};
use serde::Serialize;

/// Bytes of an operation, and messages under way once there are several: the paper's.
const RECORD_BYTES: u32 = 8;
const UNDER_WAY: u32 = 16;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Transport: sim; or shm, tcp or rdma to a host on this machine
    #[arg(long, value_name = "NAME", default_value = "sim")]
    transport: Transport,
    /// Number of runs of each row, of which the median is taken
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Length of each run
    #[arg(long, value_name = "DURATION", default_value = "300ms")]
    span: Span,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON line per row
    #[arg(long)]
    json: bool,
}

/// A static optimisation, in the order in which they are switched on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Switch {
    Polling,
    Pinning,
    OneSided,
    Registered,
    Inlined,
    Asynchrony,
    Signals,
}

impl Switch {
    const ALL: [Self; 7] = [
        Self::Polling,
        Self::Pinning,
        Self::OneSided,
        Self::Registered,
        Self::Inlined,
        Self::Asynchrony,
        Self::Signals,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Pinning => "pinning",
            Self::OneSided => "one-sided",
            Self::Registered => "registered once",
            Self::Inlined => "inlined writes",
            Self::Asynchrony => "asynchrony",
            Self::Signals => "selective signals",
        }
    }

    /// Why a transport has no use for it; `None`: it has.
    fn missing(self, transport: Transport, processors: usize) -> Option<&'static str> {
        let simulated = "the simulated network has no such cost";
        match (self, transport) {
            (Self::OneSided | Self::Asynchrony, _) => None,
            (_, Transport::Sim) => Some(simulated),
            (Self::Pinning, _) if processors < 2 => Some("there is only one processor"),
            (Self::Polling | Self::Pinning, _) | (_, Transport::Rdma) => None,
            (Self::Registered, Transport::Shm) => Some("memory is mapped, not registered"),
            (Self::Registered, _) => Some("the system copies what sockets carry"),
            (Self::Inlined | Self::Signals, _) => Some("there are no requests to a card"),
        }
    }
}

/// What is switched on.
#[derive(Clone, Copy, Debug, Default)]
struct Choices {
    polling: bool,
    pinning: bool,
    one_sided: bool,
    registered: bool,
    inlined: bool,
    asynchrony: bool,
    signals: bool,
}

impl Choices {
    fn with(mut self, switch: Switch) -> Self {
        let choice = match switch {
            Switch::Polling => &mut self.polling,
            Switch::Pinning => &mut self.pinning,
            Switch::OneSided => &mut self.one_sided,
            Switch::Registered => &mut self.registered,
            Switch::Inlined => &mut self.inlined,
            Switch::Asynchrony => &mut self.asynchrony,
            Switch::Signals => &mut self.signals,
        };
        *choice = true;
        self
    }

    fn configuration(self) -> Configuration {
        Configuration {
            c: 1,
            s: u32::from(!self.one_sided),
            b: 1,
            q: if self.asynchrony { UNDER_WAY } else { 1 },
        }
    }

    fn spin(self) -> Spin {
        if self.polling {
            Spin::default()
        } else {
            Spin(Duration::ZERO)
        }
    }

    fn tuning(self) -> Tuning {
        Tuning {
            inline_writes: self.inlined,
            selective_signals: self.signals,
            registered_once: self.registered,
        }
    }
}

/// A row: what it adds to the one above, and what was measured with it.
struct Row {
    name: &'static str,
    step: Step,
}

enum Step {
    /// Reads, and writes.
    Measured(Choices, [Vec<Measurement>; 2]),
    /// The transport has no use for it.
    Missing(&'static str),
}

/// The JSON line of a row.
#[derive(Serialize)]
struct Line {
    transport: &'static str,
    switch: &'static str,
    #[serde(flatten)]
    figures: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_meaning: Option<&'static str>,
}

#[derive(Clone, Copy, Serialize)]
struct Figures {
    reads_per_second: f64,
    read_us: f64,
    read_us_p99: f64,
    writes_per_second: f64,
    write_us: f64,
    write_us_p99: f64,
}

pub fn run(args: &Args) -> Result<u8> {
    let processors = pin::processors()?;
    let mut rows = rows(args.transport, processors.len());
    let bar = progress::steps(u64::from(args.rounds), "rounds");
    let mut bench = match args.transport {
        Transport::Sim => None,
        other => Some(Bench {
            places: Places::new(other)?,
            processors,
        }),
    };
    for round in 0..u64::from(args.rounds) {
        for row in &mut rows {
            let Step::Measured(choices, measured) = &mut row.step else {
                continue;
            };
            let now = match &mut bench {
                Some(bench) => bench.measure(*choices, args, round)?,
                None => simulate(*choices, args.seed ^ round << 32),
            };
            for (all, one) in measured.iter_mut().zip(now) {
                all.push(one);
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    print(args, &rows)?;
    Ok(DONE)
}

fn rows(transport: Transport, processors: usize) -> Vec<Row> {
    let mut choices = Choices::default();
    let measured = |choices| Step::Measured(choices, Default::default());
    let mut rows = vec![Row {
        name: "none",
        step: measured(choices),
    }];
    for switch in Switch::ALL {
        let step = match switch.missing(transport, processors) {
            Some(why) => Step::Missing(why),
            None => {
                choices = choices.with(switch);
                measured(choices)
            }
        };
        let name = switch.name();
        rows.push(Row { name, step });
    }
    rows
}

/// Both ends on this machine.
struct Bench {
    places: Places,
    processors: Vec<usize>,
}

impl Bench {
    /// Reads, then writes, with a host of their own.
    fn measure(&mut self, choices: Choices, args: &Args, round: u64) -> Result<[Measurement; 2]> {
        let configuration = choices.configuration();
        let [ours, theirs] = match self.processors[..] {
            [first, second, ..] if choices.pinning => [Some(first), Some(second)],
            _ => [None, None],
        };
        let host = peer::Args::new(self.places.next_address()?, configuration.s as usize)
            .spinning(choices.spin())
            .pinned(theirs);
        let host = peer::Peer::start(&host, choices.tuning())?;
        if let Some(ours) = ours {
            pin::this_thread(&[ours])?;
        }
        let mut paths = host.paths(configuration)?;
        let mut of = |writes: Writes| {
            let plan = Plan {
                writes,
                record_bytes: RECORD_BYTES,
                under_way: configuration.q as usize,
                warm_up: Duration::from_millis(20),
                span: Duration::from_nanos(args.span.ns()),
                spin: choices.spin(),
                seed: args.seed ^ round << 32,
            };
            run_patiently(&mut paths, &host.window, plan)
                .with_context(|| format!("measure {configuration} of {writes} writes"))
        };
        let measured = of(Writes::NONE).and_then(|reads| Ok([reads, of(Writes::ALL)?]));
        if ours.is_some() {
            pin::this_thread(&self.processors)?;
        }
        measured
    }
}

fn simulate(choices: Choices, seed: u64) -> [Measurement; 2] {
    [Writes::NONE, Writes::ALL].map(|writes| {
        let measurer = SimulatedMeasurer::new(Network::paper(1500), seed, 1, 10_000);
        let measurer = measurer.with_writes(writes);
        measurer.run(RECORD_BYTES, choices.configuration())
    })
}

impl Figures {
    fn of([reads, writes]: &[Vec<Measurement>; 2]) -> Self {
        let rate = Measurement::throughput_per_second;
        let mean = |one: Measurement| one.latency_us(LatencyOf::Mean);
        let p99 = |one: Measurement| one.latency_us(LatencyOf::P99);
        Self {
            reads_per_second: median(reads.iter().copied().map(rate)),
            read_us: median(reads.iter().copied().map(mean)),
            read_us_p99: median(reads.iter().copied().map(p99)),
            writes_per_second: median(writes.iter().copied().map(rate)),
            write_us: median(writes.iter().copied().map(mean)),
            write_us_p99: median(writes.iter().copied().map(p99)),
        }
    }
}

fn print(args: &Args, rows: &[Row]) -> Result<()> {
    let mut out = stdout().lock();
    let header = [
        "SWITCH", "READS/s", "MEAN us", "P99 us", "WRITES/s", "MEAN us", "P99 us",
    ];
    let mut table = Table::new(header);
    let mut notes = Vec::new();
    for row in rows {
        let (figures, no_meaning) = match &row.step {
            Step::Measured(_, measured) => (Some(Figures::of(measured)), None),
            Step::Missing(why) => (None, Some(*why)),
        };
        if args.json {
            let line = Line {
                transport: args.transport.name(),
                switch: row.name,
                figures,
                no_meaning,
            };
            serde_json::to_writer(&mut out, &line)?;
            writeln!(out)?;
            continue;
        }
        let name = match row.name {
            "none" => "none".to_owned(),
            name => format!("+ {name}"),
        };
        table.row(match figures {
            Some(figures) => vec![
                name,
                format!("{:.0}", figures.reads_per_second),
                format!("{:.2}", figures.read_us),
                format!("{:.2}", figures.read_us_p99),
                format!("{:.0}", figures.writes_per_second),
                format!("{:.2}", figures.write_us),
                format!("{:.2}", figures.write_us_p99),
            ],
            None => vec![name, "-".to_owned()],
        });
        notes.extend(no_meaning.map(|why| format!("{}: not applicable, {why}", row.name)));
    }
    if !args.json {
        if args.transport == Transport::Sim {
            writeln!(out, "Simulated, seed {}", args.seed)?;
        }
        table.write(&mut out)?;
        for note in notes {
            writeln!(out, "{note}")?;
        }
    }
    Ok(())
}
