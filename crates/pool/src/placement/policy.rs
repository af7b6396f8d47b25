//! Placement that looks at few hosts: two choices, and what they are measured against.
//!
//! Cost: a handful of draws, however many candidates there are; one pass over them when hosts
//! that qualify are rare, and never a sort. Paper: \[infiniswap17\] section 4.2.

use std::cmp::Ordering;

use super::{Candidate, place};
use crate::random::Random;

/// How a host is chosen for a slab. In every policy a host without a free slab counts as one
/// that refused: another one is drawn in its stead.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Policy {
    /// The smallest lent share of all: [`place`].
    #[default]
    LeastLoaded,
    /// Two are drawn from the hosts on which the volume has no slab yet, from the others when
    /// fewer than two are left; the one with the smaller lent share is taken. The paper's.
    TwoChoices,
    /// As [`Policy::TwoChoices`] with one draw, which is taken: it spreads, and looks at no load.
    Single,
    /// One is drawn from all hosts.
    Random,
}

/// Draws before all are looked at. Where one in eight qualifies, two are found by then
/// all but once in 80 times.
const DRAWS: usize = 48;

impl Policy {
    /// Up to `count` hosts on distinct domains, none in `excluded` domains. `is_old` says of a
    /// candidate's host whether the volume has a slab on it. The same seed gives the same hosts.
    ///
    /// Fewer than `count` when there are not enough.
    #[must_use]
    pub fn place(
        self,
        candidates: &[Candidate],
        is_old: impl Fn(usize) -> bool,
        excluded: &[u32],
        count: usize,
        seed: u64,
    ) -> Vec<usize> {
        if self == Self::LeastLoaded {
            return place(candidates, excluded, count, seed);
        }
        let mut random = Random::new(seed);
        let mut taken = excluded.to_vec();
        let mut chosen = Vec::new();
        while chosen.len() < count {
            let draw = Draw {
                candidates,
                taken: &taken,
                is_old: &is_old,
            };
            let best = self.choose(&draw, &mut random);
            let Some(&Candidate { host, domain, .. }) = best else {
                break;
            };
            taken.push(domain);
            chosen.push(host);
        }
        chosen
    }

    fn choose<'a, F: Fn(usize) -> bool>(
        self,
        draw: &Draw<'a, F>,
        random: &mut Random,
    ) -> Option<&'a Candidate> {
        let (choices, spreads) = match self {
            Self::LeastLoaded => unreachable!("looks at all hosts"),
            Self::TwoChoices => (2, true),
            Self::Single => (1, true),
            Self::Random => (1, false),
        };
        let mut drawn = Vec::with_capacity(choices);
        draw.fill(&mut drawn, choices, random, |c| {
            !spreads || !(draw.is_old)(c.host)
        });
        if drawn.len() < choices && spreads {
            draw.fill(&mut drawn, choices, random, |_| true);
        }
        // Of equals the first, which is a new one if any is.
        let mut best = None::<&Candidate>;
        for at in drawn {
            let candidate = &draw.candidates[at];
            if best.is_none_or(|best| candidate.cmp_load(best) == Ordering::Less) {
                best = Some(candidate);
            }
        }
        best
    }
}

/// What is drawn from.
struct Draw<'a, F> {
    candidates: &'a [Candidate],
    taken: &'a [u32],
    is_old: &'a F,
}

impl<F> Draw<'_, F> {
    /// Draws candidates that have a free slab, are on no taken domain and are `wanted`, each at
    /// most once, until there are `choices`.
    fn fill(
        &self,
        drawn: &mut Vec<usize>,
        choices: usize,
        random: &mut Random,
        wanted: impl Fn(&Candidate) -> bool,
    ) {
        let qualifies = |drawn: &[usize], at: usize| {
            let candidate = &self.candidates[at];
            candidate.slabs_free > 0
                && !self.taken.contains(&candidate.domain)
                && !drawn.contains(&at)
                && wanted(candidate)
        };
        draw(self.candidates.len(), drawn, choices, random, qualifies);
    }
}

