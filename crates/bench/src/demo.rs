//! The demonstration: memcached pages to the idle memory of twelve hosts, two of them are killed
//! under it, and every value is right; then the same with a swap file on disk.
//!
//! [`run`] starts everything (the hosts and the swap device through this program's own commands,
//! Debian's memcached in a memory cgroup), drives it and takes it down again, also when it is
//! interrupted, fails or panics: every part is a guard, dropped in the reverse order of its start.
//! Elsewhere: where progress and the report are printed.

mod cluster;
mod report;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cenote_block::swap::cgroup::MemoryCgroup;

use crate::apps::memcached_load::MemcachedLoad;
use crate::apps::mix::Mix;
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::memcached::Memcached;
use crate::swap_rig::oom::OomKills;
use crate::swap_rig::squeeze::squeeze;
use crate::swap_rig::swap_file::SwapFile;
use crate::swap_rig::{Folder, ON_DISK, fresh, is_installed, is_root};
use cluster::SwapDevice;
pub use report::{Disk, Latency, Period, Phase, Rebuild, Report};

/// Sizes and times of a run. [`Default`] is what `make demo` shows.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the cluster, the sockets and the swap file go; on a real disk. Made, and removed.
    pub dir: PathBuf,
    /// Hosts to start.
    pub host_count: usize,
    /// Hosts to kill, at most what the scheme survives.
    pub kill_count: usize,
    /// Memory that each host lends, in MiB.
    pub host_mib: u64,
    /// `shm` or `tcp`.
    pub transport: String,
    /// Scheme of the swap volume.
    pub scheme: String,
    /// Size of the swap volume and of the swap file, in MiB.
    pub swap_mib: u64,
    /// Bytes of values that memcached holds, in MiB; its cgroup gets half of what
    /// they take in it.
    pub values_mib: u64,
    /// How long reads and writes run; the kill comes in the middle.
    pub load_time: Duration,
    /// Seed of keys, values and the order of operations.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: fresh(Path::new(ON_DISK), "demo"),
            host_count: 12,
            kill_count: 2,
            host_mib: 160,
            transport: "shm".to_owned(),
            scheme: "rs:8+2".to_owned(),
            swap_mib: 512,
            values_mib: 256,
            load_time: Duration::from_secs(30),
            seed: 1,
        }
    }
}

/// Runs the demonstration; `progress` gets a line per step.
///
/// # Errors
/// What could not be started or went away, a value that is missing or has other bytes, or that the run was
/// interrupted.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> anyhow::Result<Report> {
    check(options)?;
    let interrupt = Interrupt::catch()?;
    let started = Instant::now();
    let _folder = Folder::make(options.dir.clone())?;
    let mut load = load(options);
    let (values, value_bytes) = (load.items().count(), load.items().total_bytes());
    progress(&format!(
        "{values} values of 1 to 3 KiB, {} MiB together",
        options.values_mib
    ));
    let (remote, rebuild) = on_cluster(options, &mut load, &interrupt, progress)?;
    let (file, disk) = on_file(options, &mut load, &interrupt, progress)?;
    Ok(Report {
        values,
        value_bytes,
        hosts: options.host_count,
        scheme: options.scheme.clone(),
        remote,
        rebuild,
        file,
        disk,
        took_s: started.elapsed().as_secs_f64(),
    })
}

fn load(options: &Options) -> MemcachedLoad {
    MemcachedLoad::new(Mix::Pages, options.seed, options.values_mib << 20)
}

/// The first half: hosts, the swap device on them, and the kill.
fn on_cluster(
    options: &Options,
    load: &mut MemcachedLoad,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(&str),
) -> anyhow::Result<(Phase, Rebuild)> {
    progress(&format!(
        "starting {} hosts of {} MiB ({})",
        options.host_count, options.host_mib, options.transport
    ));
    let cluster = LocalCluster::start_in(
        &options.dir.join("cluster"),
        options.host_count,
        options.host_mib,
        &options.transport,
        &[],
    )?;
    interrupt.check()?;
    progress(&format!(
        "swap on: {} MiB of {} on their memory",
        options.swap_mib, options.scheme
    ));
    let device = SwapDevice::on(&cluster, options, progress)?;
    interrupt.check()?;
    let server = Server::start(options)?;
    let (rebuild, phase) = server.work(load, interrupt, progress, |load, progress| {
        let before = load.run_for(options.load_time / 2, interrupt)?;
        let mut killed = None;
        // What is slow right after the kill counts to what follows it.
        let during = load.run(cluster::WHOLE_TIMEOUT, |_| {
            let victims = cluster.kill_spread(options.kill_count)?;
            progress(&format!("killed {} with SIGKILL", victims.join(" and ")));
            let whole = device.wait_until_whole(&victims, interrupt)?;
            killed = Some((victims, whole));
            Ok(())
        })?;
        let (victims, whole) = killed.context("the load ended before the kill")?;
        if let Some(after) = whole {
            progress(&format!(
                "lost slabs are whole again after {:.1} s",
                after.as_secs_f64()
            ));
        }
        let left = (options.load_time / 2).saturating_sub(during.time);
        let after = load.run_for(left.max(AFTER_TIME_MIN), interrupt)?;
        let rebuild = Rebuild {
            killed: victims,
            whole_after_s: whole.map(|after| after.as_secs_f64()),
            rebuilt_bytes: 0,
            memory_overhead: 0.0,
        };
        let stretches = [Some(before), Some(during), Some(after)];
        Ok((rebuild, stretches.map(|one| one.as_ref().map(Period::from))))
    })?;
    let rebuild = device.complete(rebuild)?;
    drop(server);
    progress("swap off");
    device.off()?;
    drop(cluster);
    Ok((phase, rebuild))
}

