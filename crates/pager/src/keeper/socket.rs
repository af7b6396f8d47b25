//! The socket of packets at which programs introduce their address spaces.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave it to this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Listens at a path.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: it takes numbers alone.
    let socket = owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the structure is numbers, for which 0 is right.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is valid for its length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    // SAFETY: it takes numbers alone.
    if bound < 0 || unsafe { libc::listen(socket.as_raw_fd(), 128) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// The next who connects, if there is one.
pub fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let (fd, flags) = (
        listener.as_raw_fd(),
        libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
    );
    // SAFETY: the address is not asked for.
    let fd = unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    match owned(fd) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        accepted => accepted.map(Some),
    }
}

/// What a socket has.
pub enum Packet {
    /// Nothing so far.
    Nothing,
    /// Its end.
    End,
    /// So many words, and descriptors.
    Words(usize, Vec<OwnedFd>),
    /// Words, whose descriptors this process has no room for.
    Cut,
}

/// Receives a packet of words. Never blocks.
pub fn receive(socket: &OwnedFd, words: &mut [u64]) -> Packet {
    let mut vec = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: size_of_val(words),
    };
    let mut control = [0_u64; 16];
    // SAFETY: the structure is numbers and pointers, for which 0 is right.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vec;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the message names buffers that are valid for their lengths.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if len < 0 {
        return match io::Error::last_os_error().kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Packet::Nothing,
            _ => Packet::End,
        };
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the message.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: the header is inside the control buffer.
        let (level, kind, len) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len,
            )
        };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            let count = (len - size_of::<libc::cmsghdr>()) / size_of::<RawFd>();
            // All that came: one that is left would be open for good.
            for at in 0..count {
                // SAFETY: the control message has `count` descriptors, this process's own now.
                fds.push(unsafe { OwnedFd::from_raw_fd(data.add(at).read_unaligned()) });
            }
        }
        // SAFETY: as for the first.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    if len == 0 {
        return Packet::End;
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Packet::Cut;
    }
    Packet::Words(len as usize / 8, fds)
}

/// Sends words, and a descriptor. Whether they are on their way.
pub fn send(socket: &OwnedFd, words: &[u64], fd: Option<RawFd>) -> bool {
    let mut vec = libc::iovec {
        iov_base: words.as_ptr().cast_mut().cast(),
        iov_len: size_of_val(words),
    };
    let mut control = [0_u64; 4];
    // SAFETY: the structure is numbers and pointers, for which 0 is right.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vec;
    message.msg_iovlen = 1;
    if let Some(fd) = fd {
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
        // SAFETY: the buffer has room for a header and a descriptor.
        let header = unsafe { &mut *libc::CMSG_FIRSTHDR(&raw const message) };
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        // SAFETY: arithmetic.
        header.cmsg_len = unsafe { libc::CMSG_LEN(4) } as usize;
        // SAFETY: as above.
        unsafe { libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd) };
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message names buffers that are valid for their lengths.
    let len = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    len as usize == size_of_val(words)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn descriptors_that_nobody_wants_are_closed() {
        let (keeper, program) = UnixDatagram::pair().expect("a pair");
        let mut ends = [0; 2];
        // SAFETY: the array has room for both descriptors.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
        assert_eq!(made, 0);
        // SAFETY: the kernel just made them.
        let [reader, writer] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        send_many(&program.into(), &[writer.as_raw_fd(); 28]);
        drop(writer);
        let mut words = [0; 1];
        let Packet::Words(1, fds) = receive(&keeper.into(), &mut words) else {
            panic!("a packet was sent");
        };
        assert_eq!(fds.len(), 28);
        drop(fds);
        // Its end: nobody has the other one.
        let read = File::from(reader).read(&mut [0]);
        assert_eq!(read.expect("nobody can write"), 0);
    }

    fn send_many(socket: &OwnedFd, fds: &[RawFd; 28]) {
        let word = [7_u64];
        let mut vec = libc::iovec {
            iov_base: word.as_ptr().cast_mut().cast(),
            iov_len: size_of_val(&word),
        };
        let mut control = [0_u64; 16];
        // SAFETY: the structure is numbers and pointers, for which 0 is right.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut vec;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the buffer has room for a header and the descriptors.
        let header = unsafe { &mut *libc::CMSG_FIRSTHDR(&raw const message) };
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        // SAFETY: arithmetic.
        header.cmsg_len = unsafe { libc::CMSG_LEN(size_of_val(fds) as u32) } as usize;
        // SAFETY: as above.
        unsafe {
            libc::CMSG_DATA(header)
                .cast::<[RawFd; 28]>()
                .write_unaligned(*fds)
        };
        // SAFETY: the message names buffers that are valid for their lengths.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
        assert_eq!(sent, 8);
    }
}
