//! A worker's memory for pages and parities in the making: a block for each page operation.
//!
//! A block has room for as many parities as any stripe may have. Only what the volume's scheme needs
//! is in memory from the start; the rest is, once a stripe with more of them is seen. A process that
//! swaps to itself is never short of a page of it in the middle of an operation.
//!
//! Invariant: blocks do not move. Verbs that are out refer to them.

use std::cell::UnsafeCell;

use cenote_codec::PARITY_MAX;

use super::OPS_MAX;
use crate::PAGE_BYTES;
use crate::scheme::Cut;

pub struct Scratch {
    bytes: Box<[UnsafeCell<u8>]>,
    block_bytes: usize,
    split_bytes: usize,
    // Parities for which every block has its memory.
    parities: usize,
}

/// Blocks a power of two apart would share the same few sets of the caches; an odd number of lines more
/// spreads them.
const SKEW_BYTES: usize = 5 * 64;

/// What a page of memory is at least.
const TOUCH_BYTES: usize = 4096;

impl Scratch {
    /// Blocks of a page and, for now, `parities`.
    pub fn new(cut: Cut, parities: usize) -> Self {
        let split_bytes = cut.split_bytes();
        let block_bytes = Self::block_bytes(cut);
        let zeroed = Box::<[UnsafeCell<u8>]>::new_zeroed_slice(OPS_MAX * block_bytes);
        // SAFETY: zero is a byte, and `UnsafeCell` adds nothing to it.
        let bytes = unsafe { zeroed.assume_init() };
        let mut scratch = Self {
            bytes,
            block_bytes,
            split_bytes,
            parities: 0,
        };
        scratch.touch(parities);
        scratch
    }

    /// Bytes of a block: a page, then parities, and a gap.
    pub fn block_bytes(cut: Cut) -> usize {
        PAGE_BYTES + PARITY_MAX * cut.split_bytes() + SKEW_BYTES
    }

    /// The start of a block.
    #[inline]
    pub fn block(&self, number: u16) -> *mut u8 {
        let start = usize::from(number) * self.block_bytes;
        UnsafeCell::raw_get(self.bytes[start..][..self.block_bytes].as_ptr())
    }

    /// Has the system back what nobody has written yet, before any block is in use.
    fn touch(&mut self, parities: usize) {
        let used = PAGE_BYTES + parities * self.split_bytes;
        for block in self.bytes.chunks_mut(self.block_bytes) {
            let last = used - 1;
            for at in (0..last).step_by(TOUCH_BYTES).chain([last]) {
                // SAFETY: a byte of ours, which nobody else refers to. Volatile, or the compiler
                // knows that it is zero already.
                unsafe { block[at].get().write_volatile(0) };
            }
        }
        self.parities = parities;
    }

    /// Has memory for so many parities in every block, also in those that are in use.
    #[inline]
    pub fn reserve(&mut self, parities: usize) {
        if parities > self.parities {
            self.populate();
            self.parities = PARITY_MAX;
        }
    }

    #[cold]
    fn populate(&self) {
        let first = self.bytes.as_ptr().addr();
        // The pages at both ends, which others may share, were touched in the beginning.
        let start = first.next_multiple_of(TOUCH_BYTES) - first;
        let len = (self.bytes.len() - start) / TOUCH_BYTES * TOUCH_BYTES;
        let from = self.bytes[start..].as_ptr().cast_mut();
        // SAFETY: the range is inside the allocation, and its bytes stay as they are.
        let done = unsafe { libc::madvise(from.cast(), len, libc::MADV_POPULATE_WRITE) };
        if done != 0 {
            // Linux before 5.14: its memory comes as it is written to.
            tracing::debug!(error = %std::io::Error::last_os_error(), "populate a worker's scratch");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_bytes_and_their_places_when_parities_are_added() {
        let cut = Cut::of("rs:8+2".parse().unwrap());
        let mut scratch = Scratch::new(cut, 2);
        let last = u16::try_from(OPS_MAX - 1).unwrap();
        let (first, end) = (scratch.block(0), scratch.block(last));
        // SAFETY: both blocks are this test's, and have room for eight parities.
        unsafe {
            first.write_bytes(7, Scratch::block_bytes(cut));
            end.write_bytes(9, Scratch::block_bytes(cut));
        }
        scratch.reserve(3);
        assert_eq!((scratch.block(0), scratch.block(last)), (first, end));
        // SAFETY: as above.
        let bytes = unsafe { (first.add(PAGE_BYTES - 1).read(), end.add(8191).read()) };
        assert_eq!(bytes, (7, 9));
    }
}
