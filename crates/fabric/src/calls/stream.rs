//! Messages over a socket: a stream of them, in records where the connection is protected.
//!
//! What was pushed since the last flush goes into as few records as it fits, and out with one
//! system call where the socket takes it. Nothing of a record is seen before its tag was checked.
//! Both buffers are bounded: a push that does not fit waits, and no more is received than a whole
//! record and one message need.

use std::os::fd::BorrowedFd;

use super::{Broken, CALL_BYTES_MAX, HEADER_BYTES, decode_header, encode_header};
use crate::TAG_BYTES;
use crate::record::{
    RECORD_BODY_BYTES_MAX, RECORD_BYTES_MAX, RECORD_LENGTH_BYTES, RECORD_OVERHEAD_BYTES,
    RecordOpener, RecordSealer,
};
use crate::socket;

/// Most bytes that wait for the socket before a push is refused: several of the longest messages.
const OUTBOX_BYTES_MAX: usize = 4 * (CALL_BYTES_MAX + HEADER_BYTES);
/// What is received at a time.
const RECEIVE_BYTES: usize = 2 * RECORD_BYTES_MAX;
/// Opened bytes that wait for the rest of a message, and a record behind them.
const OPENED_BYTES_MAX: usize = CALL_BYTES_MAX + HEADER_BYTES + RECORD_BODY_BYTES_MAX;

/// One end's buffers and keys.
pub(super) struct Stream {
    records: Option<(RecordSealer, RecordOpener)>,
    /// Pushed and not sealed.
    pushed: Vec<u8>,
    /// `sealed[sent..]` waits for the socket.
    sealed: Vec<u8>,
    sent: usize,
    /// `received[..received_end]` is not opened.
    received: Box<[u8]>,
    received_end: usize,
    /// `opened[taken..]` is not taken.
    opened: Vec<u8>,
    taken: usize,
}

impl Stream {
    pub(super) fn new(records: Option<(RecordSealer, RecordOpener)>) -> Self {
        Self {
            records,
            pushed: Vec::new(),
            sealed: Vec::new(),
            sent: 0,
            received: vec![0; RECEIVE_BYTES].into(),
            received_end: 0,
            opened: Vec::new(),
            taken: 0,
        }
    }

    /// Queues a message; false: there is no room for it now.
    pub(super) fn push(&mut self, id: u32, body: &[u8]) -> bool {
        let waiting = self.pushed.len() + self.sealed.len() - self.sent;
        if waiting + HEADER_BYTES + body.len() > OUTBOX_BYTES_MAX {
            return false;
        }
        self.pushed
            .extend_from_slice(&encode_header(id, body.len()));
        self.pushed.extend_from_slice(body);
        true
    }

    /// Whether something waits for the socket.
    pub(super) fn wants_write(&self) -> bool {
        !self.pushed.is_empty() || self.sent < self.sealed.len()
    }

    /// Seals what was pushed and sends what the socket takes. Returns the system calls made.
    pub(super) fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<u64, Broken> {
        self.seal();
        let mut calls = 0;
        while self.sent < self.sealed.len() {
            calls += 1;
            let sent = socket::send(socket, &self.sealed[self.sent..], None);
            match sent.map_err(|_| Broken::Closed)? {
                Some(sent) => self.sent += sent,
                None => return Ok(calls),
            }
        }
        self.sealed.clear();
        self.sent = 0;
        Ok(calls)
    }

    fn seal(&mut self) {
        // Where the socket never takes all, what it took goes here.
        if self.sent > OUTBOX_BYTES_MAX {
            self.sealed.drain(..self.sent);
            self.sent = 0;
        }
        let Some((sealer, _)) = &mut self.records else {
            self.sealed.append(&mut self.pushed);
            return;
        };
        for body in self.pushed.chunks(RECORD_BODY_BYTES_MAX) {
            let start = self.sealed.len();
            self.sealed.extend_from_slice(&[0; RECORD_LENGTH_BYTES]);
            self.sealed.extend_from_slice(body);
            self.sealed.extend_from_slice(&[0; TAG_BYTES]);
            sealer.seal(&mut self.sealed[start..]);
        }
        self.pushed.clear();
    }

    /// Receives once and opens what is whole; false: nothing was there. Call it only when
    /// [`Stream::next`] has given all: less than a message is left then, and there is room.
    pub(super) fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Broken> {
        if self.open()? {
            return Ok(true);
        }
        let room = &mut self.received[self.received_end..];
        match socket::receive(socket, room, None) {
            Ok(Some(0)) | Err(_) => Err(Broken::Closed),
            Ok(None) => Ok(false),
            Ok(Some(received)) => {
                self.received_end += received;
                self.open()?;
                Ok(true)
            }
        }
    }

    /// Moves what is whole from `received` to `opened`; whether it was anything.
    fn open(&mut self) -> Result<bool, Broken> {
        if self.taken > 0 {
            self.opened.drain(..self.taken);
            self.taken = 0;
        }
        let Some((_, opener)) = &mut self.records else {
            let room = OPENED_BYTES_MAX - self.opened.len();
            let moved = self.received_end.min(room);
            self.opened.extend_from_slice(&self.received[..moved]);
            self.received.copy_within(moved..self.received_end, 0);
            self.received_end -= moved;
            return Ok(moved > 0);
        };
        let mut start = 0;
        loop {
            let come = &mut self.received[start..self.received_end];
            let total = RecordOpener::record_bytes(come).map_err(|_| Broken::Forged)?;
            let Some(record) = total.and_then(|total| come.get_mut(..total)) else {
                break;
            };
            if self.opened.len() + record.len() - RECORD_OVERHEAD_BYTES > OPENED_BYTES_MAX {
                break;
            }
            start += record.len();
            let body = opener.open(record).map_err(|_| Broken::Forged)?;
            self.opened.extend_from_slice(body);
        }
        self.received.copy_within(start..self.received_end, 0);
        self.received_end -= start;
        Ok(start > 0)
    }

    /// Takes the next whole message.
    pub(super) fn next(&mut self) -> Result<Option<(u32, &[u8])>, Broken> {
        let waiting = &self.opened[self.taken..];
        let Some((header, rest)) = waiting.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (len, id) = decode_header(*header)?;
        if rest.len() < len {
            return Ok(None);
        }
        let start = self.taken + HEADER_BYTES;
        self.taken = start + len;
        Ok(Some((id, &self.opened[start..start + len])))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn what_was_sent_is_not_kept_while_the_socket_never_takes_all() {
        let (socket, peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut stream = Stream::new(None);
        let mut buffer = vec![0; 4096];
        for _ in 0..2000 {
            while stream.push(7, &[7; 4096]) {}
            stream.flush(socket.as_fd()).unwrap();
            assert!(stream.wants_write(), "the socket took all");
            socket::receive(peer.as_fd(), &mut buffer, None).unwrap();
        }
        let kept_bytes = stream.sealed.len();
        assert!(kept_bytes <= 3 * OUTBOX_BYTES_MAX, "{kept_bytes}");
    }
}
