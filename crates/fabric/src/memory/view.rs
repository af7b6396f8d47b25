//! One mapped range and every access to it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sigbus::{self, Slot};
use super::stream::copy_out;

/// The memory is gone: given back by its host, or truncated by a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the memory was taken back")]
pub struct Dead;

/// A shared mapping that may lose its memory at any time without harm.
pub(crate) struct View {
    base: *mut u8,
    /// As asked for; the mapping itself is longer, up to the next page.
    len_bytes: usize,
    mapped_bytes: usize,
    slot: &'static Slot,
}

// SAFETY: the range is owned by this value until it is dropped, and all access is by raw pointer
// copies and atomics of memory that other processes write anyway.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Maps the first `len_bytes` of `fd`, aligned to 2 MiB where that may give huge pages.
    pub(super) fn map(fd: BorrowedFd<'_>, len_bytes: usize, writable: bool) -> io::Result<Self> {
        let align = if len_bytes >= HUGE_PAGE_BYTES {
            HUGE_PAGE_BYTES
        } else {
            PAGE_BYTES
        };
        let mapped_bytes = len_bytes
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let reserved = mapped_bytes
            .checked_add(align)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), reserved, libc::PROT_NONE, anonymous, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = (start as usize).next_multiple_of(align);
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: `base..base + mapped_bytes` lies inside the reservation just made, because the
        // reservation is `align` longer; nothing else lives there.
        let mapped = unsafe {
            libc::mmap(
                base as *mut libc::c_void,
                mapped_bytes,
                protection,
                libc::MAP_SHARED | libc::MAP_FIXED,
                fd.as_raw_fd(),
                0,
            )
        };
        let error = io::Error::last_os_error();
        let end = base + mapped_bytes;
        // SAFETY: these are the two ends of the reservation outside the mapping, or all of it
        // when the mapping was refused.
        unsafe {
            if mapped == libc::MAP_FAILED {
                libc::munmap(start, reserved);
                return Err(error);
            }
            unmap(start as usize, base - start as usize);
            unmap(end, start as usize + reserved - end);
        }
        let slot = sigbus::add(base, mapped_bytes).inspect_err(|_| {
            // SAFETY: the mapping is ours and nobody knows it yet.
            unsafe { unmap(base, mapped_bytes) };
        })?;
        Ok(Self {
            base: base as *mut u8,
            len_bytes,
            mapped_bytes,
            slot,
        })
    }

    /// Copies `len` bytes at `start` to `target`.
    ///
    /// # Safety
    /// `start + len <= len_bytes`; `target` is valid for writes of `len` bytes.
    #[inline]
    pub(crate) unsafe fn read(
        &self,
        start: usize,
        target: *mut u8,
        len: usize,
    ) -> Result<(), Dead> {
        debug_assert!(start + len <= self.len_bytes);
        // SAFETY: the caller's promise; the range stays mapped while `self` is borrowed, and lost
        // memory is replaced under the copy. The bytes may change meanwhile: a torn copy, no more.
        unsafe { ptr::copy_nonoverlapping(self.base.add(start), target, len) };
        self.alive()
    }

    /// Copies `len` bytes from `source` to `start`; others see them after [`super::order_stores`].
    ///
    /// # Safety
    /// `start + len <= len_bytes`, the view is writable; `source` is valid for reads of `len` bytes.
    #[inline]
    pub(crate) unsafe fn write(
        &self,
        start: usize,
        source: *const u8,
        len: usize,
    ) -> Result<(), Dead> {
        debug_assert!(start + len <= self.len_bytes);
        // SAFETY: as in `read`.
        unsafe { copy_out(source, self.base.add(start), len) };
        self.alive()
    }

    /// The 8 bytes at `start` as an atomic.
    ///
    /// # Panics
    /// If `start` is not a multiple of 8 inside the view.
    #[inline]
    pub(crate) fn atomic(&self, start: usize) -> &AtomicU64 {
        assert!(start.is_multiple_of(8) && start <= self.len_bytes - 8);
        // SAFETY: in bounds and aligned (`base` is page-aligned) by the assertion; mapped while
        // `self` is borrowed; all access to window memory by reference is through such atomics.
        unsafe { AtomicU64::from_ptr(self.base.add(start).cast()) }
    }

    /// Compare-and-swap of little-endian bytes; the value before.
    #[inline]
    pub(crate) fn compare_swap(&self, start: usize, expected: u64, new: u64) -> Result<u64, Dead> {
        let cell = self.atomic(start);
        let before = cell.compare_exchange(
            expected.to_le(),
            new.to_le(),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        self.alive()?;
        Ok(u64::from_le(before.unwrap_or_else(|other| other)))
    }

    /// Fetch-and-add of little-endian bytes; the value before.
    #[inline]
    pub(crate) fn fetch_add(&self, start: usize, addend: u64) -> Result<u64, Dead> {
        let cell = self.atomic(start);
        let before = if cfg!(target_endian = "little") {
            cell.fetch_add(addend, Ordering::SeqCst)
        } else {
            let add = |value: u64| Some(u64::from_le(value).wrapping_add(addend).to_le());
            cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add)
                .unwrap_or_else(|value| value)
        };
        self.alive()?;
        Ok(u64::from_le(before))
    }

    /// Asks the cache for every line of the range; a range outside is cut off.
    #[inline]
    pub(crate) fn prefetch(&self, start: usize, len: usize) {
        let start = start.min(self.len_bytes);
        let end = start + len.min(self.len_bytes - start);
        let mut line = start & !(CACHE_LINE_BYTES - 1);
        while line < end {
            self.prefetch_line(line);
            line += CACHE_LINE_BYTES;
        }
    }

    /// Asks for the translation of the range's addresses, by a line of the same memory page that
    /// is not in the range: lines about to be streamed over do not belong into the cache.
    #[inline]
    pub(crate) fn prefetch_address(&self, start: usize, len: usize) {
        let beside = start ^ len;
        if len.is_power_of_two() && len < PAGE_BYTES && beside < self.len_bytes {
            self.prefetch_line(beside);
        }
    }

    #[inline]
    fn prefetch_line(&self, at: usize) {
        debug_assert!(at < self.len_bytes);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint that never faults; the address is inside the mapping.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.base.add(at).cast_const().cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Where the bytes start; for system calls that read or write them in place.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.slot.is_dead()
    }

    /// Declares the memory lost.
    pub(super) fn kill(&self) {
        self.slot.kill();
    }

    #[inline]
    pub(super) fn alive(&self) -> Result<(), Dead> {
        if self.slot.is_dead() {
            Err(Dead)
        } else {
            Ok(())
        }
    }

    /// Asks for 2 MiB pages; a system that has none gives small ones.
    pub(super) fn advise_huge(&self) {
        if self.len_bytes >= HUGE_PAGE_BYTES {
            // SAFETY: exactly our mapping; advice changes no content.
            unsafe { libc::madvise(self.base.cast(), self.mapped_bytes, libc::MADV_HUGEPAGE) };
        }
    }

    /// Allocates every page.
    pub(super) fn populate(&self) -> io::Result<()> {
        // SAFETY: exactly our mapping; faults pages in, changes no content.
        let result = unsafe {
            libc::madvise(
                self.base.cast(),
                self.mapped_bytes,
                libc::MADV_POPULATE_WRITE,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Keeps present and future pages in memory, without allocating any.
    pub(super) fn lock(&self) -> io::Result<()> {
        // SAFETY: exactly our mapping.
        let result = unsafe {
            libc::mlock2(
                self.base.cast(),
                self.mapped_bytes,
                libc::MLOCK_ONFAULT as libc::c_uint,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        sigbus::remove(self.slot);
        // SAFETY: the range is ours, and exclusive ownership says that nobody accesses it.
        unsafe { unmap(self.base as usize, self.mapped_bytes) };
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("len_bytes", &self.len_bytes)
            .field("dead", &self.is_dead())
            .finish()
    }
}

/// # Safety
/// Nobody uses the range, which is whole pages.
unsafe fn unmap(start: usize, len: usize) {
    if len > 0 {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(start as *mut libc::c_void, len) };
    }
}

pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;
const CACHE_LINE_BYTES: usize = 64;
