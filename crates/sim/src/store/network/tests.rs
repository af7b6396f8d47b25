use std::sync::Mutex;

use cenote_store::schemes::{EFactory, Forca, Rpc, all};
use cenote_store::{InjectedFault, inject};

use super::*;

/// Seeds in CI; more by `cenote lab store network`.
const SEEDS: u64 = 8;

/// An injected fault is all of the process's.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn nothing_is_lost_or_torn_whatever_network_and_power_do() {
    let _turn = TURN.lock();
    let mut schemes = all();
    schemes.retain(|scheme| promises_anything(&**scheme));
    assert_eq!(schemes.len(), all().len() - 1, "all but ca");
    for scheme in &schemes {
        let storms = storms(&**scheme, 0, SEEDS, &mut |_| {});
        assert_eq!(storms.violations, Vec::<String>::new(), "{}", scheme.name());
        let all = storms.ran;
        println!("{}: {all:?}", scheme.name());
        assert!(
            all.done > 1_000 && all.lost > 10 && all.crashes > 3,
            "{all:?}"
        );
    }
}

/// A `Sync` told of a loss while its PUT's value was on its way, or before another that had begun earlier
/// ended, and the next one of none.
#[test]
fn seeds_that_found_something_find_nothing_more() {
    let _turn = TURN.lock();
    let forca = Forca { memo: true };
    for (scheme, seed) in [
        (&EFactory as &dyn Scheme, 73),
        (&forca, 796),
        (&forca, 30_281),
    ] {
        let ended = run(scheme, seed, STEPS);
        assert!(ended.is_ok(), "{}, seed {seed}: {ended:?}", scheme.name());
    }
}

#[test]
fn the_same_seed_runs_the_same() {
    let _turn = TURN.lock();
    let hash = || {
        let mut world = World::new(&EFactory, 3).unwrap();
        (0..STEPS).for_each(|_| world.step(true).unwrap());
        world.net.trace_hash()
    };
    assert_eq!(hash(), hash());
}

/// That of a client that does not look at the epoch takes two cleanings during one READ: a test of the client
/// finds it.
#[test]
fn injected_faults_of_clients_are_found() {
    let _turn = TURN.lock();
    for (mistake, scheme) in [
        (InjectedFault::FlagInOneRead, &EFactory as &dyn Scheme),
        (InjectedFault::UnwrittenPassedOver, &Rpc),
    ] {
        inject(Some(mistake));
        let found = (0..600).find_map(|seed| Some((seed, run(scheme, seed, STEPS).err()?)));
        inject(None);
        let (seed, violation) = found.expect("it is not found");
        println!("{mistake:?}, seed {seed}: {violation}");
        let without = run(scheme, seed, STEPS);
        assert!(without.is_ok(), "without it: {without:?}");
    }
}
