//! How a host gives its slabs back, and how it hands them to the process after it.

use super::*;

const NOW: Duration = Duration::from_secs(1000);

/// Does all that is wanted, well and at once; the replies, with whom they go to.
fn carry_out(ledger: &mut Ledger, generation: &mut u64) -> Vec<(u128, Reply)> {
    let mut replies = Vec::new();
    while let Some(action) = ledger.poll_action() {
        match action {
            Action::Prepare { slab } => {
                ledger.handle_prepared(NOW, slab, window(slab, generation));
            }
            Action::Renew { slab, .. } => ledger.handle_renewed(slab, window(slab, generation)),
            Action::Retire { slab, .. } => ledger.handle_retired(NOW, slab),
            Action::Send { client, reply } => replies.push((client, reply)),
            Action::CutOff { .. } => panic!("nobody takes over"),
        }
    }
    replies
}

/// A window on a slab, under the next generation.
fn window(slab: SlabIndex, generation: &mut u64) -> Window {
    *generation += 1;
    Window {
        id: slab,
        generation: *generation,
        len_bytes: 1 << 20,
        rights: 7,
    }
}

/// A ledger with three slabs lent to client 0 and one to client 1, and their windows.
fn lent() -> (Ledger, Vec<Window>, u64) {
    let (mut ledger, mut generation) = (Ledger::new(limits(), NOW), 100);
    carry_out(&mut ledger, &mut generation);
    let mut windows = Vec::new();
    for (client, place) in [
        (0, place(0, 0)),
        (0, place(0, 1)),
        (1, place(1, 0)),
        (0, place(0, 2)),
    ] {
        ledger.handle_connected(NOW, client, "client");
        ledger.handle_map(NOW, client, 1, place);
        for (_, reply) in carry_out(&mut ledger, &mut generation) {
            match reply {
                Reply::Mapped { window, .. } => windows.push(window),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(windows.len(), 4);
    (ledger, windows, generation)
}

#[test]
fn a_draining_host_lends_nothing_and_wants_all_back() {
    let (mut ledger, windows, mut generation) = lent();
    assert_eq!(ledger.wanted_back(NOW, 0, 9), [], "not asked yet");
    ledger.handle_drain(NOW, true);
    assert_eq!(carry_out(&mut ledger, &mut generation), []);
    assert_eq!((ledger.slabs_free(), ledger.slabs_lendable()), (0, 0));
    assert_eq!(ledger.counts().prepared, 0, "its stock goes back at once");
    assert!(!ledger.is_drained());

    ledger.handle_map(NOW, 1, 7, place(1, 1));
    let refused = Reply::Refused {
        request: 7,
        reason: Refusal::ShuttingDown,
    };
    assert_eq!(carry_out(&mut ledger, &mut generation), [(1, refused)]);

    assert_eq!(ledger.wanted_back(NOW, 0, 2), windows[..2]);
    ledger.handle_declined(0, windows[0]);
    ledger.handle_declined(1, windows[1]); // Not its own.
    assert_eq!((ledger.declined(0), ledger.declined(1)), (1, 0));
    let order = [windows[1], windows[3], windows[0]];
    assert_eq!(
        ledger.wanted_back(NOW, 0, 9),
        order,
        "what was declined is last"
    );

    for (client, window) in [0, 0, 1, 0].into_iter().zip(&windows) {
        assert!(!ledger.is_drained());
        ledger.handle_unmap(NOW, client, *window);
        carry_out(&mut ledger, &mut generation);
    }
    assert!(ledger.is_drained());
    ledger.handle_tick(NOW + Duration::from_secs(20));
    assert_eq!(ledger.poll_action(), None, "no stock is built");
}

#[test]
fn a_slab_that_is_not_declined_again_has_found_a_place() {
    let (mut ledger, windows, _) = lent();
    ledger.handle_drain(NOW, true);
    ledger.handle_declined(0, windows[0]);
    let mut now = NOW;
    let mut second = |ledger: &mut Ledger, is_asked: bool| {
        now += TICK;
        ledger.handle_tick(now);
        if is_asked {
            assert_eq!(ledger.wanted_back(now, 0, 9).len(), 3);
        }
        ledger.declined(0)
    };
    for _ in 0..5 {
        assert_eq!(second(&mut ledger, false), 1, "it was not asked again");
    }
    for _ in 0..5 {
        assert_eq!(second(&mut ledger, true), 1, "it says so each time");
        ledger.handle_declined(0, windows[0]);
    }
    for _ in 0..3 {
        assert_eq!(second(&mut ledger, true), 1, "its answer may be late");
    }
    assert_eq!(second(&mut ledger, true), 0);
}

#[test]
fn a_drain_that_is_called_off_leaves_everything_as_it_was() {
    let (mut ledger, windows, mut generation) = lent();
    let before = (ledger.counts(), ledger.slabs_lendable());
    ledger.handle_drain(NOW, true);
    ledger.handle_declined(0, windows[0]);
    carry_out(&mut ledger, &mut generation);
    ledger.handle_drain(NOW, false);
    carry_out(&mut ledger, &mut generation);
    assert_eq!((ledger.counts(), ledger.slabs_lendable()), before);
    assert_eq!(
        (ledger.wanted_back(NOW, 0, 9), ledger.declined(0)),
        (vec![], 0)
    );
    for (client, window) in [0, 0, 1, 0].into_iter().zip(&windows) {
        assert!(ledger.find(client, *window).is_some());
    }
}

#[test]
fn a_request_that_waits_is_refused_when_draining_begins() {
    let mut ledger = Ledger::new(limits(), NOW);
    let stock = ledger.poll_action();
    ledger.handle_connected(NOW, 0, "client");
    ledger.handle_map(NOW, 0, 5, place(0, 0));
    ledger.handle_drain(NOW, true);
    let refused = Reply::Refused {
        request: 5,
        reason: Refusal::ShuttingDown,
    };
    let mut replies = Vec::new();
    while let Some(action) = ledger.poll_action() {
        replies.extend(match action {
            Action::Send { reply, .. } => Some(reply),
            _ => None,
        });
    }
    assert_eq!(replies, [refused]);
    // Memory that was on its way comes too late to be lent.
    let Some(Action::Prepare { slab }) = stock else {
        panic!("{stock:?}")
    };
    let window = Window {
        id: 0,
        generation: 1,
        len_bytes: 1,
        rights: 7,
    };
    ledger.handle_prepared(NOW, slab, window);
    assert_eq!(ledger.poll_action(), Some(Action::Retire { slab, window }));
}

#[test]
fn the_next_process_has_the_book_of_the_one_before() {
    let (mut ledger, windows, mut generation) = lent();
    ledger.handle_own(NOW, 0, 5, 0, 3);
    ledger.handle_disconnected(NOW, 1);
    let later = NOW + Duration::from_secs(4);
    ledger.handle_sign_of_life(later, 0);
    let handover = Handover {
        slab_bytes: 1 << 20,
        addresses: vec!["tcp:10.0.0.7:7000".into()],
        ..ledger.handover(later)
    };
    assert_eq!(Handover::decode(&handover.encode()), Ok(handover.clone()));
    assert_eq!(handover.encode()[6], 1, "what an earlier version reads");
    for (stops, goes_in) in [(true, None), (false, Some(Duration::from_millis(70_000)))] {
        let goes = Handover {
            stops,
            goes_in,
            ..handover.clone()
        };
        assert_eq!(Handover::decode(&goes.encode()), Ok(goes));
    }

    // The next process counts time from elsewhere.
    let start = Duration::from_secs(5000);
    let mut next = Ledger::inherit(limits(), start, &handover);
    assert_eq!(next.counts().mapped, 4);
    carry_out(&mut next, &mut generation);
    assert_eq!(next.counts().prepared, 1, "its own stock");
    next.handle_connected(start, 0, "client");
    let held = next.held(0, 0, 9);
    let seen: Vec<_> = held.iter().map(|slab| (slab.extent, slab.window)).collect();
    assert_eq!(seen, [(0, windows[0]), (1, windows[1]), (2, windows[3])]);
    assert_eq!(next.held(0, 1, 1), held[1..2]);
    let stale = Window {
        generation: windows[0].generation - 1,
        ..windows[0]
    };
    assert_eq!(next.find(0, stale), None);
    assert!(next.find(0, windows[0]).is_some());
    // By its birth; what its client had under way to the last process takes no effect in this one.
    next.handle_retake(start, 0, 6, place(0, 1), windows[1].generation);
    let window = Window {
        generation: generation + 1,
        ..windows[1]
    };
    let retaken = Reply::Mapped { request: 6, window };
    assert_eq!(carry_out(&mut next, &mut generation), [(0, retaken)]);
    assert_eq!(next.find(0, windows[1]), None);

    // Client 1 was silent for 4 s of its lease already.
    for second in 1..=7 {
        next.handle_tick(start + TICK * second);
    }
    assert_eq!(next.counts().orphaned, 1);
    assert_eq!(
        next.counts().mapped,
        3,
        "a client that is connected for 7 s"
    );

    // The volume is still client 0's.
    next.handle_connected(start, 2, "thief");
    next.handle_map(start, 2, 9, place(0, 0));
    let refused = Reply::Refused {
        request: 9,
        reason: Refusal::Owned,
    };
    assert_eq!(carry_out(&mut next, &mut generation), [(2, refused)]);
    next.handle_own(start, 2, 10, 0, 2);
    let refused = Reply::Refused {
        request: 10,
        reason: Refusal::Superseded,
    };
    assert_eq!(carry_out(&mut next, &mut generation), [(2, refused)]);
}

#[test]
fn a_drain_goes_on_in_the_next_process_until_all_is_given_back() {
    let (mut ledger, windows, mut generation) = lent();
    ledger.handle_drain(NOW, true);
    carry_out(&mut ledger, &mut generation);
    let mut next = Ledger::inherit(limits(), NOW, &ledger.handover(NOW));
    assert_eq!(next.wanted_back(NOW, 0, 1), windows[..1]);
    assert_eq!((next.poll_action(), next.slabs_free()), (None, 0));
    let drained = Handover {
        draining: true,
        ..Handover::default()
    };
    let after = Ledger::inherit(limits(), NOW, &drained);
    assert_eq!(after.slabs_free(), SLABS, "there is nothing left to drain");

    // One that is to end once it is drained still is, and makes nothing that it could lend.
    let mut ending = Ledger::inherit(
        limits(),
        NOW,
        &Handover {
            stops: true,
            ..drained
        },
    );
    assert!(ending.is_drained());
    assert_eq!((ending.poll_action(), ending.slabs_free()), (None, 0));
}

/// Programs that were killed, one after the other, lock nobody out.
#[test]
fn who_comes_takes_the_place_of_a_client_that_is_gone() {
    let limits = Limits {
        clients_max: 2,
        ..limits()
    };
    let mut ledger = Ledger::new(limits, NOW);
    let mut generation = 0;
    for (client, volume) in [(0, 0), (1, 1)] {
        ledger.handle_connected(NOW, client, "client");
        ledger.handle_map(NOW, client, 1, place(volume, 0));
        carry_out(&mut ledger, &mut generation);
    }
    let refused = Reply::Refused {
        request: 1,
        reason: Refusal::ClientBound,
    };
    let held = |ledger: &Ledger| [0, 1, 2].map(|client| ledger.held(client, 0, 9).len());
    ledger.handle_connected(NOW, 2, "one too many");
    ledger.handle_map(NOW, 2, 1, place(2, 0));
    assert_eq!(
        carry_out(&mut ledger, &mut generation),
        [(2, refused.clone())]
    );
    ledger.handle_disconnected(NOW, 1);
    ledger.handle_map(NOW, 2, 1, place(2, 0));
    let may_come_back = [(2, refused)];
    assert_eq!(carry_out(&mut ledger, &mut generation), may_come_back);
    let mut now = NOW;
    for _ in 0..20 {
        now += TICK;
        ledger.handle_sign_of_life(now, 0);
        ledger.handle_tick(now);
    }
    assert_eq!(ledger.counts().orphaned, 1);
    ledger.handle_connected(now, 3, "only looks");
    assert_eq!(held(&ledger), [1, 1, 0]);
    ledger.handle_map(now, 2, 2, place(2, 0));
    carry_out(&mut ledger, &mut generation);
    assert_eq!(held(&ledger), [1, 0, 1]);
}

/// Its slabs are lent already, and refusing would lose what they hold.
#[test]
fn who_takes_a_volume_over_needs_no_place() {
    let limits = Limits {
        clients_max: 1,
        ..limits()
    };
    let mut ledger = Ledger::new(limits, NOW);
    let mut generation = 0;
    carry_out(&mut ledger, &mut generation);
    ledger.handle_connected(NOW, 0, "owner");
    for volume in 0..2 {
        ledger.handle_own(NOW, 0, 1, volume.into(), 1);
        ledger.handle_map(NOW, 0, 1, place(volume, 0));
        carry_out(&mut ledger, &mut generation);
    }
    ledger.handle_disconnected(NOW, 0);
    ledger.handle_connected(NOW, 1, "next owner");
    ledger.handle_own(NOW, 1, 7, 0, 2);
    let owned = Reply::Owned {
        request: 7,
        slabs: 1,
    };
    assert_eq!(carry_out(&mut ledger, &mut generation), [(1, owned)]);
    let held = [0, 1].map(|client| ledger.held(client, 0, 9).len());
    assert_eq!(held, [1, 1], "nobody's slab went for it");
}

#[test]
fn more_is_inherited_than_the_new_limits_allow() {
    let (ledger, windows, _) = lent();
    let small = Limits {
        slabs_total: 2,
        ..limits()
    };
    let next = Ledger::inherit(small, NOW, &ledger.handover(NOW));
    assert_eq!(next.counts().total(), 4);
    assert!(windows.iter().all(|&w| {
        let holder = |client| next.find(client, w).is_some();
        holder(0) || holder(1)
    }));
}

#[test]
fn a_handover_that_is_not_one_is_refused() {
    let (ledger, _, _) = lent();
    let whole = ledger.handover(NOW).encode();
    for len in 0..whole.len() {
        assert!(Handover::decode(&whole[..len]).is_err(), "cut at {len}");
    }
    let mut other = whole.clone();
    other[6] = 2;
    assert!(Handover::decode(&other).is_err(), "another version");
    let mut long = whole;
    long.push(0);
    assert!(Handover::decode(&long).is_err(), "bytes after the end");
    let nobodys = Handover {
        clients: Vec::new(),
        ..ledger.handover(NOW)
    };
    assert!(Handover::decode(&nobodys.encode()).is_err());
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange_to_be_a_handover_or_refused(
        random in vec(any::<u8>(), 0..200),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let (ledger, _, _) = lent();
        let whole = ledger.handover(NOW).encode();
        let mut changed = whole.clone();
        for (at, byte) in changes {
            let at = at.index(changed.len());
            changed[at] = byte;
        }
        // What is taken for one is carried on with, whatever it says.
        for bytes in [changed, [&whole[..8], &random].concat(), random] {
            if let Ok(handover) = Handover::decode(&bytes) {
                let next = Ledger::inherit(limits(), NOW, &handover);
                prop_assert!(next.counts().total() > 0);
            }
        }
    }
}
