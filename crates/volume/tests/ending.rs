//! What becomes of writes that their worker cannot end, and of extents that are emptied, while a host is on its
//! way back.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_fabric::{Endpoint, Incoming};
use cenote_pool::control::{Reply, Request as Message};
use cenote_volume::{
    Done, IoError, Mode, Op, PAGE_BYTES, Request, Resilience, Volume, VolumeConfig, Worker,
};
use support::guard::{Guard, Guarded};
use support::tardy::Tardy;
use support::{Cluster, Transport, page, wait_for, wait_until};

const SLAB: u64 = 1 << 20;

/// A host that holds WRITEs back, and says when it is told that another process takes its place.
#[derive(Clone, Default)]
struct Replaced {
    tardy: Tardy,
    says_so: Arc<AtomicBool>,
    was_heard: Arc<AtomicBool>,
}

impl Guard for Replaced {
    fn endpoint(&self, inner: Box<dyn Endpoint>) -> Box<dyn Endpoint> {
        self.tardy.endpoint(inner)
    }

    fn receiving(&self, incoming: Incoming) -> Incoming {
        let Incoming::Message(bytes) = &incoming else {
            return incoming;
        };
        let is_pong = matches!(Reply::decode(bytes), Ok(Reply::Pong { .. }));
        match is_pong && self.says_so.swap(false, Ordering::SeqCst) {
            true => {
                let (back_within_ms, mut message) = (3000, Vec::new());
                Reply::HandsOver { back_within_ms }.encode(&mut message);
                Incoming::Message(message)
            }
            false => incoming,
        }
    }

    fn sending(&self, message: &[u8]) {
        if matches!(Message::decode(message), Ok(Message::Awaits)) {
            self.was_heard.store(true, Ordering::SeqCst);
        }
    }
}

/// A volume of three hosts, of which the second is guarded, that outlives its owner and acknowledges early.
fn open(cluster: &Cluster, guard: &Replaced) -> Volume {
    let connector = Guarded {
        inner: cluster.connector(),
        addresses: vec![cluster.configs[1].address.clone()],
        guard: guard.clone(),
    };
    Volume::open_kept(config(cluster), cluster.kept(), Arc::new(connector)).unwrap()
}

fn config(cluster: &Cluster) -> VolumeConfig {
    let scheme = "rs:2+1".parse().unwrap();
    VolumeConfig {
        resilience: Resilience::new(scheme, Mode::EcOnly, 1).unwrap(),
        ..cluster.config("rs:2+1", 4 * SLAB)
    }
}

/// Writes the first page, and writes it again, which the second host does not take: acknowledged all the same.
fn write_early(worker: &mut Worker, guard: &Replaced) {
    worker.write(0, &page(0, 1)).unwrap();
    guard.tardy.holds_writes.store(true, Ordering::SeqCst);
    let op = Op::Write(page(0, 2));
    let (tag, offset) = (0, 0);
    worker.submit(Request { tag, offset, op }).unwrap();
    let mut done = Vec::new();
    wait_until(
        || {
            worker.poll(&mut done);
            !done.is_empty() && guard.tardy.held_writes.load(Ordering::SeqCst) > 0
        },
        || "the write is not acknowledged".into(),
    );
    assert_eq!(done[0].result, Ok(()));
}

/// Has the second host end as one that is replaced.
fn replace_host(cluster: &mut Cluster, volume: &Volume, guard: &Replaced) {
    guard.says_so.store(true, Ordering::SeqCst);
    let heard = || guard.was_heard.load(Ordering::SeqCst);
    wait_until(heard, || "the client does not await the host".into());
    cluster.stop(1);
    wait_for(volume, |status| !status.hosts[1].connected);
    // What was held back fails.
    guard.tardy.holds_writes.store(false, Ordering::SeqCst);
}

/// What the next owner reads of the first page.
fn read_as_next_owner(cluster: &Cluster) -> Result<Vec<u8>, IoError> {
    let volume = Volume::open_kept(config(cluster), cluster.kept(), cluster.connector()).unwrap();
    assert_eq!(volume.status().unwrap().torn_pages, 0);
    let mut bytes = vec![0; PAGE_BYTES];
    let mut worker = volume.worker().unwrap();
    worker.read(0, &mut bytes).map(|()| bytes)
}

#[test]
fn a_write_that_is_held_is_ended_before_its_worker_is() {
    let mut cluster = Cluster::start(3, Transport::Tcp, 16 << 20, SLAB);
    let guard = Replaced::default();
    let volume = open(&cluster, &guard);
    let mut worker = volume.worker().unwrap();
    write_early(&mut worker, &guard);
    replace_host(&mut cluster, &volume, &guard);
    drop(worker);
    volume.detach();
    assert!(read_as_next_owner(&cluster) == Ok(page(0, 2)));
}

#[test]
fn a_write_that_its_worker_cannot_end_is_left_to_the_next_owner() {
    let cluster = Cluster::start(3, Transport::Tcp, 16 << 20, SLAB);
    let guard = Replaced::default();
    let volume = open(&cluster, &guard);
    let mut worker = volume.worker().unwrap();
    write_early(&mut worker, &guard);
    volume.announce_end();
    drop(worker);
    assert!(volume.worker().is_err(), "its places are taken");
    volume.detach();
    assert!(read_as_next_owner(&cluster) == Ok(page(0, 2)));
}

#[test]
fn a_discard_behind_a_write_that_does_not_end_is_refused_when_the_volume_ends() {
    let cluster = Cluster::start(3, Transport::Tcp, 16 << 20, SLAB);
    let guard = Replaced::default();
    let volume = open(&cluster, &guard);
    let mut worker = volume.worker().unwrap();
    write_early(&mut worker, &guard);
    let len_bytes = SLAB;
    let op = Op::Discard { len_bytes };
    let (tag, offset) = (1, 0);
    worker.submit(Request { tag, offset, op }).unwrap();
    let mut done: Vec<Done> = Vec::new();
    worker.poll(&mut done);
    assert_eq!(done.len(), 0, "the page is claimed");
    volume.detach();
    wait_until(
        || {
            worker.poll(&mut done);
            !done.is_empty()
        },
        || "the discard waits for ever".into(),
    );
    assert_eq!(done[0].result, Err(IoError::Closed));
}

#[test]
fn an_extent_that_is_emptied_while_a_host_is_on_its_way_back_is_given_back() {
    let mut cluster = Cluster::start(3, Transport::Tcp, 16 << 20, SLAB);
    let guard = Replaced::default();
    let volume = open(&cluster, &guard);
    let mut worker = volume.worker().unwrap();
    worker.write(0, &page(0, 1)).unwrap();
    replace_host(&mut cluster, &volume, &guard);
    worker.discard(0, 4 * SLAB).unwrap();
    wait_for(&volume, |status| status.extents.is_empty());
}
