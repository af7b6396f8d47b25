//! A worker's memory for pages and parities in the making: a block for each page operation.
//!
//! A block has room for as many parities as any stripe of the volume's own cut may have. Only what its
//! scheme needs is in memory from the start; the rest is, once a stripe with more of them is seen. Parities
//! of a stripe whose splits are larger, while the volume's k changes, have blocks of their own, which are
//! made when the first such stripe is seen. A process that swaps to itself is never short of a page of it
//! in the middle of an operation.
//!
//! Invariant: blocks do not move. Verbs that are out refer to them.

use std::cell::UnsafeCell;

use cenote_codec::PARITY_MAX;

use crate::PAGE_BYTES;
use crate::limits::OPS_MAX;
use crate::scheme::Cut;

pub struct Scratch {
    blocks: Blocks,
    cut: Cut,
    // Parities for which every block has its memory.
    parities: usize,
    // For parities that are larger.
    large: Option<Blocks>,
}

/// Memory in blocks of one size.
struct Blocks {
    bytes: Box<[UnsafeCell<u8>]>,
    block_bytes: usize,
}

/// Blocks a power of two apart would share the same few sets of the caches; an odd number of lines more
/// histograms them.
const SKEW_BYTES: usize = 5 * 64;

/// What a page of memory is at least.
const TOUCH_BYTES: usize = 4096;

impl Blocks {
    /// One for each operation. Takes memory where it is used.
    fn new(block_bytes: usize) -> Self {
        let zeroed = Box::<[UnsafeCell<u8>]>::new_zeroed_slice(OPS_MAX * block_bytes);
        // SAFETY: zero is a byte, and `UnsafeCell` adds nothing to it.
        let bytes = unsafe { zeroed.assume_init() };
        Self { bytes, block_bytes }
    }

    #[inline]
    fn start(&self, number: u16) -> *mut u8 {
        let start = usize::from(number) * self.block_bytes;
        UnsafeCell::raw_get(self.bytes[start..][..self.block_bytes].as_ptr())
    }

    /// Has the system back the first bytes of each, before any is in use.
    fn touch(&mut self, used: usize) {
        for block in self.bytes.chunks_mut(self.block_bytes) {
            let last = used - 1;
            for at in (0..last).step_by(TOUCH_BYTES).chain([last]) {
                // SAFETY: a byte of ours, which nobody else refers to. Volatile, or the compiler
                // knows that it is zero already.
                unsafe { block[at].get().write_volatile(0) };
            }
        }
    }

    /// Has the system back all of them, also those that are in use.
    #[cold]
    fn populate(&self) {
        let first = self.bytes.as_ptr().addr();
        // Whole pages only: those at both ends may be others' too, and are touched by whoever makes these.
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

impl Scratch {
    /// Blocks of a page and, for now, `parities`.
    pub fn new(cut: Cut, parities: usize) -> Self {
        let mut blocks = Blocks::new(Self::block_bytes(cut));
        blocks.touch(PAGE_BYTES + parities * cut.split_bytes());
        Self {
            blocks,
            cut,
            parities,
            large: None,
        }
    }

    /// Bytes of a block: a page, then parities, and a gap.
    fn block_bytes(cut: Cut) -> usize {
        PAGE_BYTES + PARITY_MAX * cut.split_bytes() + SKEW_BYTES
    }

    /// A whole page.
    #[inline]
    pub fn page(&self, number: u16) -> *mut u8 {
        self.blocks.start(number)
    }

    /// Room for the parities of a page of this cut, or for copies that land apart.
    #[inline]
    pub fn parities(&self, number: u16, cut: Cut) -> *mut u8 {
        match &self.large {
            Some(large) if self.is_large(cut) => large.start(number),
            _ => self.blocks.start(number).wrapping_add(PAGE_BYTES),
        }
    }

    fn is_large(&self, cut: Cut) -> bool {
        cut.split_bytes() > self.cut.split_bytes()
    }

    /// Has memory for so many parities of a cut in every block, also in those that are in use. Before
    /// [`Scratch::parities`] is asked for them.
    #[inline]
    pub fn reserve(&mut self, cut: Cut, parities: usize) {
        if self.is_large(cut) {
            self.reserve_large();
        } else if parities > self.parities {
            self.blocks.populate();
            self.parities = PARITY_MAX;
        }
    }

    fn reserve_large(&mut self) {
        if self.large.is_none() {
            // For copies, which are the largest: no other cut asks again.
            let block_bytes = PARITY_MAX * PAGE_BYTES + SKEW_BYTES;
            let mut blocks = Blocks::new(block_bytes);
            blocks.touch(block_bytes);
            self.large = Some(blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(scheme: &str) -> Cut {
        Cut::of(scheme.parse().unwrap())
    }

    #[test]
    fn blocks_keep_their_bytes_and_their_places_when_parities_are_added() {
        let cut = cut("rs:8+2");
        let mut scratch = Scratch::new(cut, 2);
        let last = u16::try_from(OPS_MAX - 1).unwrap();
        let (first, end) = (scratch.page(0), scratch.page(last));
        // SAFETY: both blocks are this test's, and have room for eight parities.
        unsafe {
            first.write_bytes(7, Scratch::block_bytes(cut));
            end.write_bytes(9, Scratch::block_bytes(cut));
        }
        scratch.reserve(cut, 3);
        assert_eq!((scratch.page(0), scratch.page(last)), (first, end));
        // SAFETY: as above.
        let bytes = unsafe { (first.add(PAGE_BYTES - 1).read(), end.add(8191).read()) };
        assert_eq!(bytes, (7, 9));
    }

    /// While a volume's k changes, operations on both cuts are under way.
    #[test]
    fn larger_parities_have_room_of_their_own() {
        let (small, copies) = (cut("rs:8+2"), cut("mirror:9"));
        let mut scratch = Scratch::new(small, 2);
        let before = scratch.parities(3, small);
        scratch.reserve(copies, 8);
        assert_eq!(scratch.parities(3, small), before);
        assert_eq!(before, scratch.page(3).wrapping_add(PAGE_BYTES));
        for number in 0..u16::try_from(OPS_MAX).unwrap() {
            // SAFETY: the block is this test's, and has room for eight copies.
            unsafe {
                let block = scratch.parities(number, copies);
                block.write_bytes(number as u8, PARITY_MAX * PAGE_BYTES);
            }
        }
        for number in 0..u16::try_from(OPS_MAX).unwrap() {
            let block = scratch.parities(number, copies);
            // SAFETY: as above.
            let bytes = unsafe { (block.read(), block.add(PARITY_MAX * PAGE_BYTES - 1).read()) };
            assert_eq!(bytes, (number as u8, number as u8));
        }
        assert_eq!(scratch.parities(3, cut("rs:32+2")), before);
    }
}
