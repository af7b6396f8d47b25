//! The formula beside the figures of the paper's sweeps, as they were computed independently.

use super::*;

/// Whether `found` has the digits that `printed` has, some of which were rounded twice.
#[track_caller]
fn agrees(found: f64, printed: &str) {
    let expected: f64 = printed.parse().unwrap();
    let mantissa = printed.split('e').next().unwrap();
    let digits = mantissa
        .trim_start_matches(['0', '.'])
        .chars()
        .filter(char::is_ascii_digit)
        .count();
    let leading = expected.log10().floor() as i32;
    let ulp = 10_f64.powi(leading + 1 - digits as i32);
    assert!(
        (found - expected).abs() <= ulp * 0.55,
        "{found} is not {printed}"
    );
}

#[test]
fn the_base_case_is_an_order_of_magnitude_apart() {
    agrees(Case::PAPER.random_groups(), "0.1295");
    agrees(Case::PAPER.coding_sets(), "0.01315");
    agrees(
        Case::PAPER.random_groups() / Case::PAPER.coding_sets(),
        "9.85",
    );
}

#[test]
fn parities() {
    let random = ["0.998", "0.130", "0.00243", "3.2e-5"];
    let sets = ["0.364", "0.0132", "0.000279", "4.4e-6"];
    for (at, r) in (1..=4).enumerate() {
        let case = Case { r, ..Case::PAPER };
        agrees(case.random_groups(), random[at]);
        agrees(case.coding_sets(), sets[at]);
    }
}

#[test]
fn hosts_beyond_the_stripe() {
    let sets = [
        (0, "0.0086"),
        (1, "0.0108"),
        (2, "0.0132"),
        (3, "0.0158"),
        (4, "0.0186"),
        (6, "0.0250"),
        (8, "0.0322"),
    ];
    for (l, printed) in sets {
        let case = Case { l, ..Case::PAPER };
        agrees(case.coding_sets(), printed);
        agrees(case.random_groups(), "0.1295");
    }
}

#[test]
fn slabs_of_a_host() {
    let random = [
        (2, "0.017"),
        (4, "0.034"),
        (8, "0.067"),
        (16, "0.130"),
        (32, "0.242"),
        (64, "0.426"),
        (100, "0.581"),
        (256, "0.894"),
    ];
    for (slabs_per_host, printed) in random {
        let case = Case {
            slabs_per_host,
            ..Case::PAPER
        };
        agrees(case.random_groups(), printed);
        agrees(case.coding_sets(), "0.0132");
    }
}

#[test]
fn the_share_that_fails() {
    let both = [
        (0.005, "0.0115", "0.0011"),
        (0.01, "0.130", "0.0132"),
        (0.015, "0.409", "0.0490"),
        (0.02, "0.732", "0.118"),
        (0.03, "0.991", "0.361"),
    ];
    for (failed, random, sets) in both {
        let case = Case {
            failed,
            ..Case::PAPER
        };
        agrees(case.random_groups(), random);
        agrees(case.coding_sets(), sets);
    }
}

#[test]
fn data_splits() {
    let both = [
        (2, "0.0115", "0.0024"),
        (4, "0.0378", "0.0050"),
        (8, "0.130", "0.0132"),
        (16, "0.408", "0.0403"),
    ];
    for (k, random, sets) in both {
        let case = Case { k, ..Case::PAPER };
        agrees(case.random_groups(), random);
        agrees(case.coding_sets(), sets);
    }
}

#[test]
fn replication_is_a_code_of_one_data_split() {
    let copies = |copies: usize| Case {
        k: 1,
        r: copies - 1,
        ..Case::PAPER
    };
    agrees(copies(2).random_groups(), "0.516");
    agrees(copies(3).random_groups(), "0.0038");
}

#[test]
fn what_cannot_be_lost_is_not_and_tiny_odds_are_not_rounded_to_none() {
    let few = Case {
        failed: 0.002,
        ..Case::PAPER
    };
    assert_eq!((few.random_groups(), few.coding_sets()), (0.0, 0.0));
    let sure = Case {
        failed: 1.0,
        ..Case::PAPER
    };
    assert_eq!(sure.random_groups(), 1.0);
    let rare = Case {
        r: 7,
        ..Case::PAPER
    };
    // C(17,8)/C(1000,8) x 1000/17 x C(10,8), by hand.
    let expected = 24310.0 / 2.411_152_e19 * (1000.0 / 17.0) * 45.0;
    let found = rare.coding_sets();
    assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    assert!(Case::PAPER.check().is_ok());
    let wrong = [
        Case {
            k: 0,
            ..Case::PAPER
        },
        Case {
            hosts: 11,
            ..Case::PAPER
        },
        Case {
            failed: 1.1,
            ..Case::PAPER
        },
        Case {
            slabs_per_host: 0,
            ..Case::PAPER
        },
    ];
    for case in wrong {
        assert!(case.check().is_err(), "{case:?}");
    }
}
