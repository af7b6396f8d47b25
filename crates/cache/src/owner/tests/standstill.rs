//! While a record is kept back, and while the owner is not driven or reaches nobody, nobody is late and
//! nothing piles up.

use super::*;

/// Takes actions up to the first record, which the disk refuses from now on.
fn begin_recording(world: &mut World) {
    assert!(world.run_until(|action| *action == Action::Record));
    world.owner.handle_recording(world.now);
}

#[test]
fn what_waits_for_a_record_does_not_grow_with_what_comes() {
    let mut world = World::settled(2, 8, 3);
    world
        .owner
        .handle_life_renewed(world.now, Some(Duration::from_secs(3600)));
    begin_recording(&mut world);
    let mut longest = 0;
    for client in 1..=200 {
        world.join(client);
        let host = client as usize % 3;
        world.owner.handle_host_silent(world.now, host);
        world.start(host);
        world.owner.handle_notice(world.now, host, None);
        world.owner.handle_notice_withdrawn(world.now, host);
        world.pass(Duration::from_millis(100));
        longest = longest.max(world.owner.actions.len());
    }
    assert!(longest < 40, "{longest} actions wait");
    world.owner.handle_recorded(world.now);
    world.seen.clear();
    world.run();
    assert!(world.owner.is_settled());
    for client in 1..=200 {
        let told: Vec<&Entry> = world
            .seen
            .iter()
            .filter_map(|action| match action {
                Action::Tell { client: to, entry } if *to == client => Some(entry),
                _ => None,
            })
            .collect();
        for (region, entry) in (0..).zip(world.owner.entries()) {
            let last = told.iter().rfind(|told| told.region == region);
            assert_eq!(last.unwrap().generation, entry.generation);
        }
    }
    assert!(world.owner.entries().iter().all(|entry| entry.losses == 0));
}

#[test]
fn what_an_earlier_session_was_to_be_asked_is_not_asked_in_the_next() {
    for copies in [1, 2] {
        let mut world = World::new(copies, 1, 3);
        world.join(1);
        world.run();
        let host = host_of(&world, 0);
        world
            .owner
            .handle_life_renewed(world.now, Some(Duration::from_secs(3600)));
        let told = world.owner.entries()[0].generation;
        world.owner.handle_doubt(world.now, 1, 0, told);
        begin_recording(&mut world);
        world.pass(Duration::from_secs(4));
        world.owner.handle_host_silent(world.now, host);
        world.start(host);
        world.pass(Duration::from_secs(20));
        world.owner.handle_recorded(world.now);
        world.run();
        world.pass(Duration::from_secs(1));
        world.run();
        let entry = &world.owner.entries()[0];
        assert_eq!(entry.losses, 0);
        assert_eq!(host_of(&world, 0), host, "it has the same memory");
        assert_eq!(entry.copies.len(), copies);
        assert!(world.owner.is_settled());
    }
}

#[test]
fn a_record_before_what_is_given_back_has_what_was_decided_meanwhile() {
    let mut world = World::settled(1, 1, 2);
    world
        .owner
        .handle_life_renewed(world.now, Some(Duration::from_secs(3600)));
    begin_recording(&mut world);
    world.owner.handle_resize(world.now, 0);
    world.pass(Duration::from_secs(3));
    world.seen.clear();
    world.owner.handle_recorded(world.now);
    world.run();
    let kept = world.place_of(|action| *action == Action::Record);
    let given_back = world.place_of(|action| matches!(action, Action::Unmap { .. }));
    assert!(kept < given_back);
}

#[test]
fn who_comes_while_nothing_is_carried_out_goes_by_what_is_recorded() {
    let mut world = World::new(2, 8, 3);
    world.join(1);
    world.run();
    assert!(world.owner.is_settled());
    world.owner.handle_suspended(world.now);
    let kept = world.owner.entries();
    // A host would have to be emptied: nobody is told before that is recorded.
    world.owner.handle_notice(world.now, 0, None);
    world.join(2);
    assert_eq!(world.owner.kept_entries(), kept);
    assert!(!world.owner.is_untold(2));
    for entry in kept {
        let (region, generation) = (entry.region as usize, entry.generation);
        world.owner.handle_known(world.now, 2, region, generation);
    }
    world.pass(Duration::from_millis(500));
    world.owner.handle_recorded(world.now);
    world.run();
    assert!(world.owner.is_settled());
    let entries = world.owner.entries();
    let copies = entries.iter().flat_map(|entry| &entry.copies);
    assert!(copies.into_iter().all(|copy| copy.host != 0), "it goes on");
    for client in [1, 2] {
        let is_told =
            |action: &Action| matches!(action, Action::Tell { client: to, .. } if *to == client);
        world.place_of(is_told);
    }
}

#[test]
fn who_comes_while_a_decision_waits_to_be_carried_out_waits_too() {
    let mut world = World::settled(2, 8, 3);
    world.owner.handle_notice(world.now, 0, None);
    world.owner.handle_suspended(world.now);
    world.join(1);
    assert!(world.owner.kept_entries().is_empty());
    assert!(world.owner.is_untold(1));
    world.owner.handle_recorded(world.now);
    world.run();
    assert!(world.owner.is_settled());
    assert!(!world.owner.is_untold(1));
}

