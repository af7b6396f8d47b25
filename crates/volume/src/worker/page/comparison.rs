//! Reads that compare what they get: which splits they ask for, and what follows from a difference.
//!
//! `first_look -> (splits landed) -> judge`: the page is right and the read goes on; or it asks for more
//! splits and is judged again; or it is an error. A split that is found wrong is rewritten under
//! the page's claim once the read has its bytes (`healed`).
//!
//! Invariants:
//! - Splits are judged when no writer was in between, never before: two versions of a page disagree
//!   without anybody being wrong.
//! - A page whose last write ended unknown is judged by tags alone: its parities may fit neither version.
//! - With k splits there is nothing to compare (soundness Y4): such reads are counted.
//!
//! Paper: \[hydra22\] 4.1 (corruption detection and correction), 4.2.

use std::sync::atomic::Ordering;

use super::stripe_of;
use super::verbs::{Verb, bits, spare_of};
use super::verdict::Verdict;
use super::{State, Worker};
use crate::directory::Stripe;
use crate::marks::Soundness;
use crate::{IoError, Mode};

impl Worker {
    /// The splits that are read at first: all data, so that nothing is decoded while they agree,
    /// and parities in turn, so that each is looked at. Copies all take turns.
    pub(super) fn first_look(&self, op: u16, readable: u64) -> u64 {
        let resilience = self.resilience(op);
        let k = self.cut(op).k();
        let page = self.ops[usize::from(op)].chunk.page;
        let is_doubtful = || self.soundness(op) != Soundness::Sound;
        let is_wide = self.is_scrub(op) || self.ops[usize::from(op)].aim.is_wider;
        let wanted = if is_wide || is_doubtful() {
            self.splits(op)
        } else if self.is_doubted(op) && resilience.compares() {
            resilience.correction_splits()
        } else if resilience.compares() {
            resilience.read_splits()
        } else {
            k + 1
        };
        let data = if k == 1 { 0 } else { readable & ((1 << k) - 1) };
        let others = readable & !data;
        let missing = wanted.saturating_sub(data.count_ones() as usize);
        data | turns(others, page, missing)
    }

    /// Whether some host of the page's stripe has sent wrong splits lately.
    fn is_doubted(&self, op: u16) -> bool {
        let integrity = &self.core.pages.integrity;
        let stripe = || stripe_of(&self.views, &self.ops[usize::from(op)]);
        integrity.has_suspects()
            && stripe().is_some_and(|stripe| {
                let mut members = stripe.members.iter().flatten();
                members.any(|member| integrity.is_suspicious(member.session.host))
            })
    }

    /// Whether a read of the page asks for splits to compare.
    pub(super) fn is_compared(&self, op: u16, soundness: Soundness) -> bool {
        let is_tagged = self.core.pages.integrity.tags.is_some();
        match soundness {
            Soundness::Sound => {
                self.resilience(op).compares()
                    || self.is_scrub(op)
                    || self.ops[usize::from(op)].aim.is_wider
                    || is_tagged && self.is_doubted(op)
            }
            // Some of its splits are of the old page and some of the new: the tags tell.
            Soundness::Doubtful => is_tagged,
            Soundness::Torn => false,
        }
    }

    /// Makes the page from what was read and says whether the operation goes on with it. If not,
    /// it has been seen to: more splits are on their way, or it is parked, or it has ended.
    pub(super) fn judge(&mut self, op: u16) -> bool {
        let at = usize::from(op);
        let page = self.ops[at].chunk.page;
        let tag = self
            .core
            .pages
            .integrity
            .tags
            .as_ref()
            .map(|tags| tags.load(page));
        let soundness = self.soundness(op);
        if tag.is_none() && !self.is_compared(op, soundness) {
            self.reconstruct(op);
            return true;
        }
        if self.ops[at].state == State::Reading && !self.is_unchanged(op) {
            self.count_repeat();
            if let Some(op) = self.detach(op) {
                self.park(op);
            }
            return false;
        }
        if soundness == Soundness::Torn {
            // It became so after it was asked for.
            self.end_lost(op);
            return false;
        }
        // Out of its epoch it asks again.
        let all = (1 << self.splits(op)) - 1;
        let readable = stripe_of(&self.views, &self.ops[at]).map_or(all, Stripe::readable);
        let more = self.ops[at].claim.landed.among(readable) & !self.ops[at].verbs.acked;
        let more_count = more.count_ones() as usize;
        let verdict = match tag {
            Some(tag) => self.verdict_by_tag(op, tag, more_count),
            None => self.verdict(op, more_count),
        };
        match verdict {
            Verdict::Right { wrong } => {
                // Of a page whose last write ended unknown nobody is wrong.
                let is_sound = soundness == Soundness::Sound;
                self.note_wrong(op, if is_sound { wrong } else { 0 });
                self.hand_over(op);
                true
            }
            Verdict::Ask(count) => {
                let counters = &self.core.pages.integrity.counters;
                counters.extended_reads.fetch_add(1, Ordering::Relaxed);
                self.ask_more(op, turns(more, 0, count));
                false
            }
            Verdict::Corrupt if self.awaits_splits(op) => {
                if let Some(op) = self.detach(op) {
                    self.park(op);
                }
                false
            }
            Verdict::Corrupt => {
                self.end_corrupt(op);
                false
            }
        }
    }

