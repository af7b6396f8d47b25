//! A disk in this process's own memory, thin and not resilient.
//!
//! For tests, and as the baseline that shows what the front end itself costs.
//! Memory comes in chunks of 1 MiB on first write, each behind its own lock;
//! a bitmap per chunk remembers which pages were written.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cenote_volume::{Done, IoError, Op, PAGE_BYTES, Request};

use crate::disk::{Disk, Extent, Queue};

/// A thin disk of fixed size in local memory.
pub struct RamDisk {
    shared: Arc<Shared>,
}

impl RamDisk {
    /// An empty disk; no memory is taken before something is written.
    pub fn new(size_bytes: u64) -> Self {
        let chunk_count = size_bytes.div_ceil(CHUNK_BYTES as u64);
        let chunks = (0..chunk_count).map(|_| RwLock::default()).collect();
        Self {
            shared: Arc::new(Shared { size_bytes, chunks }),
        }
    }
}

impl Disk for RamDisk {
    fn size_bytes(&self) -> u64 {
        self.shared.size_bytes
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(RamQueue {
            shared: Arc::clone(&self.shared),
            done: Vec::new(),
        }))
    }

    fn extents(&self, offset: u64, len_bytes: u64, out: &mut Vec<Extent>) {
        let first = out.len();
        self.shared.for_each_part(offset, len_bytes, |chunk, part| {
            let chunk = chunk.read().unwrap_or_else(PoisonError::into_inner);
            let mut at = part.start;
            while at < part.end {
                let end = (at / PAGE_BYTES + 1) * PAGE_BYTES;
                let end = end.min(part.end);
                push_run(out, first, (end - at) as u64, chunk.is_written(at));
                at = end;
            }
        });
    }

    fn description(&self) -> String {
        "local memory, lost with this process".to_owned()
    }
}

/// Appends a run, or lengthens the last one of `out[first..]` if it is alike.
fn push_run(out: &mut Vec<Extent>, first: usize, len_bytes: u64, allocated: bool) {
    match out[first..].last_mut() {
        Some(last) if last.allocated == allocated => last.len_bytes += len_bytes,
        _ => out.push(Extent {
            len_bytes,
            allocated,
        }),
    }
}

struct Shared {
    size_bytes: u64,
    chunks: Vec<RwLock<Chunk>>,
}

impl Shared {
    /// Calls `each` with every chunk of a range and the part of it concerned.
    fn for_each_part(
        &self,
        offset: u64,
        len_bytes: u64,
        mut each: impl FnMut(&RwLock<Chunk>, std::ops::Range<usize>),
    ) {
        let mut at = offset;
        let end = offset + len_bytes;
        while at < end {
            let start = (at % CHUNK_BYTES as u64) as usize;
            let part_bytes = (CHUNK_BYTES - start).min((end - at).min(CHUNK_BYTES as u64) as usize);
            each(
                &self.chunks[(at / CHUNK_BYTES as u64) as usize],
                start..start + part_bytes,
            );
            at += part_bytes as u64;
        }
    }

    fn run(&self, offset: u64, op: &mut Op) -> Result<(), IoError> {
        let len_bytes = match op {
            Op::Read(buffer) | Op::Write(buffer) => buffer.len() as u64,
            Op::Discard { len_bytes } => *len_bytes,
        };
        let end = offset.checked_add(len_bytes).ok_or(IoError::OutOfRange)?;
        if end > self.size_bytes {
            return Err(IoError::OutOfRange);
        }
        let mut at = 0;
        self.for_each_part(offset, len_bytes, |chunk, part| {
            let next = at + part.len();
            match op {
                Op::Read(buffer) => chunk
                    .read()
                    .unwrap_or_else(PoisonError::into_inner)
                    .read(part.start, &mut buffer[at..next]),
                Op::Write(buffer) => chunk
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .write(part.start, &buffer[at..next]),
                Op::Discard { .. } => chunk
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .discard(part),
            }
            at = next;
        });
        Ok(())
    }
}

/// Memory of one chunk, and which of its pages hold data.
#[derive(Default)]
struct Chunk {
    /// `CHUNK_BYTES` long, or empty while nothing was written.
    bytes: Vec<u8>,
    written: [u64; CHUNK_PAGES / 64],
}

