//! What a volume promises its users, each promise on real daemons.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use cenote_volume::{Done, Health, IoError, Op, Request, VolumeError};
use support::{Cluster, Random, StopWhenDropped, Transport, wait_for, wait_for_health, wait_until};

const SLAB: u64 = 2 << 20;
const PAGE: usize = 4096;

#[test]
fn more_losses_than_parities_are_errors_never_other_bytes() {
    let mut cluster = Cluster::start(10, Transport::Shm, 32 << 20, SLAB);
    let volume = cluster.volume("rs:8+2", 16 << 20);
    let mut worker = volume.worker().unwrap();
    worker.write(0, &[7; PAGE]).unwrap();
    for host in 0..3 {
        cluster.stop(host);
    }
    wait_for_health(&volume, Health::Lost);
    let mut page = [0; PAGE];
    assert_eq!(worker.read(0, &mut page), Err(IoError::Lost));
    assert_eq!(worker.write(0, &[8; PAGE]), Err(IoError::Lost));
    worker
        .read(PAGE as u64, &mut page)
        .expect("a page never written needs no host");
    assert_eq!(page, [0; PAGE]);
}

#[test]
fn two_writers_of_one_page_never_leave_a_mixture_that_a_loss_reveals() {
    let mut cluster = Cluster::start(12, Transport::Shm, 32 << 20, SLAB);
    let volume = cluster.volume("rs:8+2", 16 << 20);
    let pages = 16_u64;
    std::thread::scope(|scope| {
        for thread in 0..2_u8 {
            let mut worker = volume.worker().unwrap();
            scope.spawn(move || {
                let mut random = Random(u64::from(thread));
                for round in 0..20_000_u32 {
                    let page = random.below(pages);
                    let value = (round as u8).wrapping_mul(2).wrapping_add(thread);
                    worker.write(page * PAGE as u64, &[value; PAGE]).unwrap();
                }
            });
        }
    });
    let mut before = vec![0; pages as usize * PAGE];
    volume.worker().unwrap().read(0, &mut before).unwrap();
    assert!(
        before
            .chunks(PAGE)
            .all(|page| page.iter().all(|byte| *byte == page[0])),
        "a page of one write each"
    );
    cluster.stop(3);
    cluster.stop(8);
    let mut worker = volume.worker().unwrap();
    let mut after = vec![0; before.len()];
    worker.read(0, &mut after).unwrap();
    assert!(before == after, "decoding gives what was there");
}

#[test]
fn neighbouring_sectors_of_one_page_written_at_once_are_both_kept() {
    let cluster = Cluster::start(10, Transport::Shm, 32 << 20, SLAB);
    let volume = cluster.volume("rs:8+2", 16 << 20);
    std::thread::scope(|scope| {
        for sector in 0..2_usize {
            let mut worker = volume.worker().unwrap();
            scope.spawn(move || {
                for round in 0..5_000_u32 {
                    worker
                        .write(sector as u64 * 512, &[round as u8; 512])
                        .unwrap();
                    let mut seen = [0; 512];
                    worker.read(sector as u64 * 512, &mut seen).unwrap();
                    assert_eq!(seen, [round as u8; 512]);
                }
            });
        }
    });
}

#[test]
fn readers_see_whole_pages_while_a_writer_and_losses_go_on() {
    let mut cluster = Cluster::start(12, Transport::Shm, 32 << 20, SLAB);
    let volume = cluster.volume("rs:8+2", 16 << 20);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut writer = volume.worker().unwrap();
        let mut reader = volume.worker().unwrap();
        let over = &over;
        scope.spawn(move || {
            let mut round = 0_u32;
            while !over.load(Ordering::Acquire) {
                round += 1;
                writer
                    .write(u64::from(round % 8) * PAGE as u64, &[round as u8; PAGE])
                    .unwrap();
            }
        });
        scope.spawn(move || {
            let mut page = [0; PAGE];
            let mut random = Random(1);
            while !over.load(Ordering::Acquire) {
                reader
                    .read(random.below(8) * PAGE as u64, &mut page)
                    .unwrap();
                assert!(
                    page.iter().all(|byte| *byte == page[0]),
                    "bytes of two writes in one page"
                );
            }
        });
        let _stop = StopWhenDropped(over);
        cluster.stop(1);
        cluster.stop(6);
        wait_for_health(&volume, Health::Healthy);
    });
}

#[test]
fn with_too_few_hosts_an_extent_is_degraded_and_made_whole_when_one_comes_back() {
    let mut cluster = Cluster::start(10, Transport::Shm, 32 << 20, SLAB);
    cluster.stop(4);
    let volume = cluster.volume("rs:8+2", 16 << 20);
    let mut worker = volume.worker().unwrap();
    worker.write(0, &[5; PAGE]).unwrap();
    assert_eq!(volume.status().unwrap().health, Health::Degraded);
    cluster.restart(4);
    wait_for_health(&volume, Health::Healthy);
    cluster.stop(0);
    cluster.stop(1);
    let mut page = [0; PAGE];
    worker.read(0, &mut page).unwrap();
    assert_eq!(page, [5; PAGE]);
}

