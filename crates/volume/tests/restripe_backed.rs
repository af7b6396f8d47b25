//! Another k of a volume in use that has a disk behind it: nothing is copied, and nothing is lost.

mod support;

use cenote_pool::control::Drain;
use cenote_volume::{Volume, Worker};
use support::backed_volume::{Backed, PAGE, SIZE, map_first, read, status};
use support::disk::TestDisk;
use support::operator::Operator;
use support::{page, usual, wait_for, wait_until};

const PAGES: u64 = SIZE / PAGE as u64;

fn write_all(worker: &mut Worker, round: u64) {
    for index in 0..PAGES {
        let bytes = page(index, round);
        worker.write(index * PAGE as u64, &bytes).unwrap();
    }
}

fn assert_all(worker: &mut Worker, round: u64) {
    for index in 0..PAGES {
        assert!(read(worker, index) == page(index, round), "page {index}");
    }
}

/// Every extent is mapped, of so many members.
fn is_mapped(volume: &Volume, members: usize) -> bool {
    let status = status(volume);
    let mut extents = status.extents.iter();
    status.mapped_bytes == SIZE && extents.all(|extent| extent.hosts.len() == members)
}

#[test]
fn pages_are_the_disks_until_their_new_extents_are_busy() {
    let Backed {
        mut cluster,
        volume,
        ..
    } = Backed::new(4);
    let mut worker = volume.worker().unwrap();
    map_first(&volume, &mut worker);
    let mut round = 0;
    for (scheme, members) in [("rs:2+1", 3), ("mirror:2", 2), ("rs:2+2", 4)] {
        volume.set_resilience(usual(scheme)).unwrap();
        if round > 0 {
            // Some while the pages are on their way.
            assert_all(&mut worker, round);
        }
        round += 1;
        write_all(&mut worker, round);
        wait_for(&volume, |status| status.change.is_none());
        assert_eq!(status(&volume).scheme, scheme);
        assert_all(&mut worker, round);
        wait_for(&volume, |_| {
            round += 1;
            write_all(&mut worker, round);
            is_mapped(&volume, members)
        });
        assert_all(&mut worker, round);
    }
    cluster.stop(1);
    assert_all(&mut worker, round);
    for host in [0, 2, 3] {
        cluster.stop(host);
    }
    assert_all(&mut worker, round);
}

/// Only its slab has it: it stays there, and so does the change, until it is written again.
#[test]
fn a_page_that_the_disk_refused_is_not_given_up() {
    let Backed {
        cluster: _cluster,
        disk,
        volume,
    } = Backed::new(3);
    let mut worker = volume.worker().unwrap();
    map_first(&volume, &mut worker);
    worker.write(PAGE as u64, &page(1, 1)).unwrap();
    wait_for(&volume, |status| status.backing.unwrap().pending_bytes == 0);
    disk.fail_writes(true);
    worker.write(0, &page(0, 2)).expect("hosts have it");
    wait_for(&volume, |status| status.backing.unwrap().stale_pages == 1);
    volume.set_resilience(usual("rs:2+1")).unwrap();
    wait_for(&volume, |status| {
        let change = status.change.as_ref().expect("one page stays");
        (change.bytes_done, change.bytes) == (PAGE as u64, 2 * PAGE as u64)
    });
    assert!(read(&mut worker, 0) == page(0, 2));
    assert!(read(&mut worker, 1) == page(1, 1));
    disk.fail_writes(false);
    worker.write(0, &page(0, 3)).unwrap();
    wait_for(&volume, |status| status.change.is_none());
    assert!(read(&mut worker, 0) == page(0, 3));
}

/// What the disk is yet to write is its slabs' until it has: it may refuse it.
#[test]
fn a_page_that_the_disk_refuses_later_is_not_given_up() {
    refused_later(
        |disk| disk.hold_writes(true),
        |disk| disk.hold_writes(false),
    );
}

/// Also what its queue has not even taken in.
#[test]
fn a_page_that_the_disk_does_not_know_of_yet_is_not_given_up() {
    refused_later(|disk| disk.stick(true), |disk| disk.stick(false));
}

