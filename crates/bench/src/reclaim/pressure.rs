//! Hosts whose own programs need the memory that they lend.
//!
//! Two sides of it: what a program that pages to them loses while slabs are taken back, about one
//! a second, and what a program on the host's own machine loses while the host gives way. Hosts
//! are told of their machine's memory by a file each, which is rewritten here.
//! Paper: \[infiniswap17\] section 7.3.1 (evictions), 7.3.2 and Table 1 (the local program).

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;

use cenote_pool::pressure::BETA;
use cenote_volume::{Backing, PAGE_BYTES, Volume};

use super::{Options, wait_for};
use crate::Row;
use crate::apps::memcached_load::{MemcachedLoad, Stretch};
use crate::apps::mix::Mix;
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::memcached::Memcached;
use crate::swap_rig::oom::OomKills;
use crate::swap_rig::our_swap::OurSwap;
use crate::swap_rig::squeeze::{LiftOnDrop, UNLIMITED_BYTES, squeeze};

pub(super) fn run(options: &Options, interrupt: &Interrupt) -> anyhow::Result<Vec<Row>> {
    let mut rows = taken_from(options, interrupt)?;
    for kind in [Mix::Etc, Mix::Sys] {
        rows.extend(beside(kind, options, interrupt)?);
    }
    Ok(rows)
}

/// memcached at 75% while hosts take slabs back.
fn taken_from(options: &Options, interrupt: &Interrupt) -> anyhow::Result<Vec<Row>> {
    let name = format!("cenote-reclaim-{}", std::process::id());
    let group = MemoryCgroup::create(&name, UNLIMITED_BYTES).context("make a memory cgroup")?;
    let socket = options.dir.join("memcached.sock");
    let server = Memcached::start(&socket, options.program_mib * 4, &group)?;
    let mut load = MemcachedLoad::new(Mix::Sys, options.seed, (options.program_mib << 20) / 10 * 9);
    load.fill(server.socket(), interrupt)?;
    let peak = group.usage_bytes().context("read the cgroup's usage")?;
    let (mut rates, mut losses) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let swap_mib = options.program_mib * 2;
        // Three times what is needed: what one takes back, another has room for.
        let host_mib = (swap_mib * 3 / HOST_COUNT as u64).next_multiple_of(SLAB_MIB);
        let cluster = start(options, HOST_COUNT, host_mib, HEADROOM_BYTES)?;
        let mut machines = machines(&cluster)?;
        let size = format!("{swap_mib}M");
        let backing = options.dir.join("pressure-backing").display().to_string();
        let args = ["--size", &size, "--scheme", "plain", "--backing", &backing];
        let (swap, _) = OurSwap::on(cluster.dir(), &args)?;
        let limited = LiftOnDrop(&group);
        squeeze(&group, peak / 4 * 3, interrupt)?;
        let pressed = SETTLE + BEFORE;
        let end = pressed + AFTER;
        let mut evictions = [0, 0];
        let kills = OomKills::of(&group);
        let stretch = kills.explain(load.run(end, |run| {
            interrupt.sleep(pressed)?;
            evictions[0] = dropped(&swap)?;
            for second in 1..=AFTER.as_secs() as u32 {
                let pushed = push(&mut machines, &cluster, &swap)?;
                let next = run.began + pressed + Duration::from_secs(1) * second;
                interrupt.sleep(next.saturating_duration_since(Instant::now()))?;
                if let Some(index) = pushed {
                    machines[index].settle()?;
                }
            }
            Ok(())
        }))?;
        evictions[1] = dropped(&swap)?;
        limited.lift()?;
        swap.off()?;
        let before = stretch.rate_between(SETTLE, pressed);
        let after = stretch.rate_between(pressed, end);
        let count = evictions[1] - evictions[0];
        ensure!(count > 0, "no slab was taken back");
        let loss = (1.0 - after / before) * 100.0 / count as f64;
        eprintln!(
            "round {round}: {before:.0} ops/s before, {after:.0} while {count} slabs were taken \
             back in {} s: {loss:.2}% for each",
            AFTER.as_secs()
        );
        rates.push((after, before));
        losses.push((loss, PAPER_LOSS_PERCENT));
    }
    drop(server);
    let case = (
        "reclaim",
        "memcached SYS 75% plain+backing, one eviction a second",
    );
    let rate = ("throughput_after", "ops/s");
    let paper = "paper: VoltDB 75%";
    let mut loss = Row::of_rounds(case, ("loss_per_eviction", "%"), None, paper, &losses);
    // A loss may be negative: no ratio means anything.
    loss.ratio = f64::NAN;
    Ok(vec![
        Row::of_rounds(case, rate, Some(true), "before", &rates),
        loss,
    ])
}

fn dropped(swap: &OurSwap) -> anyhow::Result<u64> {
    let status = swap.volume_status()?;
    let count = status["counters"]["slabs_dropped"].as_u64();
    count.context("the volume counts the slabs that it gave up")
}