#[test]
fn a_host_that_returns_after_its_slabs_were_replaced_lends_again() {
    let mut cluster = Cluster::start(11, Transport::Tcp, 32 << 20, SLAB);
    let volume = cluster.volume("rs:8+2", 16 << 20);
    let mut worker = volume.worker().unwrap();
    worker.write(0, &[1; PAGE]).unwrap();
    let victim = volume.status().unwrap().extents[0].hosts[0]
        .clone()
        .unwrap();
    let index = victim[1..].parse().unwrap();
    cluster.stop(index);
    wait_for_health(&volume, Health::Healthy);
    worker.write(0, &[2; PAGE]).unwrap();
    cluster.restart(index);
    let connected = || volume.status().unwrap().hosts[index].connected;
    wait_until(connected, || format!("{:?}", volume.status()));
    let mut page = [0; PAGE];
    worker.read(0, &mut page).unwrap();
    assert_eq!(page, [2; PAGE]);
}

#[test]
fn a_full_cluster_says_no_space_and_a_discard_makes_room() {
    // One slab of 2 MiB on each of three hosts: one extent of rs:2+1 holds 4 MiB.
    let cluster = Cluster::start(3, Transport::Shm, 2 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", 16 << 20);
    let mut worker = volume.worker().unwrap();
    worker.write(0, &[1; PAGE]).unwrap();
    assert_eq!(worker.write(8 << 20, &[1; PAGE]), Err(IoError::NoSpace));
    assert!(matches!(
        volume.map_all(|_, _| ()),
        Err(VolumeError::NoSpace {
            mapped: 1,
            wanted: 4
        })
    ));
    worker.discard(0, 4 << 20).unwrap();
    wait_for(&volume, |status| status.extents.is_empty());
    wait_until(
        || worker.write(8 << 20, &[3; PAGE]).is_ok(),
        || "the freed slabs are not lent again".into(),
    );
    let mut page = [9; PAGE];
    worker.read(0, &mut page).unwrap();
    assert_eq!(page, [0; PAGE], "another extent's bytes never show");
}

#[test]
fn many_requests_in_flight_all_end_once_with_their_bytes() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let cluster = Cluster::start(10, transport, 32 << 20, SLAB);
        let volume = cluster.volume("rs:8+2", 16 << 20);
        let mut worker = volume.worker().unwrap();
        let mut done: Vec<Done> = Vec::new();
        let mut run = |requests: Vec<Request>| -> Vec<Done> {
            let count = requests.len();
            for request in requests {
                let mut request = Some(request);
                while let Some(pending) = request.take() {
                    request = worker.submit(pending).err();
                    worker.poll(&mut done);
                }
            }
            wait_until(
                || {
                    worker.poll(&mut done);
                    done.len() == count
                },
                || "requests did not end".into(),
            );
            std::mem::take(&mut done)
        };
        let writes = (0..500_u64).map(|tag| Request {
            tag,
            offset: tag * 6000,
            op: Op::Write(vec![tag as u8; 6000]),
        });
        assert!(run(writes.collect()).iter().all(|done| done.result.is_ok()));
        let reads = (0..500_u64).map(|tag| Request {
            tag,
            offset: tag * 6000,
            op: Op::Read(vec![0xff; 6000]),
        });
        let mut tags: Vec<u64> = Vec::new();
        for end in run(reads.collect()) {
            let Op::Read(bytes) = end.op else {
                panic!("another operation came back")
            };
            assert!(
                end.result.is_ok() && bytes.iter().all(|byte| *byte == end.tag as u8),
                "{transport:?} {}",
                end.tag
            );
            tags.push(end.tag);
        }
        tags.sort_unstable();
        assert!(tags.into_iter().eq(0..500));
        let past = run(vec![Request {
            tag: 1,
            offset: 16 << 20,
            op: Op::Read(vec![0; 1]),
        }]);
        assert_eq!(past[0].result, Err(IoError::OutOfRange));
    }
}

#[test]
fn a_terabyte_is_thin_and_its_discard_touches_nothing() {
    let cluster = Cluster::start(3, Transport::Shm, 8 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", 1 << 40);
    let mut worker = volume.worker().unwrap();
    worker.write((1 << 40) - PAGE as u64, &[1; PAGE]).unwrap();
    worker.discard(0, 1 << 40).unwrap();
    let mut page = [9; PAGE];
    worker.read((1 << 40) - PAGE as u64, &mut page).unwrap();
    assert_eq!(page, [0; PAGE]);
    assert_eq!(volume.status().unwrap().stored_bytes, 0);
}

#[test]
fn a_closed_volume_gives_its_slabs_back() {
    let cluster = Cluster::start(3, Transport::Shm, 8 << 20, SLAB);
    for _ in 0..5 {
        let volume = cluster.volume("rs:2+1", 16 << 20);
        volume
            .map_all(|_, _| ())
            .expect("every earlier volume's memory is free again");
        let mut worker = volume.worker().unwrap();
        volume.close();
        assert_eq!(worker.write(0, &[1; PAGE]), Err(IoError::Closed));
    }
}
