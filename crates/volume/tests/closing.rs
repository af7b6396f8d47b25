//! What a volume gives back when it is closed while slabs are on their way to it.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use cenote_pool::control::Request;
use cenote_volume::{Volume, VolumeError};
use support::guard::Guard;
use support::{Cluster, Transport, wait_until};

const SLAB: u64 = 2 << 20;
const SIZE: u64 = 16 << 20;

/// Every byte of the hosts: the next volume can be mapped only when all of it is free.
fn cluster() -> Cluster {
    Cluster::start(3, Transport::Shm, 8 << 20, SLAB)
}

fn begin_mapping<G: Guard>(cluster: &Cluster, guard: &G) -> (Arc<Volume>, Mapping) {
    let hosts = cluster.configs.iter();
    let addresses = hosts.map(|host| host.address.clone()).collect();
    let volume = Arc::new(cluster.guarded_volume("rs:2+1", SIZE, addresses, guard.clone()));
    let mapping = std::thread::spawn({
        let volume = Arc::clone(&volume);
        move || volume.map_all(|_, _| ())
    });
    (volume, mapping)
}

type Mapping = JoinHandle<Result<(), VolumeError>>;

fn check_all_is_free(cluster: &Cluster) {
    cluster
        .volume("rs:2+1", SIZE)
        .map_all(|_, _| ())
        .expect("what was on its way is free again");
}

/// Swallows requests to attach windows.
#[derive(Clone, Default)]
struct Unattached(Arc<AtomicUsize>);

impl Guard for Unattached {
    fn attaches(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
}

#[test]
fn slabs_that_were_granted_and_not_attached_go_back() {
    let cluster = cluster();
    let guard = Unattached::default();
    let (volume, mapping) = begin_mapping(&cluster, &guard);
    let attaching = || guard.0.load(Ordering::Relaxed);
    wait_until(|| attaching() >= 3, || format!("{} attaches", attaching()));

    volume.close();

    check_all_is_free(&cluster);
    drop(mapping); // It waits a minute for a volume that stands still.
}

/// Holds back all answers from the first request for a slab until told.
#[derive(Clone, Default)]
struct Unanswered {
    asked: Arc<AtomicUsize>,
    released: Arc<AtomicBool>,
}

impl Guard for Unanswered {
    fn sending(&self, message: &[u8]) {
        if matches!(Request::decode(message), Ok(Request::Map { .. })) {
            self.asked.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn receives(&self) -> bool {
        self.asked.load(Ordering::Relaxed) == 0 || self.released.load(Ordering::Relaxed)
    }
}

#[test]
fn slabs_that_were_asked_for_and_not_granted_go_back() {
    let cluster = cluster();
    let guard = Unanswered::default();
    let (volume, mapping) = begin_mapping(&cluster, &guard);
    let asked = || guard.asked.load(Ordering::Relaxed);
    wait_until(|| asked() >= 3, || format!("{} asked", asked()));

    let closing = std::thread::spawn({
        let volume = Arc::clone(&volume);
        move || volume.close()
    });
    guard.released.store(true, Ordering::Relaxed);
    closing.join().unwrap();

    check_all_is_free(&cluster);
    drop(mapping);
}
