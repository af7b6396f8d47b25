//! Volumes with a backing store: what hosts acknowledged is never lost with them, whatever the disk does.
//!
//! Infiniswap's invariants, by name: I2 and I3 eviction_under_load, I4 (the host's) `host` tests,
//! I5 what_hosts_acknowledged_is_read_back; I1 is in `disk_queues`.

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_pool::control::Drain;
use cenote_volume::{IoError, Volume, VolumeConfig};
use support::backed_volume::{Backed, PAGE, SIZE, SLAB, map_first, status};
use support::disk::TestDisk;
use support::operator::Operator;
use support::{Cluster, Random, StopWhenDropped, Transport, page, wait_for, wait_until};

#[test]
fn what_hosts_acknowledged_is_read_back_while_the_disk_is_late_and_they_are_gone() {
    let Backed {
        mut cluster,
        disk,
        volume,
    } = Backed::new(1);
    let mut worker = volume.worker().unwrap();
    map_first(&volume, &mut worker);

    disk.hold_writes(true);
    worker.write(0, &[2; PAGE]).expect("hosts acknowledge it");
    worker.write(0, &[3; PAGE]).expect("and once more");
    assert_eq!(disk.first_byte(0), Some(1), "the disk is late");
    cluster.stop(0);
    let mut bytes = [0; PAGE];
    worker.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; PAGE]);
    assert_eq!(disk.moved().0, 0, "served from the write that waits");

    disk.hold_writes(false);
    wait_for(&volume, |status| {
        status.backing.unwrap().pending_bytes == 0 && status.mapped_bytes == 0
    });
    assert_eq!(disk.first_byte(0), Some(3));
    worker.read(0, &mut bytes).unwrap();
    assert_eq!((bytes, disk.moved().0), ([3; PAGE], 1));
}

#[test]
fn extents_have_no_slabs_until_they_are_busy_and_old_pages_come_when_they_are_read() {
    let Backed {
        cluster: _cluster,
        disk,
        volume,
    } = Backed::with(1, |backing| backing.hot_slab = 20.0);
    let mut worker = volume.worker().unwrap();
    worker.write(0, &page(0, 1)).unwrap();
    worker.write(SLAB, &page(1, 1)).unwrap();
    assert_eq!(status(&volume).mapped_bytes, 0);
    // Much more than 20 page I/Os per second on the first extent alone.
    let hot = PAGE as u64;
    wait_for(&volume, |status| {
        worker.write(hot, &page(2, 1)).unwrap();
        status.mapped_bytes == SLAB
    });
    let extents = status(&volume).extents;
    assert_eq!((extents.len(), extents[0].index), (1, 0), "{extents:?}");
    worker.write(hot, &page(2, 2)).unwrap();
    assert_eq!(
        status(&volume).backing.unwrap().remote_bytes,
        PAGE as u64,
        "only what was written since is with hosts"
    );
    let (reads, _) = disk.moved();
    let mut bytes = vec![0; PAGE];
    worker.read(hot, &mut bytes).unwrap();
    assert_eq!((bytes.as_slice(), disk.moved().0), (&*page(2, 2), reads));
    worker.read(0, &mut bytes).unwrap();
    assert_eq!(
        (bytes.as_slice(), disk.moved().0),
        (&*page(0, 1), reads + 1)
    );
    worker.read(0, &mut bytes).unwrap();
    assert_eq!(
        (bytes.as_slice(), disk.moved().0),
        (&*page(0, 1), reads + 1),
        "from its host by now"
    );
    assert_eq!(status(&volume).backing.unwrap().pages_promoted, 1);
    worker.read(2 * SLAB, &mut bytes).unwrap();
    assert_eq!(
        (bytes, disk.moved().0),
        (vec![0; PAGE], reads + 1),
        "never written"
    );
}

#[test]
fn slabs_that_cooled_down_go_back() {
    let Backed {
        cluster: _cluster,
        volume,
        ..
    } = Backed::with(1, |backing| backing.cold_slab = 0.5);
    let mut worker = volume.worker().unwrap();
    map_first(&volume, &mut worker);
    worker.write(0, &[5; PAGE]).unwrap();
    wait_for(&volume, |status| status.counters.slabs_dropped == 1);
    let mut bytes = [0; PAGE];
    worker.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5; PAGE]);
    // Until another extent has cooled down as well, many samples on: what was given back stays
    // there, and a read asks for nothing.
    worker.write(SLAB, &[6; PAGE]).unwrap();
    wait_for(&volume, |status| status.counters.slabs_dropped >= 2);
    let now = status(&volume);
    assert_eq!((now.counters.slabs_dropped, now.mapping.count), (2, 2));
}

