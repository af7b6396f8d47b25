//! Machines that are out of reach, and time in which nobody looked.

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
    let silent = HostSummary {
        has_ended: false,
        ..ENDED
    };
    world.hosts.insert(0, silent);
    world.hosts.insert(1, silent);
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
fn machines_that_all_have_ended_are_given_back_and_replaced_where_there_are_no_others() {
    let dear = TEXT.split("[[machine]]").nth(1).expect("the first");
    let only = format!("[[machine]]{}", dear.replace("count = 2", "count = 1"));
    let mut world = World::new(&only, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    world.give(first, 0, UP);
    world.tick(1);
    world.hosts.insert(0, ENDED);
    assert!(released(&world.tick(5)).is_empty(), "it may come again");
    let limit = DOWN_LIMIT.as_secs();
    assert_eq!(released(&world.tick(limit)), [first]);
    world.fleet.handle_released(world.now, first, Ok(()));
    let asked = world.tick(1);
    assert!(matches!(orders(&asked)[..], [(_, "dear")]), "{asked:?}");
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

#[test]
fn time_in_which_nobody_looked_does_not_count_against_a_machine() {
    const STARTING: HostSummary = HostSummary {
        is_up: false,
        has_ended: false,
        is_empty: true,
        slabs: 0,
        ..UP
    };
    let mut world = World::new(TEXT, Vec::new());
    let order = orders(&world.tick(0))[0].0;
    world.give(order, 0, STARTING);
    world.tick(50);
    // It came up meanwhile, and nobody has connected yet.
    assert!(released(&world.tick_after(300)).is_empty());
    assert!(released(&world.tick(9)).is_empty());
    world.hosts.insert(0, UP);
    world.tick(1);
    // Nor does it count for what it lends.
    world.hosts.insert(0, HostSummary { slabs: 16, ..UP });
    world.tick(1);
    world.tick_after(300);
    world.hosts.insert(0, UP);
    world.tick(1);
    assert_eq!(world.fleet.kept()[0].memory_bytes, 8 * MIB);

    let mut looked_at = World::new(TEXT, Vec::new());
    let order = orders(&looked_at.tick(0))[0].0;
    looked_at.give(order, 0, STARTING);
    assert!(released(&looked_at.tick(59)).is_empty());
    assert_eq!(released(&looked_at.tick(1)), [order]);
}
