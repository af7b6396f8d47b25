//! `cenote bench regeneration`: how fast lost slabs are rebuilt, and what it costs meanwhile.
//!
//! Each round kills one host of an rs:8+2 volume over `shm` with SIGKILL and takes the time
//! until every extent is healthy: first with nothing else going on, then under random reads and
//! random writes, with a rebuild that yields to them and with one that does not. `slab` takes
//! one slab step by step. Peer of the rebuilt bytes: `memcpy` of cold memory on one core
//! (eight bytes are read for each one rebuilt, so 0.22 is about the bound), and the making of
//! as much fresh memory. Peer of the
//! latencies: the same thread just before the kill.

mod slab;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cenote_fabric::{Region, RegionOptions};
use cenote_measure::random::Random;
use cenote_measure::statistics::median;
use cenote_volume::{Health, PAGE_BYTES, Volume};
use hdrhistogram::Histogram;

use super::Row;
use super::page::histogram;
use crate::beside::in_background;
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt::{self, Interrupt};

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Hosts killed for each of the three loads.
    pub rounds: usize,
    /// Size of the volume in MiB, all of it written.
    pub size_mib: u64,
    /// Size of the slab that is taken step by step, in MiB.
    pub slab_mib: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 3,
            size_mib: 4096,
            slab_mib: 256,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Load {
    None,
    Read,
    Write,
}

/// Longest that a rebuild may take before the benchmark gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the benchmark.
///
/// # Errors
/// When the cluster cannot be started, the volume does not heal, or the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    let _interrupt = Interrupt::catch()?;
    let hosts = 11 + 5 * options.rounds;
    // The last round has 11 hosts, and they must hold 1.25 times the volume.
    let memory_mib = (options.size_mib * 5 / 4 / 10).next_multiple_of(64) + 128;
    let cluster = LocalCluster::start(hosts, memory_mib, "shm")?;
    let volume = cluster.volume("rs:8+2".parse().expect("valid"), options.size_mib << 20)?;
    super::page::fill(&volume)?;
    let copy = copy_bytes_per_s();
    let fresh = fresh_bytes_per_s()?;
    let mut rates = Vec::new();
    let mut beside = [Load::Read, Load::Write].map(|load| {
        let paces = [true, false];
        (load, paces.map(|yields| (yields, Figures::default())))
    });
    // Those that yield come first: waits for a chunk are counted since the volume was made.
    let mut met = volume.status()?.repair;
    for yields in [true, false] {
        volume.pace_repairs(0, yields);
        for round in 0..options.rounds {
            eprintln!("regeneration: round {} of {}", round + 1, options.rounds);
            if yields {
                rates.push(kill_one(&cluster, &volume, Load::None)?.0);
            }
            for (load, paces) in &mut beside {
                let (rate, histograms) = kill_one(&cluster, &volume, *load)?;
                for (_, figures) in paces.iter_mut().filter(|(pace, _)| *pace == yields) {
                    figures.take(rate, &histograms);
                }
            }
        }
        if yields {
            met = volume.status()?.repair;
        }
    }
    drop(volume);
    drop(cluster);
    let rate = median(rates);
    let mut rows = Vec::new();
    let name = ("regeneration", "shm rs:8+2 rebuild, idle".to_owned());
    let throughput = |peer: &str, theirs: f64| {
        let unit = ("throughput", "MB/s");
        Row::new(name.clone(), unit, rate / 1e6, (peer, theirs / 1e6))
    };
    rows.push(throughput("memcpy, one core, cold", copy));
    rows.push(throughput("making fresh slabs, one core", fresh));
    for (load, paces) in beside {
        for (yields, figures) in paces {
            let how = if yields {
                "that yields"
            } else {
                "at full speed"
            };
            rows.extend(figures.rows(load, how, copy));
        }
    }
    let waits = met.fence_waits;
    eprintln!(
        "regeneration: of writes that met a chunk {} went into it at once and {} waited, {:.0} us at most; {} chunks void",
        met.fence_passes, waits.count, waits.max_us, met.chunks_void
    );
    for (metric, ours) in [("latency_p50", waits.p50_us), ("latency_p99", waits.p99_us)] {
        let case = "shm rs:8+2 write, waiting for a chunk of a rebuild that yields";
        let name = ("regeneration", case.to_owned());
        rows.push(Row::new(name, (metric, "us"), ours, ("goal", 1000.0)));
    }
    rows.extend(slab::run(options.rounds, options.slab_mib, copy)?);
    Ok(rows)
}

/// Of one load beside one kind of rebuild; a number per round.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    /// p50 before and during, p99 before and during, in ns.
    times: [Vec<f64>; 4],
}

impl Figures {
    fn take(&mut self, rate: f64, [before, during]: &[Histogram<u64>; 2]) {
        self.rates.push(rate);
        let taken = [(before, 0.5), (during, 0.5), (before, 0.99), (during, 0.99)];
        for (list, (histogram, share)) in self.times.iter_mut().zip(taken) {
            list.push(histogram.value_at_quantile(share) as f64);
        }
    }

