//! The verbs of one endpoint that are outstanding, in a ring of fixed size.
//!
//! Slots, by position: `first..sending` are owed a response, `sending..next` wait to be sent, all of
//! `first..next` are outstanding.

use super::Broken;
use crate::tcp::wire::{REQUEST_BYTES, RESPONSE_BYTES, Request, Response, Verb};
use crate::{Completion, CompletionQueue, QUEUE_DEPTH, Status, Token};

/// One outstanding verb.
pub(super) struct Slot {
    pub(super) request: Request,
    pub(super) token: Token,
    /// WRITE: the caller's bytes. SEND uses `message`.
    pub(super) source: *const u8,
    /// READ: where the bytes go; null once it is revoked.
    pub(super) landing: *mut u8,
    /// SEND: header and a copy, so that the caller's slice is free at once and both are one
    /// range to send. Keeps its capacity.
    pub(super) message: Vec<u8>,
}

/// See the module.
pub(super) struct Ring {
    slots: Box<[Slot]>,
    /// Encoded headers, apart from the slots so that neighbours are one range to send.
    headers: Box<[[u8; REQUEST_BYTES]]>,
    pub(super) first: u64,
    pub(super) sending: u64,
    pub(super) next: u64,
}

impl Ring {
    pub(super) fn new() -> Self {
        let slot = || Slot {
            request: Request::new(Verb::Read, 0),
            token: 0,
            source: std::ptr::null(),
            landing: std::ptr::null_mut(),
            message: Vec::new(),
        };
        Self {
            slots: (0..QUEUE_DEPTH).map(|_| slot()).collect(),
            headers: vec![[0; REQUEST_BYTES]; QUEUE_DEPTH].into(),
            first: 0,
            sending: 0,
            next: 0,
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        usize::try_from(self.next - self.first).expect("at most QUEUE_DEPTH")
    }

    /// Whether the peer owes a response.
    pub(super) fn is_owed(&self) -> bool {
        self.first != self.sending
    }

    /// Takes a verb; the caller has looked that there is room, and fills what the header does not hold.
    pub(super) fn push(&mut self, request: Request, token: Token) -> &mut Slot {
        let index = index(self.next);
        self.headers[index] = request.encode();
        self.next += 1;
        let slot = &mut self.slots[index];
        slot.request = request;
        slot.token = token;
        slot
    }

    pub(super) fn slot(&self, position: u64) -> &Slot {
        &self.slots[index(position)]
    }

    pub(super) fn header(&self, position: u64) -> &[u8; REQUEST_BYTES] {
        &self.headers[index(position)]
    }

    /// Completes the oldest verb with the response that has come, if it is one to it.
    pub(super) fn complete(
        &mut self,
        trailer: &[u8; RESPONSE_BYTES],
        queue: &mut CompletionQueue,
    ) -> Result<(), Broken> {
        let slot = &mut self.slots[index(self.first)];
        match Response::decode(trailer) {
            Ok(response) if response.len_bytes == slot.request.answer_bytes() => {
                let (token, status, value) = (slot.token, response.status, response.value);
                queue.push(Completion {
                    token,
                    status,
                    value,
                });
                slot.landing = std::ptr::null_mut();
                self.first += 1;
                Ok(())
            }
            Ok(_) | Err(_) => Err(Broken::Protocol),
        }
    }

    /// Completes all verbs with `status`.
    pub(super) fn fail(&mut self, status: Status, queue: &mut CompletionQueue) {
        for position in self.first..self.next {
            let token = self.slot(position).token;
            queue.push(Completion {
                token,
                status,
                value: 0,
            });
        }
        self.first = self.next;
        self.sending = self.next;
    }

    /// Has nothing more land for `token`.
    pub(super) fn revoke_landing(&mut self, token: Token) {
        for position in self.first..self.next {
            let slot = &mut self.slots[index(position)];
            if slot.token == token {
                slot.landing = std::ptr::null_mut();
            }
        }
    }
}

impl Slot {
    /// Bytes behind the header.
    pub(super) fn payload_bytes(&self) -> usize {
        self.request.payload_bytes() as usize
    }

    /// Bytes before the response's trailer.
    pub(super) fn answer_bytes(&self) -> usize {
        self.request.answer_bytes() as usize
    }
}

#[inline]
pub(super) fn index(position: u64) -> usize {
    const { assert!(QUEUE_DEPTH.is_power_of_two()) };
    (position % QUEUE_DEPTH as u64) as usize
}