fn refused_later(hold: impl Fn(&TestDisk), let_go: impl Fn(&TestDisk)) {
    // Behind another, in another lane of the disk.
    const LATE: u64 = 256;
    let scene = Backed::of(5, "rs:2+1", |_| ());
    let (volume, disk) = (&scene.volume, &scene.disk);
    let mut worker = volume.worker().unwrap();
    map_first(volume, &mut worker);
    for index in [0, LATE] {
        let bytes = page(index, 1);
        worker.write(index * PAGE as u64, &bytes).unwrap();
    }
    wait_for(volume, |status| status.backing.unwrap().pending_bytes == 0);
    hold(disk);
    let bytes = page(LATE, 2);
    worker
        .write(LATE * PAGE as u64, &bytes)
        .expect("hosts have it");
    volume.set_resilience(usual("rs:4+1")).unwrap();
    wait_for(volume, |status| {
        let change = status.change.as_ref().expect("one page stays");
        change.bytes_done >= PAGE as u64
    });
    disk.break_page(Some(LATE));
    let_go(disk);
    wait_for(volume, |status| status.backing.unwrap().stale_pages == 1);
    assert!(read(&mut worker, LATE) == page(LATE, 2));
    assert!(read(&mut worker, 0) == page(0, 1));
    disk.break_page(None);
    let bytes = page(LATE, 3);
    worker.write(LATE * PAGE as u64, &bytes).unwrap();
    wait_for(volume, |status| status.change.is_none());
    assert!(read(&mut worker, LATE) == page(LATE, 3));
}

/// A volume that is closed waits for its disk, also where a test has failed.
struct LetGo<'a>(&'a TestDisk);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.hold_pages(&[]);
    }
}

/// Slabs of the old cut go when the disk has what they have, whatever it owes those of the new one.
#[test]
fn slabs_of_the_old_cut_wait_for_no_page_of_the_new_one() {
    // In the other lane of the disk, and in the same extent of the old cut.
    const OTHER: u64 = 256;
    // On all there are: what one of them is to give back has no other place.
    let scene = Backed::of(3, "rs:2+1", |_| ());
    let (volume, disk) = (&scene.volume, &scene.disk);
    let _let_go = LetGo(disk);
    let mut worker = volume.worker().unwrap();
    map_first(volume, &mut worker);
    for index in [0, OTHER] {
        let bytes = page(index, 1);
        worker.write(index * PAGE as u64, &bytes).unwrap();
    }
    wait_for(volume, |status| status.backing.unwrap().pending_bytes == 0);
    disk.hold_pages(&[0]);
    worker.write(0, &page(0, 2)).expect("its hosts have it");
    let host = status(volume).extents[0].hosts[0].clone().unwrap();
    let names = status(volume).hosts.into_iter().map(|host| host.name);
    let host = names.into_iter().position(|name| name == host).unwrap();
    let mut operator = Operator::of(&scene.cluster, host);
    operator.drain(Drain::On);
    wait_for(volume, |status| status.mapped_bytes == 0);
    volume.set_resilience(usual("mirror:2")).unwrap();
    wait_for(volume, |status| {
        let change = status.change.as_ref().expect("one page stays");
        change.bytes_done == PAGE as u64
    });
    let mut round = 1;
    wait_for(volume, |status| {
        round += 1;
        let bytes = page(OTHER, round);
        worker.write(OTHER * PAGE as u64, &bytes).unwrap();
        let backing = status.backing.unwrap();
        backing.remote_bytes == 2 * PAGE as u64
    });
    disk.hold_pages(&[0, OTHER]);
    round += 1;
    let bytes = page(OTHER, round);
    worker
        .write(OTHER * PAGE as u64, &bytes)
        .expect("its hosts have it");
    wait_until(|| disk.has_held(OTHER), || "the disk is not asked".into());
    disk.hold_pages(&[OTHER]);
    wait_for(volume, |_| {
        let slabs = operator.status().slabs;
        slabs.free == slabs.total()
    });
    disk.hold_pages(&[]);
    wait_for(volume, |status| status.change.is_none());
    assert!(read(&mut worker, 0) == page(0, 2));
    assert!(read(&mut worker, OTHER) == page(OTHER, round));
}
