//! Which hosts the members of a stripe go to.
//!
//! Arithmetic only: the caller asks the hosts what they have left and places on the
//! answer; a host that has meanwhile lent its last slab refuses, and the caller places
//! again without it. [`place`] looks at all hosts; [`Policy`] at as many as its paper does;
//! [`CodingSets`] keep a stripe in one group of hosts. [`Placement`] is what a user asks for.
//!
//! Invariant H1: no two chosen hosts share a failure domain.
//! Paper: \[infiniswap17\] section 4.2, \[hydra22\] section 5.

mod choice;
mod coding_sets;
mod policy;

pub use choice::{Placement, PlacementError};
pub use coding_sets::{CodingSets, Pick, Replacement, Shape, Site};
pub use policy::Policy;

use crate::random::mix;

/// A host that could take a slab, as it last described itself.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The caller's index of the host; what is returned.
    pub host: usize,
    /// The caller's number of the host's failure domain.
    pub domain: u32,
    /// Slabs it could still lend.
    pub slabs_free: u32,
    /// Slabs it lends in all.
    pub slabs_total: u32,
}

impl Candidate {
    /// By lent share, the smaller first; cross-multiplied, so exact.
    fn cmp_load(&self, other: &Self) -> std::cmp::Ordering {
        let lent = |c: &Self| u64::from(c.slabs_total.saturating_sub(c.slabs_free));
        // What a host says of itself may make no sense; an order it is nevertheless.
        let total = |c: &Self| u64::from(c.slabs_total.max(1));
        let ours = lent(self) * total(other);
        let theirs = lent(other) * total(self);
        ours.cmp(&theirs)
    }
}

/// The `count` least loaded candidates on distinct domains, none in `excluded` domains;
/// ties are broken by `seed`.
///
/// Load is the lent share of a host's slabs; a host without a free slab is never chosen.
/// Fewer than `count` when there are not enough; the least loaded comes first.
#[must_use]
pub fn place(candidates: &[Candidate], excluded: &[u32], count: usize, seed: u64) -> Vec<usize> {
    let mut usable: Vec<&Candidate> = candidates
        .iter()
        .filter(|c| c.slabs_free > 0 && !excluded.contains(&c.domain))
        .collect();
    usable.sort_by(|a, b| by_load(a, b, seed));
    let mut domains = std::collections::HashSet::new();
    usable.retain(|c| domains.insert(c.domain));
    usable.into_iter().take(count).map(|c| c.host).collect()
}

/// By lent share, the smaller first; equals in an order that `seed` gives.
fn by_load(a: &Candidate, b: &Candidate, seed: u64) -> std::cmp::Ordering {
    let ticket = |c: &Candidate| (mix(seed ^ mix(c.host as u64)), c.host);
    a.cmp_load(b).then_with(|| ticket(a).cmp(&ticket(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(host: usize, domain: u32, slabs_free: u32, slabs_total: u32) -> Candidate {
        Candidate {
            host,
            domain,
            slabs_free,
            slabs_total,
        }
    }

    #[test]
    fn the_least_loaded_come_first_by_share_not_by_count() {
        // Lent shares: 0.5, 0.1, 0.9, 0.2.
        let hosts = [
            candidate(0, 0, 500, 1000),
            candidate(1, 1, 9, 10),
            candidate(2, 2, 100, 1000),
            candidate(3, 3, 8, 10),
        ];
        assert_eq!(place(&hosts, &[], 3, 7), [1, 3, 0]);
    }

    #[test]
    fn equal_loads_are_spread_by_the_seed() {
        let hosts: Vec<_> = (0..12).map(|h| candidate(h, h as u32, 4, 4)).collect();
        let mut first = [0_u32; 12];
        for seed in 0..1200 {
            first[place(&hosts, &[], 1, seed)[0]] += 1;
        }
        // 100 each in the mean; a fixed order would give 1200 and 0.
        assert!(
            first.iter().all(|&times| (50..200).contains(&times)),
            "{first:?}"
        );
    }

    proptest! {
        #[test]
        fn chosen_hosts_are_the_best_of_distinct_allowed_domains(
            raw in proptest::collection::vec((0_u32..6, 0_u32..5), 0..16),
            excluded in proptest::collection::vec(0_u32..6, 0..3),
            count in 0_usize..8,
            seed: u64,
        ) {
            let hosts: Vec<_> =
                raw.iter().enumerate().map(|(h, &(domain, free))| candidate(h, domain, free, 4)).collect();
            let chosen = place(&hosts, &excluded, count, seed);
            // The best of each allowed domain, found without sorting hosts.
            let mut best: Vec<u32> = (0..6)
                .filter(|d| !excluded.contains(d))
                .filter_map(|d| hosts.iter().filter(|c| c.domain == d).map(|c| c.slabs_free).max())
                .filter(|&free| free > 0)
                .collect();
            best.sort_unstable_by(|a, b| b.cmp(a));
            best.truncate(count);
            let frees: Vec<u32> = chosen.iter().map(|&h| hosts[h].slabs_free).collect();
            prop_assert_eq!(frees, best);
            let mut domains: Vec<u32> = chosen.iter().map(|&h| hosts[h].domain).collect();
            prop_assert!(domains.iter().all(|d| !excluded.contains(d)));
            domains.sort_unstable();
            domains.dedup();
            prop_assert_eq!(domains.len(), chosen.len());
        }
    }
}
