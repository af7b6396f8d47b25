//! Disk queues behind a volume: bounded, fair to readers and writers, and never in anybody's way for good.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_pool::control::Drain;
use cenote_volume::{Backing, Done, IoError, Op, Request, Volume, Worker};
use support::backed_volume::{Backed, PAGE, SIZE, SLAB, map_first, read, status, submit_writes};
use support::operator::Operator;
use support::{Cluster, Random, StopWhenDropped, Transport, page, wait_for, wait_until};

#[test]
fn readers_of_the_disk_are_not_held_up_by_writers_that_hosts_acknowledge() {
    let Backed {
        cluster,
        disk,
        volume,
    } = Backed::with(1, |backing| backing.entries = 256);
    let mut worker = volume.worker().unwrap();
    // A page of an extent of the same lane, and without a slab by now.
    worker.write(4 * SLAB, &page(1, 1)).unwrap();
    map_first(&volume, &mut worker);
    Operator::of(&cluster, 0).drain(Drain::On);
    wait_for(&volume, |status| status.mapped_bytes == 0);
    Operator::of(&cluster, 0).drain(Drain::Off);
    wait_for(&volume, |status| status.backing.unwrap().pending_bytes == 0);
    wait_for(&volume, |status| {
        worker.write(0, &[1; PAGE]).unwrap();
        status.mapped_bytes == SLAB
    });
    disk.slow_down();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut worker = volume.worker().unwrap();
            let mut random = Random(1);
            while !stop.load(Ordering::Relaxed) {
                let page = random.below(SLAB / PAGE as u64);
                worker.write(page * PAGE as u64, &[2; PAGE]).unwrap();
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _stop = StopWhenDropped(&stop);
        let seen = || written.load(Ordering::Relaxed);
        wait_until(|| seen() > 2000, || format!("{} written", seen()));
        // Every place of the queue is taken, and newcomers never end.
        let mut bytes = vec![0; PAGE];
        let mut passed = || {
            let before = seen();
            worker.read(4 * SLAB, &mut bytes).unwrap();
            assert_eq!(bytes, page(1, 1));
            seen() - before
        };
        // More may pass one whose thread has to wait for a processor.
        assert!((0..10).any(|_| passed() < 20_000), "writes pass each read");
    });
}

#[test]
fn what_the_disk_refused_for_a_moment_is_offered_to_it_again() {
    let Backed {
        cluster: _cluster,
        disk,
        volume,
    } = Backed::without_slabs();
    let mut worker = volume.worker().unwrap();
    disk.run_short(5);
    worker.write(0, &[1; PAGE]).unwrap();
    assert_eq!(disk.first_byte(0), Some(1));
    disk.run_short(5);
    assert_eq!(read(&mut worker, 0), [1; PAGE]);
    assert_eq!(status(&volume).backing.unwrap().stale_pages, 0);
    // And no longer than for a moment.
    disk.run_short(u32::MAX);
    assert_eq!(worker.write(0, &[2; PAGE]), Err(IoError::Disk));
    disk.run_short(0);
    worker.write(0, &[3; PAGE]).unwrap();
    assert_eq!(read(&mut worker, 0), [3; PAGE]);
}

#[test]
fn one_bad_page_of_a_run_is_the_only_one_that_fails() {
    let Backed {
        cluster: _cluster,
        disk,
        volume,
    } = Backed::without_slabs();
    let mut worker = volume.worker().unwrap();
    map_to_disk(&volume, &mut worker);
    disk.break_page(Some(7));
    let mut done: Vec<Done> = Vec::new();
    submit_writes(&mut worker, 16, 1);
    wait_for(&volume, |_| {
        worker.poll(&mut done);
        done.len() == 16
    });
    for done in &done {
        let expected = if done.tag == 7 {
            Err(IoError::Disk)
        } else {
            Ok(())
        };
        assert_eq!(done.result, expected, "page {}", done.tag);
    }
    assert_eq!(status(&volume).backing.unwrap().stale_pages, 1);
}

/// Has pages hold data, on the disk alone.
fn map_to_disk(volume: &Volume, worker: &mut Worker) {
    for index in 0..16 {
        worker.write(index * PAGE as u64, &page(index, 0)).unwrap();
    }
    assert_eq!(status(volume).mapped_bytes, 0);
}

