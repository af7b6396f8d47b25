//! Slabs of clients that were not heard of for a lease.

use super::*;

#[test]
fn a_client_that_comes_back_finds_its_slabs_as_they_were() {
    let mut bench = prompt(&[(0, place(0, 0)), (0, place(0, 1))]);
    bench.apply(&Op::Disconnect(0));
    bench.apply(&Op::Run { seconds: 30 });
    assert_eq!(bench.ledger.counts().orphaned, 2);
    bench.apply(&Op::Connect(0));
    assert_eq!(
        (bench.ledger.counts().orphaned, bench.ledger.counts().mapped),
        (0, 2)
    );
    let window = bench.windows[1].window;
    assert!(bench.ledger.find(0, window).is_some());
}

#[test]
fn orphans_go_oldest_first_and_only_when_nothing_is_free() {
    let mut bench = prompt(&[(0, place(0, 0)), (0, place(0, 1))]);
    bench.apply(&Op::Disconnect(0));
    bench.apply(&Op::Run { seconds: 20 });
    bench.apply(&Op::Connect(1));
    for extent in 0..4 {
        bench.apply(&Op::Map {
            client: 1,
            volume: 1,
            extent,
        });
    }
    assert_eq!(bench.held_by(0), 2, "four free slabs served four requests");
    bench.apply(&Op::Connect(2));
    bench.apply(&Op::Map {
        client: 2,
        volume: 2,
        extent: 0,
    });
    assert!(bench.windows[0].holder.is_none() && bench.windows[1].holder.is_some());
    bench.apply(&Op::Connect(0));
    bench.apply(&Op::Map {
        client: 2,
        volume: 2,
        extent: 1,
    });
    assert_eq!(bench.held_by(0), 1, "a client that is back is not robbed");
    assert_eq!(bench.held_by(2), 1);
}

#[test]
fn orphans_are_offered_to_others_while_their_owner_is_away() {
    let mut bench = prompt(&[(0, place(0, 0)), (0, place(0, 1))]);
    let free = SLABS - 2;
    assert_eq!(bench.ledger.slabs_lendable(), free, "held by a live client");
    bench.apply(&Op::Disconnect(0));
    bench.apply(&Op::Run { seconds: 20 });
    assert_eq!(bench.ledger.slabs_free(), free);
    assert_eq!(bench.ledger.slabs_lendable(), SLABS);
    bench.apply(&Op::Connect(0));
    assert_eq!(bench.ledger.slabs_lendable(), free, "its owner is back");
}

#[test]
fn an_orphan_that_nobody_needs_goes_after_its_long_life() {
    let mut bench = prompt(&[(0, place(0, 0))]);
    bench.apply(&Op::Disconnect(0));
    bench.apply(&Op::Run { seconds: 69 });
    assert_eq!(bench.held(), 1);
    bench.apply(&Op::Run { seconds: 5 });
    assert_eq!(bench.held(), 0);
    assert_eq!(bench.ledger.orphans_taken(), 1);
}

#[test]
fn a_host_that_was_stopped_orphans_nobody_for_it() {
    let mut bench = prompt(&[(0, place(0, 0))]);
    bench.apply(&Op::Stop { seconds: 99 });
    assert_eq!(bench.ledger.counts().orphaned, 0);
    bench.apply(&Op::Run { seconds: 10 });
    assert_eq!(bench.ledger.counts().orphaned, 0);
    bench.apply(&Op::Run { seconds: 1 });
    assert_eq!(bench.ledger.counts().orphaned, 1);
}
