//! The cluster simulator finds what is injected, in clusters that keep every promise without it.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cenote_sim::cluster::{self, Options, Report};
use cenote_sim::verdict::{Verdict, search};

/// Seeds after which an injected fault counts as not found. Each has a cluster of its own, small
/// and with the load and the faults that lead to it: `cluster::injected`.
const INJECTED_SEEDS: u64 = 6;

#[test]
fn every_injected_fault_is_found_and_its_cluster_keeps_every_promise_without_it() {
    let names = Mutex::new(cluster::fault_names());
    let missed = Mutex::new(Vec::new());
    let take = || names.lock().expect("no holder panics").pop();
    let look = || {
        while let Some(name) = take() {
            let began = Instant::now();
            match find(name) {
                Ok((seed, what)) => {
                    let took_s = began.elapsed().as_secs_f64();
                    println!("{name}: {took_s:.1} s, seed {seed}: {what}");
                }
                Err(why) => {
                    let mut missed = missed.lock().expect("no holder panics");
                    missed.push(format!("{name}: {why}"));
                }
            }
        }
    };
    // What is injected is injected in one thread.
    std::thread::scope(|scope| {
        scope.spawn(look);
        scope.spawn(look);
    });
    let missed = missed.into_inner().expect("no holder panics");
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// The first seed in which a checker sees the mistake, and what it says. The run without it is as
/// long as the one that found it.
fn find(name: &str) -> Result<(u64, String), String> {
    let found_after = Cell::new(Duration::ZERO);
    let faulty = |seed| {
        let options = cluster::injected(name, seed);
        Verdict::of(|| {
            let report = simulate(&options);
            let violation = report.violations.into_iter().next()?;
            found_after.set(Duration::from_nanos(violation.at_ns));
            Some(violation.what)
        })
    };
    let sound = |seed| {
        let options = Options {
            plant: None,
            duration: found_after.get(),
            ..cluster::injected(name, seed)
        };
        Verdict::of(|| Some(simulate(&options).violations.into_iter().next()?.what))
    };
    search(1..=INJECTED_SEEDS, faulty, sound)
}

fn simulate(options: &Options) -> Report {
    cluster::run(options, |_| {}).expect("the options fit together")
}
