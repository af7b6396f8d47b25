//! Slabs of protected volumes that are rebuilt while what they are rebuilt from is wrong in places: the
//! tags tell, and no wrong split is made of another.

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use cenote_volume::{
    IoError, Mode, PAGE_BYTES, Protection, Reputation, Resilience, Scheme, SealKey, Volume,
    VolumeConfig, Worker,
};
use support::rot::{holds, rot, rot_first, slabs, splits_of};
use support::{Cluster, Transport, page, wait_for};

const SLAB: u64 = 1 << 20;
const SIZE: u64 = 2 << 20;

/// Tests look for slabs in this process: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn scheme(text: &str) -> Scheme {
    text.parse().unwrap()
}

fn open(cluster: &Cluster, text: &str, mode: Mode, protection: Protection) -> Volume {
    let delta = usize::from(mode != Mode::FailureRecovery);
    let config = VolumeConfig {
        resilience: Resilience::new(scheme(text), mode, delta).unwrap(),
        protection,
        ..cluster.config(text, SIZE)
    };
    Volume::open(config, cluster.connector()).unwrap()
}

fn fill(worker: &mut Worker, count: u64, round: u64) -> Vec<Vec<u8>> {
    let write = |index| {
        let bytes = page(index, round);
        worker.write(index * PAGE_BYTES as u64, &bytes).unwrap();
        bytes
    };
    (0..count).map(write).collect()
}

fn read(worker: &mut Worker, index: u64) -> Result<Vec<u8>, IoError> {
    let mut bytes = vec![0; PAGE_BYTES];
    let offset = index * PAGE_BYTES as u64;
    worker.read(offset, &mut bytes).map(|()| bytes)
}

/// The host that has a split of the first extent.
fn host_of(cluster: &Cluster, volume: &Volume, split: usize) -> usize {
    let name = volume.status().unwrap().extents[0].hosts[split].clone();
    let hosts = cluster.configs.iter();
    let mut hosts = hosts.map(|host| Some(host.name.clone()));
    hosts.position(|host| host == name).unwrap()
}

fn wait_for_rebuilt(volume: &Volume, count: u64) {
    wait_for(volume, |status| status.counters.slabs_rebuilt == count);
}

/// (named, healed, corrupt).
fn counts(volume: &Volume) -> (u64, u64, u64) {
    let status = volume.status().unwrap().integrity;
    (
        status.wrong_splits,
        status.healed_splits,
        status.corrupt_reads,
    )
}

/// Pages of which a split rots, each another one of those that are read for the rebuild at first.
const ROTTEN: [usize; 4] = [3, 4, 40, 63];

#[test]
fn a_rotten_source_is_told_by_the_tags_and_healed() {
    let _alone = alone();
    let mut round = 400;
    for (transport, mode) in [
        (Transport::Shm, Mode::FailureRecovery),
        (Transport::Tcp, Mode::FailureRecovery),
        // Where nothing tells, it tears pages whose sources disagree.
        (Transport::Shm, Mode::Detection),
    ] {
        round += 1;
        let mut cluster = Cluster::start(8, transport, 4 << 20, SLAB);
        let volume = open(&cluster, "rs:4+2", mode, Protection::Checksum);
        let mut worker = volume.worker().unwrap();
        let pages = fill(&mut worker, 64, round);
        let splits = |index: usize| splits_of(&pages[index], scheme("rs:4+2"));
        for index in ROTTEN {
            rot(&splits(index)[index % 4], 0);
        }
        cluster.stop(host_of(&cluster, &volume, 5));
        wait_for_rebuilt(&volume, 1);
        for index in 0..64 {
            assert!(holds(&splits(index)[5]), "page {index}: the new split");
        }
        assert_eq!(counts(&volume), (4, 4, 0), "before anybody reads");
        for index in ROTTEN {
            assert!(holds(&splits(index)[index % 4]), "page {index}: the old");
        }
        // As many may go as ever.
        for split in [0, 1] {
            cluster.stop(host_of(&cluster, &volume, split));
        }
        for (index, bytes) in pages.iter().enumerate() {
            assert_eq!(read(&mut worker, index as u64).as_ref(), Ok(bytes));
        }
    }
}

