//! Splits that go wrong in the memory of real hosts: found, put right, never returned.

mod support;

use cenote_volume::{Health, IoError, Mode, Reputation, Scheme, Volume, Worker};
use support::rot::{holds, rot, splits_of};
use support::{Cluster, Transport, page, wait_for};

const SLAB: u64 = 1 << 20;
const PAGE: usize = 4096;
const SIZE: u64 = 2 << 20;

fn scheme(text: &str) -> Scheme {
    text.parse().unwrap()
}

fn write(worker: &mut Worker, index: u64, round: u64) -> Vec<u8> {
    let bytes = page(index, round);
    worker.write(index * PAGE as u64, &bytes).unwrap();
    bytes
}

fn read(worker: &mut Worker, index: u64) -> Result<Vec<u8>, IoError> {
    let mut bytes = vec![0; PAGE];
    worker.read(index * PAGE as u64, &mut bytes).map(|()| bytes)
}

/// (named, healed, corrupt reads).
fn counts(volume: &Volume) -> (u64, u64, u64) {
    let status = volume.status().unwrap().integrity;
    (
        status.wrong_splits,
        status.healed_splits,
        status.corrupt_reads,
    )
}

#[test]
fn detection_makes_a_wrong_split_an_error_and_a_write_puts_it_right() {
    let cluster = Cluster::start(6, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+2", Mode::Detection, SIZE);
    let mut worker = volume.worker().unwrap();
    let (first, second) = (write(&mut worker, 0, 100), write(&mut worker, 1, 100));
    rot(&splits_of(&first, scheme("rs:4+2"))[2], 0);
    assert_eq!(read(&mut worker, 0), Err(IoError::Corrupt));
    assert_eq!(
        worker.write(8, &[1; 8]),
        Err(IoError::Corrupt),
        "not merged"
    );
    assert_eq!(read(&mut worker, 1), Ok(second), "its neighbour is right");
    assert_eq!(counts(&volume), (0, 0, 2));
    let again = write(&mut worker, 0, 101);
    assert_eq!(read(&mut worker, 0), Ok(again));
}

#[test]
fn detection_looks_at_every_parity_in_its_turn() {
    let cluster = Cluster::start(6, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+2", Mode::Detection, SIZE);
    let mut worker = volume.worker().unwrap();
    let found = (0..2).filter(|&index| {
        let bytes = write(&mut worker, index, 110);
        rot(&splits_of(&bytes, scheme("rs:4+2"))[5], 0);
        read(&mut worker, index) == Err(IoError::Corrupt)
    });
    assert_eq!(found.count(), 1, "each page looks at one of two");
}

#[test]
fn correction_returns_what_was_written_and_heals_every_split() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let cluster = Cluster::start(7, transport, 4 << 20, SLAB);
        let volume = cluster.volume_in_mode("rs:4+3", Mode::Correction, SIZE);
        let mut worker = volume.worker().unwrap();
        let round = 120 + transport as u64;
        for split in 0_u64..7 {
            // Page 3 n looks at parity n first, so that each wrong one is met.
            let index = 3 * split + split.saturating_sub(4);
            let bytes = write(&mut worker, index, round);
            let right = splits_of(&bytes, scheme("rs:4+3")).swap_remove(split as usize);
            rot(&right, 0);
            assert_eq!(read(&mut worker, index), Ok(bytes), "split {split}");
            assert!(holds(&right), "split {split} is written again");
        }
        assert_eq!(counts(&volume), (7, 7, 0));
    }
}

