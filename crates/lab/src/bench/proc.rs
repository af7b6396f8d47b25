//! `cenote bench proc`: procedures beside the data, against verbs that fetch it.
//!
//! Hosts on threads of this process lend one slab each. Variants alternate in each round; figures
//! are medians of the rounds.

mod filter;
mod lines;
mod site;
mod writes;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::BytesMut;
use cenote_cli::failure::DONE;
use cenote_cli::transport::Transport;
use cenote_fabric::Time;
use cenote_measure::statistics::median;
use cenote_proc::remote::{Ended, Remote};
use cenote_proc::{ECHO, ProcedureId, Status, WALK, client as plain};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::{Reached, Walk};
use lines::Lines;
use serde::Serialize;
use site::{CACHE, GUESTS, Idle, Site};

/// `bench proc` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote bench proc --hops 16
  cenote bench proc --hops 1 --hops 16 --hops 64 --transport tcp --json
  cenote bench proc --empty --transport shm
  cenote bench proc --filter --transport tcp --out docs/papers/compucache
  cenote bench proc --writes

A linked list of randomly placed nodes is followed by one verb for each node, by a native procedure of
the host (native) and by one in WebAssembly (wasm), with one request in flight. Each variant has a JSON
line with the keys variant, transport, hops, ops_per_second and p50_us.")]
pub struct Args {
    /// Links to follow, 1 to 64; may be repeated
    #[arg(long, value_name = "N", default_values_t = [16_u32], value_parser = clap::value_parser!(u32).range(1..=64))]
    hops: Vec<u32>,
    /// Transport to measure; may be repeated [default: shm and tcp]
    #[arg(long, value_enum)]
    transport: Vec<Transport>,
    /// Variant to measure; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "VARIANT")]
    variant: Vec<Variant>,
    /// Memory that the list is spread over, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 65536, value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    memory: u32,
    /// Measure empty procedures in batches, in place of a list
    #[arg(long, conflicts_with = "filter")]
    empty: bool,
    /// Send all requests to one of two server threads, with and without work stealing; adds p99
    #[arg(long, conflicts_with_all = ["filter", "empty"])]
    uneven: bool,
    /// Measure a filter at selectivities of 0.1 to 100 %, in place of a list
    #[arg(long)]
    filter: bool,
    /// Measure additions to numbers in one copy and in two, in place of a list: by verbs that read
    /// and write, and by a procedure in WebAssembly, one and many in flight
    #[arg(long, conflicts_with_all = ["filter", "empty", "uneven"])]
    writes: bool,
    /// Folder for a table and a plot of the --filter results
    #[arg(long, value_name = "DIR", requires = "filter")]
    out: Option<PathBuf>,
}

/// How a list is followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Variant {
    /// One verb for each node
    OneSided,
    /// A native procedure of the host
    Native,
    /// A WebAssembly procedure
    Wasm,
    /// In this process: the cost of the memory itself
    Local,
}

impl Variant {
    const ALL: [Self; 4] = [Self::OneSided, Self::Native, Self::Wasm, Self::Local];

    fn name(self) -> &'static str {
        match self {
            Self::OneSided => "one-sided",
            Self::Native => "native",
            Self::Wasm => "wasm",
            Self::Local => "local",
        }
    }

    /// Those that are to be measured: all where none is named.
    fn chosen(named: &[Self]) -> Vec<Self> {
        let is_chosen = |variant: &Self| named.is_empty() || named.contains(variant);
        Self::ALL.into_iter().filter(is_chosen).collect()
    }
}

/// Rounds where nothing else is said.
const ROUNDS: usize = 5;
/// Of each variant in a round.
const SPAN: Duration = Duration::from_millis(150);
/// A node of the list: no two share a cache line.
const NODE: usize = 64;
/// Requests in a message, and under way, of empty procedures.
const BATCH: usize = 128;
const UNDER_WAY: usize = 1024;

/// What was measured of a variant.
#[derive(Clone, Debug, Serialize)]
struct Line {
    variant: &'static str,
    transport: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hops: Option<u32>,
    ops_per_second: f64,
    p50_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_us: Option<f64>,
}

pub fn run(args: &Args, rounds: Option<usize>, to: (bool, Option<&Path>)) -> Result<u8> {
    let rounds = rounds.unwrap_or(ROUNDS);
    let mut out = Lines::to(to.0, to.1)?;
    let transports: Vec<String> = match args.transport.is_empty() {
        true => vec!["shm".into(), "tcp".into()],
        false => args.transport.iter().map(ToString::to_string).collect(),
    };
    for transport in &transports {
        if args.filter {
            let variants = Variant::chosen(&args.variant);
            let folder = args.out.as_deref();
            filter::run(&variants, transport, rounds, &mut out, folder)?;
            continue;
        }
        let bytes = usize::try_from(args.memory)? << 10;
        if args.writes {
            out.extend(&writes::run(transport, rounds)?)?;
            continue;
        }
        if args.uneven {
            out.extend(&uneven(bytes, transport, rounds)?)?;
            continue;
        }
        let site = Site::start(transport, 1, bytes as u64, true)?;
        let lines = if args.empty {
            empty(&site, &Variant::chosen(&args.variant), transport, rounds)?
        } else {
            let list = List::new(bytes);
            site.fill(&list.bytes)?;
            let variants = Variant::chosen(&args.variant);
            let mut lines = Vec::new();
            for hops in &args.hops {
                lines.extend(chase(&site, &list, *hops, &variants, (transport, rounds))?);
            }
            lines
        };
        out.extend(&lines)?;
    }
    Ok(DONE)
}

