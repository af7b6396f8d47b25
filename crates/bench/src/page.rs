//! `cenote bench page`: 4 KiB random reads and writes of a volume, beside bare copies.
//!
//! For each transport, scheme, thread count and working set (warm: inside the caches; cold:
//! far larger), rounds of all cases are interleaved and the median over rounds is kept.
//! Peers: on `shm` the same bytes copied from and to the same kind of memory without us
//! (one 4 KiB copy, three, eight or ten of 512 B); everywhere `rs:8+2` beside `plain`
//! (read) and `mirror:3` (write); checksums and seals beside the same scheme without (what they add
//! is `protected`); volumes that outlive their owner beside those that do not. Below 1 is better for
//! latency, CPU and system calls.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use cenote_fabric::{Region, RegionOptions};
use cenote_measure::random::Random;
use cenote_measure::statistics::median;
use cenote_volume::{PAGE_BYTES, Protection, Scheme, SealKey, Volume, Worker};
use hdrhistogram::Histogram;

use super::Row;
use crate::beside;
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt::{self, Interrupt};

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// `shm`, `tcp`, or both.
    pub transports: Vec<String>,
    /// Rounds of which the median is taken.
    pub rounds: usize,
    /// Operations per round and thread on `shm`, enough for page tables to be as warm as in use; a
    /// fiftieth of it on `tcp`.
    pub ops: usize,
    /// Cold working set in MiB.
    pub cold_mib: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transports: vec!["shm".into(), "tcp".into()],
            rounds: 5,
            ops: 200_000,
            cold_mib: 768,
        }
    }
}

const WARM_MIB: u64 = 1;
/// Schemes; and after a space what protects the pages, or that the volume outlives its owner.
const SCHEMES: [&str; 7] = [
    "plain",
    "mirror:3",
    "rs:8+2",
    "rs:8+2 checksum",
    "rs:8+2 sealed",
    "plain kept",
    "rs:8+2 kept",
];
const HOSTS: usize = 12;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verb {
    Read,
    Write,
}

/// What one round of one case measured.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    p50_ns: f64,
    p99_ns: f64,
    p999_ns: f64,
    ops_per_s: f64,
    client_cpu_ns: f64,
    host_cpu_ns: f64,
    system_calls: f64,
}

struct Case {
    scheme: &'static str,
    verb: Verb,
    threads: usize,
    cold: bool,
    samples: Vec<Sample>,
    bare: Vec<f64>,
}

/// Runs the benchmark.
///
/// # Errors
/// When the local cluster or a volume cannot be started, an operation fails, or the run was
/// interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    let _interrupt = Interrupt::catch()?;
    let mut rows = Vec::new();
    for transport in &options.transports {
        rows.extend(run_transport(transport, options)?);
    }
    Ok(rows)
}

fn run_transport(transport: &str, options: &Options) -> anyhow::Result<Vec<Row>> {
    let size_bytes = options.cold_mib << 20;
    // All volumes fit: 2 + 3 + 4 x 1.25 times the size, and room for uneven placement.
    let memory_mib = (options.cold_mib * 11)
        .div_ceil(HOSTS as u64)
        .next_multiple_of(64)
        + 128;
    eprintln!("page: {HOSTS} hosts of {memory_mib} MiB over {transport}");
    let cluster = LocalCluster::start(HOSTS, memory_mib, transport)?;
    let mut volumes = Vec::new();
    for name in SCHEMES {
        interrupt::check()?;
        let volume = open(&cluster, name, size_bytes)?;
        fill(&volume)?;
        volumes.push(volume);
    }
    let bare = (transport == "shm")
        .then(|| BareMemory::new(size_bytes))
        .transpose()?;
    let mut cases = cases();
    for round in 0..options.rounds {
        eprintln!(
            "page: {transport}, round {} of {}",
            round + 1,
            options.rounds
        );
        for case in &mut cases {
            interrupt::check()?;
            let index = SCHEMES
                .iter()
                .position(|name| *name == case.scheme)
                .expect("listed");
            let set = if case.cold {
                size_bytes
            } else {
                WARM_MIB << 20
            };
            let ops = if transport == "tcp" {
                options.ops / 50
            } else {
                options.ops
            };
            case.samples
                .push(measure(&volumes[index], &cluster, case, set, ops)?);
            // What protects a page is compared with the same pages without it.
            let has_bare = case.threads == 1 && !case.scheme.contains(' ');
            if let Some(bare) = bare.as_ref().filter(|_| has_bare) {
                case.bare.push(bare.measure(case, set, ops));
            }
        }
    }
    Ok(report(transport, &cases))
}

