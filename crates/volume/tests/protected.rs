//! Volumes whose pages are protected: by checksums, or sealed. They are what any volume is, and
//! besides never other bytes; of a sealed one hosts and disks see none.

mod support;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cenote_volume::{
    Health, IoError, Op, PAGE_BYTES, Protection, Request, SealKey, TagsError, Volume, VolumeConfig,
    VolumeError, Worker,
};
use support::disk::TestDisk;
use support::rot::{holds, replay, rot, rot_first, slabs, splits_of};
use support::{Cluster, Random, Transport, page, wait_for, wait_for_health};

const SLAB: u64 = 1 << 20;
const SIZE: u64 = 2 << 20;
const PAGES: u64 = SIZE / PAGE_BYTES as u64;

/// Tests look for slabs in this process: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sealed() -> Protection {
    Protection::Sealed(SealKey::new([0x11; SealKey::BYTES]))
}

fn protections() -> [Protection; 2] {
    [Protection::Checksum, sealed()]
}

fn read(worker: &mut Worker, index: u64) -> Result<Vec<u8>, IoError> {
    let mut bytes = vec![0xa5; PAGE_BYTES];
    let offset = index * PAGE_BYTES as u64;
    worker.read(offset, &mut bytes).map(|()| bytes)
}

fn check_all(volume: &Volume, model: &[u8]) {
    let mut worker = volume.worker().unwrap();
    let mut bytes = vec![0; model.len()];
    worker.read(0, &mut bytes).unwrap();
    let differs = bytes.chunks(PAGE_BYTES).zip(model.chunks(PAGE_BYTES));
    let differs = differs.enumerate().find(|(_, (a, b))| a != b);
    assert!(differs.is_none(), "page {:?}", differs.map(|(at, _)| at));
}

