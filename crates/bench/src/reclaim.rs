//! Memory that goes away under a program, and what giving and taking it costs: figures beside
//! those that the paper has for the same, of other machines and another program.
//!
//! Elsewhere: how long a slab takes (`slabs`), hosts that are killed (`loss`), hosts that want their
//! memory back (`pressure`).
//! Paper: \[infiniswap17\] section 7.3.

mod loss;
mod pressure;
mod slabs;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use cenote_volume::{Volume, VolumeStatus};

use super::Row;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::{Folder, ON_DISK, area, fresh, is_installed, is_root};

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// How long it takes to get a slab, and to give one back.
    Slabs,
    /// A host of six is killed under a program.
    Loss,
    /// Hosts take slabs back because their own programs need the memory.
    Pressure,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 3] = [Self::Slabs, Self::Loss, Self::Pressure];
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for clusters, sockets and backing files; on a real disk. Made, and removed.
    pub dir: PathBuf,
    /// Parts.
    pub parts: Vec<Part>,
    /// Measurements of each case.
    pub rounds: usize,
    /// About what memcached takes.
    pub program_mib: u64,
    /// Seed of keys, values, the order of operations, and which host is killed.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: fresh(Path::new(ON_DISK), "reclaim"),
            parts: Part::ALL.to_vec(),
            rounds: 3,
            program_mib: 256,
            seed: 1,
        }
    }
}

/// Measures every part that was asked for; narrates on stderr.
///
/// # Errors
/// What is missing, could not be started or went away, or that the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    ensure!(options.rounds > 0, "no rounds asked for");
    if options.parts.iter().any(|part| *part != Part::Slabs) {
        ensure!(
            is_root(),
            "it turns swap on and limits memory: run it as root"
        );
        area::refuse_others()?;
        if !is_installed("memcached") {
            bail!("memcached is not installed: apt-get install memcached");
        }
    }
    let interrupt = Interrupt::catch()?;
    let _folder = Folder::make(options.dir.clone())?;
    let mut rows = Vec::new();
    for part in &options.parts {
        interrupt.check()?;
        rows.extend(match part {
            Part::Slabs => slabs::run(options, &interrupt)?,
            Part::Loss => loss::run(options, &interrupt)?,
            Part::Pressure => pressure::run(options, &interrupt)?,
        });
    }
    Ok(rows)
}

/// Waits until a volume says so.
fn wait_for(
    volume: &Volume,
    interrupt: &Interrupt,
    what: &str,
    is_so: impl Fn(&VolumeStatus) -> bool,
) -> anyhow::Result<()> {
    let patience = Instant::now() + PATIENCE;
    loop {
        let status = volume.status()?;
        if is_so(&status) {
            return Ok(());
        }
        ensure!(
            Instant::now() < patience,
            "waited in vain: {what}: {status:?}"
        );
        interrupt.sleep(Duration::from_millis(10))?;
    }
}

/// How long a volume may take; arbitrary.
const PATIENCE: Duration = Duration::from_secs(30);
