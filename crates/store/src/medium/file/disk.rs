//! A pool's file, past the page cache where the file system allows that.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use cenote_fabric::Region;
use rustix::fs::SeekFrom;

/// A file is written in whole blocks of this: what no disk or file system of Linux has to read first.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Read and written at most so much at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Blocks that were never written are written for the first time together with the others of so many:
/// until then the file system has to note of each that it is in use, and to make that durable as well.
const CHUNK_BLOCKS: u64 = 256;
/// Of a chunk, so many blocks that are written for the first time are worth that note: the others are
/// not written with them.
const NOTED_BLOCKS: u64 = 64;
/// Stretches that are written one after the other; more than that by some threads.
const RUNS_MAX: usize = 8;
/// Writes that a disk is given at a time.
const WRITERS: usize = 8;

/// An open file of whole blocks, or of a length that keeps it in the page cache.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    /// Of each chunk, how many of its blocks were written before, from its beginning on.
    blocks_in_use: Vec<u64>,
}

/// Memory at an address that direct I/O accepts.
#[derive(Debug, Default)]
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    fn of(&mut self, len: u64) -> &mut [u8] {
        let (len, block) = (len as usize, BLOCK_BYTES as usize);
        if self.0.len() < len + block {
            self.0.resize(len + block, 0);
        }
        let skip = self.0.as_ptr().align_offset(block);
        &mut self.0[skip..skip + len]
    }
}

impl Disk {
    /// Opens it once more, past the page cache: its bytes are kept in memory anyway.
    pub fn new(file: File, len: u64, is_to_write: bool) -> Self {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let reopened = OpenOptions::new()
            .read(true)
            .write(is_to_write)
            .custom_flags(libc::O_DIRECT)
            .open(path);
        let takes = |direct: &File| {
            let first = direct.read_exact_at(Buffer::default().of(BLOCK_BYTES), 0);
            len.is_multiple_of(BLOCK_BYTES) && first.is_ok()
        };
        let file = match reopened {
            Ok(direct) if takes(&direct) => direct,
            // The file system, or its length, does not allow it.
            _ => file,
        };
        let chunks = len.div_ceil(BLOCK_BYTES).div_ceil(CHUNK_BLOCKS);
        Self {
            file,
            blocks_in_use: vec![0; chunks as usize],
        }
    }

    /// Puts what was ever written into memory that is all zeros.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read_into(&mut self, memory: &Region) -> io::Result<()> {
        let len = memory.len_bytes();
        let mut buffer = Buffer::default();
        let mut at = 0;
        while let Some(data) = self.next_data(at, len) {
            for start in data.clone().step_by(PIECE_BYTES as usize) {
                let count = (data.end - start).min(PIECE_BYTES);
                let piece = buffer.of(count);
                self.file.read_exact_at(piece, start)?;
                // What is zero takes no memory until it is written.
                if piece.iter().any(|byte| *byte != 0) {
                    memory.write(start, piece).expect(super::OURS);
                }
            }
            let blocks = data.start / BLOCK_BYTES..data.end / BLOCK_BYTES;
            for chunk in blocks.start.div_ceil(CHUNK_BLOCKS)..blocks.end.div_ceil(CHUNK_BLOCKS) {
                let in_use = (blocks.end - chunk * CHUNK_BLOCKS).min(CHUNK_BLOCKS);
                self.blocks_in_use[chunk as usize] = in_use;
            }
            at = data.end;
        }
        Ok(())
    }

    /// The next stretch that is no hole, in whole blocks.
    fn next_data(&self, at: u64, len: u64) -> Option<Range<u64>> {
        let seek = |from| rustix::fs::seek(&self.file, from);
        if at >= len {
            return None;
        }
        let (start, end) = match seek(SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => return None,
            // A file system that knows nothing of holes.
            Err(_) => (at, len),
            Ok(start) => (start, seek(SeekFrom::Hole(start)).unwrap_or(len)),
        };
        let start = start / BLOCK_BYTES * BLOCK_BYTES;
        let end = end.next_multiple_of(BLOCK_BYTES).min(len);
        (start < end).then_some(start..end)
    }

    /// Makes some blocks durable as memory has them; how many bytes that took. Ascending.
    ///
    /// # Errors
    /// The disk's, after which nothing is known of them.
    pub fn make_durable(
        &mut self,
        blocks: &[u64],
        memory: &Region,
        buffer: &mut Buffer,
    ) -> io::Result<u64> {
        let (runs, fresh) = self.runs(blocks, memory.len_bytes());
        let write = |buffer: &mut Buffer, run: &Range<u64>| -> io::Result<u64> {
            for start in run.clone().step_by(PIECE_BYTES as usize) {
                let piece = buffer.of((run.end - start).min(PIECE_BYTES));
                memory.read(start, piece).expect(super::OURS);
                self.file.write_all_at(piece, start)?;
            }
            Ok(run.end - run.start)
        };
        let written = match runs.len() <= RUNS_MAX {
            true => runs
                .iter()
                .map(|run| write(buffer, run))
                .sum::<io::Result<u64>>(),
            false => std::thread::scope(|scope| {
                let write = &write;
                let (mut writers, mut own) = (Vec::new(), Vec::new());
                for share in runs.chunks(runs.len().div_ceil(WRITERS)) {
                    let write_share = move || {
                        let mut buffer = Buffer::default();
                        let ends = share.iter().map(|run| write(&mut buffer, run));
                        ends.sum::<io::Result<u64>>()
                    };
                    match std::thread::Builder::new().spawn_scoped(scope, write_share) {
                        Ok(writer) => writers.push(writer),
                        // The machine has no more threads just now: what they would write is
                        // written here.
                        Err(_) => own.extend(share),
                    }
                }
                let own = own.into_iter().map(|run| write(buffer, run));
                let own = own.sum::<io::Result<u64>>();
                let ends = writers.into_iter();
                ends.map(|one| one.join().expect("a panic has ended the process"))
                    .chain([own])
                    .sum::<io::Result<u64>>()
            }),
        }?;
        self.file.sync_data()?;
        for (chunk, in_use) in fresh {
            self.blocks_in_use[chunk as usize] = in_use;
        }
        Ok(written)
    }

    /// Stretches of bytes that are to be written, and of chunks that get blocks for the first time, how
    /// many they have then.
    fn runs(&self, blocks: &[u64], len: u64) -> (Vec<Range<u64>>, Vec<(u64, u64)>) {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut fresh = Vec::new();
        let mut add = |wanted: Range<u64>| {
            let wanted = wanted.start * BLOCK_BYTES..(wanted.end * BLOCK_BYTES).min(len);
            match runs.last_mut() {
                Some(last) if last.end >= wanted.start => last.end = last.end.max(wanted.end),
                _ => runs.push(wanted),
            }
        };
        for some in blocks.chunk_by(|one, next| one / CHUNK_BLOCKS == next / CHUNK_BLOCKS) {
            let chunk = some[0] / CHUNK_BLOCKS;
            let start = chunk * CHUNK_BLOCKS;
            let free = start + self.blocks_in_use[chunk as usize];
            let (again, first) = some.split_at(some.partition_point(|block| *block < free));
            again.iter().for_each(|block| add(*block..block + 1));
            if let Some(last) = first.last() {
                let end = match first.len() as u64 >= NOTED_BLOCKS {
                    true => last + 1,
                    false => start + CHUNK_BLOCKS,
                };
                add(free..end);
                fresh.push((chunk, end - start));
            }
        }
        (runs, fresh)
    }
}
