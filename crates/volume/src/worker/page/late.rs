//! Late binding: a read asks for more splits than it needs and takes those that come first.
//!
//! When enough are there, the landings of the others are revoked, and only then is anything decoded:
//! nothing alters a page whose read has ended (H2). The caller has its buffer back at once; the
//! operation's place is taken until its last verb has ended, and so is what the directory said of
//! the hosts it went to: one that fails late is marked as if it had failed early. No epoch is held.
//!
//! Hosts that owe a late answer are asked last: one that has stopped does not take all places.
//! Where verbs complete when they are posted nothing can be late, and no more is read than needed.
//!
//! Paper: \[hydra22\] 4.1.2 (late binding), 4.1.4 (deregistering).

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::State;
use super::stripe_of;
use super::verbs::{bits, token};
use crate::Resilience;
use crate::worker::Worker;

impl Worker {
    /// The members to read of `readable`: random ones where some are to spare, else those that need
    /// the least decoding. At least k are readable.
    pub(super) fn choose(&mut self, op: u16, readable: u64) -> u64 {
        let k = self.cut(op).k() as u32;
        let resilience = self.resilience(op);
        let splits = resilience.read_splits() as u32;
        if self.binds_late(resilience) {
            return self.draw(op, readable, splits);
        }
        if k == 1 {
            // Another for each page, so that copies share the reads.
            let skip = self.ops[usize::from(op)].chunk.page % u64::from(readable.count_ones());
            return drop_lowest(readable, skip as u32)
                & drop_lowest(readable, skip as u32).wrapping_neg();
        }
        // Every data split that is there, then parities.
        keep_lowest(readable, k)
    }

    /// Whether reads ask for more splits than they need.
    pub(in crate::worker) fn binds_late(&self, resilience: Resilience) -> bool {
        resilience.read_splits() > resilience.scheme().k()
            && !self.endpoints.complete_at_once()
            && self.switches.late_binding
    }

    /// `count` of `readable`, or all: any of those whose hosts owe nothing late, if they are enough.
    fn draw(&mut self, op: u16, readable: u64, count: u32) -> u64 {
        let mut chosen = readable;
        if self.views.lingering() > 0 {
            let calm = readable & !self.owing(op, readable);
            if calm.count_ones() >= count {
                chosen = calm;
            }
        }
        while chosen.count_ones() > count {
            let skip = self.random.below(chosen.count_ones());
            let rest = drop_lowest(chosen, skip);
            chosen ^= rest & rest.wrapping_neg();
        }
        if self.cut(op).k() == 1 {
            let skip = self.random.below(chosen.count_ones());
            self.ops[usize::from(op)].verbs.primary =
                drop_lowest(chosen, skip).trailing_zeros() as u8;
        }
        chosen
    }

    /// The members among `splits` whose hosts owe an answer that nobody waits for.
    fn owing(&self, op: u16, splits: u64) -> u64 {
        let Some(stripe) = stripe_of(&self.views, &self.ops[usize::from(op)]) else {
            return 0;
        };
        bits(splits).fold(0, |owing, split| {
            let member = stripe.members[split].as_ref();
            let owes = member.is_some_and(|member| self.endpoints.owes_late(member.session));
            owing | u64::from(owes) << split
        })
    }

    /// Whether a read has what it needs, though more is out.
    #[inline]
    pub(super) fn is_served(&self, op: u16) -> bool {
        let op = &self.ops[usize::from(op)];
        matches!(op.state, State::Reading | State::Merging) && op.verbs.is_served()
    }

    /// Has nothing of the verbs that are still out land any more.
    pub(super) fn revoke_late(&mut self, op: u16) {
        let pending = self.ops[usize::from(op)].verbs.revoke();
        if pending == 0 {
            return;
        }
        let stripe = stripe_of(&self.views, &self.ops[usize::from(op)]);
        let stripe = stripe.expect("a read works in a mapped extent");
        for split in bits(pending) {
            if let Some(member) = &stripe.members[split] {
                self.endpoints.note_late(member.session, 1);
                if !is_injected(InjectedFault::LateSplitLands) {
                    self.endpoints.revoke(member.session, token(op, split));
                }
            }
        }
    }

    /// An answer has come that nobody waits for.
    pub(super) fn settle_late(&mut self, op: u16, split: usize) {
        let stripe = stripe_of(&self.views, &self.ops[usize::from(op)]);
        if let Some(member) = stripe.and_then(|stripe| stripe.members[split].as_ref()) {
            self.endpoints.note_late(member.session, -1);
        }
    }

    /// The operation that goes on with the page, with no verb out: another one, with the same bytes,
    /// while verbs of this one are. `None` when no other is free: then this one goes on when they
    /// have ended.
    pub(super) fn detach(&mut self, op: u16) -> Option<u16> {
        let at = usize::from(op);
        if self.ops[at].verbs.is_over() {
            self.ops[at].verbs.revoked = false;
            return Some(op);
        }
        let next = self.ops.free.pop()?;
        let block = self.ops[usize::from(next)].memory.block;
        // This one's place in the list is another's as soon as its last verb has ended.
        let slot = match is_injected(InjectedFault::ShareSlot) {
            true => self.ops[at].listing.slot,
            false => self.own_slot(next),
        };
        let mut other = self.ops[at];
        other.view.epoch = 0;
        (other.verbs.pending, other.verbs.revoked) = (0, false);
        other.listing.slot = slot;
        self.ops[usize::from(next)] = other;
        self.ops[at].memory.block = block;
        self.ops[at].claim.held = false;
        self.leave(op);
        Some(next)
    }
}

/// `mask` without its `count` lowest bits.
fn drop_lowest(mask: u64, count: u32) -> u64 {
    (0..count).fold(mask, |mask, _| mask & mask.wrapping_sub(1))
}

/// The `count` lowest bits of `mask`.
fn keep_lowest(mask: u64, count: u32) -> u64 {
    mask ^ drop_lowest(mask, count.min(mask.count_ones()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_dropped_and_kept_from_the_lowest() {
        assert_eq!(drop_lowest(0b1011_0100, 2), 0b1010_0000);
        assert_eq!(keep_lowest(0b1011_0100, 2), 0b0001_0100);
        assert_eq!(keep_lowest(0b11, 5), 0b11);
        assert_eq!(drop_lowest(0b11, 5), 0);
    }
}
