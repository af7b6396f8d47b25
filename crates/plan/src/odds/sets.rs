//! Odds of loss where a given number of units fails, such as racks.
//!
//! The hosts of a group of `CodingSets` are in as many racks, so a group is a set of racks. Where
//! racks have the same number of hosts the sets are the same few, and disjoint; where they have
//! not, hosts that are left over make groups across them, and the sets overlap.

use std::collections::BTreeSet;

use crate::loss::choose;

/// Sets of units; data is lost when more than so many units of one of them fail.
#[derive(Clone, Debug)]
pub struct FatalSets {
    /// Each once.
    sets: Vec<Vec<usize>>,
    units: usize,
    spared: usize,
}

impl FatalSets {
    /// Of `units` units, named from 0, of which the failure of `spared` in each set loses nothing.
    ///
    /// # Panics
    /// If a set has a unit that there is not.
    #[must_use]
    pub fn new(
        sets: impl IntoIterator<Item = BTreeSet<usize>>,
        units: usize,
        spared: usize,
    ) -> Self {
        let sets: BTreeSet<Vec<usize>> = sets
            .into_iter()
            .map(|set| set.into_iter().collect())
            .collect();
        let last = sets.iter().filter_map(|set| set.last()).max();
        assert!(last.is_none_or(|last| *last < units), "units from 0");
        Self {
            sets: sets.into_iter().collect(),
            units,
            spared,
        }
    }

    /// Odds of a loss when exactly `failing` random units fail. Exact, or an upper bound where
    /// counting takes too long: the sum of the odds of each set.
    ///
    /// # Panics
    /// If more units fail than there are.
    #[must_use]
    pub fn odds(&self, failing: usize) -> f64 {
        assert!(failing <= self.units, "more fail than there are");
        if failing <= self.spared {
            return 0.0;
        }
        let sizes: Vec<usize> = self.sets.iter().map(Vec::len).collect();
        let are_disjoint = {
            let of_all: BTreeSet<_> = self.sets.iter().flatten().collect();
            of_all.len() == sizes.iter().sum::<usize>()
        };
        let odds = if are_disjoint {
            self.disjoint(&sizes, failing)
        } else {
            self.overlapping(failing)
        };
        odds.unwrap_or_else(|| {
            let of = |&size: &usize| self.disjoint(&[size], failing).unwrap_or(1.0);
            sizes.iter().map(of).sum::<f64>()
        })
        .min(1.0)
    }

    /// Of sets of these sizes that share no unit.
    fn disjoint(&self, sizes: &[usize], failing: usize) -> Option<f64> {
        let largest = sizes.iter().max().copied().unwrap_or_default();
        let steps = sizes.len().checked_mul(failing + 1)?.checked_mul(largest)?;
        if steps > STEPS_MAX {
            return None;
        }
        // By the number of units that failed in the sets so far, none of which lost data.
        let mut kept = vec![0.0; failing + 1];
        kept[0] = 1.0;
        let (mut lost, mut left) = (0.0, self.units);
        for &size in sizes {
            let mut next = vec![0.0; failing + 1];
            for (before, &odds) in kept.iter().enumerate().filter(|(_, odds)| **odds > 0.0) {
                let among = failing - before;
                for here in 0..=size.min(among) {
                    let both = odds * drawn(here, size, among, left);
                    if here > self.spared {
                        lost += both;
                    } else {
                        next[before + here] += both;
                    }
                }
            }
            kept = next;
            left -= size;
        }
        Some(lost)
    }

    /// Of any sets, by all combinations of units that fail.
    fn overlapping(&self, failing: usize) -> Option<f64> {
        let all = choose(self.units, failing);
        if all > COMBINATIONS_MAX {
            return None;
        }
        let mut sets_of = vec![Vec::new(); self.units];
        for (set, units) in self.sets.iter().enumerate() {
            for &unit in units {
                sets_of[unit].push(set);
            }
        }
        let mut count = Count {
            sets_of,
            spared: self.spared,
            failed: vec![0; self.sets.len()],
        };
        Some(count.fatal(0, failing) / all)
    }
}

/// A count of combinations of units.
struct Count {
    sets_of: Vec<Vec<usize>>,
    spared: usize,
    /// Units of each set that have failed so far.
    failed: Vec<usize>,
}

impl Count {
    /// The fatal ones in which `more` units from `first` on fail beside those that have.
    fn fatal(&mut self, first: usize, more: usize) -> f64 {
        // What failed so far is not.
        if more == 0 {
            return 0.0;
        }
        let units = self.sets_of.len();
        let mut fatal = 0.0;
        for unit in first..=units - more {
            let mut is_fatal = false;
            for &set in &self.sets_of[unit] {
                self.failed[set] += 1;
                is_fatal |= self.failed[set] > self.spared;
            }
            fatal += if is_fatal {
                choose(units - unit - 1, more - 1)
            } else {
                self.fatal(unit + 1, more - 1)
            };
            for &set in &self.sets_of[unit] {
                self.failed[set] -= 1;
            }
        }
        fatal
    }
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

/// Steps that are counted at most: a tenth of a second.
const STEPS_MAX: usize = 50_000_000;
const COMBINATIONS_MAX: f64 = 1e6;
