//! Hosts whose procedures use the cache: what they are waited for, and what they leave behind.

use super::*;

const LISTENER: ClientNumber = 50;

/// A host that goes by every entry and has its lease.
fn join_host(world: &mut World, client: ClientNumber, host: usize) {
    assert!(world.owner.handle_host_joined(world.now, client, host));
    know_all(world, client);
    let renewal = world.owner.handle_client_alive(world.now, client);
    assert_eq!(renewal, Renewal::Granted);
}

fn know_all(world: &mut World, client: ClientNumber) {
    let entries = world.owner.entries();
    let known = entries
        .iter()
        .map(|entry| (entry.region as usize, entry.generation));
    let known: Vec<_> = known.collect();
    world.owner.handle_all_known(world.now, client, &known);
}

fn renews(world: &World) -> Vec<usize> {
    let host = |action: &Action| match action {
        Action::Renew { host, .. } => Some(*host),
        _ => None,
    };
    let mut hosts: Vec<_> = world.seen.iter().filter_map(host).collect();
    hosts.dedup();
    hosts
}

#[test]
fn nothing_is_copied_before_each_host_goes_by_the_stop_or_has_lost_its_lease() {
    for answers in [true, false] {
        let mut world = World::new(1, 1, 3);
        world.run();
        let from = host_of(&world, 0);
        join_host(&mut world, 1, from);
        join_host(&mut world, 2, (from + 1) % 3);
        world.owner.handle_notice(world.now, from, None);
        let fills = |action: &Action| matches!(action, Action::Fill { .. });
        assert!(!world.run_until(fills), "procedures may write there still");
        // One of them answers, and the other keeps its lease for as long as it is.
        know_all(&mut world, 1);
        assert!(!world.run_until(fills), "procedures may read old bytes");
        if answers {
            know_all(&mut world, 2);
        } else {
            world.pass(LEASE);
            assert!(!world.run_until(fills));
            world.pass(LEASE_MARGIN);
        }
        assert!(world.run_until(fills));
    }
}

#[test]
fn what_a_silent_host_may_have_been_writing_to_is_fenced_and_nothing_else() {
    let mut world = World::settled(1, 3, 3);
    let silent = host_of(&world, 0);
    assert!((1..3).any(|region| host_of(&world, region) != silent));
    join_host(&mut world, 1, silent);
    world.seen.clear();
    world.pass(LEASE);
    world.pass(LEASE_MARGIN);
    world.run();
    assert_eq!(renews(&world), [silent]);
    assert!(world.owner.is_settled());
}

#[test]
fn of_two_copies_procedures_write_none_and_nothing_is_made_equal() {
    let mut world = World::settled(2, 2, 3);
    for host in 0..3 {
        join_host(&mut world, host as u64, host);
    }
    world.seen.clear();
    world.pass(LEASE);
    world.pass(LEASE_MARGIN);
    world.run();
    assert_eq!((renews(&world), world.owner.is_settled()), (vec![], true));
}

#[test]
fn the_listener_is_told_of_everything_for_ever_and_waited_for_by_nobody() {
    let mut world = World::settled(1, 1, 2);
    assert!(world.owner.handle_listener_joined(world.now, LISTENER));
    world.pass(10 * LEASE);
    world.run();
    world.seen.clear();
    let from = host_of(&world, 0);
    world.owner.handle_notice(world.now, from, None);
    world.stopped.push(LISTENER);
    world.run();
    let told = |action: &&Action| {
        matches!(
            action,
            Action::Tell {
                client: LISTENER,
                ..
            }
        )
    };
    let told = world.seen.iter().filter(told).count();
    assert!(told >= 3, "frozen, switched and open: {told}");
    assert_ne!(host_of(&world, 0), from);
    // Hosts hear it from there.
    join_host(&mut world, 1, 0);
    world.seen.clear();
    world.owner.handle_notice_withdrawn(world.now, from);
    world.owner.handle_notice(world.now, 1 - from, None);
    know_all(&mut world, 1);
    world.run();
    let to_host = |action: &Action| matches!(action, Action::Tell { client: 1, .. });
    assert!(!world.seen.iter().any(to_host));
}

#[test]
fn as_many_clients_as_there_may_be_keep_no_host_from_its_lease() {
    let mut world = World::settled(1, 1, 2);
    for client in 100..100 + CLIENTS_MAX as u64 {
        assert!(world.owner.handle_client_joined(world.now, client));
    }
    assert!(!world.owner.handle_client_joined(world.now, 7), "too many");
    join_host(&mut world, 1, 0);
    assert!(world.owner.handle_listener_joined(world.now, LISTENER));
    assert!(!world.owner.handle_client_joined(world.now, 7), "still");
}
