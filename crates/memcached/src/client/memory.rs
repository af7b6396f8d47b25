//! Memory that one client holds: its buffer, as it grows and shrinks, and what it has to read.

use std::mem;

use cenote_kv::protocol::Limits;

use super::{Client, READ_BYTES};
use crate::backend::Backend;
use crate::buffers::{Buffers, FREE_BYTES, LEAST_BYTES, Part, Shares};
use crate::core::Core;
use crate::turns::Waiter;

impl Client {
    /// Gives back what is not needed of the buffer.
    pub(super) fn settle_input<B: Backend>(&mut self, core: &mut Core<B>) {
        if self.input.is_empty() {
            core.give_buffer(mem::take(&mut self.input), READ_BYTES);
        } else if self.input.len() <= FREE_BYTES && self.input.capacity() > FREE_BYTES {
            let mut short = Vec::with_capacity(FREE_BYTES);
            short.extend_from_slice(&self.input);
            core.give_buffer(mem::replace(&mut self.input, short), READ_BYTES);
        }
        self.count_input(core, self.input.capacity());
    }

    /// Makes room behind what has been read, as far as there is memory: a large value's as it comes, not as it
    /// is announced. What to wait for otherwise.
    pub(super) fn make_room<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        input: &mut Vec<u8>,
    ) -> Option<(Part, usize)> {
        let received = input.len();
        let wanted = self.next_capacity(received, &core.shared.settings.limits);
        // Enough for some more turns, if not for all of it.
        if input.capacity() >= wanted || received > FREE_BYTES && input.capacity() > received {
            return None;
        }
        let part = core.clients.part_of(self.needed.max(received));
        let own = self.held.of(part);
        let is_line = self.needed <= FREE_BYTES && received < FREE_BYTES;
        if is_line && core.clients.is_scarce(part) {
            input.reserve_exact(FREE_BYTES - received);
            return None;
        }
        let wanted = wanted.max(received + 1);
        if !core.clients.may_receive(part, self.waiter(wanted), own) {
            if is_line {
                input.reserve_exact(FREE_BYTES - received);
                return None;
            }
            return Some((part, wanted));
        }
        if input.capacity() == 0 {
            *input = core.take_buffer(READ_BYTES);
        }
        if input.capacity() < wanted {
            input.reserve_exact(wanted - received);
        }
        self.count_input(core, input.capacity());
        None
    }

    /// Bytes that its buffer is to have next where `received` fill it.
    fn next_capacity(&self, received: usize, limits: &Limits) -> usize {
        // Of a line without an end it is known only that one more byte is needed.
        let is_line = self.needed <= received + 1;
        let most = if is_line {
            limits.multiget_bytes_max + 1
        } else {
            self.needed
        };
        most.min(2 * received).max(READ_BYTES)
    }

    /// Itself, where it wants to hold so many bytes.
    pub(crate) fn waiter(&self, wanted: usize) -> Waiter {
        Waiter {
            source: self.source,
            place: self.place,
            wanted,
        }
    }

    /// Counts the buffer of its request.
    fn count_input<B: Backend>(&mut self, core: &mut Core<B>, capacity: usize) {
        let part = core.clients.part_of(self.needed.max(self.input.len()));
        let bytes = if capacity > FREE_BYTES { capacity } else { 0 };
        for one in [Part::Small, Part::Large] {
            self.count(core, one, if one == part { bytes } else { 0 });
        }
    }

    /// Counts what it has to read.
    pub(crate) fn count_answers<B: Backend>(&mut self, core: &mut Core<B>) {
        self.count(core, Part::Answers, self.session.bytes());
        self.end_guest(core);
    }

    /// It is not the guest any more if it has nothing to read, or waits for what cannot be served:
    /// that may be long, whoever the guest is meanwhile.
    pub(crate) fn end_guest<B: Backend>(&self, core: &mut Core<B>) {
        if self.session.replies.bytes() == 0 || self.session.waits_without_memory() {
            core.clients.end_answers(self.place);
        }
    }

    fn count<B: Backend>(&mut self, core: &mut Core<B>, part: Part, bytes: usize) {
        let from = self.held.of(part);
        core.clients.change(part, from, bytes);
        if part == Part::Answers {
            core.clients.change_source(self.source, from, bytes);
        }
        self.held.set(part, bytes);
    }

    /// It is gone: what it held is free.
    pub(crate) fn release<B: Backend>(&mut self, core: &mut Core<B>) {
        for part in Part::ALL {
            self.count(core, part, 0);
        }
        core.clients.leave(self.place);
    }

    /// Once a second: whether it holds what others wait for, and was too slow for longer than `patience`.
    pub(crate) fn is_too_slow(
        &mut self,
        buffers: &Buffers,
        shares: &Shares,
        patience: u32,
        now: u64,
    ) -> bool {
        let keeps = |part| {
            let is_wanted = self.held.of(part) > 0 && buffers.is_waited_for(part);
            is_wanted && shares.is_even(part, self.source)
        };
        let is_in_the_way = |part| buffers.is_in_the_way(part, self.place);
        let has_place = is_in_the_way(Part::Small) || is_in_the_way(Part::Large);
        let is_guest = is_in_the_way(Part::Answers);
        let keeps_answers = keeps(Part::Answers) || is_guest;
        let keeps_request = keeps(Part::Small) || keeps(Part::Large) || has_place;
        let keeps_request = keeps_request && !self.is_waiting;
        let does_not_go_on =
            !self.input.is_empty() && !self.is_readable && !self.session.is_held_up();
        let has_moved = mem::take(&mut self.moved) >= LEAST_BYTES;
        // Who does not read its replies is not read from, and its request does not go on either. What it sends
        // meanwhile is no reading.
        let is_slow_reader = self.does_not_read()
            && (keeps_answers || keeps_request)
            && self.take_taken(now) < LEAST_BYTES as u64;
        let is_slow_sender = does_not_go_on && keeps_request && !has_moved;
        self.slow_seconds = match is_slow_reader || is_slow_sender {
            true => self.slow_seconds + 1,
            false => 0,
        };
        // The guest may have come to be that a moment ago.
        let patience = if is_guest { patience.min(1) } else { patience };
        self.slow_seconds > if has_place { 0 } else { patience }
    }
}
