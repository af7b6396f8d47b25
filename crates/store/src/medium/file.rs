//! An ordinary file, held in memory as well.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_fabric::{Region, RegionOptions};

use super::Medium;

/// A disk: what is written back reaches the file at the fence, one write for each stretch, and one
/// `fdatasync` for all. Nothing reaches it before. Fences of several threads follow each other.
#[derive(Debug)]
pub struct FileMedium {
    /// `None`: a copy in memory, of which nothing is ever written.
    file: Option<File>,
    memory: Arc<Region>,
    /// Sectors that were written back since the last fence.
    pending: Mutex<BTreeSet<u64>>,
    fencing: Mutex<Vec<u8>>,
    written_bytes: AtomicU64,
    /// A disk that failed once: what it has is not known any more.
    is_broken: AtomicBool,
}

/// Sectors are written whole.
const SECTOR_BYTES: u64 = 512;
/// A stretch is read into memory of its own in pieces of this, and written.
const PIECE_BYTES: usize = 1 << 20;

impl FileMedium {
    /// Opens a pool's file, all of it.
    ///
    /// # Errors
    /// Those of reading it, or that its length is no multiple of a sector.
    pub fn open(file: File) -> io::Result<Self> {
        let mut medium = Self::look(&file)?;
        medium.file = Some(file);
        Ok(medium)
    }

    /// A copy of a pool's file in memory: whatever is done to it, the file stays as it is.
    ///
    /// # Errors
    /// As [`FileMedium::open`].
    pub fn look(file: &File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        if len == 0 || !len.is_multiple_of(SECTOR_BYTES) {
            let text = format!("a pool of {len} bytes is not some whole sectors");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let memory = Region::create("cenote-store", len, RegionOptions::default())
            .map_err(io::Error::other)?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < len {
            let count = (len - at).min(PIECE_BYTES as u64) as usize;
            file.read_exact_at(&mut piece[..count], at)?;
            // What is zero takes no memory until it is written.
            if piece[..count].iter().any(|byte| *byte != 0) {
                memory.write(at, &piece[..count]).expect(OURS);
            }
            at += count as u64;
        }
        Ok(Self {
            file: None,
            memory: Arc::new(memory.kept()),
            pending: Mutex::default(),
            fencing: Mutex::default(),
            written_bytes: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
        })
    }

    fn flush(&self, file: &File, piece: &mut Vec<u8>) -> io::Result<()> {
        let taken = std::mem::take(&mut *lock(&self.pending));
        let sectors: Vec<u64> = taken.into_iter().collect();
        piece.resize(PIECE_BYTES, 0);
        for run in sectors.chunk_by(|one, next| one + 1 == *next) {
            let mut at = run[0] * SECTOR_BYTES;
            let end = (run[run.len() - 1] + 1) * SECTOR_BYTES;
            while at < end {
                let count = (end - at).min(PIECE_BYTES as u64) as usize;
                self.memory.read(at, &mut piece[..count]).expect(OURS);
                file.write_all_at(&piece[..count], at)?;
                at += count as u64;
            }
        }
        file.sync_data()?;
        let bytes = sectors.len() as u64 * SECTOR_BYTES;
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Medium for FileMedium {
    fn len(&self) -> u64 {
        self.memory.len_bytes()
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.memory.read(at, out).expect(OURS);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes).expect(OURS);
    }

    fn store(&self, at: u64, value: u64) {
        self.memory.store(at, value).expect(OURS);
    }

    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        if !range.is_empty() && self.file.is_some() {
            let sectors = range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES);
            lock(&self.pending).extend(sectors);
        }
        Ok(())
    }

    fn fence(&self) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        // What this thread wrote back may be in the flush of another: it waits for that one, and then
        // for its own.
        let mut piece = lock(&self.fencing);
        if self.is_broken.load(Ordering::Acquire) {
            return Err(io::Error::other("the pool's disk failed before"));
        }
        let flushed = self.flush(file, &mut piece);
        // After a failed fdatasync the kernel may have dropped what it had not written.
        self.is_broken.store(flushed.is_err(), Ordering::Release);
        flushed
    }

    fn is_quick(&self) -> bool {
        false
    }

    fn memory(&self) -> Option<&Arc<Region>> {
        Some(&self.memory)
    }

    fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why memory is not gone.
const OURS: &str = "nobody else truncates the memory of a store";
