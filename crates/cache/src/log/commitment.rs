//! When a page counts as written: which tiers have to have it.
//!
//! A page goes to all tiers that hold its address, at the same time. It is acknowledged when those
//! up to the commit point have it; the others run on. FASTER counts down from `commit point + 1`
//! even when faster tiers do not hold the page, and then waits for tiers behind the commit point,
//! or for ever. Here the states of the tiers are asked, so that there is nothing to count wrong.

use super::injected_faults::{InjectedFault, is_injected};

/// What one tier has of a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Share {
    /// The tier does not hold the page's address.
    Absent,
    /// To be started, or started again.
    Waiting,
    /// Under way.
    UnderWay,
    /// The tier has it.
    Done,
    /// The tier will not have it.
    Failed,
}

/// The states of all tiers for one page.
#[derive(Clone, Debug)]
pub struct Commitment {
    shares: Vec<Share>,
    commit_point: usize,
}

impl Commitment {
    /// Of a page that the tiers with `true` are to hold.
    pub fn new(holds: impl IntoIterator<Item = bool>, commit_point: usize) -> Self {
        let share = |holds| if holds { Share::Waiting } else { Share::Absent };
        Self {
            shares: holds.into_iter().map(share).collect(),
            commit_point,
        }
    }

    /// What a tier has.
    pub fn share(&self, tier: usize) -> Share {
        self.shares[tier]
    }

    /// Changes what a tier has.
    pub fn set(&mut self, tier: usize, share: Share) {
        self.shares[tier] = share;
    }

    /// Whether the page may leave memory. Where no tier up to the commit point holds it, the
    /// fastest of the others decides; where none holds it at all, it may not.
    pub fn is_acknowledged(&self) -> bool {
        let holds = |share: &&Share| !matches!(share, Share::Absent | Share::Failed);
        let up_to = &self.shares[..self.shares.len().min(self.commit_point + 1)];
        let done = up_to.iter().filter(|share| **share == Share::Done).count();
        if is_injected(InjectedFault::TierCountdown) {
            return done == self.commit_point + 1;
        }
        match up_to.iter().filter(holds).count() {
            0 => self.shares.iter().find(holds) == Some(&Share::Done),
            wanted => done == wanted,
        }
    }

    /// Whether no tier behind this one has the page or will have it. A tier that was lost and has
    /// come back does not hold what was written meanwhile.
    pub fn is_last(&self, tier: usize, is_lost: impl Fn(usize) -> bool) -> bool {
        let mut slower = self.shares.iter().enumerate().skip(tier + 1);
        slower.all(|(at, share)| is_lost(at) || matches!(share, Share::Absent | Share::Failed))
    }

    /// Whether no tier is at work on it.
    pub fn is_over(&self) -> bool {
        let is_over = |share: &Share| !matches!(share, Share::Waiting | Share::UnderWay);
        self.shares.iter().all(is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::Share::{Absent, Done, Failed, UnderWay, Waiting};
    use super::*;

    fn is_acknowledged<const N: usize>(shares: [Share; N], commit_point: usize) -> bool {
        let mut page = Commitment::new([true; N], commit_point);
        for (tier, share) in shares.into_iter().enumerate() {
            page.set(tier, share);
        }
        page.is_acknowledged()
    }

    #[test]
    fn all_tiers_up_to_the_commit_point_have_a_page_and_colder_ones_run_on() {
        assert!(is_acknowledged([Done, UnderWay, Waiting], 0));
        assert!(!is_acknowledged([Done, UnderWay, Done], 1));
        assert!(!is_acknowledged([UnderWay, Done, Done], 1));
        assert!(is_acknowledged([Done, Done, UnderWay], 1));
        assert!(is_acknowledged([Done, Done], 9));
    }

    #[test]
    fn tiers_that_do_not_hold_a_page_are_not_counted() {
        assert!(is_acknowledged([Absent, Done, UnderWay], 1));
        assert!(is_acknowledged([Failed, Done, UnderWay], 1));
        assert!(!is_acknowledged([Absent, UnderWay, Done], 1));
    }

    #[test]
    fn the_last_tier_of_a_page_is_the_slowest_that_may_have_it() {
        let is_last = |shares: [Share; 3], tier| {
            let mut page = Commitment::new([true; 3], 0);
            for (at, share) in shares.into_iter().enumerate() {
                page.set(at, share);
            }
            (
                page.is_last(tier, |_| false),
                page.is_last(tier, |at| at == 2),
            )
        };
        assert_eq!(is_last([Done, UnderWay, Waiting], 2), (true, true));
        assert_eq!(is_last([Done, UnderWay, Waiting], 1), (false, true));
        assert_eq!(is_last([Done, UnderWay, Done], 1), (false, true));
        assert_eq!(is_last([Done, UnderWay, Absent], 1), (true, true));
        assert_eq!(is_last([Waiting, Done, Absent], 0), (false, false));
        assert_eq!(is_last([Waiting, Failed, Failed], 0), (true, true));
    }

    #[test]
    fn behind_the_commit_point_the_fastest_that_holds_it_decides() {
        assert!(!is_acknowledged([Absent, UnderWay, Done], 0));
        assert!(is_acknowledged([Failed, Done, UnderWay], 0));
        assert!(!is_acknowledged([Failed, Absent], 0));
    }
}
