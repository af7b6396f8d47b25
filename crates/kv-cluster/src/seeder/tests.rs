//! Losses of a store's data, real ones and others.

use std::sync::Arc;

use cenote_fabric::WireProtection;
use cenote_kv::group::member::Service;
use cenote_kv::group::view;

use super::*;
use crate::NodeId;
use crate::config::{
    ClusterConfig, DocumentKeys, KeyFingerprint, NodeState, Registration, Scheme, VERSION,
};
use crate::etcd::Change;
use crate::steward::Proposal;
use crate::store::memory::Memory;

const SECOND_NS: u64 = 1_000_000_000;

fn keys() -> DocumentKeys {
    DocumentKeys::of("test").unwrap()
}

fn process(node: u32) -> Process {
    Process {
        node,
        incarnation: 1,
    }
}

fn config() -> ClusterConfig {
    ClusterConfig {
        groups: 2,
        code: "1+1".parse().unwrap(),
        scheme: Scheme::Coded,
        region_bytes: 4 << 20,
        memory_bytes: 64 << 20,
        lanes: 1,
        link_traffic: WireProtection::default(),
        key: KeyFingerprint::UNKNOWN,
        service: Service::Online,
        nodes: vec!["n0".to_owned(), "n1".to_owned()],
    }
}

/// A view of the two nodes.
fn view(number: u32) -> View {
    View {
        number,
        ..View::first(view::Scheme::Coded, &[process(0)], &[process(1)])
    }
}

fn encoded(view: &View) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    encode_view(view, &mut bytes);
    bytes.to_vec()
}

fn register(store: &Memory, node: u32) {
    let registration = Registration {
        version: VERSION,
        name: format!("n{node}"),
        clients: Vec::new(),
        peers: vec![([127, 0, 0, 1], 1).into()],
        incarnation: 1,
        state: NodeState::Up,
    };
    store.put(&keys().node(NodeId(node)), &registration.to_bytes());
}

/// A store with the cluster's configuration, both nodes and the first group's view.
fn store() -> Memory {
    let store = Memory::default();
    store.put(&keys().config(), &config().to_bytes());
    register(&store, 0);
    register(&store, 1);
    store.put(&keys().view(0), &encoded(&view(3)));
    store
}

/// The steward of a node, the first of no group's plan.
fn steward(node: u32, store: &Memory) -> Steward {
    let plan = vec![vec![NodeId(7)]; 2];
    let config = Arc::new(config());
    let mut steward = Steward::new(process(node), keys(), config, &[], plan, 7);
    steward.take(Change::Reset(store.listing()));
    turn(&mut steward, store, 1);
    steward.take_notices();
    steward
}

fn turn(steward: &mut Steward, store: &Memory, second: u64) {
    steward.turn(store, &|_, _| None, second * SECOND_NS);
}

fn mark(store: &Memory) -> Option<Vec<u8>> {
    store.entry(&keys().seed()).map(|entry| entry.value)
}

fn is_told_of_seeding(steward: &mut Steward) -> bool {
    let notices = steward.take_notices();
    notices.iter().any(|one| matches!(one, Notice::Seeded(_)))
}

#[test]
fn of_all_that_there_is_views_are_told_first_and_the_own_registration_last() {
    let store = store();
    for node in [0, 1] {
        let plan = vec![vec![NodeId(7)]; 2];
        let config = Arc::new(config());
        let mut steward = Steward::new(process(node), keys(), config, &[], plan, 7);
        steward.take(Change::Reset(store.listing()));
        let notices = steward.take_notices();
        assert!(matches!(
            notices.first(),
            Some(Notice::View { group: 0, .. })
        ));
        let own = NodeId(node);
        assert!(matches!(notices.last(), Some(Notice::Node { node, .. }) if *node == own));
        assert_eq!(notices.len(), 3);
    }
}

#[test]
fn what_was_listed_before_a_swap_of_our_own_is_no_loss() {
    let store = store();
    let mut steward = steward(0, &store);
    // The watch lists, and is slow to tell. Meanwhile one group goes on and another begins.
    let stale = store.listing();
    for (group, view) in [(0, view(4)), (1, view(1))] {
        steward.propose(Proposal { group, view });
    }
    turn(&mut steward, &store, 2);
    steward.take(Change::Reset(stale));
    turn(&mut steward, &store, 3);
    assert_eq!(mark(&store), None);
    assert!(!steward.is_busy());
    // And it goes on from there.
    steward.take_notices();
    steward.propose(Proposal {
        group: 0,
        view: view(5),
    });
    turn(&mut steward, &store, 4);
    let entry = store.entry(&keys().view(0)).unwrap();
    assert_eq!(entry.value, encoded(&view(5)));
}

#[test]
fn an_older_view_and_a_view_that_is_gone_are_losses() {
    let older = |store: &Memory| {
        store.put(&keys().view(0), &encoded(&view(2)));
    };
    let gone = |store: &Memory| store.remove(&keys().view(0));
    let empty = |store: &Memory| store.lose();
    for lose in [&older as &dyn Fn(&Memory), &gone, &empty] {
        let store = store();
        let mut steward = steward(0, &store);
        lose(&store);
        steward.take(Change::Reset(store.listing()));
        turn(&mut steward, &store, 2);
        assert!(mark(&store).is_some());
        assert!(is_told_of_seeding(&mut steward));
        assert!(store.entry(&keys().config()).is_some());
    }
}

#[test]
fn each_loss_has_a_mark_of_its_own() {
    let store = store();
    let mut steward = steward(0, &store);
    let mut marks = Vec::new();
    for round in 0..3 {
        match round {
            // The mark goes with all else, or stays when a view goes.
            0 | 1 => store.lose(),
            _ => store.remove(&keys().view(0)),
        }
        steward.take(Change::Reset(store.listing()));
        turn(&mut steward, &store, 2 + 10 * round);
        assert!(is_told_of_seeding(&mut steward), "round {round}");
        marks.push(mark(&store).unwrap());
        // All of its nodes have the view again.
        store.put(
            &keys().view(0),
            &encoded(&view(100 + u32::try_from(round).unwrap())),
        );
        steward.take(Change::Reset(store.listing()));
        turn(&mut steward, &store, 5 + 10 * round);
        assert!(!steward.is_busy());
        steward.take_notices();
    }
    let count = marks.len();
    marks.sort_unstable();
    marks.dedup();
    assert_eq!(marks.len(), count);
}

#[test]
fn two_that_notice_a_loss_agree_on_the_last_mark() {
    let store = store();
    let mut both = [steward(0, &store), steward(1, &store)];
    store.lose();
    for steward in &mut both {
        steward.take(Change::Reset(store.listing()));
    }
    for steward in &mut both {
        turn(steward, &store, 2);
    }
    let seeds = both.each_mut().map(|steward| {
        steward.take(Change::Put(store.entry(&keys().seed()).unwrap()));
        steward.seeding.seed
    });
    assert_eq!(seeds[0], seeds[1]);
    assert!(seeds[0].is_some());
}