/// memcached with all its memory on the machine of a host that lends much, and gives way; beside
/// the same while nobody is there.
fn beside(kind: Mix, options: &Options, interrupt: &Interrupt) -> anyhow::Result<Vec<Row>> {
    let name = format!("cenote-reclaim-{}", std::process::id());
    let group = MemoryCgroup::create(&name, UNLIMITED_BYTES).context("make a memory cgroup")?;
    let socket = options.dir.join("memcached.sock");
    let server = Memcached::start(&socket, options.program_mib * 4, &group)?;
    let mut load = MemcachedLoad::new(kind, options.seed, (options.program_mib << 20) / 10 * 9);
    load.fill(server.socket(), interrupt)?;
    load.run_for(SETTLE, interrupt)?;
    let mut figures = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..options.rounds {
        // Whoever goes first changes from round to round.
        let (alone, (with, slabs)) = if round % 2 == 0 {
            let alone = load.run_for(RETREAT, interrupt)?;
            (alone, retreat(&mut load, options, interrupt)?)
        } else {
            let retreat = retreat(&mut load, options, interrupt)?;
            (load.run_for(RETREAT, interrupt)?, retreat)
        };
        let of = |stretch: &Stretch| {
            [
                stretch.rate(),
                stretch.quantile_us(0.5),
                stretch.quantile_us(0.99),
            ]
        };
        let (with, alone) = (of(&with), of(&alone));
        eprintln!(
            "memcached {kind:?}, round {round}: {:.0} ops/s, p99 {:.0} us alone; {:.0} ops/s, p99 \
             {:.0} us while a host gave up {slabs} slabs of {SLAB_MIB} MiB",
            alone[0], alone[2], with[0], with[2]
        );
        for (column, pairs) in figures.iter_mut().enumerate() {
            pairs.push((with[column], alone[column]));
        }
    }
    drop(server);
    let case = format!("memcached {kind:?} in memory beside a host that gives way");
    let metrics = [
        ("throughput", "ops/s", true),
        ("latency_p50", "us", false),
        ("latency_p99", "us", false),
    ];
    let rows = metrics.into_iter().zip(&figures);
    Ok(rows
        .map(|((metric, unit, more), pairs)| {
            let case = ("reclaim", &case);
            Row::of_rounds(case, (metric, unit), Some(more), "no host", pairs)
        })
        .collect())
}

/// The load while a host that lent everything gives up as much as it is told to.
fn retreat(
    load: &mut MemcachedLoad,
    options: &Options,
    interrupt: &Interrupt,
) -> anyhow::Result<(Stretch, u64)> {
    let cluster = start(options, 1, LENT_MIB, SMALL_HEADROOM_BYTES)?;
    let machines = machines(&cluster)?;
    let size_bytes = (LENT_MIB - 2 * SLAB_MIB) << 20;
    let path: PathBuf = options.dir.join("retreat-backing");
    let backing = Backing {
        hot_slab: HOT,
        ..Backing::open(&path, size_bytes)?
    };
    let volume = cluster.backed_volume("plain".parse()?, size_bytes, backing)?;
    touch(&volume)?;
    wait_for(&volume, interrupt, "every slab is lent", |status| {
        status.mapped_bytes == size_bytes
    })?;
    // Slabs that are taken back are not asked for again by then.
    wait_for(&volume, interrupt, "no slab is busy", |status| {
        let mut activities = status.extents.iter().map(|extent| extent.activity);
        activities.all(|activity| f64::from(activity) < HOT)
    })?;
    let stretch = load.run(RETREAT, |run| {
        // All that the machine has, at once: the host follows its average, some slabs a second.
        machines[0].write(machines[0].total_bytes)?;
        interrupt.sleep(RETREAT.saturating_sub(run.began.elapsed()))
    })?;
    // As the volume has it in the end; that of a host that broke the connection counts as well.
    let slabs = (size_bytes - volume.status()?.mapped_bytes) / volume.extent_bytes();
    if slabs == 0 {
        eprintln!("the host gave nothing up: this round shows nothing of a retreat");
    }
    volume.close();
    drop(volume);
    fs::remove_file(&path).context("remove the backing file")?;
    Ok((stretch, slabs))
}

/// Makes every extent so busy that it is mapped with the next sample.
fn touch(volume: &Volume) -> anyhow::Result<()> {
    let mut worker = volume.worker()?;
    for offset in (0..volume.size_bytes()).step_by(volume.extent_bytes() as usize) {
        for page in 0..TOUCHES {
            worker.write(offset + page * PAGE_BYTES as u64, &[1; PAGE_BYTES])?;
        }
    }
    Ok(())
}

