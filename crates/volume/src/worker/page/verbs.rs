//! Posting the verbs of an operation, and what their completions say.

use cenote_fabric::{Completion, Status, Token};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::State;
use super::epoch::stripe_of;
use crate::directory::Session;
use crate::worker::Worker;

/// The least that a translation of a host's memory covers.
const MEMORY_PAGE_BYTES: u64 = 4096;

/// What a verb moves.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Verb {
    Read,
    Write,
}

impl Worker {
    /// Asks early for what the copies of `splits` will wait for, so that their misses overlap. A
    /// whole page is a run that the processor sees by itself.
    pub(super) fn prefetch(&self, op: u16, splits: u64, verb: Verb) {
        let (k, split_bytes) = (self.cut(op).k(), self.cut(op).split_bytes());
        let op = &self.ops[usize::from(op)];
        let Some(stripe) = stripe_of(&self.views, op).filter(|_| k > 1) else {
            return;
        };
        let offset = u64::from(op.index) * split_bytes as u64;
        // Stores that go around the caches miss a translation and nothing else; the pages before this one
        // in its request needed the same.
        let follows = op.buffer_offset > 0 && !offset.is_multiple_of(MEMORY_PAGE_BYTES);
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

    /// Posts a verb to each of `splits`; where the endpoint is gone it fails at once.
    pub(super) fn post(&mut self, op: u16, splits: u64, verb: Verb) {
        let at = usize::from(op);
        let (page, parities) = (self.page_buffer(op), self.parities(op));
        let (k, split_bytes) = (self.cut(op).k(), self.cut(op).split_bytes());
        let offset = u64::from(self.ops[at].index) * split_bytes as u64;
        let primary = self.ops[at].primary;
        let stripe = stripe_of(&self.views, &self.ops[at]).expect("posted only in a mapped extent");
        let member = |split: usize| {
            stripe.members[split]
                .as_ref()
                .expect("posted only to present members")
        };
        let mut ended = 0;
        for split in bits(splits) {
            let member = member(split);
            let token = token(op, split);
            let local = match stripe.split_of(split) {
                // Copies that are read land apart, or one would come over the other.
                copy if k == 1 && verb == Verb::Read => match spare_of(copy, primary) {
                    None => page,
                    Some(spare) => parities.wrapping_add(spare * split_bytes),
                },
                _ if k == 1 => page,
                data if data < k => page.wrapping_add(data * split_bytes),
                parity => parities.wrapping_add((parity - k) * split_bytes),
            };
            let Some((endpoint, at_once)) = self.endpoints.get(member.session) else {
                self.queue.push(Completion {
                    token,
                    status: Status::Disconnected,
                    value: 0,
                });
                continue;
            };
            let queue = if at_once {
                &mut self.inline
            } else {
                &mut self.queue
            };
            // SAFETY: `local` is one split of the request's buffer or of this operation's scratch
            // block. Both live, and sources stay unchanged, until the operation ends: after the
            // completion of every verb it posted, or of a read when the landings of the others
            // are revoked.
            let posted = unsafe {
                match verb {
                    Verb::Read => {
                        endpoint.post_read(&member.window, offset, local, split_bytes, token, queue)
                    }
                    Verb::Write => endpoint.post_write(
                        &member.window,
                        offset,
                        local,
                        split_bytes,
                        None,
                        token,
                        queue,
                    ),
                }
            };
            posted.expect("an endpoint's queue holds one verb per operation");
            if self.inline.pop_ok() {
                ended |= 1 << split;
            } else if let Some(failed) = self.inline.pop() {
                self.queue.push(failed);
            }
        }
        let state = &mut self.ops[at];
        state.acked |= ended;
        state.pending &= !ended;
        if ended != 0 && state.pending == 0 {
            self.ready.push(op);
        }
    }

    /// Takes in the end of one verb.
    pub(in crate::worker) fn complete(&mut self, completion: Completion) {
        let op = u16::try_from(completion.token >> 8).expect("an operation's index went in");
        let at = usize::from(op);
        let split = usize::try_from(completion.token & 0xff).expect("a byte");
        self.ops[at].pending &= !(1 << split);
        let is_late = self.ops[at].revoked;
        if is_late {
            self.settle_late(op, split);
        }
        if completion.status != Status::Ok && !is_injected(InjectedFault::ErrorAsAck) {
            self.ops[at].failed = true;
            self.mark_failed(op, split, completion.status);
        } else if !is_late {
            self.ops[at].acked |= 1 << split;
        }
        let is_last = self.ops[at].pending == 0;
        if self.ops[at].state == State::Lingering {
            if is_last {
                self.forget(op);
            }
        } else if is_last || self.is_served(op) {
            self.step(op);
        } else if self.is_acknowledgeable(op) {
            self.acknowledge_early(op);
        } else if self.ops[at].is_told {
            self.publish_landed(op);
        }
    }

    /// Marks the member failed in the directory, before anything is posted around it.
    fn mark_failed(&mut self, op: u16, split: usize, status: Status) {
        let extent = self.ops[usize::from(op)].extent;
        let stripe = stripe_of(&self.views, &self.ops[usize::from(op)]);
        let Some(member) = stripe.and_then(|stripe| stripe.members[split].as_ref()) else {
            return;
        };
        let (session, generation) = (member.session, member.window.descriptor.generation);
        match status {
            Status::StaleGeneration | Status::Revoked => {
                self.core
                    .directory
                    .fail_window(extent, split, session, generation);
                self.core.wake.wake();
            }
            _ => self.fail_session(session),
        }
    }

    /// Drops a whole session from the directory and tells the control thread.
    pub(in crate::worker) fn fail_session(&mut self, session: Session) {
        self.core.directory.fail_session(session);
        self.core.wake.wake();
    }
}

/// Names a verb of an operation.
pub(super) fn token(op: u16, split: usize) -> Token {
    u64::from(op) << 8 | split as u64
}

/// Where among the spare pages a copy lands that does not land in the page itself.
pub(super) fn spare_of(copy: usize, primary: u8) -> Option<usize> {
    let primary = usize::from(primary);
    match copy {
        _ if copy == primary => None,
        0 => Some(primary - 1),
        _ => Some(copy - 1),
    }
}

/// The set bits of `mask`, lowest first.
pub(super) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let bit = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            bit
        })
    })
}
