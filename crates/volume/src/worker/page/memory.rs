//! Where the bytes of an operation are: in its request's buffer, in a block of the worker's scratch, or in an
//! entry of the disk's queue.

use crate::PAGE_BYTES;
use crate::worker::order::Chunk;
use crate::worker::scratch::Scratch;

/// Where the bytes of an operation are.
#[derive(Clone, Copy)]
pub(in crate::worker) struct Memory {
    /// Which block of the worker's scratch it has.
    pub block: u16,
    /// Its page is in scratch, though the request's buffer covers it.
    pub in_scratch: bool,
    /// The part of the page that the request is about.
    pub chunk: Chunk,
    target: *mut u8,
    scratch: *mut u8,
    // The page on its way to the disk; null while it is not.
    entry: *mut u8,
}

impl Default for Memory {
    fn default() -> Self {
        let nowhere = std::ptr::null_mut();
        Self {
            block: 0,
            in_scratch: false,
            chunk: Chunk::default(),
            target: nowhere,
            scratch: nowhere,
            entry: nowhere,
        }
    }
}

impl Memory {
    /// `target`: the chunk's bytes in the request's buffer, which lives until the request ends; null where it
    /// has none.
    #[inline]
    pub fn new(scratch: &Scratch, block: u16, chunk: Chunk, target: *mut u8) -> Self {
        Self {
            block,
            chunk,
            target,
            scratch: scratch.page(block),
            ..Self::default()
        }
    }

    /// Whether the request is about the whole page.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.chunk.len_bytes == PAGE_BYTES
    }

    /// Whether the request's buffer is where the operation's page is.
    #[inline]
    pub fn is_in_place(&self) -> bool {
        self.is_whole() && !self.in_scratch
    }

    /// The operation's page of scratch.
    #[inline]
    pub fn scratch(&self) -> *mut u8 {
        self.scratch
    }

    /// The chunk's bytes in the request's buffer.
    #[inline]
    pub fn target(&self) -> *mut u8 {
        self.target
    }

    /// The whole page: in its entry where it has one, in the request's buffer where it covers the
    /// page, in scratch otherwise.
    #[inline]
    pub fn page(&self) -> *mut u8 {
        if !self.entry.is_null() {
            self.entry
        } else if self.is_in_place() {
            self.target
        } else {
            self.scratch
        }
    }

    /// The page is in an entry on its way to the disk.
    pub fn enter_entry(&mut self, buffer: *mut u8) {
        self.entry = buffer;
    }

    /// No verb refers to the entry any more.
    pub fn leave_entry(&mut self) {
        self.entry = std::ptr::null_mut();
    }

    /// Puts the request's bytes (zeros without a buffer) over the page in scratch.
    pub fn merge(&self) {
        let Chunk {
            start, len_bytes, ..
        } = self.chunk;
        // SAFETY: the chunk lies inside the scratch page; the request's buffer holds its bytes
        // and does not overlap the scratch.
        unsafe {
            let hole = self.scratch.add(start);
            if self.target.is_null() {
                hole.write_bytes(0, len_bytes);
            } else {
                hole.copy_from_nonoverlapping(self.target, len_bytes);
            }
        }
    }

    /// Has the page be in scratch, though the request's buffer covers it; whether it was not.
    pub fn copy_to_scratch(&mut self) -> bool {
        if !self.is_in_place() {
            return false;
        }
        // SAFETY: the request's buffer covers the page, and the scratch begins with one; they do
        // not overlap.
        unsafe {
            self.scratch
                .copy_from_nonoverlapping(self.target, PAGE_BYTES)
        };
        self.in_scratch = true;
        true
    }

    /// Hands the chunk over from a whole page.
    ///
    /// # Safety
    /// `page` is one, which nothing writes, and which does not overlap the request's buffer.
    pub unsafe fn hand_over(&self, page: *const u8) {
        let Chunk {
            start, len_bytes, ..
        } = self.chunk;
        // SAFETY: the chunk lies inside the page, and the target is its part of the request's buffer, which
        // lives until the request ends.
        unsafe {
            self.target
                .copy_from_nonoverlapping(page.add(start), len_bytes)
        };
    }

    /// Hands over a chunk of zeros.
    pub fn hand_over_zeros(&self) {
        // SAFETY: the target is the chunk's part of the request's buffer, which lives until the request ends.
        unsafe { self.target.write_bytes(0, self.chunk.len_bytes) };
    }

    /// Puts a whole page into scratch.
    ///
    /// # Safety
    /// `page` is one, which nothing writes, and which does not overlap the scratch.
    pub unsafe fn fill_scratch(&self, page: *const u8) {
        // SAFETY: the scratch begins with a whole page, which is this operation's alone.
        unsafe { self.scratch.copy_from_nonoverlapping(page, PAGE_BYTES) };
    }

    /// Puts zeros into scratch.
    pub fn clear_scratch(&self) {
        // SAFETY: the operation's scratch block starts with one whole page and is used by it alone.
        unsafe { self.scratch.write_bytes(0, PAGE_BYTES) };
    }
}