impl Chunk {
    fn is_written(&self, at: usize) -> bool {
        let page = at / PAGE_BYTES;
        self.written[page / 64] >> (page % 64) & 1 == 1
    }

    fn read(&self, start: usize, target: &mut [u8]) {
        if self.bytes.is_empty() {
            target.fill(0);
        } else {
            target.copy_from_slice(&self.bytes[start..start + target.len()]);
        }
    }

    fn write(&mut self, start: usize, source: &[u8]) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; CHUNK_BYTES];
        }
        let end = start + source.len();
        self.bytes[start..end].copy_from_slice(source);
        for page in start / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            self.written[page / 64] |= 1 << (page % 64);
        }
    }

    fn discard(&mut self, part: std::ops::Range<usize>) {
        if self.bytes.is_empty() {
            return;
        }
        let whole = part.start.div_ceil(PAGE_BYTES)..part.end / PAGE_BYTES;
        self.bytes[part].fill(0);
        for page in whole {
            self.written[page / 64] &= !(1 << (page % 64));
        }
        if self.written.iter().all(|word| *word == 0) {
            self.bytes = Vec::new();
        }
    }
}

/// Runs every request where it is submitted.
struct RamQueue {
    shared: Arc<Shared>,
    done: Vec<Done>,
}

impl Queue for RamQueue {
    fn submit(&mut self, mut request: Request) -> Result<(), Request> {
        let result = self.shared.run(request.offset, &mut request.op);
        self.done.push(Done {
            tag: request.tag,
            op: request.op,
            result,
        });
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.done);
    }

    fn wait_fds(&self, _out: &mut Vec<RawFd>) {}

    fn deadline(&self) -> Option<Duration> {
        None
    }
}

/// Unit of locking and of allocation, in bytes: arbitrary, large enough that a
/// 128 KiB request rarely takes two locks.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_PAGES: usize = CHUNK_BYTES / PAGE_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(queue: &mut dyn Queue, offset: u64, op: Op) -> Done {
        queue
            .submit(Request { tag: 7, offset, op })
            .expect("a RAM queue is never full");
        let mut done = Vec::new();
        queue.poll(&mut done);
        assert_eq!(done.len(), 1);
        done.remove(0)
    }

    #[test]
    fn discard_frees_whole_pages_and_zeroes_the_edges() {
        let disk = RamDisk::new(3 * CHUNK_BYTES as u64 + 100);
        let mut queue = disk.queue().unwrap();
        let len = 4 * PAGE_BYTES;
        let start = (CHUNK_BYTES - 2 * PAGE_BYTES) as u64;
        assert_eq!(
            run(&mut *queue, start, Op::Write(vec![9; len])).result,
            Ok(())
        );

        let len_bytes = 2 * PAGE_BYTES as u64;
        let discard = run(&mut *queue, start + 100, Op::Discard { len_bytes });
        assert_eq!(discard.result, Ok(()));

        let Op::Read(bytes) = run(&mut *queue, start, Op::Read(vec![1; len])).op else {
            panic!("a read comes back as a read");
        };
        assert!(bytes[..100].iter().all(|byte| *byte == 9));
        assert!(
            bytes[100..100 + 2 * PAGE_BYTES]
                .iter()
                .all(|byte| *byte == 0)
        );
        assert!(bytes[100 + 2 * PAGE_BYTES..].iter().all(|byte| *byte == 9));
        let mut runs = Vec::new();
        disk.extents(start, len as u64, &mut runs);
        let lens: Vec<_> = runs
            .iter()
            .map(|run| (run.len_bytes, run.allocated))
            .collect();
        assert_eq!(lens, [(4096, true), (4096, false), (8192, true)]);
    }

    #[test]
    fn refuses_what_passes_the_end() {
        let disk = RamDisk::new(8192);
        let mut queue = disk.queue().unwrap();
        let done = run(&mut *queue, 4097, Op::Write(vec![1; 4096]));
        assert_eq!(done.result, Err(IoError::OutOfRange));
        let done = run(&mut *queue, u64::MAX, Op::Discard { len_bytes: 2 });
        assert_eq!(done.result, Err(IoError::OutOfRange));
    }
}
