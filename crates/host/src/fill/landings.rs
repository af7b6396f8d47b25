//! Memory that reads land in: pieces of one length, reached by raw pointers only.
//!
//! A posted read holds a pointer into it, so no reference may ever cover a piece that a
//! read is out for; that is why it is no `Vec<u8>`.
#![allow(unsafe_code, reason = "landings are raw memory")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Pieces start on cache lines, so that the decoder's loads do not cross them.
const ALIGN: usize = 64;

/// `count` pieces of `piece_bytes` each.
pub(super) struct Landings {
    base: NonNull<u8>,
    count: usize,
    piece_bytes: usize,
}

// SAFETY: the allocation is owned by this value alone and tied to no thread.
unsafe impl Send for Landings {}

impl Landings {
    pub(super) fn new(count: usize, piece_bytes: usize) -> Self {
        assert!(piece_bytes > 0, "pieces have bytes");
        if count == 0 {
            return Self {
                base: NonNull::dangling(),
                count,
                piece_bytes,
            };
        }
        let layout = layout(count, piece_bytes);
        // SAFETY: the layout's size is not zero, checked above.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            handle_alloc_error(layout)
        };
        Self {
            base,
            count,
            piece_bytes,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The first byte of a piece, valid for reads and writes of a whole piece while `self` lives.
    pub(super) fn pointer(&self, index: usize) -> *mut u8 {
        assert!(index < self.count, "no piece {index}");
        // SAFETY: the piece lies inside the allocation.
        unsafe { self.base.as_ptr().add(index * self.piece_bytes) }
    }

    /// The first `len` bytes of a piece.
    ///
    /// # Safety
    /// Nothing writes to the piece while the slice lives.
    pub(super) unsafe fn piece(&self, index: usize, len: usize) -> &[u8] {
        assert!(
            len <= self.piece_bytes,
            "a piece has {} bytes",
            self.piece_bytes
        );
        // SAFETY: inside the allocation, initialised with zeros; not written meanwhile, says the caller.
        unsafe { std::slice::from_raw_parts(self.pointer(index), len) }
    }
}

impl Drop for Landings {
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: allocated in `new` with this very layout.
            unsafe { dealloc(self.base.as_ptr(), layout(self.count, self.piece_bytes)) };
        }
    }
}

fn layout(count: usize, piece_bytes: usize) -> Layout {
    let bytes = count
        .checked_mul(piece_bytes)
        .expect("landings of less than the address space");
    Layout::from_size_align(bytes, ALIGN).expect("landings of less than the address space")
}
