//! Which of a page's splits are wrong: by what the others say.
//!
//! `d` wrong splits are found among k+2d at least, and the word that is accepted agrees with all
//! others; the mode asks for k+2d+1, of which d+1 wrong ones are still noticed. Of copies, as many
//! decide.
//!
//! Pure but for where the bytes lie: no verb is posted here.
//! Paper: \[hydra22\] Table 1; the rule of acceptance is deviation D30.

use std::sync::atomic::Ordering;

use cenote_codec::{DATA_MAX, PARITY_MAX};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::Worker;
use super::verbs::bits;

/// What follows from the splits that were read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// The page is right where it lies, and these splits of those that were read are wrong.
    Right { wrong: u64 },
    /// So many more splits are needed to tell.
    Ask(usize),
    /// It cannot be told which are right.
    Corrupt,
}

/// Most splits of a page.
const SPLITS_MAX: usize = DATA_MAX + PARITY_MAX;

impl Worker {
    /// Judges the splits that were read, when `more` others could be read besides, and makes the page.
    pub(super) fn verdict(&mut self, op: u16, more: usize) -> Verdict {
        let present = self.ops[usize::from(op)].verbs.acked;
        let (given, k) = (present.count_ones() as usize, self.cut(op).k());
        if given <= k {
            let counters = &self.core.pages.integrity.counters;
            counters.unchecked_reads.fetch_add(1, Ordering::Relaxed);
            self.reconstruct(op);
            return Verdict::Right { wrong: 0 };
        }
        if self.differing(op, present, 0) == Some(0) || is_injected(InjectedFault::SkipCompare) {
            self.reconstruct(op);
            return Verdict::Right { wrong: 0 };
        }
        let tolerated = self.tolerated(op);
        let needed = self.resilience(op).correction_splits();
        if tolerated == 0 {
            return Verdict::Corrupt;
        }
        if given < needed && more > 0 {
            return Verdict::Ask(needed - given);
        }
        let locatable = tolerated.min((given - k) / 2);
        match self.differing(op, present, locatable) {
            Some(wrong) if is_injected(InjectedFault::HealWrong) => {
                let innocent = present & !wrong;
                let wrong = innocent & innocent.wrapping_neg();
                self.keep_right(op, present & !wrong);
                Verdict::Right { wrong }
            }
            Some(wrong) => {
                self.keep_right(op, present & !wrong);
                Verdict::Right { wrong }
            }
            None => Verdict::Corrupt,
        }
    }

    /// The fewest splits, at most `tolerated`, that the others say are wrong; `None` with more.
    fn differing(&self, op: u16, present: u64, tolerated: usize) -> Option<u64> {
        let mut splits: [(usize, &[u8]); SPLITS_MAX] = [(0, &[]); SPLITS_MAX];
        let mut count = 0;
        for split in bits(present) {
            splits[count] = (split, self.split(op, split));
            count += 1;
        }
        let splits = &splits[..count];
        let Some(code) = self.code(op) else {
            return outvoted(splits, tolerated);
        };
        if tolerated == 0 {
            let agree = code.consistent(splits);
            return agree.expect("more than k distinct splits").then_some(0);
        }
        code.locate_set(splits, tolerated).ok()
    }

    /// A split that was read.
    pub(super) fn split(&self, op: u16, split: usize) -> &[u8] {
        let len = self.cut(op).split_bytes();
        // SAFETY: the landing is one split of the request's buffer or of this operation's scratch
        // block, both of which live; no verb of the operation is out, so nothing writes it.
        unsafe { std::slice::from_raw_parts(self.landing(op, split), len) }
    }

    /// Has the page made from splits that are right.
    fn keep_right(&mut self, op: u16, right: u64) {
        self.ops[usize::from(op)].verbs.acked = right;
        self.reconstruct(op);
    }
}

/// The copies that differ from what most say, if they are at most `tolerated`.
fn outvoted(copies: &[(usize, &[u8])], tolerated: usize) -> Option<u64> {
    copies.iter().find_map(|(_, candidate)| {
        let others = copies.iter().filter(|(_, copy)| copy != candidate);
        let wrong = others.fold(0_u64, |wrong, (index, _)| wrong | 1 << index);
        (wrong.count_ones() as usize <= tolerated).then_some(wrong)
    })
}

#[cfg(test)]
mod tests {
    use super::outvoted;

    #[test]
    fn most_copies_decide() {
        let (a, b) = ([1; 8], [2; 8]);
        let all = [(0, &a[..]), (2, &b[..]), (3, &a[..])];
        assert_eq!(outvoted(&all, 1), Some(1 << 2));
        assert_eq!(outvoted(&all, 0), None);
        assert_eq!(outvoted(&all[..1], 0), Some(0));
        let split = [(0, &b[..]), (1, &a[..]), (2, &b[..]), (3, &a[..])];
        assert_eq!(outvoted(&split, 1), None, "two against two");
    }
}
