mod out_of_reach;
mod rig;

use std::sync::atomic::Ordering;

use super::*;
use crate::directory::Session;
use crate::extents::LayoutId;
use crate::fence::Fence;
use crate::marks::Soundness;
use crate::scheme::Cut;
use crate::worker::verbs::bits;
use crate::{Mode, PAGE_BYTES, Protection, SealKey};
use rig::{World, member};

const OK: Next = Next::End(Ok(()));
const ALL: u64 = 0b11_1111;
const DATA: u64 = 0b1111;

fn cut(scheme: &str) -> Cut {
    Cut::of(scheme.parse().expect("a scheme"))
}

#[test]
fn a_page_that_was_never_written_reads_as_zeros_and_asks_nobody() {
    let mut world = World::new("rs:4+2");
    assert_eq!(world.read(3), Ok(0));
}

#[test]
fn a_write_ends_when_every_member_has_the_page_and_is_listed_till_then() {
    let mut world = World::new("rs:4+2");
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    let next = rig.start(Kind::Write, 3, &mut bytes);
    assert_eq!(next, Next::Write { members: ALL });
    assert!(
        world.core.pages.claims.version(3).is_none(),
        "it is claimed"
    );
    for index in 0..5 {
        assert!(!rig.end(&mut world, index, true), "{index}");
    }
    assert!(rig.end(&mut world, 5, true));
    let next = rig.step();
    assert_eq!(next, OK);
    assert!(rig.finish(next));
    assert!(world.core.pages.claims.version(3).is_some());
    assert_eq!(world.read(3), Ok(7));
}

#[test]
fn a_read_takes_the_data_splits_and_decodes_when_one_is_lost() {
    let mut world = World::new("rs:4+2");
    world.write(3, 7);
    let (mut rig, mut bytes) = (world.worker(), [0; PAGE_BYTES]);
    let next = rig.start(Kind::Read, 3, &mut bytes);
    assert_eq!(next, Next::Read { splits: DATA });
    for index in 0..4 {
        rig.end(&mut world, index, index != 1);
    }
    let next = rig.step();
    assert_eq!(next, Next::Read { splits: 0b1_1101 }, "again, from others");
    let next = rig.end_all(&mut world);
    assert!(rig.finish(next));
    assert_eq!((next, bytes), (OK, [7; PAGE_BYTES]));
    let counters = &world.core.measures.counters;
    assert_eq!(counters.pages_decoded.load(Ordering::Relaxed), 1);
    assert_eq!(counters.reads_repeated.load(Ordering::Relaxed), 1);
}

#[test]
fn a_page_with_fewer_splits_than_it_takes_is_lost() {
    let mut world = World::new("rs:4+2");
    world.write(3, 7);
    for host in 0..3 {
        let lost = member(host);
        let generation = lost.window.descriptor.generation;
        let (directory, extent) = (&world.core.directory, LayoutId::First.extent(0));
        directory.fail_window(extent, host, lost.session, generation);
    }
    assert_eq!(world.read(3), Err(IoError::Lost));
}

#[test]
fn a_read_counts_only_if_no_write_began_meanwhile() {
    let mut world = World::new("rs:4+2");
    world.write(3, 7);
    let (mut rig, mut bytes) = (world.worker(), [0; PAGE_BYTES]);
    rig.start(Kind::Read, 3, &mut bytes);
    world.write(3, 8);
    let next = rig.end_all(&mut world);
    assert_eq!(next, Next::Apart(Then::Park), "it is taken again");
    rig.op.page.leave(&mut rig.path);
    rig.resume();
    let next = rig.end_all(&mut world);
    assert!(rig.finish(next));
    assert_eq!((next, bytes), (OK, [8; PAGE_BYTES]));
}

