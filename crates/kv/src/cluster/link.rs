//! One connection between two nodes: bytes in and out, never blocking.
//!
//! What is sent in one turn of the loop leaves in one `writev`: small frames are gathered in one
//! buffer, large payloads go as they are. First in, first out; what was not written when the
//! connection broke is gone with it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;

use bytes::{Buf, Bytes, BytesMut};
use cenote_fabric::{SEALED_BYTES_MAX, TAG_BYTES, Transport};
use mio::net::TcpStream;

use super::NodeId;
use super::frame::{self, Frame, FrameError, HEADER_BYTES};
use super::handshake::{Finished, Handshake, HandshakeError};
use crate::memory::buffer::Buffer;

/// Most bytes that may wait to be written; beyond, a frame is refused.
pub const OUT_BYTES_MAX: usize = 8 << 20;
/// A part of a payload that is at least so long is not copied.
const GATHERED_BYTES_MAX: usize = 4096;
/// Slices of one `writev`.
const SLICES_MAX: usize = 64;
/// Bytes read in one go, and the most in one turn: others have their turn, too.
pub(super) const READ_BYTES: usize = 64 << 10;
const TURN_BYTES_MAX: usize = 1 << 20;
/// A frame of which so much is still to come is read to where it stays.
const LONG_BYTES_MIN: usize = 32 << 10;
/// Plain bytes in a sealed record.
const RECORD_BYTES_MAX: usize = SEALED_BYTES_MAX - TAG_BYTES;

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer closed it.
    #[error("closed by the peer")]
    Closed,
    /// The system says so.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Before it was open.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// What came is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A sealed record that does not open.
    #[error("a sealed record was changed on its way")]
    Forged,
    /// It took too long to be open, or to say anything.
    #[error("no sign within its time")]
    Late,
    /// It is not to be here.
    #[error(transparent)]
    Misplaced(#[from] Misplaced),
    /// The same node connected anew, or was given another address.
    #[error("replaced by a newer one")]
    Replaced,
}

/// Why a peer that holds the key is not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Misplaced {
    /// It serves another lane.
    #[error("the peer's lane {theirs} on our lane {ours}")]
    Lane {
        /// The peer's.
        theirs: u16,
        /// Ours.
        ours: u16,
    },
    /// Another node than the one that was called.
    #[error("node {found} is where {called} was")]
    Node {
        /// Who answered.
        found: NodeId,
        /// Who was called.
        called: NodeId,
    },
    /// The lesser number calls.
    #[error("node {0} is not to call us")]
    Caller(NodeId),
    /// A later process of it is known.
    #[error("an earlier process of node {0}")]
    Earlier(NodeId),
    /// No more are taken.
    #[error("too many observers")]
    Observers,
}

/// The queue of a link is full: the frame was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("as many bytes as may be wait to be written")]
pub struct Full;

/// What reading came to.
#[derive(Debug)]
pub enum Received {
    /// The handshake is done.
    Open(Finished),
    /// A frame.
    Frame(Frame),
}

impl std::fmt::Debug for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Finished({:?})", self.peer)
    }
}

/// The connection.
pub struct Link {
    stream: TcpStream,
    /// Until it is open.
    handshake: Option<Handshake>,
    seal: Option<Transport>,
    /// Bytes that came and are not looked at yet: sealed ones, where frames are sealed.
    input: BytesMut,
    /// A long frame that has come in part; what follows is its.
    long: Option<Long>,
    /// Opened records.
    plain: BytesMut,
    out: VecDeque<Bytes>,
    /// What is gathered to go behind `out`.
    gathered: BytesMut,
    /// Bytes in both, and how many may be.
    out_bytes: usize,
    out_bytes_max: usize,
}

/// A frame on its way.
struct Long {
    kind: u8,
    payload: Buffer,
    /// Bytes of it that have come.
    filled: usize,
}

impl Link {
    /// A connection on which `handshake` begins, with what it says first; `out_bytes_max` may wait to be
    /// written.
    #[must_use]
    pub fn new(
        stream: TcpStream,
        handshake: Handshake,
        first: &[u8],
        out_bytes_max: usize,
    ) -> Self {
        Self {
            stream,
            handshake: Some(handshake),
            seal: None,
            input: BytesMut::new(),
            long: None,
            plain: BytesMut::new(),
            out: VecDeque::new(),
            gathered: BytesMut::from(first),
            out_bytes: first.len(),
            out_bytes_max,
        }
    }

    /// The socket, to register it.
    pub fn stream_mut(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Whether the peer is known.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.handshake.is_none()
    }

    /// Takes a frame to be written by the next [`Link::flush`]: a payload of `head`, and `parts` behind it.
    ///
    /// # Errors
    /// [`Full`]: too much waits already.
    ///
    /// # Panics
    /// The payload is longer than a frame's may be, or the link is not open.
    pub fn send(&mut self, kind: u8, head: &[u8], parts: &[Bytes]) -> Result<(), Full> {
        assert!(self.is_open());
        let length = head.len() + parts.iter().map(Bytes::len).sum::<usize>();
        if HEADER_BYTES + length > self.room_bytes() {
            return Err(Full);
        }
        self.out_bytes += HEADER_BYTES + length;
        self.gathered
            .extend_from_slice(&frame::header(kind, length));
        self.gathered.extend_from_slice(head);
        for part in parts {
            // Sealing copies anyway.
            if part.len() < GATHERED_BYTES_MAX || self.seal.is_some() {
                self.gathered.extend_from_slice(part);
            } else {
                self.end_gathering();
                self.out.push_back(part.clone());
            }
        }
        Ok(())
    }

