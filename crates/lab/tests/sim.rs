//! The cluster simulator: it finds what is planted, nothing else, and the same every time.
//!
//! Paper: [hydra22] H1-H3, [infiniswap17]; what must hold is said in `cenote_lab::sim`.

use std::time::Duration;

use cenote_lab::sim::{self, Options, Report};

fn options(seed: u64, simulated_seconds: u64) -> Options {
    Options {
        seed,
        duration: Duration::from_secs(simulated_seconds),
        rate: 100,
        ..Options::default()
    }
}

fn simulate(options: &Options) -> Report {
    sim::run(options, |_| {}).expect("the options fit together")
}

fn assert_kept(options: &Options) -> Report {
    let report = simulate(options);
    if let Some(violation) = report.violations.first() {
        let log = violation.log.join("\n");
        panic!(
            "{log}\n{}\nto repeat it: {}",
            violation.what,
            options.command()
        );
    }
    report
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let hash = |seed| simulate(&options(seed, 60)).trace_hash;
    let first = hash(11);
    assert_eq!(first, hash(11));
    assert_ne!(first, hash(12));
}

/// Seeds that found something once, and the first few.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

#[test]
fn known_seeds_keep_every_promise() {
    for seed in SEEDS {
        let mut options = options(seed, 3600);
        options.limit = Some(Duration::from_secs(10));
        let report = assert_kept(&options);
        assert!(
            report.page_ops > 1000 && report.faults > 10,
            "nothing happened: {report:?}"
        );
    }
}

#[test]
fn a_fresh_seed_keeps_every_promise() {
    let seed = std::process::id().into();
    let mut options = options(seed, 3600 * 24);
    options.limit = Some(Duration::from_secs(60));
    let report = assert_kept(&options);
    println!(
        "seed {seed}: {} s, {} page operations, {} faults",
        report.simulated_seconds, report.page_ops, report.faults
    );
}

#[test]
fn a_day_of_a_calm_cluster_keeps_every_promise() {
    let day = Options {
        clients: 1,
        workers: 2,
        hosts: 8,
        rate: 2,
        fault_pause: Duration::from_secs(60),
        ..options(5, 86_400)
    };
    let report = assert_kept(&day);
    assert!(report.simulated_seconds >= 86_400);
}

#[test]
fn mirrors_and_wide_stripes_keep_every_promise() {
    for (scheme, hosts) in [("mirror:3", 8), ("rs:8+2", 30), ("rs:2+1", 8)] {
        let options = Options {
            scheme: scheme.parse().expect("a valid scheme"),
            hosts,
            ..options(21, 60)
        };
        assert_kept(&options);
    }
}

/// How many seeds are tried before a planted mistake counts as not found.
const SEEDS_MAX: u64 = 8;

#[test]
#[ignore = "takes minutes: cargo test --release -p cenote-lab --test sim -- --ignored --nocapture"]
fn every_planted_mistake_is_found() {
    let mut missed = Vec::new();
    for name in sim::plants() {
        let found = (1..=SEEDS_MAX).find(|&seed| is_found(name, seed));
        match found {
            Some(seed) => println!("{name}: found by seed {seed}"),
            None => missed.push(name),
        }
    }
    assert!(
        missed.is_empty(),
        "not found in {SEEDS_MAX} seeds: {missed:?}"
    );
}

/// Whether the simulator, or an assertion of the code itself, sees the mistake.
fn is_found(name: &str, seed: u64) -> bool {
    let options = Options {
        plant: Some(name.to_owned()),
        ..options(seed, 120)
    };
    let outcome = std::panic::catch_unwind(|| simulate(&options));
    outcome.map_or(true, |report| !report.violations.is_empty())
}