#[test]
fn a_page_that_the_disk_refused_is_an_error_without_its_host_and_never_old() {
    let Backed {
        mut cluster,
        disk,
        volume,
    } = Backed::new(1);
    let mut worker = volume.worker().unwrap();
    map_first(&volume, &mut worker);
    disk.fail_writes(true);
    worker.write(0, &[2; PAGE]).expect("hosts have it");
    wait_for(&volume, |status| status.backing.unwrap().stale_pages == 1);
    let mut bytes = [0; PAGE];
    worker.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; PAGE]);
    // Its host wants it back: the only copy is not given up.
    Operator::of(&cluster, 0).drain(Drain::On);
    wait_for(&volume, |_| {
        Operator::of(&cluster, 0)
            .status()
            .clients
            .iter()
            .any(|c| c.declined == 1)
    });
    cluster.stop(0);
    assert_eq!(worker.read(0, &mut bytes), Err(IoError::Disk));
    disk.fail_writes(false);
    worker.write(0, &[3; PAGE]).unwrap();
    worker.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; PAGE]);
    assert_eq!(status(&volume).backing.unwrap().stale_pages, 0);
}

#[test]
fn one_request_spans_extents_in_every_state() {
    let Backed {
        mut cluster,
        volume,
        ..
    } = Backed::new(2);
    let mut worker = volume.worker().unwrap();
    map_first(&volume, &mut worker);
    // Extent 0 has a slab and extent 1 has none; then neither; 16 pages of each in one request.
    let offset = SLAB - (64 << 10);
    let mut random = Random(5);
    for round in 0..4 {
        if round == 2 {
            cluster.stop(0);
            cluster.stop(1);
        }
        let bytes: Vec<u8> = (0..(128 << 10) / 8)
            .flat_map(|_| random.next().to_le_bytes())
            .collect();
        worker.write(offset + 100, &bytes).unwrap();
        let mut read = vec![0; bytes.len()];
        worker.read(offset + 100, &mut read).unwrap();
        assert!(read == bytes, "round {round}");
    }
}

/// Threads that write and read pages of their own while hosts come and go under them: every read is
/// of the newest acknowledged write.
fn load(volume: &Volume, threads: u64, stop: &AtomicBool, operations: &AtomicU64) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut worker = volume.worker().unwrap();
                let pages: Vec<u64> = (thread..SIZE / PAGE as u64)
                    .step_by(threads as usize)
                    .collect();
                let mut rounds = vec![0; pages.len()];
                let mut random = Random(thread);
                let mut bytes = vec![0; PAGE];
                while !stop.load(Ordering::Relaxed) {
                    let at = random.below(pages.len() as u64) as usize;
                    let offset = pages[at] * PAGE as u64;
                    if random.below(2) == 0 {
                        rounds[at] += 1;
                        worker.write(offset, &page(pages[at], rounds[at])).unwrap();
                    } else {
                        worker.read(offset, &mut bytes).unwrap();
                        let expected = match rounds[at] {
                            0 => vec![0; PAGE],
                            round => page(pages[at], round),
                        };
                        assert!(bytes == expected, "page {} round {}", pages[at], rounds[at]);
                    }
                    operations.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

#[test]
fn eviction_under_load_loses_and_garbles_nothing() {
    let Backed {
        cluster,
        disk,
        volume,
    } = Backed::new(2);
    let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| load(&volume, 3, &stop, &operations));
        let _stop = StopWhenDropped(&stop);
        for round in 0..6 {
            let host = round % 2;
            let before = status(&volume).counters.slabs_dropped;
            wait_for(&volume, |status| {
                let name = Some(format!("h{host:02}"));
                status
                    .extents
                    .iter()
                    .any(|extent| extent.hosts.contains(&name))
            });
            // The disk is late while slabs go: they stay until it has what they have.
            disk.hold_writes(round % 3 == 0);
            let mut operator = Operator::of(&cluster, host);
            operator.drain(Drain::On);
            wait_for(&volume, |status| {
                let name = Some(format!("h{host:02}"));
                let mut extents = status.extents.iter();
                extents.all(|extent| !extent.hosts.contains(&name))
            });
            disk.hold_writes(false);
            wait_for(&volume, |_| operator.status().slabs.mapped == 0);
            assert!(status(&volume).counters.slabs_dropped > before);
            operator.drain(Drain::Off);
            let seen = operations.load(Ordering::Relaxed);
            wait_for(&volume, |_| operations.load(Ordering::Relaxed) > seen + 500);
        }
    });
    assert!(status(&volume).eviction.count >= 6);
    assert_eq!(status(&volume).counters.slabs_moved, 0);
}

