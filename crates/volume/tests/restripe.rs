//! Another k of a volume that is in use: its pages are restriped, and nobody who reads or writes notices.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_volume::{
    Health, IoError, Mode, PAGE_BYTES, Protection, Resilience, SealKey, Volume, VolumeConfig,
    VolumeError,
};
use support::rot::{rot, splits_of};
use support::{
    Cluster, Random, Transport, assert_pages, in_mode, page, usual, wait_changed, wait_for,
    wait_for_health,
};

const SLAB: u64 = 1 << 20;
const PAGE: u64 = PAGE_BYTES as u64;
const PAGES: u64 = 5000;
const SIZE: u64 = PAGES * PAGE;

/// In the mode that compares.
fn detection(scheme: &str) -> Resilience {
    in_mode(scheme, Mode::Detection, 1)
}

fn write_all(volume: &Volume, round: u64) {
    let mut worker = volume.worker().unwrap();
    for index in 0..PAGES {
        worker.write(index * PAGE, &page(index, round)).unwrap();
    }
}

/// Every extent is of this scheme, holds what it should and is whole.
fn assert_is(volume: &Volume, scheme: &str) {
    let scheme = usual(scheme).scheme();
    let status = volume.status().unwrap();
    assert_eq!(status.scheme, scheme.to_string());
    let extent_bytes = SLAB * scheme.k() as u64;
    assert_eq!(status.extent_bytes, extent_bytes);
    assert_eq!(status.extents.len() as u64, SIZE.div_ceil(extent_bytes));
    let extents = status.extents.len() as u64;
    assert_eq!(status.mapped_bytes, extents * extent_bytes);
    for extent in &status.extents {
        let expected = (scheme.members(), Health::Healthy);
        assert_eq!((extent.hosts.len(), extent.health), expected);
    }
    let lent_bytes = extents * scheme.members() as u64 * SLAB;
    assert_eq!(status.lent_bytes, lent_bytes, "the old are given back");
}

#[test]
fn pages_are_restriped_and_survive_as_many_losses_as_promised() {
    for transport in [Transport::Shm, Transport::Tcp] {
        for (from, to) in [
            ("rs:4+2", "rs:2+2"),
            ("rs:2+1", "rs:8+2"),
            ("plain", "rs:4+1"),
            ("rs:8+2", "mirror:3"),
        ] {
            let mut cluster = Cluster::start(10, transport, 64 << 20, SLAB);
            let volume = cluster.volume(from, SIZE);
            write_all(&volume, 1);
            volume.set_resilience(usual(to)).unwrap();
            // It may be over by now.
            let change = volume.status().unwrap().change;
            assert!(change.is_none_or(|change| change.from == from));
            wait_changed(&volume);
            assert_is(&volume, to);
            assert_pages(&volume, PAGES, 1);
            write_all(&volume, 2);
            for host in 0..usual(to).scheme().r() {
                cluster.stop(host);
            }
            assert_pages(&volume, PAGES, 2);
        }
    }
}

/// Writes pages of its own, whole and in part, reads them back and discards some; what each holds in
/// the end.
fn work(volume: &Volume, part: u64, stop: &AtomicBool) -> Vec<(u64, u64)> {
    let mut worker = volume.worker().unwrap();
    let mut random = Random(part);
    let mut rounds = vec![0; PAGES as usize / 2];
    let mut bytes = vec![0; PAGE_BYTES];
    while !stop.load(Ordering::Acquire) {
        let own = random.below(PAGES / 2);
        let (index, round) = (own * 2 + part, &mut rounds[own as usize]);
        let written = page(index, *round + 1);
        match random.below(8) {
            0 => {
                worker.discard(index * PAGE, PAGE).unwrap();
                *round = 0;
            }
            1 => {
                let (first, last) = written.split_at(1000);
                worker.write(index * PAGE + 1000, last).unwrap();
                worker.write(index * PAGE, first).unwrap();
                *round += 1;
            }
            _ => {
                worker.write(index * PAGE, &written).unwrap();
                *round += 1;
            }
        }
        let own = random.below(PAGES / 2);
        let (index, round) = (own * 2 + part, rounds[own as usize]);
        worker.read(index * PAGE, &mut bytes).unwrap();
        let is_right = bytes == expected(index, round);
        assert!(is_right, "page {index} of round {round}");
    }
    let pages = (part..).step_by(2);
    pages.zip(rounds).collect()
}

fn expected(index: u64, round: u64) -> Vec<u8> {
    match round {
        0 => vec![0; PAGE_BYTES],
        round => page(index, round),
    }
}

