//! Records on their way to a socket, either end's: filled verb by verb, sealed when full or sent.
//!
//! What is put in is a copy: memory that others may write while it is protected would leave a tag
//! that does not fit. One buffer of fixed size; nothing is allocated per verb.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::gather::Gather;
use crate::TAG_BYTES;
use crate::record::{RECORD_BODY_BYTES_MAX, RECORD_BYTES_MAX, RECORD_LENGTH_BYTES, RecordSealer};

/// Sealed bytes that the socket did not take, and a record that is being filled behind them.
pub(super) struct Outbox {
    sealer: RecordSealer,
    bytes: Box<[u8]>,
    /// `bytes[sent..sealed]` waits for the socket; the record that is being filled starts at `sealed`.
    sent: usize,
    sealed: usize,
    /// End of its body; `sealed + RECORD_LENGTH_BYTES` while that is empty.
    filled: usize,
    list: Gather,
}

impl Outbox {
    /// Room for `record_count` of the longest records.
    pub(super) fn new(sealer: RecordSealer, record_count: usize) -> Self {
        Self {
            sealer,
            bytes: vec![0; record_count * RECORD_BYTES_MAX].into(),
            sent: 0,
            sealed: 0,
            filled: RECORD_LENGTH_BYTES,
            list: Gather::new(),
        }
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.sealed && self.body_bytes() == 0
    }

    /// Has a record take `len_bytes` more, a new one if need be. False: not before some are sent.
    pub(super) fn make_room(&mut self, len_bytes: usize) -> bool {
        debug_assert!(len_bytes <= RECORD_BODY_BYTES_MAX);
        if len_bytes > self.room_bytes() && self.body_bytes() > 0 {
            self.seal();
        }
        len_bytes <= self.room_bytes()
    }

    /// What the record that is being filled still takes.
    pub(super) fn room_bytes(&self) -> usize {
        let in_record = RECORD_BODY_BYTES_MAX - self.body_bytes();
        let in_buffer = self.bytes.len().saturating_sub(self.filled + TAG_BYTES);
        in_record.min(in_buffer)
    }

    /// The place of the next `len_bytes` of the body, for the caller to fill.
    ///
    /// # Panics
    /// There is less room.
    pub(super) fn place(&mut self, len_bytes: usize) -> &mut [u8] {
        assert!(len_bytes <= self.room_bytes(), "room was made");
        let start = self.filled;
        self.filled += len_bytes;
        &mut self.bytes[start..self.filled]
    }

    /// Seals and sends what waits.
    ///
    /// # Errors
    /// As `sendmsg(2)`, but that a full socket is none.
    pub(super) fn send(&mut self, socket: &TcpStream) -> io::Result<Sent> {
        self.seal();
        let waiting = &self.bytes[self.sent..self.sealed];
        let len = waiting.len();
        self.list.clear();
        self.list.push(waiting.as_ptr(), len);
        // SAFETY: the list holds a part of our own buffer.
        let sent = match unsafe { self.list.send(socket.as_raw_fd()) } {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        self.sent += sent;
        if sent < len {
            return Ok(Sent::Part { any: sent > 0 });
        }
        self.sent = 0;
        self.sealed = 0;
        self.filled = RECORD_LENGTH_BYTES;
        Ok(Sent::All)
    }

    fn body_bytes(&self) -> usize {
        self.filled - self.sealed - RECORD_LENGTH_BYTES
    }

    fn seal(&mut self) {
        if self.body_bytes() > 0 {
            let end = self.filled + TAG_BYTES;
            self.sealer.seal(&mut self.bytes[self.sealed..end]);
            self.sealed = end;
            self.filled = end + RECORD_LENGTH_BYTES;
        }
    }
}

/// What the socket took.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sent {
    All,
    Part { any: bool },
}