#[test]
fn hosts_die_and_return_under_load_and_nothing_is_lost() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let mut cluster = Cluster::start(2, transport, 16 << 20, SLAB);
        let disk = TestDisk::default();
        let volume = cluster.backed_volume("plain", SIZE, disk.backing());
        let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| load(&volume, 3, &stop, &operations));
            let _stop = StopWhenDropped(&stop);
            for round in 0..4 {
                wait_for(&volume, |status| status.mapped_bytes > SIZE / 4);
                disk.hold_writes(round % 2 == 0);
                cluster.stop(round % 2);
                disk.hold_writes(false);
                let seen = operations.load(Ordering::Relaxed);
                wait_until(
                    || operations.load(Ordering::Relaxed) > seen + 500,
                    || format!("{transport:?} {:#?}", status(&volume)),
                );
                cluster.restart(round % 2);
            }
        });
    }
}

#[test]
fn clients_race_for_the_last_slabs_and_who_loses_has_the_disk() {
    let cluster = Cluster::start(2, Transport::Shm, 4 << 20, SLAB);
    let volumes: Vec<(Volume, TestDisk)> = (0..3)
        .map(|id| {
            let disk = TestDisk::default();
            let config = VolumeConfig {
                id,
                ..cluster.config("plain", 4 << 20)
            };
            let volume = Volume::open_backed(config, disk.backing(), cluster.connector());
            (volume.unwrap(), disk)
        })
        .collect();
    let mapped = || -> u64 { volumes.iter().map(|(v, _)| status(v).mapped_bytes).sum() };
    std::thread::scope(|scope| {
        for (volume, _) in &volumes {
            scope.spawn(|| {
                let mut worker = volume.worker().unwrap();
                for round in 1..20 {
                    for extent in 0..4 {
                        worker.write(extent * SLAB, &page(extent, round)).unwrap();
                    }
                }
                let mut bytes = vec![0; PAGE];
                for extent in 0..4 {
                    worker.read(extent * SLAB, &mut bytes).unwrap();
                    assert_eq!(bytes, page(extent, 19));
                }
            });
        }
    });
    // Twelve are wanted, eight are there; who has none goes on asking.
    wait_until(|| mapped() == 8 * SLAB, || format!("{} mapped", mapped()));
    let hosts: Vec<_> = (0..2)
        .map(|h| Operator::of(&cluster, h).status().slabs.mapped)
        .collect();
    assert_eq!(hosts, [4, 4]);
}

#[test]
fn slabs_of_a_volume_are_on_as_many_hosts_as_there_are_before_one_has_two() {
    let Backed {
        cluster: _cluster,
        volume,
        ..
    } = Backed::new(6);
    let mut worker = volume.worker().unwrap();
    for extent in 0..6 {
        worker.write(extent * SLAB, &[1; PAGE]).unwrap();
        wait_for(&volume, |status| status.mapped_bytes == (extent + 1) * SLAB);
    }
    let extents = status(&volume).extents;
    let hosts: BTreeSet<_> = extents
        .iter()
        .map(|extent| extent.hosts[0].clone())
        .collect();
    assert_eq!(hosts.len(), 6, "{extents:?}");
}

#[test]
fn parities_come_first_and_the_disk_after_more_losses_than_they_survive() {
    let mut cluster = Cluster::start(3, Transport::Shm, 16 << 20, SLAB);
    let disk = TestDisk::default();
    let volume = cluster.backed_volume("rs:2+1", SIZE, disk.backing());
    let mut worker = volume.worker().unwrap();
    map_first(&volume, &mut worker);
    worker.write(0, &page(0, 2)).unwrap();
    cluster.stop(0);
    let mut bytes = vec![0; PAGE];
    worker.read(0, &mut bytes).unwrap();
    assert_eq!((bytes.as_slice(), disk.moved().0), (&*page(0, 2), 0));
    // Until then it would be read from what is on its way.
    wait_for(&volume, |s| s.backing.is_some_and(|b| b.pending_bytes == 0));
    cluster.stop(1);
    worker.read(0, &mut bytes).unwrap();
    assert_eq!((bytes.as_slice(), disk.moved().0), (&*page(0, 2), 1));
    worker.write(0, &page(0, 3)).unwrap();
    worker.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, page(0, 3));
}