/// Has the host that holds most of the volume's slabs take about one back; `None` when it holds
/// no slab.
fn push(
    machines: &mut [Machine],
    cluster: &LocalCluster,
    swap: &OurSwap,
) -> anyhow::Result<Option<usize>> {
    let status = swap.volume_status()?;
    let extents = status["extents"].as_array().context("extents")?;
    let held = |index: usize| -> u64 {
        let hosts = extents.iter().filter_map(|one| one["hosts"].as_array());
        let name = cluster.name(index);
        hosts.flatten().filter(|host| *host == name).count() as u64
    };
    let counts: Vec<u64> = (0..machines.len()).map(held).collect();
    let most = (0..machines.len()).max_by_key(|index| counts[*index]);
    let Some(index) = most.filter(|index| counts[*index] > 0) else {
        return Ok(None);
    };
    // Half a slab less than it holds.
    let held_bytes = counts[index] * (SLAB_MIB << 20);
    machines[index].leave_room_for(held_bytes - (SLAB_MIB << 19))?;
    Ok(Some(index))
}

fn start(
    options: &Options,
    host_count: usize,
    host_mib: u64,
    headroom_bytes: u64,
) -> anyhow::Result<LocalCluster> {
    LocalCluster::start_in(
        &options.dir.join("pressure"),
        host_count,
        host_mib,
        "shm",
        &[
            "--slab",
            &format!("{SLAB_MIB}M"),
            "--headroom",
            &headroom_bytes.to_string(),
        ],
    )
}

/// The file that stands for the memory of a host's machine.
struct Machine {
    path: PathBuf,
    total_bytes: u64,
    /// What its own programs use, as the host sees it: an average.
    used_bytes: u64,
}

fn machines(cluster: &LocalCluster) -> anyhow::Result<Vec<Machine>> {
    let machine = |index| {
        let folder = cluster.dir().join("hosts").join(cluster.name(index));
        let path = folder.join("meminfo");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let kib = total_kib(&text).with_context(|| format!("{}: MemTotal", path.display()))?;
        Ok(Machine {
            path,
            total_bytes: kib * 1024,
            used_bytes: 0,
        })
    };
    (0..cluster.host_count()).map(machine).collect()
}

fn total_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Machine {
    /// Programs use so much for a second that the average leaves room for so much of slabs, if it
    /// left more before.
    fn leave_room_for(&mut self, slab_bytes: u64) -> anyhow::Result<()> {
        let average = self
            .total_bytes
            .saturating_sub(HEADROOM_BYTES + slab_bytes)
            .max(self.used_bytes);
        let step = (average - self.used_bytes) as f64 / BETA;
        let used = (self.used_bytes + step as u64).min(self.total_bytes);
        self.used_bytes = average;
        self.write(used)
    }

    /// From now on they use what the average is.
    fn settle(&self) -> anyhow::Result<()> {
        self.write(self.used_bytes)
    }

    /// In one step: the host may read at any time.
    fn write(&self, used_bytes: u64) -> anyhow::Result<()> {
        let total = self.total_bytes / 1024;
        let available = self.total_bytes.saturating_sub(used_bytes) / 1024;
        let text = format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n");
        let new = self.path.with_extension("new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &self.path))
            .with_context(|| format!("write {}", self.path.display()))
    }
}

const HOST_COUNT: usize = 6;
const SLAB_MIB: u64 = 16;
/// Memory that the machines of the hosts have beside what is lent, of which nothing is real: so
/// much that one second is enough to bring the average where it is wanted.
const HEADROOM_BYTES: u64 = 8 << 30;
/// That of the host beside a local program: what is beyond it is soon used up.
const SMALL_HEADROOM_BYTES: u64 = 64 << 20;
/// What the host beside a local program lends.
const LENT_MIB: u64 = 512;
/// Page writes per second, smoothed, from which an extent of the local program's host is mapped,
/// and writes that make it so: a fifth of them is in the first sample.
const HOT: f64 = 5.0;
const TOUCHES: u64 = 64;
const SETTLE: Duration = Duration::from_secs(5);
const BEFORE: Duration = Duration::from_secs(4);
const AFTER: Duration = Duration::from_secs(10);
const RETREAT: Duration = Duration::from_secs(10);
/// What an eviction cost the paper's program, in per cent of its throughput.
const PAPER_LOSS_PERCENT: f64 = 2.3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sample_of_a_pushed_machine_leaves_room_for_less_than_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let slab_bytes = SLAB_MIB << 20;
        let mut machine = Machine {
            path: dir.path().join("meminfo"),
            total_bytes: HEADROOM_BYTES + 20 * slab_bytes,
            used_bytes: 0,
        };
        machine
            .leave_room_for(5 * slab_bytes - slab_bytes / 2)
            .unwrap();
        let text = fs::read_to_string(&machine.path).unwrap();
        assert_eq!(total_kib(&text), Some(machine.total_bytes / 1024));
        let available: u64 = text
            .lines()
            .nth(1)
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let measured = machine.total_bytes - available * 1024;
        let average = measured / 5;
        let room = machine.total_bytes - HEADROOM_BYTES - average;
        assert_eq!(room / slab_bytes, 4, "one of the five has to go");
    }
}
