//! How the verbs of operations are posted, and their ends taken in.

use cenote_fabric::{Completion, Status};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::Engine;
use crate::directory::Session;
use crate::worker::verbs::{ENCODING, Verb, bits, token};

/// The least that a translation of a host's memory covers.
const MEMORY_PAGE_BYTES: u64 = 4096;

impl Engine {
    /// Posts reads of these members' splits.
    pub(super) fn read(&mut self, op: u16, splits: u64) {
        self.adopt_arrivals();
        self.prefetch(op, splits, Verb::Read);
        self.post(op, splits, Verb::Read);
    }

    /// Posts the data splits among `members` and leaves the parities to be encoded meanwhile.
    pub(super) fn write(&mut self, op: u16, members: u64) {
        self.adopt_arrivals();
        let k = self.ops[op].page.cut().k();
        let parities = members >> k << k;
        let encodes = k > 1 && parities != 0;
        self.prefetch(op, members, Verb::Write);
        let page = &mut self.ops[op].page;
        if encodes && self.path.switches.async_encode && !self.path.completes_at_once() {
            page.verbs.pending = members | ENCODING;
            self.post(op, members & !parities, Verb::Write);
            return self.agenda.encode.push(op);
        }
        // Nothing flies meanwhile; but what was asked for early arrives.
        if encodes {
            page.encode(&self.path);
        }
        page.verbs.pending = members;
        self.post(op, members, Verb::Write);
    }

    /// Encodes the page's parities, whose data splits are on their way, and posts them.
    pub(super) fn post_parities(&mut self, op: u16) {
        let page = &mut self.ops[op].page;
        page.encode(&self.path);
        // Members may have failed meanwhile; their posts fail and are handled like any other.
        let unposted = page.verbs.take_parities(page.cut().k());
        self.post(op, unposted, Verb::Write);
    }

    /// Asks early for what the copies of `splits` will wait for, so that their misses overlap. A
    /// whole page is a run that the processor sees by itself.
    fn prefetch(&self, op: u16, splits: u64, verb: Verb) {
        let page = &self.ops[op].page;
        let (k, split_bytes) = (page.cut().k(), page.cut().split_bytes());
        let Some(stripe) = page.stripe(&self.path.views).filter(|_| k > 1) else {
            return;
        };
        let offset = u64::from(page.place.index) * split_bytes as u64;
        // Stores that go around the caches miss a translation and nothing else; the pages before this one
        // in its request needed the same.
        let is_later = page.memory.chunk.buffer_offset > 0;
        let follows = is_later && !offset.is_multiple_of(MEMORY_PAGE_BYTES);
        if verb == Verb::Write && follows {
            return;
        }
        for member in bits(splits).filter_map(|split| stripe.members[split].as_ref()) {
            let Some(endpoint) = self.endpoints.look(member.session) else {
                continue;
            };
            match verb {
                Verb::Read => endpoint.prefetch_read(&member.window, offset, split_bytes),
                Verb::Write => endpoint.prefetch_write(&member.window, offset, split_bytes),
            }
        }
    }

