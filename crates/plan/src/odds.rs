//! Odds of loss in clusters where the paper's formula says little: those where few hosts fail.
//!
//! The formula takes N f as the number of hosts that fail. Where that is one host, or none, nothing
//! could be lost. So below [`FEW_FAILING`] hosts each host fails by itself with probability f, and
//! the number of those that fail in a group is binomial. Groups of `CodingSets` are disjoint, so
//! their losses are independent, and the odds are exact as long as every r+1 hosts of a group are
//! those of some stripe ([`covered`]). Stripes on random hosts are taken as independent.
//! Where so many units fail and not more (racks), the odds of disjoint groups are counted instead
//! ([`counted`]). All hold for any k.

use serde::Serialize;

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

/// Odds that a group of `CodingSets` has more than r of exactly `failing` random units (hosts, or
/// racks where they are the failure domains) of `case.hosts`. `None` where counting takes too long.
///
/// # Panics
/// If more units fail than there are.
#[must_use]
pub fn counted(case: &Case, failing: usize) -> Option<f64> {
    const STEPS_MAX: usize = 50_000_000;
    assert!(failing <= case.hosts, "more fail than there are");
    let sizes = group_sizes(case);
    let groups: usize = sizes.iter().map(|&(_, count)| count).sum();
    let steps = groups.checked_mul(failing + 1)?.checked_mul(case.width())?;
    if steps > STEPS_MAX {
        return None;
    }
    // By the number of units that failed in the groups so far, none of which lost data.
    let mut kept = vec![0.0; failing + 1];
    kept[0] = 1.0;
    let (mut lost, mut left) = (0.0, case.hosts);
    let each = sizes
        .iter()
        .flat_map(|&(size, count)| std::iter::repeat_n(size, count));
    for size in each {
        let mut next = vec![0.0; failing + 1];
        for (before, &odds) in kept.iter().enumerate().filter(|(_, odds)| **odds > 0.0) {
            let among = failing - before;
            for here in 0..=size.min(among) {
                let both = odds * drawn(here, size, among, left);
                if here > case.r {
                    lost += both;
                } else {
                    next[before + here] += both;
                }
            }
        }
        kept = next;
        left -= size;
    }
    Some(lost.min(1.0))
}

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

/// Odds that `here` of the `size` units of a group are among `failing` of `left` (hypergeometric).
fn drawn(here: usize, size: usize, failing: usize, left: usize) -> f64 {
    let stays = left - failing;
    if size - here > stays {
        return 0.0;
    }
    let fail = (0..here).map(|at| (failing - at) as f64 / (left - at) as f64);
    let stay = (0..size - here).map(|at| (stays - at) as f64 / (left - here - at) as f64);
    choose(size, here) * fail.product::<f64>() * stay.product::<f64>()
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
