//! What each block of the area held when it was last read or written, as a checksum in memory.
//!
//! redb verifies its pages when a database is opened, and trusts them afterwards: over one that is
//! damaged later it panics, or gives other rows. What it reads again is what it verified or wrote,
//! or is refused here.
//!
//! Blocks that are read or written in part are not watched: redb's header has checksums of its own.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Mutex;

use super::lock;
use crate::medium::BLOCK_BYTES;

#[derive(Default)]
pub(super) struct BlockSums {
    /// Seeded at random: whoever has the bytes cannot look for others of the same sum.
    hasher: RandomState,
    /// By block; 0: not known.
    sums: Mutex<Vec<u32>>,
}

impl BlockSums {
    /// Whether bytes that were read are those that were there before, as far as that is known. They
    /// are known from here on.
    pub(super) fn check(&self, offset: u64, bytes: &[u8]) -> bool {
        let (first, blocks) = whole_blocks(offset, bytes);
        let read: Vec<u32> = blocks.map(|block| self.sum(block)).collect();
        let mut sums = lock(&self.sums);
        let known = room_for(&mut sums, first, read.len());
        let mut is_same = true;
        for (known, read) in known.iter_mut().zip(read) {
            is_same &= *known == 0 || *known == read;
            if *known == 0 {
                *known = read;
            }
        }
        is_same
    }

    /// Bytes are about to be written.
    pub(super) fn note(&self, offset: u64, bytes: &[u8]) {
        let (first, blocks) = whole_blocks(offset, bytes);
        let written: Vec<u32> = blocks.map(|block| self.sum(block)).collect();
        let mut sums = lock(&self.sums);
        let parts = [offset, offset + bytes.len() as u64];
        for part in parts.iter().filter(|at| !at.is_multiple_of(BLOCK_BYTES)) {
            if let Some(sum) = sums.get_mut((part / BLOCK_BYTES) as usize) {
                *sum = 0;
            }
        }
        room_for(&mut sums, first, written.len()).copy_from_slice(&written);
    }

    /// What is behind an offset is not known any more.
    pub(super) fn forget_from(&self, offset: u64) {
        lock(&self.sums).truncate((offset / BLOCK_BYTES) as usize);
    }

    fn sum(&self, block: &[u8]) -> u32 {
        (self.hasher.hash_one(block) as u32).max(1)
    }
}

/// The first block that bytes from `offset` on have all of, and each of these.
fn whole_blocks(offset: u64, bytes: &[u8]) -> (usize, std::slice::ChunksExact<'_, u8>) {
    let first = offset.div_ceil(BLOCK_BYTES);
    let skipped = (first * BLOCK_BYTES - offset).min(bytes.len() as u64);
    let rest = &bytes[skipped as usize..];
    (first as usize, rest.chunks_exact(BLOCK_BYTES as usize))
}

/// Those of `count` blocks.
fn room_for(sums: &mut Vec<u32>, first: usize, count: usize) -> &mut [u32] {
    if count > 0 && sums.len() < first + count {
        sums.resize(first + count, 0);
    }
    match count {
        0 => &mut [],
        _ => &mut sums[first..first + count],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = BLOCK_BYTES as usize;

    #[test]
    fn bytes_are_those_that_were_read_or_written_last() {
        let sums = BlockSums::default();
        let (ones, twos) = (vec![1; 3 * BLOCK], vec![2; 3 * BLOCK]);
        assert!(sums.check(BLOCK_BYTES, &ones), "not known");
        assert!(sums.check(BLOCK_BYTES, &ones) && !sums.check(BLOCK_BYTES, &twos));
        sums.note(2 * BLOCK_BYTES, &twos[..BLOCK]);
        let now = [&ones[..BLOCK], &twos[..BLOCK], &ones[..BLOCK]].concat();
        assert!(sums.check(BLOCK_BYTES, &now) && !sums.check(BLOCK_BYTES, &ones));
        // In part: of the first and the last nothing is known, the one between is.
        sums.note(BLOCK_BYTES + 512, &ones[..2 * BLOCK]);
        assert!(sums.check(BLOCK_BYTES, &ones) && !sums.check(BLOCK_BYTES, &twos));
        // What is beside whole blocks stays.
        sums.note(0, &twos[..BLOCK]);
        sums.note(2 * BLOCK_BYTES, &ones[..BLOCK]);
        assert!(!sums.check(BLOCK_BYTES, &twos[..BLOCK]));
        sums.note(2 * BLOCK_BYTES, &twos[..BLOCK]);
        // Bytes of no whole block.
        assert!(sums.check(BLOCK_BYTES + 1, &twos[..BLOCK]));
        sums.forget_from(2 * BLOCK_BYTES);
        assert!(!sums.check(BLOCK_BYTES, &twos[..BLOCK]));
        assert!(sums.check(2 * BLOCK_BYTES, &twos[..2 * BLOCK]));
    }
}
