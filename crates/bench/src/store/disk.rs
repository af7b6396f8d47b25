//! What the disk itself takes to keep a block: below that no PUT that is durable can be.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;

use crate::swap_rig::interrupt;

/// Bytes that are written before each sync.
const BLOCK: [u8; BLOCK_BYTES as usize] = [0x5a; BLOCK_BYTES as usize];
const BLOCK_BYTES: u64 = 4096;
/// Syncs of one kind, unless they take too long.
const SYNCS: u64 = 400;
/// When they do.
const LIMIT: Duration = Duration::from_secs(2);

/// Longer times count as this long.
const LONGEST_NS: u64 = 60_000_000_000;

/// Times of `fdatasync` of the disk below `dir`, in words.
///
/// # Errors
/// Those of the disk.
pub(super) fn latencies(dir: &Path) -> Result<String> {
    let path = dir.join("disk");
    let file = File::create_new(&path).with_context(|| path.display().to_string())?;
    let appended = times(&file, |_| (&file).write_all(&BLOCK))?;
    // The blocks are there: no metadata changes any more.
    let rewritten = times(&file, |at| file.write_all_at(&BLOCK, at * BLOCK_BYTES))?;
    std::fs::remove_file(&path)?;
    let what = if is_in_memory(dir)? {
        "MEMORY, not a disk (tmpfs)"
    } else {
        "the disk"
    };
    let words = |times: &Histogram<u64>| {
        let us = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        format!("p50 {:.0} us, p99 {:.0} us", us(0.5), us(0.99))
    };
    Ok(format!(
        "{what} of {}: 4 KiB and fdatasync, appended {}, written again {}",
        dir.display(),
        words(&appended),
        words(&rewritten)
    ))
}

fn times(file: &File, mut write: impl FnMut(u64) -> io::Result<()>) -> Result<Histogram<u64>> {
    let mut times = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
    let began = Instant::now();
    for at in 0..SYNCS {
        interrupt::check()?;
        let before = Instant::now();
        write(at)?;
        file.sync_data()?;
        times.saturating_record(u64::try_from(before.elapsed().as_nanos())?);
        if began.elapsed() > LIMIT {
            break;
        }
    }
    Ok(times)
}

/// Whether what is in `dir` is never on a disk.
fn is_in_memory(dir: &Path) -> Result<bool> {
    let file = File::open(dir)?;
    // SAFETY: all zeros are a `statfs`.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and room for what is told of its file system.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut about) } != 0 {
        return Err(io::Error::last_os_error()).context("ask for the file system");
    }
    Ok(about.f_type == libc::TMPFS_MAGIC)
}

/// Writes out all that the kernel still holds for the file system of `dir`.
///
/// # Errors
/// Those of the disk.
pub(super) fn write_out(dir: &Path) -> Result<()> {
    let file = File::open(dir)?;
    // SAFETY: an open file.
    if unsafe { libc::syncfs(file.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error()).context("sync the file system");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap_rig::turn;

    #[test]
    fn every_sync_is_counted_and_takes_time() {
        let _turn = turn();
        let file = tempfile::tempfile().unwrap();
        let mut written = 0;
        let times = times(&file, |at| {
            written = at + 1;
            file.write_all_at(&BLOCK, at * BLOCK_BYTES)
        });
        let times = times.unwrap();
        assert_eq!(times.len(), written);
        assert!(
            times.value_at_quantile(0.5) > 100,
            "less than a call to the kernel"
        );
    }
}
