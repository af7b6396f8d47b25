//! The requests of a queue as the kernel describes them, in memory that both map.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use super::abi::{QUEUE_DEPTH_MAX, RequestDescriptor};

/// One descriptor per tag; the kernel writes it before it completes the tag's command.
pub(super) struct Descriptors {
    first: *const RequestDescriptor,
    depth: u16,
}

// SAFETY: the mapping is this value's own, and only read.
unsafe impl Send for Descriptors {}

impl Descriptors {
    /// Maps those of a queue, whose depth is the device's.
    pub(super) fn map(device: &File, queue: u16, depth: u16) -> io::Result<Self> {
        let apart = (QUEUE_DEPTH_MAX * size_of::<RequestDescriptor>()).next_multiple_of(PAGE_BYTES);
        // SAFETY: a new mapping of an open file, at an address of the kernel's choice.
        let first = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_bytes(depth),
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                device.as_raw_fd(),
                (usize::from(queue) * apart) as libc::off_t,
            )
        };
        if first == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            first: first.cast(),
            depth,
        })
    }

    /// The request that a tag has.
    ///
    /// # Panics
    /// If the queue has no such tag.
    pub(super) fn read(&self, tag: u16) -> RequestDescriptor {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        // SAFETY: inside the mapping, just checked; the kernel leaves it alone until the tag's
        // request is ended.
        unsafe { self.first.add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses afterwards.
        unsafe { libc::munmap(self.first.cast_mut().cast(), len_bytes(self.depth)) };
    }
}

fn len_bytes(depth: u16) -> usize {
    (usize::from(depth) * size_of::<RequestDescriptor>()).next_multiple_of(PAGE_BYTES)
}

const PAGE_BYTES: usize = 4096;
