//! Memory that is slow to come, or that does not help.

use super::*;

#[test]
fn a_host_that_makes_memory_slowly_makes_all_of_it_for_somebody() {
    let settings = Settings {
        slabs_per_region: 1,
        ..settings(1)
    };
    let mut owner = Owner::new(settings, 0, &[0], Time(0));
    owner.handle_host_up(Time(0), 0, 300, &[]);
    owner.handle_resize(Time(0), 200);
    let (mut now, mut made) = (Time(0), 0);
    let mut asked = VecDeque::new();
    for _ in 0..600 {
        now = now.after(Duration::from_millis(100));
        owner.handle_tick(now);
        while let Some(action) = owner.poll_action() {
            assert!(!matches!(action, Action::Unmap { .. }), "made for nobody");
            if let Action::Map { request, .. } = action {
                asked.push_back(request);
            }
        }
        if let Some(request) = asked.pop_front() {
            made += 1;
            let window = Window {
                id: made,
                generation: 1,
                len_bytes: 2 * MIB,
                rights: 7,
            };
            owner.handle_granted(now, 0, request, window);
        }
    }
    assert!(owner.is_settled());
    assert_eq!(made, 200);
}

/// Passes time until memory is asked for, and says how long that took.
fn until_asked(world: &mut World) -> Duration {
    let (begin, step) = (world.now, Duration::from_millis(100));
    world.seen.clear();
    while !world.run_until(|action| matches!(action, Action::Map { .. })) {
        assert!(
            world.now.since(begin) < ANSWER_LIMIT,
            "it is not tried again"
        );
        world.pass(step);
    }
    world.now.since(begin)
}

#[test]
fn a_region_that_cannot_be_read_by_other_hosts_is_not_stopped_again_at_once() {
    let mut world = World::settled(1, 1, 3);
    let from = host_of(&world, 0);
    // Its session goes on, and so do clients.
    world.up[from] = false;
    world.owner.handle_notice(world.now, from, None);
    world.run();
    assert_eq!(world.owner.entries()[0].access, Access::Frozen);
    while world.owner.entries()[0].access == Access::Frozen {
        world.pass(Duration::from_millis(100));
        world.run_until(|action| matches!(action, Action::Tell { .. } | Action::Map { .. }));
    }
    assert!(until_asked(&mut world) >= Duration::from_secs(1));
}

#[test]
fn a_region_that_cannot_be_restored_now_is_not_tried_again_at_once() {
    let mut world = World::settled(1, 1, 2);
    world.owner.use_checkpoint([(0, 77)]);
    world.kill(host_of(&world, 0));
    assert!(world.run_until(|action| matches!(action, Action::Restore { .. })));
    let Some(&Action::Restore { request, .. }) = world.seen.last() else {
        unreachable!("it was seen")
    };
    world
        .owner
        .handle_restored(world.now, request, Restored::Again);
    assert!(until_asked(&mut world) >= Duration::from_secs(1));
}
