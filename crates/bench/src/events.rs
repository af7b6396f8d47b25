//! Something happens under a program that swaps to us: what its throughput does, over time.
//!
//! memcached runs in half of its peak over one volume after another: coded, copied, and one with a
//! disk behind it. In each, the load goes on without a pause while a host dies, other traffic runs
//! over the hosts, more clients come, or a host's memory rots; throughput around that moment stands beside the throughput
//! before it, and beside that of the other volumes in the same round.
//!
//! Elsewhere: one volume and one event (`scene`), what happens (`trouble`), curves (`timeline`).
//! Paper: \[hydra22\] 7.1.4, Figures 3 and 13; there VoltDB.

mod scene;
mod timeline;
pub(crate) mod trouble;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;
use cenote_measure::random::Random;

use super::Row;
use super::apps::memcached_load::MemcachedLoad;
use super::apps::mix::Mix;
use crate::rounds::turns;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::memcached::Memcached;
use crate::swap_rig::oom::OomKills;
use crate::swap_rig::squeeze::UNLIMITED_BYTES;
use crate::swap_rig::{Folder, ON_DISK, area, fresh, is_installed, is_root};
use scene::Scene;
use timeline::Timeline;
pub use trouble::Trouble;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for clusters, sockets and the backing file; on a real disk. Made, and removed.
    pub dir: PathBuf,
    /// Events.
    pub troubles: Vec<Trouble>,
    /// Volumes side by side; the first is ours, the others are its peers.
    pub volumes: Vec<Kind>,
    /// `shm` or `tcp`.
    pub transport: String,
    /// Memory that memcached may keep, in per cent of its peak.
    pub limit: u8,
    /// Measurements of each.
    pub rounds: usize,
    /// About what memcached takes.
    pub program_mib: u64,
    /// Seed of keys, values, the order of operations, and who dies.
    pub seed: u64,
    /// Folder for a curve and a table of each event, if wanted.
    pub plots: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: fresh(Path::new(ON_DISK), "events"),
            troubles: Trouble::ALL.to_vec(),
            volumes: vec![Kind::Coded, Kind::Copied, Kind::Backed],
            transport: "shm".to_owned(),
            limit: 50,
            rounds: 3,
            program_mib: 192,
            seed: 1,
            plots: None,
        }
    }
}

/// A volume under the program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// rs:8+2.
    Coded,
    /// Two copies.
    Copied,
    /// One copy, and a disk behind it.
    Backed,
    /// rs:8+3, which puts a wrong split right.
    Correcting,
    /// Two copies, of whose pages a checksum is kept.
    Checked,
}

impl Kind {
    /// As in a row.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Coded => "rs:8+2",
            Self::Copied => "mirror:2",
            Self::Backed => "plain+backing",
            Self::Correcting => "rs:8+3 correction",
            Self::Checked => "mirror:2 checksum",
        }
    }

    /// As on the command line of `cenote swap on`; a disk's place comes after it.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Coded => &["--scheme", "rs:8+2"],
            Self::Copied => &["--scheme", "mirror:2"],
            Self::Backed => &["--scheme", "plain", "--backing"],
            Self::Correcting => &["--scheme", "rs:8+3", "--mode", "correction"],
            Self::Checked => &["--scheme", "mirror:2", "--checksum"],
        }
    }
}

