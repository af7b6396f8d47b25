//! Memory that a device may reach, for as long as the value lives.

use std::io;
use std::sync::Arc;

use rdma_mummy_sys as sys;

use crate::{Device, Memory, Pages, Part, check};

/// What peers may do with registered memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Access {
    /// READ it.
    pub read: bool,
    /// WRITE it.
    pub write: bool,
    /// Compare and swap, or add to, its words.
    pub atomic: bool,
}

impl Access {
    /// Memory that only this process and its own device use.
    pub const NONE: Self = Self {
        read: false,
        write: false,
        atomic: false,
    };

    fn flags(self, is_written_here: bool) -> sys::ibv_access_flags {
        use sys::ibv_access_flags as flag;
        let mut flags = flag(0);
        for (is_given, one) in [
            // A device that others may write by must be allowed to write itself.
            (
                is_written_here || self.write || self.atomic,
                flag::IBV_ACCESS_LOCAL_WRITE,
            ),
            (self.read, flag::IBV_ACCESS_REMOTE_READ),
            (self.write, flag::IBV_ACCESS_REMOTE_WRITE),
            (self.atomic, flag::IBV_ACCESS_REMOTE_ATOMIC),
        ] {
            if is_given {
                flags |= one;
            }
        }
        flags
    }
}

/// A registration with a device. Dropping it takes the memory away from the device first.
pub struct Registered<M> {
    /// Null once the device has forgotten it.
    handle: *mut sys::ibv_mr,
    /// Taken by `drop` alone.
    memory: Option<M>,
    _device: Arc<Device>,
}

// SAFETY: the handle is used by `unregister` and `drop` alone, which take the value.
unsafe impl<M: Send> Send for Registered<M> {}

impl<M: Memory> Registered<M> {
    /// Registers all of `memory`, which pins it: every page is allocated from here on.
    ///
    /// # Errors
    /// The device's: no memory may be pinned any more, or it has as many registrations as it can.
    pub fn new(device: &Arc<Device>, memory: M, access: Access) -> io::Result<Self> {
        let flags = access.flags(memory.is_written_here());
        let (start, len_bytes) = memory.range();
        // SAFETY: the range is mapped while `memory` lives, which is longer than the registration.
        let handle = unsafe {
            sys::ibv_reg_mr(
                device.domain(),
                start.cast(),
                len_bytes,
                flags.0 as libc::c_int,
            )
        };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            handle,
            memory: Some(memory),
            _device: Arc::clone(device),
        })
    }

    /// Bytes of it, for a request of this process.
    ///
    /// # Panics
    /// If they pass the end.
    #[must_use]
    pub fn part(&self, at: usize, len_bytes: usize) -> Part {
        let (start, all_bytes) = self.memory().range();
        let end = at.checked_add(len_bytes).expect("a place in the memory");
        assert!(end <= all_bytes);
        Part {
            address: (start as u64) + at as u64,
            len_bytes: u32::try_from(len_bytes).expect("pieces are small"),
            // SAFETY: the handle is valid while `self` is.
            key: unsafe { (*self.handle).lkey },
        }
    }

    /// Where it starts, as peers name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory().range().0 as u64
    }
}

impl<M> Registered<M> {
    /// The key that peers use.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the handle is valid while `self` is.
        unsafe { (*self.handle).rkey }
    }

    /// What is registered.
    #[must_use]
    pub fn memory(&self) -> &M {
        self.memory.as_ref().expect("taken by `drop` alone")
    }

    /// Takes the memory away from the device: after the return no access by the key, begun before
    /// or not, reaches it.
    ///
    /// # Errors
    /// The device refuses; the registration comes back and is as before.
    pub fn unregister(mut self) -> Result<(), (Self, io::Error)> {
        // SAFETY: the handle is valid; when the call succeeds it is not used again.
        match check(unsafe { sys::ibv_dereg_mr(self.handle) }) {
            Ok(()) => {
                self.handle = std::ptr::null_mut();
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Registered<Pages> {
    /// Copies bytes in, as [`Pages::write`].
    ///
    /// # Panics
    /// If they pass the end.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        // Not lent as a whole: whoever could put other pages in its place would free these.
        let pages = self.memory.as_mut().expect("taken by `drop` alone");
        pages.write(at, bytes);
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
            // The device may still write there: it must not become other memory.
            std::mem::forget(self.memory.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_peers_change_is_memory_that_the_device_writes() {
        use sys::ibv_access_flags as flag;
        let writes =
            |access: Access, here| access.flags(here).0 & flag::IBV_ACCESS_LOCAL_WRITE.0 != 0;
        let read = Access {
            read: true,
            ..Access::NONE
        };
        assert!(!writes(read, false));
        assert!(writes(read, true));
        assert!(writes(
            Access {
                write: true,
                ..read
            },
            false
        ));
        assert!(writes(
            Access {
                atomic: true,
                ..read
            },
            false
        ));
        assert_eq!(Access::NONE.flags(false).0, 0);
    }
}
