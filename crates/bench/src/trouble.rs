//! `cenote bench page --trouble`: one page at a time while hosts are slow, busy or dead.
//!
//! Three volumes on the same hosts, each of which the same troubles befall in turn: coded, two
//! copies, and one copy with a disk behind it. Reads and writes of random pages take turns, so that
//! both meet the same moments. Latencies are those of operations that succeeded; those that a volume
//! had lost are a row of their own, and so are reads of bytes that nobody wrote. Below 1 is better.
//! Where memory rots the coded volume is one that corrects, on hosts of its own, and it stands
//! beside itself without rot as well.
//!
//! Over `shm` a stopped host's memory stays usable, so a straggler is one only over `tcp`.
//! Paper: \[hydra22\] 7.1.2 and 7.1.4, Figures 11 and 12.

mod load;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cenote_measure::random::Random;
use cenote_volume::{Backing, Health, Mode, Resilience, Volume};

use super::Row;
use super::events::trouble::{FLOW_BYTES, flow};
use super::page::fill;
use crate::beside::in_background;
use crate::cluster::LocalCluster;
use crate::rot::Rot;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::{Folder, ON_DISK, fresh};
use load::{Sample, burst, one_at_a_time};

/// What is in the way of a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trouble {
    /// Nothing.
    Quiet,
    /// One host stands still for a moment, over and over.
    Straggler,
    /// Another client moves all that it can to and from the same hosts.
    Flows,
    /// Many requests at a time.
    Burst,
    /// One host is dead, and nobody takes its place.
    OneDead,
    /// Two hosts are.
    TwoDead,
    /// The memory of one host rots, all of it and over and over.
    Corrupted,
}

impl Trouble {
    /// Every one, those that leave no trace first.
    pub const ALL: [Self; 7] = [
        Self::Quiet,
        Self::Straggler,
        Self::Flows,
        Self::Burst,
        Self::OneDead,
        Self::TwoDead,
        Self::Corrupted,
    ];

    /// As in a row.
    fn label(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Straggler => "one straggler",
            Self::Flows => "background flows",
            Self::Burst => "burst of 32",
            Self::OneDead => "one dead host",
            Self::TwoDead => "two dead hosts",
            Self::Corrupted => "corrupted splits",
        }
    }

    fn dead(self) -> usize {
        match self {
            Self::OneDead => 1,
            Self::TwoDead => 2,
            _ => 0,
        }
    }
}

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// `shm` or `tcp`.
    pub transport: String,
    /// What happens.
    pub troubles: Vec<Trouble>,
    /// Clusters that it happens to.
    pub rounds: usize,
    /// How long each volume is read and written under each trouble.
    pub time: Duration,
    /// Size of each volume, in MiB.
    pub size_mib: u64,
    /// Folder of the backing file; on a real disk. Made, and removed.
    pub dir: PathBuf,
    /// Seed of pages.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: "tcp".to_owned(),
            troubles: Trouble::ALL.to_vec(),
            rounds: 3,
            time: Duration::from_secs(2),
            size_mib: 128,
            dir: fresh(Path::new(ON_DISK), "trouble"),
            seed: 1,
        }
    }
}

/// Runs the benchmark; narrates on stderr.
///
/// # Errors
/// When the local cluster or a volume cannot be started, or the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    ensure!(options.rounds > 0, "no rounds asked for");
    let interrupt = Interrupt::catch()?;
    let folder = Folder::make(options.dir.clone())?;
    let mut taken = Vec::new();
    for round in 0..options.rounds {
        for cast in [&FAILING, &ROTTING] {
            let mut troubles = cast.troubles(&options.troubles);
            if troubles.is_empty() {
                continue;
            }
            // The dead stay dead: their troubles come last, and each round has hosts of its own.
            troubles.sort_by_key(|trouble| trouble.dead());
            let scene = Scene::set(options, &interrupt, &folder, cast)?;
            taken.extend(scene.play(&troubles, round)?);
        }
    }
    Ok(report::rows(options, &taken))
}

/// What a scene is played with.
#[derive(Debug, Eq, PartialEq)]
struct Cast {
    /// As many as a coded stripe has members: nothing can be rebuilt elsewhere, so a dead host stays
    /// missing, and a bad one in use.
    hosts: usize,
    coded: &'static str,
    mode: Mode,
    /// Of the coded volume in a row.
    name: &'static str,
}

/// For all but rot.
const FAILING: Cast = Cast {
    hosts: 10,
    coded: "rs:8+2",
    mode: Mode::FailureRecovery,
    name: "rs:8+2 delta=1",
};
/// For rot.
const ROTTING: Cast = Cast {
    hosts: 11,
    coded: "rs:8+3",
    mode: Mode::Correction,
    name: "rs:8+3 correction delta=1",
};

impl Cast {
    fn of(trouble: Trouble) -> &'static Self {
        match trouble {
            Trouble::Corrupted => &ROTTING,
            _ => &FAILING,
        }
    }

    /// What happens to it of all that is asked for; rot after a time without.
    fn troubles(&'static self, asked: &[Trouble]) -> Vec<Trouble> {
        let mut troubles: Vec<Trouble> = asked.to_vec();
        troubles.retain(|trouble| Self::of(*trouble) == self);
        if troubles.contains(&Trouble::Corrupted) {
            troubles = vec![Trouble::Quiet, Trouble::Corrupted];
        }
        troubles
    }
}

