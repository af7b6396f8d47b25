//! The stream of an endpoint in records: requests are copied, protected and sent; a response's bytes
//! are copied to their landing once the tag of their record was checked.

use super::Broken;
use super::ring::Ring;
use crate::CompletionQueue;
use crate::record::{RECORD_BODY_BYTES_MAX, RecordOpener, RecordSealer};
use crate::tcp::gather::Gather;
use crate::tcp::inbox::Inbox;
use crate::tcp::outbox::Outbox;
use crate::tcp::wire::{REQUEST_BYTES, RESPONSE_BYTES, Verb};

/// Records that wait for the socket. Two: one is filled while the other is on its way.
const OUTBOX_RECORDS: usize = 2;

/// Room for what was received: a burst of 16 pages, and a record whole.
const INBOX_BYTES: usize = 68 * 1024;

/// See the module.
pub(super) struct Sealed {
    inbox: Inbox,
    pub(super) outbox: Outbox,
    list: Gather,
    /// Room that was listed last.
    room_bytes: usize,
    /// Bytes of slot `sending` that are in the outbox.
    boxed_bytes: usize,
    /// Bytes of slot `first`'s response that have been opened.
    opened_bytes: usize,
}

impl Sealed {
    pub(super) fn new((sealer, opener): (RecordSealer, RecordOpener)) -> Self {
        Self {
            inbox: Inbox::new(INBOX_BYTES, Some(opener)),
            outbox: Outbox::new(Some(sealer), OUTBOX_RECORDS),
            list: Gather::new(),
            room_bytes: 0,
            boxed_bytes: 0,
            opened_bytes: 0,
        }
    }

    /// Whether protected bytes wait for the socket.
    pub(super) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Protects what fits of the verbs that wait, and lists what one call sends.
    pub(super) fn list_requests(&mut self, ring: &mut Ring) -> &mut Gather {
        self.fill_outbox(ring);
        self.outbox.list()
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

    /// Lists the room of our own buffer for what is owed.
    pub(super) fn list_responses(&mut self) -> &mut Gather {
        self.inbox.make_room();
        self.list.clear();
        self.room_bytes = self.inbox.list_room(&mut self.list);
        &mut self.list
    }

    /// Notes that `bytes` came; whether the socket may hold more.
    pub(super) fn take_received(&mut self, bytes: usize) -> bool {
        self.inbox.add(bytes);
        bytes == self.room_bytes
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
