//! Connections to unix sockets that take no longer than is allowed.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connects to who listens at `path`. One whose queue is full, as it is stopped, would be waited for
/// without an end.
///
/// # Errors
/// Those of connect(2); `WouldBlock` when the time is over.
pub fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let stream = UnixStream::from(socket);
    // The kernel takes it as the limit of connect as well.
    stream.set_write_timeout(Some(limit.max(Duration::from_millis(1))))?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&stream, &address) {
            Err(rustix::io::Errno::INTR) => {}
            done => {
                done?;
                stream.set_write_timeout(None)?;
                return Ok(stream);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn one_whose_queue_is_full_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        // As many as the kernel lets wait; it has a limit of its own.
        let refused = loop {
            match connect_within(&path, Duration::from_millis(100)) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 20_000, "no limit of the queue");
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn one_who_listens_is_reached_and_none_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let limit = Duration::from_secs(10);
        let none = connect_within(&path, limit).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        let _listener = UnixListener::bind(&path).unwrap();
        let stream = connect_within(&path, limit).unwrap();
        assert_eq!(stream.write_timeout().unwrap(), None);
    }
}
