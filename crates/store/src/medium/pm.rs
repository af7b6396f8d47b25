//! Persistent memory, or a file that stands for it: mapped, and durable by cache lines.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cenote_fabric::{Region, order_stores};

use super::Medium;

/// A mapped file. On DAX what is written back is durable after the fence; elsewhere it outlives the
/// process and not the machine, and a stated delay stands for what the memory would take.
#[derive(Debug)]
pub struct PmMedium {
    memory: Arc<Region>,
    /// Of each fence that has something to wait for.
    delay: Duration,
    written_bytes: AtomicU64,
}

const LINE_BYTES: u64 = 64;

impl PmMedium {
    /// Maps a file, all of it. `delay` is added to each fence.
    ///
    /// # Errors
    /// It is empty, or cannot be mapped.
    pub fn open(file: OwnedFd, delay: Duration) -> io::Result<Self> {
        let memory = Region::on_file(file).map_err(io::Error::other)?;
        Ok(Self {
            memory: Arc::new(memory),
            delay,
            written_bytes: AtomicU64::new(0),
        })
    }
}

impl Medium for PmMedium {
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
        if !range.is_empty() {
            let len = (range.end - range.start) as usize;
            self.memory.write_back(range.start, len);
            let lines = range.end.div_ceil(LINE_BYTES) - range.start / LINE_BYTES;
            self.written_bytes
                .fetch_add(lines * LINE_BYTES, Ordering::Relaxed);
        }
        Ok(())
    }

    fn write_back_hint(&self, range: Range<u64>) -> io::Result<()> {
        self.write_back(range)
    }

    fn fence(&self) -> io::Result<()> {
        order_stores();
        if !self.delay.is_zero() {
            let began = Instant::now();
            while began.elapsed() < self.delay {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn memory(&self) -> Option<&Arc<Region>> {
        Some(&self.memory)
    }

    fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }
}

/// Why memory is not gone.
const OURS: &str = "nobody truncates a store's file while it is locked";
