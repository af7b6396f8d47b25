//! Records of a range that match, brought to the client: by shipping all of them, or by a
//! procedure.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::BytesMut;
use cenote_cache::path::{OneSided, Operation, Path as _};
use cenote_fabric::{Time, wait};
use cenote_measure::figure::{Legend, Line as Curve, Plot, Scale};
use cenote_proc::remote::Remote;
use cenote_proc::{FILTER, ProcedureId, Status};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::{Aggregate, Select};
use serde::Serialize;

use super::lines::Lines;
use super::site::{CACHE, GUESTS, Idle, Site};
use super::{Variant, median};

/// Bytes of a record: its field, then the rest.
const RECORD: usize = 64;
/// Bytes of the range.
const RANGE: usize = 4 << 20;
/// Parts of it that are under way at the same time.
const PARTS: usize = 16;
/// Bytes of a read.
const READ: usize = 64 << 10;
/// Matching records, of a thousand.
const SELECTIVITIES: [u64; 7] = [1, 3, 10, 30, 100, 300, 1000];

#[derive(Serialize)]
struct Line<'a> {
    variant: &'a str,
    transport: &'a str,
    selectivity_percent: f64,
    mb_per_second: f64,
    ops_per_second: f64,
    p50_us: f64,
}

/// What it is called when the records come by verbs.
const SHIPPED: &str = "shipped";

pub fn run(
    variants: &[Variant],
    transport: &str,
    rounds: usize,
    lines: &mut Lines,
    out: Option<&FilePath>,
) -> Result<()> {
    let site = Site::start(transport, 1, RANGE as u64, true)?;
    let mut bytes = vec![0; RANGE];
    for (number, record) in bytes.chunks_exact_mut(RECORD).enumerate() {
        // Each thousandth has each value once, in no order.
        let field = (number as u64).wrapping_mul(617) % 1000;
        record[..8].copy_from_slice(&field.to_le_bytes());
        record[8..16].copy_from_slice(&(number as u64).to_le_bytes());
    }
    site.fill(&bytes)?;
    let mut path = site.path(PARTS)?;
    let mut remote = site.remote(PARTS)?;
    let variants = variants
        .iter()
        .filter(|variant| **variant != Variant::Local);
    let variants: Vec<_> = variants.copied().collect();
    let name = |variant: &Variant| match variant {
        Variant::OneSided => SHIPPED,
        other => other.name(),
    };
    let names: Vec<_> = variants.iter().map(name).collect();
    let mut table = format!("selectivity_percent,{}\n", names.join(","));
    let mut curves: Vec<_> = names
        .iter()
        .map(|name| Curve::new(name, Vec::new()))
        .collect();
    for most in SELECTIVITIES {
        let mut took = vec![Vec::new(); variants.len()];
        let right = bytes
            .chunks_exact(RECORD)
            .filter(|record| field(record) < most);
        let right = right.count();
        for _ in 0..rounds {
            for (variant, took) in variants.iter().zip(&mut took) {
                let start = Instant::now();
                let found = match variant {
                    Variant::OneSided => ship(&mut path, &site, most)?,
                    Variant::Native => select(&mut remote, FILTER, most)?,
                    _ => select(&mut remote, GUESTS[2].1, most)?,
                };
                took.push(start.elapsed().as_secs_f64());
                ensure!(found == right, "{found} records in place of {right}");
            }
        }
        let percent = most as f64 / 10.0;
        write!(table, "{percent}")?;
        for ((variant, took), curve) in names.iter().zip(took).zip(&mut curves) {
            let seconds = median(took);
            let line = Line {
                variant,
                transport,
                selectivity_percent: percent,
                mb_per_second: RANGE as f64 / seconds / 1e6,
                ops_per_second: 1.0 / seconds,
                p50_us: seconds * 1e6,
            };
            write!(table, ",{:.1}", line.mb_per_second)?;
            curve.points.push((percent, line.mb_per_second));
            lines.push(&line)?;
        }
        table.push('\n');
    }
    let Some(out) = out else { return Ok(()) };
    let most = curves.iter().flat_map(|curve| &curve.points);
    let most = most.fold(0.0, |most: f64, (_, speed)| most.max(*speed));
    let plot = Plot {
        title: format!("records that match, over {transport}"),
        x_label: "records that match, %",
        y_label: "MB of records looked at a second",
        x: 0.1..100.0,
        x_scale: Scale::Logarithmic,
        y: 0.0..most * 1.1,
        lines: curves,
        legend: Legend::UpperRight,
    };
    for (ending, text) in [("csv", table), ("svg", plot.svg()?)] {
        let file = out.join(format!("filter-{transport}.{ending}"));
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<8} {:<4} {:>5} % {:>8.1} MB/s",
            self.variant, self.transport, self.selectivity_percent, self.mb_per_second
        )
    }
}

fn field(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[..8].try_into().expect("8 bytes"))
}

/// All records by verbs, filtered here.
fn ship(path: &mut OneSided, site: &Site, most: u64) -> Result<usize> {
    let (mut next, mut found, mut under_way) = (0, 0, 0);
    let mut buffers: Vec<_> = (0..PARTS).map(|_| BytesMut::zeroed(READ)).collect();
    let mut ended = VecDeque::new();
    let mut idle = Idle::new();
    while next < RANGE || under_way > 0 {
        while next < RANGE
            && let Some(buffer) = buffers.pop()
        {
            let read = Operation::Read(buffer);
            if path.submit(&site.window, next as u64, read, 0).is_err() {
                bail!("no room for a read");
            }
            (next, under_way) = (next + READ, under_way + 1);
        }
        path.flush();
        path.poll(Time::now(), &mut ended);
        if !ended.is_empty() {
            idle = Idle::new();
        } else if idle.is_long() {
            let fds: Vec<_> = path.fd().into_iter().collect();
            wait(&fds, Some(Duration::from_millis(50)))?;
        }
        while let Some(end) = ended.pop_front() {
            end.result?;
            under_way -= 1;
            if let Operation::Read(buffer) = end.operation {
                let records = buffer.chunks_exact(RECORD);
                found += records.filter(|record| field(record) < most).count();
                buffers.push(buffer);
            }
        }
    }
    Ok(found)
}

/// The records that match, by requests for parts of the range that go on until they have all of
/// theirs.
fn select(remote: &mut Remote, id: ProcedureId, most: u64) -> Result<usize> {
    let part = RANGE / PARTS;
    let ask = |remote: &mut Remote, select: Select| {
        remote.submit(CACHE, id, &select.to_bytes(Aggregate::new()), 0)
    };
    for number in 0..PARTS {
        let select = Select {
            from: (number * part) as u64,
            to: ((number + 1) * part) as u64,
            low: 0,
            high: most,
            record: u32::try_from(RECORD)?,
            field_at: 0,
            sum_at: 8,
            away: Away::Stop,
            collect: true,
        };
        ask(remote, select)?;
    }
    let (mut found, mut ended, mut idle) = (0, Vec::new(), Idle::new());
    while remote.outstanding() > 0 {
        remote.flush();
        remote.poll(Time::now(), &mut ended);
        if !ended.is_empty() {
            idle = Idle::new();
        } else if idle.is_long() {
            remote.wait(Duration::from_millis(50));
        }
        for end in ended.drain(..) {
            let (status, answer) = end.result?;
            let (select, _, records) = Select::of(&answer).context("no answer of a filter")?;
            found += records.len() / RECORD;
            match status {
                Status::Done => {}
                Status::Stopped => ask(remote, select)?,
                other => bail!("a filter ended as {other:?}"),
            }
        }
    }
    Ok(found)
}
