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

/// Which regions have other windows after something than before it.
fn fenced(world: &mut World, happens: impl FnOnce(&mut World)) -> Vec<usize> {
    let before = world.owner.entries();
    happens(world);
    world.run();
    world.pass(LEASE);
    world.run();
    assert!(world.owner.is_settled());
    let after = world.owner.entries();
    let pairs = before.iter().zip(&after).enumerate();
    let is_other = |(_, (before, after)): &(usize, (&Entry, &Entry))| before.copies != after.copies;
    pairs.filter(is_other).map(|(region, _)| region).collect()
}

fn copies_on(world: &World, host: usize) -> Vec<usize> {
    let entries = world.owner.entries();
    let is_there = |region: &usize| entries[*region].copies.iter().any(|copy| copy.host == host);
    (0..entries.len()).filter(is_there).collect()
}

#[test]
fn of_two_copies_those_on_a_silent_host_are_made_equal_once_hosts_write() {
    for writes in [false, true] {
        let mut world = World::settled(2, 4, 6);
        let silent = host_of(&world, 0);
        join_host(&mut world, 1, silent);
        if writes {
            world.owner.note_hosts_write();
        }
        let there = copies_on(&world, silent);
        assert!(there.len() < world.owner.region_count());
        let fenced = fenced(&mut world, |world| {
            world.pass(LEASE);
            world.pass(LEASE_MARGIN);
        });
        assert_eq!(fenced, if writes { there } else { vec![] });
    }
}

#[test]
fn what_a_process_was_writing_that_another_follows_is_fenced_before_that_one_writes() {
    let mut world = World::settled(2, 4, 6);
    let host = host_of(&world, 0);
    join_host(&mut world, 1, host);
    world.owner.note_hosts_write();
    assert_eq!(world.owner.doubtful_on(host), []);
    let there = copies_on(&world, host);
    let mut doubtful = Vec::new();
    let fenced = fenced(&mut world, |world| {
        world.owner.note_host_restarted(1);
        doubtful = world.owner.doubtful_on(host);
        assert!(!world.owner.are_fenced(&doubtful));
        world.owner.handle_tick(world.now);
    });
    assert_eq!(fenced, there);
    assert!(
        doubtful
            .iter()
            .map(|(region, _)| *region)
            .eq(there.iter().copied())
    );
    assert!(world.owner.are_fenced(&doubtful));
    // Others that are doubtful later keep nobody waiting for these.
    for region in there {
        let generation = world.owner.entries()[region].generation;
        world.owner.note_host_doubt(region, generation);
    }
    assert!(world.owner.are_fenced(&doubtful));
}

/// A region leaves the host with its second copy: clients turn to that, which is copied, while the
/// host that has written stands still.
#[test]
fn a_host_that_wrote_to_the_first_copy_leaves_doubts_where_it_is_the_second_by_now() {
    let mut world = World::settled(2, 1, 3);
    let copies = world.owner.entries()[0].copies.clone();
    let (writer, leaver) = (copies[0].host, copies[1].host);
    join_host(&mut world, 1, writer);
    world.owner.note_hosts_write();
    world.owner.handle_host_silent(world.now, writer);
    world.owner.handle_notice(world.now, leaver, None);
    world.run();
    world.seen.clear();
    world.pass(LEASE);
    world.pass(LEASE_MARGIN);
    assert!(world.run_until(|action| matches!(action, Action::Fill { .. })));
    assert!(!renews(&world).is_empty(), "what it sent lands nowhere");
}

#[test]
fn a_host_says_its_doubts_before_what_it_goes_by_and_the_copies_are_made_equal_first() {
    let mut world = World::settled(2, 1, 3);
    let first = host_of(&world, 0);
    join_host(&mut world, 1, first);
    let generation = world.owner.entries()[0].generation;
    world.owner.handle_notice(world.now, first, None);
    world.run();
    world.seen.clear();
    world.owner.note_host_doubt(0, generation);
    know_all(&mut world, 1);
    assert!(world.run_until(|action| matches!(action, Action::Fill { .. })));
    assert_eq!(renews(&world).len(), 2, "what is sent lands nowhere");
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