/// In the mode that compares, so that what two layouts mixed up would show.
#[test]
fn nobody_who_works_meanwhile_notices() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let mut cluster = Cluster::start(11, transport, 64 << 20, SLAB);
        let config = VolumeConfig {
            resilience: detection("rs:4+2"),
            ..cluster.config("rs:4+2", SIZE)
        };
        let volume = Arc::new(Volume::open(config, cluster.connector()).unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..2)
            .map(|part| {
                let (volume, stop) = (Arc::clone(&volume), Arc::clone(&stop));
                std::thread::spawn(move || work(&volume, part, &stop))
            })
            .collect();
        for scheme in ["rs:8+3", "rs:2+2", "rs:4+2"] {
            volume.set_resilience(detection(scheme)).unwrap();
            wait_changed(&volume);
        }
        stop.store(true, Ordering::Release);
        let models: Vec<_> = workers
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        wait_for_health(&volume, Health::Healthy);
        cluster.stop(0);
        let mut worker = volume.worker().unwrap();
        let mut bytes = vec![0; PAGE_BYTES];
        for (index, round) in models.into_iter().flatten() {
            worker.read(index * PAGE, &mut bytes).unwrap();
            let is_right = bytes == expected(index, round);
            assert!(is_right, "page {index} of round {round}");
        }
    }
}

#[test]
fn protected_pages_keep_their_tags_and_seals() {
    for protection in [
        Protection::Checksum,
        Protection::Sealed(SealKey::new([7; SealKey::BYTES])),
    ] {
        let cluster = Cluster::start(10, Transport::Shm, 64 << 20, SLAB);
        let config = VolumeConfig {
            protection,
            ..cluster.config("rs:4+2", SIZE)
        };
        let volume = Volume::open(config, cluster.connector()).unwrap();
        write_all(&volume, 1);
        for scheme in ["rs:8+2", "mirror:2"] {
            volume.set_resilience(usual(scheme)).unwrap();
            wait_changed(&volume);
            assert_is(&volume, scheme);
            assert_pages(&volume, PAGES, 1);
        }
    }
}

