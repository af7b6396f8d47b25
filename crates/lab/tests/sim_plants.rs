//! The cluster simulator finds what is planted, in clusters that keep every promise without it.

use std::sync::Mutex;
use std::time::Duration;

use cenote_lab::sim::{self, Options};
use kept::{assert_kept, simulate};

#[path = "sim/kept.rs"]
mod kept;

/// Seeds after which a planted mistake counts as not found. Each has a cluster of its own, small
/// and with the load and the faults that lead to it: `sim::planted`.
const PLANTED_SEEDS: u64 = 6;

#[test]
fn every_planted_mistake_is_found() {
    let names = Mutex::new(sim::plants());
    let missed = Mutex::new(Vec::new());
    let take = || names.lock().expect("no holder panics").pop();
    let search = || {
        while let Some(name) = take() {
            match (1..=PLANTED_SEEDS).find(|&seed| is_found(name, seed)) {
                Some(seed) => println!("{name}: found by seed {seed}"),
                None => missed.lock().expect("no holder panics").push(name),
            }
        }
    };
    // What is planted is planted in one thread.
    std::thread::scope(|scope| {
        scope.spawn(search);
        scope.spawn(search);
    });
    let missed = missed.into_inner().expect("no holder panics");
    assert!(
        missed.is_empty(),
        "not found in {PLANTED_SEEDS} seeds: {missed:?}"
    );
}

/// Whether the simulator, or an assertion of the code itself, sees the mistake.
fn is_found(name: &str, seed: u64) -> bool {
    let outcome = std::panic::catch_unwind(|| simulate(&sim::planted(name, seed)));
    outcome.map_or(true, |report| !report.violations.is_empty())
}

#[test]
fn the_clusters_of_planted_mistakes_keep_every_promise_without_them() {
    for name in [
        "two-writers",
        "forget-in-flight",
        "no-zero",
        "ack-at-k",
        "keep-stale",
        "forget-listed",
        "late-split-lands",
        "release-early",
        "skip-compare",
        "skip-tag",
        "believe-sources",
        "skip-side-mark",
        "early-clear",
        "mend-by-parity",
        "keep-slabs",
        "forget-slab",
        "keep-bit-away",
    ] {
        let options = Options {
            plant: None,
            duration: Duration::from_secs(20),
            ..sim::planted(name, 1)
        };
        assert_kept(&options);
    }
}
