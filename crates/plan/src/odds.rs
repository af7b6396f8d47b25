//! Odds of loss in clusters where the paper's formula says little: those where few hosts fail.
//!
//! The formula takes N f as the number of hosts that fail. Where that is one host, or none, nothing
//! could be lost. So below [`FEW_FAILING`] hosts each host fails by itself with probability f, and
//! the number of those that fail in a group is binomial. Groups of `CodingSets` are disjoint, so
//! their losses are independent, and the odds are exact as long as every r+1 hosts of a group are
//! those of some stripe ([`covered`]). Stripes on random hosts are taken as independent.
//! Where so many units fail and not more, the odds are counted instead ([`FatalSets`]): racks, for
//! example. All hold for any k.

mod sets;

use serde::Serialize;

pub use sets::FatalSets;

use crate::loss::{Case, choose};

/// Fewer failing hosts than this in the mean are few.
pub const FEW_FAILING: f64 = 10.0;

/// Which hosts fail at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failing {
    /// N f of them, to the nearest whole one: the paper's formula.
    Share,
    /// Each by itself, with probability f: binomial odds.
    Each,
}

impl Failing {
    /// As suits the cluster: [`Failing::Each`] where few hosts fail.
    #[must_use]
    pub fn of(case: &Case) -> Self {
        if case.hosts as f64 * case.failed < FEW_FAILING {
            Self::Each
        } else {
            Self::Share
        }
    }

    /// With stripes on random hosts.
    #[must_use]
    pub fn random_groups(self, case: &Case) -> f64 {
        match self {
            Self::Share => case.random_groups(),
            Self::Each => {
                let stripes = case.hosts * case.slabs_per_host as usize / case.members();
                let one = tail(case.members(), case.failed, case.r);
                any(&[(one, stripes)])
            }
        }
    }

    /// With `CodingSets`.
    #[must_use]
    pub fn coding_sets(self, case: &Case) -> f64 {
        match self {
            Self::Share => case.coding_sets(),
            Self::Each => {
                let of = |size| tail(size, case.failed, case.r);
                let odds = group_sizes(case).map(|(size, count)| (of(size), count));
                any(&odds)
            }
        }
    }
}

/// The share of the sets of r+1 hosts of a group that are hosts of one stripe. Both the formula and
/// [`Failing::Each`] take all of them as such, and are too high by about as much as are not.
#[must_use]
pub fn covered(case: &Case) -> f64 {
    let fatal = case.r + 1;
    let sets = choose(case.width(), fatal);
    let share = choose(case.members(), fatal) / sets;
    let stripes = case.width() as f64 * f64::from(case.slabs_per_host) / case.members() as f64;
    // Where both are the same hosts, ln(0) is -infinity, and all are covered.
    -(stripes * (-share.min(1.0)).ln_1p()).exp_m1()
}

/// Below this share of covered sets the odds are said to be too high.
pub const COVERED_ENOUGH: f64 = 0.9;

/// Sizes of the groups of a cluster whose hosts are alike, and how many there are of each: the last
/// one may lack hosts beyond k+r.
fn group_sizes(case: &Case) -> [(usize, usize); 2] {
    let rest = case.hosts % case.width();
    let is_group = rest >= case.members();
    [
        (case.width(), case.hosts / case.width()),
        (rest, usize::from(is_group)),
    ]
}

/// Odds that more than `spared` of `size` fail, each with probability `failed` (binomial). Terms are
/// made as logarithms: those of wide groups are beyond what a double holds.
fn tail(size: usize, failed: f64, spared: usize) -> f64 {
    if failed <= 0.0 || size <= spared {
        return 0.0;
    }
    if failed >= 1.0 {
        return 1.0;
    }
    let (fails, stays) = (failed.ln(), (-failed).ln_1p());
    let mut ways = 0.0;
    let mut odds = 0.0;
    for count in 0..=size {
        if count > spared {
            odds += (ways + count as f64 * fails + (size - count) as f64 * stays).exp();
        }
        ways += ((size - count) as f64 / (count + 1) as f64).ln();
    }
    odds.min(1.0)
}

/// Odds that one of independent groups loses data: the odds of each, and how many have them.
fn any(groups: &[(f64, usize)]) -> f64 {
    let spared = |&(odds, count): &(f64, usize)| match count {
        0 => 0.0,
        _ => count as f64 * (-odds).ln_1p(),
    };
    -groups.iter().map(spared).sum::<f64>().exp_m1()
}

#[cfg(test)]
mod tests;
