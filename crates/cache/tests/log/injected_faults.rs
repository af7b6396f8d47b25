//! Every mistake that is made on purpose is found by the harness, or by threads that race.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cenote_cache::log::injected_faults::{ALL, InjectedFault, inject};

use crate::harness::{Conditions, Harness, Op};
use crate::threads;
use cenote_test_kit::Random;

/// What the harness says of one seed, or how it panicked.
fn outcome(seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let conditions = Conditions::random(&mut random);
    let ops: Vec<Op> = (0..400).map(|_| Op::random(&mut random)).collect();
    let run = AssertUnwindSafe(|| Harness::new(conditions).run(&ops));
    catch_unwind(run).unwrap_or_else(|_| Err("panicked".to_owned()))
}

#[test]
fn every_injected_fault_is_found() {
    let mut missed = Vec::new();
    for (name, mistake) in ALL {
        inject(Some(mistake));
        let found = match mistake {
            // It takes two threads.
            InjectedFault::NoSeal => (0..1000)
                .find(|_| threads::count_with(Some(mistake), 2, 3000).is_err())
                .map(|seed| (seed, "merges are lost".to_owned())),
            _ => (0..400).find_map(|seed| Some((seed, outcome(seed).err()?))),
        };
        inject(None);
        match found {
            Some((seed, error)) => {
                let line = error.lines().next().unwrap_or_default();
                println!("{name}: seed {seed}: {line}");
                assert_eq!(outcome(seed), Ok(()), "seed {seed} without {name}");
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
