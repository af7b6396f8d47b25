//! Bytes on their way to a socket, either end's: filled verb by verb, and where there are records
//! sealed when full or sent.
//!
//! What is put in is a copy: memory that others may write while it is protected would leave a tag
//! that does not fit, and memory that may be revoked must not be sent by a call that waits. One
//! buffer of fixed size; nothing is allocated per verb.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::gather::Gather;
use crate::TAG_BYTES;
use crate::record::{RECORD_BODY_BYTES_MAX, RECORD_BYTES_MAX, RECORD_LENGTH_BYTES, RecordSealer};

/// Sealed bytes that the socket did not take, and a record that is being filled behind them.
///
/// Without records what is filled at a time is a record without length and tag.
pub(super) struct Outbox {
    sealer: Option<RecordSealer>,
    bytes: Box<[u8]>,
    /// `bytes[sent..sealed]` waits for the socket; the record that is being filled starts at `sealed`.
    sent: usize,
    sealed: usize,
    /// End of its body; `sealed + head_bytes` while that is empty.
    filled: usize,
    /// What a record has before and behind its body.
    head_bytes: usize,
    tag_bytes: usize,
    list: Gather,
}

impl Outbox {
    /// Room for `record_count` of the longest records. Without a sealer there are none.
    pub(super) fn new(sealer: Option<RecordSealer>, record_count: usize) -> Self {
        let (head_bytes, tag_bytes) = match sealer {
            Some(_) => (RECORD_LENGTH_BYTES, TAG_BYTES),
            None => (0, 0),
        };
        Self {
            sealer,
            bytes: vec![0; record_count * RECORD_BYTES_MAX].into(),
            sent: 0,
            sealed: 0,
            filled: head_bytes,
            head_bytes,
            tag_bytes,
            list: Gather::new(),
        }
    }

    /// Whether what it sends is records.
    pub(super) fn has_records(&self) -> bool {
        self.sealer.is_some()
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
        let in_buffer = self
            .bytes
            .len()
            .saturating_sub(self.filled + self.tag_bytes);
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
        let list = self.list();
        // SAFETY: the list holds a part of our own buffer.
        let sent = unsafe { list.send(socket.as_raw_fd()) };
        self.take_sent(sent)
    }

    /// Seals what waits, and lists it.
    pub(super) fn list(&mut self) -> &mut Gather {
        self.seal();
        let waiting = &self.bytes[self.sent..self.sealed];
        self.list.clear();
        self.list.push(waiting.as_ptr(), waiting.len());
        &mut self.list
    }

    /// Notes what the socket took of the list.
    ///
    /// # Errors
    /// As [`Outbox::send`].
    pub(super) fn take_sent(&mut self, sent: io::Result<usize>) -> io::Result<Sent> {
        let sent = none_if_full(sent)?;
        self.sent += sent;
        if self.sent < self.sealed {
            return Ok(Sent::Part { any: sent > 0 });
        }
        self.sent = 0;
        self.sealed = 0;
        self.filled = self.head_bytes;
        Ok(Sent::All)
    }

    fn body_bytes(&self) -> usize {
        self.filled - self.sealed - self.head_bytes
    }

    fn seal(&mut self) {
        if self.body_bytes() > 0 {
            let end = self.filled + self.tag_bytes;
            if let Some(sealer) = &mut self.sealer {
                sealer.seal(&mut self.bytes[self.sealed..end]);
            }
            self.sealed = end;
            self.filled = end + self.head_bytes;
        }
    }
}

/// Bytes that a send gave; a full socket took none.
pub(super) fn none_if_full(sent: io::Result<usize>) -> io::Result<usize> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        sent => sent,
    }
}

/// What the socket took.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sent {
    All,
    Part { any: bool },
}
