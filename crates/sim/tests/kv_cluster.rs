//! The simulator of whole nodes with etcd: it finds what is injected, nothing else, and the same every time.

use cenote_sim::kv::cluster::{self, FAULTS, Options, Tally, Trouble};
use cenote_sim::verdict::missed;

/// Seeds of each shape.
const SEEDS: u64 = 10;
/// Seeds of each trouble that nothing else goes with.
const SEEDS_ALONE: u64 = 3;
/// Seeds in which a mistake has to show.
const INJECTED_SEEDS: u64 = 40;

fn assert_kept(options: &Options) -> Tally {
    cluster::run(options).kept(options.command()).tally
}

fn assert_all_kept(shape: &Options) {
    let (mut operations, mut troubles) = (0, 0);
    for seed in 1..=SEEDS {
        let tally = assert_kept(&Options {
            seed,
            ..shape.clone()
        });
        operations += tally.operations;
        troubles += tally.troubles;
    }
    println!("{shape:?}: {operations} operations, {troubles} troubles");
    assert!(
        operations > 40 * SEEDS && troubles == shape.troubles * SEEDS,
        "little happened: {operations} operations, {troubles} troubles"
    );
}

#[test]
fn nothing_is_lost_by_1_and_1() {
    let shape = Options {
        k: 1,
        m: 1,
        ..Options::default()
    };
    assert_all_kept(&shape);
}

#[test]
fn nothing_is_lost_by_2_and_1() {
    assert_all_kept(&Options::default());
}

#[test]
fn nothing_is_lost_by_3_and_2() {
    let shape = Options {
        k: 3,
        m: 2,
        spares: 1,
        ..Options::default()
    };
    assert_all_kept(&shape);
}

#[test]
fn owners_are_spread_again_after_nodes_were_left_without_any() {
    let (mut bare, mut turns) = (0, 0);
    for seed in 1..=SEEDS {
        let tally = assert_kept(&Options {
            seed,
            ..Options::many_groups()
        });
        bare += tally.bare;
        turns += tally.turns;
    }
    println!("{bare} nodes owned nothing, {turns} partitions went to others");
    assert!(bare > 0 && turns > 0, "{bare} and {turns}");
}

#[test]
fn what_a_node_had_goes_to_many_nodes() {
    for seed in 1..=SEEDS_ALONE {
        assert_kept(&Options {
            seed,
            ..Options::many_nodes()
        });
    }
}

#[test]
fn each_trouble_alone_is_survived() {
    let all: &'static [Trouble] = &Trouble::ALL;
    for only in all.chunks(1) {
        for seed in 1..=SEEDS_ALONE {
            let tally = assert_kept(&Options {
                seed,
                only,
                ..Options::default()
            });
            assert_ne!(tally.operations, 0, "{only:?}, seed {seed}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let run = |seed| {
        cluster::run(&Options {
            seed,
            ..Options::default()
        })
    };
    let first = run(11);
    assert!(!first.log.is_empty());
    assert_eq!(first, run(11));
    assert_ne!(first.log, run(12).log);
}

#[test]
fn every_injected_fault_is_found() {
    let missed = missed(&FAULTS, 1..=INJECTED_SEEDS, |seed, mistake, injected| {
        let suited = Options::suited(mistake, seed);
        cluster::run(&Options { injected, ..suited }).verdict()
    });
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
