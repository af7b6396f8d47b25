//! From posted verbs to requests of the device: pieces, places in the ring, messages, fences.

use std::sync::atomic::Ordering;

use cenote_verbs::{Access, Act, Local, Registered, Request, Span};

use super::super::slots::{Slot, Verb};
use super::{Answer, PIECE_BYTES, RdmaEndpoint, WORK_COUNT_MAX, Work};
use crate::frame::Frame;
use crate::{CompletionQueue, Status};

impl RdmaEndpoint {
    /// Makes requests of posted verbs, as many as there is room for, and gives them to the device.
    pub(super) fn issue(&mut self, queue: &mut CompletionQueue) {
        if !self.is_joined || self.dead.is_some() {
            return;
        }
        let before = self.works.len();
        while let Some(position) = self.slots.next_to_issue() {
            match self.issue_one(position) {
                Ok(true) => {}
                Ok(false) => break,
                Err(status) => {
                    if let Some(pair) = &mut self.pair {
                        pair.forget();
                    }
                    return self.fail(status, queue);
                }
            }
        }
        if self.works.len() > before {
            self.system_calls += 1;
            let signal_every = self.tuning.signal_every();
            let posted = self
                .pair
                .as_mut()
                .map_or(Ok(()), |pair| pair.post(signal_every));
            if let Err(error) = posted {
                tracing::warn!(%error, "give requests to an RDMA device");
                return self.fail(Status::Disconnected, queue);
            }
        }
        self.slots.finish(queue);
    }

    /// Issues what is left of one verb. False: there is no room for all of it now.
    fn issue_one(&mut self, position: u64) -> std::result::Result<bool, Status> {
        let slot = self.slots.get(position);
        let Some(memory) = slot.memory.clone() else {
            return self.issue_send(position);
        };
        if slot.issued_bytes == 0 && slot.works == 0 && memory.stale.load(Ordering::Relaxed) {
            slot.decide(Status::StaleGeneration);
            return Ok(true);
        }
        let start = memory.address + slot.offset;
        let key = memory.key;
        let len_bytes = slot.len_bytes;
        let act_at = |slot: &Slot, address| match slot.verb {
            Verb::Read { .. } => Act::Read { address, key },
            Verb::Write { .. } => Act::Write { address, key },
            Verb::CompareSwap { expected, new } => Act::CompareSwap {
                address,
                key,
                expected,
                new,
            },
            Verb::FetchAdd { addend } => Act::FetchAdd {
                address,
                key,
                addend,
            },
            Verb::Send { .. } => unreachable!("a SEND has no window"),
        };
        loop {
            let slot = self.slots.get(position);
            let offset = slot.issued_bytes;
            if offset == len_bytes {
                break;
            }
            let act = act_at(slot, start + offset as u64);
            let piece = (len_bytes - offset).min(PIECE_BYTES);
            let (source, answer) = match slot.verb {
                Verb::Write { source, .. } => (source.wrapping_add(offset), Answer::None),
                Verb::Read { .. } => (std::ptr::null(), Answer::Bytes),
                _ => (std::ptr::null(), Answer::Value),
            };
            if !self.request(position, act, source, piece, offset, answer) {
                return Ok(false);
            }
            self.slots.get(position).issued_bytes += piece;
        }
        self.issue_immediate(position)
    }

    /// The second request of a WRITE with immediate: a message that says where it went. What a
    /// device can carry with the WRITE itself has no room for that.
    fn issue_immediate(&mut self, position: u64) -> std::result::Result<bool, Status> {
        let slot = self.slots.get(position);
        let Verb::Write {
            immediate: Some(value),
            ..
        } = slot.verb
        else {
            slot.is_issued = true;
            return Ok(true);
        };
        let mut message = Vec::with_capacity(40);
        Frame::Immediate {
            id: slot.window.id,
            generation: slot.window.generation,
            offset: slot.offset,
            len_bytes: u32::try_from(slot.len_bytes).unwrap_or(u32::MAX),
            value,
        }
        .encode(&mut message);
        if !self.has_credit()? {
            self.slots.get(position).decide(Status::ReceiverNotReady);
            return Ok(true);
        }
        Ok(self.message(position, &message))
    }

    fn issue_send(&mut self, position: u64) -> std::result::Result<bool, Status> {
        if !self.has_credit()? {
            self.slots.get(position).decide(Status::ReceiverNotReady);
            return Ok(true);
        }
        let slot = self.slots.get(position);
        let Verb::Send { message } = &mut slot.verb else {
            return Err(Status::Protocol);
        };
        let message = std::mem::take(message);
        let mut bytes = Vec::with_capacity(1 + message.len());
        Frame::Message(&message).encode(&mut bytes);
        let is_issued = self.message(position, &bytes);
        // Kept for another try, after a refusal or for want of room.
        if let Verb::Send { message: kept } = &mut self.slots.get(position).verb {
            *kept = message;
        }
        Ok(is_issued)
    }

    /// Whether the host has a place for a message; looks for news of that.
    fn has_credit(&mut self) -> std::result::Result<bool, Status> {
        if self.credits == 0 {
            self.hear().map_err(|_| Status::Disconnected)?;
        }
        Ok(self.credits > 0)
    }

    /// Issues a message as the last request of its verb.
    fn message(&mut self, position: u64, bytes: &[u8]) -> bool {
        let is_issued = self.request(
            position,
            Act::Send,
            bytes.as_ptr(),
            bytes.len(),
            0,
            Answer::None,
        );
        if is_issued {
            self.credits -= 1;
            self.slots.get(position).is_issued = true;
        }
        is_issued
    }

    /// Adds one request, with its place in the ring. False: there is no room.
    fn request(
        &mut self,
        position: u64,
        act: Act,
        source: *const u8,
        len_bytes: usize,
        offset: usize,
        answer: Answer,
    ) -> bool {
        let Some(pair) = &mut self.pair else {
            return false;
        };
        if self.works.len() == WORK_COUNT_MAX {
            return false;
        }
        let is_inline = self.tuning.inline_writes
            && len_bytes <= pair.inline_bytes()
            && matches!(act, Act::Write { .. });
        let mut registered = None;
        let (at, end, local) = if is_inline {
            // SAFETY: the caller's bytes, which nobody writes until the verb completes.
            let bytes = unsafe { std::slice::from_raw_parts(source, len_bytes) };
            (0, self.ring.end(), Local::Inline(bytes))
        } else {
            let Some(range) = self.ring.take(len_bytes) else {
                return false;
            };
            let start = self.pages.memory().at(range.at, len_bytes);
            if !source.is_null() {
                // SAFETY: the range is ours until it is released, `source` the caller's until the
                // verb completes.
                unsafe { std::ptr::copy_nonoverlapping(source, start, len_bytes) };
            }
            if !self.tuning.registered_once {
                let span = Span::new(self.pages.memory(), range.at, len_bytes);
                registered = Registered::new(&self.device, span, Access::NONE)
                    .inspect_err(|error| tracing::warn!(%error, "register a request's bytes"))
                    .ok();
            }
            let part = match &registered {
                Some(own) => own.part(0, len_bytes),
                None => self.pages.part(range.at, len_bytes),
            };
            (range.at, range.end, Local::Part(part))
        };
        let fence = self.slots.needs_fence(position);
        pair.add(&Request {
            id: self.sequence,
            act,
            local,
            fence,
        });
        self.sequence += 1;
        self.slots.get(position).works += 1;
        self.works.push_back(Work {
            position,
            offset,
            at,
            len_bytes,
            end,
            answer,
            _registered: registered,
        });
        true
    }
}