#[test]
fn a_write_waits_for_another_and_for_a_chunk_that_is_rebuilt() {
    let mut world = World::new("rs:4+2");
    let (mut first, mut second) = (world.worker(), world.worker());
    let (mut ones, mut twos) = ([1; PAGE_BYTES], [2; PAGE_BYTES]);
    first.start(Kind::Write, 3, &mut ones);
    assert_eq!(second.start(Kind::Write, 3, &mut twos), Next::Park);
    second.op.park(&mut second.path);
    let next = first.end_all(&mut world);
    assert!(first.finish(next));
    let extent = LayoutId::First.extent(0);
    let fence = |fence: Fence| {
        let directory = &world.core.directory;
        directory.publish_stripe(extent, |stripe| {
            stripe.fence = fence;
            true
        });
    };
    fence(Fence::around(0..4));
    assert_eq!(second.resume(), Next::Park);
    second.op.park(&mut second.path);
    fence(Fence::default());
    assert_eq!(second.resume(), Next::Write { members: ALL });
    let next = second.end_all(&mut world);
    assert!(second.finish(next));
    assert_eq!(world.read(3), Ok(2));
}

#[test]
fn a_write_goes_on_without_a_member_that_failed_and_in_doubt_till_its_end() {
    let mut world = World::new("rs:4+2");
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    rig.start(Kind::Write, 3, &mut bytes);
    // Another worker works in the epoch in which the member was there.
    let mut other = world.worker();
    let mut unread = [0; PAGE_BYTES];
    world.core.pages.marks.written.insert(9);
    other.start(Kind::Read, 9, &mut unread);
    for index in 0..6 {
        rig.end(&mut world, index, index != 2);
    }
    assert_eq!(rig.step(), Next::Pause, "it may be read there yet");
    assert!(rig.op.is_paused());
    assert_eq!(world.core.pages.marks.soundness(3), Soundness::Doubtful);
    let next = other.end_all(&mut world);
    other.finish(next);
    let next = rig.resume();
    assert_eq!(next, OK);
    assert!(rig.finish(next));
    assert_eq!(world.core.pages.marks.soundness(3), Soundness::Sound);
    assert_eq!(world.read(3), Ok(7));
}

#[test]
fn a_write_that_a_slab_misses_which_will_be_back_is_held_and_goes_to_every_member_again() {
    let mut world = World::new("rs:4+2");
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    rig.start(Kind::Write, 3, &mut bytes);
    let session = Session { host: 2, number: 1 };
    let (directory, extent) = (&world.core.directory, LayoutId::First.extent(0));
    directory.set_returning(session, true);
    directory.fail_session(session);
    for index in 0..6 {
        let is_there = index != 2;
        rig.op.page.verbs.note_end(index, is_there);
    }
    assert_eq!(rig.step(), Next::Pause);
    assert_eq!(rig.resume(), Next::Pause, "as long as it is away");
    directory.publish_stripe(extent, |stripe| {
        stripe.unreachable.clear();
        stripe.members[2] = Some(member(2));
        true
    });
    assert_eq!(rig.resume(), Next::Write { members: ALL });
    let next = rig.end_all(&mut world);
    assert!(rig.finish(next));
    assert_eq!(world.read(3), Ok(7));
}

#[test]
fn a_write_is_not_acknowledged_before_the_next_owner_would_know_of_its_slabs() {
    let mut world = World::new("rs:4+2");
    world.core.journaled.store(0, Ordering::Release);
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    rig.start(Kind::Write, 3, &mut bytes);
    assert_eq!(rig.end_all(&mut world), Next::Pause);
    assert_eq!(rig.resume(), Next::Pause);
    world.core.journaled.store(u64::MAX, Ordering::Release);
    let next = rig.resume();
    assert_eq!(next, OK);
    assert!(rig.finish(next));
}

