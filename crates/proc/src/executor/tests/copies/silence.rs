//! Second copies that do not answer, and what waits meanwhile.

use std::ops::Range;

use super::*;

#[test]
fn a_machine_that_does_not_answer_holds_up_stores_for_its_own_copies_alone() {
    for first in [Delivery::Lost, Delivery::NotSent] {
        let mut thread = Thread::of_two_regions();
        thread.add(64);
        let (sent, _) = thread.run();
        thread.executor.handle_replicated(sent[0].token, first);
        // A tick between the doubt and the fence forgets nobody.
        thread.executor.handle_tick(Time(1));
        let (probes, _) = thread.sent();
        assert_eq!(probes.len(), 1);
        thread
            .executor
            .handle_replicated(probes[0].token, Delivery::Lost);
        // Where nobody knows, a fence is waited for as well.
        assert!(thread.renew(2));
        thread.add(128);
        thread.add(REGION);
        let (sent, _) = thread.run();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0].pieces[0].addr, REGION);
        let written = Delivery::Answered(Replicated::Written);
        thread.executor.handle_replicated(sent[0].token, written);

        // It is asked alone, until it answers.
        let mut now = Time(0);
        for answer in [Delivery::NotSent, Delivery::Lost, written] {
            now = now.after(Duration::from_millis(100));
            thread.executor.handle_tick(now);
            let (probes, _) = thread.run();
            assert_eq!(probes.len(), 1, "{answer:?}");
            assert_eq!(probes[0].pieces, []);
            thread
                .executor
                .handle_tick(now.after(Duration::from_millis(29)));
            assert_eq!(thread.sent().0, [], "one at a time");
            thread.executor.handle_replicated(probes[0].token, answer);
        }
        let (sent, _) = thread.run();
        let addresses = sent[0].pieces.iter().map(|piece| piece.addr);
        let expected: &[u64] = match first {
            // It was not stored, and is taken again.
            Delivery::NotSent => &[64, 128],
            _ => &[128],
        };
        assert_eq!(addresses.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_cache_that_is_closed_leaves_what_was_sent_in_doubt_and_takes_the_rest_back() {
    for closes in [true, false] {
        let mut thread = Thread::new();
        thread.add(64);
        thread.run();
        thread.add(64);
        thread.run();
        if closes {
            thread.executor.handle_deleted(CACHE);
        } else {
            thread.executor.handle_leave(CACHE, Machine(3));
        }
        assert_eq!(thread.executor.doubts(CACHE).count(), 1);
        thread.executor.run(&mut thread.procedures, 16);
        let mut ends = Vec::new();
        while let Some(action) = thread.executor.poll_action() {
            match action {
                Action::Answer { responses, .. } => {
                    ends.extend(responses.iter().map(|response| response.status));
                }
                Action::Move { to: Machine(3), .. } => ends.push(Status::Lost),
                Action::Doubt { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        let other = [Status::Lost, Status::OutOfBounds][usize::from(closes)];
        ends.sort_by_key(|status| *status != Status::TimedOut);
        assert_eq!(ends, [Status::TimedOut, other]);
        assert_eq!(thread.number(64), 0);
    }
}

#[test]
fn a_word_waits_for_what_is_on_its_way_and_goes_on_when_that_counts_as_lost() {
    let mut thread = Thread::new();
    thread.add(64);
    let (sent, _) = thread.run();
    let slot = |generation, place| [(0, Slot { generation, place })];
    let word = slot(2, RegionLocation::At(Machine(3)));
    assert!(thread.executor.is_flying(CACHE, Some(&word)));
    assert!(!thread.executor.is_flying(CACHE, Some(&[])), "a lease");
    // Nothing follows it while the word waits.
    thread.executor.stop_flights(CACHE, true);
    thread.add(128);
    assert_eq!(thread.run(), (vec![], vec![]));

    thread.executor.lose_flight(CACHE);
    assert!(!thread.executor.is_flying(CACHE, Some(&word)));
    assert_eq!(thread.run(), (vec![], vec![Status::TimedOut]));
    assert_eq!(thread.executor.doubts(CACHE).collect::<Vec<_>>(), [(0, 1)]);
    // What it comes to after all is nobody's to hear.
    let written = Delivery::Answered(Replicated::Written);
    thread.executor.handle_replicated(sent[0].token, written);
    assert_eq!((thread.sent(), thread.number(64)), ((vec![], vec![]), 0));

    // The doubt is told although the region is elsewhere by then, until it is heard.
    let [(index, slot)] = word;
    assert!(thread.executor.handle_map(CACHE, index, slot));
    thread.executor.stop_flights(CACHE, false);
    assert_eq!(thread.executor.doubts(CACHE).count(), 1);
    thread.executor.handle_told(CACHE, 0, 1);
    assert_eq!(thread.executor.doubts(CACHE).count(), 0);
}

/// However many steps store however much, and however long second copies are silent.
#[test]
fn what_is_kept_back_is_bounded() {
    let mut thread = Thread::new();
    for _ in 0..12 {
        thread.add(0);
    }
    let mut fills = Fills {
        len: 64,
        stored: 0,
        ends: Outcome::Done,
    };
    let mut sent = Vec::new();
    for tick in 1..50 {
        thread.executor.run(&mut fills, 16);
        sent.extend(thread.sent().0);
        thread.executor.handle_tick(Time(tick * 2_000_000));
    }
    // Four steps of 1,024 lines on their way, as many behind them, and the rest were not taken.
    assert_eq!(fills.stored, 8 * 1024);
    let bytes = |replicate: &Replicate| {
        replicate
            .pieces
            .iter()
            .map(|p| p.bytes.len())
            .sum::<usize>()
    };
    assert_eq!(sent.iter().map(bytes).sum::<usize>(), 4 * 64 * 1024);
    let executor = &thread.executor;
    assert_eq!(executor.own() + executor.inactive(), 12);
}

/// Nothing was sent, so that nothing is in doubt; but only the owner can find another place.
#[test]
fn the_owner_hears_of_a_machine_that_stays_out_of_reach_while_a_request_waits() {
    let mut thread = Thread::of_two_regions();
    let mut now = Time(0);
    // Ticks of 100 ms without an answer; at which of them the region was doubtful first.
    let mut first_doubt = |thread: &mut Thread, ticks: Range<u32>| {
        ticks.into_iter().find(|_| {
            now = now.after(Duration::from_millis(100));
            thread.executor.handle_tick(now);
            for probe in thread.run().0 {
                let not_sent = Delivery::NotSent;
                thread.executor.handle_replicated(probe.token, not_sent);
            }
            thread.executor.doubts(CACHE).next().is_some()
        })
    };
    thread.add(64);
    assert_eq!(first_doubt(&mut thread, 1..100), Some(31));
    assert_eq!(thread.executor.doubts(CACHE).collect::<Vec<_>>(), [(0, 1)]);

    // Windows were renewed, and nothing else has changed.
    assert!(thread.renew(2));
    assert_eq!(first_doubt(&mut thread, 32..200), Some(91));
    // The request has given up. With another place for the second copy nobody waits.
    assert!(thread.renew(3));
    assert_eq!(first_doubt(&mut thread, 92..1000), None);
    thread.add(64);
    assert!(first_doubt(&mut thread, 1000..1100).is_some());
}
