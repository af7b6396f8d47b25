//! The other choice: a swap file on this machine's disk.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use cenote_block::swap::area;
use cenote_measure::random::mix;
use hdrhistogram::Histogram;

use super::area::Area;
use crate::demo::Disk;

/// A file in the form of a swap area; removed when dropped.
pub(crate) struct SwapFile {
    path: PathBuf,
    file: File,
    size_bytes: u64,
}

impl SwapFile {
    /// Writes every block of it, past the page cache: a hole is no swap area, and a block that
    /// was never written is not read from the disk.
    pub(crate) fn make(path: &Path, size_bytes: u64) -> anyhow::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .with_context(|| format!("make {}", path.display()))?;
        let made = Self {
            path: path.to_owned(),
            file,
            size_bytes,
        };
        let mut block = Aligned::new(1 << 20);
        for offset in (0..size_bytes).step_by(1 << 20) {
            let bytes = block.bytes();
            if offset == 0 {
                bytes[..area::PAGE_BYTES].copy_from_slice(&area::header(size_bytes, [7; 16]));
            } else {
                bytes.fill(0x5a);
            }
            made.file
                .write_all_at(bytes, offset)
                .with_context(|| format!("write {}", path.display()))?;
        }
        made.file.sync_all().context("write the swap file")?;
        Ok(made)
    }

    /// Times random direct reads of 4 KiB, one at a time.
    pub(crate) fn read_latency(&self, seed: u64) -> anyhow::Result<Disk> {
        let mut page = Aligned::new(area::PAGE_BYTES);
        let mut times: Histogram<u64> = Histogram::new_with_bounds(100, READ_NS_MAX, 3)?;
        let page_count = self.size_bytes / area::PAGE_BYTES as u64;
        for index in 0..READ_COUNT {
            let offset = mix(seed ^ index << 8) % page_count * area::PAGE_BYTES as u64;
            let began = Instant::now();
            self.file
                .read_exact_at(page.bytes(), offset)
                .context("read the swap file")?;
            times.saturating_record(began.elapsed().as_nanos() as u64);
        }
        Ok(Disk {
            read_us_p50: times.value_at_quantile(0.5) as f64 / 1e3,
            read_us_p99: times.value_at_quantile(0.99) as f64 / 1e3,
        })
    }

    /// Turns swap on until the area is dropped, which must be before the file is.
    pub(crate) fn on(&self) -> anyhow::Result<Area> {
        Area::on(&self.path)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            eprintln!("remove {}: {error}", self.path.display());
        }
    }
}

/// Memory that direct I/O takes: page-aligned.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let memory = vec![0_u8; len + area::PAGE_BYTES];
        let start = memory.as_ptr().align_offset(area::PAGE_BYTES);
        Self { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Longer reads count as this long: a minute.
const READ_NS_MAX: u64 = 60_000_000_000;
/// Reads for one figure: enough for a p99, a tenth of a second here.
const READ_COUNT: u64 = 2000;
