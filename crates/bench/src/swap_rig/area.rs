//! A swap area that is on, as a guard, and whether there are others.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cenote_block::swap::{Discard, area};

/// Swap on `path`; dropping it turns it off.
pub(crate) struct Area {
    path: PathBuf,
    is_on: bool,
}

impl Area {
    /// Turns swap on over a file or device that has a header already.
    pub(crate) fn on(path: &Path) -> anyhow::Result<Self> {
        area::on(path, Some(PRIORITY), Discard::None)
            .with_context(|| format!("swapon {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            is_on: true,
        })
    }

    /// Brings every page back.
    pub(crate) fn off(mut self) -> anyhow::Result<()> {
        self.is_on = false;
        let mut tries = 0;
        loop {
            tries += 1;
            match area::off(&self.path, |_| ()) {
                // Where a program faults on a page of zram just then the kernel says so, with memory free.
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && tries < TRIES_MAX => {
                    std::thread::sleep(BETWEEN_TRIES);
                }
                ended => {
                    return ended.with_context(|| format!("swapoff {}", self.path.display()));
                }
            }
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if self.is_on
            && let Err(error) = area::off(&self.path, |_| ())
        {
            eprintln!("swapoff {}: {error}", self.path.display());
        }
    }
}

/// Refuses to measure beside somebody else's swap: its pages would be counted as ours.
pub(crate) fn refuse_others() -> anyhow::Result<()> {
    let swaps = std::fs::read_to_string("/proc/swaps").context("read /proc/swaps")?;
    match swaps.lines().nth(1) {
        Some(other) => bail!(
            "other swap is on ({}): turn it off first",
            other.split_whitespace().next().unwrap_or(other)
        ),
        None => Ok(()),
    }
}

/// Arbitrary: a fault takes microseconds.
const TRIES_MAX: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// The highest there is: above any other swap of this machine, or the program would page to that.
pub(crate) const PRIORITY: u16 = 32767;
