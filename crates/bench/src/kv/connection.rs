//! One socket of the load: bytes out, bytes in, and the requests between them.
//!
//! The socket is non-blocking and told of by edges: it is read until a read brings less than there
//! was room for, and written until it takes no more. Requests are answered in their order.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use super::tally::Kind;
use super::wire::{Parsed, Protocol, Reply};

/// A request that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) kind: Kind,
    pub(crate) item: u32,
    /// Oldest version that a GET may return; whether a SET stands in the book (not 0).
    pub(crate) version: u32,
    pub(crate) began_ns: u64,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// Requests go out.
    Up,
    /// It was opened and has not answered.
    Connecting,
    /// There is none; to be opened again at this time.
    Down { retry_ns: u64 },
}

/// Where a server listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ServerAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A socket of either kind.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection and what is under way on it.
pub(crate) struct Connection {
    token: Token,
    pub(crate) state: State,
    stream: Option<Stream>,
    /// Requests not yet taken by the socket begin at `sent`.
    pub(crate) output: Vec<u8>,
    sent: usize,
    /// Replies not yet parsed are at `start..end`.
    input: Vec<u8>,
    start: usize,
    end: usize,
    pub(crate) pending: VecDeque<Pending>,
}

/// Room for replies at first; it grows where one value needs more.
const INPUT_BYTES: usize = 32 << 10;
/// A read has at least so much room.
const READ_BYTES_MIN: usize = 4 << 10;

impl Connection {
    /// One that is down; `token` will tell of it.
    pub(crate) fn new(token: Token) -> Self {
        Self {
            token,
            state: State::Down { retry_ns: 0 },
            stream: None,
            output: Vec::new(),
            sent: 0,
            input: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
            pending: VecDeque::new(),
        }
    }

    /// Opens it, to the server that it had or another.
    pub(crate) fn open(&mut self, place: &ServerAddress, registry: &Registry) -> io::Result<()> {
        let mut stream = Stream::connect(place)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(stream.source(), self.token, interest)?;
        self.stream = Some(stream);
        self.state = State::Connecting;
        Ok(())
    }

    /// Whether the socket that was opened is connected by now.
    ///
    /// # Errors
    /// Why it will not be.
    pub(crate) fn is_connected(&mut self) -> io::Result<bool> {
        let stream = self.stream.as_ref().ok_or(ErrorKind::NotConnected)?;
        let is_connected = stream.is_connected()?;
        if is_connected {
            self.state = State::Up;
        }
        Ok(is_connected)
    }

    /// Ends it; what was under way is handed back, its fate unknown.
    pub(crate) fn close(&mut self, retry_ns: u64) -> VecDeque<Pending> {
        self.stream = None;
        self.state = State::Down { retry_ns };
        self.output.clear();
        (self.sent, self.start, self.end) = (0, 0, 0);
        std::mem::take(&mut self.pending)
    }

    /// Sends as much as the socket takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        while self.sent < self.output.len() {
            match stream.writer().write(&self.output[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads once; whether there may be more.
    pub(crate) fn read(&mut self) -> io::Result<bool> {
        let Some(stream) = &mut self.stream else {
            return Ok(false);
        };
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.input.len() - self.end < READ_BYTES_MIN {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.input.len() - self.end < READ_BYTES_MIN {
                self.input.resize(self.input.len() * 2, 0);
            }
        }
        let room = &mut self.input[self.end..];
        let room_bytes = room.len();
        loop {
            match stream.reader().read(room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.end += count;
                    return Ok(count == room_bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Hands each whole reply to `take`, with its request; how many there were.
    ///
    /// # Errors
    /// Bytes that are no reply, or a reply that nobody asked for.
    pub(crate) fn take_replies(
        &mut self,
        protocol: Protocol,
        mut take: impl FnMut(Pending, Reply<'_>),
    ) -> Result<usize> {
        let mut count = 0;
        while self.start < self.end {
            let bytes = &self.input[self.start..self.end];
            match protocol.parse(bytes)? {
                Parsed::Part => break,
                Parsed::Whole(reply, length) => {
                    let Some(pending) = self.pending.pop_front() else {
                        anyhow::bail!("a reply that nobody asked for: {reply:?}");
                    };
                    take(pending, reply);
                    self.start += length;
                    count += 1;
                }
            }
        }
        Ok(count)
    }
}

impl Stream {
    fn connect(place: &ServerAddress) -> io::Result<Self> {
        match place {
            ServerAddress::Tcp(address) => {
                let stream = TcpStream::connect(*address)?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            ServerAddress::Unix(path) => UnixStream::connect(path).map(Self::Unix),
        }
    }

    /// Whether it is connected by now; otherwise why it will not be.
    fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            Self::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(drop)),
            Self::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(drop)),
        };
        if let Some(error) = error {
            return Err(error);
        }
        match peer {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    fn reader(&mut self) -> &mut dyn Read {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }
}
