//! Scatter-gather lists and the two system calls of the `tcp` data path.
//!
//! Both ends build one list per batch, over headers, payloads and landings, and hand it to
//! one `sendmsg` or `recvmsg`, or to the kernel's ring as the same operation. A list has a fixed
//! capacity and is reused, so nothing is allocated per verb.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::{opcode, squeue, types};

/// Flags of every send and of a receive that does not wait. The ring takes them as a promise that
/// the operation never stays with the kernel.
const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
const RECEIVE_FLAGS: libc::c_int = libc::MSG_DONTWAIT;

/// Entries of a list; the kernel takes up to 1024, a batch rarely fills this.
const ENTRIES: usize = 256;

/// How long a receive waits for the first byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// As long as the socket's own timeout.
    Socket,
}

/// A list of memory ranges to send from, or to receive into, in order.
pub(crate) struct Gather {
    entries: Box<[libc::iovec; ENTRIES]>,
    used: usize,
    bytes: usize,
    /// What an operation of the ring points to.
    message: Box<libc::msghdr>,
}

// SAFETY: the pointers are only dereferenced by `send`, `receive` and the ring's operations, whose
// callers vouch for them.
unsafe impl Send for Gather {}

impl Gather {
    pub(crate) fn new() -> Self {
        let empty = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            entries: Box::new([empty; ENTRIES]),
            used: 0,
            bytes: 0,
            // SAFETY: all-zero is a valid `msghdr`: no name, no ranges, no control data.
            message: Box::new(unsafe { std::mem::zeroed() }),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.bytes = 0;
    }

    /// Bytes that the listed ranges have together.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether `entries` more ranges might not fit.
    pub(crate) fn is_short_of(&self, entries: usize) -> bool {
        self.used + entries > ENTRIES
    }

    /// Appends a range; one that continues the last range joins it.
    pub(crate) fn push(&mut self, start: *const u8, len_bytes: usize) {
        if len_bytes == 0 {
            return;
        }
        self.bytes += len_bytes;
        if let Some(last) = self.entries[..self.used].last_mut()
            && last.iov_base.addr() + last.iov_len == start.addr()
        {
            last.iov_len += len_bytes;
            return;
        }
        self.entries[self.used] = libc::iovec {
            iov_base: start.cast_mut().cast(),
            iov_len: len_bytes,
        };
        self.used += 1;
    }

    /// Sends from the ranges without blocking; returns the bytes taken.
    ///
    /// # Errors
    /// As `sendmsg(2)`; an interrupted call is repeated.
    ///
    /// # Safety
    /// Every range is valid for reads.
    pub(crate) unsafe fn send(&mut self, socket: RawFd) -> io::Result<usize> {
        let message: *const libc::msghdr = self.message();
        // SAFETY: the caller vouches for the ranges; `message` points to our list of them.
        retried(|| unsafe { libc::sendmsg(socket, message, SEND_FLAGS) })
    }

    /// What [`Gather::send`] does, for a ring to do. The list must not change, move or go before
    /// that has ended.
    pub(crate) fn send_entry(&mut self, socket: RawFd) -> squeue::Entry {
        let socket = types::Fd(socket);
        match self.single() {
            Some((start, len_bytes)) => opcode::Send::new(socket, start, len_bytes)
                .flags(SEND_FLAGS)
                .build(),
            None => opcode::SendMsg::new(socket, self.message())
                .flags(SEND_FLAGS as u32)
                .build(),
        }
    }

    /// What [`Gather::receive`] does without patience, for a ring to do; as [`Gather::send_entry`].
    pub(crate) fn receive_entry(&mut self, socket: RawFd) -> squeue::Entry {
        let socket = types::Fd(socket);
        match self.single() {
            Some((start, len_bytes)) => opcode::Recv::new(socket, start, len_bytes)
                .flags(RECEIVE_FLAGS)
                .build(),
            None => opcode::RecvMsg::new(socket, self.message())
                .flags(RECEIVE_FLAGS as u32)
                .build(),
        }
    }

    /// The only range: as itself it is cheaper for a ring than as a list.
    fn single(&self) -> Option<(*mut u8, u32)> {
        let [range] = self.entries[..self.used] else {
            return None;
        };
        let len_bytes = u32::try_from(range.iov_len).ok()?;
        Some((range.iov_base.cast(), len_bytes))
    }

    /// Receives into the ranges; returns the bytes filled, 0 at the end of the stream.
    ///
    /// # Errors
    /// As `recvmsg(2)`; an interrupted call is repeated.
    ///
    /// # Safety
    /// Every range is valid for writes; bytes that other threads see there may change under them.
    pub(crate) unsafe fn receive(
        &mut self,
        socket: RawFd,
        patience: Patience,
    ) -> io::Result<usize> {
        let flags = match patience {
            Patience::None => RECEIVE_FLAGS,
            Patience::Socket => 0,
        };
        let message = self.message();
        // SAFETY: as in `send`.
        retried(|| unsafe { libc::recvmsg(socket, message, flags) })
    }

    fn message(&mut self) -> *mut libc::msghdr {
        self.message.msg_iov = self.entries.as_mut_ptr();
        self.message.msg_iovlen = self.used;
        &raw mut *self.message
    }
}

fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Makes a socket fit for verbs: no delay, no blocking, and an end when the other machine is gone.
///
/// # Errors
/// As `setsockopt(2)`.
pub(crate) fn prepare(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let silence_ms = libc::c_int::try_from(silence.as_millis()).unwrap_or(libc::c_int::MAX);
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence_ms),
    ];
    for (level, name, value) in options {
        // SAFETY: `value` is a c_int that outlives the call, and its size is given.
        let result = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
