//! A volume with a disk behind it, of which a host is replaced when the test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cenote_fabric::{Endpoint, Error, Incoming};
use cenote_pool::control::{Reply, Request as Message};
use cenote_volume::{Backing, Done, Health, Volume, VolumeConfig, Worker};

use super::backed_volume::{PAGE, SLAB, status};
use super::disk::TestDisk;
use super::guard::{Guard, Guarded};
use super::tardy::Tardy;
use super::{Cluster, Transport, page, wait_for, wait_for_health, wait_until};

/// How long hosts say that they will be away, in milliseconds: longer than the tests take on a busy machine.
pub const LONG: usize = 50_000;

/// A host that is replaced when the test says so.
#[derive(Clone, Default)]
pub struct Replaced {
    pub tardy: Tardy,
    /// It is to say that it will be back within so many milliseconds; 0: nothing.
    back_within_ms: Arc<AtomicUsize>,
    /// Its client has said that it waits.
    is_awaited: Arc<AtomicBool>,
    pub is_away: Arc<AtomicBool>,
}

impl Guard for Replaced {
    fn connect(&self) -> Result<(), Error> {
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    fn breaks(&self, _incoming: &Incoming) -> bool {
        self.is_away.load(Ordering::SeqCst)
    }

    fn endpoint(&self, inner: Box<dyn Endpoint>) -> Box<dyn Endpoint> {
        self.tardy.endpoint(inner)
    }

    fn receiving(&self, incoming: Incoming) -> Incoming {
        let Incoming::Message(bytes) = &incoming else {
            return incoming;
        };
        if !matches!(Reply::decode(bytes), Ok(Reply::Pong { .. })) {
            return incoming;
        }
        let back_within_ms = self.back_within_ms.swap(0, Ordering::SeqCst);
        if back_within_ms == 0 {
            return incoming;
        }
        let back_within_ms = u32::try_from(back_within_ms).unwrap();
        let mut message = Vec::new();
        Reply::HandsOver { back_within_ms }.encode(&mut message);
        Incoming::Message(message)
    }

    fn sending(&self, message: &[u8]) {
        if matches!(Message::decode(message), Ok(Message::Awaits)) {
            self.is_awaited.store(true, Ordering::SeqCst);
        }
    }
}

impl Replaced {
    /// The host says that it will be back in time, and is heard.
    pub fn say_it_leaves(&self, back_within_ms: usize) {
        self.is_awaited.store(false, Ordering::SeqCst);
        self.back_within_ms.store(back_within_ms, Ordering::SeqCst);
        let is_heard = || self.is_awaited.load(Ordering::SeqCst);
        wait_until(is_heard, || "the client does not await the host".into());
    }
}

/// A volume of one extent, its disk and its hosts, of which the first may be replaced.
pub struct Scene {
    pub volume: Volume,
    pub disk: TestDisk,
    /// Of the first host, ...
    pub guard: Replaced,
    /// ... and of the second, if there is one.
    pub beside: Beside,
    pub cluster: Cluster,
}

/// A host beside the one that is replaced, and what is asked of it.
#[derive(Clone, Default)]
pub struct Beside {
    pub tardy: Tardy,
    /// Slabs that it was told to keep, for there is nowhere to put them.
    pub declined: Arc<AtomicUsize>,
}

impl Guard for Beside {
    fn endpoint(&self, inner: Box<dyn Endpoint>) -> Box<dyn Endpoint> {
        self.tardy.endpoint(inner)
    }

    fn sending(&self, message: &[u8]) {
        if matches!(Message::decode(message), Ok(Message::Decline { .. })) {
            self.declined.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Scene {
    /// With the first pages written by the first worker, and on the disk.
    pub fn new(hosts: usize, scheme: &str) -> (Self, Worker) {
        Self::with(hosts, scheme, |_| ())
    }

    /// With other settings.
    pub fn with(hosts: usize, scheme: &str, change: impl FnOnce(&mut Backing)) -> (Self, Worker) {
        let cluster = Cluster::start(hosts, Transport::Tcp, 16 << 20, SLAB);
        Self::over(cluster, scheme, change)
    }

    /// Over these hosts, of which some may be away.
    pub fn over(
        cluster: Cluster,
        scheme: &str,
        change: impl FnOnce(&mut Backing),
    ) -> (Self, Worker) {
        let (disk, guard, beside) = <(TestDisk, Replaced, Beside)>::default();
        let address = |index: usize| cluster.configs.get(index).map(|host| host.address.clone());
        let connector = Guarded {
            inner: cluster.connector(),
            addresses: address(1).into_iter().collect(),
            guard: beside.clone(),
        };
        let connector = Guarded {
            inner: Arc::new(connector),
            addresses: address(0).into_iter().collect(),
            guard: guard.clone(),
        };
        let config = VolumeConfig {
            return_max: Duration::from_millis(LONG as u64),
            ..cluster.config(scheme, SLAB)
        };
        let mut backing = disk.backing();
        change(&mut backing);
        let volume = Volume::open_backed(config, backing, Arc::new(connector)).unwrap();
        let mut worker = volume.worker().unwrap();
        worker.write(0, &page(0, 0)).unwrap();
        wait_for(&volume, |status| status.mapped_bytes > 0);
        for index in 0..PAGES {
            worker.write(at(index), &page(index, 1)).unwrap();
        }
        wait_for(&volume, |status| {
            let backing = status.backing.unwrap();
            (backing.pending_bytes, backing.remote_bytes) == (0, at(PAGES))
        });
        let scene = Self {
            volume,
            disk,
            guard,
            beside,
            cluster,
        };
        (scene, worker)
    }

    /// The first host says that it will be back in time, and goes.
    pub fn send_away(&self, back_within_ms: usize) {
        self.guard.say_it_leaves(back_within_ms);
        self.guard.is_away.store(true, Ordering::SeqCst);
        wait_for(&self.volume, |status| !status.hosts[0].connected);
    }

    pub fn let_back(&self) {
        self.guard.is_away.store(false, Ordering::SeqCst);
        wait_for_health(&self.volume, Health::Healthy);
    }

    pub fn reads(&self) -> u64 {
        self.disk.moved().0
    }

    pub fn expect_kept(&self) {
        let status = status(&self.volume);
        assert_eq!(status.mapped_bytes, status.extent_bytes);
        let counters = status.counters;
        let moved = (counters.slabs_dropped, counters.slabs_rebuilt);
        assert_eq!(moved, (0, 0), "{counters:?}");
    }
}

/// Pages that are written.
pub const PAGES: u64 = 8;

pub fn at(index: u64) -> u64 {
    index * PAGE as u64
}

/// Polls until a request has ended.
pub fn end_of(worker: &mut Worker) -> Done {
    let mut done = Vec::new();
    wait_until(
        || {
            worker.poll(&mut done);
            !done.is_empty()
        },
        || "the request does not end".into(),
    );
    done.remove(0)
}

/// Polls for a while in which no request is to end.
pub fn poll_some(worker: &mut Worker, why: &str) {
    let mut done = Vec::new();
    for _ in 0..50 {
        worker.poll(&mut done);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(done.is_empty(), "{:?}: {why}", done[0].result);
}
