//! Slabs of a volume with a disk behind it whose host is replaced: they wait for it, and requests of pages
//! that the disk has do not.
//!
//! The host says that another process takes its place, its connection ends, and it is back when the test
//! says so, with the slabs that it had: a real daemon, which the client is kept away from meanwhile.

mod support;

use std::sync::atomic::Ordering;

use cenote_pool::control::Drain;
use cenote_volume::{Health, Op, Request, Worker};
use support::backed_volume::{PAGE, SLAB, read, status};
use support::operator::Operator;
use support::replacement::{LONG, PAGES, Scene, at, end_of, poll_some};
use support::{Cluster, Transport, page, wait_for, wait_for_health, wait_until};

#[test]
fn pages_that_were_not_written_meanwhile_are_read_from_their_slab_again() {
    let (scene, mut worker) = Scene::new(1, "plain");
    scene.send_away(LONG);
    assert!(read(&mut worker, 0) == page(0, 1));
    assert_eq!(scene.reads(), 1, "the disk has it meanwhile");
    worker.write(at(1), &page(1, 2)).unwrap();
    // Of part of a page: the rest comes from the disk.
    worker.write(at(2) + 512, &page(2, 2)[512..1024]).unwrap();
    assert!(read(&mut worker, 1) == page(1, 2));
    let during = status(&scene.volume);
    assert_eq!(during.health, Health::Degraded);
    assert_eq!(during.backing.unwrap().remote_bytes, at(PAGES - 2));

    let (reads, promoted) = (scene.reads(), during.backing.unwrap().pages_promoted);
    scene.let_back();
    for index in (0..PAGES).filter(|index| ![1, 2].contains(index)) {
        assert!(read(&mut worker, index) == page(index, 1), "page {index}");
    }
    assert_eq!(scene.reads(), reads, "its slab has them");
    let mut second = page(2, 1);
    second[512..1024].copy_from_slice(&page(2, 2)[512..1024]);
    for _ in 0..2 {
        assert!(read(&mut worker, 1) == page(1, 2));
        assert!(read(&mut worker, 2) == second);
    }
    assert_eq!(scene.reads(), reads + 2, "once each");
    let backing = status(&scene.volume).backing.unwrap();
    assert_eq!(backing.pages_promoted, promoted + 2);
    scene.expect_kept();
}

#[test]
fn what_is_on_its_way_to_the_disk_is_read_while_its_slab_is_away_and_after() {
    let (scene, mut worker) = Scene::new(1, "plain");
    scene.disk.hold_writes(true);
    worker.write(0, &page(0, 2)).expect("its host has it");
    scene.send_away(LONG);
    assert!(read(&mut worker, 0) == page(0, 2));
    let (tag, offset) = (1, at(1));
    let op = Op::Write(page(1, 2));
    worker.submit(Request { tag, offset, op }).unwrap();
    let mut done = Vec::new();
    worker.poll(&mut done);
    assert!(done.is_empty(), "the disk alone takes it, and holds it");
    scene.let_back();
    assert!(read(&mut worker, 0) == page(0, 2));
    scene.disk.hold_writes(false);
    assert_eq!(end_of(&mut worker).result, Ok(()));
    assert!(read(&mut worker, 1) == page(1, 2));
    assert!(read(&mut worker, 0) == page(0, 2));
    scene.expect_kept();
}

#[test]
fn a_write_that_is_under_way_when_its_host_goes_is_the_disks() {
    for (hosts, scheme) in [(1, "plain"), (3, "rs:2+1")] {
        let (scene, mut worker) = Scene::new(hosts, scheme);
        let holds = &scene.guard.tardy.holds_writes;
        holds.store(true, Ordering::SeqCst);
        let (tag, offset) = (0, 0);
        let op = Op::Write(page(0, 2));
        worker.submit(Request { tag, offset, op }).unwrap();
        let mut done = Vec::new();
        wait_until(
            || {
                worker.poll(&mut done);
                scene.guard.tardy.held_writes.load(Ordering::SeqCst) > 0
            },
            || "nothing is sent".into(),
        );
        assert!(done.is_empty());
        scene.send_away(LONG);
        // Sent on a connection that has ended.
        holds.store(false, Ordering::SeqCst);
        assert_eq!(end_of(&mut worker).result, Ok(()));
        scene.let_back();
        for index in 0..PAGES {
            let round = 1 + u64::from(index == 0);
            assert!(read(&mut worker, index) == page(index, round), "{scheme}");
        }
        scene.expect_kept();
    }
}