/// Whole pages, parts of pages and discards, and reads of parts.
fn churn(volume: &Volume, model: &mut [u8], seed: u64) {
    let mut worker = volume.worker().unwrap();
    let mut random = Random(seed);
    for round in 0..400 {
        let at = usize::try_from(random.below(SIZE - 9000)).unwrap();
        let len = 1 + usize::try_from(random.below(9000)).unwrap();
        match random.below(5) {
            0 => {
                worker.discard(at as u64, len as u64).unwrap();
                model[at..at + len].fill(0);
            }
            1 => {
                let mut bytes = vec![0; len];
                worker.read(at as u64, &mut bytes).unwrap();
                assert!(bytes == model[at..at + len], "round {round}");
            }
            2 => {
                let start = at / PAGE_BYTES * PAGE_BYTES;
                let bytes = page(round, seed);
                worker.write(start as u64, &bytes).unwrap();
                model[start..start + PAGE_BYTES].copy_from_slice(&bytes);
            }
            _ => {
                let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                worker.write(at as u64, &bytes).unwrap();
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
    }
}

#[test]
fn a_protected_volume_is_what_any_volume_is() {
    let _alone = alone();
    for transport in [Transport::Shm, Transport::Tcp] {
        for (scheme, hosts) in [("rs:4+2", 7), ("mirror:2", 3), ("plain", 1)] {
            for protection in protections() {
                let mut cluster = Cluster::start(hosts, transport, 8 << 20, SLAB);
                let volume = cluster.protected_volume(scheme, protection, SIZE);
                let mut model = vec![0; SIZE as usize];
                churn(&volume, &mut model, 1);
                check_all(&volume, &model);
                if hosts > 1 {
                    cluster.stop(0);
                    churn(&volume, &mut model, 2);
                    wait_for_health(&volume, Health::Healthy);
                    check_all(&volume, &model);
                }
                let status = volume.status().unwrap().integrity;
                assert_eq!((status.wrong_splits, status.corrupt_reads), (0, 0));
            }
        }
    }
}

#[test]
fn as_many_wrong_splits_as_there_are_parities_are_put_right() {
    let _alone = alone();
    for protection in protections() {
        let cluster = Cluster::start(6, Transport::Shm, 8 << 20, SLAB);
        let volume = cluster.protected_volume("rs:4+2", protection, SIZE);
        let mut worker = volume.worker().unwrap();
        for wrong in 1..=3 {
            let bytes = page(0, 200 + wrong);
            worker.write(0, &bytes).unwrap();
            let slabs = slabs();
            assert_eq!(slabs.len(), 6);
            slabs[..wrong as usize].iter().for_each(rot_first);
            let expected = match wrong {
                3 => Err(IoError::Corrupt),
                _ => Ok(bytes),
            };
            for _ in 0..2 {
                assert_eq!(read(&mut worker, 0), expected);
            }
        }
        let part = worker.write(100, &[1; 10]);
        assert_eq!(part, Err(IoError::Corrupt), "nothing to merge with");
        worker.write(0, &page(0, 250)).unwrap();
        assert_eq!(read(&mut worker, 0), Ok(page(0, 250)));
    }
}

#[test]
fn one_wrong_split_is_named_with_one_more_than_k() {
    let _alone = alone();
    let cluster = Cluster::start(6, Transport::Shm, 8 << 20, SLAB);
    let volume = cluster.protected_volume("rs:4+2", Protection::Checksum, SIZE);
    let mut worker = volume.worker().unwrap();
    let bytes = page(0, 210);
    worker.write(0, &bytes).unwrap();
    let right = splits_of(&bytes, "rs:4+2".parse().unwrap()).swap_remove(3);
    rot(&right, 0);
    assert_eq!(read(&mut worker, 0), Ok(bytes));
    assert!(holds(&right), "written again");
    let status = volume.status().unwrap().integrity;
    let counts = (
        status.wrong_splits,
        status.healed_splits,
        status.extended_reads,
    );
    assert_eq!(counts, (1, 1, 1));
}

#[test]
fn of_two_copies_the_tag_tells_and_one_alone_is_an_error() {
    let _alone = alone();
    for protection in protections() {
        let cluster = Cluster::start(2, Transport::Shm, 8 << 20, SLAB);
        let volume = cluster.protected_volume("mirror:2", protection.clone(), SIZE);
        let mut worker = volume.worker().unwrap();
        for copy in 0..2 {
            let bytes = page(0, 220 + copy as u64);
            worker.write(0, &bytes).unwrap();
            rot_first(&slabs()[copy]);
            for _ in 0..3 {
                assert_eq!(read(&mut worker, 0), Ok(bytes.clone()));
            }
        }
        drop((worker, volume, cluster));
        let cluster = Cluster::start(1, Transport::Shm, 8 << 20, SLAB);
        let volume = cluster.protected_volume("plain", protection, SIZE);
        let mut worker = volume.worker().unwrap();
        worker.write(0, &page(0, 225)).unwrap();
        rot_first(&slabs()[0]);
        assert_eq!(read(&mut worker, 0), Err(IoError::Corrupt));
    }
}

#[test]
fn hosts_see_nothing_of_a_sealed_page_and_cannot_bring_an_old_one_back() {
    let _alone = alone();
    let cluster = Cluster::start(6, Transport::Shm, 8 << 20, SLAB);
    let volume = cluster.protected_volume("rs:4+2", sealed(), SIZE);
    let mut worker = volume.worker().unwrap();
    let (old, new) = (page(0, 230), page(0, 231));
    worker.write(0, &old).unwrap();
    for split in splits_of(&old, "rs:4+2".parse().unwrap()) {
        assert!(!holds(&split));
    }
    let before = slabs();
    worker.write(0, &new).unwrap();
    assert_eq!(read(&mut worker, 0), Ok(new.clone()));
    before.iter().for_each(replay);
    assert_eq!(
        read(&mut worker, 0),
        Err(IoError::Corrupt),
        "not the old page"
    );
    // The same bytes are another text each time.
    worker.write(0, &new).unwrap();
    let first: Vec<Vec<u8>> = slabs().into_iter().map(|(_, bytes)| bytes).collect();
    worker.write(0, &new).unwrap();
    let again = slabs().into_iter().map(|(_, bytes)| bytes);
    assert!(first.iter().zip(again).all(|(a, b)| a[..64] != b[..64]));
}

#[test]
fn the_disk_of_a_sealed_volume_sees_nothing_and_a_wrong_page_of_it_is_an_error() {
    let _alone = alone();
    for protection in protections() {
        for hot_slab in [0.0, 1e9] {
            let cluster = Cluster::start(3, Transport::Shm, 8 << 20, SLAB);
            let disk = TestDisk::default();
            let mut backing = disk.backing();
            backing.hot_slab = hot_slab;
            let config = VolumeConfig {
                protection: protection.clone(),
                ..cluster.config("plain", SIZE)
            };
            let volume = Volume::open_backed(config, backing, cluster.connector()).unwrap();
            let mut model = vec![0; SIZE as usize];
            churn(&volume, &mut model, 3);
            check_all(&volume, &model);
            let mut worker = volume.worker().unwrap();
            let bytes = page(9, 240);
            worker.write(9 * PAGE_BYTES as u64, &bytes).unwrap();
            wait_for(&volume, |status| status.backing.unwrap().pending_bytes == 0);
            let on_disk = disk.page(9);
            let is_plain = on_disk.is_some_and(|disk| disk[..] == bytes[..]);
            assert_eq!(is_plain, protection == Protection::Checksum);
            if hot_slab > 0.0 {
                disk.set_page(9, [7; PAGE_BYTES]);
                assert_eq!(read(&mut worker, 9), Err(IoError::Corrupt));
                worker.write(9 * PAGE_BYTES as u64, &bytes).unwrap();
            }
            assert_eq!(read(&mut worker, 9), Ok(bytes));
        }
    }
}

#[test]
fn a_page_that_hosts_get_from_the_disk_is_sealed_as_it_was() {
    let _alone = alone();
    for protection in protections() {
        let cluster = Cluster::start(3, Transport::Shm, 8 << 20, SLAB);
        let disk = TestDisk::default();
        let config = VolumeConfig {
            protection: protection.clone(),
            ..cluster.config("plain", SIZE)
        };
        let volume = Volume::open_backed(config, disk.backing(), cluster.connector()).unwrap();
        let mut worker = volume.worker().unwrap();
        let bytes = page(3, 250);
        // Its extent has no slab yet: the disk alone has it, and is to have one.
        worker.write(3 * PAGE_BYTES as u64, &bytes).unwrap();
        let status = || volume.status().unwrap();
        wait_for(&volume, |status| status.mapped_bytes > 0);
        let promoted = || status().backing.unwrap().pages_promoted;
        assert_eq!((promoted(), holds(&bytes)), (0, false));
        assert_eq!(read(&mut worker, 3), Ok(bytes.clone()));
        assert_eq!(promoted(), 1);
        assert_eq!(holds(&bytes), protection == Protection::Checksum);
        disk.fail_reads(true);
        assert_eq!(read(&mut worker, 3), Ok(bytes), "from its host");
    }
}

#[test]
fn the_next_owner_has_the_tags_and_pages_in_the_making_are_old_or_new() {
    let _alone = alone();
    for (index, transport) in [Transport::Shm, Transport::Tcp].into_iter().enumerate() {
        for (scheme, hosts) in [("rs:4+2", 6), ("mirror:2", 2)] {
            for protection in protections() {
                let mut cluster = Cluster::start(hosts, transport, 8 << 20, SLAB);
                let mut model = vec![0; SIZE as usize];
                for round in 0..3 {
                    let volume = cluster.kept_protected(scheme, protection.clone(), SIZE);
                    let volume = volume.unwrap();
                    check_all(&volume, &model);
                    churn(&volume, &mut model, 4 + round);
                    volume.detach();
                }
                let volume = cluster.kept_protected(scheme, protection.clone(), SIZE);
                let volume = volume.unwrap();
                let mut worker = volume.worker().unwrap();
                for tag in 0..40 {
                    let op = Op::Write(page(tag, 260 + index as u64));
                    let offset = tag * PAGE_BYTES as u64;
                    worker.submit(Request { tag, offset, op }).unwrap();
                }
                worker.abandon();
                volume.detach();
                cluster.stop(index);
                let volume = cluster.kept_protected(scheme, protection.clone(), SIZE);
                let volume = volume.unwrap();
                let mut worker = volume.worker().unwrap();
                for at in 0..PAGES {
                    let old = &model[at as usize * PAGE_BYTES..][..PAGE_BYTES];
                    let new = page(at, 260 + index as u64);
                    let bytes = read(&mut worker, at).unwrap_or_else(|e| panic!("page {at}: {e}"));
                    assert!(bytes == old || at < 40 && bytes == new, "page {at}");
                }
            }
        }
    }
}

/// Ends the owner of a volume in the middle of writing its first page for the second time; what it was to be.
fn end_in_the_middle(cluster: &Cluster, protection: &Protection) -> Vec<u8> {
    let volume = cluster.kept_protected("rs:2+1", protection.clone(), SIZE);
    let volume = volume.unwrap();
    let mut worker = volume.worker().unwrap();
    worker.write(0, &page(0, 280)).unwrap();
    let new = page(0, 281);
    let op = Op::Write(new.clone());
    let (tag, offset) = (0, 0);
    worker.submit(Request { tag, offset, op }).unwrap();
    worker.abandon();
    volume.detach();
    new
}

fn images(cluster: &Cluster) -> Vec<u8> {
    std::fs::read(cluster.path().join("volume.images")).unwrap()
}

#[test]
fn what_is_noted_of_a_sealed_page_under_way_is_not_the_page() {
    let _alone = alone();
    for (protection, is_plain) in [(Protection::Checksum, true), (sealed(), false)] {
        let cluster = Cluster::start(3, Transport::Tcp, 8 << 20, SLAB);
        let new = end_in_the_middle(&cluster, &protection);
        let found = images(&cluster)
            .chunks(PAGE_BYTES)
            .any(|image| image == new);
        assert_eq!(found, is_plain, "{protection:?}");
        // Nor is any part of it.
        let words: Vec<&[u8]> = new.chunks(16).collect();
        let leaks = |image: &[u8]| image.chunks(16).any(|word| words.contains(&word));
        let in_use = images(&cluster);
        let mut in_use = in_use.chunks(PAGE_BYTES).skip(1);
        let found = in_use.any(|image| image.iter().any(|&byte| byte != 0) && leaks(image));
        assert_eq!(found, is_plain, "{protection:?}");
        let volume = cluster.kept_protected("rs:2+1", protection, SIZE).unwrap();
        assert_eq!(read(&mut volume.worker().unwrap(), 0), Ok(new));
    }
}

/// A wrong byte among what a page was to be is found by the page's tag.
#[test]
fn what_is_noted_of_a_page_under_way_and_is_wrong_is_not_believed() {
    let _alone = alone();
    for protection in protections() {
        let cluster = Cluster::start(3, Transport::Tcp, 8 << 20, SLAB);
        let new = end_in_the_middle(&cluster, &protection);
        let path = cluster.path().join("volume.images");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for (at, image) in images(&cluster).chunks(PAGE_BYTES).enumerate().skip(1) {
            file.write_all_at(&[!image[99]], (at * PAGE_BYTES + 99) as u64)
                .unwrap();
        }
        let volume = cluster.kept_protected("rs:2+1", protection, SIZE).unwrap();
        let mut worker = volume.worker().unwrap();
        match read(&mut worker, 0) {
            Ok(bytes) => assert!(bytes == page(0, 280) || bytes == new),
            Err(error) => assert_eq!(error, IoError::Corrupt),
        }
        worker.write(0, &page(0, 282)).unwrap();
        assert_eq!(read(&mut worker, 0), Ok(page(0, 282)));
    }
}

#[test]
fn a_volume_that_was_made_otherwise_is_refused() {
    let _alone = alone();
    let cluster = Cluster::start(3, Transport::Shm, 8 << 20, SLAB);
    let open = |protection| cluster.kept_protected("rs:2+1", protection, SIZE);
    let volume = open(sealed()).unwrap();
    volume.worker().unwrap().write(0, &page(0, 270)).unwrap();
    volume.detach();
    let other_key = Protection::Sealed(SealKey::new([0x12; SealKey::BYTES]));
    assert!(matches!(
        open(other_key),
        Err(VolumeError::Tags(TagsError::Key))
    ));
    for other in [Protection::Checksum, Protection::None] {
        let refused = open(other);
        assert!(matches!(
            refused,
            Err(VolumeError::Tags(TagsError::Other { .. }))
        ));
    }
    let volume = open(sealed()).unwrap();
    let mut worker = volume.worker().unwrap();
    assert_eq!(read(&mut worker, 0), Ok(page(0, 270)));
}
