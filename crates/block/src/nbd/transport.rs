//! The byte stream of one client: a socket, and TLS over it once the client has asked for that.
//!
//! Nothing here blocks but a patient receive, which is for sockets without TLS. What TLS could not
//! hand to the kernel is a backlog, bounded by [`BACKLOG_BYTES_MAX`]; whoever sends flushes it first.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_fabric::calls::{Spin, Spinner};
use rustix::net::sockopt;
use rustls::{ServerConfig, ServerConnection};

use super::sys::{self, Patience};

/// A connected stream of either family.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Makes the socket ready for a worker.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE_LIMIT))?;
            }
            Self::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE_LIMIT))?;
                stream.set_nodelay(true)?;
                end_when_unreachable(stream)?;
            }
        }
        sys::enlarge_buffers(self.as_raw_fd(), SOCKET_BUFFER_BYTES);
        Ok(())
    }
}

/// Has the kernel end a connection whose machine is gone without a word: it would keep its place for ever.
/// A process that is merely stopped is not noticed, since its kernel answers.
fn end_when_unreachable(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, UNREACHABLE_LIMIT / 4)?;
    sockopt::set_tcp_keepintvl(stream, UNREACHABLE_LIMIT / 4)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    let limit_ms = u32::try_from(UNREACHABLE_LIMIT.as_millis()).expect("a minute");
    Ok(sockopt::set_tcp_user_timeout(stream, limit_ms)?)
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Tcp(stream) => stream.as_raw_fd(),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Transport {
    socket: Socket,
    tls: Option<Box<ServerConnection>>,
    /// Whether a patient receive looks for bytes before it sleeps.
    spinner: Spinner,
}

/// What one receive brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Received {
    /// 0: the client sends no more.
    pub(crate) bytes: usize,
    /// There may be more without a further event.
    pub(crate) is_more: bool,
}

impl Transport {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            tls: None,
            spinner: Spinner::new(SPIN),
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Whether a client that is gone looks like one that only sends no more: TCP says the same of
    /// both until something is sent there.
    pub(crate) fn hides_departures(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }

