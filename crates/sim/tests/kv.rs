//! The simulator of a coding group: it finds what is injected, nothing else, and the same every time.
//!
//! Paper: \[cocytus16\] C1 to C5; what must hold is said in `cenote_sim::kv`.

use cenote_sim::kv::{self, FAULTS, Focus, Options, Scheme, Service, Tally};
use cenote_sim::verdict::missed;

/// Some seeds of one shape; they have to do something.
fn assert_all_kept(shape: &Options, seeds: u64) -> Tally {
    let mut sum = Tally::default();
    for seed in 1..=seeds {
        let options = Options {
            seed,
            ..shape.clone()
        };
        sum.add(&kv::run(&options).kept(options.command()).tally);
    }
    println!("{shape:?}: {sum:?}");
    assert!(
        sum.operations > 20 * seeds
            && sum.faults > seeds
            && sum.left > seeds / 2
            && u64::from(sum.views) > 3 * seeds,
        "little happened: {sum:?}"
    );
    sum
}

#[test]
fn every_promise_is_kept_by_3_and_2() {
    for (_, focus) in Focus::ALL {
        let shape = Options {
            focus: Some(focus),
            ..Options::default()
        };
        let sum = assert_all_kept(&shape, 75);
        let spreads = focus == Focus::Spreading;
        assert!(!spreads || sum.exchanged > 15, "few change places: {sum:?}");
    }
}

#[test]
fn every_promise_is_kept_by_4_and_3_in_two_words_of_units() {
    let shape = Options {
        k: 4,
        m: 3,
        units: 70,
        faults: 10,
        ..Options::default()
    };
    assert_all_kept(&shape, 60);
}

#[test]
fn every_promise_is_kept_by_6_and_4() {
    let shape = Options {
        k: 6,
        m: 4,
        faults: 12,
        ..Options::default()
    };
    assert_all_kept(&shape, 60);
}

/// The widest groups: sets of partitions are all of 32 bits.
#[test]
fn every_promise_is_kept_by_32_and_3() {
    let shape = Options {
        k: 32,
        m: 3,
        // With so many members a client's turn comes seldom.
        steps: 20_000,
        faults: 12,
        ..Options::default()
    };
    assert_all_kept(&shape, 3);
}

#[test]
fn every_promise_is_kept_by_one_partition() {
    let shape = Options {
        k: 1,
        m: 1,
        ..Options::default()
    };
    assert_all_kept(&shape, 100);
}

#[test]
fn every_promise_is_kept_by_copies() {
    let shape = Options {
        scheme: Scheme::Replicated,
        ..Options::default()
    };
    assert_all_kept(&shape, 100);
}

#[test]
fn every_promise_is_kept_where_changes_wait_for_recoveries() {
    for (scheme, units) in [(Scheme::Coded, 70), (Scheme::Replicated, 12)] {
        let shape = Options {
            service: Service::Blocked,
            scheme,
            units,
            ..Options::default()
        };
        assert_all_kept(&shape, 75);
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let run = |seed| {
        kv::run(&Options {
            seed,
            ..Options::default()
        })
    };
    let first = run(11);
    assert!(!first.log.is_empty());
    assert_eq!(first, run(11));
    assert_ne!(first.log, run(12).log);
}

/// Of the first seeds of each mistake's own group one has to show it.
#[test]
fn every_injected_fault_is_found() {
    let missed = missed(&FAULTS, 1..=100, |seed, mistake, injected| {
        let suited = Options::suited(mistake, seed);
        kv::run(&Options { injected, ..suited }).verdict()
    });
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
