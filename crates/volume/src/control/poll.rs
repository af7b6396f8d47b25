//! Waiting for descriptors, shorter than a millisecond where need be.

use std::os::fd::RawFd;
use std::time::Duration;

/// An entry for [`wait`], which skips one without a descriptor.
pub(super) fn entry(fd: Option<RawFd>, wants_write: bool) -> libc::pollfd {
    let events = libc::POLLIN | if wants_write { libc::POLLOUT } else { 0 };
    libc::pollfd {
        fd: fd.unwrap_or(-1),
        events,
        revents: 0,
    }
}

/// Waits until one of them is ready, or for less than a second. One that fails shows nothing.
pub(super) fn wait(fds: &mut [libc::pollfd], timeout: Duration) {
    let spec = libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: `fds` and `spec` are valid for the call; no signal mask is given.
    unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            &raw const spec,
            std::ptr::null(),
        )
    };
}