    /// Whether every byte is enciphered.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Speaks TLS from here on, as the server.
    ///
    /// # Errors
    /// The configuration is of no use.
    pub(crate) fn secure(&mut self, config: &Arc<ServerConfig>) -> Result<(), rustls::Error> {
        let mut tls = ServerConnection::new(Arc::clone(config))?;
        tls.set_buffer_limit(Some(BACKLOG_BYTES_MAX));
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Receives into the parts, in order. A connection with TLS is not patient.
    pub(crate) fn receive(
        &mut self,
        parts: &mut [IoSliceMut<'_>],
        patience: Patience,
    ) -> io::Result<Received> {
        let fd = self.socket.as_raw_fd();
        let Some(tls) = &mut self.tls else {
            let wanted: usize = parts.iter().map(|part| part.len()).sum();
            let bytes = match patience {
                Patience::None => sys::receive(fd, parts, patience),
                _ => receive_patiently(fd, parts, patience, &mut self.spinner),
            }?;
            return Ok(Received {
                bytes,
                // A short read empties a stream; the next byte is a new edge.
                is_more: bytes == wanted,
            });
        };
        let mut stream = Stream(fd);
        for _ in 0..RECORDS_MAX {
            match read_parts(tls, parts) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without a goodbye it is an end all the same: requests know their own.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(Received::END);
                }
                read => {
                    return read.map(|bytes| Received {
                        bytes,
                        is_more: bytes > 0,
                    });
                }
            }
            if tls.read_tls(&mut stream)? == 0 {
                return Ok(Received::END);
            }
            if let Err(error) = tls.process_new_packets() {
                // The alert that says what was wrong; the client may be gone.
                if let Err(unheard) = tls.write_tls(&mut stream) {
                    tracing::debug!(error = %unheard, "send a TLS alert");
                }
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
        // Others get their turn first.
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Sends once; returns the bytes taken, and whether the socket may take more.
    pub(crate) fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<(usize, bool)> {
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        let Some(tls) = &mut self.tls else {
            let sent = sys::send(self.socket.as_raw_fd(), slices)?;
            return Ok((sent, sent == offered));
        };
        let taken = tls.writer().write_vectored(slices)?;
        Ok((taken, self.flush()?))
    }

    /// Whether TLS has bytes for the socket.
    pub(crate) fn has_backlog(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Moves the backlog on; whether all of it is out.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let mut stream = Stream(self.socket.as_raw_fd());
        let Some(tls) = &mut self.tls else {
            return Ok(true);
        };
        while tls.wants_write() {
            match tls.write_tls(&mut stream) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Tells a client with TLS that nothing more comes.
    pub(crate) fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            if let Err(error) = self.flush() {
                tracing::debug!(%error, "say goodbye to a client");
            }
        }
    }
}

impl Received {
    const END: Self = Self {
        bytes: 0,
        is_more: false,
    };
}

/// Looks for bytes as long as that pays, then sleeps. A client that sends a long payload gives it to its socket
/// in pieces, and wakes who sleeps for each: that costs both ends more than the piece's copy.
fn receive_patiently(
    fd: RawFd,
    parts: &mut [IoSliceMut<'_>],
    patience: Patience,
    spinner: &mut Spinner,
) -> io::Result<usize> {
    let received = loop {
        match sys::receive(fd, parts, Patience::None) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !spinner.looks_on(Time::now()) {
                    break sys::receive(fd, parts, patience);
                }
                std::hint::spin_loop();
            }
            received => break received,
        }
    };
    spinner.found();
    received
}

/// Takes deciphered bytes as far as there are any; `WouldBlock` when there are none.
fn read_parts(tls: &mut ServerConnection, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let mut reader = tls.reader();
    let mut taken = 0;
    for part in parts {
        let mut at = 0;
        while at < part.len() {
            match reader.read(&mut part[at..]) {
                Ok(0) => return Ok(taken),
                Ok(count) => (at, taken) = (at + count, taken + count),
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(taken)
}

/// The socket under TLS; never blocks.
struct Stream(RawFd);

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        sys::receive(self.0, &mut [IoSliceMut::new(buffer)], Patience::None)
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        sys::send(self.0, &[IoSlice::new(buffer)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        sys::send(self.0, buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Enciphered bytes that wait for the socket; a few records beyond what it takes at once.
const BACKLOG_BYTES_MAX: usize = 256 << 10;

/// Receives of one turn that bring no byte for the protocol above; a handshake takes two or three.
const RECORDS_MAX: u32 = 16;

/// For how long a patient receive looks at most: a client's turn, whose processor may have to wake.
const SPIN: Spin = Spin(Duration::from_micros(100));

/// For how long a patient receive sleeps: long beside a busy client's pauses, short
/// beside what the mailbox and the queues can wait.
const PATIENCE_LIMIT: Duration = Duration::from_millis(2);

/// How long a machine may be silent: long beside any outage that TCP survives unnoticed.
const UNREACHABLE_LIMIT: Duration = Duration::from_secs(60);

/// Asked of the kernel per direction: a few large requests.
const SOCKET_BUFFER_BYTES: i32 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_whose_machine_is_gone_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let _client = TcpStream::connect(address).expect("a connection");
        let (stream, _) = listener.accept().expect("a connection");
        Socket::Tcp(stream.try_clone().expect("a copy"))
            .prepare()
            .expect("options");
        assert!(sockopt::socket_keepalive(&stream).expect("an option"));
        let idle = sockopt::tcp_keepidle(&stream).expect("an option");
        let between = sockopt::tcp_keepintvl(&stream).expect("an option");
        let count = sockopt::tcp_keepcnt(&stream).expect("an option");
        assert_eq!(idle + between * count, UNREACHABLE_LIMIT);
    }
}
