//! The cluster simulator finds nothing, and the same every time. What is injected: `sim_injected`.
//!
//! Here each run has the same seeds. Fresh ones, and longer runs of the same, are in `long`.
//!
//! Paper: \[hydra22\] H1-H3, \[infiniswap17\]; what must hold is said in `cenote_sim::cluster`.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use cenote_sim::cluster::{self, Options, Weights};
use cenote_sim::weights;
use cenote_volume::Protection;
use kept::{assert_kept, simulate};

#[path = "cluster/disks.rs"]
mod disks;
#[path = "cluster/kept.rs"]
mod kept;

fn options(seed: u64, simulated_seconds: u64) -> Options {
    Options {
        seed,
        duration: Duration::from_secs(simulated_seconds),
        rate: 100,
        ..Options::default()
    }
}

/// Another one in every run, and short enough to be typed again.
fn fresh_seed() -> u64 {
    let seed = RandomState::new().hash_one(0) & u64::from(u32::MAX);
    println!("a fresh seed: {seed}");
    seed
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let hash = |seed| simulate(&options(seed, 60)).trace_hash;
    let first = hash(11);
    assert_eq!(first, hash(11));
    assert_ne!(first, hash(12));
}

/// Groups of 2+1+1 hosts, of which faults leave few whole: stripes leave theirs, and come through.
#[test]
fn coding_sets_keep_every_promise() {
    assert_coding_sets_kept([1]);
}

fn assert_coding_sets_kept(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let options = Options {
            scheme: "rs:2+1".parse().expect("a scheme"),
            placement: Some("coding-sets:1".parse().expect("a placement")),
            ..options(seed, 120)
        };
        let report = assert_kept(&options);
        assert!(
            report.page_ops > 1000 && report.faults > 10,
            "nothing happened: {report:?}"
        );
        assert!(options.command().contains("--placement coding-sets:1"));
    }
}

/// Seeds that found something once, and the first few.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

#[test]
fn known_seeds_keep_every_promise() {
    for seed in SEEDS {
        assert_kept_in_work(&options(seed, 30));
    }
}

fn assert_kept_in_work(options: &Options) {
    let report = assert_kept(options);
    assert!(
        report.page_ops > 1000 && report.faults > 10,
        "nothing happened: {report:?}"
    );
}

#[test]
fn a_calm_cluster_keeps_every_promise() {
    assert_kept_in_calm(3600);
}

/// Little work, and a fault now and then.
fn assert_kept_in_calm(simulated_seconds: u64) {
    let calm = Options {
        clients: 1,
        workers: 2,
        hosts: 8,
        rate: 2,
        fault_pause: Duration::from_secs(60),
        epoch: Duration::from_secs(600),
        ..options(5, simulated_seconds)
    };
    let report = assert_kept(&calm);
    assert!(report.simulated_seconds >= simulated_seconds);
}

#[test]
fn mirrors_and_wide_stripes_keep_every_promise() {
    assert_wide_kept(10);
}

fn assert_wide_kept(simulated_seconds: u64) {
    // Splits of the widest are smaller than a sector.
    for (scheme, hosts) in [
        ("mirror:3", 8),
        ("rs:8+2", 30),
        ("rs:2+1", 8),
        ("rs:16+2", 21),
        ("rs:32+2", 38),
    ] {
        let options = Options {
            scheme: scheme.parse().expect("a valid scheme"),
            hosts,
            ..options(21, simulated_seconds)
        };
        assert_kept(&options);
    }
}

/// Reads that take what comes first, and writes that are acknowledged before all has landed.
#[test]
fn every_mode_keeps_every_promise() {
    assert_every_mode_kept(31, 15);
}

fn assert_every_mode_kept(seed: u64, simulated_seconds: u64) {
    for (scheme, mode) in [
        ("rs:4+2", "failure-recovery"),
        ("rs:4+2", "detection"),
        ("rs:4+3", "correction"),
        ("rs:4+2", "ec-only"),
        ("mirror:3", "ec-only"),
    ] {
        let options = Options {
            scheme: scheme.parse().expect("a valid scheme"),
            mode: Some(mode.parse().expect("a mode")),
            hosts: 10,
            ..options(seed, simulated_seconds)
        };
        assert_kept_in_work(&options);
    }
}

