//! The byte stream of one client: TCP, a Unix socket, or TLS over TCP.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use cenote_fabric::untaken_bytes;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use rustls::ServerConnection;

/// Bytes of deciphered text that are taken over at once.
const TLS_PIECE_BYTES: usize = 16 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(super) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Tls>),
}

#[derive(Debug)]
pub(super) struct Tls {
    connection: ServerConnection,
    stream: TcpStream,
    /// Bytes that were written to the stream.
    written: u64,
}

impl Transport {
    /// TLS over a stream that is just accepted.
    pub(super) fn tls(stream: TcpStream, connection: ServerConnection) -> Self {
        Self::Tls(Box::new(Tls {
            connection,
            stream,
            written: 0,
        }))
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.source().register(registry, token, interest)
    }

    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
            Self::Tls(tls) => &mut tls.stream,
        }
    }

    pub(super) fn number(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Tls(tls) => tls.stream.as_raw_fd(),
        }
    }

    /// How many bytes the peer has taken out of the system's buffers, of `written` that this end has
    /// written. A peer that reads slowly empties much of them before more can be written.
    pub(super) fn taken(&self, written: u64) -> u64 {
        let (socket, written): (BorrowedFd<'_>, u64) = match self {
            Self::Tcp(stream) => (stream.as_fd(), written),
            Self::Unix(stream) => (stream.as_fd(), written),
            Self::Tls(tls) => (tls.stream.as_fd(), tls.written),
        };
        // One that does not say counts as if it had all.
        let untaken = untaken_bytes(socket).unwrap_or(0);
        written.saturating_sub(untaken as u64)
    }

    /// Whether writes go to the kernel as they are.
    pub(super) fn is_plain(&self) -> bool {
        !matches!(self, Self::Tls(_))
    }

    /// Reads what there is into the room that `buffer` has. 0 is the end.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => Ok(rustix::io::read(&*stream, spare_capacity(buffer))?),
            Self::Unix(stream) => Ok(rustix::io::read(&*stream, spare_capacity(buffer))?),
            Self::Tls(tls) => tls.read(buffer),
        }
    }

    /// Writes as much as goes.
    pub(super) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, parts) {
            // Without a list of parts for the kernel to read.
            (Self::Tcp(stream), [part]) => stream.write(part),
            (Self::Unix(stream), [part]) => stream.write(part),
            (Self::Tcp(stream), _) => stream.write_vectored(parts),
            (Self::Unix(stream), _) => stream.write_vectored(parts),
            (Self::Tls(tls), _) => tls.write(parts),
        }
    }

    /// Whether something written has not reached the kernel yet.
    pub(super) fn has_backlog(&self) -> bool {
        match self {
            Self::Tls(tls) => tls.connection.wants_write(),
            Self::Tcp(_) | Self::Unix(_) => false,
        }
    }

    /// Moves on what has not reached the kernel yet.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(tls) => tls.flush(),
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
        }
    }

    /// Tells the peer that nothing more comes.
    pub(super) fn say_goodbye(&mut self) {
        if let Self::Tls(tls) = self {
            tls.connection.send_close_notify();
            // The stream is dropped next: whether the peer has heard it changes nothing here.
            tls.flush().ok();
        }
    }
}

impl Tls {
    fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            let before = buffer.len();
            let room = (buffer.capacity() - before).clamp(1, TLS_PIECE_BYTES);
            buffer.resize(before + room, 0);
            let read = self.connection.reader().read(&mut buffer[before..]);
            buffer.truncate(before + read.as_ref().map_or(0, |length| *length));
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without a goodbye it is an end all the same: the protocol above knows its own.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            if self.connection.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            if let Err(error) = self.connection.process_new_packets() {
                // The alert that says what was wrong is on its way already.
                self.flush()?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
            if self.connection.wants_write() {
                match self.flush() {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                    _ => {}
                }
            }
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.connection.writer().write_vectored(parts)?;
        match self.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.written += self.connection.write_tls(&mut self.stream)? as u64;
        }
        Ok(())
    }
}
