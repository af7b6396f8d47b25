//! Hosts killed at each step of an operation, one at a time and two.
//!
//! Real hosts and a real volume on the simulated network, with which an operation is taken from event
//! to event. It runs once to be counted; then once for each of its steps and each choice of victims,
//! who end there with their memory. Whatever the mode, r hosts may go: the operation must succeed, and
//! what is read afterwards, by the worker that did it and by another, must be what was written.
//!
//! Paper: \[hydra22\] 4.2 (remote failure), Table 1. Decisions 5, 22, 23, 29.

mod scene;

use cenote_fabric::sim::Notice;
use cenote_volume::Mode;

use scene::{Case, Doing, Kill, Scene};

/// Of two parities, so that two may go; and a host to spare, on which slabs are rebuilt.
const CASES: [Case; 5] = [
    case("rs:2+2", Mode::FailureRecovery, 1),
    case("rs:2+2", Mode::Detection, 1),
    case("rs:2+3", Mode::Correction, 1),
    case("rs:2+2", Mode::EcOnly, 0),
    case("mirror:3", Mode::EcOnly, 0),
];

const fn case(scheme: &'static str, mode: Mode, delta: usize) -> Case {
    Case {
        scheme,
        mode,
        delta,
    }
}

/// Kills each member, and each two of them, at each step of what is done; how many scenes that were.
fn kill_at_each_step(case: &Case, doing: Doing) -> usize {
    let members = case.members();
    let steps = Scene::new(case, doing).run(&[]);
    assert!(steps > 2 * case.k(), "{case:?} {doing:?}: {steps} steps");
    let mut count = 0;
    for step in 0..=steps {
        for first in 0..members {
            for second in first..members {
                let mut kills = vec![Kill::now(step, first)];
                if second > first {
                    kills.push(Kill::now(step, second));
                }
                Scene::new(case, doing).run(&kills);
                count += 1;
            }
        }
    }
    count
}

fn kill_in_every_case(doing: Doing) {
    for case in &CASES {
        let count = kill_at_each_step(case, doing);
        assert!(count >= 40, "{case:?} {doing:?}: {count} scenes");
    }
}

#[test]
fn a_write_survives_the_loss_of_hosts_at_each_of_its_steps() {
    kill_in_every_case(Doing::Write);
}

#[test]
fn a_write_of_part_of_a_page_survives_the_loss_of_hosts_at_each_of_its_steps() {
    kill_in_every_case(Doing::WritePart);
}

#[test]
fn a_read_survives_the_loss_of_hosts_at_each_of_its_steps() {
    kill_in_every_case(Doing::Read);
}

/// One host answers late: where the mode has a split to spare, the read ends before it does.
#[test]
fn a_read_that_binds_late_survives_the_loss_of_hosts_at_each_of_its_steps() {
    kill_in_every_case(Doing::ReadLate);
}

/// One host takes its split late: the steps go on after the acknowledgement until it has.
#[test]
fn an_early_acknowledged_write_survives_the_loss_of_hosts_until_it_has_landed() {
    kill_in_every_case(Doing::WriteLate);
}

/// Another worker's, of a page that one host takes late.
#[test]
fn a_read_of_a_page_in_flight_survives_the_loss_of_hosts_at_each_of_its_steps() {
    kill_in_every_case(Doing::ReadInFlight);
}

/// The first victim goes while its split is under way, and a slab in its place is made on the host to
/// spare; at each step of that another goes, which may be the one that it is made on.
#[test]
fn a_write_that_is_repeated_without_a_host_survives_the_loss_of_another() {
    for case in [&CASES[0], &CASES[3]] {
        let (first, members) = (Kill::now(2, 0), case.members());
        let steps = Scene::new(case, Doing::WriteAndRebuild).run(&[first]);
        assert!(steps > 20, "{case:?}: {steps} steps");
        for step in 3..steps {
            for second in 1..=members {
                let kills = [first, Kill::now(step, second)];
                Scene::new(case, Doing::WriteAndRebuild).run(&kills);
            }
        }
    }
}

/// A rebuild that has fewer sources than it needs for a while lets writers in, and takes in what they
/// wrote: what it made before and they wrote again, and what nobody had written before.
#[test]
fn a_rebuild_that_loses_sight_of_a_source_at_a_step_takes_in_what_is_written_meanwhile() {
    for case in [
        case("rs:2+1", Mode::FailureRecovery, 0),
        case("rs:4+1", Mode::FailureRecovery, 0),
    ] {
        let scene = || Scene::new(&case, Doing::WriteAndRebuild);
        let steps = (0..).find(|&step| scene().run_parted(step) < step);
        assert!(steps > Some(20), "{case:?}: {steps:?} steps");
    }
}

/// Nobody says that the host is gone: its silence does.
#[test]
fn hosts_that_fall_silent_at_a_step_are_found_out() {
    for case in &CASES {
        for doing in [Doing::Write, Doing::Read, Doing::WriteLate] {
            for step in [1, 3, 5] {
                for member in 0..case.members() {
                    let silent = Kill {
                        notice: Notice::BySilence,
                        ..Kill::now(step, member)
                    };
                    Scene::new(case, doing).run(&[silent]);
                }
            }
        }
    }
}