/// A sample, and where it is from.
struct Taken {
    cast: &'static Cast,
    trouble: Trouble,
    /// Of the volume.
    index: usize,
    sample: Sample,
}

struct Scene<'a> {
    cast: &'static Cast,
    options: &'a Options,
    interrupt: &'a Interrupt,
    /// Closed before their hosts end.
    volumes: Vec<(&'static str, Arc<Volume>)>,
    cluster: LocalCluster,
}

impl<'a> Scene<'a> {
    fn set(
        options: &'a Options,
        interrupt: &'a Interrupt,
        folder: &Folder,
        cast: &'static Cast,
    ) -> anyhow::Result<Self> {
        let hosts = cast.hosts;
        let size_bytes = options.size_mib << 20;
        // Up to 1.375, 2 and 1 times the size, the flows, and half as much again for uneven placement.
        let memory_mib = (options.size_mib * 5 + (FLOW_BYTES >> 20) * 2) * 3 / 2 / hosts as u64;
        let cluster = LocalCluster::start_in(
            &folder.0.join("cluster"),
            hosts,
            memory_mib.next_multiple_of(SLAB_MIB) + 2 * SLAB_MIB,
            &options.transport,
            &["--slab", &format!("{SLAB_MIB}M")],
        )?;
        let coded = Resilience::new(cast.coded.parse()?, cast.mode, 1)?;
        let copied = Resilience::new(COPIED.parse()?, Mode::FailureRecovery, 0)?;
        let backing = Backing {
            hot_slab: 0.0,
            ..Backing::open(&folder.0.join("backing"), size_bytes)?
        };
        let volumes = vec![
            (cast.name, cluster.volume_expecting(coded, size_bytes)?),
            (COPIED, cluster.volume_expecting(copied, size_bytes)?),
            (
                "plain+backing",
                cluster.backed_volume("plain".parse()?, size_bytes, backing)?,
            ),
        ];
        for (_, volume) in &volumes {
            fill(volume)?;
        }
        Ok(Self {
            cast,
            options,
            interrupt,
            volumes,
            cluster,
        })
    }

    /// Has these befall each volume in turn.
    fn play(&self, troubles: &[Trouble], round: usize) -> anyhow::Result<Vec<Taken>> {
        let (mut taken, mut dead) = (Vec::new(), 0);
        for &trouble in troubles {
            while dead < trouble.dead() {
                self.cluster.kill(dead)?;
                dead += 1;
                self.settle(dead)?;
            }
            for turn in 0..self.volumes.len() {
                let index = (turn + round) % self.volumes.len();
                let sample = self.measure(index, trouble, round)?;
                let (label, name) = (trouble.label(), self.volumes[index].0);
                eprintln!("{label}, {name}, round {round}: {sample}");
                taken.push(Taken {
                    cast: self.cast,
                    trouble,
                    index,
                    sample,
                });
            }
        }
        Ok(taken)
    }

    /// Waits until every volume knows how many hosts are dead.
    fn settle(&self, dead: usize) -> anyhow::Result<()> {
        let patience = Instant::now() + PATIENCE;
        for (name, volume) in &self.volumes {
            loop {
                let status = volume.status()?;
                let up = status.hosts.iter().filter(|host| host.connected).count();
                let is_coded = *name == self.cast.name;
                if up + dead == self.cast.hosts && (!is_coded || status.health != Health::Healthy) {
                    break;
                }
                ensure!(
                    Instant::now() < patience,
                    "{name} does not notice: {status:?}"
                );
                self.interrupt.sleep(Duration::from_millis(5))?;
            }
        }
        Ok(())
    }

    fn measure(&self, index: usize, trouble: Trouble, round: usize) -> anyhow::Result<Sample> {
        self.interrupt.check()?;
        let volume = &self.volumes[index].1;
        let drive = || {
            let worker = volume.worker()?;
            let random = Random::new(self.options.seed + round as u64);
            match trouble {
                Trouble::Burst => burst(worker, random, self.options.time),
                _ => one_at_a_time(worker, random, self.options.time),
            }
        };
        match trouble {
            Trouble::Flows => {
                let mut sample = None;
                flow(&self.cluster, || {
                    sample = Some(drive()?);
                    Ok(())
                })?;
                sample.context("the flow waited for it")
            }
            Trouble::Straggler => self.beside_a_straggler(drive),
            Trouble::Corrupted => Rot::host(&self.cluster, 0)?.beside(drive),
            _ => drive(),
        }
    }

    /// Runs `drive` while the last host stands still half of the time, for less than it takes to be
    /// given up.
    fn beside_a_straggler(
        &self,
        drive: impl FnOnce() -> anyhow::Result<Sample>,
    ) -> anyhow::Result<Sample> {
        let straggle = |over: &AtomicBool| {
            while !over.load(Ordering::Relaxed) {
                self.cluster.stop(self.cast.hosts - 1, true)?;
                std::thread::sleep(STOPPED);
                self.cluster.stop(self.cast.hosts - 1, false)?;
                std::thread::sleep(STOPPED);
            }
            Ok(())
        };
        in_background(straggle, drive)
    }
}

const COPIED: &str = "mirror:2";
const SLAB_MIB: u64 = 4;
/// Far below the second after which a silent host counts as dead. Arbitrary.
const STOPPED: Duration = Duration::from_millis(20);
/// How long a death may go unnoticed; arbitrary.
const PATIENCE: Duration = Duration::from_secs(30);
