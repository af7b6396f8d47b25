//! Which slabs a host gives up when it must: a few more than it needs are looked at, and the
//! least active of those go.
//!
//! Arithmetic only: a host, and a simulation of many, draw slabs with [`draw`], ask their clients
//! how active each is, and choose with [`least_active`]. With every slab looked at, the choice
//! would be perfect and every client asked; with none more than needed it is blind.
//! Paper: \[infiniswap17\] section 5.2, "batch eviction".

use crate::random::Random;

/// Slabs that are looked at beyond those that go, as in the authors' code; the paper leaves it
/// open.
pub const EXTRA: usize = 2;

/// `count + extra` of the slabs at random, each at most once, in random order; `extra` counts as
/// `count` when it is more (E' <= E). All of them when there are fewer.
#[must_use]
pub fn draw<S: Copy>(slabs: &[S], count: usize, extra: usize, seed: u64) -> Vec<S> {
    let mut random = Random::new(seed);
    let mut slabs = slabs.to_vec();
    let drawn = slabs.len().min(count.saturating_add(extra.min(count)));
    for at in 0..drawn {
        let other = at + random.below(slabs.len() - at);
        slabs.swap(at, other);
    }
    slabs.truncate(drawn);
    slabs
}

/// The `count` least active slabs, the least active first; of equals those that come first in the
/// list. An activity that is not known (`None`) counts as more than any that is.
#[must_use]
pub fn least_active<S: Copy>(slabs: &[(S, Option<u32>)], count: usize) -> Vec<S> {
    let mut order: Vec<_> = slabs.iter().collect();
    order.sort_by_key(|(_, activity)| activity.map_or(u64::MAX, u64::from));
    let chosen = order.into_iter().take(count);
    chosen.map(|&(slab, _)| slab).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_least_active_go_and_the_unknown_stay_longest() {
        let slabs = [
            ('a', Some(u32::MAX)),
            ('b', None),
            ('c', Some(7)),
            ('d', Some(0)),
            ('e', Some(7)),
        ];
        assert_eq!(least_active(&slabs, 4), ['d', 'c', 'e', 'a']);
        assert_eq!(least_active(&slabs, 9), ['d', 'c', 'e', 'a', 'b']);
    }

    /// Figure 8: with E = 10, how often all ten that go are lightly active, by the share that is
    /// busy. The figures are the binomial sums of the formula, worked out apart from this code.
    #[test]
    fn looking_at_a_few_more_finds_the_lightly_active() {
        let figures = [
            (100, 0, 0.349),
            (100, 2, 0.889),
            (100, 5, 0.998),
            (300, 2, 0.253),
            (300, 10, 0.983),
            (500, 5, 0.151),
        ];
        const TRIALS: u32 = 2000;
        for (busy, extra, expected) in figures {
            let slabs: Vec<u32> = (0..1000).collect();
            // Of a thousand slabs the first `busy` are busy; a draw knows no order.
            let all_light = |seed| {
                let drawn = draw(&slabs, 10, extra, seed);
                let activity = |&slab: &u32| (slab, Some(if slab < busy { 1000 } else { 1 }));
                let asked: Vec<_> = drawn.iter().map(activity).collect();
                least_active(&asked, 10).iter().all(|&slab| slab >= busy)
            };
            let light = (0..u64::from(TRIALS))
                .filter(|&seed| all_light(seed))
                .count();
            let share = light as f64 / f64::from(TRIALS);
            // Three deviations of 2000 trials, and a thousand slabs are not infinitely many.
            assert!(
                (share - expected).abs() < 0.04,
                "{busy} of 1000 busy, {extra} more: {share}, expected {expected}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_draw_repeats_no_slab_and_has_as_many_as_there_are(
            slabs in proptest::collection::btree_set(0_u32..100, 0..40),
            count in 0_usize..20,
            extra in 0_usize..20,
            seed: u64,
        ) {
            let slabs: Vec<u32> = slabs.into_iter().collect();
            let drawn = draw(&slabs, count, extra, seed);
            prop_assert_eq!(drawn.len(), slabs.len().min(count + extra.min(count)));
            let mut distinct = drawn.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), drawn.len());
            prop_assert!(drawn.iter().all(|slab| slabs.contains(slab)));
            prop_assert_eq!(drawn, draw(&slabs, count, extra, seed));
        }
    }
}
