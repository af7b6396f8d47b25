//! Hosts that do not reach each other, while the owner reaches all of them.

use super::*;

/// Passes `secs`, and carries everything out as it comes.
fn live(world: &mut World, secs: u64) {
    live_for(world, secs * 10);
}

fn live_for(world: &mut World, ticks: u64) {
    for _ in 0..ticks {
        world.pass(Duration::from_millis(100));
        world.end_failing();
        world.run();
    }
}

/// A host and all that it does not reach: every other but these.
fn isolated(host: usize, hosts: usize, but: &[usize]) -> Vec<[usize; 2]> {
    let others = (0..hosts).filter(|other| *other != host && !but.contains(other));
    others.map(|other| [host, other]).collect()
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

/// A host that leaves has the only copy that others reach: first that is copied in place of the
/// other one, and then it leaves.
#[test]
fn a_host_leaves_whose_regions_have_their_other_copy_where_no_host_reaches_it() {
    for is_first in [true, false] {
        let cut = |first, second| isolated(if is_first { second } else { first }, 4, &[]);
        let (mut world, [first, second]) = in_doubt(4, cut);
        let leaving = if is_first { first } else { second };
        world.owner.handle_notice(world.now, leaving, None);
        live(&mut world, 60);
        let now = hosts_of(&world, 0);
        assert!(!now.contains(&first) && !now.contains(&second), "{now:?}");
        assert!(world.owner.is_settled());
        assert_eq!(world.owner.entries()[0].losses, 0);
    }
}

/// Hosts would be tried in a circle that were tried so long ago that they may be in reach again.
#[test]
fn the_one_host_that_reaches_a_copy_is_found_however_long_attempts_take() {
    let hosts = 10;
    let (mut world, copies) = in_doubt(hosts, |first, second| {
        let hub = (0..10).find(|host| ![first, second].contains(host));
        let hub = [hub.expect("ten hosts")];
        [isolated(first, 10, &hub), isolated(second, 10, &hub)].concat()
    });
    let hub = (0..hosts).find(|host| !copies.contains(host));
    let hub = hub.expect("ten hosts");
    // Any other has more room.
    for host in 0..hosts {
        let free = if host == hub { 10 } else { 1000 };
        world.owner.handle_room(world.now, host, free);
    }
    world.fails_after = Duration::from_millis(500);
    live(&mut world, 300);
    assert!(world.owner.is_settled(), "{:?}", world.owner.entries());
    assert!(hosts_of(&world, 0).contains(&hub));
}

#[test]
fn a_region_whose_last_copy_no_host_reaches_takes_writes_most_of_the_time() {
    let mut world = World::settled(2, 1, 20);
    let held = hosts_of(&world, 0);
    world.cut = isolated(held[0], 20, &[]);
    world.fails_after = Duration::from_secs(1);
    world.kill(held[1]);
    let mut open_ticks = 0;
    for _ in 0..1200 {
        live_for(&mut world, 1);
        open_ticks += u32::from(world.owner.entries()[0].access == Access::Open);
    }
    assert!(open_ticks > 700, "{open_ticks} of 1200");
    world.cut.clear();
    live(&mut world, 30);
    assert!(world.owner.is_settled());
    assert_eq!(world.owner.entries()[0].losses, 0);
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
