//! Writing wrong splits again, once a read has found what they should be.
//!
//! Under the page's claim, taken only if nobody wrote the page since the read began, so that the
//! bytes are the newest; in the newest epoch, so that no slab is written that is gone or fenced. What
//! stands in the way leaves the split as it is: the next read of the page finds it again.

use std::sync::atomic::Ordering;

use cenote_fabric::order_stores;

use super::stripe_of;
use super::{State, Worker};
use crate::directory::Stripe;

impl Worker {
    /// Writes the page's wrong splits again; false when there are none, or it cannot be done now.
    pub(super) fn begin_heal(&mut self, op: u16) -> bool {
        let at = usize::from(op);
        let wrong = self.ops[at].wrong;
        let (page, version, index) = (
            self.ops[at].chunk.page,
            self.ops[at].claim.version,
            self.ops[at].place.index,
        );
        // Verbs that nobody waits for keep the operation's place: it can post no others.
        let is_late = self.ops[at].verbs.pending != 0;
        if wrong == 0 || is_late || !self.core.pages.claims.try_claim_at(page, version) {
            return false;
        }
        self.ops[at].claim.held = true;
        self.leave(op);
        self.enter(op);
        let stripe = stripe_of(&self.views, &self.ops[at])
            .filter(|stripe| stripe.is_there() && !stripe.fence.contains(index));
        let members = stripe.map_or(0, |stripe| holders(stripe, index, wrong));
        if members == 0 {
            return false;
        }
        let state = &mut self.ops[at];
        state.state = State::Healing;
        state.verbs.reset();
        self.scatter(op, members);
        true
    }

    /// The splits are right again, or their hosts are gone: the read has succeeded either way.
    pub(super) fn end_heal(&mut self, op: u16) {
        // Before the page is given back: readers look then.
        order_stores();
        if !self.ops[usize::from(op)].verbs.failed {
            self.count_healed(op);
        }
        self.finish(op, Ok(()));
    }

    /// The operation's wrong splits are written again.
    pub(super) fn count_healed(&mut self, op: u16) {
        let wrong = std::mem::take(&mut self.ops[usize::from(op)].wrong);
        let counters = &self.core.pages.integrity.counters;
        let count = u64::from(wrong.count_ones());
        counters.healed_splits.fetch_add(count, Ordering::Relaxed);
        if self.is_scrub(op) {
            self.guard.healed_count += count;
        }
    }
}

/// Members that hold one of these splits of the page, copies in the making included.
fn holders(stripe: &Stripe, page: u32, splits: u64) -> u64 {
    let writable = stripe.writable(page);
    let members = 0..stripe.members.len();
    members
        .filter(|&member| writable >> member & 1 == 1)
        .filter(|&member| splits >> stripe.split_of(member) & 1 == 1)
        .fold(0, |members, member| members | 1 << member)
}
