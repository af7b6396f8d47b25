//! memcached with a part of its memory resident: its heap in the cluster (`cenote run`), and over swap.
//!
//! In the middle two hosts are killed, where hosts hold its pages, and at the end every value is checked:
//! one that is missing or wrong ends the run. Each visit has hosts of its own. The share is that of the
//! memory that memcached takes when all of it is here: a cgroup's limit counts code and page tables too,
//! `--local` of `cenote run` does not.
//! Paper: Hydra section 6; programs as in Infiniswap section 7.2.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;

use super::{Contender, Options, SCHEME, host_mib, name_of};
use crate::Row;
use crate::apps::memcached_load::{MemcachedLoad, Stretch};
use crate::apps::mix::Mix;
use crate::apps::slot::Slots;
use crate::cluster::LocalCluster;
use crate::rounds::{Samples, turns};
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::is_installed;
use crate::swap_rig::memcached::{Heap, Memcached};
use crate::swap_rig::oom::OomKills;
use crate::swap_rig::squeeze::{LiftOnDrop, UNLIMITED_BYTES, squeeze};

/// Hosts that are killed: as many as the scheme survives.
const KILLED: usize = 2;
/// A stretch of load is so many times as long as a measurement of touches.
const STRETCH: f64 = 3.0;
/// Of keys and values.
const SEED: u64 = 1;

/// What would fail late is refused early.
pub(super) fn check() -> anyhow::Result<()> {
    ensure!(
        is_installed("memcached"),
        "memcached is not installed: apt-get install memcached"
    );
    Ok(())
}

/// Figures of one stretch of load.
struct Sample {
    operations_per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

impl From<&Stretch> for Sample {
    fn from(stretch: &Stretch) -> Self {
        Self {
            operations_per_s: stretch.rate(),
            p50_us: stretch.quantile_us(0.5),
            p99_us: stretch.quantile_us(0.99),
        }
    }
}

/// A stretch of load: `true` is the one that begins when two hosts are killed.
type Told = Samples<Contender, bool, Sample>;

/// Measures memcached over each contender, in turn.
pub(super) fn run(
    options: &Options,
    contenders: &[Contender],
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Row>> {
    let mut visits = Visits {
        options,
        interrupt,
        load: MemcachedLoad::new(Mix::Pages, SEED, options.values_mib << 20),
        local_bytes: 0,
        told: Samples::new(),
        peers: Vec::new(),
    };
    let share = options.resident[0];
    visits.local_bytes = visits.working_set()? / 100 * u64::from(share);
    for round in 0..options.rounds {
        for index in turns(contenders.len(), round) {
            interrupt.check()?;
            visits.visit(&contenders[index])?;
        }
    }
    Ok(visits.rows(contenders, share))
}

struct Visits<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    load: MemcachedLoad,
    /// What may be resident.
    local_bytes: u64,
    told: Told,
    /// Names of the kinds of swap.
    peers: Vec<(Contender, String)>,
}

impl Visits<'_> {
    /// Bytes that memcached takes for the values when all of it is in memory.
    fn working_set(&mut self) -> anyhow::Result<u64> {
        let group = self.group()?;
        let server = self.swappable(&group)?;
        self.load.fill(server.socket(), self.interrupt)?;
        let usage = group.usage_bytes().context("read the cgroup's usage")?;
        eprintln!("memcached takes {} MiB", usage >> 20);
        Ok(usage)
    }

