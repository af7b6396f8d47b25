//! Sockets of packets by hand: somebody who is no program of `cenote run`, or no handler.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const WORDS: usize = 3;

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave it to this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn socket(flags: i32) -> OwnedFd {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: it takes numbers alone.
    owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }).expect("a socket")
}

fn address(path: &Path) -> libc::sockaddr_un {
    // SAFETY: the structure is numbers, for which 0 is right.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    assert!(bytes.len() < address.sun_path.len());
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    address
}

/// Connects, unless the listener's queue is full.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let (socket, address) = (socket(libc::SOCK_NONBLOCK), address(path));
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is valid for its length.
    let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    match result {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Listens at a path.
pub fn listen(path: &Path) -> OwnedFd {
    let (socket, address) = (socket(0), address(path));
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is valid for its length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    // SAFETY: it takes numbers alone.
    let listens = unsafe { libc::listen(socket.as_raw_fd(), 8) };
    assert_eq!((bound, listens), (0, 0));
    socket
}

/// Waits for the next who connects.
pub fn accept(listener: &OwnedFd) -> OwnedFd {
    let (fd, null) = (listener.as_raw_fd(), std::ptr::null_mut());
    // SAFETY: the address is not asked for.
    owned(unsafe { libc::accept4(fd, null, null.cast(), libc::SOCK_CLOEXEC) }).expect("accepted")
}

/// Waits for a packet, of those that say why somebody is refused; none at the end.
pub fn receive(socket: &OwnedFd) -> Option<[u64; WORDS]> {
    const LIMIT_MS: i32 = 60_000;
    let mut wait = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure is there.
    assert_eq!(unsafe { libc::poll(&raw mut wait, 1, LIMIT_MS) }, 1);
    let mut words = [0_u64; WORDS];
    let (at, len) = (words.as_mut_ptr().cast(), size_of_val(&words));
    // SAFETY: the buffer is valid for its length.
    let received = unsafe { libc::recv(socket.as_raw_fd(), at, len, 0) };
    (received as usize == len).then_some(words)
}

pub fn send(socket: &OwnedFd, words: [u64; WORDS]) {
    send_with(socket, &words, &[]);
}

/// Sends words, and descriptors.
pub fn send_with(socket: &OwnedFd, words: &[u64], files: &[&File]) {
    let mut vec = libc::iovec {
        iov_base: words.as_ptr().cast_mut().cast(),
        iov_len: size_of_val(words),
    };
    let mut control = [0_u64; 8];
    // SAFETY: the structure is numbers and pointers, for which 0 is right.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vec;
    message.msg_iovlen = 1;
    if !files.is_empty() {
        let len = (size_of::<i32>() * files.len()) as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as usize;
        // SAFETY: the buffer has room for a header and a few descriptors.
        let header = unsafe { &mut *libc::CMSG_FIRSTHDR(&raw const message) };
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        // SAFETY: arithmetic.
        header.cmsg_len = unsafe { libc::CMSG_LEN(len) } as usize;
        // SAFETY: as above.
        let data = unsafe { libc::CMSG_DATA(header) }.cast::<i32>();
        for (at, file) in files.iter().enumerate() {
            // SAFETY: as above.
            unsafe { data.add(at).write_unaligned(file.as_raw_fd()) };
        }
    }
    // SAFETY: the message names buffers that are valid for their lengths.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    assert_eq!(sent as usize, size_of_val(words));
}
