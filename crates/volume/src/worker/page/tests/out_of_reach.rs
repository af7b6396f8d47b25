//! Writes whose slabs are out of reach: their requests end, and their pages are not given up.

use std::sync::Arc;

use super::rig::{Rig, World, member};
use super::*;
use crate::directory::{Session, Stripe};

const LOST: Next = Next::End(Err(IoError::Lost));
/// What is left of six members when the first two of them are lost for good.
const LAST_FOUR: u64 = 0b11_1100;

fn change(world: &World, change: impl FnOnce(&mut Stripe)) {
    let extent = LayoutId::First.extent(0);
    world.core.directory.publish(|next| {
        let stripe = next.extents[extent].as_mut().expect("mapped");
        change(Arc::make_mut(stripe));
        true
    });
}

/// Every session fails, and nobody answers when it is made again.
fn cut_off(world: &World, rig: &mut Rig) {
    for host in 0..6 {
        let session = Session { host, number: 1 };
        world.core.directory.fail_session(session);
    }
    for index in bits(rig.op.page.verbs.out()) {
        rig.op.page.verbs.note_end(index, false);
    }
    change(world, |stripe| stripe.is_out_of_reach = true);
}

/// Hosts answer again: those that were lost last have their slabs as they were.
fn reconnect(world: &World) {
    change(world, |stripe| {
        let unreachable = stripe.unreachable.iter().flatten();
        assert_eq!(unreachable.count(), 4, "the first two are gone for good");
        stripe.unreachable.clear();
        stripe.is_out_of_reach = false;
        for host in bits(LAST_FOUR) {
            stripe.members[host] = Some(member(host));
        }
    });
}

fn assert_refused(world: &mut World, page: u64) {
    assert_eq!(world.read(page), Err(IoError::Lost));
    let (mut other, mut bytes) = (world.worker(), [9; PAGE_BYTES]);
    for kind in [Kind::Write, Kind::Scrub] {
        let next = other.start(kind, page, &mut bytes);
        assert_eq!(next, LOST, "{kind:?}");
        assert!(other.finish(next));
    }
}

#[test]
fn a_page_acknowledged_early_outlasts_hosts_that_are_out_of_reach() {
    let mut world = World::with("rs:4+2", Mode::Detection, 1, &Protection::None);
    world.write(3, 1);
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    rig.path.wait_for_answers();
    rig.start(Kind::Write, 3, &mut bytes);
    for index in 0..5 {
        rig.end(&mut world, index, true);
        assert_eq!(rig.op.on_verb(&mut rig.path), index == 4);
    }
    bytes.fill(0xff);
    cut_off(&world, &mut rig);
    assert_eq!(rig.step(), Next::Pause);
    assert!(rig.op.is_stranded());
    assert_refused(&mut world, 3);
    assert_eq!(rig.resume(), Next::Pause, "for as long as it takes");
    reconnect(&world);
    assert_eq!(rig.resume(), Next::Write { members: LAST_FOUR });
    let next = rig.end_all(&mut world);
    assert_eq!(next, OK);
    assert!(rig.finish(next));
    assert_eq!(world.core.pages.marks.soundness(3), Soundness::Sound);
    assert_eq!(world.read(3), Ok(7));
}

#[test]
fn a_write_that_fails_for_want_of_reach_keeps_its_page() {
    let mut world = World::new("rs:4+2");
    world.write(3, 7);
    let (mut rig, mut bytes) = (world.worker(), [9; 100]);
    rig.start_part(Kind::Write, 3, 2000, &mut bytes);
    assert_eq!(rig.end_all(&mut world), Next::Write { members: ALL });
    rig.end(&mut world, 2, true);
    cut_off(&world, &mut rig);
    assert_eq!(rig.step(), Next::Refuse(IoError::Lost), "once");
    assert_refused(&mut world, 3);
    assert_eq!(rig.resume(), Next::Pause);
    reconnect(&world);
    assert_eq!(rig.resume(), Next::Write { members: LAST_FOUR });
    let next = rig.end_all(&mut world);
    assert!(rig.finish(next));
    let (mut rig, mut page) = (world.worker(), [0; PAGE_BYTES]);
    rig.start(Kind::Read, 3, &mut page);
    let next = rig.end_all(&mut world);
    assert!(rig.finish(next));
    let mut expected = [7; PAGE_BYTES];
    expected[2000..2100].fill(9);
    assert_eq!(page, expected);
}

/// Its buffer is where it was posted from.
#[test]
fn the_buffer_of_a_write_that_failed_for_want_of_reach_is_its_owners_again() {
    let mut world = World::new("rs:4+2");
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    rig.start(Kind::Write, 3, &mut bytes);
    rig.end(&mut world, 2, true);
    cut_off(&world, &mut rig);
    assert_eq!(rig.step(), Next::Refuse(IoError::Lost));
    bytes.fill(0xff);
    reconnect(&world);
    assert_eq!(rig.resume(), Next::Write { members: LAST_FOUR });
    let next = rig.end_all(&mut world);
    assert!(rig.finish(next));
    assert_eq!(world.read(3), Ok(7));
}

#[test]
fn a_write_whose_slabs_will_never_be_back_is_given_up() {
    let mut world = World::new("rs:4+2");
    world.write(3, 1);
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    rig.start(Kind::Write, 3, &mut bytes);
    cut_off(&world, &mut rig);
    assert_eq!(rig.step(), Next::Refuse(IoError::Lost));
    change(&world, |stripe| stripe.unreachable.clear());
    let next = rig.resume();
    assert_eq!(next, LOST);
    assert!(rig.finish(next));
    assert!(world.core.pages.claims.version(3).is_some());
    assert!(!world.core.pages.claims.is_stranded(3));
}
