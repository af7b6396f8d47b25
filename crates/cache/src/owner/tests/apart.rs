//! Hosts that do not reach each other, while the owner reaches all of them.

use super::*;

/// Passes `secs`, and carries everything out as it comes.
fn live(world: &mut World, secs: u64) {
    for _ in 0..secs * 10 {
        world.pass(Duration::from_millis(100));
        world.run();
    }
}

fn hosts_of(world: &World, region: usize) -> Vec<usize> {
    let copies = &world.owner.entries()[region].copies;
    copies.iter().map(|copy| copy.host).collect()
}

/// Region 0 of two copies, whose hosts come first, in doubt.
fn in_doubt(hosts: usize, cut: impl Fn(usize, usize) -> Vec<[usize; 2]>) -> (World, [usize; 2]) {
    let mut world = World::settled(2, 1, hosts);
    let held = hosts_of(&world, 0);
    let [first, second] = held[..] else {
        panic!("two copies: {held:?}");
    };
    world.cut = cut(first, second);
    world.seen.clear();
    world.owner.note_host_doubt(0, u64::MAX - 1);
    (world, [first, second])
}

#[test]
fn a_second_copy_that_cannot_be_made_equal_is_replaced() {
    let (mut world, [first, second]) = in_doubt(3, |first, second| vec![[first, second]]);
    live(&mut world, 10);
    assert_eq!(hosts_of(&world, 0), [first, 3 - first - second]);
    assert!(world.owner.is_settled() && world.owner.doubtful_on(first).is_empty());
    assert_eq!(world.owner.entries()[0].losses, 0);
    assert!(world.held[second].is_empty());
}

#[test]
fn a_first_copy_that_no_other_host_reaches_is_replaced_by_one_of_the_second() {
    let cut = |first, second| vec![[first, second], [first, 3 - first - second]];
    let (mut world, [first, second]) = in_doubt(3, cut);
    live(&mut world, 30);
    assert_eq!(hosts_of(&world, 0), [second, 3 - first - second]);
    assert!(world.owner.is_settled() && world.owner.doubtful_on(second).is_empty());
    assert_eq!(world.owner.entries()[0].losses, 0);
}

#[test]
fn copies_that_cannot_be_made_equal_are_open_between_attempts_and_equal_once_the_link_is_back() {
    let (mut world, copies) = in_doubt(2, |first, second| vec![[first, second]]);
    let mut open_ticks = 0;
    for _ in 0..600 {
        world.pass(Duration::from_millis(100));
        world.run();
        open_ticks += u32::from(world.owner.entries()[0].access == Access::Open);
    }
    assert!(open_ticks > 500, "{open_ticks} of 600");
    assert_eq!(hosts_of(&world, 0), copies);
    assert!(!world.owner.doubtful_on(copies[0]).is_empty());
    world.cut.clear();
    live(&mut world, 20);
    assert!(world.owner.is_settled() && world.owner.doubtful_on(copies[0]).is_empty());
    assert_eq!(hosts_of(&world, 0), copies);
}

#[test]
fn a_copy_that_is_lacking_is_made_on_a_host_that_reaches_the_other_one() {
    let mut world = World::settled(2, 1, 4);
    let held = hosts_of(&world, 0);
    let others: Vec<usize> = (0..4).filter(|host| !held.contains(host)).collect();
    // It has the most room.
    world.owner.handle_room(world.now, others[0], 1000);
    world.cut = vec![[held[0], others[0]]];
    world.kill(held[1]);
    live(&mut world, 10);
    assert_eq!(hosts_of(&world, 0), [held[0], others[1]]);
    assert!(world.owner.is_settled());
}

#[test]
fn a_region_leaves_a_host_by_the_copy_that_its_new_host_reaches() {
    let mut world = World::settled(2, 1, 3);
    let held = hosts_of(&world, 0);
    let other = 3 - held[0] - held[1];
    world.cut = vec![[held[0], other]];
    world.owner.handle_notice(world.now, held[1], None);
    live(&mut world, 10);
    let mut now = hosts_of(&world, 0);
    now.sort_unstable();
    let mut whole = vec![held[0], other];
    whole.sort_unstable();
    assert_eq!(now, whole);
    assert!(world.owner.is_settled() && world.held[held[1]].is_empty());
}

#[test]
fn a_host_that_is_back_is_tried_at_once() {
    let (mut world, [first, second]) = in_doubt(2, |first, second| vec![[first, second]]);
    live(&mut world, 5);
    assert!(!world.owner.doubtful_on(first).is_empty());
    world.cut.clear();
    world.start(second);
    live(&mut world, 2);
    assert!(world.owner.is_settled() && world.owner.doubtful_on(first).is_empty());
}

#[test]
fn of_many_hosts_few_are_tried_for_a_first_copy_that_none_of_them_reaches() {
    let cut_off = |first| (0..10).map(move |other| [first, other]);
    let cut = |first, _| cut_off(first).filter(|[a, b]| a != b).collect();
    let (mut world, [first, second]) = in_doubt(10, cut);
    live(&mut world, 15);
    let now = hosts_of(&world, 0);
    assert!(now.contains(&second) && !now.contains(&first), "{now:?}");
    assert!(world.owner.is_settled());
}

/// The second copy may have a write that is under way: who reads it would read that.
#[test]
fn clients_read_the_first_copy_as_long_as_it_is_there_whichever_is_copied() {
    let mut world = World::new(2, 1, 3);
    world.join(1);
    world.run();
    let held = hosts_of(&world, 0);
    let other = 3 - held[0] - held[1];
    world.owner.apart.note(held[0], other, world.now);
    // Its writes do not end.
    world.stopped.push(1);
    world.owner.handle_notice(world.now, held[1], None);
    world.run();
    assert_eq!(world.owner.entries()[0].access, Access::Frozen);
    assert_eq!(hosts_of(&world, 0), held);
}
