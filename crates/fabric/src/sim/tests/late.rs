//! Writes that land after their connection broke, acknowledgements that are lost, landings.

use super::*;
use crate::sim::Late;

const WHOLE: Late = Late {
    chance_ppm: 1_000_000,
    torn_ppm: 0,
    delay_ns_max: 100_000,
};

/// Breaks the endpoint's connection while `count` writes of `[9; 1000]` are under way.
fn broken(seed: u64, late: Late, count: u64) -> Pair {
    let mut pair = Pair::new(seed, Config::default());
    let (client, host) = pair.nodes();
    pair.net.set_late(Some(late));
    let bytes = [9; 1000];
    for number in 0..count {
        pair.post_write(number * 1000, &bytes, number);
    }
    pair.endpoint.flush(&mut pair.queue);
    pair.net
        .lose_connection(pair.net.connections(client, host)[1]);
    let ends = pair.statuses(count as usize);
    assert!(ends.iter().all(|status| *status == Status::Disconnected));
    assert!(pair.memory(0, 65_536).iter().all(|byte| *byte == 0));
    pair
}

#[test]
fn late_writes_land_whole() {
    let pair = broken(1, WHOLE, 3);
    pair.pass(Duration::from_millis(1));
    assert!(pair.memory(0, 3000).iter().all(|byte| *byte == 9));
}

#[test]
fn late_writes_land_in_order_up_to_a_torn_one() {
    let late = Late {
        torn_ppm: 300_000,
        ..WHOLE
    };
    let mut torn = 0;
    for seed in 0..20 {
        let pair = broken(seed, late, 10);
        pair.pass(Duration::from_millis(2));
        let bytes = pair.memory(0, 10_000);
        let landed = bytes.iter().take_while(|byte| **byte == 9).count();
        assert!(bytes[landed..].iter().all(|byte| *byte == 0), "seed {seed}");
        torn += usize::from(landed % 1000 != 0);
    }
    assert!(torn > 5, "{torn} torn writes in 20 runs");
}

#[test]
fn no_late_write_lands_in_a_revoked_window() {
    let mut pair = broken(1, WHOLE, 10);
    pair.replace_window();
    pair.pass(Duration::from_millis(2));
    assert!(pair.memory(0, 10_000).iter().all(|byte| *byte == 0));
}

#[test]
fn without_late_writes_a_break_loses_what_is_under_way() {
    let late = Late {
        chance_ppm: 0,
        ..WHOLE
    };
    let pair = broken(1, late, 3);
    pair.pass(Duration::from_millis(1));
    assert!(pair.memory(0, 3000).iter().all(|byte| *byte == 0));
}

#[test]
fn a_lost_acknowledgement_leaves_the_write_in_place() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    pair.net.lose_next_acknowledgement(client, host);
    assert_eq!(pair.write(0, &[9; 64]), Status::Disconnected);
    assert_eq!(pair.memory(0, 64), [9; 64]);
    pair.endpoint = pair.session.endpoint(Duration::ZERO).unwrap();
    assert_eq!(pair.write(0, &[8; 64]), Status::Ok, "only the next one");
}

#[test]
fn a_source_is_taken_at_flush_and_a_landing_written_at_the_answer() {
    let mut pair = Pair::plain();
    let mut source = [9; 64];
    pair.post_write(0, &source, 1);
    pair.endpoint.flush(&mut pair.queue);
    std::hint::black_box(source.as_mut_ptr());
    source.fill(1);
    assert_eq!(pair.statuses(1), [Status::Ok]);
    assert_eq!(pair.memory(0, 64), [9; 64]);

    let mut landing = [0; 64];
    pair.post_read(0, &mut landing, 2);
    pair.endpoint.flush(&mut pair.queue);
    // The host reads here, and the answer is under way.
    pair.pass(Duration::from_nanos(1000));
    pair.region.write(0, &[7; 64]).unwrap();
    assert_eq!(*std::hint::black_box(&landing), [0; 64]);
    assert_eq!(pair.statuses(1), [Status::Ok]);
    assert_eq!(*std::hint::black_box(&landing), [9; 64]);
}

#[test]
fn a_landing_revoked_while_the_answer_is_under_way_stays_as_it_is() {
    let mut pair = Pair::plain();
    assert_eq!(pair.write(0, &[9; 64]), Status::Ok);
    let mut landing = [3; 64];
    pair.post_read(0, &mut landing, 5);
    pair.endpoint.flush(&mut pair.queue);
    pair.pass(Duration::from_nanos(1000));
    pair.endpoint.revoke_landing(5);
    assert_eq!(pair.statuses(1), [Status::Ok]);
    assert_eq!(*std::hint::black_box(&landing), [3; 64]);
    pair.post_read(0, &mut landing, 6);
    pair.endpoint.flush(&mut pair.queue);
    drop(std::mem::replace(
        &mut pair.endpoint,
        pair.session.endpoint(Duration::ZERO).unwrap(),
    ));
    pair.pass(Duration::from_millis(1));
    assert_eq!(
        *std::hint::black_box(&landing),
        [3; 64],
        "of a dropped endpoint"
    );
}

/// Who gives a window back has ended its own writes there, and those of clients that are still connected.
/// What a client had under way when it left may come late: it has told its giver.
#[test]
fn a_write_into_a_window_that_was_given_back_is_told_but_that_of_a_client_that_has_left() {
    let giver = ClientId(99);
    for (by, leaves, is_told) in [
        (giver, false, true),
        (giver, true, false),
        (hello().client, true, true),
    ] {
        let mut pair = Pair::plain();
        let source = [1; 64];
        pair.post_write(0, &source, 1);
        pair.endpoint.flush(&mut pair.queue);
        let (_, host) = pair.nodes();
        pair.net
            .note_given_back(host, pair.window.descriptor.generation, by);
        let other = pair.session.endpoint(Duration::ZERO).unwrap();
        if leaves {
            pair.endpoint = other;
        }
        while pair.net.step() {}
        let told = pair.net.take_broken();
        assert_eq!(
            !told.is_empty(),
            is_told,
            "by {by:?}, leaves: {leaves}: {told:?}"
        );
    }
}