/// Draws numbers below `total` that qualify until there are `choices` of them, or no more that do.
/// What was drawn is passed to `qualifies`, which refuses what it does not want twice.
pub(super) fn draw(
    total: usize,
    drawn: &mut Vec<usize>,
    choices: usize,
    random: &mut Random,
    qualifies: impl Fn(&[usize], usize) -> bool,
) {
    for _ in 0..DRAWS {
        if drawn.len() >= choices || total == 0 {
            return;
        }
        let at = random.below(total);
        if qualifies(drawn, at) {
            drawn.push(at);
        }
    }
    // Few qualify. Each of those gets the same chance: a reservoir of what is missing.
    let missing = choices - drawn.len();
    let mut reservoir = Vec::with_capacity(missing);
    let found = (0..total).filter(|&at| qualifies(drawn, at));
    for (seen, at) in found.enumerate() {
        if seen < missing {
            reservoir.push(at);
        } else if let Some(place) = reservoir.get_mut(random.below(seen + 1)) {
            *place = at;
        }
    }
    drawn.extend(reservoir);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Policy; 4] = [
        Policy::LeastLoaded,
        Policy::TwoChoices,
        Policy::Single,
        Policy::Random,
    ];

    fn hosts(free: &[u32]) -> Vec<Candidate> {
        let host = |(host, &slabs_free): (usize, &u32)| Candidate {
            host,
            domain: u32::try_from(host).unwrap(),
            slabs_free,
            slabs_total: 100,
        };
        free.iter().enumerate().map(host).collect()
    }

    /// How often each host is the one that a policy takes.
    fn times(policy: Policy, hosts: &[Candidate], old: &[usize], seeds: u64) -> Vec<u32> {
        let mut times = vec![0; hosts.len()];
        for seed in 0..seeds {
            let chosen = policy.place(hosts, |host| old.contains(&host), &[], 1, seed);
            times[chosen[0]] += 1;
        }
        times
    }

    #[test]
    fn of_two_hosts_drawn_the_less_loaded_one_is_taken() {
        // Four hosts, loads in order: each pair is drawn once in six times, and a host wins
        // against those that are more loaded: 3, 2, 1 and 0 of the pairs.
        let times = times(Policy::TwoChoices, &hosts(&[40, 30, 20, 10]), &[], 6000);
        for (host, expected) in [3000, 2000, 1000, 0].into_iter().enumerate() {
            let far = times[host].abs_diff(expected);
            assert!(far <= expected / 8, "host {host}: {times:?}");
        }
    }

    #[test]
    fn one_draw_looks_at_no_load() {
        for policy in [Policy::Single, Policy::Random] {
            let times = times(policy, &hosts(&[40, 30, 20, 10]), &[], 4000);
            assert!(
                times.iter().all(|n| (850..1150).contains(n)),
                "{policy:?}: {times:?}"
            );
        }
    }

    #[test]
    fn hosts_without_a_slab_of_the_volume_come_first_but_for_random() {
        let hosts = hosts(&[90, 90, 10, 10]);
        for policy in [Policy::TwoChoices, Policy::Single] {
            let times = times(policy, &hosts, &[0, 1], 500);
            assert_eq!((times[0], times[1]), (0, 0), "{policy:?}");
            assert!(times[2] > 150 && times[3] > 150, "{policy:?}: {times:?}");
        }
        let random = times(Policy::Random, &hosts, &[0, 1], 500);
        assert!(random.iter().all(|&n| n > 60), "{random:?}");
        // One new host is left: the other choice is an old one, and the less loaded is taken, of
        // equals the new one.
        let times = times(Policy::TwoChoices, &hosts, &[0, 1, 3], 500);
        assert!(times[..3].iter().all(|&n| n > 120), "{times:?}");
        assert_eq!(times[3], 0, "{times:?}");
        let times = super::tests::times(Policy::Single, &hosts, &[0, 1, 3], 500);
        assert_eq!(times, [0, 0, 500, 0]);
    }

    #[test]
    fn a_few_hosts_with_room_among_a_hundred_thousand_are_found_with_equal_chances() {
        let mut free = vec![0; 100_000];
        let roomy = [17, 40_000, 99_999];
        for at in roomy {
            free[at] = 5;
        }
        let hosts = hosts(&free);
        let times = times(Policy::Single, &hosts, &[], 300);
        assert!(roomy.iter().all(|&at| times[at] > 60), "{roomy:?}");
        let chosen = Policy::TwoChoices.place(&hosts, |_| false, &[], 5, 1);
        let mut all = chosen.clone();
        all.sort_unstable();
        assert_eq!(all, roomy);
    }

    /// The reason for two choices: balls into bins, the fullest far below that of one choice.
    #[test]
    fn two_choices_leave_the_fullest_host_nearer_to_the_mean() {
        let fullest = |policy: Policy| {
            let mut hosts = hosts(&[100; 64]);
            for seed in 0..2048 {
                let chosen = policy.place(&hosts, |_| false, &[], 1, seed);
                hosts[chosen[0]].slabs_free -= 1;
            }
            hosts.iter().map(|host| 100 - host.slabs_free).max()
        };
        // The mean is 32; theory puts the fullest some two above it, against some fifteen.
        assert!(fullest(Policy::TwoChoices) <= Some(36));
        assert!(fullest(Policy::Random) >= Some(40));
    }

    proptest! {
        #[test]
        fn chosen_hosts_have_room_on_distinct_allowed_domains_and_none_is_missed(
            raw in proptest::collection::vec((0_u32..6, 0_u32..3), 0..24),
            old in proptest::collection::vec(0_usize..24, 0..12),
            excluded in proptest::collection::vec(0_u32..6, 0..3),
            count in 0_usize..8,
            seed: u64,
        ) {
            let hosts: Vec<_> = raw
                .iter()
                .enumerate()
                .map(|(host, &(domain, slabs_free))| Candidate { host, domain, slabs_free, slabs_total: 4 })
                .collect();
            let mut roomy: Vec<u32> = hosts
                .iter()
                .filter(|c| c.slabs_free > 0 && !excluded.contains(&c.domain))
                .map(|c| c.domain)
                .collect();
            roomy.sort_unstable();
            roomy.dedup();
            for policy in ALL {
                let chosen = policy.place(&hosts, |host| old.contains(&host), &excluded, count, seed);
                let again = policy.place(&hosts, |host| old.contains(&host), &excluded, count, seed);
                prop_assert_eq!(&chosen, &again);
                prop_assert_eq!(chosen.len(), count.min(roomy.len()), "{:?}", policy);
                prop_assert!(chosen.iter().all(|&h| hosts[h].slabs_free > 0));
                let mut domains: Vec<u32> = chosen.iter().map(|&h| hosts[h].domain).collect();
                domains.sort_unstable();
                domains.dedup();
                prop_assert_eq!(domains.len(), chosen.len());
                prop_assert!(domains.iter().all(|domain| roomy.contains(domain)));
            }
        }
    }
}
