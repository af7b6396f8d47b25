use std::time::Duration;

use cenote_kv::group::view::Scheme;

use super::super::detector::Settings;
use super::*;

const LEASE: LeaseId = LeaseId(5);

fn process(node: u32) -> Process {
    let incarnation = 10;
    Process { node, incarnation }
}

fn registered(incarnation: u64) -> Option<Registered> {
    Some(Registered {
        incarnation,
        address: None,
        state: NodeState::Up,
        lease: Some(LEASE),
    })
}

/// Node 0 of a group of 2+1 on nodes 0 to 2, registered and linked with all.
fn whole(now: Instant) -> (Membership, View) {
    let mut membership = Membership::new(process(0), Detector::new(Settings::default()));
    for node in 0..3 {
        membership.take(NodeId(node), registered(10), now);
        if node > 0 {
            membership.link_up(process(node), now);
        }
    }
    membership.detector.poll(now);
    let view = View::first(Scheme::Coded, &[process(0), process(1)], &[process(2)]);
    (membership, view)
}

/// These links break, and the time after which they are missed goes by.
fn cut(membership: &mut Membership, nodes: &[u32], now: Instant) {
    for node in nodes {
        membership.link_down(NodeId(*node), now);
    }
    let later = now + Duration::from_millis(41);
    membership.detector.poll(later);
}

#[test]
fn an_expired_registration_is_no_end_of_a_process_and_a_later_process_is() {
    let now = Instant::now();
    let (mut membership, view) = whole(now);
    membership.take(NodeId(1), None, now);
    assert!(!membership.is_dead(process(1)), "it is heard");
    cut(&mut membership, &[1, 2], now);
    assert!(membership.is_dead(process(1)) && membership.is_dead(process(2)));
    assert!(!membership.is_replaced(process(1)));
    assert_eq!(
        membership.refused(&view, Some(LEASE)).why,
        None,
        "2 is registered: it may be back at once"
    );
    membership.take(NodeId(2), None, now);
    let refused = membership.refused(&view, Some(LEASE));
    assert_eq!(refused.why, Some(Closed::Missing));
    assert_eq!(
        refused.partitions, 0b11,
        "0 lacks its parity, 1 has no owner"
    );
    membership.take(NodeId(1), registered(11), now);
    assert!(membership.is_replaced(process(1)));
}

#[test]
fn a_data_process_whose_parities_are_there_serves_though_more_are_missing_than_is_borne() {
    let now = Instant::now();
    let mut membership = Membership::new(process(0), Detector::new(Settings::default()));
    for node in 0..4 {
        membership.take(NodeId(node), registered(10), now);
        if node > 0 {
            membership.link_up(process(node), now);
        }
    }
    membership.detector.poll(now);
    let all = [0, 1, 2, 3].map(process);
    let view = View::first(Scheme::Coded, &all[..3], &all[3..]);
    cut(&mut membership, &[1, 2], now);
    membership.take(NodeId(1), None, now);
    membership.take(NodeId(2), None, now);
    let refused = membership.refused(&view, Some(LEASE));
    assert_eq!(refused.why, Some(Closed::Missing));
    assert_eq!(refused.partitions, 0b110);
    assert_eq!(refused.of(0), None);
    assert_eq!(refused.of(2), Some(Closed::Missing));
}

#[test]
fn who_is_not_registered_refuses_what_it_owns_once_a_member_is_missed() {
    let now = Instant::now();
    let (mut membership, view) = whole(now);
    assert_eq!(membership.refused(&view, None), Refused::default());
    assert!(membership.is_registered(Some(LEASE)));
    assert!(!membership.is_registered(None), "it ran out");
    assert!(
        !membership.is_registered(Some(LeaseId(6))),
        "it was not told of this one"
    );
    cut(&mut membership, &[2], now);
    assert_eq!(membership.refused(&view, Some(LEASE)), Refused::default());
    for lease in [None, Some(LeaseId(6))] {
        let refused = membership.refused(&view, lease);
        assert_eq!(refused.why, Some(Closed::Unregistered));
        assert_eq!(refused.partitions, 0b01, "1 decides for itself");
    }
    // As the store tells it: it was registered, and is not any more.
    membership.take(NodeId(0), None, now);
    let refused = membership.refused(&view, Some(LEASE));
    assert_eq!(refused.why, Some(Closed::Unregistered));
    membership.link_up(process(2), now);
    membership.detector.poll(now);
    assert_eq!(membership.refused(&view, None), Refused::default());
}

#[test]
fn a_process_that_was_never_registered_refuses_nothing() {
    let now = Instant::now();
    let view = whole(now).1;
    let mut membership = Membership::new(process(7), Detector::new(Settings::default()));
    membership.take(NodeId(7), None, now);
    assert_eq!(membership.refused(&view, None), Refused::default());
}
