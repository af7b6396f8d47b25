//! What is done in each place: fio on one file, and the names of many.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;

use crate::fio::{figure, fio};

/// A pattern of fio.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Access {
    pub(super) pattern: &'static str,
    pub(super) block_bytes: u32,
    pub(super) depth: u32,
}

impl Access {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for block_bytes in [4 << 10, 1 << 20] {
            for pattern in ["read", "write", "randread", "randwrite"] {
                for depth in [1, 16] {
                    all.push(Self {
                        pattern,
                        block_bytes,
                        depth,
                    });
                }
            }
        }
        all
    }

    pub(super) fn label(self) -> String {
        let (pattern, kib) = (self.pattern, self.block_bytes >> 10);
        format!("{pattern} {kib} KiB depth {}", self.depth)
    }

    /// Past the kernel's cache, on the file that [`fill`] made.
    pub(super) fn measure(self, place: &Path, bytes: u64, seconds: f64) -> anyhow::Result<f64> {
        let report = fio(&[
            &named(place),
            "--ioengine=libaio",
            "--direct=1",
            &format!("--rw={}", self.pattern),
            &format!("--bs={}", self.block_bytes),
            &format!("--iodepth={}", self.depth),
            &format!("--size={bytes}"),
            "--time_based",
            "--ramp_time=100ms",
            &format!("--runtime={}ms", (seconds * 1e3) as u64),
        ])?;
        figure(&report, self.pattern, self.block_bytes)
    }
}

/// Writes the file whole: first touches are nobody's figure.
pub(super) fn fill(place: &Path, bytes: u64) -> anyhow::Result<()> {
    let size = format!("--size={bytes}");
    let (write, block) = ("--rw=write", "--bs=1048576");
    let end = "--end_fsync=1";
    fio(&[&named(place), "--direct=1", write, block, &size, end]).map(drop)
}

fn named(place: &Path) -> String {
    format!("--filename={}", place.join("data").display())
}

/// What is done with many files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Names {
    /// Made, empty, and closed.
    Create,
    /// Looked at right after.
    Stat,
    /// Looked at when the kernel has forgotten them.
    StatForgotten,
    /// Deleted.
    Unlink,
}

impl Names {
    pub(super) const ALL: [Self; 4] = [Self::Create, Self::Stat, Self::StatForgotten, Self::Unlink];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::StatForgotten => "stat, caches dropped",
            Self::Unlink => "unlink",
        }
    }

    fn run(self, path: &Path) -> std::io::Result<()> {
        match self {
            Self::Create => File::create_new(path).map(drop),
            Self::Stat | Self::StatForgotten => fs::symlink_metadata(path).map(drop),
            Self::Unlink => fs::remove_file(path),
        }
    }
}

/// Makes `count` files, looks at them and deletes them; operations per second of each kind.
pub(super) fn names(place: &Path, count: u64) -> anyhow::Result<Vec<(Names, f64)>> {
    let folders: Vec<PathBuf> = (0..count.div_ceil(IN_FOLDER))
        .map(|number| place.join(format!("folder{number}")))
        .collect();
    for folder in &folders {
        fs::create_dir(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let file = |number: u64| {
        let folder = &folders[(number / IN_FOLDER) as usize];
        folder.join(format!("file{number}"))
    };
    let mut told = Vec::new();
    for what in Names::ALL {
        if what == Names::StatForgotten {
            forget()?;
        }
        let begun = Instant::now();
        for number in 0..count {
            let path = file(number);
            let done = what.run(&path);
            done.with_context(|| format!("{} {}", what.label(), path.display()))?;
        }
        told.push((what, count as f64 / begun.elapsed().as_secs_f64()));
    }
    for folder in &folders {
        fs::remove_dir(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(told)
}

/// Has the kernel forget names and attributes that it can ask for again.
fn forget() -> anyhow::Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "2").context("drop the kernel's caches of names")
}

/// Files in a folder; arbitrary.
const IN_FOLDER: u64 = 1000;
