//! The verbs of an operation: which are out, what came of them, and how they are posted.
//!
//! [`Verbs`] is bit sets over the members of its stripe. Whoever posts says for which it waits; each completion is
//! noted, and tells whether the operation goes on.

use cenote_fabric::{Completion, Status, Token};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::State;
use super::stripe_of;
use crate::directory::Session;
use crate::worker::Worker;

/// The least that a translation of a host's memory covers.
const MEMORY_PAGE_BYTES: u64 = 4096;

/// Bit of [`Verbs::pending`] that stands for "the parities are yet to be posted".
pub(super) const ENCODING: u64 = 1 << 63;

/// Verbs that are out, and that have ended.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Verbs {
    /// Members whose verb is out; [`ENCODING`] while parities are not posted.
    pub pending: u64,
    /// Members whose verb succeeded; of a read, whose splits are there.
    pub acked: u64,
    /// Whether one failed.
    pub failed: bool,
    /// Splits that a read needs.
    pub wants: u32,
    /// Nothing lands any more of what is out.
    pub revoked: bool,
    /// Of copies that are read, the one that lands in the page.
    pub primary: u8,
}

impl Verbs {
    /// Nothing has been posted to anybody: what ended before does not count.
    pub fn reset(&mut self) {
        (self.acked, self.failed) = (0, false);
    }

    /// Reads of these members go out, of which so many are needed.
    pub fn begin_read(&mut self, chosen: u64, wants: u32) {
        self.reset();
        self.pending = chosen;
        self.wants = chosen.count_ones().min(wants);
    }

    /// A verb that completed as it was posted.
    pub fn note_at_once(&mut self, ended: u64) {
        self.acked |= ended;
        self.pending &= !ended;
    }

    /// A verb has ended; of one that nobody waits for it does not count how.
    pub fn note_end(&mut self, member: usize, is_ok: bool) {
        let bit = 1 << member;
        self.pending &= !bit;
        if !is_ok {
            self.failed = true;
        } else if !self.revoked {
            self.acked |= bit;
        }
    }

    /// Whether no verb is out.
    pub fn is_over(&self) -> bool {
        self.pending == 0
    }

    /// Whether a read has what it needs, and nobody has gone on with it.
    pub fn is_served(&self) -> bool {
        !self.revoked && self.acked.count_ones() >= self.wants
    }

    /// Whether too few splits came: some host failed, and nothing is out any more.
    pub fn is_short(&self) -> bool {
        self.acked.count_ones() < self.wants
    }

    /// Has what is out not count any more: which members that is, the first time.
    pub fn revoke(&mut self) -> u64 {
        if self.revoked || self.pending == 0 {
            return 0;
        }
        self.revoked = true;
        self.pending
    }

    /// Parities are posted from here on: those that are not.
    pub fn take_parities(&mut self, k: usize) -> u64 {
        self.pending &= !ENCODING;
        self.pending >> k << k
    }

    /// Members whose verb is out.
    pub fn out(&self) -> u64 {
        self.pending & !ENCODING
    }
}

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
        let offset = u64::from(op.place.index) * split_bytes as u64;
        // Stores that go around the caches miss a translation and nothing else; the pages before this one
        // in its request needed the same.
        let follows = op.chunk.buffer_offset > 0 && !offset.is_multiple_of(MEMORY_PAGE_BYTES);
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
        let offset = u64::from(self.ops[at].place.index) * split_bytes as u64;
        let primary = self.ops[at].verbs.primary;
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
            if self.completions.inline.pop_ok() {
                ended |= 1 << split;
            } else if let Some(failed) = self.completions.inline.pop() {
                self.completions.queue.push(failed);
            }
        }
        let state = &mut self.ops[at];
        state.verbs.note_at_once(ended);
        if ended != 0 && state.verbs.is_over() {
            self.agenda.ready.push(op);
        }
    }

    /// Takes in the end of one verb.
    pub(in crate::worker) fn complete(&mut self, completion: Completion) {
        let op = u16::try_from(completion.token >> 8).expect("an operation's index went in");
        let at = usize::from(op);
        let split = usize::try_from(completion.token & 0xff).expect("a byte");
        if self.ops[at].verbs.revoked {
            self.settle_late(op, split);
        }
        let is_ok = completion.status == Status::Ok || is_injected(InjectedFault::ErrorAsAck);
        self.ops[at].verbs.note_end(split, is_ok);
        if !is_ok {
            self.mark_failed(op, split, completion.status);
        }
        let is_last = self.ops[at].verbs.is_over();
        if self.ops[at].state == State::Lingering {
            if is_last {
                self.forget(op);
            }
        } else if is_last || self.is_served(op) {
            self.step(op);
        } else if self.is_acknowledgeable(op) {
            self.acknowledge_early(op);
        } else if self.ops[at].early.is_told {
            self.publish_landed(op);
        }
    }

    /// Marks the member failed in the directory, before anything is posted around it.
    fn mark_failed(&mut self, op: u16, split: usize, status: Status) {
        let extent = self.ops[usize::from(op)].place.extent;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_served_by_any_so_many_of_those_it_asked() {
        let mut verbs = Verbs::default();
        verbs.begin_read(0b1011, 2);
        verbs.note_end(3, true);
        assert!(!verbs.is_served() && !verbs.is_over());
        verbs.note_end(0, true);
        assert!(verbs.is_served() && !verbs.is_short() && !verbs.is_over());
        assert_eq!(verbs.revoke(), 0b0010);
        assert_eq!(verbs.revoke(), 0, "once");
        assert!(!verbs.is_served(), "somebody has gone on with it");
        verbs.note_end(1, true);
        assert_eq!((verbs.acked, verbs.is_over()), (0b1001, true), "too late");
    }

    #[test]
    fn a_read_whose_hosts_failed_is_short() {
        let mut verbs = Verbs::default();
        verbs.begin_read(0b11, 2);
        verbs.note_end(0, false);
        verbs.note_end(1, true);
        assert!(verbs.is_over() && verbs.is_short() && verbs.failed);
        verbs.begin_read(0b110, 2);
        assert!(!verbs.failed && verbs.acked == 0, "it begins anew");
    }

    #[test]
    fn parities_that_are_encoded_hold_a_write_open() {
        let mut verbs = Verbs {
            pending: 0b1_1111 | ENCODING,
            ..Verbs::default()
        };
        (0..3).for_each(|data| verbs.note_end(data, true));
        assert!(!verbs.is_over());
        assert_eq!((verbs.out(), verbs.take_parities(3)), (0b1_1000, 0b1_1000));
        verbs.note_at_once(0b1_1000);
        assert!(verbs.is_over() && verbs.acked == 0b1_1111);
    }
}
