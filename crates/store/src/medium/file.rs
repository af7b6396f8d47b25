//! An ordinary file, held in memory as well.

mod disk;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_fabric::{Region, RegionOptions};

use super::Medium;
use disk::{BLOCK_BYTES, Buffer, Disk};

/// A disk: what is written back reaches the file at the fence, one write for each stretch, and one
/// `fdatasync` for all. Fences of several threads follow each other.
///
/// Beside what was written back, a fence may write other bytes as they are in memory just then.
#[derive(Debug)]
pub struct FileMedium {
    memory: Arc<Region>,
    pending: Mutex<Pending>,
    /// `None`: a copy in memory, of which nothing is ever written.
    writing: Option<Mutex<Writing>>,
    written_bytes: AtomicU64,
}

/// Blocks that were written back, and are in no fence.
#[derive(Debug, Default)]
struct Pending {
    blocks: BTreeSet<u64>,
    /// Those of a fence that was begun.
    begun: BTreeSet<u64>,
}

#[derive(Debug)]
struct Writing {
    disk: Disk,
    buffer: Buffer,
    /// A disk that failed once: what it has is not known any more.
    is_broken: bool,
}

const SECTOR_BYTES: u64 = 512;

impl FileMedium {
    /// Opens a pool's file, all of it.
    ///
    /// # Errors
    /// Those of reading it, or that its length is no multiple of a sector.
    pub fn open(file: File) -> io::Result<Self> {
        // A process that was killed may have left bytes that are read, and not durable.
        file.sync_data()?;
        let (mut medium, disk) = Self::read(file, true)?;
        medium.writing = Some(Mutex::new(Writing {
            disk,
            buffer: Buffer::default(),
            is_broken: false,
        }));
        Ok(medium)
    }

    /// A copy of a pool's file in memory: whatever is done to it, the file stays as it is.
    ///
    /// # Errors
    /// As [`FileMedium::open`].
    pub fn look(file: File) -> io::Result<Self> {
        Self::read(file, false).map(|(medium, _)| medium)
    }

    fn read(file: File, is_to_write: bool) -> io::Result<(Self, Disk)> {
        let len = file.metadata()?.len();
        if len == 0 || !len.is_multiple_of(SECTOR_BYTES) {
            let text = format!("a pool of {len} bytes is not some whole sectors");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let memory = Region::create_kept("cenote-store", len, RegionOptions::default())
            .map_err(io::Error::other)?;
        let mut disk = Disk::new(file, len, is_to_write);
        disk.read_into(&memory)?;
        let medium = Self {
            memory: Arc::new(memory),
            pending: Mutex::default(),
            writing: None,
            written_bytes: AtomicU64::new(0),
        };
        Ok((medium, disk))
    }

    /// Makes what `choose` takes durable.
    fn flush(&self, choose: impl FnOnce(&mut Pending) -> BTreeSet<u64>) -> io::Result<()> {
        let Some(writing) = &self.writing else {
            return Ok(());
        };
        // What this thread wrote back may be in the flush of another: it waits for that one, and then
        // for its own.
        let mut writing = lock(writing);
        if writing.is_broken {
            return Err(io::Error::other("the pool's disk failed before"));
        }
        let flushed = self.make_durable(choose(&mut lock(&self.pending)), &mut writing);
        // After a failed fdatasync the kernel may have dropped what it had not written.
        writing.is_broken = flushed.is_err();
        flushed
    }

    fn make_durable(&self, blocks: BTreeSet<u64>, writing: &mut Writing) -> io::Result<()> {
        // A fence before this one had them.
        if blocks.is_empty() {
            return Ok(());
        }
        let blocks: Vec<u64> = blocks.into_iter().collect();
        let (disk, buffer) = (&mut writing.disk, &mut writing.buffer);
        let written = disk.make_durable(&blocks, &self.memory, buffer)?;
        self.written_bytes.fetch_add(written, Ordering::Relaxed);
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
        if self.writing.is_some() && !range.is_empty() {
            let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
            lock(&self.pending).blocks.extend(blocks);
        }
        Ok(())
    }

    /// A block is all that a disk writes: of a version of 4 KiB that is as much as its value.
    fn write_back_hint(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn fence(&self) -> io::Result<()> {
        self.flush(|pending| {
            let mut all = std::mem::take(&mut pending.blocks);
            all.append(&mut pending.begun);
            all
        })
    }

    fn begin_fence(&self) {
        let mut pending = lock(&self.pending);
        let Pending { blocks, begun } = &mut *pending;
        begun.append(blocks);
    }

    fn end_fence(&self) -> io::Result<()> {
        self.flush(|pending| std::mem::take(&mut pending.begun))
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
const OURS: &str = "the memory of a store is sealed against truncation";
