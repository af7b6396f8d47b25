//! Writes that meet a chunk which is being rebuilt: they go on at once, and the chunk is rebuilt again.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cenote_pool::control::Request;
use cenote_volume::{Health, Volume, Worker};
use support::guard::Guard;
use support::{Cluster, StopWhenDropped, Transport, page, wait_for, wait_for_health, wait_until};

const SLAB: u64 = 1 << 20;
const SIZE: u64 = 2 * SLAB;
const PAGE: usize = 4096;
const HOSTS: usize = 4;

/// Holds back what hosts answer from the first fill of a fenced chunk on, until it is let go.
#[derive(Clone, Default)]
struct HeldFill {
    /// Fills asked for; the first is of a page that nobody fences.
    asked: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl HeldFill {
    fn holds(&self) -> bool {
        self.asked.load(Ordering::Acquire) > 1 && !self.is_over.load(Ordering::Acquire)
    }
}

impl Guard for HeldFill {
    fn sending(&self, message: &[u8]) {
        if let Ok(Request::Fill { .. }) = Request::decode(message) {
            self.asked.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn receives(&self) -> bool {
        !self.holds()
    }
}

fn write(worker: &mut Worker, index: u64, round: u64) {
    let bytes = page(index, round);
    worker.write(index * PAGE as u64, &bytes).unwrap();
}

fn check(worker: &mut Worker, index: u64, round: u64) {
    let mut seen = vec![0; PAGE];
    worker.read(index * PAGE as u64, &mut seen).unwrap();
    assert!(seen == page(index, round), "page {index}");
}

fn holders(volume: &Volume) -> Vec<usize> {
    let status = volume.status().unwrap();
    let names = status.extents.iter().flat_map(|extent| extent.hosts.iter());
    let index = |name: &String| name.trim_start_matches('h').parse().unwrap();
    names.flatten().map(index).collect()
}

#[test]
fn a_write_that_meets_a_chunk_goes_on_and_the_new_slab_has_it() {
    let mut cluster = Cluster::start(HOSTS, Transport::Shm, 16 << 20, SLAB);
    let guard = HeldFill::default();
    let addresses = cluster.configs.iter().map(|host| host.address.clone());
    let addresses = addresses.collect();
    let volume = cluster.guarded_volume("rs:2+1", SIZE, addresses, guard.clone());
    let mut worker = volume.worker().unwrap();
    let pages = SIZE / PAGE as u64;
    (0..pages).for_each(|index| write(&mut worker, index, 1));

    let lost = holders(&volume)[0];
    cluster.stop(lost);
    wait_until(|| guard.holds(), || format!("{:#?}", volume.status()));
    // Page 0 is in the first chunk, of which no fill is known to have ended.
    write(&mut worker, 0, 2);
    guard.is_over.store(true, Ordering::Release);
    wait_for_health(&volume, Health::Healthy);

    let repair = volume.status().unwrap().repair;
    assert_eq!((repair.fence_passes, repair.fence_waits.count), (1, 0));
    assert_eq!(repair.chunks_void, 1, "{repair:#?}");
    let counters = volume.status().unwrap().counters;
    assert_eq!(counters.rebuilt_bytes, SLAB, "what was void does not count");
    // Another loss: what was rebuilt is needed.
    let survivor = holders(&volume).into_iter().find(|&host| host != lost);
    cluster.stop(survivor.unwrap());
    check(&mut worker, 0, 2);
    (1..pages).for_each(|index| check(&mut worker, index, 1));
}

#[test]
fn a_rebuild_ends_beside_a_writer_that_never_leaves_its_pages() {
    let mut cluster = Cluster::start(HOSTS, Transport::Shm, 16 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", SIZE);
    let mut worker = volume.worker().unwrap();
    let pages = SIZE / PAGE as u64;
    (0..pages).for_each(|index| write(&mut worker, index, 1));
    let stop = AtomicBool::new(false);
    let lost = holders(&volume)[0];
    let last = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Few enough for each chunk to be written all the time.
            let mut worker = volume.worker().unwrap();
            let mut round = 1;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                (0..pages)
                    .step_by(8)
                    .for_each(|index| write(&mut worker, index, round));
            }
            round
        });
        let stopping = StopWhenDropped(&stop);
        cluster.stop(lost);
        wait_for(&volume, |status| {
            status.counters.slabs_rebuilt == 1 && status.health == Health::Healthy
        });
        drop(stopping);
        writer.join().unwrap()
    });
    let survivor = holders(&volume).into_iter().find(|&host| host != lost);
    cluster.stop(survivor.unwrap());
    for index in 0..pages {
        let round = if index % 8 == 0 { last } else { 1 };
        check(&mut worker, index, round);
    }
}
