//! The system calls that std does not offer: epoll, poll, sendmsg, socket buffers.
//!
//! All unsafe code of the NBD server is here, behind safe functions.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// What a registered descriptor reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Chosen at registration.
    pub(crate) token: u64,
    /// Bytes or an end of file may be read.
    pub(crate) readable: bool,
    /// The peer sends no more; an end of file comes after its last byte.
    pub(crate) input_ends: bool,
    /// Bytes may be written.
    pub(crate) writable: bool,
    /// Both directions are over, or the socket failed.
    pub(crate) dead: bool,
}

/// An epoll instance with edge-triggered registrations.
#[derive(Debug)]
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

/// Events taken by one wait; arbitrary, the rest come with the next one.
const EVENTS_MAX: usize = 64;

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self {
            // SAFETY: `fd` was just created, is valid, and is owned by nobody else.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX],
        })
    }

    /// Reports reads of `fd` as `token`.
    pub(crate) fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, READ_INTEREST)
    }

    /// Reports writes of `fd` as well, or no longer.
    pub(crate) fn want_writes(&self, fd: RawFd, token: u64, wanted: bool) -> io::Result<()> {
        let extra = if wanted { libc::EPOLLOUT } else { 0 };
        self.control(libc::EPOLL_CTL_MOD, fd, token, READ_INTEREST | extra)
    }

    /// Waits for events, at most `timeout`; `None` waits for ever.
    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        mut each: impl FnMut(Event),
    ) -> io::Result<()> {
        // SAFETY: the buffer is writable for `EVENTS_MAX` events for the call's length.
        let count = check(unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS_MAX as i32,
                timeout_ms(timeout),
            )
        });
        let count = match count {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        for event in &self.events[..count] {
            let bits = event.events as i32;
            each(Event {
                token: event.u64,
                readable: bits & (libc::EPOLLIN | libc::EPOLLRDHUP) != 0,
                input_ends: bits & libc::EPOLLRDHUP != 0,
                writable: bits & libc::EPOLLOUT != 0,
                dead: bits & (libc::EPOLLERR | libc::EPOLLHUP) != 0,
            });
        }
        Ok(())
    }

    fn control(&self, operation: i32, fd: RawFd, token: u64, interest: i32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: interest as u32,
            u64: token,
        };
        // SAFETY: `event` is valid for the call; a bad `fd` is an error, not undefined.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &raw mut event) })?;
        Ok(())
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

const READ_INTEREST: i32 = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;

/// Waits until one of `fds` is readable, at most `timeout`. `scratch` is reused
/// by the caller so that steady state allocates nothing.
pub(crate) fn poll_readable(
    fds: &[RawFd],
    scratch: &mut Vec<libc::pollfd>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    scratch.clear();
    scratch.extend(fds.iter().map(|fd| libc::pollfd {
        fd: *fd,
        events: libc::POLLIN,
        revents: 0,
    }));
    // SAFETY: `scratch` holds `scratch.len()` initialised entries for the call's length.
    let result = check(unsafe {
        libc::poll(
            scratch.as_mut_ptr(),
            scratch.len() as libc::nfds_t,
            timeout_ms(timeout),
        )
    });
    match result {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// What the peer of a connected socket has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ended {
    Nothing,
    /// It sends no more.
    Input,
    /// Both directions, or the socket failed.
    Both,
}

/// What the peers have ended whose last packet the kernel has, socket by socket.
pub(crate) fn poll_ends(fds: impl Iterator<Item = RawFd>) -> io::Result<Vec<Ended>> {
    let mut polled = Vec::new();
    for fd in fds {
        settle(fd)?;
        polled.push(libc::pollfd {
            fd,
            events: libc::POLLRDHUP,
            revents: 0,
        });
    }
    let count = polled.len() as libc::nfds_t;
    // SAFETY: `polled` holds `count` initialised entries for the call's length.
    while let Err(error) = check(unsafe { libc::poll(polled.as_mut_ptr(), count, 0) }) {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let ended = |revents| match revents {
        bits if bits & (libc::POLLERR | libc::POLLHUP) != 0 => Ended::Both,
        bits if bits & libc::POLLRDHUP != 0 => Ended::Input,
        _ => Ended::Nothing,
    };
    Ok(polled.iter().map(|polled| ended(polled.revents)).collect())
}

/// Has the kernel take notice of packets that came while another thread was inside a call on the TCP
/// socket: poll does not wait for that, and a thread may lose its processor there.
fn settle(fd: RawFd) -> io::Result<()> {
    let mut unread = 0i32;
    // SAFETY: FIONREAD writes one int, which lives for the call.
    check(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut unread) })?;
    Ok(())
}

/// How long a receive may take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Patience {
    /// Takes what is there.
    None,
    /// Waits for a first byte, within the limit that `Socket::prepare` sets.
    First,
    /// Waits until the slices are full, within the same limit.
    All,
}

/// Receives into several slices.
pub(crate) fn receive(
    fd: RawFd,
    slices: &mut [IoSliceMut<'_>],
    patience: Patience,
) -> io::Result<usize> {
    // SAFETY: all zeros is a valid msghdr: no name, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // IoSliceMut is documented to have the layout of iovec.
    message.msg_iov = slices.as_mut_ptr().cast();
    message.msg_iovlen = slices.len();
    let flags = match patience {
        Patience::None => libc::MSG_DONTWAIT,
        Patience::First => 0,
        Patience::All => libc::MSG_WAITALL,
    };
    // SAFETY: `message` and the slices it names are valid for writes for the call's length.
    let received = unsafe { libc::recvmsg(fd, &raw mut message, flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(received as usize)
}

/// Sends from several slices; never blocks, never raises SIGPIPE.
pub(crate) fn send(fd: RawFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: all zeros is a valid msghdr: no name, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // IoSlice is documented to have the layout of iovec; the kernel only reads it.
    message.msg_iov = slices.as_ptr().cast_mut().cast();
    message.msg_iovlen = slices.len();
    // SAFETY: `message` and the slices it names are valid for reads for the call's length.
    let sent = unsafe {
        libc::sendmsg(
            fd,
            &raw const message,
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(sent as usize)
}

/// Asks for larger socket buffers; the kernel's default limit applies without privilege.
pub(crate) fn enlarge_buffers(fd: RawFd, len_bytes: i32) {
    for (forced, plain) in [
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
    ] {
        if set_option(fd, forced, len_bytes).is_err()
            && let Err(error) = set_option(fd, plain, len_bytes)
        {
            tracing::debug!(%error, len_bytes, "keep the default socket buffer");
        }
    }
}

/// The address family of a stream socket that listens.
///
/// # Errors
/// It is no such socket.
pub(crate) fn listening_family(fd: RawFd) -> io::Result<i32> {
    let is_stream = option(fd, libc::SO_TYPE)? == libc::SOCK_STREAM;
    if !is_stream || option(fd, libc::SO_ACCEPTCONN)? == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no stream socket that listens",
        ));
    }
    option(fd, libc::SO_DOMAIN)
}

fn option(fd: RawFd, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is an int that lives for the call, with its size beside it; a descriptor that
    // is no socket is an error, not undefined.
    check(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

fn set_option(fd: RawFd, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: `value` is an int that lives for the call, with its size beside it.
    check(unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Milliseconds for the kernel, rounded up so that a wait never ends early.
fn timeout_ms(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |timeout| {
        i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    })
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