/// Measures every event that was asked for; narrates on stderr.
///
/// # Errors
/// What is missing, could not be started or went away, or that the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    check(options)?;
    let interrupt = Interrupt::catch()?;
    let _folder = Folder::make(options.dir.clone())?;
    let name = format!("cenote-events-{}", std::process::id());
    let group = MemoryCgroup::create(&name, UNLIMITED_BYTES).context("make a memory cgroup")?;
    let socket = options.dir.join("memcached.sock");
    let server = Memcached::start(&socket, options.program_mib * 4, &group)?;
    let mut load = MemcachedLoad::new(Mix::Sys, options.seed, (options.program_mib << 20) / 10 * 9);
    load.fill(server.socket(), &interrupt)?;
    let peak = group.usage_bytes().context("read the cgroup's usage")?;
    eprintln!(
        "memcached SYS: {} MiB, limited to {}%",
        peak >> 20,
        options.limit
    );
    let mut random = Random::new(options.seed);
    let mut rows = Vec::new();
    for trouble in &options.troubles {
        let volumes = volumes_under(*trouble, options);
        if volumes.is_empty() {
            eprintln!("{}: {UNNOTICED}", trouble.label());
            continue;
        }
        let mut timelines = vec![Vec::new(); volumes.len()];
        for round in 0..options.rounds {
            // The same happens to all of them.
            let chance = random.below(u64::MAX);
            for index in turns(volumes.len(), round) {
                let kind = volumes[index];
                let scene = Scene {
                    options,
                    interrupt: &interrupt,
                    group: &group,
                    limit: peak / 100 * u64::from(options.limit),
                };
                let kills = OomKills::of(&group);
                let timeline = kills.explain(scene.play(kind, *trouble, &mut load, chance))?;
                eprintln!(
                    "{}, {}, round {round}: {timeline}",
                    trouble.label(),
                    kind.label()
                );
                timelines[index].push(timeline);
            }
        }
        rows.extend(rows_of(*trouble, options, &volumes, &timelines));
        if let Some(dir) = &options.plots {
            timeline::draw(dir, *trouble, &volumes, &timelines)?;
        }
    }
    drop(server);
    Ok(rows)
}

/// The volumes that an event befalls.
fn volumes_under(trouble: Trouble, options: &Options) -> Vec<Kind> {
    let asked = options.volumes.iter();
    asked.filter_map(|kind| trouble.stand_in(*kind)).collect()
}

const UNNOTICED: &str = "none of the volumes that were asked for notices it";

/// What would fail late is refused early.
fn check(options: &Options) -> anyhow::Result<()> {
    ensure!(options.rounds > 0, "no rounds asked for");
    ensure!(!options.volumes.is_empty(), "no volumes asked for");
    let mut troubles = options.troubles.iter();
    ensure!(
        troubles.any(|trouble| !volumes_under(*trouble, options).is_empty()),
        "corruption injected: {UNNOTICED}"
    );
    ensure!(
        (10..100).contains(&options.limit),
        "a limit from 10 to 99 per cent"
    );
    ensure!(
        is_root(),
        "it turns swap on and limits memory: run it as root"
    );
    area::refuse_others()?;
    if !is_installed("memcached") {
        bail!("memcached is not installed: apt-get install memcached");
    }
    Ok(())
}

/// A reading of a timeline, and whether more of it is better.
type Metric = ((&'static str, &'static str), bool, fn(&Timeline) -> f64);

const METRICS: [Metric; 3] = [
    (("throughput_during", "ops/s"), true, Timeline::during),
    (("throughput_kept", "%"), true, Timeline::kept_percent),
    (("longest_dip", "s"), false, Timeline::longest_dip_s),
];

/// The first volume beside each other one, and beside itself before the event.
fn rows_of(
    trouble: Trouble,
    options: &Options,
    volumes: &[Kind],
    timelines: &[Vec<Timeline>],
) -> Vec<Row> {
    let mut rows = Vec::new();
    let (ours, peers) = (&timelines[0], &timelines[1..]);
    let case = format!(
        "memcached SYS {}% {} {}, {}",
        options.limit,
        options.transport,
        volumes[0].label(),
        trouble.label()
    );
    for (kind, theirs) in volumes[1..].iter().zip(peers) {
        for (metric, more_is_better, of) in METRICS {
            let pairs: Vec<_> = ours.iter().map(of).zip(theirs.iter().map(of)).collect();
            let more = Some(more_is_better);
            rows.push(Row::of_rounds(
                ("events", &case),
                metric,
                more,
                kind.label(),
                &pairs,
            ));
        }
    }
    let (metric, more_is_better, during) = METRICS[0];
    let pairs: Vec<_> = ours
        .iter()
        .map(|timeline| (during(timeline), timeline.before()))
        .collect();
    let more = Some(more_is_better);
    rows.push(Row::of_rounds(
        ("events", case),
        metric,
        more,
        "before",
        &pairs,
    ));
    rows
}

/// Until busy extents are mapped and pages are where they will be; arbitrary.
const SETTLE: Duration = Duration::from_secs(4);
/// What the event is compared with.
const BEFORE: Duration = Duration::from_secs(4);
/// How long it lasts, or is watched.
const DURING: Duration = Duration::from_secs(8);
/// What is left of it when it is over.
const AFTER: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
