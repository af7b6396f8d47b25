//! Memory that can be registered with a device.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

/// A range of memory that a device may reach.
///
/// # Safety
/// The range stays mapped while the value lives, and moving the value does not move it. Nobody has
/// a reference to bytes that a device or a peer may write: they are copied by their address.
pub unsafe trait Memory {
    /// Where it starts, and its length in bytes.
    fn range(&self) -> (*mut u8, usize);

    /// Whether the device writes into it for this process, as into receive buffers.
    fn is_written_here(&self) -> bool;
}

// SAFETY: the range is that of the value that is shared.
unsafe impl<M: Memory> Memory for Arc<M> {
    fn range(&self) -> (*mut u8, usize) {
        M::range(self)
    }

    fn is_written_here(&self) -> bool {
        M::is_written_here(self)
    }
}

/// Zeroed pages that only this process and its device use.
pub struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory that the value owns.
unsafe impl Send for Pages {}
// SAFETY: through a shared reference bytes are only read.
unsafe impl Sync for Pages {}

impl Pages {
    /// As many bytes, from the start of a page.
    ///
    /// # Panics
    /// If it is none, or more than addresses can name.
    #[must_use]
    pub fn new(len_bytes: usize) -> Self {
        let layout = Layout::from_size_align(len_bytes, PAGE_BYTES).expect("a constant length");
        assert!(len_bytes > 0);
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout }
    }

    /// Where byte `at` lies.
    ///
    /// # Panics
    /// If `at + len_bytes` passes the end.
    #[must_use]
    pub fn at(&self, at: usize, len_bytes: usize) -> *mut u8 {
        let end = at.checked_add(len_bytes).expect("a place in the pages");
        assert!(end <= self.layout.size());
        // SAFETY: inside the allocation, just checked.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Copies bytes out. A device or peer that writes there meanwhile makes them a mixture.
    ///
    /// # Panics
    /// If they pass the end.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let place = self.at(at, bytes.len());
        // SAFETY: inside the pages, which no reference points into; `bytes` is exclusive.
        unsafe { std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies bytes in. A request that reads them meanwhile takes a mixture along.
    ///
    /// # Panics
    /// If they pass the end.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let place = self.at(at, bytes.len());
        // SAFETY: as above; nobody else of this process has the pages now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }
}

// SAFETY: allocated until the value is dropped; only addresses and copies are given out.
unsafe impl Memory for Pages {
    fn range(&self) -> (*mut u8, usize) {
        (self.start.as_ptr(), self.layout.size())
    }

    fn is_written_here(&self) -> bool {
        true
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no device reaches it any more: a registration
        // owns the pages and ends before them.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Some of the bytes of pages that others use as well.
pub struct Span {
    pages: Arc<Pages>,
    at: usize,
    len_bytes: usize,
}

impl Span {
    /// `len_bytes` from byte `at` on.
    ///
    /// # Panics
    /// If they pass the end of the pages.
    #[must_use]
    pub fn new(pages: &Arc<Pages>, at: usize, len_bytes: usize) -> Self {
        let _checked = pages.at(at, len_bytes);
        Self {
            pages: Arc::clone(pages),
            at,
            len_bytes,
        }
    }
}

// SAFETY: a range inside the pages, which the value keeps.
unsafe impl Memory for Span {
    fn range(&self) -> (*mut u8, usize) {
        (self.pages.at(self.at, self.len_bytes), self.len_bytes)
    }

    fn is_written_here(&self) -> bool {
        true
    }
}

const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_until_written() {
        let mut pages = Pages::new(8192);
        pages.write(4094, b"over");
        let mut bytes = [1; 8];
        pages.read(4092, &mut bytes);
        assert_eq!(&bytes, b"\0\0over\0\0");
    }

    #[test]
    #[should_panic(expected = "end <= self.layout.size()")]
    fn no_byte_is_behind_the_end() {
        Pages::new(4096).write(4095, b"ab");
    }

    #[test]
    fn a_span_keeps_its_pages() {
        let pages = Arc::new(Pages::new(4096));
        let span = Span::new(&pages, 64, 128);
        let start = pages.at(64, 128);
        drop(pages);
        assert_eq!(span.range(), (start, 128));
    }
}
