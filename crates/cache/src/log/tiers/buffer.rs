//! Bytes at an address that direct I/O accepts.

use std::ops::{Deref, DerefMut};

/// Alignment of memory and of ranges on a disk. No disk of Linux asks for more.
pub const BLOCK_BYTES: usize = 4096;

#[derive(Clone)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// Bytes whose address and capacity are multiples of 4096.
#[derive(Clone)]
pub struct Buffer {
    blocks: Vec<Block>,
    len_bytes: usize,
}

impl Buffer {
    /// Zeroes.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        Self {
            blocks: vec![Block([0; BLOCK_BYTES]); len_bytes.div_ceil(BLOCK_BYTES)],
            len_bytes,
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the blocks are arrays of bytes without padding, one after the other, and
        // `len_bytes` is at most what they have.
        unsafe { std::slice::from_raw_parts(self.blocks.as_ptr().cast(), self.len_bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.blocks.as_mut_ptr().cast(), self.len_bytes) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len_bytes)
    }
}
