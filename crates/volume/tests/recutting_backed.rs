//! Another k of a volume in use that has a disk behind it: nothing is copied, and nothing is lost.

mod support;

use cenote_volume::{Resilience, Volume, Worker};
use support::backed::{Backed, PAGE, SIZE, map_first, read, status, wait_for};
use support::{page, wait_until};

const PAGES: u64 = SIZE / PAGE as u64;

fn usual(scheme: &str) -> Resilience {
    Resilience::of(scheme.parse().unwrap())
}

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
        wait_until(
            || {
                round += 1;
                write_all(&mut worker, round);
                is_mapped(&volume, members)
            },
            || format!("{:#?}", status(&volume)),
        );
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
