//! Extents that lose more hosts than they survive: what they held is an error, and they go on.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cenote_fabric::{Error, Incoming};
use cenote_volume::{
    Done, Health, HostState, IoError, Op, PAGE_BYTES, Request, Scheme, Volume, Worker,
};
use support::guard::Guard;
use support::{Cluster, Transport, wait_for};

const SLAB: u64 = 1 << 20;
const PAGE: u64 = PAGE_BYTES as u64;

fn page_of(value: u8) -> Vec<u8> {
    vec![value; PAGE_BYTES]
}

fn read(worker: &mut Worker, page: u64) -> Result<Vec<u8>, IoError> {
    let mut bytes = page_of(0xa5);
    worker.read(page * PAGE, &mut bytes).map(|()| bytes)
}

/// A cluster of as many hosts as a scheme has splits: nothing is rebuilt elsewhere.
fn cluster_of(scheme: &str) -> Cluster {
    let scheme: Scheme = scheme.parse().unwrap();
    Cluster::start(scheme.members(), Transport::Shm, 16 << 20, SLAB)
}

/// Starts every host again: what they held is gone.
fn lose(cluster: &mut Cluster, volume: &Volume) {
    let count = cluster.configs.len();
    let wait_for_all = |is_right: fn(&HostState) -> bool| {
        wait_for(volume, |status| status.hosts.iter().all(is_right));
    };
    (0..count).for_each(|host| cluster.stop(host));
    wait_for_all(|host| !host.connected);
    (0..count).for_each(|host| cluster.restart(host));
    wait_for_all(|host| host.connected);
    wait_for(volume, |status| status.health != Health::Lost);
}

#[test]
fn an_extent_that_held_nothing_when_it_was_lost_is_mapped_again() {
    for scheme in ["plain", "rs:2+1"] {
        let mut cluster = cluster_of(scheme);
        let volume = cluster.volume(scheme, 4 * SLAB);
        volume.map_all(|_, _| ()).unwrap();
        let extents = volume.status().unwrap().extents.len();
        lose(&mut cluster, &volume);
        // Before anybody writes to it: a program that swaps to itself waits for no host.
        wait_for(&volume, |status| {
            status.health == Health::Healthy && status.extents.len() == extents
        });
        let mut worker = volume.worker().unwrap();
        worker.write(0, &page_of(7)).unwrap();
        assert_eq!(read(&mut worker, 0), Ok(page_of(7)));
        assert_eq!(volume.status().unwrap().torn_pages, 0);
    }
}

#[test]
fn what_was_lost_is_an_error_until_it_is_written_whole_and_the_rest_goes_on() {
    for scheme in ["plain", "mirror:2", "rs:2+1"] {
        let mut cluster = cluster_of(scheme);
        let volume = cluster.volume(scheme, 4 * SLAB);
        let mut worker = volume.worker().unwrap();
        for page in 0..4 {
            worker.write(page * PAGE, &page_of(page as u8 + 1)).unwrap();
        }
        lose(&mut cluster, &volume);
        assert_eq!(volume.status().unwrap().torn_pages, 4);
        for page in 0..4 {
            assert_eq!(read(&mut worker, page), Err(IoError::Lost));
        }
        // Never written: zeros as before, and written in part.
        assert_eq!(read(&mut worker, 4), Ok(page_of(0)));
        worker.write(4 * PAGE, &[9; 512]).unwrap();
        // Written whole: mapped again. Its neighbours stay errors, beside slabs that hold zeros.
        worker.write(0, &page_of(7)).unwrap();
        assert_eq!(read(&mut worker, 0), Ok(page_of(7)));
        assert_eq!(read(&mut worker, 1), Err(IoError::Lost));
        assert_eq!(worker.write(PAGE + 512, &[9; 512]), Err(IoError::Lost));
        assert_eq!(read(&mut worker, 1), Err(IoError::Lost));
        worker.discard(2 * PAGE, PAGE).unwrap();
        assert_eq!(read(&mut worker, 2), Ok(page_of(0)));
        let status = volume.status().unwrap();
        assert_eq!((status.health, status.torn_pages), (Health::Healthy, 2));
    }
}

