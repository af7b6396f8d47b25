//! Memory that a device may reach, for as long as the value lives.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys as sys;

use super::device::{Device, check};
use crate::{Region, Rights};

/// A registration with a device. Dropping it takes the memory away from the device first.
pub(super) struct Registered<M> {
    handle: *mut sys::ibv_mr,
    memory: M,
    _device: Arc<Device>,
}

// SAFETY: the handle is used by `unregister` and `drop` alone, which take the value.
unsafe impl<M: Send> Send for Registered<M> {}

impl<M: Bytes> Registered<M> {
    /// Registers all of `memory`, which pins it: every page is allocated from here on.
    pub(super) fn new(device: &Arc<Device>, memory: M, rights: Rights) -> io::Result<Self> {
        let mut access = sys::ibv_access_flags(0);
        if memory.is_writable_here() || rights != Rights::READ {
            // A device that others may write by must be allowed to write itself.
            access |= sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        }
        for (right, flag) in [
            (Rights::READ, sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ),
            (
                Rights::WRITE,
                sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
            ),
            (
                Rights::ATOMIC,
                sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
            ),
        ] {
            if rights.contains(right) {
                access |= flag;
            }
        }
        let (start, len_bytes) = memory.range();
        // SAFETY: the range is mapped while `memory` lives, which is longer than the registration.
        let handle = unsafe {
            sys::ibv_reg_mr(
                device.domain(),
                start.cast(),
                len_bytes,
                access.0 as libc::c_int,
            )
        };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            handle,
            memory,
            _device: Arc::clone(device),
        })
    }

    /// The key that this process's own work requests use.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the handle is valid while `self` is.
        unsafe { (*self.handle).lkey }
    }

    /// The key that peers use.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.handle).rkey }
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    /// Takes the memory away from the device: after the return no access by the key, begun before
    /// or not, reaches it. Gives the registration back when the device refuses.
    pub(super) fn unregister(self) -> std::result::Result<(), (Self, io::Error)> {
        // SAFETY: the handle is valid; when the call succeeds it is not used again.
        match check(unsafe { sys::ibv_dereg_mr(self.handle) }) {
            Ok(()) => {
                let mut this = self;
                this.handle = std::ptr::null_mut();
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl<M> Drop for Registered<M> {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        // SAFETY: a valid handle that nobody uses afterwards.
        if let Err(error) = check(unsafe { sys::ibv_dereg_mr(self.handle) }) {
            tracing::error!(%error, "take memory away from an RDMA device");
        }
    }
}

/// What can be registered: a range that stays mapped while the value lives.
pub(super) trait Bytes {
    fn range(&self) -> (*mut u8, usize);
    /// Whether the device writes into it for this process, as into receive buffers.
    fn is_writable_here(&self) -> bool;
}

impl Bytes for Arc<Region> {
    fn range(&self) -> (*mut u8, usize) {
        (self.view().base(), self.view().len_bytes())
    }

    fn is_writable_here(&self) -> bool {
        false
    }
}

/// Zeroed pages that only this process and its device use.
pub(super) struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory that the value owns.
unsafe impl Send for Pages {}

impl Pages {
    pub(super) fn new(len_bytes: usize) -> Self {
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
    pub(super) fn at(&self, at: usize, len_bytes: usize) -> *mut u8 {
        assert!(at + len_bytes <= self.layout.size());
        // SAFETY: inside the allocation, just checked.
        unsafe { self.start.as_ptr().add(at) }
    }
}

impl Bytes for Pages {
    fn range(&self) -> (*mut u8, usize) {
        (self.start.as_ptr(), self.layout.size())
    }

    fn is_writable_here(&self) -> bool {
        true
    }
}

/// Some of the pages that somebody else owns, who keeps them until no registration is left.
pub(super) struct Span {
    pub(super) start: *mut u8,
    pub(super) len_bytes: usize,
}

impl Bytes for Span {
    fn range(&self) -> (*mut u8, usize) {
        (self.start, self.len_bytes)
    }

    fn is_writable_here(&self) -> bool {
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

const PAGE_BYTES: usize = 4096;
