//! A flush reaches each partition once, whoever has it by then.

use super::*;

/// The [owners](Peers::owners) that nodes are told, while nothing is given away.
const OWNERS: &str = " 0000000000000000";

#[test]
fn a_flush_reaches_the_partitions_of_all_workers_on_all_nodes_once() {
    const UNKNOWN: &str = "SERVER_ERROR connection to the owner was lost, outcome unknown\r\n";
    for (request, text) in [
        ("flush_all", "flush_all 0"),
        ("flush_all 7", "flush_all 107"),
    ] {
        for (answer, expected) in [("", "OK\r\nMN\r\n"), (UNKNOWN, &format!("{UNKNOWN}MN\r\n"))] {
            let shared = shared(2);
            let mut bench = Bench::of(Arc::clone(&shared), vec![3]);
            let mut other = Core::new(1, TestBackend::new(vec![3, 4]), shared);
            bench.core.tick(100, 1);
            bench.say(&format!("{request}\r\nmn\r\n"));
            hand_over(&mut bench.core, &mut other, |_, _| ());

            let asked = mem::take(&mut bench.core.backend.asked);
            let asked_too = mem::take(&mut other.backend.asked);
            let is_text =
                |(_, _, said): &(_, _, Vec<u8>)| *said == format!("{text}{OWNERS}\r\n").as_bytes();
            assert!(asked.iter().chain(&asked_too).all(is_text));
            let nodes = |asked: &[(u32, _, _)]| asked.iter().map(|at| at.0).collect::<Vec<_>>();
            assert_eq!((nodes(&asked), nodes(&asked_too)), (vec![3], vec![3, 4]));

            // All parts are waited for: here and there, on this node and on others.
            let session = &mut bench.session;
            let mut turn = |other: &mut Core<TestBackend>| {
                other.move_on();
                hand_over(other, &mut bench.core, |at, text| {
                    session.fill(at.slot, text);
                });
            };
            other.backend.answers.push(asked_too[1].1, b"");
            turn(&mut other);
            other.backend.partition.committed = 1;
            turn(&mut other);
            other
                .backend
                .answers
                .push(asked_too[0].1, answer.as_bytes());
            turn(&mut other);
            assert_eq!(bench.commit(1), "");
            bench.core.backend.answers.push(asked[0].1, b"");
            assert_eq!(bench.read(), expected);
            assert!(bench.core.spreads.is_empty() && other.spreads.is_empty());
        }
    }
}

#[test]
fn a_flush_that_a_node_hands_back_goes_to_the_next_owner() {
    let mut bench = Bench::of(shared(1), vec![3]);
    bench.say("flush_all\r\n");
    assert_eq!(bench.commit(1), "");
    let (_, ticket, text) = bench.core.backend.asked.remove(0);
    bench.core.backend.nodes = vec![4];
    bench.core.backend.asks.push(ticket, &text);
    assert_eq!(bench.commit(2), "");
    // What was stored here behind it is not to go by a second one.
    assert_eq!(bench.core.backend.partition.owner.last_xid(), 1);
    let asked = &bench.core.backend.asked;
    assert_eq!((asked.len(), asked[0].0), (1, 4));
    bench.core.backend.answers.push(ticket, b"");
    assert_eq!(bench.read(), "OK\r\n");
}

#[test]
fn a_flush_that_is_handed_back_asks_nobody_twice_and_its_outcome_is_unknown() {
    let mut bench = Bench::of(shared(1), vec![3, 4]);
    bench.say("flush_all\r\n");
    assert_eq!(bench.commit(1), "");
    let asked = mem::take(&mut bench.core.backend.asked);
    let [(3, ticket, text), (4, ..)] = &asked[..] else {
        panic!("{asked:?}");
    };
    // Node 4 has flushed, and may have stored something since, when node 3 is found dead.
    bench.core.backend.answers.push(*ticket, b"");
    bench.core.backend.is_given_away = true;
    bench.core.backend.nodes = vec![4, 5];
    bench.core.backend.asks.push(*ticket, text);
    assert_eq!(bench.read(), "");
    let asked = mem::take(&mut bench.core.backend.asked);
    let nodes: Vec<u32> = asked.iter().map(|(node, ..)| *node).collect();
    assert_eq!(nodes, [5]);
    bench.core.backend.answers.push(*ticket, b"");
    assert_eq!(bench.read().as_bytes(), UNKNOWN);
    assert!(bench.core.spreads.is_empty());
}

