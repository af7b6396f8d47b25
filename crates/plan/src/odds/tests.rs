//! The odds beside an enumeration of every failure of small clusters.

use super::*;

/// Hosts of the groups of a cluster, as masks, made without the code's arithmetic.
fn groups(case: &Case) -> Vec<u32> {
    let hosts: Vec<u32> = (0..u32::try_from(case.hosts).unwrap()).collect();
    let of = hosts.chunks(case.width());
    of.filter(|group| group.len() >= case.members())
        .map(|group| group.iter().fold(0, |mask, host| mask | 1 << host))
        .collect()
}

/// Odds of loss, with `weight` of each set of hosts that fails.
fn enumerated(case: &Case, weight: impl Fn(u32) -> f64) -> f64 {
    enumerated_of(&groups(case), case.hosts, case.r, weight)
}

fn enumerated_of(groups: &[u32], units: usize, spared: usize, weight: impl Fn(u32) -> f64) -> f64 {
    let is_lost = |failed: u32| {
        let hit = |group: &u32| (group & failed).count_ones() as usize;
        groups.iter().any(|group| hit(group) > spared)
    };
    let sets = (0..1_u32 << units).filter(|&failed| is_lost(failed));
    sets.map(weight).sum()
}

/// Odds when exactly `failing` units fail.
fn enumerated_with(groups: &[u32], units: usize, spared: usize, failing: usize) -> f64 {
    let chosen = |set: u32| set.count_ones() as usize == failing;
    let sets = (0..1_u32 << units).filter(|&set| chosen(set)).count();
    let each = 1.0 / sets as f64;
    let weight = |set: u32| if chosen(set) { each } else { 0.0 };
    enumerated_of(groups, units, spared, weight)
}

fn sets(masks: &[u32], units: usize, spared: usize) -> FatalSets {
    let of = |mask: &u32| (0..units).filter(|unit| mask >> unit & 1 == 1).collect();
    FatalSets::new(masks.iter().map(of), units, spared)
}

/// Small clusters: some with a last group that is not whole, some with hosts of no group.
fn small() -> impl Iterator<Item = Case> {
    let shapes = [
        (3, 2, 1, 0),
        (7, 1, 1, 1),
        (12, 2, 1, 2),
        (13, 3, 1, 1),
        (14, 3, 1, 1),
        (14, 3, 2, 1),
        (15, 3, 2, 7),
        (16, 5, 2, 0),
        (10, 8, 0, 0),
    ];
    shapes.into_iter().map(|(hosts, k, r, l)| Case {
        hosts,
        k,
        r,
        l,
        slabs_per_host: 16,
        failed: 0.01,
    })
}

fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-11 * expected
}

#[test]
fn hosts_that_fail_by_themselves_have_the_odds_of_an_enumeration() {
    for case in small() {
        for failed in [0.0, 0.001, 0.01, 0.2, 1.0] {
            let case = Case { failed, ..case };
            let hosts = i32::try_from(case.hosts).unwrap();
            let expected = enumerated(&case, |set| {
                let down = set.count_ones().cast_signed();
                failed.powi(down) * (1.0 - failed).powi(hosts - down)
            });
            let found = Failing::Each.coding_sets(&case);
            assert!(is_near(found, expected), "{case:?}: {found} {expected}");
        }
    }
}

#[test]
fn units_that_fail_in_a_given_number_have_the_odds_of_an_enumeration() {
    for case in small() {
        for failing in 0..=case.hosts {
            let expected = enumerated_with(&groups(&case), case.hosts, case.r, failing);
            let found = sets(&groups(&case), case.hosts, case.r).odds(failing);
            assert!(
                is_near(found, expected),
                "{case:?} {failing}: {found} {expected}"
            );
        }
    }
}

