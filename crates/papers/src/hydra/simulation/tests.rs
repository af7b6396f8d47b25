//! The estimate beside an enumeration of all failures, and beside the paper's formula.

use cenote_pool::placement::Pick;

use super::*;

const SETS: Placer = Placer::CodingSets {
    spare: 2,
    pick: Pick::TwoChoices,
};

#[test]
fn every_failure_of_a_small_cluster_is_counted_once() {
    let case = Case {
        hosts: 14,
        k: 2,
        r: 1,
        l: 2,
        slabs_per_host: 2,
        failed: 0.25,
    };
    assert_eq!(case.failing(), 4);
    let domains = apart(case.hosts);
    let cluster = Cluster {
        domains: &domains,
        members: 3,
        slabs_per_host: 2,
    };
    for placer in [Placer::Random, SETS] {
        let mut random = Random::new(5);
        let stripes = Stripes::place(placer, &cluster, &mut random);
        let is_lost = |failed: u32| {
            let hit = |stripe: &[u32]| stripe.iter().filter(|&&h| failed >> h & 1 == 1).count();
            stripes.iter().any(|stripe| hit(stripe) > case.r)
        };
        for failing in [Failing::Share, Failing::Each] {
            let exact: f64 = (0_u32..1 << 14)
                .filter(|&failed| is_lost(failed))
                .map(|failed| match (failing, failed.count_ones()) {
                    // One of C(14,4) sets.
                    (Failing::Share, 4) => 1.0 / 1001.0,
                    (Failing::Share, _) => 0.0,
                    (Failing::Each, down) => {
                        0.25_f64.powi(down.cast_signed()) * 0.75_f64.powi(14 - down.cast_signed())
                    }
                })
                .sum();
            assert!((0.1..0.95).contains(&exact), "{exact}");
            let failures = Failures::new(&case, failing, &stripes);
            let figures: Vec<f64> = (0..20).map(|_| failures.loss(2000, &mut random)).collect();
            let found = Estimate::of(&figures);
            assert!(found.error < 0.01 * exact, "{found:?}");
            assert!(
                (found.mean - exact).abs() < 4.0 * found.error,
                "{failing:?} {found:?} {exact}"
            );
        }
    }
}

#[test]
fn rare_losses_of_a_small_cluster_are_as_the_binomial_odds_have_them() {
    // One host fails in the mean.
    let case = Case {
        hosts: 96,
        ..Case::PAPER
    };
    let found = loss(&case, Failing::Each, SETS, USUAL, || {});
    let expected = Failing::Each.coding_sets(&case);
    let far = (found.mean - expected).abs();
    assert!(found.error < 0.01 * found.mean, "{found:?}");
    assert!(
        far < 4.0 * found.error + 0.003 * expected,
        "{found:?} {expected}"
    );
}

#[test]
fn odds_of_what_is_lost_for_sure_are_1_and_each_cluster_is_told() {
    let mut steps = 0;
    let case = Case {
        r: 0,
        ..Case::PAPER
    };
    let found = loss(&case, Failing::Share, Placer::Random, USUAL, || steps += 1);
    assert!(found.mean <= 1.0 && found.mean > 0.99, "{found:?}");
    assert_eq!(steps, USUAL.clusters);
}

#[test]
fn large_clusters_get_less_effort_and_the_papers_gets_all() {
    assert_eq!(USUAL.within_seconds(&Case::PAPER), USUAL);
    let many = Case {
        hosts: 2_000_000,
        ..Case::PAPER
    };
    let effort = USUAL.within_seconds(&many);
    assert_eq!((effort.clusters, effort.failures), (2, 200));
    let none = Case {
        failed: 0.0,
        ..Case::PAPER
    };
    assert_eq!(USUAL.within_seconds(&none), USUAL);
}

/// That at least r+1 of the hosts of a group are among those that fail (hypergeometric), and that
/// of groups of these sizes, taken as independent, one is so. Unlike the paper's formula it counts a
/// group once that loses more than r+1.
fn one_of(sizes: &[usize], case: &Case) -> f64 {
    let failing = case.failing();
    let spared = |&size: &usize| {
        let ways = |lost: usize| choose(size, lost) * choose(case.hosts - size, failing - lost);
        let lost: f64 = (case.r + 1..=failing.min(size)).map(ways).sum();
        1.0 - lost / choose(case.hosts, failing)
    };
    1.0 - sizes.iter().map(spared).product::<f64>()
}

#[track_caller]
fn agrees(case: &Case, placer: Placer, expected: f64) {
    let found = loss(case, Failing::Share, placer, USUAL, || {});
    assert!(found.error < 0.01 * found.mean, "{found:?}");
    let far = (found.mean - expected).abs();
    assert!(
        far < 4.0 * found.error + 0.003 * expected,
        "{found:?} {expected}"
    );
}

#[test]
fn the_base_case_and_rare_losses_are_as_the_hypergeometric_distribution_has_them() {
    for r in [2, 3, 4] {
        let case = Case { r, ..Case::PAPER };
        let stripes = vec![case.members(); case.hosts * 16 / case.members()];
        let random = one_of(&stripes, &case);
        agrees(&case, Placer::Random, random);
        agrees(&case, Placer::TwoChoices, random);
        // Sixteen slabs a host make nearly every r+1 hosts of a group those of some stripe.
        let mut groups = vec![case.width(); case.hosts / case.width()];
        let rest = case.hosts % case.width();
        if rest >= case.members() {
            groups.push(rest);
        }
        agrees(&case, SETS, one_of(&groups, &case));
    }
}

#[test]
fn too_few_failures_lose_nothing() {
    let case = Case {
        failed: 0.002,
        ..Case::PAPER
    };
    assert_eq!(
        loss(&case, Failing::Share, Placer::Random, USUAL, || {}).mean,
        0.0
    );
}

#[test]
fn an_error_is_that_of_the_mean() {
    let found = Estimate::of(&[1.0, 2.0, 3.0, 6.0]);
    assert_eq!(found.mean, 3.0);
    // Variance 14 / 3, of the mean a fourth of it.
    assert!((found.error - (14.0_f64 / 12.0).sqrt()).abs() < 1e-12);
}
