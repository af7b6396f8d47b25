//! One connection between two nodes: bytes in and out, never blocking.
//!
//! What is sent in one turn of the loop leaves in one `writev`: small frames are gathered in one
//! buffer, large payloads go as they are. First in, first out; what was not written when the
//! connection broke is gone with it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use cenote_fabric::strangers::Stage;
use cenote_fabric::{
    RECORD_BODY_BYTES_MAX, RECORD_LENGTH_BYTES, RECORD_OVERHEAD_BYTES, RecordError, RecordOpener,
    RecordSealer,
};
use cenote_kv::memory::buffer::Buffer;
use mio::net::TcpStream;

use super::NodeId;
use super::frame::{self, Frame, FrameError, HEADER_BYTES};
use super::handshake::{Finished, Handshake, HandshakeError};

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
    /// What came is no record of this link.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// It took too long to be open, or to say anything.
    #[error("no sign within its time")]
    Late,
    /// Others came, and it had not proven the key.
    #[error("it made room for others before it proved the cluster's key")]
    Displaced,
    /// It is not to be here.
    #[error(transparent)]
    Misplaced(#[from] Misplaced),
    /// The same node connected again, or was given another address.
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

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// Too much waits to be written.
    #[error(transparent)]
    Full(#[from] Full),
    /// No peer would take it, now or later.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// What reading came to.
#[derive(Debug)]
pub enum Received {
    /// The handshake is done.
    Open(Box<Finished>),
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
    /// Frames go in records, and come in such.
    records: Option<(RecordSealer, RecordOpener)>,
    /// Bytes that came and are not looked at yet: those of records, where there are such.
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
            records: None,
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

    /// How far a connection has come that somebody made to us.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match &self.handshake {
            Some(handshake) if !handshake.has_answered() && self.input.is_empty() => Stage::Silent,
            Some(handshake) if !handshake.has_answered() => Stage::Speaking,
            _ => Stage::Answered,
        }
    }

    /// Takes a frame to be written by the next [`Link::flush`]: a payload of `head`, and `parts` behind it.
    ///
    /// # Errors
    /// `Full`: too much waits already. `Frame`: the payload is longer than a frame's may be.
    ///
    /// # Panics
    /// The link is not open.
    pub fn send(&mut self, kind: u8, head: &[u8], parts: &[Bytes]) -> Result<(), NotTaken> {
        assert!(self.is_open());
        let length = head.len() + parts.iter().map(Bytes::len).sum::<usize>();
        let header = frame::header(kind, length)?;
        if HEADER_BYTES + length > self.room_bytes() {
            return Err(Full.into());
        }
        self.out_bytes += HEADER_BYTES + length;
        self.gathered.extend_from_slice(&header);
        self.gathered.extend_from_slice(head);
        for part in parts {
            // Records copy anyway.
            if part.len() < GATHERED_BYTES_MAX || self.records.is_some() {
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
        match &mut self.records {
            // A hello that still waits does not go in a record.
            Some((sealer, _)) if self.handshake.is_none() => {
                while !self.gathered.is_empty() {
                    let length = self.gathered.len().min(RECORD_BODY_BYTES_MAX);
                    let mut record = BytesMut::with_capacity(RECORD_OVERHEAD_BYTES + length);
                    record.put_bytes(0, RECORD_LENGTH_BYTES);
                    record.extend_from_slice(&self.gathered[..length]);
                    record.resize(RECORD_OVERHEAD_BYTES + length, 0);
                    sealer.seal(&mut record);
                    self.gathered.advance(length);
                    self.out_bytes += RECORD_OVERHEAD_BYTES;
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
                    // Hellos go as they are, also where frames go in records.
                    self.end_gathering();
                    self.records = finished.records.take();
                    self.handshake = None;
                    each(Received::Open(Box::new(finished)));
                }
                Err(error) => {
                    // The peer may learn from our last words what is wrong.
                    self.flush()?;
                    return Err(error.into());
                }
            }
        }
        if self.records.is_none() {
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

    /// Opens the first record, if it is whole; whether it was.
    fn open_record(&mut self) -> Result<bool, LinkError> {
        let Some(length) = RecordOpener::record_bytes(&self.input)? else {
            return Ok(false);
        };
        if self.input.len() < length {
            return Ok(false);
        }
        let (_, opener) = self.records.as_mut().expect("frames come in records");
        let mut record = self.input.split_to(length);
        self.plain.extend_from_slice(opener.open(&mut record)?);
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
