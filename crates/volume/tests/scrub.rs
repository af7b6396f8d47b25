//! Scrubbing: what went wrong in the memory of hosts is found before a reader does.

mod support;

use cenote_volume::{IoError, Mode, Protection, ScrubReport, Volume};
use support::rot::{holds, rot, splits_of};
use support::{Cluster, Transport, page, wait_for};

const SLAB: u64 = 1 << 20;
const PAGE: usize = 4096;
const SIZE: u64 = 2 << 20;

fn pass(volume: &Volume) -> ScrubReport {
    let before = volume.status().unwrap().scrub.passes;
    volume.begin_scrub().unwrap();
    wait_for(volume, |status| {
        let scrub = status.scrub;
        !scrub.is_running && scrub.passes > before
    });
    let report = volume.status().unwrap().scrub.last.unwrap();
    ScrubReport {
        took_ms: 0,
        ..report
    }
}

fn fill(volume: &Volume, count: u64, round: u64) -> Vec<Vec<u8>> {
    let mut worker = volume.worker().unwrap();
    let write = |index| {
        let bytes = page(index, round);
        worker.write(index * PAGE as u64, &bytes).unwrap();
        bytes
    };
    (0..count).map(write).collect()
}

#[test]
fn every_wrong_split_is_found_and_written_again() {
    let cluster = Cluster::start(6, Transport::Shm, 4 << 20, SLAB);
    let open = |round| match round {
        300 => cluster.protected_volume("rs:4+2", Protection::Checksum, SIZE),
        // Nothing is compared when pages are read; all is when they are scrubbed.
        _ => cluster.volume("rs:4+2", SIZE),
    };
    for round in [300, 301] {
        let volume = open(round);
        let pages = fill(&volume, 40, round);
        let clean = ScrubReport {
            pages: 40,
            ..ScrubReport::default()
        };
        assert_eq!(pass(&volume), clean);
        for index in [0, 7, 39] {
            let splits = splits_of(&pages[index], "rs:4+2".parse().unwrap());
            rot(&splits[index % 6], 0);
        }
        let found = ScrubReport {
            wrong_splits: 3,
            healed_splits: 3,
            ..clean
        };
        assert_eq!(pass(&volume), found);
        for index in [0, 7, 39] {
            let splits = splits_of(&pages[index], "rs:4+2".parse().unwrap());
            assert!(holds(&splits[index % 6]));
        }
        assert_eq!(pass(&volume), clean);
        volume.close();
    }
}

#[test]
fn what_cannot_be_told_is_counted_and_left_as_it_is() {
    let cluster = Cluster::start(6, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+2", Mode::Detection, SIZE);
    let pages = fill(&volume, 4, 310);
    let splits = splits_of(&pages[2], "rs:4+2".parse().unwrap());
    rot(&splits[0], 0);
    rot(&splits[5], 0);
    let report = pass(&volume);
    assert_eq!((report.corrupt_pages, report.healed_splits), (1, 0));
    let mut worker = volume.worker().unwrap();
    let mut bytes = vec![0; PAGE];
    let read = worker.read(2 * PAGE as u64, &mut bytes);
    assert_eq!(read, Err(IoError::Corrupt));
}

#[test]
fn a_rate_has_it_look_by_itself() {
    let cluster = Cluster::start(7, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+3", Mode::Correction, SIZE);
    let pages = fill(&volume, 64, 320);
    rot(&splits_of(&pages[60], "rs:4+3".parse().unwrap())[6], 0);
    volume.set_scrub_rate(16 << 20).unwrap();
    wait_for(&volume, |status| status.scrub.passes == 1);
    let report = volume.status().unwrap().scrub.last.unwrap();
    assert_eq!((report.wrong_splits, report.healed_splits), (1, 1));
    let least = 48 * PAGE as u64 * 1000 / (16 << 20);
    assert!(report.took_ms >= least, "{} ms", report.took_ms);
}

#[test]
fn a_pass_ends_when_it_is_turned_off_and_begins_again_when_it_is_turned_on() {
    let cluster = Cluster::start(3, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", SIZE);
    fill(&volume, 64, 340);
    // A quarter of the pages, then a second's pause.
    volume.set_scrub_rate(64 << 10).unwrap();
    wait_for(&volume, |status| status.scrub.pages_done >= 16);
    volume.set_scrub_rate(0).unwrap();
    wait_for(&volume, |status| !status.scrub.is_running);
    let scrub = volume.status().unwrap().scrub;
    assert_eq!(scrub.passes, 0, "the rest was not to be looked at");
    assert!(scrub.pages_done < 64, "{scrub:?}");
    volume.set_scrub_rate(1 << 30).unwrap();
    wait_for(&volume, |status| status.scrub.passes == 1);
}

#[test]
fn a_pass_goes_on_at_another_rate_at_once() {
    let cluster = Cluster::start(3, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", SIZE);
    fill(&volume, 64, 350);
    // At a byte per second the next batch is hours away.
    volume.set_scrub_rate(1).unwrap();
    wait_for(&volume, |status| status.scrub.pages_done >= 16);
    volume.set_scrub_rate(1 << 30).unwrap();
    wait_for(&volume, |status| status.scrub.passes == 1);
    assert_eq!(volume.status().unwrap().scrub.last.unwrap().pages, 64);
}

/// Repairs yield to requests, and not to scrubs.
#[test]
fn what_is_scrubbed_is_not_counted_as_read() {
    let cluster = Cluster::start(3, Transport::Shm, 4 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", SIZE);
    fill(&volume, 64, 360);
    let read = || volume.status().unwrap().counters.pages_read;
    let before = read();
    assert_eq!(pass(&volume).pages, 64);
    assert_eq!(read(), before);
}

#[test]
fn readers_and_writers_go_on_meanwhile() {
    let cluster = Cluster::start(7, Transport::Tcp, 4 << 20, SLAB);
    let volume = cluster.volume_in_mode("rs:4+3", Mode::Correction, SIZE);
    fill(&volume, 64, 330);
    volume.begin_scrub().unwrap();
    let mut worker = volume.worker().unwrap();
    for round in 0..400 {
        let index = round % 64;
        let bytes = page(index, 331 + round);
        worker.write(index * PAGE as u64, &bytes).unwrap();
        let mut read = vec![0; PAGE];
        worker.read(index * PAGE as u64, &mut read).unwrap();
        assert!(read == bytes);
        if round % 64 == 63 {
            volume.begin_scrub().unwrap();
        }
    }
    let report = pass(&volume);
    assert_eq!((report.wrong_splits, report.corrupt_pages), (0, 0));
    let status = volume.status().unwrap().integrity;
    assert_eq!((status.wrong_splits, status.corrupt_reads), (0, 0));
}
