//! Each injected bug shows, and only when it is injected.

use super::*;
use crate::sim::Late;
use crate::sim::injected_faults::InjectedFaults;

/// Posts a write, replaces its window while it is under way; how it ended and what landed. The
/// network's witness sees exactly what is injected.
fn write_across_a_revoke(injected: InjectedFaults) -> (Status, Vec<u8>) {
    let mut pair = Pair::plain();
    pair.net.inject(injected);
    pair.post_write(0, &[9; 8], 1);
    pair.endpoint.flush(&mut pair.queue);
    pair.replace_window();
    let status = pair.statuses(1)[0];
    let is_seen = !pair.net.take_broken().is_empty();
    assert_eq!(is_seen, injected != InjectedFaults::default());
    (status, pair.memory(0, 8))
}

#[test]
fn bytes_that_land_after_a_revoke() {
    let honest = write_across_a_revoke(InjectedFaults::default());
    assert_eq!(honest, (Status::StaleGeneration, vec![0; 8]));
    let injected = InjectedFaults {
        lands_after_revoke: true,
        ..InjectedFaults::default()
    };
    let broken = write_across_a_revoke(injected);
    assert_eq!(broken, (Status::StaleGeneration, vec![9; 8]));
}

#[test]
fn late_writes_that_land_after_a_revoke() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    pair.net.inject(InjectedFaults {
        lands_after_revoke: true,
        ..InjectedFaults::default()
    });
    pair.net.set_late(Some(Late {
        chance_ppm: 1_000_000,
        torn_ppm: 0,
        delay_ns_max: 1000,
    }));
    pair.post_write(0, &[9; 8], 1);
    pair.endpoint.flush(&mut pair.queue);
    pair.net.lose_connections(client, host);
    pair.replace_window();
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.memory(0, 8), [9; 8]);
    let broken = pair.net.take_broken();
    assert!(broken[0].contains("took effect in window"), "{broken:?}");
}

#[test]
fn old_generations_that_are_accepted() {
    let injected = InjectedFaults {
        accepts_old_generations: true,
        ..InjectedFaults::default()
    };
    let broken = write_across_a_revoke(injected);
    assert_eq!(broken, (Status::Ok, vec![9; 8]));
}

#[test]
fn an_order_that_is_lost_on_one_connection() {
    for is_injected in [false, true] {
        let mut pair = Pair::plain();
        pair.net.inject(InjectedFaults {
            loses_order: is_injected,
            ..InjectedFaults::default()
        });
        let long = [1; 60_000];
        pair.post_write(0, &long, 1);
        pair.post_write(0, &[2], 2);
        assert_eq!(pair.statuses(2), [Status::Ok; 2]);
        let last = if is_injected { 1 } else { 2 };
        assert_eq!(pair.memory(0, 1), [last]);
        let broken = pair.net.take_broken();
        assert_eq!(!broken.is_empty(), is_injected, "{broken:?}");
    }
}

#[test]
fn errors_that_count_as_acknowledged() {
    for is_injected in [false, true] {
        let mut pair = Pair::plain();
        let (client, host) = pair.nodes();
        pair.net.inject(InjectedFaults {
            errors_count_as_acknowledged: is_injected,
            ..InjectedFaults::default()
        });
        let says = |status| if is_injected { Status::Ok } else { status };
        assert_eq!(pair.write(WINDOW_BYTES, &[1]), says(Status::OutOfBounds));
        pair.post_write(0, &[1], 1);
        pair.endpoint.flush(&mut pair.queue);
        pair.net.lose_connections(client, host);
        assert_eq!(pair.statuses(1), [says(Status::Disconnected)]);
        assert_eq!(pair.memory(0, 1), [0]);
    }
}
