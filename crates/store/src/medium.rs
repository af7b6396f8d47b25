//! Where a pool lies: bytes that are written, written back, and durable after a fence.
//!
//! After a crash each unit that was written since the last fence is as it was or as it is, whatever was
//! written back: 8 bytes of persistent memory, a sector of 512 bytes of a disk. A unit that was written
//! back before a fence which returned is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Durable bytes.
pub trait Medium {
    /// All of them, as they were last written.
    fn bytes(&self) -> &[u8];

    /// Changes some. Not durable.
    fn write(&mut self, at: u64, bytes: &[u8]);

    /// Begins to make a range durable.
    ///
    /// # Errors
    /// Those of the medium, after which nothing is known of the range.
    fn write_back(&mut self, range: Range<u64>) -> io::Result<()>;

    /// Returns when what was written back is durable.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    fn fence(&mut self) -> io::Result<()>;
}

/// An ordinary file, held in memory as well; what is written back reaches it at the fence, in one run for
/// each stretch, and one `fdatasync`.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
    bytes: Vec<u8>,
    /// Sectors that were written back since the last fence.
    pending: BTreeSet<u64>,
    /// A disk that failed once: what it has is not known any more.
    is_broken: bool,
}

/// A copy of a pool in memory: whatever is done to it, the pool it was copied from stays as it is.
#[derive(Clone, Debug)]
pub struct DetachedMedium(Vec<u8>);

impl DetachedMedium {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Medium for DetachedMedium {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn write_back(&mut self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn fence(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sectors are written whole.
const SECTOR_BYTES: u64 = 512;

impl FileMedium {
    /// Opens a pool's file, all of it.
    ///
    /// # Errors
    /// Those of reading it, or that its length is no multiple of a sector.
    pub fn open(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        if len == 0 || !len.is_multiple_of(SECTOR_BYTES) {
            let text = format!("a pool of {len} bytes is not some whole sectors");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(Self {
            file,
            bytes,
            pending: BTreeSet::new(),
            is_broken: false,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        let sectors: Vec<u64> = std::mem::take(&mut self.pending).into_iter().collect();
        for run in sectors.chunk_by(|one, next| one + 1 == *next) {
            let start = run[0] * SECTOR_BYTES;
            let end = (run[run.len() - 1] + 1) * SECTOR_BYTES;
            let bytes = &self.bytes[start as usize..end as usize];
            self.file.write_all_at(bytes, start)?;
        }
        self.file.sync_data()
    }
}

impl Medium for FileMedium {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn write_back(&mut self, range: Range<u64>) -> io::Result<()> {
        if !range.is_empty() {
            self.pending
                .extend(range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES));
        }
        Ok(())
    }

    fn fence(&mut self) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("the pool's disk failed before"));
        }
        let flushed = self.flush();
        // After a failed fdatasync the kernel may have dropped what it had not written.
        self.is_broken = flushed.is_err();
        flushed
    }
}

/// A medium for tests that keeps what is durable apart, and crashes where it is told to.
#[derive(Clone, Debug)]
pub struct ModelMedium {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Bytes of a unit: 8 for persistent memory, 512 for a disk.
    unit: usize,
    /// Units that differ from what is durable, as far as anybody knows.
    dirty: BTreeSet<usize>,
    /// Units that were written back, as they were then.
    pending: BTreeMap<usize, Vec<u8>>,
    /// Write-backs and fences so far.
    boundaries: u64,
    /// The boundary at which it crashes.
    crash_at: Option<u64>,
}

impl ModelMedium {
    /// All zeros.
    #[must_use]
    pub fn new(len: usize, unit: usize) -> Self {
        Self {
            live: vec![0; len],
            durable: vec![0; len],
            unit,
            dirty: BTreeSet::new(),
            pending: BTreeMap::new(),
            boundaries: 0,
            crash_at: None,
        }
    }

    /// Crashes instead of the write-back or fence of this number, counted from now.
    pub fn crash_at(&mut self, boundary: Option<u64>) {
        (self.boundaries, self.crash_at) = (0, boundary);
    }

    /// Write-backs and fences since it was told where to crash.
    #[must_use]
    pub fn boundaries(&self) -> u64 {
        self.boundaries
    }

    /// What is there after a crash now: of what was not durable, `survives` says which units are.
    #[must_use]
    pub fn crashed(&self, mut survives: impl FnMut() -> bool) -> Self {
        let mut image = self.durable.clone();
        for unit in &self.dirty {
            let range = unit * self.unit..(unit + 1) * self.unit;
            if survives() {
                image[range.clone()].copy_from_slice(&self.live[range]);
            } else if let Some(written) = self.pending.get(unit)
                && survives()
            {
                image[range].copy_from_slice(written);
            }
        }
        Self {
            live: image.clone(),
            durable: image,
            dirty: BTreeSet::new(),
            pending: BTreeMap::new(),
            boundaries: 0,
            crash_at: None,
            ..*self
        }
    }

    fn units(&self, range: Range<u64>) -> Range<usize> {
        range.start as usize / self.unit..(range.end as usize).div_ceil(self.unit)
    }

    fn cross(&mut self) -> io::Result<()> {
        if self.crash_at.is_some_and(|at| self.boundaries >= at) {
            return Err(io::Error::other("crashed"));
        }
        self.boundaries += 1;
        Ok(())
    }
}

impl Medium for ModelMedium {
    fn bytes(&self) -> &[u8] {
        &self.live
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.live[at as usize..][..bytes.len()].copy_from_slice(bytes);
        let units = self.units(at..at + bytes.len() as u64);
        self.dirty.extend(units);
    }

    fn write_back(&mut self, range: Range<u64>) -> io::Result<()> {
        self.cross()?;
        for unit in self.units(range) {
            if self.dirty.contains(&unit) {
                let bytes = self.live[unit * self.unit..][..self.unit].to_vec();
                self.pending.insert(unit, bytes);
            }
        }
        Ok(())
    }

    fn fence(&mut self) -> io::Result<()> {
        self.cross()?;
        for (unit, bytes) in std::mem::take(&mut self.pending) {
            let range = unit * self.unit..(unit + 1) * self.unit;
            if self.live[range.clone()] == bytes[..] {
                self.dirty.remove(&unit);
            }
            self.durable[range].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_fenced_survives_and_the_rest_may() {
        let mut medium = ModelMedium::new(64, 8);
        medium.write(0, &[1; 16]);
        medium.write_back(0..8).unwrap();
        medium.fence().unwrap();
        medium.write(0, &[2; 8]);
        let kept = medium.crashed(|| true);
        assert_eq!(kept.bytes()[..16], [[2; 8], [1; 8]].concat());
        let lost = medium.crashed(|| false);
        assert_eq!(lost.bytes()[..16], [[1; 8], [0; 8]].concat());
    }

    #[test]
    fn a_file_has_what_was_fenced() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mut medium = FileMedium::open(file.try_clone().unwrap()).unwrap();
        medium.write(1000, &[7; 100]);
        medium.write(3000, &[8; 10]);
        medium.write_back(1000..1100).unwrap();
        medium.fence().unwrap();
        let again = FileMedium::open(file).unwrap();
        assert_eq!(again.bytes()[1000..1100], [7; 100]);
        assert_eq!(again.bytes()[3000..3010], [0; 10]);
    }

    #[test]
    fn a_file_of_no_whole_sectors_is_refused() {
        for len in [0, 511, 513] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(len).unwrap();
            let error = FileMedium::open(file).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