/// A volume of [`SCHEMES`].
fn open(cluster: &LocalCluster, name: &str, size_bytes: u64) -> anyhow::Result<Arc<Volume>> {
    let parse = |scheme: &str| scheme.parse().expect("listed schemes are valid");
    if let Some(scheme) = name.strip_suffix(" kept") {
        return cluster.kept_volume(parse(scheme), size_bytes);
    }
    let (scheme, protection) = protection_of(name);
    cluster.protected_volume(parse(scheme), protection, size_bytes)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for threads in [1, 2] {
        for cold in [false, true] {
            for verb in [Verb::Read, Verb::Write] {
                for scheme in SCHEMES {
                    cases.push(Case {
                        scheme,
                        verb,
                        threads,
                        cold,
                        samples: Vec::new(),
                        bare: Vec::new(),
                    });
                }
            }
        }
    }
    cases
}

/// Scheme and protection of a listed volume.
pub(super) fn protection_of(name: &str) -> (&str, Protection) {
    match name.split_once(' ') {
        Some((scheme, "checksum")) => (scheme, Protection::Checksum),
        Some((scheme, _)) => (
            scheme,
            Protection::Sealed(SealKey::new([7; SealKey::BYTES])),
        ),
        None => (name, Protection::None),
    }
}

/// Writes every page once, so that reads find data.
pub fn fill(volume: &Volume) -> anyhow::Result<()> {
    let mut worker = volume.worker()?;
    let chunk: Vec<u8> = (0..FILL_BYTES).map(filled).collect();
    for offset in (0..volume.size_bytes()).step_by(chunk.len()) {
        worker
            .write(offset, &chunk)
            .with_context(|| format!("fill at {offset}"))?;
    }
    Ok(())
}

/// Whether these bytes from `offset` on are as [`fill`] wrote them.
pub(crate) fn is_filled(offset: u64, bytes: &[u8]) -> bool {
    let first = offset as usize % FILL_BYTES;
    let mut places = bytes.iter().enumerate();
    places.all(|(at, byte)| *byte == filled(first + at))
}

/// The byte in this place of a piece that is filled.
fn filled(at: usize) -> u8 {
    (at * 31 % 251) as u8
}

/// Bytes that are filled at a time.
const FILL_BYTES: usize = 1 << 20;

fn measure(
    volume: &Arc<Volume>,
    cluster: &LocalCluster,
    case: &Case,
    set: u64,
    ops: usize,
) -> anyhow::Result<Sample> {
    let workers: Vec<Worker> = (0..case.threads)
        .map(|_| volume.worker())
        .collect::<Result<_, _>>()?;
    let host_cpu = cluster.cpu_ns();
    let client_cpu = process_cpu_ns();
    let start = Instant::now();
    let verb = case.verb;
    let results = beside::all(workers.into_iter().zip(0..), |(worker, index)| {
        drive(worker, verb, set, ops, index)
    });
    let elapsed = start.elapsed();
    let client_cpu = process_cpu_ns() - client_cpu;
    let host_cpu = cluster.cpu_ns().saturating_sub(host_cpu);
    let mut all = histogram();
    let mut calls = 0;
    for result in results {
        let (histogram, system_calls) = result?;
        all.add(&histogram).expect("same bounds");
        calls += system_calls;
    }
    let total = all.len() as f64;
    Ok(Sample {
        p50_ns: all.value_at_quantile(0.5) as f64,
        p99_ns: all.value_at_quantile(0.99) as f64,
        p999_ns: all.value_at_quantile(0.999) as f64,
        ops_per_s: total / elapsed.as_secs_f64(),
        client_cpu_ns: client_cpu as f64 / total,
        host_cpu_ns: host_cpu as f64 / total,
        system_calls: calls as f64 / total,
    })
}

fn drive(
    mut worker: Worker,
    verb: Verb,
    set: u64,
    ops: usize,
    seed: u64,
) -> anyhow::Result<(Histogram<u64>, u64)> {
    let mut random = Random::new(seed);
    let mut page = vec![0x5a_u8; PAGE_BYTES];
    let mut histogram = histogram();
    let calls = worker.system_calls();
    for _ in 0..ops {
        let offset = random.below(set / PAGE_BYTES as u64) * PAGE_BYTES as u64;
        let start = ticks();
        match verb {
            Verb::Read => worker.read(offset, &mut page)?,
            Verb::Write => worker.write(offset, &page)?,
        }
        histogram.saturating_record(ticks_to_ns(ticks() - start));
    }
    Ok((histogram, worker.system_calls() - calls))
}

/// The same bytes in the same kind of memory, copied without a volume.
struct BareMemory {
    regions: Vec<Region>,
}

impl BareMemory {
    /// As many regions as there are hosts, together as large as the largest case copies from.
    fn new(size_bytes: u64) -> anyhow::Result<Self> {
        let each = (size_bytes / 8).next_multiple_of(2 << 20);
        let options = RegionOptions {
            huge: true,
            reserved: true,
            lock: false,
        };
        let make = |index: usize| -> anyhow::Result<Region> {
            let region = Region::create(&format!("bare-{index}"), each, options)?;
            region.populate()?;
            Ok(region)
        };
        Ok(Self {
            regions: (0..HOSTS).map(make).collect::<anyhow::Result<_>>()?,
        })
    }