/// Small volumes, so that changes of them end, and owners that end in between.
fn changing(seed: u64, weights: Weights) -> Options {
    Options {
        slab_bytes: 16 << 10,
        volume_bytes: 256 << 10,
        fault_pause: Duration::from_millis(400),
        weights: Weights {
            replace_client: 12,
            ambush: 12,
            ..weights
        },
        ..options(seed, 120)
    }
}

/// Mode, delta and parities change all the time, among all other faults, and owners end in between.
#[test]
fn volumes_whose_resilience_changes_keep_every_promise() {
    assert_kept_reshaped(&RESHAPED[..1]);
}

const RESHAPED: [(&str, u64); 3] = [("rs:4+2", 1), ("mirror:2", 2), ("rs:2+1", 3)];

fn assert_kept_reshaped(volumes: &[(&str, u64)]) {
    for &(scheme, seed) in volumes {
        let options = Options {
            scheme: scheme.parse().expect("a valid scheme"),
            hosts: 10,
            ..changing(
                seed,
                Weights {
                    reshape: 60,
                    ..Weights::all()
                },
            )
        };
        let report = assert_kept(&options);
        assert!(report.page_ops > 1000 && report.faults > 50, "{report:?}");
    }
}

/// Pages are restriped, in either direction, while they are written and read, among all other faults:
/// owners end in between, and the next ones go on or go back.
#[test]
fn volumes_whose_pages_are_restriped_keep_every_promise() {
    assert_restriped_kept(&RESTRIPES[..2]);
}

const RESTRIPES: [(&str, Option<&str>, u64); 4] = [
    ("rs:4+2", None, 1),
    ("rs:4+3", Some("correction"), 4),
    ("rs:2+1", None, 2),
    ("mirror:2", None, 3),
];

fn assert_restriped_kept(volumes: &[(&str, Option<&str>, u64)]) {
    let moved = volumes
        .iter()
        .map(|&(scheme, mode, seed)| assert_kept_restriped(scheme, mode, seed));
    let moved: u64 = moved.sum();
    assert!(moved > 300, "{moved} pages were restriped");
}

/// How many pages were restriped.
fn assert_kept_restriped(scheme: &str, mode: Option<&str>, seed: u64) -> u64 {
    println!("{scheme}, seed {seed}");
    let options = Options {
        scheme: scheme.parse().expect("a valid scheme"),
        mode: mode.map(|mode| mode.parse().expect("a mode")),
        hosts: 14,
        ..changing(
            seed,
            Weights {
                restripe: 60,
                ..Weights::all()
            },
        )
    };
    let report = assert_kept(&options);
    assert!(report.page_ops > 1000 && report.faults > 50, "{report:?}");
    assert!(report.restripes > 10, "{report:?}");
    report.pages_moved
}

/// A client that was stopped heard several orders for other cuts at once, the third after one that was taken
/// back: it went on for ever.
#[test]
fn orders_for_other_cuts_that_come_together_are_obeyed() {
    let options = Options {
        scheme: "rs:4+2".parse().expect("a valid scheme"),
        mode: Some("detection".parse().expect("a mode")),
        hosts: 14,
        ..changing(
            1_463_498_837,
            Weights {
                restripe: 60,
                ..Weights::all()
            },
        )
    };
    assert!(assert_kept(&options).restripes > 10);
}

/// Owners end in the middle of writes and hosts before and after them, never more than a stripe survives: each
/// page is what it was or what was written, and none is an error, in any mode, under any protection.
#[test]
fn owners_and_hosts_that_end_in_any_order_leave_pages_old_or_new() {
    assert_old_or_new([1, 2, 3, 4, 5, 6], 5);
}