/// A reader is told that it cannot be right, and the migrator looks at all there is.
#[test]
fn a_wrong_split_that_can_be_told_is_not_lost_with_the_old_cut() {
    let cluster = Cluster::start(7, Transport::Shm, 64 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+2", Mode::Detection, SIZE);
    let mut worker = volume.worker().unwrap();
    let (wrong, right) = (page(0, 300), page(1, 300));
    worker.write(0, &wrong).unwrap();
    worker.write(PAGE, &right).unwrap();
    rot(&splits_of(&wrong, usual("rs:4+2").scheme())[2], 0);
    let mut bytes = vec![0; PAGE_BYTES];
    assert_eq!(worker.read(0, &mut bytes), Err(IoError::Corrupt));
    let refused = volume.set_resilience(detection("rs:8+2"));
    assert!(matches!(refused, Err(VolumeError::TooFewDomains { .. })));
    volume.set_resilience(detection("rs:2+2")).unwrap();
    wait_changed(&volume);
    for (offset, expected) in [(0, wrong), (PAGE, right)] {
        worker.read(offset, &mut bytes).unwrap();
        assert!(bytes == expected, "at {offset}");
    }
    assert_eq!(volume.status().unwrap().torn_pages, 0);
}

/// A host of the old cut is lost in the middle, in a mode that compares: what is left of it is rebuilt
/// as it was cut, though the volume is to be cut into fewer splits.
#[test]
fn what_is_lost_in_the_middle_is_rebuilt_in_its_own_cut() {
    let mut cluster = Cluster::start(12, Transport::Tcp, 64 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:8+2", Mode::Detection, SIZE);
    write_all(&volume, 1);
    volume.pace_repairs(64 << 10, true);
    volume.set_resilience(detection("rs:2+2")).unwrap();
    wait_for(&volume, |status| status.counters.pages_moved > 0);
    for host in 0..2 {
        cluster.stop(host);
    }
    let change = volume.status().unwrap().change.expect("it takes minutes");
    assert_eq!(change.bytes, SIZE);
    assert!((1..SIZE).contains(&change.bytes_done), "{change:?}");
    volume.pace_repairs(0, true);
    wait_changed(&volume);
    wait_for_health(&volume, Health::Healthy);
    assert_is(&volume, "rs:2+2");
    assert_pages(&volume, PAGES, 1);
}

/// Hosts have no room for a unit twice: the change waits, the volume serves, and it goes back.
#[test]
fn a_change_that_finds_no_room_is_taken_back() {
    // Of six slabs each, five are used.
    let cluster = Cluster::start(6, Transport::Shm, 6 << 20, SLAB);
    let volume = cluster.volume("rs:4+2", SIZE);
    write_all(&volume, 1);
    volume.set_resilience(usual("mirror:5")).unwrap();
    wait_for(&volume, |status| {
        status.extents.iter().any(|extent| extent.hosts.len() == 5)
    });
    write_all(&volume, 2);
    assert!(volume.status().unwrap().change.is_some());
    let refused = volume.set_resilience(usual("rs:2+2"));
    let is_so = matches!(refused, Err(VolumeError::Cut { .. }));
    assert!(is_so, "{refused:?}");
    volume.set_resilience(usual("rs:4+2")).unwrap();
    wait_changed(&volume);
    assert_is(&volume, "rs:4+2");
    assert_pages(&volume, PAGES, 2);
    assert_eq!(volume.status().unwrap().counters.pages_moved, 0);
}

fn kept_volume(cluster: &Cluster, scheme: &str) -> Result<Volume, VolumeError> {
    let kept = cluster.kept();
    let kept = kept
        .with_layouts(&cluster.path().join("volume.sides"))
        .unwrap();
    Volume::open_kept(cluster.config(scheme, SIZE), kept, cluster.connector())
}

#[test]
fn the_next_owner_goes_on_with_a_change_or_goes_back() {
    for (from, to) in [
        ("rs:4+2", "rs:2+2"),
        ("rs:2+1", "rs:8+2"),
        ("mirror:3", "rs:4+2"),
    ] {
        for back in [false, true] {
            let mut cluster = Cluster::start(10, Transport::Tcp, 64 << 20, SLAB);
            let volume = kept_volume(&cluster, from).unwrap();
            write_all(&volume, 1);
            // All of it takes minutes: the owner ends in the middle.
            volume.pace_repairs(64 << 10, true);
            volume.set_resilience(usual(to)).unwrap();
            wait_for(&volume, |status| status.counters.pages_moved > 0);
            let mut worker = volume.worker().unwrap();
            for index in 0..PAGES {
                worker.write(index * PAGE, &page(index, 2)).unwrap();
            }
            assert!(volume.status().unwrap().change.is_some());
            worker.abandon();
            volume.detach();
            let third = kept_volume(&cluster, "rs:16+2");
            assert!(matches!(third, Err(VolumeError::Foreign)));
            let scheme = if back { from } else { to };
            let volume = kept_volume(&cluster, scheme).unwrap();
            assert!(volume.status().unwrap().change.is_some());
            wait_changed(&volume);
            assert_is(&volume, scheme);
            assert_pages(&volume, PAGES, 2);
            for host in 0..usual(scheme).scheme().r() {
                cluster.stop(host);
            }
            assert_pages(&volume, PAGES, 2);
            volume.detach();
            // And the one after that finds one layout, whichever it is.
            let volume = kept_volume(&cluster, scheme).unwrap();
            assert_pages(&volume, PAGES, 2);
        }
    }
}

/// The owner ended after the wish was written down, and before anything came of it.
#[test]
fn an_owner_who_finds_another_k_in_its_file_begins_the_change() {
    let cluster = Cluster::start(8, Transport::Shm, 64 << 20, SLAB);
    let volume = kept_volume(&cluster, "rs:4+2").unwrap();
    write_all(&volume, 1);
    volume.detach();
    let without = cluster.kept_volume("rs:2+2", SIZE);
    let is_refused = matches!(without, Err(VolumeError::Foreign));
    assert!(is_refused, "it would not outlive its owner");
    for scheme in ["rs:2+2", "mirror:2", "rs:4+1"] {
        let volume = kept_volume(&cluster, scheme).unwrap();
        wait_changed(&volume);
        assert_is(&volume, scheme);
        assert_pages(&volume, PAGES, 1);
        volume.detach();
    }
}

/// Whoever asked for another k waited for the control thread, which waited for him.
#[test]
fn two_orders_that_come_together_are_both_obeyed() {
    let cluster = Cluster::start(6, Transport::Shm, 16 << 20, SLAB);
    for round in 0..40 {
        let volume = Arc::new(cluster.volume("rs:4+1", 4 * SLAB));
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn({
            let volume = Arc::clone(&volume);
            move || {
                volume.set_resilience(usual("rs:4+2")).unwrap();
                volume.set_resilience(usual("rs:2+2")).unwrap();
                ended.send(()).unwrap();
            }
        });
        let patience = std::time::Duration::from_secs(30);
        let is_over = end.recv_timeout(patience).is_ok();
        if !is_over {
            // It could not be closed either.
            std::mem::forget(volume);
            panic!("round {round}: they wait for each other");
        }
        wait_for(&volume, |_| volume.scheme() == usual("rs:2+2").scheme());
    }
}