#[test]
fn no_region_is_held_while_who_comes_would_not_hear_of_it() {
    let mut world = World::settled(1, 1, 2);
    world.owner.handle_suspended(world.now);
    assert_eq!(world.owner.handle_hold(world.now, 0), Hold::Busy);
    assert_eq!(world.owner.held(world.now, 0), None);
    world.join(1);
    assert_eq!(world.owner.kept_entries()[0].access, Access::Open);
    world.owner.handle_recorded(world.now);
    world.run();
    assert_eq!(world.owner.handle_hold(world.now, 0), Hold::Begun);
    assert_eq!(world.owner.held(world.now, 0), None, "it is told first");
    world.run();
    assert!(world.owner.held(world.now, 0).is_some());
}

#[test]
fn who_has_hosts_told_and_comes_while_nothing_is_carried_out_is_told_afterwards() {
    const LISTENER: ClientNumber = 7;
    let mut world = World::settled(1, 3, 2);
    world.owner.handle_suspended(world.now);
    assert!(world.owner.handle_listener_joined(world.now, LISTENER));
    world.owner.handle_recorded(world.now);
    world.seen.clear();
    world.run();
    for entry in world.owner.entries() {
        let told = Action::Tell {
            client: LISTENER,
            entry,
        };
        assert!(world.seen.contains(&told));
    }
}

#[test]
fn writes_that_a_checkpoint_holds_go_on_before_nothing_is_decided_for_a_while() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    assert_eq!(world.owner.handle_hold(world.now, 0), Hold::Begun);
    world.run();
    world.owner.handle_wary(world.now, true);
    world.seen.clear();
    world.run();
    let is_open = |action: &Action| matches!(action, Action::Tell { entry, .. } if entry.access == Access::Open);
    world.place_of(is_open);
    assert_eq!(world.owner.handle_hold(world.now, 0), Hold::Busy);
    world.owner.handle_wary(world.now, false);
    assert_eq!(world.owner.handle_hold(world.now, 0), Hold::Begun);
}

#[test]
fn no_writes_are_stopped_before_nothing_is_decided_for_a_while() {
    for copies in [1, 2] {
        let mut world = World::new(copies, 1, 3);
        world.join(1);
        world.run();
        let told = world.owner.entries()[0].generation;
        world.owner.handle_wary(world.now, true);
        world.owner.handle_doubt(world.now, 1, 0, told);
        world.run();
        assert_eq!(world.owner.entries()[0].generation, told, "nor fenced");
        let from = host_of(&world, 0);
        world.owner.handle_notice(world.now, from, None);
        world.run();
        assert_eq!(world.owner.stage(0), Stage::Ready, "memory is there");
        assert_eq!(world.owner.entries()[0].access, Access::Open);
        world.owner.handle_wary(world.now, false);
        world.run();
        world.pass(Duration::from_secs(1));
        world.run();
        assert!(world.owner.is_settled());
        let copies = &world.owner.entries()[0].copies;
        assert!(copies.iter().all(|copy| copy.host != from));
    }
}

#[test]
fn a_cache_that_nobody_could_renew_does_not_end() {
    let seconds = Duration::from_secs;
    for is_suspended in [false, true] {
        let mut world = World::settled(1, 1, 2);
        world
            .owner
            .handle_life_renewed(world.now, Some(seconds(10)));
        world.run();
        world.pass(seconds(4));
        if is_suspended {
            world.owner.handle_suspended(world.now);
            world.pass(seconds(20));
            world.owner.handle_recorded(world.now);
        } else {
            world.now = world.now.after(seconds(20));
            world.owner.handle_tick(world.now);
        }
        world.run();
        assert!(!world.owner.has_ended());
        assert_eq!(world.owner.entries()[0].losses, 0);
        let left = world
            .owner
            .ends_at()
            .expect("it is leased")
            .since(world.now);
        assert_eq!(left, seconds(6), "as much as before");
        world.pass(seconds(6));
        world.run();
        assert!(world.owner.has_ended(), "now it could be renewed");
    }
}

#[test]
fn a_cache_that_is_deleted_while_a_record_is_kept_back_ends_when_it_is_kept() {
    let mut world = World::settled(1, 1, 2);
    world
        .owner
        .handle_life_renewed(world.now, Some(Duration::from_secs(3600)));
    begin_recording(&mut world);
    world
        .owner
        .handle_life_renewed(world.now, Some(Duration::ZERO));
    world.pass(Duration::from_secs(30));
    world.owner.handle_recorded(world.now);
    world.run();
    assert!(world.owner.has_ended());
}

#[test]
fn an_owner_that_reaches_no_host_gives_none_up() {
    let mut world = World::settled(2, 4, 2);
    let is_missing = |world: &World| world.owner.summary(1).is_missing;
    for host in 0..2 {
        world.owner.handle_host_silent(world.now, host);
    }
    world.pass(Duration::from_secs(20));
    assert!(is_missing(&world), "whoever gets machines may replace it");
    world.start(0);
    world.run();
    world.pass(Duration::from_secs(9));
    world.run();
    world.start(1);
    world.run();
    assert!(!is_missing(&world) && world.owner.is_settled());
    assert!(world.owner.entries().iter().all(|entry| entry.losses == 0));
    // One that is silent beside another is given up.
    world.owner.handle_host_silent(world.now, 1);
    world.pass(Duration::from_secs(10));
    world.run();
    let copies = |entry: &Entry| entry.copies.iter().all(|copy| copy.host == 0);
    assert!(world.owner.entries().iter().all(copies));
}