fn assert_old_or_new(seeds: [u64; 6], simulated_seconds: u64) {
    let sealed = || Protection::Sealed(cluster::seal_key());
    let volumes = [
        ("rs:4+2", "failure-recovery", Protection::None),
        ("rs:4+2", "ec-only", Protection::None),
        ("rs:4+2", "detection", Protection::Checksum),
        ("rs:4+3", "correction", sealed()),
        ("mirror:3", "ec-only", sealed()),
        ("rs:2+1", "failure-recovery", Protection::Checksum),
    ];
    let mut redone = 0;
    for ((scheme, mode, protection), seed) in volumes.into_iter().zip(seeds) {
        println!("{scheme} {mode} {}, seed {seed}", protection.name());
        let options = Options {
            scheme: scheme.parse().expect("a valid scheme"),
            mode: Some(mode.parse().expect("a mode")),
            protection,
            hosts: 10,
            clients: 2,
            workers: 3,
            slab_bytes: 16 << 10,
            volume_bytes: 128 << 10,
            slabs_per_host: Some(64),
            rate: 2000,
            gentle_percent: 100,
            epoch: Duration::from_secs(10),
            fault_pause: Duration::from_millis(300),
            weights: weights! { replace_client: 10, crash: 6, lose: 3, delay: 6, cut: 2 },
            ..options(seed, simulated_seconds)
        };
        let report = assert_kept(&options);
        assert!(report.page_ops > 1000, "nothing happened: {report:?}");
        // Of three in a second those are not begun that a stripe would not survive beside the others.
        let least = report.simulated_seconds * 6 / 5;
        assert!(report.faults >= least, "fewer than {least}: {report:?}");
        redone += report.writes_redone;
    }
    assert!(redone > 0, "no write was left to be redone");
}

/// Splits rot where they lie, in each mode that notices: what is read is right or an error, and no
/// error in mode correction once enough splits are there; with tags in no mode, unless no more than k were.
#[test]
fn rotten_splits_are_found_and_healed() {
    assert_rot_healed([1, 2]);
}

fn assert_rot_healed(seeds: [u64; 2]) {
    let sealed = || Protection::Sealed(cluster::seal_key());
    for (scheme, mode, protection) in [
        ("rs:4+2", "detection", Protection::None),
        ("rs:4+3", "correction", Protection::None),
        ("mirror:4", "correction", Protection::None),
        ("rs:4+2", "failure-recovery", Protection::Checksum),
        ("rs:4+2", "detection", sealed()),
        ("rs:4+3", "correction", sealed()),
    ] {
        let (mut rotten, mut healed) = (0, 0);
        for seed in seeds {
            println!("{scheme} {mode} {}, seed {seed}", protection.name());
            let options = Options {
                scheme: scheme.parse().expect("a valid scheme"),
                mode: Some(mode.parse().expect("a mode")),
                protection: protection.clone(),
                hosts: 10,
                clients: 2,
                volume_bytes: 256 << 10,
                gentle_percent: 100,
                // Others are as frequent as without rot: hosts that all drain at a time leave stripes short.
                fault_pause: Duration::from_millis(500),
                epoch: Duration::from_secs(10),
                ..options(seed, 20)
            };
            let report = assert_kept(&options.rotting());
            let rot = report.rot.expect("splits rot");
            rotten += rot.rotten_splits;
            healed += rot.healed_splits;
        }
        assert!(rotten > 10, "{rotten} splits rotted");
        // Splits that disagree without a tag name nobody.
        let names = mode != "detection" || protection != Protection::None;
        assert!(healed > 3 || !names, "{healed} of {rotten} splits healed");
    }
}

/// Splits of either layout rot while pages are restriped: what is read is right or an error.
#[test]
fn splits_that_rot_while_pages_are_restriped_are_found() {
    let (mut rotten, mut moved) = (0, 0);
    for (protection, seed) in [
        (Protection::Checksum, 1),
        (Protection::Sealed(cluster::seal_key()), 2),
    ] {
        println!("{}, seed {seed}", protection.name());
        let options = Options {
            scheme: "rs:4+2".parse().expect("a valid scheme"),
            protection,
            hosts: 14,
            clients: 2,
            ..changing(
                seed,
                Weights {
                    restripe: 60,
                    ..Weights::all()
                },
            )
        };
        let report = assert_kept(&options.rotting());
        assert!(report.restripes > 5, "{report:?}");
        rotten += report.rot.expect("splits rot").rotten_splits;
        moved += report.pages_moved;
    }
    assert!(rotten > 10 && moved > 100, "{rotten} rotted, {moved} moved");
}

