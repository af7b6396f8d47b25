//! Non-blocking sockets as this crate uses them: bytes, descriptors beside them, readiness.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use crate::wait::timeout_ms;

/// Receives what is there; `None` when nothing is, 0 bytes at the end of the stream.
///
/// Descriptors that ride along are appended where the caller takes any and closed where not. `None` is
/// one for which this process has no place.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    descriptors: Option<&mut VecDeque<Option<OwnedFd>>>,
) -> io::Result<Option<usize>> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut control = ControlBuffer::default();
    // SAFETY: all-zero is a valid `msghdr` without name, parts and control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if descriptors.is_some() {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = mem::size_of::<ControlBuffer>();
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` points to `part` and `control`, which live on, and `part` to the exclusive `buffer`.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let Ok(received) = usize::try_from(received) else {
        return none_if_blocked(io::Error::last_os_error());
    };
    if let Some(descriptors) = descriptors {
        let before = descriptors.len();
        // SAFETY: `recvmsg` filled `message` and the control buffer that it points to.
        unsafe { take_descriptors(&message, descriptors) };
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            if descriptors.len() > before {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            descriptors.push_back(None);
        }
    }
    Ok(Some(received))
}

/// Sends what the socket takes, a descriptor with the first byte; `None` when it takes nothing now.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<Option<usize>> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = ControlBuffer::default();
    // SAFETY: all-zero is a valid `msghdr` without name, parts and control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        message.msg_control = (&raw mut control).cast();
        // SAFETY: the control buffer is aligned for a header and holds one with one descriptor,
        // so CMSG_FIRSTHDR gives its start and the data lies inside.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(DESCRIPTOR_BYTES) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(DESCRIPTOR_BYTES) as usize;
            ptr::write_unaligned(
                libc::CMSG_DATA(header).cast::<RawFd>(),
                descriptor.as_raw_fd(),
            );
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: as in `receive`; `sendmsg` only reads.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    match usize::try_from(sent) {
        Ok(sent) => Ok(Some(sent)),
        Err(_) => none_if_blocked(io::Error::last_os_error()),
    }
}

/// Bytes that were written to a stream and that its peer has not taken yet, as far as this end knows: of
/// TCP those that are not acknowledged, of a unix socket those that are not read, with what the
/// system keeps beside them.
///
/// # Errors
/// It is no stream.
pub fn untaken_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one `int` through the pointer, which is exclusive.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match asked {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn none_if_blocked(error: io::Error) -> io::Result<Option<usize>> {
    // ETOOMANYREFS: too many descriptors are under way between processes; the peer takes them out.
    let later = matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    ) || error.raw_os_error() == Some(libc::ETOOMANYREFS);
    if later { Ok(None) } else { Err(error) }
}

/// # Safety
/// `message` was filled by a successful `recvmsg` and its control buffer still stands.
unsafe fn take_descriptors(message: &libc::msghdr, descriptors: &mut VecDeque<Option<OwnedFd>>) {
    // SAFETY: the CMSG functions walk inside `msg_controllen`; each descriptor in an SCM_RIGHTS
    // message is new, open and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data_bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..data_bytes / mem::size_of::<RawFd>() {
                    let fd = OwnedFd::from_raw_fd(ptr::read_unaligned(data.add(index)));
                    descriptors.push_back(Some(fd));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Room for a header and one descriptor, aligned for the header.
#[repr(C, align(8))]
#[derive(Default)]
struct ControlBuffer([u8; 24]);

const DESCRIPTOR_BYTES: libc::c_uint = mem::size_of::<RawFd>() as libc::c_uint;

/// Begins to connect to a unix socket; `WouldBlock` when its backlog is full.
pub(crate) fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers; a non-negative result is a new descriptor of ours.
    let socket = unsafe { owned(libc::socket(libc::AF_UNIX, kind, 0))? };
    // SAFETY: all-zero is a valid `sockaddr_un`.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = path.as_os_str().as_bytes();
    if path.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    for (target, &byte) in address.sun_path.iter_mut().zip(path) {
        *target = byte as libc::c_char;
    }
    let len = mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is a whole `sockaddr_un` of that length, its path ended by a zero.
    if unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } == 0 {
        Ok(socket)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The user whose process connected a unix socket.
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` is writable and of the length given.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        Ok(peer.uid)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Has the kernel end a TCP connection whose other machine is silent for `limit`; a process that
/// is merely stopped is not noticed. Probes go out only while nothing else does.
pub(crate) fn end_when_unreachable(socket: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let seconds = libc::c_int::try_from(limit.as_secs().max(1)).unwrap_or(libc::c_int::MAX);
    let limit_ms = timeout_ms(Some(limit));
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, limit_ms),
    ];
    for (level, name, value) in options {
        let len = mem::size_of_val(&value) as libc::socklen_t;
        // SAFETY: `value` is a readable int of that length.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Readiness of many descriptors, each with a number of the caller's.
pub(crate) struct Epoll(OwnedFd);

/// A descriptor that became ready. Broken ones count as readable.
pub(crate) struct Ready {
    pub(crate) id: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// What a descriptor is watched for; its end is always noticed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Interest {
    pub(crate) const READ: Self = Self {
        read: true,
        write: false,
    };

    fn bits(self) -> u32 {
        let read = if self.read {
            libc::EPOLLIN | libc::EPOLLRDHUP
        } else {
            0
        };
        let write = if self.write { libc::EPOLLOUT } else { 0 };
        (read | write) as u32
    }
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers; a non-negative result is a new descriptor of ours.
        unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }.map(Self)
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>, id: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, id, interest)
    }

    pub(crate) fn change(&self, fd: BorrowedFd<'_>, id: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, id, interest)
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, Interest::READ)
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: BorrowedFd<'_>,
        id: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: interest.bits(),
            u64: id,
        };
        // SAFETY: both descriptors are borrowed open ones, `event` is valid.
        let result = unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                operation,
                fd.as_raw_fd(),
                &raw mut event,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Blocks until something is ready, up to 64 at a time; empty on timeout or a signal.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Ready>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: pointer and length describe the exclusive array.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as libc::c_int,
                timeout_ms(timeout),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(Vec::new())
            } else {
                Err(error)
            };
        };
        let ready = |event: &libc::epoll_event| {
            let bits = event.events as i32;
            Ready {
                id: event.u64,
                readable: bits & !libc::EPOLLOUT != 0,
                writable: bits & libc::EPOLLOUT != 0,
            }
        };
        Ok(events[..count].iter().map(ready).collect())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Owns what a system call gave, or takes its error.
///
/// # Safety
/// A non-negative `fd` is new and nobody else's.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
