//! The stream of an endpoint in records: requests are copied, protected and sent; a response's bytes
//! are copied to their landing once the tag of their record was checked.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::Broken;
use super::ring::Ring;
use crate::CompletionQueue;
use crate::record::{RECORD_BODY_BYTES_MAX, RecordOpener, RecordSealer};
use crate::tcp::gather::{Gather, Patience};
use crate::tcp::inbox::Inbox;
use crate::tcp::outbox::{Outbox, Sent};
use crate::tcp::wire::{REQUEST_BYTES, RESPONSE_BYTES, Verb};

/// Records that wait for the socket. Two: one is filled while the other is on its way.
const OUTBOX_RECORDS: usize = 2;

/// Room for what was received: a burst of 16 pages, and a record whole.
const INBOX_BYTES: usize = 68 * 1024;

/// See the module.
pub(super) struct Sealed {
    inbox: Inbox,
    outbox: Outbox,
    list: Gather,
    /// Bytes of slot `sending` that are in the outbox.
    boxed_bytes: usize,
    /// Bytes of slot `first`'s response that have been opened.
    opened_bytes: usize,
}

impl Sealed {
    pub(super) fn new((sealer, opener): (RecordSealer, RecordOpener)) -> Self {
        Self {
            inbox: Inbox::new(INBOX_BYTES, Some(opener)),
            outbox: Outbox::new(sealer, OUTBOX_RECORDS),
            list: Gather::new(),
            boxed_bytes: 0,
            opened_bytes: 0,
        }
    }

    /// Whether protected bytes wait for the socket.
    pub(super) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Protects what fits of the verbs that wait, and sends what one call takes.
    pub(super) fn send(&mut self, ring: &mut Ring, socket: &TcpStream) -> io::Result<Sent> {
        self.fill_outbox(ring);
        self.outbox.send(socket)
    }

    fn fill_outbox(&mut self, ring: &mut Ring) {
        while ring.sending != ring.next {
            let slot = ring.slot(ring.sending);
            let whole = REQUEST_BYTES + slot.payload_bytes();
            if self.boxed_bytes == 0 {
                // In one record where it fits into one; its header is never split.
                if !self.outbox.make_room(whole.min(RECORD_BODY_BYTES_MAX)) {
                    return;
                }
                if slot.request.verb == Verb::Send {
                    self.outbox.place(whole).copy_from_slice(&slot.message);
                    ring.sending += 1;
                    continue;
                }
                let header = ring.header(ring.sending);
                self.outbox.place(REQUEST_BYTES).copy_from_slice(header);
                self.boxed_bytes = REQUEST_BYTES;
            }
            while self.boxed_bytes < whole {
                let missing = whole - self.boxed_bytes;
                if !self.outbox.make_room(1) {
                    return;
                }
                let part = self.outbox.place(missing.min(self.outbox.room_bytes()));
                // SAFETY: the source is valid for the payload's length by the contract of
                // `post_write`, and `part` is not longer than what is left of it.
                unsafe {
                    let source = slot.source.wrapping_add(self.boxed_bytes - REQUEST_BYTES);
                    std::ptr::copy_nonoverlapping(source, part.as_mut_ptr(), part.len());
                }
                self.boxed_bytes += part.len();
            }
            self.boxed_bytes = 0;
            ring.sending += 1;
        }
    }

    /// Receives once; how much came, and whether the socket may hold more.
    ///
    /// # Errors
    /// As `recvmsg(2)`.
    pub(super) fn receive(&mut self, socket: &TcpStream) -> io::Result<(usize, bool)> {
        self.inbox.make_room();
        self.list.clear();
        let room = self.inbox.list_room(&mut self.list);
        // SAFETY: the list holds the room of our own buffer.
        let bytes = unsafe { self.list.receive(socket.as_raw_fd(), Patience::None) }?;
        self.inbox.add(bytes);
        Ok((bytes, bytes == room))
    }

    /// Opens what has come whole, and completes what that completes.
    pub(super) fn open(
        &mut self,
        ring: &mut Ring,
        queue: &mut CompletionQueue,
    ) -> Result<(), Broken> {
        while self.inbox.next_record().map_err(Broken::Record)? {
            while !self.inbox.waiting().is_empty() {
                if !ring.is_owed() {
                    return Err(Broken::Protocol);
                }
                self.take(ring, queue)?;
            }
        }
        // Nobody is owed what has come of the next one.
        if !ring.is_owed() && self.inbox.unread_bytes() > 0 {
            return Err(Broken::Protocol);
        }
        Ok(())
    }

    /// Takes what the record has of the oldest response.
    fn take(&mut self, ring: &mut Ring, queue: &mut CompletionQueue) -> Result<(), Broken> {
        let slot = ring.slot(ring.first);
        let waiting = self.inbox.waiting();
        let missing = slot.answer_bytes() - self.opened_bytes;
        let part = missing.min(waiting.len());
        if part > 0 {
            if !slot.landing.is_null() {
                // SAFETY: the landing is valid for the READ's length by the contract of
                // `post_read`, not revoked, and `part` more bytes fit behind those that are there.
                unsafe {
                    let target = slot.landing.wrapping_add(self.opened_bytes);
                    std::ptr::copy_nonoverlapping(waiting.as_ptr(), target, part);
                }
            }
            self.opened_bytes += part;
            self.inbox.consume(part);
            if self.inbox.waiting().is_empty() {
                return Ok(());
            }
        }
        let waiting = self.inbox.waiting();
        let Some(trailer) = waiting.first_chunk::<RESPONSE_BYTES>() else {
            return Err(Broken::Protocol);
        };
        ring.complete(trailer, queue)?;
        self.inbox.consume(RESPONSE_BYTES);
        self.opened_bytes = 0;
        Ok(())
    }
}