#[test]
fn workers_that_go_while_the_disk_is_late_hold_nobody_up() {
    let Backed {
        cluster: _cluster,
        disk,
        volume,
    } = Backed::without_slabs();
    let mut worker = volume.worker().unwrap();
    map_to_disk(&volume, &mut worker);
    disk.hold_writes(true);
    for round in 0..5 {
        let mut late = volume.worker().unwrap();
        for tag in 0..4 {
            let offset = tag * PAGE as u64;
            let op = if tag % 2 == round % 2 {
                Op::Write(page(tag, 2))
            } else {
                Op::Read(vec![0; PAGE])
            };
            late.submit(Request { tag, offset, op }).unwrap();
        }
        drop(late);
    }
    disk.hold_writes(false);
    for index in 0..8 {
        worker.write(index * PAGE as u64, &page(index, 3)).unwrap();
        assert_eq!(read(&mut worker, index), page(index, 3), "page {index}");
    }
    wait_for(&volume, |status| status.backing.unwrap().pending_bytes == 0);
}

#[test]
fn without_slabs_the_disk_acknowledges_and_its_errors_are_the_requests() {
    let Backed {
        cluster: _cluster,
        disk,
        volume,
    } = Backed::without_slabs();
    let mut worker = volume.worker().unwrap();
    worker.write(100, &[7; 50]).unwrap();
    worker.write(120, &[8; 10]).unwrap();
    let mut bytes = [9; 70];
    worker.read(90, &mut bytes).unwrap();
    let mut expected = [0; 70];
    expected[10..60].fill(7);
    expected[30..40].fill(8);
    assert_eq!(bytes, expected);
    disk.fail_writes(true);
    assert_eq!(worker.write(0, &[1; PAGE]), Err(IoError::Disk));
    assert_eq!(
        worker.read(0, &mut bytes),
        Err(IoError::Disk),
        "unknown by now"
    );
    disk.fail_writes(false);
    worker.write(0, &[2; PAGE]).unwrap();
    disk.fail_reads(true);
    assert_eq!(worker.read(0, &mut bytes), Err(IoError::Disk));
    disk.fail_reads(false);
    worker.discard(0, PAGE as u64).unwrap();
    worker.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 70]);
}

#[test]
fn a_write_waits_for_an_entry_that_neither_hosts_nor_disk_refer_to() {
    const ENTRIES: u64 = 8;
    let Backed {
        cluster: _cluster,
        disk,
        volume,
    } = Backed::with(1, |backing| backing.entries = ENTRIES as u32);
    let mut worker = volume.worker().unwrap();
    map_first(&volume, &mut worker);
    disk.hold_writes(true);
    let count = 3 * ENTRIES;
    submit_writes(&mut worker, count, 1);
    let mut done: Vec<Done> = Vec::new();
    wait_until(
        || {
            worker.poll(&mut done);
            done.len() as u64 == ENTRIES
        },
        || format!("{} done", status(&volume).counters.pages_written),
    );
    for _ in 0..1000 {
        worker.poll(&mut done);
    }
    assert_eq!(done.len() as u64, ENTRIES, "no entry is used twice");
    disk.hold_writes(false);
    wait_for(&volume, |_| {
        worker.poll(&mut done);
        done.len() as u64 == count
    });
    assert!(done.iter().all(|done| done.result.is_ok()));
    for index in 0..count {
        assert_eq!(read(&mut worker, index), page(index, 1), "page {index}");
    }
}

#[test]
fn a_file_holds_every_page_at_its_offset() {
    let cluster = Cluster::start(1, Transport::Shm, 16 << 20, SLAB);
    // Beside the build, which is on a disk: memory does no direct I/O.
    let here = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(here.parent().unwrap()).unwrap();
    let path = folder.path().join("backing");
    let backing = Backing {
        hot_slab: 0.0,
        ..Backing::open(&path, SIZE).unwrap()
    };
    let volume = cluster.backed_volume("plain", SIZE, backing);
    let mut worker = volume.worker().unwrap();
    let pages: Vec<u64> = (0..SIZE / PAGE as u64).collect();
    for round in 1..3 {
        for &index in &pages {
            worker
                .write(index * PAGE as u64, &page(index, round))
                .unwrap();
        }
    }
    Operator::of(&cluster, 0).drain(Drain::On);
    wait_for(&volume, |status| {
        status.backing.unwrap().pending_bytes == 0 && status.mapped_bytes == 0
    });
    let image = std::fs::read(&path).unwrap();
    let mut bytes = vec![0; PAGE];
    for &index in &pages {
        let at = index as usize * PAGE;
        assert!(
            image[PAGE + at..][..PAGE] == page(index, 2),
            "page {index} in the file"
        );
        worker.read(at as u64, &mut bytes).unwrap();
        assert!(bytes == page(index, 2), "page {index} read");
    }
    let said = status(&volume).backing.unwrap();
    assert!(
        said.transfers < said.pages_read + said.pages_written,
        "{said:?}"
    );
    assert_eq!(said.errors, 0);
}
