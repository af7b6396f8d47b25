//! A volume with a disk behind it, over real hosts.

use cenote_volume::{Backing, Op, Request, Volume, VolumeStatus, Worker};

use super::disk::TestDisk;
use super::{Cluster, Transport, page, wait_for};

pub const PAGE: usize = 4096;
pub const SLAB: u64 = 1 << 20;
pub const SIZE: u64 = 8 << 20;

/// Hosts, a disk that the test holds back, and a volume of both, plain if nothing else is said.
pub struct Backed {
    pub volume: Volume,
    pub disk: TestDisk,
    pub cluster: Cluster,
}

impl Backed {
    /// Mapped on its first writes.
    pub fn new(hosts: usize) -> Self {
        Self::with(hosts, |_| ())
    }

    /// With other settings.
    pub fn with(hosts: usize, change: impl FnOnce(&mut Backing)) -> Self {
        Self::of(hosts, "plain", change)
    }

    /// Of another scheme.
    pub fn of(hosts: usize, scheme: &str, change: impl FnOnce(&mut Backing)) -> Self {
        let cluster = Cluster::start(hosts, Transport::Shm, 16 << 20, SLAB);
        let disk = TestDisk::default();
        let mut backing = disk.backing();
        change(&mut backing);
        let volume = cluster.backed_volume(scheme, SIZE, backing);
        Self {
            volume,
            disk,
            cluster,
        }
    }

    /// Never mapped: everything is the disk's.
    pub fn without_slabs() -> Self {
        Self::with(1, |backing| backing.hot_slab = 1e9)
    }
}

pub fn status(volume: &Volume) -> VolumeStatus {
    volume.status().unwrap()
}

/// Has an extent mapped: by a first write.
pub fn map_first(volume: &Volume, worker: &mut Worker) {
    worker.write(0, &[1; PAGE]).unwrap();
    wait_for(volume, |status| status.mapped_bytes > 0);
}

/// Reads a page.
pub fn read(worker: &mut Worker, index: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    worker.read(index * PAGE as u64, &mut bytes).unwrap();
    bytes
}

/// Submits writes of the first pages, each with its index as tag.
pub fn submit_writes(worker: &mut Worker, count: u64, round: u64) {
    for tag in 0..count {
        let (offset, op) = (tag * PAGE as u64, Op::Write(page(tag, round)));
        worker.submit(Request { tag, offset, op }).unwrap();
    }
}
