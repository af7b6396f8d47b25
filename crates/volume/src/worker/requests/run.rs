//! Pages of one long write, claimed before any of them is written.
//!
//! An atomic exchange waits for all stores before it. Between two pages of a write it would wait until the
//! first, whose stores go around the caches, is in memory: a sixth of the time of a long write over shm.

use std::ops::Range;

use crate::claims::Claims;

/// Pages that follow one another, of which some are claimed; each claim is handed over to the operation
/// on its page, or given back.
#[derive(Default)]
pub(super) struct Run {
    pages: Range<u64>,
    /// A bit for each of them whose claim is held, and not handed over.
    claimed: u64,
}

/// Pages of a run at most.
const PAGES_MAX: u64 = u64::BITS as u64;

impl Run {
    /// Claims those of the first of `pages` that nobody has claimed.
    pub(super) fn claim(claims: &Claims, pages: Range<u64>) -> Self {
        let end = pages.end.min(pages.start + PAGES_MAX);
        let mut run = Self {
            pages: pages.start..end,
            claimed: 0,
        };
        for page in run.pages.clone() {
            run.claimed |= u64::from(claims.try_claim(page)) << (page - pages.start);
        }
        run
    }

    pub(super) fn contains(&self, page: u64) -> bool {
        self.pages.contains(&page)
    }

    /// Whether it holds the page's claim.
    pub(super) fn has(&self, page: u64) -> bool {
        self.contains(page) && self.claimed & self.bit(page) != 0
    }

    /// The page's claim, if it is held, is its operation's from here on.
    pub(super) fn hand_over(&mut self, page: u64) {
        if self.contains(page) {
            self.claimed &= !self.bit(page);
        }
    }

    /// Gives back the claims that are still held.
    pub(super) fn give_back(self, claims: &Claims) {
        for page in self.pages.clone().filter(|&page| self.has(page)) {
            claims.release(page);
        }
    }

    fn bit(&self, page: u64) -> u64 {
        1 << (page - self.pages.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_claims_what_is_free_and_gives_back_what_nobody_took() {
        let claims = Claims::new();
        assert!(claims.try_claim(12), "somebody else's");
        let mut run = Run::claim(&claims, 10..200);
        assert!(run.has(10) && run.has(11) && !run.has(12) && run.has(73));
        assert!(!run.contains(9) && !run.contains(74), "64 pages at most");
        assert!(!claims.try_claim(10) && claims.try_claim(74));
        run.hand_over(10);
        run.hand_over(500);
        assert!(!run.has(10));
        run.give_back(&claims);
        assert!(!claims.try_claim(10), "its operation has it");
        assert!(!claims.try_claim(12), "as before");
        assert!(claims.try_claim(11) && claims.try_claim(73));
    }
}