/// The second half: the same program and load over a swap file.
fn on_file(
    options: &Options,
    load: &mut MemcachedLoad,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(&str),
) -> anyhow::Result<(Phase, Disk)> {
    progress("the same with a swap file on disk");
    let file = SwapFile::make(&options.dir.join("swapfile"), options.swap_mib << 20)?;
    let disk = file.read_latency(options.seed)?;
    progress(&format!(
        "a direct 4 KiB read of this disk takes {:.0} us",
        disk.read_us_p50
    ));
    let area = file.on()?;
    interrupt.check()?;
    let server = Server::start(options)?;
    let ((), phase) = server.work(load, interrupt, progress, |load, _| {
        let all = load.run_for(options.load_time, interrupt)?;
        Ok(((), [Some(Period::from(&all)), None, None]))
    })?;
    drop(server);
    drop(area);
    Ok((phase, disk))
}

/// memcached and its cgroup; dropped in this order.
struct Server {
    memcached: Memcached,
    group: MemoryCgroup,
}

impl Server {
    fn start(options: &Options) -> anyhow::Result<Self> {
        let name = format!("cenote-demo-{}", std::process::id());
        let group = MemoryCgroup::create(&name, options.values_mib << 22)
            .context("make a memory cgroup for memcached")?;
        let socket = options.dir.join("memcached.sock");
        let memcached = Memcached::start(&socket, options.values_mib * 2, &group)?;
        Ok(Self { memcached, group })
    }

    /// Fills memcached, limits it, has it read and written by `direct`, and checks every value.
    fn work<T>(
        &self,
        load: &mut MemcachedLoad,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(&str),
        direct: impl FnOnce(
            &mut MemcachedLoad,
            &mut dyn FnMut(&str),
        ) -> anyhow::Result<(T, [Option<Period>; 3])>,
    ) -> anyhow::Result<(T, Phase)> {
        let work = || {
            progress("storing the values");
            let began = Instant::now();
            load.fill(self.memcached.socket(), interrupt)?;
            let fill_s = began.elapsed().as_secs_f64();
            let limit_bytes = self.squeeze(interrupt, progress)?;
            progress("reading and writing");
            let (directed, [before, during, after]) = direct(load, progress)?;
            progress("checking every value");
            let values_checked = load.check(interrupt)? as u64;
            let phase = Phase {
                limit_bytes,
                fill_s,
                values_checked,
                before,
                during,
                after,
            };
            Ok((directed, phase))
        };
        let done = OomKills::of(&self.group).explain(work())?;
        let reliefs = self.group.relief_count();
        if reliefs > 0 {
            progress(&format!(
                "memcached stalled {reliefs} times: the kernel found nothing to swap out, and \
                 memcached got 8 MiB for 0.1 s"
            ));
        }
        Ok(done)
    }

    /// Limits memcached to half of the memory that it has taken, and returns the limit.
    fn squeeze(
        &self,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<u64> {
        let working_set = self
            .group
            .usage_bytes()
            .context("read the cgroup's usage")?;
        let target = working_set / 2;
        squeeze(&self.group, target, interrupt)?;
        // Not every kernel accounts swap by cgroup.
        let swapped = self.group.swapped_bytes().unwrap_or(0);
        progress(&format!(
            "memcached took {} MiB and may keep {} MiB: {} MiB are swapped out",
            working_set >> 20,
            target >> 20,
            swapped >> 20
        ));
        Ok(target)
    }
}

/// What would fail late is refused early.
fn check(options: &Options) -> anyhow::Result<()> {
    if !is_root() {
        bail!("the demonstration turns swap on and limits memory: run it as root");
    }
    if !is_installed("memcached") {
        bail!("memcached is not installed: apt-get install memcached");
    }
    if options.swap_mib < options.values_mib {
        bail!(
            "{} MiB of swap do not hold what {} MiB of values may push out",
            options.swap_mib,
            options.values_mib
        );
    }
    Ok(())
}

/// The least time that the load goes on for once the slabs are whole; arbitrary.
const AFTER_TIME_MIN: Duration = Duration::from_secs(5);
