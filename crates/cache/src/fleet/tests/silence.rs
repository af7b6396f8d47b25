//! Machines that are out of reach.

use super::*;

#[test]
fn who_reaches_no_machine_gives_none_back() {
    let mut world = World::new(TEXT, Vec::new());
    world.regions = 12;
    for (host, (order, _)) in orders(&world.tick(0)).into_iter().enumerate() {
        world.give(order, host, UP);
    }
    world.tick(1);
    assert_eq!(world.hosts.len(), 2);
    world.hosts.insert(0, ENDED);
    world.hosts.insert(1, ENDED);
    for _ in 0..5 {
        assert!(released(&world.tick(60)).is_empty());
    }
    world.hosts.insert(1, UP);
    assert_eq!(
        released(&world.tick(1)).len(),
        1,
        "one is connected: the other is gone"
    );
}

#[test]
fn machines_of_which_none_is_reached_are_replaced_and_not_given_back() {
    let mut world = World::new(TEXT, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    world.give(first, 0, UP);
    world.tick(1);
    let silent = HostSummary {
        is_up: false,
        is_missing: true,
        slabs: 0,
        ..UP
    };
    world.hosts.insert(0, silent);
    let asked = world.tick(1);
    let [(second, "dear")] = orders(&asked)[..] else {
        panic!("{asked:?}");
    };
    world.give(second, 1, UP);
    for _ in 0..30 {
        assert!(released(&world.tick(1)).is_empty(), "it has regions");
    }
    world.hosts.insert(0, ENDED);
    assert_eq!(released(&world.tick(1)), [first]);
}