#[test]
fn a_rotten_source_of_sealed_pages_is_healed_as_well() {
    let _alone = alone();
    let mut named = 0;
    // Which slab is whose is not known, and it is another one each time: of six one goes, unread.
    for nth in 0..6 {
        let mut cluster = Cluster::start(7, Transport::Shm, 4 << 20, SLAB);
        let seal = Protection::Sealed(SealKey::new([0x11; SealKey::BYTES]));
        let volume = open(&cluster, "rs:4+2", Mode::FailureRecovery, seal);
        let mut worker = volume.worker().unwrap();
        let pages = fill(&mut worker, 3, 410);
        rot_first(&slabs()[nth]);
        cluster.stop(host_of(&cluster, &volume, 4));
        wait_for_rebuilt(&volume, 1);
        let (wrong, healed, corrupt) = counts(&volume);
        assert_eq!((healed, corrupt), (wrong, 0));
        named += wrong;
        for split in [2, 3] {
            cluster.stop(host_of(&cluster, &volume, split));
        }
        for (index, bytes) in pages.iter().enumerate() {
            assert_eq!(read(&mut worker, index as u64).as_ref(), Ok(bytes));
        }
    }
    assert!((1..=6).contains(&named), "{named} wrong splits");
}

#[test]
fn what_no_k_splits_tell_is_an_error_and_its_neighbours_are_right() {
    let _alone = alone();
    let mut cluster = Cluster::start(7, Transport::Shm, 4 << 20, SLAB);
    let checksum = Protection::Checksum;
    let volume = open(&cluster, "rs:4+2", Mode::FailureRecovery, checksum);
    let mut worker = volume.worker().unwrap();
    let pages = fill(&mut worker, 16, 420);
    for index in [6, 7] {
        let splits = splits_of(&pages[index], scheme("rs:4+2"));
        rot(&splits[1], 0);
        rot(&splits[2], 0);
    }
    cluster.stop(host_of(&cluster, &volume, 5));
    wait_for_rebuilt(&volume, 1);
    for (index, bytes) in pages.iter().enumerate() {
        let read = read(&mut worker, index as u64);
        if [6, 7].contains(&index) {
            assert_eq!(read, Err(IoError::Corrupt));
        } else {
            assert_eq!(read.as_ref(), Ok(bytes));
        }
    }
    let again = page(6, 421);
    worker.write(6 * PAGE_BYTES as u64, &again).unwrap();
    assert_eq!(read(&mut worker, 6), Ok(again));
}

/// Only k others are there to rebuild from, and one of them is wrong where the excluded host is right.
#[test]
fn the_slab_of_an_excluded_host_takes_no_page_with_it() {
    let _alone = alone();
    let cluster = Cluster::start(4, Transport::Shm, 4 << 20, SLAB);
    let checksum = Protection::Checksum;
    let volume = open(&cluster, "rs:2+1", Mode::FailureRecovery, checksum);
    let mut worker = volume.worker().unwrap();
    let pages = fill(&mut worker, 40, 430);
    let splits = |index: usize| splits_of(&pages[index], scheme("rs:2+1"));
    let name = volume.status().unwrap().extents[0].hosts[0].clone();
    rot(&splits(35)[1], 0);
    for index in 0..30 {
        rot(&splits(index)[0], 0);
    }
    for (index, bytes) in pages[..30].iter().enumerate() {
        assert_eq!(read(&mut worker, index as u64).as_ref(), Ok(bytes));
    }
    wait_for(&volume, |status| {
        let hosts = &status.hosts;
        let host = hosts.iter().find(|host| Some(&host.name) == name.as_ref());
        let is_gone = !status.extents[0].hosts.contains(&name);
        host.unwrap().reputation == Reputation::Excluded && is_gone
    });
    for (index, bytes) in pages.iter().enumerate() {
        assert_eq!(read(&mut worker, index as u64).as_ref(), Ok(bytes));
    }
    assert_eq!(counts(&volume), (31, 31, 0));
}