impl Line {
    /// Medians of requests a second and of the p50 in us, of each round.
    fn of(variant: &'static str, transport: &str, (ops, p50): (Vec<f64>, Vec<f64>)) -> Self {
        Self {
            variant,
            transport: transport.to_owned(),
            hops: None,
            ops_per_second: median(ops),
            p50_us: median(p50),
            p99_us: None,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hops = self
            .hops
            .map_or(String::new(), |hops| format!("{hops} hops"));
        let p99 = self
            .p99_us
            .map_or(String::new(), |us| format!(", p99 {us:.1} us"));
        write!(
            f,
            "{:<22} {:<4} {hops:<8} {:>12.0} per second, p50 {:.1} us{p99}",
            self.variant, self.transport, self.ops_per_second, self.p50_us
        )
    }
}

/// Latencies of one variant in one round.
struct Seen {
    latencies: Vec<Duration>,
    took: Duration,
}

impl Seen {
    fn measure(mut once: impl FnMut() -> Result<()>) -> Result<Self> {
        once()?;
        let start = Instant::now();
        let mut latencies = Vec::new();
        while start.elapsed() < SPAN {
            let begun = Instant::now();
            once()?;
            latencies.push(begun.elapsed());
        }
        let took = start.elapsed();
        Ok(Self { latencies, took })
    }

    fn ops_per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    fn p50_us(&mut self) -> f64 {
        self.percentile_us(50)
    }

    fn percentile_us(&mut self, percent: usize) -> f64 {
        let at = (self.latencies.len() - 1) * percent / 100;
        let (_, found, _) = self.latencies.select_nth_unstable(at);
        found.as_secs_f64() * 1e6
    }
}

/// A ring of nodes at random places of a memory.
struct List {
    bytes: Vec<u8>,
    order: Vec<usize>,
}

impl List {
    fn new(len_bytes: usize) -> Self {
        // Address 0 ends a list.
        let mut order: Vec<usize> = (1..len_bytes / NODE).collect();
        let mut random = 7_u64;
        for at in (1..order.len()).rev() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            order.swap(at, (random >> 33) as usize % (at + 1));
        }
        let mut bytes = vec![0; len_bytes];
        for (at, node) in order.iter().enumerate() {
            let next = order[(at + 1) % order.len()] * NODE;
            bytes[node * NODE..][..8].copy_from_slice(&(next as u64).to_le_bytes());
            bytes[node * NODE + 8..][..8].copy_from_slice(&(*node as u64).to_le_bytes());
        }
        Self { bytes, order }
    }

    /// A walk that begins where no earlier one went for long.
    fn walk(&self, number: usize, hops: u32) -> (Walk, u64) {
        let start = number * 97 % self.order.len();
        let end = self.order[(start + hops as usize) % self.order.len()];
        let walk = Walk {
            node: (self.order[start] * NODE) as u64,
            hops,
            next_at: 0,
            value_at: 8,
            away: Away::Stop,
        };
        (walk, end as u64)
    }
}

/// Follows the list by verbs and by procedures, in turn.
fn chase(
    site: &Site,
    list: &List,
    hops: u32,
    variants: &[Variant],
    (transport, rounds): (&str, usize),
) -> Result<Vec<Line>> {
    let mut path = site.path(1)?;
    let mut remote = site.remote(1)?;
    let mut number = 0;
    let mut figures = vec![(Vec::new(), Vec::new()); variants.len()];
    for _ in 0..rounds {
        for (variant, figures) in variants.iter().zip(&mut figures) {
            let mut seen = Seen::measure(|| {
                number += 1;
                let (walk, end) = list.walk(number, hops);
                let value = match variant {
                    Variant::OneSided => {
                        let mut buffer = BytesMut::zeroed(8);
                        let read = |address: u64, target: &mut [u8]| {
                            let taken = std::mem::take(&mut buffer);
                            buffer = site::read(&mut path, &site.window, address, taken)?;
                            target.copy_from_slice(&buffer);
                            anyhow::Ok(())
                        };
                        plain::walk(read, walk)?.value
                    }
                    Variant::Native => walk_there(&mut remote, WALK, walk)?,
                    Variant::Wasm => walk_there(&mut remote, GUESTS[1].1, walk)?,
                    Variant::Local => {
                        let read = |address: u64, target: &mut [u8]| {
                            let at = usize::try_from(address)?;
                            target.copy_from_slice(&list.bytes[at..at + target.len()]);
                            anyhow::Ok(())
                        };
                        plain::walk(read, walk)?.value
                    }
                };
                ensure!(value == end, "the list ends elsewhere");
                Ok(())
            })?;
            figures.0.push(seen.ops_per_second());
            figures.1.push(seen.p50_us());
        }
    }
    let lines = variants.iter().zip(figures);
    let line = |(variant, figures): (&Variant, _)| Line {
        hops: Some(hops),
        ..Line::of(variant.name(), transport, figures)
    };
    Ok(lines.map(line).collect())
}