    /// Posts a verb to each of `members`; where the endpoint is gone it fails at once.
    fn post(&mut self, op: u16, members: u64, verb: Verb) {
        let page = &self.ops[op].page;
        let split_bytes = page.cut().split_bytes();
        let place_of = page.splits(&self.path).places(verb);
        let offset = u64::from(page.place.index) * split_bytes as u64;
        let stripe = page
            .stripe(&self.path.views)
            .expect("posted only in a mapped extent");
        let mut ended = 0;
        for index in bits(members) {
            let member = stripe.members[index]
                .as_ref()
                .expect("posted only to present members");
            let token = token(op, index);
            let Some((endpoint, at_once)) = self.endpoints.get(member.session) else {
                self.completions.queue.push(Completion {
                    token,
                    status: Status::Disconnected,
                    value: 0,
                });
                continue;
            };
            let queue = if at_once {
                &mut self.completions.inline
            } else {
                &mut self.completions.queue
            };
            let (window, local) = (&member.window, place_of(stripe.split_of(index)));
            // SAFETY: where a split lies is part of the request's buffer or of this operation's scratch
            // block. Both live, and sources stay unchanged, until the operation ends: after the
            // completion of every verb it posted, or of a read when the landings of the others
            // are revoked.
            let posted = unsafe {
                match verb {
                    Verb::Read => {
                        endpoint.post_read(window, offset, local, split_bytes, token, queue)
                    }
                    Verb::Write => {
                        endpoint.post_write(window, offset, local, split_bytes, None, token, queue)
                    }
                }
            };
            posted.expect("an endpoint's queue holds one verb per operation");
            if self.completions.inline.pop_ok() {
                ended |= 1 << index;
            } else if let Some(failed) = self.completions.inline.pop() {
                self.completions.queue.push(failed);
            }
        }
        let verbs = &mut self.ops[op].page.verbs;
        verbs.note_at_once(ended);
        if ended != 0 && verbs.is_over() {
            self.agenda.ready.push(op);
        }
    }

    /// Takes in the end of one verb.
    pub(super) fn complete(&mut self, completion: Completion) {
        let op = u16::try_from(completion.token >> 8).expect("an operation's index went in");
        let member = usize::try_from(completion.token & 0xff).expect("a byte");
        if self.ops[op].page.verbs.revoked {
            self.settle_late(op, member);
        }
        let is_ok = completion.status == Status::Ok || is_injected(InjectedFault::ErrorAsAck);
        self.ops[op].page.verbs.note_end(member, is_ok);
        if !is_ok {
            self.mark_failed(op, member, completion.status);
        }
        let verbs = self.ops[op].page.verbs;
        if self.ops[op].is_lingering() {
            if verbs.is_over() {
                self.ops[op].forget(&mut self.path);
                self.ops.give_back(op);
            }
        } else if verbs.is_over() || verbs.is_served() {
            self.step(op);
        } else if self.ops[op].on_verb(&mut self.path) {
            self.tell(op, Ok(()));
        }
    }

    /// Has nothing of the verbs that are still out land any more; nobody waits for them.
    pub(super) fn revoke_late(&mut self, op: u16) {
        let page = &mut self.ops[op].page;
        let pending = page.verbs.revoke();
        if pending == 0 {
            return;
        }
        let stripe = page.stripe(&self.path.views);
        let stripe = stripe.expect("a read works in a mapped extent");
        for index in bits(pending) {
            if let Some(member) = &stripe.members[index] {
                self.path.late.add(member.session);
                if !is_injected(InjectedFault::LateSplitLands) {
                    self.endpoints.revoke(member.session, token(op, index));
                }
            }
        }
    }

    /// An answer has come that nobody waits for.
    fn settle_late(&mut self, op: u16, member: usize) {
        let stripe = self.ops[op].page.stripe(&self.path.views);
        if let Some(member) = stripe.and_then(|stripe| stripe.members[member].as_ref()) {
            self.path.late.remove(member.session);
        }
    }

    /// Marks the member failed in the directory, before anything is posted around it.
    fn mark_failed(&mut self, op: u16, member: usize, status: Status) {
        let page = &self.ops[op].page;
        let stripe = page.stripe(&self.path.views);
        let Some(failed) = stripe.and_then(|stripe| stripe.members[member].as_ref()) else {
            return;
        };
        let (session, generation) = (failed.session, failed.window.descriptor.generation);
        match status {
            Status::StaleGeneration | Status::Revoked => {
                let (extent, core) = (page.place.extent, &self.path.core);
                core.directory
                    .fail_window(extent, member, session, generation);
                core.wake.wake();
            }
            _ => self.fail_session(session),
        }
    }

    /// Drops a whole session from the directory and tells the control thread.
    pub(super) fn fail_session(&mut self, session: Session) {
        self.path.core.directory.fail_session(session);
        self.path.core.wake.wake();
    }
}