#[test]
fn a_stripe_without_one_of_its_slabs_is_read_from_the_others_and_written_to_the_disk() {
    let (scene, mut worker) = Scene::new(3, "rs:2+1");
    scene.send_away(LONG);
    let reads = scene.reads();
    assert!(read(&mut worker, 0) == page(0, 1));
    assert_eq!(scene.reads(), reads, "two of three are there");
    worker.write(at(1), &page(1, 2)).unwrap();
    assert!(read(&mut worker, 1) == page(1, 2));
    assert_eq!(scene.reads(), reads + 1);
    scene.let_back();
    for index in 0..PAGES {
        let round = 1 + u64::from(index == 1);
        assert!(read(&mut worker, index) == page(index, round));
    }
    assert_eq!(scene.reads(), reads + 2, "once more, and then it is there");
    assert!(read(&mut worker, 1) == page(1, 2));
    assert_eq!(scene.reads(), reads + 2);
    scene.expect_kept();
}

#[test]
fn a_page_that_the_disk_refused_waits_for_its_slab() {
    let (scene, mut worker) = Scene::new(1, "plain");
    scene.disk.break_page(Some(0));
    worker.write(0, &page(0, 2)).expect("its host has it");
    wait_for(&scene.volume, |status| {
        status.backing.unwrap().stale_pages == 1
    });
    scene.send_away(LONG);
    let op = Op::Read(vec![0; PAGE]);
    let (tag, offset) = (7, 0);
    worker.submit(Request { tag, offset, op }).unwrap();
    assert!(read(&mut worker, 1) == page(1, 1), "others do not wait");
    let mut done = Vec::new();
    worker.poll(&mut done);
    assert!(done.is_empty(), "an error, or old bytes");
    scene.let_back();
    let done = end_of(&mut worker);
    assert_eq!((done.tag, done.result), (7, Ok(())));
    assert!(matches!(&done.op, Op::Read(bytes) if *bytes == page(0, 2)));
    scene.expect_kept();
}

#[test]
fn a_host_that_comes_back_without_them_or_not_at_all_has_its_slabs_dropped() {
    for comes_back in [true, false] {
        let (mut scene, mut worker) = Scene::new(1, "plain");
        scene.send_away(if comes_back { LONG } else { 3000 });
        assert_ne!(status(&scene.volume).mapped_bytes, 0, "it is waited for");
        worker.write(at(1), &page(1, 2)).unwrap();
        if comes_back {
            scene.cluster.stop(0);
            scene.cluster.restart(0);
            scene.guard.is_away.store(false, Ordering::SeqCst);
        }
        wait_for(&scene.volume, |status| {
            status.mapped_bytes == 0 && status.backing.unwrap().remote_bytes == 0
        });
        for index in 0..PAGES {
            let round = 1 + u64::from(index == 1);
            assert!(read(&mut worker, index) == page(index, round));
        }
    }
}

#[test]
fn a_slab_that_cools_down_while_its_host_is_away_goes_back_when_that_returns() {
    let (scene, mut worker) = Scene::with(1, "plain", |backing| backing.cold_slab = 0.5);
    scene.send_away(LONG);
    wait_for(&scene.volume, |status| status.mapped_bytes == 0);
    assert!(scene.guard.is_away.load(Ordering::SeqCst));
    assert_eq!(status(&scene.volume).backing.unwrap().remote_bytes, 0);
    scene.guard.is_away.store(false, Ordering::SeqCst);
    wait_for(&scene.volume, |status| {
        status.hosts[0].connected && status.hosts[0].slabs_free == 16
    });
    for index in 0..PAGES {
        assert!(read(&mut worker, index) == page(index, 1));
    }
}

/// Has the disk refuse a write that the page's host has.
fn refuse_first(scene: &Scene, worker: &mut Worker, round: u64) {
    scene.disk.break_page(Some(0));
    worker.write(0, &page(0, round)).expect("its host has it");
    wait_for(&scene.volume, |status| {
        status.backing.unwrap().stale_pages == 1
    });
}