    /// Bytes that may be sent before it is [`Full`].
    #[must_use]
    pub fn room_bytes(&self) -> usize {
        self.out_bytes_max.saturating_sub(self.out_bytes)
    }

    fn end_gathering(&mut self) {
        if !self.gathered.is_empty() {
            self.out.push_back(self.gathered.split().freeze());
        }
    }

    /// Writes what waits, as far as the socket takes it.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn flush(&mut self) -> Result<(), LinkError> {
        match &mut self.seal {
            // A hello that still waits was not to be sealed as a frame.
            Some(seal) if self.handshake.is_none() => {
                while !self.gathered.is_empty() {
                    let length = self.gathered.len().min(RECORD_BYTES_MAX);
                    let mut record = BytesMut::zeroed(2 + length + TAG_BYTES);
                    let sealed = u16::try_from(length + TAG_BYTES).expect("at most the maximum");
                    record[..2].copy_from_slice(&sealed.to_le_bytes());
                    seal.seal(&self.gathered[..length], &mut record[2..]);
                    self.gathered.advance(length);
                    self.out_bytes += 2 + TAG_BYTES;
                    self.out.push_back(record.freeze());
                }
            }
            _ => self.end_gathering(),
        }
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.out.len().min(SLICES_MAX);
            for (slice, bytes) in slices.iter_mut().zip(&self.out) {
                *slice = IoSlice::new(bytes);
            }
            match self.stream.write_vectored(&slices[..count]) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(written) => self.written(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Not connected yet: the socket says so when it is.
                Err(error) if error.kind() == ErrorKind::NotConnected && !self.is_open() => {
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn written(&mut self, mut count: usize) {
        self.out_bytes -= count;
        while let Some(first) = self.out.front_mut() {
            if first.len() > count {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.out.pop_front();
        }
    }

    /// Reads what has come and tells it to `each`. Whether there may be more: the caller comes back
    /// without waiting for the socket to say so. A short read has taken all there was, unless the stream
    /// `has_ended`.
    ///
    /// # Errors
    /// The connection is of no more use; what came before was told.
    pub fn receive(
        &mut self,
        scratch: &mut [u8],
        has_ended: bool,
        mut each: impl FnMut(Received),
    ) -> Result<bool, LinkError> {
        let mut taken = 0;
        while taken < TURN_BYTES_MAX {
            let room = match &mut self.long {
                Some(long) => &mut long.payload[long.filled..],
                None => &mut *scratch,
            };
            let room_bytes = room.len();
            let count = match self.stream.read(room) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::NotConnected && !self.is_open() => {
                    return Ok(false);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            taken += count;
            if let Some(long) = &mut self.long {
                long.filled += count;
                if let Some(long) = self.long.take_if(|long| long.filled == long.payload.len()) {
                    each(Received::Frame(Frame {
                        kind: long.kind,
                        payload: long.payload.freeze(),
                    }));
                }
            } else {
                self.input.extend_from_slice(&scratch[..count]);
                self.take_input(&mut each)?;
            }
            if count < room_bytes && !has_ended {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take_input(&mut self, each: &mut impl FnMut(Received)) -> Result<(), LinkError> {
        if let Some(handshake) = &mut self.handshake {
            let before = self.gathered.len();
            let taken = handshake.take(&mut self.input, &mut self.gathered);
            self.out_bytes += self.gathered.len() - before;
            match taken {
                Ok(None) => return Ok(()),
                Ok(Some(mut finished)) => {
                    // Hellos go as they are, also where frames are sealed.
                    self.end_gathering();
                    self.seal = finished.seal.take();
                    self.handshake = None;
                    each(Received::Open(finished));
                }
                Err(error) => {
                    // The peer may learn from our last words what is wrong.
                    self.flush()?;
                    return Err(error.into());
                }
            }
        }
        if self.seal.is_none() {
            while let Some(frame) = frame::split(&mut self.input)? {
                each(Received::Frame(frame));
            }
            return self.begin_long();
        }
        while self.open_record()? {
            while let Some(frame) = frame::split(&mut self.plain)? {
                each(Received::Frame(frame));
            }
        }
        Ok(())
    }

    /// Has a long frame read to where it stays, if the input begins with one and ends in it.
    fn begin_long(&mut self) -> Result<(), LinkError> {
        let Some((kind, length)) = frame::read_header(&self.input)? else {
            return Ok(());
        };
        let filled = self.input.len() - HEADER_BYTES;
        if length >= filled + LONG_BYTES_MIN {
            let mut payload = Buffer::new(length);
            payload[..filled].copy_from_slice(&self.input[HEADER_BYTES..]);
            self.input.clear();
            self.long = Some(Long {
                kind,
                payload,
                filled,
            });
        }
        Ok(())
    }

    /// Opens the first sealed record, if it is whole; whether it was.
    fn open_record(&mut self) -> Result<bool, LinkError> {
        let Some(&length) = self.input.first_chunk::<2>() else {
            return Ok(false);
        };
        let length = usize::from(u16::from_le_bytes(length));
        if self.input.len() < 2 + length {
            return Ok(false);
        }
        let from = self.plain.len();
        self.plain.resize(from + length, 0);
        let seal = self.seal.as_mut().expect("frames are sealed");
        let opened = seal.open(&self.input[2..2 + length], &mut self.plain[from..]);
        let opened = opened.ok_or(LinkError::Forged)?;
        self.plain.truncate(from + opened);
        self.input.advance(2 + length);
        Ok(true)
    }

    /// Whether the connection was made; an error once it cannot be.
    ///
    /// # Errors
    /// Those of connecting.
    pub fn check_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Says the end at once also where the descriptor lives on in a child. The peer may be gone.
        self.stream.shutdown(Shutdown::Both).unwrap_or_default();
    }
}
