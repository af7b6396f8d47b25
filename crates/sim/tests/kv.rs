//! The simulator of a coding group: it finds what is injected, nothing else, and the same every time.
//!
//! Paper: \[cocytus16\] C1 to C5; what must hold is said in `cenote_sim::kv`.

use cenote_sim::kv::{self, Focus, Options, Report, Scheme, Service};
use cenote_sim::verdict::{Verdict, search};

fn assert_kept(options: &Options) -> Report {
    let report = kv::run(options);
    if let Some(violation) = &report.violation {
        let log = report.log.join("\n");
        let command = options.command();
        panic!(
            "{log}\nseed {}: {violation}\nto repeat it: {command}",
            options.seed
        );
    }
    report
}

/// Some seeds of one shape; they have to do something.
fn assert_all_kept(shape: &Options, seeds: u64) -> Report {
    let mut sum = Report::default();
    for seed in 1..=seeds {
        sum.add(&assert_kept(&Options {
            seed,
            ..shape.clone()
        }));
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
        assert!(!spreads || sum.exchanged > 25, "few change places: {sum:?}");
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

fn verdict(options: &Options) -> Verdict {
    let report = kv::run(options);
    Verdict::new(report.violation, report.has_panicked)
}

/// Of the first seeds of each mistake's own group one has to show it.
#[test]
fn every_injected_fault_is_found() {
    let mut missed = Vec::new();
    for name in kv::fault_names() {
        let injected = kv::injected(name).expect("it is one of them");
        let faulty = |seed| verdict(&Options::suited(injected, seed));
        let sound = |seed| {
            verdict(&Options {
                injected: None,
                ..Options::suited(injected, seed)
            })
        };
        match search(1..=SEEDS, faulty, sound) {
            Ok((seed, how)) => println!("{name}: seed {seed}: {how}"),
            Err(why) => missed.push(format!("{name}: {why}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

const SEEDS: u64 = 100;