#[test]
fn sets_that_overlap_have_the_odds_of_an_enumeration() {
    let shapes: [(&[u32], usize, usize); 4] = [
        (&[0b0011_1100, 0b1111_0000], 8, 1),
        (&[0b111, 0b11_1000, 0b10_0101_0001, 0b111], 11, 2),
        (&[0b1_1111, 0b11_1110, 0b111_1100], 12, 0),
        (&[0b1111, 0b1_1110, 0b10_0000_0000_1111], 14, 3),
    ];
    for (masks, units, spared) in shapes {
        for failing in 0..=units {
            let expected = enumerated_with(masks, units, spared, failing);
            let found = sets(masks, units, spared).odds(failing);
            assert!(
                is_near(found, expected),
                "{masks:x?} {failing}: {found} {expected}"
            );
        }
    }
}

#[test]
fn odds_that_cannot_be_counted_are_not_below_those_that_can() {
    // Rings of sets, each of which shares units with the next.
    let ring_sets = |units: usize| {
        let of = move |first| (0..6).map(|at| (first + at) % units).collect();
        (0..units).step_by(3).map(of)
    };
    let ring = |units| FatalSets::new(ring_sets(units), units, 2);
    let alone = |units, failing| -> f64 {
        ring_sets(units)
            .map(|set| FatalSets::new([set], units, 2).odds(failing))
            .sum()
    };
    let (exact, bound) = (ring(30).odds(4), alone(30, 4));
    assert!(0.0 < exact && exact < bound, "{exact} {bound}");
    // 4 of 300 fail in too many ways: what is told is the bound.
    assert!(is_near(ring(300).odds(4), alone(300, 4)));
    // 40 of 300: some 0.04 of each of 100 sets.
    assert_eq!(ring(300).odds(40), 1.0);
}

#[test]
fn a_cluster_in_which_one_host_fails_in_the_mean_can_lose_data() {
    let case = Case {
        hosts: 100,
        ..Case::PAPER
    };
    assert_eq!(Failing::of(&case), Failing::Each);
    assert_eq!(case.coding_sets(), 0.0, "by the formula one host fails");
    // Eight groups of 12: 8 C(12,3) 0.01^3 0.99^9, and a little for those that lose more.
    let odds = Failing::Each.coding_sets(&case);
    assert!((0.00160..0.00167).contains(&odds), "{odds}");
    // 160 stripes of 10: 160 C(10,3) 0.01^3 0.99^7, less some that go together.
    let odds = Failing::Each.random_groups(&case);
    assert!((0.0175..0.0185).contains(&odds), "{odds}");
    assert_eq!(Failing::of(&Case::PAPER), Failing::Share);
}

#[test]
fn wide_groups_have_odds_too() {
    let wide = Case {
        hosts: 9000,
        k: 8000,
        r: 8,
        failed: 0.001,
        ..Case::PAPER
    };
    // Of 8010 hosts 8 fail in the mean: more than 8 do in nearly half of all cases.
    let odds = Failing::Each.coding_sets(&wide);
    assert!((0.3..0.5).contains(&odds), "{odds}");
}

#[test]
fn no_odds_are_above_1() {
    for r in 0..3 {
        for failed in [0.0, 0.01, 0.5, 1.0] {
            for hosts in [12, 100, 1000, 100_000] {
                let case = Case {
                    hosts,
                    r,
                    failed,
                    ..Case::PAPER
                };
                for failing in [Failing::Share, Failing::Each] {
                    let both = [failing.random_groups(&case), failing.coding_sets(&case)];
                    assert!(
                        both.iter().all(|odds| (0.0..=1.0).contains(odds)),
                        "{both:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn wide_groups_of_few_stripes_cover_a_part_of_their_sets() {
    // The stripes of the base case cover all but 3 sets in ten million.
    assert!(covered(&Case::PAPER) > 0.999_999);
    // 38.4 stripes of 5 among 12 hosts, each with 10 of 220 sets of three.
    let few = Case {
        k: 3,
        r: 2,
        l: 7,
        ..Case::PAPER
    };
    let expected = 1.0 - (1.0_f64 - 10.0 / 220.0).powf(38.4);
    assert!((covered(&few) - expected).abs() < 1e-9);
    let alone = Case { l: 0, ..few };
    assert_eq!(covered(&alone), 1.0);
}