    /// Median ns of the copies that the case cannot do without.
    fn measure(&self, case: &Case, set: u64, ops: usize) -> f64 {
        let scheme: Scheme = case.scheme.parse().expect("listed schemes are valid");
        let copies = match case.verb {
            Verb::Read => scheme.k(),
            Verb::Write => scheme.members(),
        };
        let split = scheme.split_bytes();
        // Plain and mirror spread the set over all regions; rs has one eighth of it in each.
        let spread = if scheme.k() == 1 { 8 } else { 1 };
        let slots = set / spread / scheme.k() as u64 / split as u64;
        let mut random = Random::new(99);
        let mut page = vec![0_u8; PAGE_BYTES.max(copies * split)];
        let mut histogram = histogram();
        for _ in 0..ops {
            let offset = random.below(slots.max(1)) * split as u64;
            let first = random.below(self.regions.len() as u64) as usize;
            let start = ticks();
            for copy in 0..copies {
                let region = &self.regions[(first + copy) % self.regions.len()];
                let local = &mut page[copy * split..][..split];
                let remote = region.in_place(offset, split).pointer();
                // SAFETY: both are valid for `split` bytes, and nobody truncates these regions.
                unsafe {
                    match case.verb {
                        Verb::Read => local.as_mut_ptr().copy_from_nonoverlapping(remote, split),
                        Verb::Write => local.as_ptr().copy_to_nonoverlapping(remote, split),
                    }
                }
            }
            histogram.saturating_record(ticks_to_ns(ticks() - start));
        }
        histogram.value_at_quantile(0.5) as f64
    }
}

/// A metric, its unit, and where a sample holds it.
type Field = (&'static str, &'static str, fn(&Sample) -> f64);

fn report(transport: &str, cases: &[Case]) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in cases {
        let name = format!(
            "{transport} {} {} {} {} thread{}",
            case.scheme,
            if case.verb == Verb::Read {
                "read"
            } else {
                "write"
            },
            if case.cold { "cold" } else { "warm" },
            case.threads,
            if case.threads == 1 { "" } else { "s" },
        );
        let beside = match case.verb {
            _ if case.scheme == "plain kept" => "plain",
            _ if case.scheme.contains(' ') => "rs:8+2",
            Verb::Read => "plain",
            Verb::Write if transport == "shm" => "mirror:3",
            Verb::Write => "plain",
        };
        let same = |other: &&Case| {
            other.scheme == beside
                && (other.verb, other.threads, other.cold) == (case.verb, case.threads, case.cold)
        };
        let peer = cases
            .iter()
            .find(same)
            .expect("every scheme has every case");
        let fields: [Field; 7] = [
            ("latency_p50", "ns", |sample| sample.p50_ns),
            ("latency_p99", "ns", |sample| sample.p99_ns),
            ("latency_p999", "ns", |sample| sample.p999_ns),
            ("throughput", "ops/s", |sample| sample.ops_per_s),
            ("client_cpu", "ns/op", |sample| sample.client_cpu_ns),
            ("hosts_cpu", "ns/op", |sample| sample.host_cpu_ns),
            ("client_system_calls", "calls/op", |sample| {
                sample.system_calls
            }),
        ];
        if !case.bare.is_empty() {
            let (ours, theirs) = (
                median(case.samples.iter().map(|s| s.p50_ns)),
                median(case.bare.iter().copied()),
            );
            rows.push(Row::new(
                ("page", name.clone()),
                ("latency_p50", "ns"),
                ours,
                ("bare copies", theirs),
            ));
        }
        for (metric, unit, field) in fields {
            let (ours, theirs) = (
                median(case.samples.iter().map(field)),
                median(peer.samples.iter().map(field)),
            );
            rows.push(Row::new(
                ("page", name.clone()),
                (metric, unit),
                ours,
                (format!("our {beside}"), theirs),
            ));
        }
    }
    rows
}

/// Latencies in ns, up to 10 s.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("constant bounds are valid")
}

/// CPU time of this process, in ns.
fn process_cpu_ns() -> u64 {
    let mut spec = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `spec` is a valid timespec for the call to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut spec) };
    spec.tv_sec.unsigned_abs() * 1_000_000_000 + spec.tv_nsec.unsigned_abs()
}

/// A cheap timer: two clock reads would cost a fifth of what is measured.
#[cfg(target_arch = "x86_64")]
pub(super) fn ticks() -> u64 {
    let mut core = 0;
    // SAFETY: every x86-64 has the instruction; `core` is valid to write.
    unsafe { std::arch::x86_64::__rdtscp(&raw mut core) }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn ticks() -> u64 {
    cenote_fabric::Time::now().0
}

/// Ticks in ns, by a calibration against the clock made once.
pub(super) fn ticks_to_ns(ticks: u64) -> u64 {
    static NS_PER_TICK: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    let scale = NS_PER_TICK.get_or_init(|| {
        let (clock, start) = (Instant::now(), self::ticks());
        while clock.elapsed().as_millis() < 20 {
            std::hint::spin_loop();
        }
        clock.elapsed().as_nanos() as f64 / (self::ticks() - start) as f64
    });
    (ticks as f64 * scale) as u64
}
