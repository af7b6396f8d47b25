//! The stream of an endpoint without records: requests leave from where they lie, and responses are
//! received straight into the landings.

use std::io;

use super::Broken;
use super::ring::{Ring, index};
use crate::tcp::gather::Gather;
use crate::tcp::outbox::{Sent, none_if_full};
use crate::tcp::wire::{REQUEST_BYTES, RESPONSE_BYTES, Verb};
use crate::{CompletionQueue, QUEUE_DEPTH};

/// Where the bytes of a revoked landing go.
const SCRATCH_BYTES: usize = 16 * 1024;

/// See the module.
pub(super) struct Plain {
    trailers: Box<[[u8; RESPONSE_BYTES]]>,
    scratch: Box<[u8; SCRATCH_BYTES]>,
    list: Gather,
    /// Bytes of slot `sending` that are sent.
    sent_bytes: usize,
    /// Bytes of slot `first`'s response that have arrived.
    received_bytes: usize,
}

impl Plain {
    pub(super) fn new() -> Self {
        Self {
            trailers: vec![[0; RESPONSE_BYTES]; QUEUE_DEPTH].into(),
            scratch: Box::new([0; SCRATCH_BYTES]),
            list: Gather::new(),
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    /// Lists what one call sends of the verbs that wait: headers and messages of ours, and sources,
    /// which are valid by the contract of `post_write`.
    pub(super) fn list_requests(&mut self, ring: &Ring) -> &mut Gather {
        self.list.clear();
        let mut done = self.sent_bytes;
        for position in ring.sending..ring.next {
            if self.list.is_short_of(2) {
                break;
            }
            let slot = ring.slot(position);
            if slot.request.verb == Verb::Send {
                let rest = &slot.message[done..];
                self.list.push(rest.as_ptr(), rest.len());
                done = 0;
                continue;
            }
            let header = ring.header(position);
            let skipped = done.min(REQUEST_BYTES);
            self.list
                .push(header[skipped..].as_ptr(), REQUEST_BYTES - skipped);
            done -= skipped;
            self.list
                .push(slot.source.wrapping_add(done), slot.payload_bytes() - done);
            done = 0;
        }
        &mut self.list
    }

    /// Notes what the socket took of the list.
    ///
    /// # Errors
    /// As `sendmsg(2)`, but that a full socket is none.
    pub(super) fn take_sent(
        &mut self,
        ring: &mut Ring,
        sent: io::Result<usize>,
    ) -> io::Result<Sent> {
        let sent = none_if_full(sent)?;
        self.advance_sent(ring, sent);
        Ok(if sent < self.list.bytes() {
            Sent::Part { any: sent > 0 }
        } else {
            Sent::All
        })
    }

    fn advance_sent(&mut self, ring: &mut Ring, bytes: usize) {
        self.sent_bytes += bytes;
        while ring.sending != ring.next {
            let whole = REQUEST_BYTES + ring.slot(ring.sending).payload_bytes();
            if self.sent_bytes < whole {
                break;
            }
            self.sent_bytes -= whole;
            ring.sending += 1;
        }
    }

    /// Whether the last call could have received more than `bytes`.
    pub(super) fn asked_for_more(&self, bytes: usize) -> bool {
        bytes < self.list.bytes()
    }

    /// Lists where what is owed goes: trailers and scratch of ours, and landings, which are valid
    /// by the contract of `post_read`.
    pub(super) fn list_responses(&mut self, ring: &Ring) -> &mut Gather {
        self.list.clear();
        let mut done = self.received_bytes;
        for position in ring.first..ring.sending {
            if self.list.is_short_of(2) {
                break;
            }
            let slot = ring.slot(position);
            let answer = slot.answer_bytes();
            let missing = answer.saturating_sub(done);
            if slot.landing.is_null() {
                self.list
                    .push(self.scratch.as_mut_ptr(), missing.min(SCRATCH_BYTES));
                if missing > SCRATCH_BYTES {
                    break;
                }
            } else {
                self.list
                    .push(slot.landing.wrapping_add(done.min(answer)), missing);
            }
            let trailer_done = done.saturating_sub(answer);
            let trailer = &mut self.trailers[index(position)][trailer_done..];
            self.list.push(trailer.as_mut_ptr(), trailer.len());
            done = 0;
        }
        &mut self.list
    }

    /// Completes what `bytes` more received bytes complete.
    pub(super) fn advance_received(
        &mut self,
        bytes: usize,
        ring: &mut Ring,
        queue: &mut CompletionQueue,
    ) -> Result<(), Broken> {
        self.received_bytes += bytes;
        while ring.is_owed() {
            let whole = ring.slot(ring.first).answer_bytes() + RESPONSE_BYTES;
            if self.received_bytes < whole {
                break;
            }
            ring.complete(&self.trailers[index(ring.first)], queue)?;
            self.received_bytes -= whole;
        }
        Ok(())
    }
}