/// A place is mapped again while the slab that it had is given back: the host has taken the slab back for the
/// one reason when it hears of the other, and its window is still open.
#[test]
fn a_slab_that_goes_for_two_reasons_is_given_back_once_its_window_is_closed() {
    let options = Options {
        plant: None,
        volume_bytes: 256 << 10,
        fault_pause: Duration::from_millis(100),
        duration: Duration::from_secs(31),
        weights: weights! { drain: 2, delay: 2, lose: 12 },
        ..cluster::injected("early-clear", 1)
    };
    assert_kept(&options);
}

/// A client that was silent for a lease lost slabs that no page of it touches again: repairs that
/// cannot read them must find out, or its volume says for ever that it is being made whole.
#[test]
fn slabs_taken_from_silent_clients_are_missed() {
    assert_missed(1..=1);
}

fn assert_missed(seeds: std::ops::RangeInclusive<u64>) {
    for seed in seeds {
        let options = Options {
            hosts: 8,
            gentle_percent: 0,
            epoch: Duration::from_secs(40),
            fault_pause: Duration::from_millis(1500),
            weights: weights! { crash: 2, pause_client: 4, replace_client: 3 },
            ..options(seed, 240)
        };
        assert_kept(&options);
    }
}

#[test]
fn a_crash_at_each_arrow_of_a_relocation_is_survived() {
    let mut hit = [0; 5];
    for seed in 1..=20 {
        let options = Options {
            duration: Duration::from_secs(60),
            hosts: 9,
            clients: 2,
            slab_bytes: 16 << 10,
            volume_bytes: 256 << 10,
            epoch: Duration::from_secs(10),
            fault_pause: Duration::from_millis(300),
            weights: weights! { crash: 2, lose: 1, ambush: 4 },
            ..options(seed, 60)
        };
        let report = assert_kept(&options);
        for (sum, count) in hit.iter_mut().zip(report.arrows_hit) {
            *sum += count;
        }
        if hit.iter().all(|&count| count >= 3) {
            println!("crashes at each arrow after {seed} seeds: {hit:?}");
            return;
        }
    }
    panic!("too few crashes at an arrow in 20 seeds: {hit:?}");
}

mod long {
    use super::*;

    #[test]
    fn a_fresh_seed_keeps_every_promise() {
        let seed = fresh_seed();
        let mut options = options(seed, 3600 * 24);
        options.limit = Some(Duration::from_secs(60));
        let report = assert_kept(&options);
        println!(
            "seed {seed}: {} s, {} page operations, {} faults",
            report.simulated_seconds, report.page_ops, report.faults
        );
    }

    #[test]
    fn known_seeds_keep_every_promise() {
        for seed in SEEDS {
            assert_kept_in_work(&options(seed, 300));
        }
    }

    #[test]
    fn a_day_of_a_calm_cluster_keeps_every_promise() {
        assert_kept_in_calm(86_400);
    }

    #[test]
    fn every_mode_keeps_every_promise() {
        assert_every_mode_kept(31, 90);
        assert_every_mode_kept(fresh_seed(), 90);
    }

    #[test]
    fn coding_sets_keep_every_promise() {
        assert_coding_sets_kept([1, 2]);
    }

    #[test]
    fn mirrors_and_wide_stripes_keep_every_promise() {
        assert_wide_kept(60);
    }

    #[test]
    fn slabs_taken_from_silent_clients_are_missed() {
        assert_missed(1..=4);
    }

    #[test]
    fn volumes_whose_resilience_changes_keep_every_promise() {
        assert_kept_reshaped(&RESHAPED);
    }

    #[test]
    fn volumes_whose_pages_are_restriped_keep_every_promise() {
        assert_restriped_kept(&RESTRIPES);
        assert_kept_restriped("rs:4+2", Some("detection"), fresh_seed());
    }

    #[test]
    fn owners_and_hosts_that_end_in_any_order_leave_pages_old_or_new() {
        assert_old_or_new([1, 2, 3, 4, 5, fresh_seed()], 30);
    }

    #[test]
    fn rotten_splits_are_found_and_healed() {
        assert_rot_healed([1, fresh_seed()]);
    }
}
