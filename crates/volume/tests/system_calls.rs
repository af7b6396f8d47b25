//! What a page costs its client in system calls: hosts are talked to together.

mod support;

use cenote_fabric::Batch;
use cenote_volume::Health;
use support::{Cluster, Transport, wait_for_health};

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
const PAGES: u64 = 300;

/// Most system calls of the cheapest tenth of pages; alone, ten endpoints make 20 and more. A page
/// whose hosts answer in an odd order costs more, and how often that is depends on the machine.
const CALLS_MAX: u64 = 5;

/// System calls of each page that `access` reads or writes, ascending.
fn calls(
    worker: &mut cenote_volume::Worker,
    mut access: impl FnMut(&mut cenote_volume::Worker, u64),
) -> Vec<u64> {
    let mut calls: Vec<u64> = (0..PAGES)
        .map(|page| {
            let before = worker.system_calls();
            access(worker, page * PAGE as u64);
            worker.system_calls() - before
        })
        .collect();
    calls.sort_unstable();
    calls
}

#[test]
fn a_page_on_many_hosts_costs_few_system_calls() {
    if !Batch::new().is_on() {
        println!("skipped: this system has no io_uring for tcp");
        return;
    }
    let cluster = Cluster::start(12, Transport::Tcp, 16 * MIB, MIB);
    let volume = cluster.volume("rs:8+2", 4 * MIB);
    let mut worker = volume.worker().unwrap();
    let written: Vec<u8> = (0..PAGE).map(|i| (i % 251) as u8).collect();
    for page in 0..PAGES {
        worker.write(page * PAGE as u64, &written).unwrap();
    }
    wait_for_health(&volume, Health::Healthy);

    let writes = calls(&mut worker, |worker, at| {
        worker.write(at, &written).unwrap()
    });
    let mut read = vec![0; PAGE];
    let reads = calls(&mut worker, |worker, at| {
        worker.read(at, &mut read).unwrap();
        assert!(read == written, "the bytes at {at} differ");
    });

    let tenth = PAGES as usize / 10;
    assert!(reads[tenth] <= CALLS_MAX, "reads: {reads:?}");
    assert!(writes[tenth] <= CALLS_MAX, "writes: {writes:?}");
}
