//! What is asked of the other hosts of a stripe while one of them is replaced, and the disk has refused a page.

mod support;

use std::sync::atomic::Ordering;

use cenote_pool::control::Drain;
use cenote_volume::{Op, Request, Worker};
use support::backed_volume::{SLAB, read, status};
use support::operator::Operator;
use support::replacement::{LONG, Scene, at, end_of, poll_some};
use support::{Cluster, Transport, page, wait_for, wait_until};

/// A stripe of three with a page that its slabs alone have, and whose first host is away. There is a fourth.
fn with_one_away() -> (Scene, Worker) {
    let mut cluster = Cluster::start(4, Transport::Tcp, 16 << 20, SLAB);
    cluster.stop(3);
    let (mut scene, mut worker) = Scene::over(cluster, "rs:2+1", |_| ());
    scene.cluster.restart(3);
    wait_for(&scene.volume, |status| status.hosts[3].connected);
    scene.disk.break_page(Some(0));
    worker.write(0, &page(0, 2)).expect("its hosts have it");
    wait_for(&scene.volume, |status| {
        status.backing.unwrap().stale_pages == 1
    });
    scene.send_away(LONG);
    (scene, worker)
}

/// The stripe is not dropped, for the disk lacks a page, and not copied from: the host is told, instead of waiting
/// for the other one.
#[test]
fn a_slab_of_a_stripe_that_cannot_be_dropped_is_declined() {
    let (scene, mut worker) = with_one_away();
    let mut operator = Operator::of(&scene.cluster, 1);
    operator.drain(Drain::On);
    let declined = &scene.beside.declined;
    wait_until(
        || declined.load(Ordering::SeqCst) > 0,
        || format!("{:#?}", scene.volume.status()),
    );
    assert!(scene.guard.is_away.load(Ordering::SeqCst));
    assert!(
        !status(&scene.volume).hosts[0].connected,
        "it is still away"
    );
    assert!(read(&mut worker, 0) == page(0, 2));
    operator.drain(Drain::Off);
    scene.let_back();
    assert!(read(&mut worker, 0) == page(0, 2));
    scene.expect_kept();
}

/// A write of part of the page waits for the slab. It reads the rest of the page when that is there, and not again and
/// again until then.
#[test]
fn a_write_of_part_of_a_page_that_waits_for_a_slab_asks_hosts_for_nothing() {
    let (scene, mut worker) = with_one_away();
    let posted = &scene.beside.tardy.posted;
    let before = posted.load(Ordering::SeqCst);
    let (tag, offset) = (3, 512);
    let op = Op::Write(page(0, 3)[512..1024].to_vec());
    worker.submit(Request { tag, offset, op }).unwrap();
    poll_some(&mut worker, "its slab will be back");
    assert_eq!(posted.load(Ordering::SeqCst), before, "it is read in vain");
    // Others of the stripe are read and written as ever.
    assert!(read(&mut worker, 1) == page(1, 1));
    worker.write(at(2), &page(2, 2)).unwrap();
    scene.let_back();
    assert_eq!(end_of(&mut worker).result, Ok(()));
    let mut expected = page(0, 2);
    expected[512..1024].copy_from_slice(&page(0, 3)[512..1024]);
    assert!(read(&mut worker, 0) == expected);
    assert!(read(&mut worker, 2) == page(2, 2));
    scene.expect_kept();
}