    fn rows(self, load: Load, how: &str, copy: f64) -> Vec<Row> {
        let load = if load == Load::Read { "read" } else { "write" };
        let name = |case: String| ("regeneration", case);
        let case = format!("shm rs:8+2 {load} during a rebuild {how}");
        let [p50_before, p50, p99_before, p99] = self.times.map(median);
        let peer = "before the kill";
        vec![
            Row::new(
                name(case.clone()),
                ("latency_p50", "ns"),
                p50,
                (peer, p50_before),
            ),
            Row::new(name(case), ("latency_p99", "ns"), p99, (peer, p99_before)),
            Row::new(
                name(format!("shm rs:8+2 rebuild {how} beside {load}s")),
                ("throughput", "MB/s"),
                median(self.rates) / 1e6,
                ("memcpy, one core, cold", copy / 1e6),
            ),
        ]
    }
}

/// Kills the host of a slab and waits until the volume is whole; returns rebuilt bytes per
/// second, and the load's latencies before and during.
fn kill_one(
    cluster: &LocalCluster,
    volume: &Volume,
    load: Load,
) -> anyhow::Result<(f64, [Histogram<u64>; 2])> {
    let rebuilding = AtomicBool::new(false);
    let status = volume.status()?;
    let victim = status
        .extents
        .iter()
        .flat_map(|extent| extent.hosts.iter().flatten())
        .next();
    let victim = victim.context("the volume has no slabs")?;
    let index = status
        .hosts
        .iter()
        .position(|host| host.name == *victim)
        .context("an unknown host")?;
    let pid = cluster.pid(index).context("the host has no pid file")?;
    let mut worker = volume.worker()?;
    let mut histograms = [histogram(), histogram()];
    let drive = |over: &AtomicBool| {
        let mut random = Random::new(u64::from(pid));
        let mut page = vec![0x77; PAGE_BYTES];
        while load != Load::None && !over.load(Ordering::Relaxed) {
            let offset = random.below(volume.size_bytes() / PAGE_BYTES as u64) * PAGE_BYTES as u64;
            let start = Instant::now();
            match load {
                Load::Write => worker.write(offset, &page)?,
                Load::Read | Load::None => worker.read(offset, &mut page)?,
            }
            let elapsed = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            histograms[usize::from(rebuilding.load(Ordering::Acquire))].saturating_record(elapsed);
        }
        Ok(())
    };
    let rate = in_background(drive, || time_rebuild(volume, pid, &rebuilding))?;
    Ok((rate, histograms))
}

fn time_rebuild(volume: &Volume, pid: u32, rebuilding: &AtomicBool) -> anyhow::Result<f64> {
    /// Time for the latencies before the kill.
    const BEFORE: Duration = Duration::from_millis(500);
    std::thread::sleep(BEFORE);
    let rebuilt = volume.status()?.counters.rebuilt_bytes;
    // SAFETY: kill takes no pointers; the pid is of a host that this benchmark started.
    unsafe { libc::kill(i32::try_from(pid).context("a pid")?, libc::SIGKILL) };
    let killed = Instant::now();
    while volume.status()?.health == Health::Healthy {
        interrupt::check()?;
        if killed.elapsed() > PATIENCE {
            bail!("the loss of process {pid} was not noticed");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let start = Instant::now();
    rebuilding.store(true, Ordering::Release);
    while volume.status()?.health != Health::Healthy {
        interrupt::check()?;
        if start.elapsed() > PATIENCE {
            bail!("the volume did not heal: {:?}", volume.status()?);
        }
        // A status is work for the thread that paces the rebuild.
        std::thread::sleep(Duration::from_millis(5));
    }
    let bytes = volume.status()?.counters.rebuilt_bytes - rebuilt;
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

/// Making a slab as hosts do, in bytes per second: where new memory costs more than decoding,
/// as in virtual machines, a rebuild cannot be faster.
fn fresh_bytes_per_s() -> anyhow::Result<f64> {
    const BYTES: u64 = 256 << 20;
    let mut rates = Vec::new();
    for _ in 0..3 {
        let options = RegionOptions {
            huge: true,
            reserved: true,
            lock: false,
        };
        let start = Instant::now();
        let region = Region::create("bench-fresh", BYTES, options)?;
        region.populate()?;
        rates.push(BYTES as f64 / start.elapsed().as_secs_f64());
    }
    Ok(median(rates))
}

/// `memcpy` between two buffers larger than any cache, in bytes copied per second.
fn copy_bytes_per_s() -> f64 {
    const BYTES: usize = 256 << 20;
    let source = vec![1_u8; BYTES];
    let mut target = vec![2_u8; BYTES];
    let times = (0..5).map(|_| {
        let start = Instant::now();
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&target);
        start.elapsed().as_secs_f64()
    });
    BYTES as f64 / median(times)
}