#[test]
fn correction_with_a_host_lost_still_tells_which_split_is_wrong() {
    let mut cluster = Cluster::start(7, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+3", Mode::Correction, SIZE);
    let mut worker = volume.worker().unwrap();
    let bytes = write(&mut worker, 0, 130);
    let splits = splits_of(&bytes, scheme("rs:4+3"));
    cluster.stop(3);
    let wrong = splits.iter().position(|split| holds(split)).unwrap();
    rot(&splits[wrong], 0);
    assert_eq!(read(&mut worker, 0), Ok(bytes));
    assert_eq!(counts(&volume), (1, 1, 0));
}

#[test]
fn more_wrong_splits_than_the_mode_tolerates_are_an_error() {
    let cluster = Cluster::start(7, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+3", Mode::Correction, SIZE);
    let mut worker = volume.worker().unwrap();
    let bytes = write(&mut worker, 0, 140);
    let splits = splits_of(&bytes, scheme("rs:4+3"));
    rot(&splits[0], 0);
    rot(&splits[3], 0);
    assert_eq!(read(&mut worker, 0), Err(IoError::Corrupt));
    assert_eq!(counts(&volume), (0, 0, 1));
}

#[test]
fn part_of_a_page_is_written_over_right_bytes() {
    let cluster = Cluster::start(7, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+3", Mode::Correction, SIZE);
    let mut worker = volume.worker().unwrap();
    let mut bytes = write(&mut worker, 0, 150);
    rot(&splits_of(&bytes, scheme("rs:4+3"))[1], 0);
    worker.write(3000, &[9; 8]).unwrap();
    bytes[3000..3008].fill(9);
    assert_eq!(read(&mut worker, 0), Ok(bytes));
    assert_eq!(counts(&volume), (1, 1, 0));
}

#[test]
fn of_copies_most_decide() {
    let cluster = Cluster::start(4, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("mirror:4", Mode::Correction, SIZE);
    let mut worker = volume.worker().unwrap();
    for nth in 0..4 {
        let bytes = write(&mut worker, 0, 160 + nth);
        rot(&bytes, nth as usize);
        for _ in 0..2 {
            assert_eq!(read(&mut worker, 0), Ok(bytes.clone()));
        }
    }
    let (named, healed, corrupt) = counts(&volume);
    assert_eq!((named, corrupt), (healed, 0));
    assert_eq!(named, 2, "page 0 reads two of four copies while they agree");
}

#[test]
fn a_regenerated_slab_is_right_where_a_survivor_is_not() {
    let mut cluster = Cluster::start(8, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+3", Mode::Correction, SIZE);
    let mut worker = volume.worker().unwrap();
    let pages: Vec<Vec<u8>> = (0..64)
        .map(|index| write(&mut worker, index, 170))
        .collect();
    let lost = cluster
        .configs
        .iter()
        .position(|host| {
            let status = volume.status().unwrap();
            status.extents[0].hosts[4].as_ref() == Some(&host.name)
        })
        .unwrap();
    for (index, bytes) in pages.iter().enumerate() {
        rot(&splits_of(bytes, scheme("rs:4+3"))[index % 4], 0);
    }
    cluster.stop(lost);
    wait_for(&volume, |status| status.counters.slabs_rebuilt == 1);
    let right = pages.iter().map(|bytes| splits_of(bytes, scheme("rs:4+3")));
    for splits in right {
        assert!(holds(&splits[4]), "the new split is right");
    }
    for (index, bytes) in pages.iter().enumerate() {
        assert_eq!(read(&mut worker, index as u64).as_ref(), Ok(bytes));
    }
}

#[test]
fn what_detection_cannot_put_right_is_not_made_to_agree() {
    let mut cluster = Cluster::start(7, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+2", Mode::Detection, SIZE);
    let mut worker = volume.worker().unwrap();
    let pages: Vec<Vec<u8>> = (0..8).map(|index| write(&mut worker, index, 180)).collect();
    rot(&splits_of(&pages[3], scheme("rs:4+2"))[0], 0);
    let status = volume.status().unwrap();
    let name = status.extents[0].hosts[5].clone().unwrap();
    let lost = cluster.configs.iter().position(|host| host.name == name);
    cluster.stop(lost.unwrap());
    wait_for(&volume, |status| status.counters.slabs_rebuilt == 1);
    for (index, bytes) in pages.iter().enumerate() {
        let read = read(&mut worker, index as u64);
        if index == 3 {
            assert!(read.is_err(), "never other bytes: {read:?}");
        } else {
            assert_eq!(read.as_ref(), Ok(bytes));
        }
    }
    let again = write(&mut worker, 3, 181);
    assert_eq!(read(&mut worker, 3), Ok(again));
}

#[test]
fn a_host_that_sends_many_wrong_splits_loses_its_slabs() {
    let cluster = Cluster::start(8, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+3", Mode::Correction, SIZE);
    let mut worker = volume.worker().unwrap();
    let pages: Vec<Vec<u8>> = (0..40)
        .map(|index| write(&mut worker, index, 190))
        .collect();
    let name = volume.status().unwrap().extents[0].hosts[2]
        .clone()
        .unwrap();
    for bytes in &pages[..30] {
        rot(&splits_of(bytes, scheme("rs:4+3"))[2], 0);
    }
    for (index, bytes) in pages.iter().enumerate() {
        assert_eq!(read(&mut worker, index as u64).as_ref(), Ok(bytes));
    }
    wait_for(&volume, |status| {
        let host = status.hosts.iter().find(|host| host.name == name).unwrap();
        let is_gone = !status.extents[0].hosts.contains(&Some(name.clone()));
        host.reputation == Reputation::Excluded && host.wrong_splits == 30 && is_gone
    });
    assert_eq!(volume.status().unwrap().health, Health::Healthy);
    for (index, bytes) in pages.iter().enumerate() {
        assert_eq!(read(&mut worker, index as u64).as_ref(), Ok(bytes));
    }
    assert_eq!(counts(&volume), (30, 30, 0));
}
