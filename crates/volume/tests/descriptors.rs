//! A client that has no descriptor left for a worker. A process of its own: the limit is the
//! process's.

mod support;

use std::os::fd::AsRawFd;

use cenote_volume::{Health, VolumeError};
use support::{Cluster, Transport};

const SLAB: u64 = 1 << 20;
const PAGE: usize = 4096;

/// Allows descriptors below a number only; the limit before.
fn limit(below: u64) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let before = std::mem::replace(&mut limit.rlim_cur, below);
    // SAFETY: as above.
    let is_set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!((is_known, is_set), (0, 0));
    before
}

#[test]
fn a_worker_for_which_no_descriptor_is_left_costs_no_host() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let cluster = Cluster::start(3, transport, 32 << 20, SLAB);
        let volume = cluster.volume("rs:2+1", 16 << 20);
        let mut first = volume.worker().unwrap();
        first.write(0, &[1; PAGE]).unwrap();
        let free = std::fs::File::open("/").unwrap();
        let before = limit(u64::try_from(free.as_raw_fd()).unwrap());
        drop(free);
        let refused = volume.worker();
        limit(before);
        assert!(matches!(refused, Err(VolumeError::Os { .. })), "no error");
        let status = volume.status().unwrap();
        assert_eq!(status.health, Health::Healthy, "a slab was dropped");
        assert!(status.hosts.iter().all(|host| host.connected));
        let mut second = volume.worker().unwrap();
        second.write(0, &[2; PAGE]).unwrap();
        assert_eq!(volume.status().unwrap().health, Health::Healthy);
    }
}