#[test]
fn a_flush_of_what_is_refused_is_answered_by_the_refusal() {
    const REFUSAL: &[u8] = b"SERVER_ERROR refused\r\n";
    let refuse = |place: &mut TestBackend| {
        place.loss = Some(REFUSAL);
        place.partition.is_closed = true;
    };
    // For another node; for a client of this one.
    let mut bench = Bench::new();
    refuse(&mut bench.core.backend);
    let ticket = of_node(1);
    bench.core.serve(ticket, b"flush_all 0\r\n");
    assert_eq!(bench.core.backend.answered, [REFUSAL]);
    bench.say("flush_all\r\nmn\r\n");
    assert_eq!(bench.read(), "SERVER_ERROR refused\r\nMN\r\n");
    assert!(bench.core.spreads.is_empty() && bench.core.parked.bytes() == 0);

    // All other parts are flushed, and waited for.
    let shared = shared(2);
    let mut bench = Bench::of(Arc::clone(&shared), Vec::new());
    let mut other = Core::new(1, TestBackend::new(Vec::new()), shared);
    refuse(&mut other.backend);
    bench.say("flush_all\r\nmn\r\n");
    let session = &mut bench.session;
    hand_over(&mut bench.core, &mut other, |_, _| ());
    hand_over(&mut other, &mut bench.core, |at, text| {
        session.fill(at.slot, text);
    });
    assert_eq!(bench.read(), "");
    assert_eq!(bench.commit(1), "SERVER_ERROR refused\r\nMN\r\n");
}

#[test]
fn a_flush_of_a_partition_that_is_given_away_meanwhile_is_no_success() {
    // It is closed when the flush comes, and another's when that is tried again.
    let mut bench = Bench::of(shared(1), vec![3]);
    let ticket = of_node(1);
    bench.core.backend.partition.is_closed = true;
    bench.core.serve(ticket, b"flush_all 0\r\n");
    bench.core.backend.is_given_away = true;
    bench.core.move_on();
    assert_eq!(bench.core.backend.answered, [UNKNOWN]);

    // The one node passes it over as it has it no more, the other one as it does not have it yet.
    let mut bench = Bench::of(shared(1), vec![3, 4]);
    bench.say("flush_all\r\n");
    bench.core.backend.is_given_away = true;
    for (_, ticket, _) in mem::take(&mut bench.core.backend.asked) {
        bench.core.backend.answers.push(ticket, b"");
    }
    assert_eq!(bench.commit(1).as_bytes(), UNKNOWN);
    assert!(bench.core.spreads.is_empty());
}

#[test]
fn a_flush_by_a_node_that_knows_other_owners_is_no_success() {
    let meant = |owners: &str| format!("flush_all 0{owners}\r\n");
    // Whom it is meant for; whether this node has given its partition away; the answer.
    let cases = [
        (OWNERS, false, &b""[..]),
        // Who asks does not know yet who has it now.
        (OWNERS, true, UNKNOWN),
        (" 0000000000000001", true, b""),
        // It knows already that this node has it, or will have.
        (" 0000000000000001", false, UNKNOWN),
        // One of an earlier version does not say.
        ("", true, b""),
    ];
    for (owners, is_given_away, answer) in cases {
        let mut bench = Bench::new();
        bench.core.backend.is_given_away = is_given_away;
        bench.core.serve(of_node(1), meant(owners).as_bytes());
        bench.commit(1);
        assert_eq!(bench.core.backend.answered, [answer], "{owners:?}");
        assert!(bench.core.spreads.is_empty());
    }
}

#[test]
fn what_another_node_flushes_here_stays_here() {
    let mut bench = Bench::of(shared(1), vec![3]);
    let ticket = of_node(1);
    bench.core.serve(ticket, b"flush_all 0\r\n");
    assert_eq!(bench.core.backend.asked, []);
    assert_eq!(bench.core.backend.partition.owner.committed_xid(), 1);
}

#[test]
fn nothing_is_kept_of_a_flush_that_was_asked_over_a_link_that_broke() {
    let mut bench = Bench::new();
    let ticket = of_node(1);
    bench.core.backend.partition.is_closed = true;
    bench.core.serve(ticket, b"flush_all 0\r\n");
    bench.core.backend.link = 1;
    bench.core.move_on();
    assert!(bench.core.parked.is_empty() && bench.core.spreads.is_empty());
}
