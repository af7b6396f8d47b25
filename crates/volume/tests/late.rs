//! Late binding: what a read does not wait for neither lands in its page nor is forgotten.
//!
//! Hosts of which a test holds the answers back land them by halves, with other bytes between, and
//! once more when they complete. Paper: \[hydra22\] 4.1.2, 4.1.4 (H2).

mod support;

use std::sync::atomic::Ordering;

use cenote_volume::{Done, Op, Request, Worker};
use support::tardy::Tardy;
use support::{Cluster, Transport, page, wait_for, wait_until};

const SLAB: u64 = 1 << 20;
const PAGE: usize = 4096;
const PAGES: u64 = 64;

/// A volume with every page written, and one host that answers when it is let.
fn with_tardy_host(scheme: &str, hosts: usize, run: impl FnOnce(&mut Worker, &Tardy)) {
    let cluster = Cluster::start(hosts, Transport::Tcp, 16 << 20, SLAB);
    let tardy = Tardy::default();
    let slow = vec![cluster.configs[1].address.clone()];
    let volume = cluster.guarded_volume(scheme, PAGES * PAGE as u64, slow, tardy.clone());
    let mut worker = volume.worker().unwrap();
    for index in 0..PAGES {
        worker.write(index * PAGE as u64, &page(index, 0)).unwrap();
    }
    tardy.holds.store(true, Ordering::Release);
    run(&mut worker, &tardy);
    tardy.holds.store(false, Ordering::Release);
}

/// Submits and polls until everything submitted has ended.
fn run(worker: &mut Worker, requests: impl Iterator<Item = Request>) -> Vec<Done> {
    let (mut done, mut count) = (Vec::new(), 0);
    for request in requests {
        count += 1;
        assert!(worker.submit(request).is_ok(), "fewer than a worker takes");
    }
    wait_until(
        || {
            worker.poll(&mut done);
            done.len() == count
        },
        || "reads wait for a host that does not answer".into(),
    );
    done
}

fn read(tag: u64, offset: u64, len_bytes: usize) -> Request {
    let op = Op::Read(vec![0; len_bytes]);
    Request { tag, offset, op }
}

fn read_back(done: Done) -> (u64, Vec<u8>) {
    assert_eq!(done.result, Ok(()), "page {}", done.tag);
    match done.op {
        Op::Read(bytes) => (done.tag, bytes),
        other => panic!("{other:?} came back for a read"),
    }
}

/// Pages are read over a host that does not answer; then it does, with everybody's buffers kept.
fn pages_stay_as_they_were_read(scheme: &str, hosts: usize) {
    with_tardy_host(scheme, hosts, |worker, tardy| {
        let reads = (0..PAGES).map(|index| read(index, index * PAGE as u64, PAGE));
        let pages: Vec<(u64, Vec<u8>)> = run(worker, reads).into_iter().map(read_back).collect();
        let poll = |worker: &mut Worker| {
            let mut none = Vec::new();
            worker.poll(&mut none);
            assert!(none.is_empty(), "an ended read ended again");
        };
        wait_until(
            || {
                poll(worker);
                tardy.held.load(Ordering::Acquire) > 0
            },
            || "no read asked the slow host".into(),
        );
        let held = tardy.held.load(Ordering::Acquire);
        for (index, bytes) in &pages {
            assert!(*bytes == page(*index, 0), "page {index}: torn bytes landed");
        }
        tardy.holds.store(false, Ordering::Release);
        // Written and read over the same connections, behind what was late.
        for index in 0..PAGES {
            worker.write(index * PAGE as u64, &page(index, 1)).unwrap();
        }
        for (index, bytes) in &pages {
            assert!(*bytes == page(*index, 0), "page {index}: late bytes landed");
        }
        for index in 0..PAGES {
            let mut now = vec![0; PAGE];
            worker.read(index * PAGE as u64, &mut now).unwrap();
            assert!(now == page(index, 1), "page {index} after the late answers");
        }
        assert!(held > 0);
    });
}

#[test]
fn what_comes_late_does_not_land_in_a_decoded_page() {
    pages_stay_as_they_were_read("rs:8+2", 10);
    pages_stay_as_they_were_read("rs:4+2", 6);
}

#[test]
fn the_slower_of_two_copies_does_not_land_over_the_faster() {
    pages_stay_as_they_were_read("mirror:2", 2);
    pages_stay_as_they_were_read("mirror:3", 3);
}

#[test]
fn a_write_of_part_of_a_page_goes_on_with_the_splits_that_came() {
    for (scheme, hosts) in [("rs:4+2", 6), ("mirror:2", 2)] {
        with_tardy_host(scheme, hosts, |worker, tardy| {
            let writes = (0..PAGES).map(|index| Request {
                tag: index,
                offset: index * PAGE as u64 + 100,
                op: Op::Write(vec![7; 1000]),
            });
            for done in run(worker, writes) {
                assert_eq!(done.result, Ok(()));
            }
            tardy.holds.store(false, Ordering::Release);
            for index in 0..PAGES {
                let mut expected = page(index, 0);
                expected[100..1100].fill(7);
                let mut now = vec![0; PAGE];
                worker.read(index * PAGE as u64, &mut now).unwrap();
                assert!(now == expected, "{scheme}: page {index}");
            }
        });
    }
}

#[test]
fn more_reads_than_a_worker_has_places_end_beside_a_host_that_has_stopped() {
    with_tardy_host("rs:4+2", 6, |worker, tardy| {
        for round in 0..20 {
            let reads = (0..PAGES).map(|index| read(index, index * PAGE as u64, PAGE));
            for (index, bytes) in run(worker, reads).into_iter().map(read_back) {
                assert!(bytes == page(index, 0), "round {round}, page {index}");
            }
        }
        assert!(tardy.held.load(Ordering::Acquire) > 0, "nobody asked it");
    });
}

#[test]
fn a_host_that_dies_owing_late_splits_is_missed() {
    let mut cluster = Cluster::start(6, Transport::Tcp, 16 << 20, SLAB);
    let tardy = Tardy::default();
    let slow = vec![cluster.configs[1].address.clone()];
    let volume = cluster.guarded_volume("rs:4+2", PAGES * PAGE as u64, slow, tardy.clone());
    let mut worker = volume.worker().unwrap();
    worker.write(0, &page(0, 0)).unwrap();
    tardy.holds.store(true, Ordering::Release);
    for _ in 0..16 {
        let (_, bytes) = read_back(run(&mut worker, [read(0, 0, PAGE)].into_iter()).remove(0));
        assert!(bytes == page(0, 0));
    }
    cluster.stop(1);
    tardy.holds.store(false, Ordering::Release);
    wait_for(&volume, |status| {
        worker.poll(&mut Vec::new());
        status.extents[0].hosts.iter().flatten().count() < 6
    });
    worker.write(0, &page(0, 1)).unwrap();
    let mut now = vec![0; PAGE];
    worker.read(0, &mut now).unwrap();
    assert!(now == page(0, 1));
}