    fn visit(&mut self, who: &Contender) -> anyhow::Result<()> {
        let dir = self.options.dir.join("memcached");
        std::fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        match who {
            Contender::Region(transport, handlers) => {
                let host_mib = host_mib(self.options.values_mib * 2);
                let more = ["--slab", "4M"];
                let cluster_dir = dir.join("cluster");
                let cluster =
                    LocalCluster::start_in(&cluster_dir, super::HOSTS, host_mib, transport, &more)?;
                let heap = Heap {
                    dir: cluster.dir(),
                    scheme: SCHEME,
                    size_bytes: self.options.values_mib << 21,
                    local_bytes: self.local_bytes,
                    handlers: *handlers,
                };
                let (socket, room_mib) = (self.socket(), self.options.values_mib * 2);
                let server = Memcached::start_on(&socket, room_mib, &heap)?;
                self.work(who, &server, Some(&cluster), || Ok(()))?;
                server.end()?;
            }
            Contender::Swap(slot) => {
                let size_bytes = self.options.values_mib << 21;
                let slots = Slots::prepare(&[*slot], &dir, size_bytes, SEED)?;
                if !self.peers.iter().any(|(known, _)| known == who) {
                    self.peers.push((who.clone(), name_of(*slot, &slots)));
                }
                let on = slots.on(*slot)?;
                let group = self.group()?;
                let server = self.swappable(&group)?;
                let (limit, interrupt) = (self.local_bytes, self.interrupt);
                let kills = OomKills::of(&group);
                let limited = LiftOnDrop(&group);
                let squeezed = || squeeze(&group, limit, interrupt);
                let done = self.work(who, &server, slots.cluster(), squeezed);
                kills.explain(done)?;
                drop(server);
                limited.lift()?;
                on.off()?;
            }
        }
        std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))
    }

    /// Fills, loads, kills, loads on, and checks.
    fn work(
        &mut self,
        who: &Contender,
        server: &Memcached,
        hosts: Option<&LocalCluster>,
        filled: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let stretch = Duration::from_secs_f64(self.options.seconds * STRETCH);
        self.load.fill(server.socket(), self.interrupt)?;
        filled()?;
        // The first operations find what filling left.
        self.load.run_for(stretch / 4, self.interrupt)?;
        let before = self.load.run_for(stretch, self.interrupt)?;
        let after = self.load.run(stretch, |_| {
            if let Some(hosts) = hosts {
                hosts.kill_spread(KILLED)?;
            }
            self.interrupt.sleep(stretch)
        })?;
        let checked = self.load.check(self.interrupt)?;
        for (stretch, is_killed) in [(&before, false), (&after, true)] {
            let sample = Sample::from(stretch);
            eprintln!(
                "{who:?} memcached{}: {:.0} operations/s, p50 {:.1} us, p99 {:.1} us",
                if is_killed && hosts.is_some() {
                    ", two hosts killed"
                } else {
                    ""
                },
                sample.operations_per_s,
                sample.p50_us,
                sample.p99_us,
            );
            self.told.push(who.clone(), is_killed, sample);
        }
        eprintln!("{who:?} memcached: {checked} values checked, none was wrong");
        Ok(())
    }

    fn group(&self) -> anyhow::Result<MemoryCgroup> {
        let name = format!("cenote-pager-memcached-{}", std::process::id());
        MemoryCgroup::create(&name, UNLIMITED_BYTES).context("make a memory cgroup")
    }

    fn swappable(&self, group: &MemoryCgroup) -> anyhow::Result<Memcached> {
        Memcached::start(&self.socket(), self.options.values_mib * 2, group)
    }

    fn socket(&self) -> std::path::PathBuf {
        self.options.dir.join("memcached.sock")
    }

    fn rows(&self, contenders: &[Contender], share: u8) -> Vec<Row> {
        type Metric = (&'static str, &'static str, bool, fn(&Sample) -> f64);
        let metrics: [Metric; 3] = [
            ("operations", "ops/s", true, |one| one.operations_per_s),
            ("latency_p50", "us", false, |one| one.p50_us),
            ("latency_p99", "us", false, |one| one.p99_us),
        ];
        let mut rows = Vec::new();
        for ours in contenders {
            let Contender::Region(transport, handlers) = ours else {
                continue;
            };
            for is_killed in [false, true] {
                let killed = if is_killed { ", two hosts killed" } else { "" };
                let case = format!("{SCHEME} {transport} {share}% memcached h{handlers}{killed}");
                for (who, peer) in &self.peers {
                    for (metric, unit, more, figure) in metrics {
                        let pairs = self.told.pairs((ours, who), &is_killed, figure);
                        let case = ("pager", case.as_str());
                        rows.push(Row::of_rounds(
                            case,
                            (metric, unit),
                            Some(more),
                            peer,
                            &pairs,
                        ));
                    }
                }
            }
        }
        rows
    }
}