#[test]
fn a_write_of_part_of_a_page_reads_the_rest_first() {
    let mut world = World::new("rs:4+2");
    world.write(3, 7);
    let (mut rig, mut bytes) = (world.worker(), [9; 100]);
    let next = rig.start_part(Kind::Write, 3, 2000, &mut bytes);
    assert_eq!(next, Next::Read { splits: DATA });
    assert_eq!(rig.end_all(&mut world), Next::Write { members: ALL });
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

/// Reads ask for one more split than they need, of hosts that take their time.
fn late_world() -> World {
    World::with("rs:4+2", Mode::FailureRecovery, 1, &Protection::None)
}

#[test]
fn a_late_binding_read_ends_with_the_first_splits_and_frees_its_place_with_the_last() {
    let mut world = late_world();
    world.write(3, 7);
    let (mut rig, mut bytes) = (world.worker(), [0; PAGE_BYTES]);
    rig.path.wait_for_answers();
    let Next::Read { splits } = rig.start(Kind::Read, 3, &mut bytes) else {
        panic!("it reads");
    };
    assert_eq!(splits.count_ones(), 5);
    let late = bits(splits).last().expect("five");
    let next = rig.end_all(&mut world);
    assert_eq!((next, bytes), (OK, [7; PAGE_BYTES]));
    assert!(!rig.finish(next), "one verb is out");
    assert!(rig.op.is_lingering());
    let changed = world.core.directory.publish(|_| true);
    assert!(world.core.directory.is_settled(changed), "no epoch is held");
    assert!(rig.end(&mut world, late, true));
    rig.op.forget(&mut rig.path);
    assert_eq!(rig.path.views.lingering(), 0);
}

#[test]
fn a_write_of_part_goes_on_in_another_place_while_a_late_split_is_out() {
    let mut world = late_world();
    world.write(3, 7);
    let (mut rig, mut bytes) = (world.worker(), [9; 100]);
    rig.path.wait_for_answers();
    rig.start_part(Kind::Write, 3, 0, &mut bytes);
    assert_eq!(rig.end_all(&mut world), Next::Apart(Then::Step));
    let (late, next) = rig.apart(Then::Step);
    assert!(late.is_lingering());
    assert_eq!(next, Next::Write { members: ALL });
    assert_ne!(late.page.listing.slot(), rig.op.page.listing.slot());
    let next = rig.end_all(&mut world);
    assert!(rig.finish(next));
}

#[test]
fn a_scrub_writes_a_wrong_split_again() {
    let mut world = World::new("rs:4+2");
    world.write(3, 7);
    let cut = self::cut("rs:4+2");
    world.split_of(2, 3, cut).fill(0xee);
    let (mut rig, mut nobodys) = (world.worker(), [0; PAGE_BYTES]);
    let next = rig.start(Kind::Scrub, 3, &mut nobodys);
    assert_eq!(next, Next::Read { splits: ALL });
    assert_eq!(rig.end_all(&mut world), Next::Write { members: 1 << 2 });
    let next = rig.end_all(&mut world);
    assert_eq!(next, OK);
    assert!(rig.finish(next));
    let guard = &rig.path.guard;
    assert_eq!((guard.wrong_count, guard.healed_count), (1, 1));
    assert!(world.split_of(2, 3, cut).iter().all(|&byte| byte == 7));
}

#[test]
fn a_scrub_writes_a_page_again_whose_last_write_ended_unknown() {
    let mut world = World::new("rs:4+2");
    world.write(3, 7);
    let cut = self::cut("rs:4+2");
    // That write changed no data split of this page.
    world.core.pages.marks.doubt(3);
    let parity = world.split_of(4, 3, cut).to_vec();
    world.split_of(4, 3, cut).fill(0xee);
    let (mut rig, mut nobodys) = (world.worker(), [0; PAGE_BYTES]);
    let next = rig.start(Kind::Scrub, 3, &mut nobodys);
    assert_eq!(next, Next::Read { splits: DATA });
    assert_eq!(rig.end_all(&mut world), Next::Write { members: ALL });
    let next = rig.end_all(&mut world);
    assert_eq!(next, OK);
    assert!(rig.finish(next));
    assert_eq!(world.core.pages.marks.soundness(3), Soundness::Sound);
    assert_eq!(world.split_of(4, 3, cut), parity);
}

#[test]
fn a_read_that_compares_asks_for_more_and_puts_one_wrong_split_right() {
    let mut world = World::with("rs:4+3", Mode::Correction, 1, &Protection::None);
    world.write(3, 7);
    let cut = self::cut("rs:4+3");
    world.split_of(1, 3, cut).fill(0xee);
    let (mut rig, mut bytes) = (world.worker(), [0; PAGE_BYTES]);
    let Next::Read { splits } = rig.start(Kind::Read, 3, &mut bytes) else {
        panic!("it reads");
    };
    assert_eq!(splits.count_ones(), 5);
    let more = rig.end_all(&mut world);
    assert_eq!(
        more,
        Next::Read {
            splits: 0b111_1111 & !splits
        }
    );
    assert_eq!(rig.end_all(&mut world), Next::Write { members: 1 << 1 });
    assert_eq!(bytes, [7; PAGE_BYTES]);
    let next = rig.end_all(&mut world);
    assert!(rig.finish(next));
}

#[test]
fn a_checked_read_is_an_error_rather_than_other_bytes() {
    let mut world = World::with("rs:4+2", Mode::FailureRecovery, 0, &Protection::Checksum);
    world.write(3, 7);
    let cut = self::cut("rs:4+2");
    for host in 0..3 {
        world.split_of(host, 3, cut).fill(0xee);
    }
    assert_eq!(world.read(3), Err(IoError::Corrupt));
    for host in 0..2 {
        world.split_of(host, 3, cut).fill(7);
    }
    assert_eq!(world.read(3), Ok(7), "one that is wrong is left out");
}

#[test]
fn a_sealed_page_leaves_encrypted() {
    let protection = Protection::Sealed(SealKey::new([5; 32]));
    let mut world = World::with("rs:4+2", Mode::FailureRecovery, 0, &protection);
    world.write(3, 7);
    let cut = self::cut("rs:4+2");
    for host in 0..6 {
        let split = world.split_of(host, 3, cut);
        assert!(split.iter().filter(|&&byte| byte == 7).count() < 100);
    }
    assert_eq!(world.read(3), Ok(7));
}

#[test]
fn a_write_is_acknowledged_early_and_read_as_it_will_be() {
    let mut world = World::with("rs:4+2", Mode::Detection, 1, &Protection::None);
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    rig.path.wait_for_answers();
    rig.start(Kind::Write, 3, &mut bytes);
    for index in 0..4 {
        rig.end(&mut world, index, true);
        assert!(!rig.op.on_verb(&mut rig.path), "{index}");
    }
    rig.end(&mut world, 4, true);
    assert!(rig.op.on_verb(&mut rig.path), "k + delta have it");
    // The caller has its buffer back.
    bytes.fill(0xff);
    assert_eq!(
        world.read(3),
        Ok(7),
        "by another worker, from what has landed"
    );
    let (mut own, mut read) = (PageOp::free(2, 2), [0; PAGE_BYTES]);
    std::mem::swap(&mut own, &mut rig.op);
    assert_eq!(
        rig.start(Kind::Read, 3, &mut read),
        OK,
        "from where it is posted"
    );
    assert_eq!(read, [7; PAGE_BYTES]);
    assert!(rig.finish(OK));
    std::mem::swap(&mut own, &mut rig.op);
    assert!(world.core.pages.claims.version(3).is_none(), "writers wait");
    rig.verb_is_write();
    rig.end(&mut world, 5, true);
    let next = rig.step();
    assert!(rig.finish(next));
    assert_eq!(world.read(3), Ok(7));
}

/// Page 3 is written, and is to go to rs:2+1.
fn moving_world() -> World {
    let mut world = World::new("rs:4+2");
    world.write(3, 7);
    let cut = cut("rs:2+1");
    world.core.layouts.prepare().expect("memory");
    world.core.layouts.begin(cut);
    world.map(LayoutId::Second.extent(0), cut, 3);
    world
}

#[test]
fn a_move_reads_where_the_page_is_and_is_over_when_its_new_stripe_has_it() {
    let mut world = moving_world();
    let (mut rig, mut nobodys) = (world.worker(), [0; PAGE_BYTES]);
    let next = rig.start(Kind::Move, 3, &mut nobodys);
    assert_eq!(next, Next::Read { splits: DATA });
    assert_eq!(rig.end_all(&mut world), Next::Write { members: 0b111 });
    assert_eq!(world.core.layouts.id_of(3), LayoutId::First, "not yet");
    let next = rig.end_all(&mut world);
    assert!(rig.finish(next));
    assert_eq!(next, OK);
    assert_eq!(world.core.layouts.id_of(3), LayoutId::Second);
    assert_eq!(world.read(3), Ok(7));
}

#[test]
fn a_move_that_fails_leaves_the_page_where_it_is() {
    let mut world = moving_world();
    let (mut rig, mut nobodys) = (world.worker(), [0; PAGE_BYTES]);
    rig.start(Kind::Move, 3, &mut nobodys);
    rig.end_all(&mut world);
    for index in 0..3 {
        rig.end(&mut world, index, index != 1);
    }
    let next = rig.step();
    assert_eq!(next, Next::End(Err(IoError::NoSpace)));
    assert!(rig.finish(next));
    assert_eq!(world.core.layouts.id_of(3), LayoutId::First);
    assert_eq!(world.read(3), Ok(7));
}

fn is_remote(world: &World, page: u64) -> bool {
    let store = world.core.backing.as_ref().expect("it has a disk");
    store.pages.remote.contains(page)
}

#[test]
fn without_slabs_the_disk_alone_acknowledges_a_write() {
    let world = World::backed("plain");
    world.unmap();
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    assert_eq!(rig.start(Kind::Write, 3, &mut bytes), Next::Wait);
    assert_eq!((rig.path.at_disk, rig.path.views.working()), (1, 0));
    let next = rig.op.on_stored(&mut rig.path, true);
    assert_eq!(next, OK);
    assert!(rig.finish(next) && !is_remote(&world, 3));
    assert!(world.core.pages.marks.written.contains(3));
}

#[test]
fn a_write_that_the_disk_alone_had_and_refused_leaves_the_page_as_it_was() {
    let world = World::backed("plain");
    world.unmap();
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    rig.start(Kind::Write, 3, &mut bytes);
    let next = rig.op.on_stored(&mut rig.path, false);
    assert_eq!(next, Next::End(Err(IoError::Disk)));
    assert!(rig.finish(next));
    assert!(!world.core.pages.marks.written.contains(3));
    assert!(world.core.pages.claims.version(3).is_some());
}

#[test]
fn when_hosts_fail_under_a_write_its_disk_part_acknowledges_it() {
    let mut world = World::backed("plain");
    world.write(3, 1);
    assert!(is_remote(&world, 3), "hosts acknowledged it");
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    assert_eq!(
        rig.start(Kind::Write, 3, &mut bytes),
        Next::Write { members: 1 }
    );
    rig.end(&mut world, 0, false);
    assert_eq!(rig.step(), Next::Wait);
    assert!(is_remote(&world, 3), "till the disk has it");
    let next = rig.op.on_stored(&mut rig.path, true);
    assert_eq!(next, OK);
    assert!(rig.finish(next) && !is_remote(&world, 3));
}

#[test]
fn a_page_that_is_read_from_the_disk_is_given_to_slabs_that_are_there() {
    let mut world = World::backed("mirror:2");
    world.core.pages.marks.written.insert(3);
    let (mut rig, mut bytes) = (world.worker(), [0; PAGE_BYTES]);
    assert_eq!(rig.start(Kind::Read, 3, &mut bytes), Next::Wait);
    let disk = [7; PAGE_BYTES];
    let next = rig.op.on_fetched(&mut rig.path, disk.as_ptr(), true);
    assert_eq!(next, Next::Write { members: 0b11 });
    rig.post(next);
    let next = rig.end_all(&mut world);
    assert_eq!((next, bytes), (OK, disk));
    assert!(rig.finish(next) && is_remote(&world, 3));
    assert_eq!(world.read(3), Ok(7), "from hosts");
}

#[test]
fn what_a_process_that_was_killed_leaves_stays_claimed_where_it_is_partly_written() {
    let world = World::new("rs:4+2");
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    rig.start(Kind::Write, 3, &mut bytes);
    rig.op.give_back_whole(&world.core);
    assert!(world.core.pages.claims.version(3).is_none());
    rig.op.give_back(&world.core);
    assert!(world.core.pages.claims.version(3).is_some());
}

#[test]
fn a_volume_that_has_ended_begins_nothing() {
    let world = World::new("rs:4+2");
    world.core.life.closed.store(true, Ordering::Release);
    let (mut rig, mut bytes) = (world.worker(), [7; PAGE_BYTES]);
    let next = rig.start(Kind::Write, 3, &mut bytes);
    assert_eq!(next, Next::End(Err(IoError::Closed)));
    assert!(rig.finish(next));
}