fn walk_there(remote: &mut Remote, id: ProcedureId, walk: Walk) -> Result<u64> {
    let answer = ask(remote, id, &walk.to_bytes())?;
    let reached = Reached::of(&answer);
    Ok(reached.map_or(u64::MAX, |reached| reached.value))
}

/// One request, from its start to its end.
fn ask(remote: &mut Remote, id: ProcedureId, argument: &[u8]) -> Result<Vec<u8>> {
    remote.submit(CACHE, id, argument, 0)?;
    remote.flush();
    let (mut ended, mut idle) = (Vec::new(), Idle::new());
    loop {
        remote.poll(Time::now(), &mut ended);
        if let Some(end) = ended.pop() {
            let (status, answer) = end.result?;
            ensure!(status == Status::Done, "a procedure ended as {status:?}");
            return Ok(answer);
        }
        if idle.is_long() {
            remote.wait(Duration::from_millis(50));
        }
    }
}

/// Empty procedures, as many at once as there may be.
fn empty(site: &Site, chosen: &[Variant], transport: &str, rounds: usize) -> Result<Vec<Line>> {
    let mut remote = site.remote(BATCH)?;
    let mut variants = vec![("empty-native", ECHO), ("empty-wasm", GUESTS[0].1)];
    variants.retain(|(_, id)| {
        chosen.contains(if *id == ECHO {
            &Variant::Native
        } else {
            &Variant::Wasm
        })
    });
    let mut figures = vec![(Vec::new(), Vec::new()); variants.len()];
    for _ in 0..rounds {
        for ((_, id), figures) in variants.iter().zip(&mut figures) {
            let mut seen = flood(&mut remote, *id, || b"16 bytes of data".to_vec())?;
            figures.0.push(seen.ops_per_second());
            figures.1.push(seen.p50_us());
        }
    }
    let lines = variants.into_iter().zip(figures);
    let lines = lines.map(|((variant, _), figures)| Line::of(variant, transport, figures));
    Ok(lines.collect())
}

/// Walks of 200 links, all by one connection to one of two server threads.
fn uneven(bytes: usize, transport: &str, rounds: usize) -> Result<Vec<Line>> {
    const HOPS: u32 = 200;
    let list = List::new(bytes);
    let sites = [false, true].map(|helps| Site::start(transport, 2, bytes as u64, helps));
    let mut figures = [const { (Vec::new(), Vec::new(), Vec::new()) }; 2];
    let mut number = 0;
    let sites = sites.into_iter().collect::<Result<Vec<_>>>()?;
    for site in &sites {
        site.fill(&list.bytes)?;
    }
    for _ in 0..rounds {
        for (site, figures) in sites.iter().zip(&mut figures) {
            let mut remote = site.remote(BATCH)?;
            let mut seen = flood(&mut remote, WALK, || {
                number += 1;
                list.walk(number, HOPS).0.to_bytes().to_vec()
            })?;
            figures.0.push(seen.ops_per_second());
            figures.1.push(seen.percentile_us(50));
            figures.2.push(seen.percentile_us(99));
        }
    }
    let variants = ["alone", "helped"];
    let lines = variants.into_iter().zip(figures);
    let mut measured = Vec::new();
    for (variant, (ops, p50, p99)) in lines {
        measured.push(Line {
            hops: Some(HOPS),
            p99_us: Some(median(p99)),
            ..Line::of(variant, transport, (ops, p50))
        });
    }
    Ok(measured)
}

/// As many requests at once as there may be, for a while.
fn flood(
    remote: &mut Remote,
    id: ProcedureId,
    mut argument: impl FnMut() -> Vec<u8>,
) -> Result<Seen> {
    let start = Instant::now();
    let since = |at: Instant| u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut latencies = Vec::new();
    let mut ended: Vec<Ended> = Vec::new();
    let mut idle = Idle::new();
    let mut took = Duration::ZERO;
    while took < SPAN || remote.outstanding() > 0 {
        took = start.elapsed();
        if took < SPAN {
            // One look at the clock for a batch: it would cost more than a procedure.
            let token = since(start);
            for _ in 0..BATCH {
                if remote.outstanding() >= UNDER_WAY
                    || remote.submit(CACHE, id, &argument(), token).is_err()
                {
                    break;
                }
            }
        }
        remote.flush();
        remote.poll(Time::now(), &mut ended);
        if !ended.is_empty() {
            idle = Idle::new();
        }
        let now = since(start);
        for end in ended.drain(..) {
            let (status, _) = end.result?;
            ensure!(status == Status::Done, "a procedure ended as {status:?}");
            latencies.push(Duration::from_nanos(now.saturating_sub(end.token)));
        }
        if remote.outstanding() > 0 && idle.is_long() {
            remote.wait(Duration::from_millis(1));
        }
    }
    let took = start.elapsed();
    Ok(Seen { latencies, took })
}