/// Submits a write of the first page that is on its way to the first host, and polls until it is held there.
fn submit_held(scene: &Scene, worker: &mut Worker, round: u64) {
    let tardy = &scene.guard.tardy;
    let before = tardy.held_writes.load(Ordering::SeqCst);
    tardy.holds_writes.store(true, Ordering::SeqCst);
    let op = Op::Write(page(0, round));
    let (tag, offset) = (0, 0);
    worker.submit(Request { tag, offset, op }).unwrap();
    let mut done = Vec::new();
    wait_until(
        || {
            worker.poll(&mut done);
            tardy.held_writes.load(Ordering::SeqCst) > before
        },
        || "nothing is sent".into(),
    );
    assert!(done.is_empty());
}

#[test]
fn a_write_that_the_disk_refuses_and_its_host_leaves_under_is_whole_when_that_is_back() {
    // Refused before the host goes, or after, with or without the write before it.
    for (was_refused, is_late) in [(true, false), (false, false), (true, true), (false, true)] {
        let (scene, mut worker) = Scene::new(1, "plain");
        if was_refused {
            refuse_first(&scene, &mut worker, 2);
        }
        scene.disk.break_page(Some(0));
        scene.disk.hold_writes(is_late);
        submit_held(&scene, &mut worker, 3);
        if !is_late {
            wait_for(&scene.volume, |status| {
                let backing = status.backing.unwrap();
                (backing.pending_bytes, backing.stale_pages) == (PAGE as u64, 1)
            });
        }
        scene.send_away(LONG);
        let mut done = Vec::new();
        for _ in 0..50 {
            worker.poll(&mut done);
            std::thread::yield_now();
        }
        scene.disk.hold_writes(false);
        wait_until(
            || {
                worker.poll(&mut done);
                status(&scene.volume).backing.unwrap().stale_pages == 1
            },
            || "the disk does not refuse it".into(),
        );
        for _ in 0..50 {
            worker.poll(&mut done);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(done.is_empty(), "{:?}", done[0].result);
        scene
            .guard
            .tardy
            .holds_writes
            .store(false, Ordering::SeqCst);
        scene.let_back();
        assert_eq!(end_of(&mut worker).result, Ok(()));
        assert!(read(&mut worker, 0) == page(0, 3));
        assert!(read(&mut worker, 1) == page(1, 1));
        scene.expect_kept();
    }
}

#[test]
fn a_held_write_is_an_error_when_its_host_does_not_come_back() {
    let (scene, mut worker) = Scene::new(1, "plain");
    refuse_first(&scene, &mut worker, 2);
    submit_held(&scene, &mut worker, 3);
    scene.send_away(3000);
    assert!(end_of(&mut worker).result.is_err());
    scene
        .guard
        .tardy
        .holds_writes
        .store(false, Ordering::SeqCst);
    let mut bytes = vec![0; PAGE];
    assert!(worker.read(0, &mut bytes).is_err(), "nobody has it");
    assert!(read(&mut worker, 1) == page(1, 1));
    scene.disk.break_page(None);
    worker.write(0, &page(0, 4)).unwrap();
    assert!(read(&mut worker, 0) == page(0, 4));
}

/// Submits a write that the disk alone is to take.
fn submit_alone(worker: &mut Worker, index: u64, round: u64) {
    let (tag, offset) = (index, at(index));
    let op = Op::Write(page(index, round));
    worker.submit(Request { tag, offset, op }).unwrap();
    poll_some(worker, "the disk holds it");
}

/// Lets the disk go on, and refuse the first page.
fn refuse_held(scene: &Scene) {
    scene.disk.break_page(Some(0));
    scene.disk.hold_writes(false);
    wait_for(&scene.volume, |status| {
        status.backing.unwrap().stale_pages == 1
    });
}

#[test]
fn a_write_that_waits_for_room_in_its_lane_leaves_the_page_to_its_slab_meanwhile() {
    let (scene, mut worker) = Scene::with(1, "plain", |backing| backing.entries = 2);
    scene.disk.hold_writes(true);
    worker.write(0, &page(0, 2)).expect("its host has it");
    worker.write(at(1), &page(1, 2)).expect("its host has it");
    scene.send_away(LONG);
    submit_alone(&mut worker, 0, 3);
    refuse_held(&scene);
    poll_some(&mut worker, "its slab will be back");
    scene.let_back();
    assert_eq!(end_of(&mut worker).result, Ok(()));
    assert!(read(&mut worker, 0) == page(0, 3));
    assert!(read(&mut worker, 1) == page(1, 2));
    scene.expect_kept();
}

#[test]
fn a_write_that_the_disk_alone_was_to_take_and_refuses_leaves_the_page_to_its_slabs() {
    for (hosts, scheme) in [(1, "plain"), (3, "rs:2+1")] {
        let (scene, mut worker) = Scene::new(hosts, scheme);
        scene.disk.hold_writes(true);
        worker.write(0, &page(0, 2)).expect("its hosts have it");
        scene.send_away(LONG);
        submit_alone(&mut worker, 0, 3);
        refuse_held(&scene);
        assert!(end_of(&mut worker).result.is_err());
        if hosts > 1 {
            assert!(read(&mut worker, 0) == page(0, 2), "two of three are there");
        }
        scene.let_back();
        assert!(read(&mut worker, 0) == page(0, 2), "{scheme}");
        scene.disk.break_page(None);
        worker.write(0, &page(0, 4)).unwrap();
        assert!(read(&mut worker, 0) == page(0, 4));
        scene.expect_kept();
    }
}

#[test]
fn a_write_whose_worker_ends_before_its_host_answers_is_no_page_of_the_slabs_that_return() {
    let (scene, mut worker) = Scene::new(3, "rs:2+1");
    let mut reader = scene.volume.worker().unwrap();
    let ended = &scene.guard.tardy.holds_ended;
    ended.store(true, Ordering::SeqCst);
    submit_held(&scene, &mut worker, 2);
    scene.guard.say_it_leaves(LONG);
    // Gives up the host, which then counts as one that will be back.
    drop(worker);
    scene
        .guard
        .tardy
        .holds_writes
        .store(false, Ordering::SeqCst);
    wait_for_health(&scene.volume, Health::Healthy);
    assert!(read(&mut reader, 0) == page(0, 2), "the disk has it");
    for index in 1..PAGES {
        assert!(read(&mut reader, index) == page(index, 1));
    }
    scene.expect_kept();
}

/// The extent goes while the other host is still awaited: had that been given up first, its slab would have
/// been rebuilt on the spare host.
#[test]
fn a_host_that_wants_memory_back_does_not_wait_for_one_that_is_replaced() {
    let mut cluster = Cluster::start(4, Transport::Tcp, 16 << 20, SLAB);
    cluster.stop(3);
    let (mut scene, mut worker) = Scene::over(cluster, "rs:2+1", |_| ());
    scene.cluster.restart(3);
    wait_for(&scene.volume, |status| status.hosts[3].connected);
    scene.send_away(LONG);
    let mut operator = Operator::of(&scene.cluster, 1);
    operator.drain(Drain::On);
    wait_until(
        || {
            let slabs = operator.status().slabs;
            slabs.free == slabs.total()
        },
        || format!("{:#?}", scene.volume.status()),
    );
    let counters = status(&scene.volume).counters;
    assert_eq!(counters.slabs_rebuilt, 0, "it waited");
    for index in 0..PAGES {
        assert!(read(&mut worker, index) == page(index, 1));
    }
}

#[test]
fn slabs_on_their_way_to_the_disk_are_waited_for_when_their_host_is_replaced() {
    for (hosts, scheme) in [(1, "plain"), (2, "mirror:2")] {
        let (scene, mut worker) = Scene::new(hosts, scheme);
        scene.disk.hold_writes(true);
        worker.write(0, &page(0, 2)).expect("its hosts have it");
        Operator::of(&scene.cluster, 0).drain(Drain::On);
        wait_for(&scene.volume, |status| status.mapped_bytes == 0);
        scene.send_away(LONG);
        scene.disk.break_page(Some(0));
        scene.disk.hold_writes(false);
        wait_for(&scene.volume, |status| {
            status.backing.unwrap().stale_pages == 1 && status.mapped_bytes > 0
        });
        scene.let_back();
        for index in 0..PAGES {
            let round = 1 + u64::from(index == 0);
            assert!(read(&mut worker, index) == page(index, round), "{scheme}");
        }
    }
}
