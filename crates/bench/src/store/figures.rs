//! From rounds to what is printed: a figure for each way of each store, rows of ours beside peers.

use std::io::{self, Write};

use cenote_measure::statistics::median;
use serde::Serialize;

use super::super::kv::source::Mix;
use super::super::{Row, figure, write_cells, write_json, write_table};
use super::contender::{Promise, Role, Way};
use super::goals;

/// What is done to the stores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) mix: Mix,
    pub(super) value_bytes: u32,
    pub(super) clients: usize,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) ops_per_second: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) server_cpu_us: f64,
    /// `None` where nothing was put, or nobody counted.
    pub(super) write_amplification: Option<f64>,
}

/// A line of the table, and of JSON; medians of rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Of ours, or the peer.
    pub scheme: &'static str,
    /// GETs and PUTs in per cent.
    pub mix: String,
    /// Of a value.
    pub value_bytes: u32,
    /// Closed loops.
    pub clients: usize,
    /// `shm`, `tcp`, `unix` or `in-process`.
    pub transport: &'static str,
    /// GETs and PUTs.
    pub ops_per_second: f64,
    /// Of both.
    pub p50_us: f64,
    /// Of both.
    pub p99_us: f64,
    /// Time on processors of the store's processes for each; in this process, the load's as well.
    pub server_cpu_us_per_op: f64,
    /// Bytes written to the medium for each byte of a value that was put.
    pub write_amplification: Option<f64>,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One for each case and way.
    pub figures: Vec<Figure>,
    /// Ours beside the others.
    pub rows: Vec<Row>,
    /// A line for each row that something is aimed at.
    pub goals: Vec<String>,
}

/// A way, and its rounds of one case.
pub(super) type Measured = (Way, Vec<Round>);

/// Where a figure of a row comes from.
type Of = fn(&Round) -> f64;

/// Name, unit, and whether more is better.
const METRICS: [(&str, &str, bool, Of); 4] = [
    ("throughput", "ops/s", true, |one| one.ops_per_second),
    ("p50", "us", false, |one| one.p50_us),
    ("p99", "us", false, |one| one.p99_us),
    ("server_cpu", "us/op", false, |one| one.server_cpu_us),
];

impl Case {
    /// As in a row, behind the scheme.
    pub(super) fn label(self) -> String {
        format!(
            "{} B, {}, {} clients",
            self.value_bytes,
            self.mix.label(),
            self.clients
        )
    }
}

impl Report {
    /// Takes in what one case came to.
    pub(super) fn add(&mut self, case: Case, all: &[Measured]) {
        self.figures
            .extend(all.iter().map(|one| Figure::of(case, one)));
        for (ours, mine) in all.iter().filter(|(way, _)| way.role == Role::Ours) {
            for (peer, theirs) in all.iter().filter(|(way, _)| is_beside(ours, way)) {
                self.compare(case, (ours, mine), (peer, theirs));
            }
        }
    }

    fn compare(&mut self, case: Case, ours: (&Way, &[Round]), peer: (&Way, &[Round])) {
        let label = format!("{} {}, {}", ours.0.scheme, ours.0.transport, case.label());
        for (metric, unit, more_is_better, of) in METRICS {
            let rounds = ours.1.iter().zip(peer.1);
            let pairs: Vec<_> = rounds
                .map(|(mine, theirs)| (of(mine), of(theirs)))
                .collect();
            let more = Some(more_is_better);
            let peer_name = peer.0.label.as_str();
            let row = Row::of_rounds(("store", &label), (metric, unit), more, peer_name, &pairs);
            if metric == "throughput" {
                self.goals.extend(goals::line(case, (ours.0, peer.0), &row));
            }
            self.rows.push(row);
        }
    }

    /// Prints it as JSON lines: the figures, then the rows.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        for figure in &self.figures {
            serde_json::to_writer(&mut *out, figure)?;
            out.write_all(b"\n")?;
        }
        write_json(out, &self.rows)
    }

    /// Prints it for people.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let header = [
            "scheme",
            "transport",
            "mix",
            "value",
            "clients",
            "ops/s",
            "p50 us",
            "p99 us",
            "cpu us/op",
            "written",
        ];
        let mut cells = vec![header.map(str::to_owned).to_vec()];
        cells.extend(self.figures.iter().map(Figure::cells));
        write_cells(out, &cells, |column| column > 2)?;
        if !self.rows.is_empty() {
            writeln!(out)?;
            write_table(out, &self.rows)?;
        }
        out.flush()
    }
}

impl Figure {
    fn of(case: Case, (way, rounds): &Measured) -> Self {
        let middle = |of: Of| median(rounds.iter().map(of));
        let written: Vec<f64> = rounds
            .iter()
            .filter_map(|it| it.write_amplification)
            .collect();
        Self {
            scheme: way.scheme,
            mix: case.mix.label(),
            value_bytes: case.value_bytes,
            clients: case.clients,
            transport: way.transport,
            ops_per_second: middle(|one| one.ops_per_second),
            p50_us: middle(|one| one.p50_us),
            p99_us: middle(|one| one.p99_us),
            server_cpu_us_per_op: middle(|one| one.server_cpu_us),
            write_amplification: (!written.is_empty()).then(|| median(written)),
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.scheme.to_owned(),
            self.transport.to_owned(),
            self.mix.clone(),
            self.value_bytes.to_string(),
            self.clients.to_string(),
            figure(self.ops_per_second),
            figure(self.p50_us),
            figure(self.p99_us),
            figure(self.server_cpu_us_per_op),
            figure(self.write_amplification.unwrap_or(f64::NAN)),
        ]
    }
}

/// Whether ours is compared with another: as strong, and as near. Schemes of our own server are
/// told apart by what they promise, so they stand beside each other whatever it is.
fn is_beside(ours: &Way, other: &Way) -> bool {
    match other.role {
        Role::Ours => false,
        Role::Rival => ours.transport == other.transport,
        Role::Peer => {
            let is_near = match other.transport {
                "unix" => ours.transport == "shm",
                "tcp" => ours.transport == "tcp",
                _ => true,
            };
            is_near && ours.promise == other.promise
        }
    }
}

/// As in a line of a goal.
pub(super) fn promise(promise: Promise) -> &'static str {
    match promise {
        Promise::Later => "put",
        Promise::Durable => "put_durable",
    }
}
