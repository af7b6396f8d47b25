//! Bits that flip in a volume's marks or journal while nobody serves it.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use cenote_volume::{IoError, JournalError, PAGE_BYTES, Volume, VolumeError};
use support::{Cluster, Transport, assert_pages, page};

const SLAB: u64 = 1 << 20;
const SIZE: u64 = 4 << 20;
const PAGE: u64 = PAGE_BYTES as u64;
const PAGES: u64 = SIZE / PAGE;
/// Where the bits of pages that hold data begin, see docs/protocols/journal.md.
const BITS_AT: u64 = 16896 * 8;
/// Where the list of pages that are being written begins.
const LIST_AT: u64 = 512 * 8;

/// A volume of which all pages were written by an owner that ended in good order.
fn written(cluster: &Cluster) {
    let volume = cluster.kept_volume("rs:4+2", SIZE).unwrap();
    let mut worker = volume.worker().unwrap();
    (0..PAGES).for_each(|index| worker.write(index * PAGE, &page(index, 1)).unwrap());
    drop(worker);
    volume.detach();
}

/// Flips bits of a byte of the marks.
fn flip(cluster: &Cluster, at: u64, mask: u8) {
    flip_in(cluster, "volume.pages", at, mask);
}

fn flip_in(cluster: &Cluster, file: &str, at: u64, mask: u8) {
    let path = cluster.path().join(file);
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ mask], at).unwrap();
}

fn read(volume: &Volume, index: u64) -> Result<Vec<u8>, IoError> {
    let mut bytes = vec![0; PAGE_BYTES];
    let mut worker = volume.worker().unwrap();
    worker.read(index * PAGE, &mut bytes).map(|()| bytes)
}

#[test]
fn a_page_whose_bit_flipped_is_read_as_it_was_written() {
    let cluster = Cluster::start(6, Transport::Shm, 32 << 20, SLAB);
    written(&cluster);
    for index in [0, 9, PAGES - 1] {
        flip(&cluster, BITS_AT + index / 8, 1 << (index % 8));
        let volume = cluster.kept_volume("rs:4+2", SIZE).unwrap();
        assert_pages(&volume, PAGES, 1);
        assert_eq!(volume.status().unwrap().torn_pages, 0);
        volume.detach();
    }
}

#[test]
fn pages_of_which_more_bits_flipped_are_errors_until_they_are_written() {
    let cluster = Cluster::start(6, Transport::Shm, 32 << 20, SLAB);
    written(&cluster);
    // Pages 8, 9 and 100 would be zeros.
    flip(&cluster, BITS_AT + 1, 0b11);
    flip(&cluster, BITS_AT + 12, 0b1_0000);
    // The next owner knows it as well, though the one that found it is gone.
    for _ in 0..2 {
        let volume = cluster.kept_volume("rs:4+2", SIZE).unwrap();
        for index in 0..PAGES {
            let found = read(&volume, index).map(drop);
            assert_eq!(found, Err(IoError::Lost), "page {index}");
        }
        assert_eq!(volume.status().unwrap().torn_pages, PAGES);
        volume.detach();
    }
    let volume = cluster.kept_volume("rs:4+2", SIZE).unwrap();
    let mut worker = volume.worker().unwrap();
    (0..PAGES).for_each(|index| worker.write(index * PAGE, &page(index, 2)).unwrap());
    drop(worker);
    assert_pages(&volume, PAGES, 2);
    assert_eq!(volume.status().unwrap().torn_pages, 0);
    volume.detach();
    assert_pages(&cluster.kept_volume("rs:4+2", SIZE).unwrap(), PAGES, 2);
}

#[test]
fn a_page_that_was_never_being_written_is_not_taken_for_one_that_was() {
    let cluster = Cluster::start(6, Transport::Shm, 32 << 20, SLAB);
    written(&cluster);
    // Slot 3 would say that page 7 held no data before: none again.
    flip(&cluster, LIST_AT + 3 * 8, 8);
    flip(&cluster, LIST_AT + 3 * 8 + 7, 0x80);
    let volume = cluster.kept_volume("rs:4+2", SIZE).unwrap();
    assert_pages(&volume, PAGES, 1);
    assert_eq!(volume.status().unwrap().torn_pages, 0);
}

#[test]
fn a_last_batch_of_the_journal_that_flipped_is_damage_and_one_that_was_cut_off_is_not() {
    let cluster = Cluster::start(6, Transport::Shm, 32 << 20, SLAB);
    written(&cluster);
    let path = cluster.path().join("volume.journal");
    let whole = std::fs::read(&path).unwrap();
    let len = whole.len() as u64;
    let mut damaged_at = None;
    for back in [1, 5, 20] {
        flip_in(&cluster, "volume.journal", len - back, 0x10);
        match cluster.kept_volume("rs:4+2", SIZE).map(drop) {
            Err(VolumeError::Journal(JournalError::DamagedEnd { at })) => {
                assert!((at as u64) < len, "{at} of {len}");
                assert_eq!(*damaged_at.get_or_insert(at), at, "where the batch begins");
            }
            other => panic!("{back} bytes from the end: {other:?}"),
        }
        flip_in(&cluster, "volume.journal", len - back, 0x10);
    }
    // As a killed owner leaves it that had begun to append. Nothing depended on that yet.
    let mut longer = whole.clone();
    longer.extend(&whole[8..40]);
    std::fs::write(&path, &longer).unwrap();
    assert_pages(&cluster.kept_volume("rs:4+2", SIZE).unwrap(), PAGES, 1);
}
