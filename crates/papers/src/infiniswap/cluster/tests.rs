use proptest::prelude::*;

use super::*;

fn options() -> Options {
    Options {
        runs: 4,
        ..Options::default()
    }
}

/// What containers want and may have adds up without the simulation: 90 of 11.2 GiB in the mean,
/// of which 45, 27 and 18 may have all, three quarters and half of it, beside 32 systems.
#[test]
fn memory_without_slabs_is_what_containers_may_have() {
    let outcomes = run(&options()).unwrap();
    let expected = (11.2 * (45.0 + 27.0 * 0.75 + 18.0 * 0.5) + 32.0 * 2.0) / 2048.0;
    for outcome in &outcomes {
        let found = outcome.utilisation_without;
        // Who gets which limit is shuffled: peaks differ by up to 5.5 GiB.
        assert!((found.median - expected).abs() < 0.01, "{found:?}");
        assert!(outcome.utilisation_with.low > found.high);
    }
    // The overflow is what is missing to 11.2 GiB each, in slabs that are not quite full.
    let all = (11.2 * 90.0 + 64.0) / 2048.0;
    let with = outcomes[0].utilisation_with.median;
    assert!((all - 0.005..all + 0.02).contains(&with), "{with}");
}

#[test]
fn the_seed_decides() {
    let options = Options {
        runs: 2,
        ..options()
    };
    let outcomes = run(&options).unwrap();
    assert_eq!(outcomes, run(&options).unwrap());
    let other = Options { seed: 9, ..options };
    assert_ne!(outcomes, run(&other).unwrap());
}

#[test]
fn without_hot_slabs_nothing_is_lent() {
    let cold = Options {
        hot_slab: f64::INFINITY,
        runs: 1,
        ..Options::default()
    };
    for outcome in run(&cold).unwrap() {
        assert_eq!(outcome.machines_with, outcome.machines_without);
        assert_eq!(outcome.network_mbps.high, 0.0);
        assert_eq!(outcome.remote_share.high, 0.0);
    }
}

#[test]
fn figures_make_a_table_and_a_picture() {
    let outcomes = run(&Options {
        runs: 1,
        ..Options::default()
    })
    .unwrap();
    let table = csv(&outcomes);
    assert_eq!(table.text().lines().count(), 1 + 2 * 11);
    assert!(table.text().contains("\noverflow,utilisation_ratio,"));
    let svg = plot(&outcomes).svg().unwrap();
    assert!(svg.contains("to disk") && svg.contains("every page"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let fine = options();
    for wrong in [
        Options {
            runs: 0,
            ..fine.clone()
        },
        Options {
            machines: 1,
            ..fine.clone()
        },
        Options {
            seconds: STEADY_S - 1,
            ..fine.clone()
        },
        Options {
            system_gib: 0.0,
            ..fine.clone()
        },
        Options {
            containers: 1000,
            ..fine
        },
    ] {
        assert!(run(&wrong).is_err(), "{wrong:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever programs do: once they are steady, a machine that lends has its headroom; nobody
    /// lends to itself; a slab is on one host, which knows of it.
    #[test]
    fn hosts_keep_their_headroom_and_books_agree(
        used in proptest::collection::vec(2.0_f64..62.0, 4..12),
        swapped in proptest::collection::vec(0.0_f64..30.0, 4..12),
        later in proptest::collection::vec(2.0_f64..62.0, 12),
        seed: u64,
    ) {
        let machines = used.len().min(swapped.len());
        let options = Options { machines, ..Options::default() };
        let mut remote = Remote::new(&options);
        let mut random = Random::new(seed);
        for phase in [&used, &later] {
            let loads: Vec<Load> = (0..machines)
                .map(|machine| Load {
                    used_gib: phase[machine],
                    swapped_gib: swapped[machine],
                    faults: 1000.0,
                })
                .collect();
            // The average is within a thousandth of the figure after 31 seconds.
            for _ in 0..60 {
                remote.step(&loads, &mut random);
            }
            for (machine, load) in loads.iter().enumerate() {
                let lent_gib = remote.lent_gib(machine);
                prop_assert!(
                    lent_gib == 0.0 || load.used_gib + lent_gib <= 64.0 - 8.0 + 0.01,
                    "{load:?} {lent_gib}"
                );
            }
            prop_assert!(remote.books_agree());
        }
    }
}