#[test]
fn what_was_lost_is_lost_to_the_next_owner_too() {
    let mut cluster = cluster_of("rs:2+1");
    let volume = cluster.kept_volume("rs:2+1", 4 * SLAB).unwrap();
    let mut worker = volume.worker().unwrap();
    for page in 0..3 {
        worker.write(page * PAGE, &page_of(1)).unwrap();
    }
    lose(&mut cluster, &volume);
    worker.write(0, &page_of(2)).unwrap();
    drop(worker);
    volume.detach();
    for _ in 0..2 {
        let volume = cluster.kept_volume("rs:2+1", 4 * SLAB).unwrap();
        let mut worker = volume.worker().unwrap();
        assert_eq!(read(&mut worker, 0), Ok(page_of(2)));
        for page in [1, 2] {
            assert_eq!(read(&mut worker, page), Err(IoError::Lost));
        }
        assert_eq!(read(&mut worker, 3), Ok(page_of(0)));
        drop(worker);
        volume.detach();
    }
    let volume = cluster.kept_volume("rs:2+1", 4 * SLAB).unwrap();
    let mut worker = volume.worker().unwrap();
    worker.discard(0, 4 * SLAB).unwrap();
    assert_eq!(read(&mut worker, 1), Ok(page_of(0)));
    worker.write(PAGE, &page_of(3)).unwrap();
    assert_eq!(read(&mut worker, 1), Ok(page_of(3)));
    assert_eq!(volume.status().unwrap().torn_pages, 0);
}

/// Silence is not death: a host that does not answer may have all of it.
#[test]
fn while_enough_slabs_may_come_back_nothing_is_given_up() {
    let mut cluster = Cluster::start(3, Transport::Shm, 16 << 20, SLAB);
    let volume = cluster.volume("plain", SLAB);
    let mut worker = volume.worker().unwrap();
    worker.write(0, &page_of(1)).unwrap();
    let name = volume.status().unwrap().extents[0].hosts[0]
        .clone()
        .unwrap();
    cluster.stop(name[1..].parse().unwrap());
    support::wait_for_health(&volume, Health::Lost);
    assert_eq!(read(&mut worker, 0), Err(IoError::Lost));
    assert_eq!(worker.write(0, &page_of(2)), Err(IoError::Lost));
    let status = volume.status().unwrap();
    assert_eq!((status.health, status.torn_pages), (Health::Lost, 0));
}

/// Has all hosts fall silent: connections break, and nobody answers when they are made again.
#[derive(Clone, Default)]
struct Silence(Arc<AtomicBool>);

impl Guard for Silence {
    fn connect(&self) -> Result<(), Error> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(Error::Timeout(Duration::from_secs(1))),
            false => Ok(()),
        }
    }

    fn breaks(&self, _incoming: &Incoming) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn requests_wait_for_hosts_that_are_silent() {
    let cluster = cluster_of("rs:2+1");
    let addresses = cluster.configs.iter().map(|host| host.address.clone());
    let guard = Silence::default();
    let volume = cluster.guarded_volume("rs:2+1", 8 * SLAB, addresses.collect(), guard.clone());
    let mut worker = volume.worker().unwrap();
    for page in 0..4 {
        worker.write(page * PAGE, &page_of(1)).unwrap();
    }
    assert!(volume.is_in_reach());
    guard.0.store(true, Ordering::SeqCst);
    wait_for(&volume, |status| {
        status.hosts.iter().all(|host| !host.connected)
    });
    assert!(!volume.is_in_reach());
    // What is there is read, and written in part and whole; and an extent is to be mapped.
    let ops = [
        (0, Op::Read(page_of(0))),
        (PAGE + 512, Op::Write(vec![2; 512])),
        (2 * PAGE, Op::Write(page_of(2))),
        (6 * SLAB, Op::Write(page_of(2))),
    ];
    for (tag, (offset, op)) in (0..).zip(ops) {
        worker.submit(Request { tag, offset, op }).unwrap();
    }
    let mut done: Vec<Done> = Vec::new();
    for _ in 0..500 {
        worker.poll(&mut done);
        let ended = done.iter().map(|done| (done.tag, done.result));
        assert_eq!(ended.collect::<Vec<_>>(), []);
        // Which the control thread answers when it has done all else.
        volume.status().unwrap();
    }
    guard.0.store(false, Ordering::SeqCst);
    wait_for(&volume, |_| {
        worker.poll(&mut done);
        done.len() == 4
    });
    for Done { tag, result, .. } in &done {
        assert_eq!(*result, Ok(()), "request {tag}");
    }
    assert_eq!(read(&mut worker, 2), Ok(page_of(2)));
    assert_eq!(read(&mut worker, 3), Ok(page_of(1)));
    assert_eq!(volume.status().unwrap().counters.requests_failed, 0);
    wait_for(&volume, |_| volume.is_in_reach());
}

/// Has the first attempts to connect time out.
#[derive(Clone, Default)]
struct Slow(Arc<AtomicUsize>);

impl Guard for Slow {
    fn connect(&self) -> Result<(), Error> {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0..6 => Err(Error::Timeout(Duration::from_secs(1))),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_volume_that_is_opened_waits_for_hosts_that_are_slow() {
    let cluster = cluster_of("rs:2+1");
    let addresses = cluster.configs.iter().map(|host| host.address.clone());
    let volume = cluster.guarded_volume("rs:2+1", SLAB, addresses.collect(), Slow::default());
    let mut worker = volume.worker().unwrap();
    worker.write(0, &page_of(1)).unwrap();
    assert_eq!(read(&mut worker, 0), Ok(page_of(1)));
}
