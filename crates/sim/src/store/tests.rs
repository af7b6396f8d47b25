use cenote_store::schemes::{EFactory, Saw, all};
use cenote_store::{InjectedFault, MISTAKES, inject};

use super::*;

/// Rounds in CI; more by `cenote lab store crash`.
const ROUNDS: u64 = 12;

#[test]
fn a_crash_at_any_boundary_breaks_no_promise_of_any_scheme() {
    for scheme in all() {
        let crashes = crashes(&*scheme, 0, ROUNDS, &mut |_| {});
        assert_eq!(
            crashes.violations,
            Vec::<String>::new(),
            "{}",
            scheme.name()
        );
        assert!(crashes.boundaries > 200, "{crashes:?}");
    }
}

/// A version that nothing named became durable after the deletion behind it was dropped by the cleaner.
#[test]
fn seeds_that_found_something_find_nothing_more() {
    let found = crashes(&Saw, 94, 1, &mut |_| {});
    assert_eq!(found.violations, Vec::<String>::new());
}

#[test]
fn each_injected_fault_of_the_store_is_found() {
    // Those of clients, and of logs with holes, are found by tests of their own in `cenote-store`.
    let elsewhere = [
        InjectedFault::ValueBeforeFlag,
        InjectedFault::FlagInOneRead,
        InjectedFault::EpochUnread,
        InjectedFault::IncarnationIgnored,
        InjectedFault::UnwrittenPassedOver,
        InjectedFault::CopyAcknowledgedFirst,
        InjectedFault::CopyUnconditional,
        InjectedFault::CopyOverNewer,
        InjectedFault::CopyLeftBehind,
    ];
    for (name, mistake) in MISTAKES {
        if elsewhere.contains(&mistake) {
            continue;
        }
        let scheme: &dyn Scheme = match mistake {
            InjectedFault::NamedTooEarly => &Saw,
            _ => &EFactory,
        };
        let sound = crashes(scheme, 0, 3, &mut |_| {});
        assert_eq!(sound.violations, Vec::<String>::new());
        inject(Some(mistake));
        let found = crashes(scheme, 0, 400, &mut |_| {});
        inject(None);
        assert!(!found.violations.is_empty(), "{name} is not found");
        println!("{name}: {}", found.violations[0]);
    }
}