    /// Asks for more splits of a page; for all, where its epoch has been left, or verbs are still out
    /// that nobody waits for.
    fn ask_more(&mut self, op: u16, more: u64) {
        let is_late = self.ops[usize::from(op)].verbs.pending != 0;
        if is_late || self.ops[usize::from(op)].view.epoch == 0 {
            let Some(op) = self.detach(op) else { return };
            self.leave(op);
            self.ops[usize::from(op)].aim.is_wider = true;
            return self.gather(op);
        }
        let state = &mut self.ops[usize::from(op)];
        state.verbs.pending = more;
        state.verbs.wants = (state.verbs.acked | more).count_ones();
        self.post(op, more, Verb::Read);
    }

    /// Blames the hosts of splits that were found wrong, and remembers to write these again.
    fn note_wrong(&mut self, op: u16, wrong: u64) {
        self.ops[usize::from(op)].wrong = wrong;
        if wrong == 0 {
            return;
        }
        if self.is_scrub(op) {
            self.guard.wrong_count += u64::from(wrong.count_ones());
        }
        let state = &self.ops[usize::from(op)];
        let Some(stripe) = stripe_of(&self.views, state) else {
            return;
        };
        for split in bits(wrong) {
            if let Some(member) = &stripe.members[split] {
                self.core.pages.integrity.name(member.session.host);
            }
        }
        tracing::debug!(page = state.chunk.page, wrong, "splits of a page are wrong");
    }

    /// Splits disagree, and which of them are wrong cannot be told.
    fn end_corrupt(&mut self, op: u16) {
        let state = &self.ops[usize::from(op)];
        let integrity = &self.core.pages.integrity;
        integrity
            .counters
            .corrupt_reads
            .fetch_add(1, Ordering::Relaxed);
        let is_sound = self.soundness(op) == Soundness::Sound;
        if let Some(stripe) = stripe_of(&self.views, state).filter(|_| is_sound) {
            let among = state.verbs.acked.count_ones();
            let read = bits(state.verbs.acked).filter_map(|split| stripe.members[split].as_ref());
            read.for_each(|member| integrity.suspect(member.session.host, among));
        }
        tracing::warn!(
            page = state.chunk.page,
            read = state.verbs.acked,
            "splits of a page disagree"
        );
        if self.ops[usize::from(op)].aim.is_move {
            return self.end_moving_corrupt(op);
        }
        self.finish(op, Err(IoError::Corrupt));
    }

    /// Wrong splits that this read puts right.
    pub(super) fn tolerated(&self, op: u16) -> usize {
        let resilience = self.resilience(op);
        match resilience.mode() {
            Mode::Correction => resilience.delta(),
            // All that is there was read, or is yet to be: one that is wrong shows.
            _ if self.is_scrub(op) || self.moves_widely(op) => 1,
            _ => 0,
        }
    }

    /// Where a split that is read lands.
    pub(super) fn landing(&self, op: u16, split: usize) -> *mut u8 {
        let (k, split_bytes) = (self.cut(op).k(), self.cut(op).split_bytes());
        let primary = self.ops[usize::from(op)].verbs.primary;
        let spare = match split {
            copy if k == 1 => spare_of(copy, primary),
            data if data < k => {
                return self.page_buffer(op).wrapping_add(data * split_bytes);
            }
            parity => Some(parity - k),
        };
        match spare {
            Some(spare) => self.parities(op).wrapping_add(spare * split_bytes),
            None => self.page_buffer(op),
        }
    }
}

/// `count` bits of `mask`, or all of it, beginning with another one for each page.
pub(super) fn turns(mask: u64, page: u64, count: usize) -> u64 {
    let all = mask.count_ones() as usize;
    if count >= all {
        return mask;
    }
    let skip = usize::try_from(page % all as u64).expect("below 64");
    let chosen = bits(mask).chain(bits(mask)).skip(skip).take(count);
    chosen.fold(0, |chosen, bit| chosen | 1 << bit)
}

#[cfg(test)]
mod tests {
    use super::turns;

    #[test]
    fn every_bit_has_its_turn() {
        assert_eq!(turns(0b1011, 0, 2), 0b0011);
        assert_eq!(turns(0b1011, 1, 2), 0b1010);
        assert_eq!(turns(0b1011, 2, 2), 0b1001);
        assert_eq!(turns(0b1011, 3, 2), 0b0011);
        assert_eq!(turns(0b1011, 7, 3), 0b1011);
        assert_eq!(turns(0b1011, 7, 9), 0b1011);
        assert_eq!(turns(0, 7, 1), 0);
        assert_eq!(turns(0b1, 7, 0), 0);
    }
}
