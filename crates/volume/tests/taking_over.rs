//! Taking a volume over: which hosts are needed for it, and how they are asked for what they have.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cenote_fabric::Incoming;
use cenote_pool::control::{Reply, Request as Message};
use cenote_volume::{Kept, PAGE_BYTES, Volume, VolumeError};
use support::guard::{Guard, Guarded};
use support::{Cluster, Transport, assert_pages, page};

const SLAB: u64 = 1 << 20;
const SIZE: u64 = 4 << 20;
const PAGE: u64 = PAGE_BYTES as u64;
const PAGES: u64 = SIZE / PAGE;

#[test]
fn hosts_that_are_left_out_by_mistake_do_not_count_as_lost() {
    let cluster = Cluster::start(6, Transport::Tcp, 32 << 20, SLAB);
    let volume = cluster.kept_volume("rs:4+2", SIZE).unwrap();
    let mut worker = volume.worker().unwrap();
    (0..PAGES).for_each(|index| worker.write(index * PAGE, &page(index, 1)).unwrap());
    drop(worker);
    volume.detach();
    let open = |left_out: usize, kept: Kept| {
        let mut config = cluster.config("rs:4+2", SIZE);
        config.hosts.drain(..left_out);
        Volume::open_kept(config, kept, cluster.connector())
    };
    for _ in 0..2 {
        match open(3, cluster.kept()) {
            Err(VolumeError::Unlisted { hosts }) => assert_eq!(hosts, "h00, h01, h02"),
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
    // All is as it was; and with as many as there need be, it is read.
    assert_pages(&cluster.kept_volume("rs:4+2", SIZE).unwrap(), PAGES, 1);
    assert_pages(&open(2, cluster.kept()).unwrap(), PAGES, 1);
    // Who gives it up needs none.
    open(5, cluster.kept().given_up()).unwrap().close();
}

/// Counts the slabs that a host is asked for and has not answered for.
#[derive(Clone, Default)]
struct Retaken {
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Guard for Retaken {
    fn sending(&self, message: &[u8]) {
        if matches!(Message::decode(message), Ok(Message::Retake { .. })) {
            let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
        }
    }

    fn receiving(&self, incoming: Incoming) -> Incoming {
        if let Incoming::Message(bytes) = &incoming
            && matches!(Reply::decode(bytes), Ok(Reply::Mapped { .. }))
        {
            self.under_way.fetch_sub(1, Ordering::SeqCst);
        }
        incoming
    }
}

/// A host's connection takes a mebibyte of requests, and many slabs are more: it was lost, again and again.
#[test]
fn a_host_is_asked_for_some_of_its_slabs_at_a_time() {
    const SMALL: u64 = 64 << 10;
    const COUNT: u64 = 600;
    let cluster = Cluster::start(1, Transport::Tcp, 64 << 20, SMALL);
    let size_bytes = COUNT * SMALL;
    let volume = cluster.kept_volume("plain", size_bytes).unwrap();
    let mut worker = volume.worker().unwrap();
    let write = |index| worker.write(index * SMALL, &page(index, 1)).unwrap();
    (0..COUNT).for_each(write);
    drop(worker);
    volume.detach();
    let guard = Retaken::default();
    let connector = Guarded {
        inner: cluster.connector(),
        addresses: vec![cluster.configs[0].address.clone()],
        guard: guard.clone(),
    };
    let config = cluster.config("plain", size_bytes);
    let volume = Volume::open_kept(config, cluster.kept(), Arc::new(connector)).unwrap();
    let most = guard.most.load(Ordering::SeqCst);
    assert!((1..=256).contains(&most), "{most} at a time");
    let mut worker = volume.worker().unwrap();
    for index in 0..COUNT {
        let mut bytes = vec![0; PAGE_BYTES];
        worker.read(index * SMALL, &mut bytes).unwrap();
        assert!(bytes == page(index, 1), "page {index}");
    }
    assert_eq!(volume.status().unwrap().torn_pages, 0);
}
