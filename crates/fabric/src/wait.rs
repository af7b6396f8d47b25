//! Blocking until there is something to do: one endpoint of many, or a nudge from another thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::{Error, Result};

/// Blocks until one of `fds` is readable or hung up, or `timeout` has passed; `None` waits for ever.
///
/// Returns whether one is. A signal may end the wait early, with `false`.
///
/// # Errors
/// `Os`: a descriptor is not open, or there are more than the process may have.
pub fn wait(fds: &[RawFd], timeout: Option<Duration>) -> Result<bool> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let ready = poll(&mut polled, timeout).map_err(|e| Error::os("wait for endpoints", e))?;
    if polled.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
        return Err(Error::os(
            "wait for endpoints",
            io::Error::from_raw_os_error(libc::EBADF),
        ));
    }
    Ok(ready)
}

/// `poll(2)` with a duration; rounds up to whole milliseconds so that a deadline has passed on return.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<bool> {
    let timeout_ms = timeout_ms(timeout);
    // SAFETY: pointer and length describe the exclusive slice `fds`.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted {
        Ok(false)
    } else {
        Err(error)
    }
}

/// A timeout as `poll` and `epoll_wait` take it, rounded up; -1 is for ever.
pub(crate) fn timeout_ms(timeout: Option<Duration>) -> libc::c_int {
    timeout.map_or(-1, |t| {
        i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    })
}

/// Ends another thread's blocking wait. Cheap to clone; waking twice before the wait is one wake.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A waker that nobody has woken.
    ///
    /// # Errors
    /// `Os`: no descriptor is left.
    pub fn new() -> Result<Self> {
        // SAFETY: no pointers; a non-negative result is a new descriptor that nobody else owns.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::os("create a waker", io::Error::last_os_error()));
        }
        // SAFETY: as above, `fd` is open and ours.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes the descriptor readable until [`Waker::clear`].
    pub fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: `one` is 8 readable bytes. It can only refuse when the counter is full: then it is readable.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes back all wakes so far; call it before looking for the work that they announce.
    pub fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: `count` is 8 writable bytes. It can only refuse when there is nothing to clear.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_ends_a_wait_until_it_is_cleared() {
        let waker = Waker::new().unwrap();
        let fds = [waker.as_fd().as_raw_fd()];
        assert!(!wait(&fds, Some(Duration::ZERO)).unwrap());
        waker.clone().wake();
        waker.wake();
        assert!(wait(&fds, None).unwrap());
        waker.clear();
        assert!(!wait(&fds, Some(Duration::ZERO)).unwrap());
    }

    #[test]
    fn a_closed_descriptor_is_an_error() {
        assert!(matches!(wait(&[i32::MAX], None), Err(Error::Os { .. })));
    }
}
