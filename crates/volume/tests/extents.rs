//! Extents that are not whole: by the volume's size, or by a host that does not do its part.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cenote_fabric::{Error, Incoming, Rights, WindowDescriptor};
use cenote_volume::{Health, Placement, Protection, RETURN_MAX, Resilience, VolumeConfig};
use support::guard::Guard;
use support::{Cluster, Transport, wait_for, wait_for_health, wait_until};

const SLAB: u64 = 2 << 20;
const PAGE: usize = 4096;

#[test]
fn a_volume_smaller_than_its_extents_is_reported_rebuilt_and_reclaimed() {
    let mut cluster = Cluster::start(4, Transport::Shm, 32 << 20, SLAB);
    let size_bytes = 5 << 20;
    let config = VolumeConfig {
        name: "test".into(),
        id: 7,
        protection: Protection::None,
        resilience: Resilience::of("rs:2+1".parse().unwrap()),
        placement: Placement::over_all_hosts(1),
        size_bytes,
        size_bytes_max: size_bytes,
        hosts: cluster.configs.clone(),
        return_max: RETURN_MAX,
    };
    let volume = cenote_volume::Volume::open(config, cluster.connector()).unwrap();
    assert!(
        size_bytes % volume.extent_bytes() != 0,
        "the last extent is partly used"
    );
    let mut worker = volume.worker().unwrap();
    let last = size_bytes - PAGE as u64;
    worker.write(last, &[7; PAGE]).unwrap();
    assert_eq!(volume.status().unwrap().stored_bytes, PAGE as u64);
    let host = volume.status().unwrap().extents[0].hosts[0]
        .clone()
        .unwrap();
    cluster.stop(host[1..].parse().unwrap());
    wait_for_health(&volume, Health::Healthy);
    wait_for(&volume, |status| status.counters.slabs_rebuilt == 1);
    let mut page = [0; PAGE];
    worker.read(last, &mut page).unwrap();
    assert_eq!(page, [7; PAGE]);
    worker.discard(0, size_bytes).unwrap();
    wait_for(&volume, |status| status.mapped_bytes == 0);
}

#[test]
fn extents_mapped_ahead_stay_mapped_when_their_pages_are_discarded() {
    let cluster = Cluster::start(3, Transport::Shm, 32 << 20, SLAB);
    let ahead = cluster.volume("rs:2+1", 8 << 20);
    let mut worker = ahead.worker().unwrap();
    ahead.map_all(|_, _| ()).unwrap();
    worker.write(0, &[7; PAGE]).unwrap();
    worker.discard(0, 8 << 20).unwrap();
    // A second volume on the same hosts gives its memory back on the same beat: when its
    // extent is gone, the first volume's would be too.
    let config = VolumeConfig {
        name: "other".into(),
        id: 8,
        protection: Protection::None,
        resilience: Resilience::of("rs:2+1".parse().unwrap()),
        placement: Placement::over_all_hosts(1),
        size_bytes: 4 << 20,
        size_bytes_max: 4 << 20,
        hosts: cluster.configs.clone(),
        return_max: RETURN_MAX,
    };
    let other = cenote_volume::Volume::open(config, cluster.connector()).unwrap();
    for _ in 0..2 {
        other.worker().unwrap().write(0, &[1; PAGE]).unwrap();
        other.worker().unwrap().discard(0, 4 << 20).unwrap();
        wait_until(
            || other.status().unwrap().mapped_bytes == 0,
            || format!("{:#?}", other.status()),
        );
    }
    assert_eq!(ahead.status().unwrap().mapped_bytes, 8 << 20);
}

/// Refuses every window, as a host does that knows it no longer; and how many it refused.
#[derive(Clone, Default)]
struct Refusing(Arc<AtomicUsize>);

impl Guard for Refusing {
    fn receiving(&self, incoming: Incoming) -> Incoming {
        match incoming {
            Incoming::Attached(descriptor, _) => {
                self.0.fetch_add(1, Ordering::Relaxed);
                let refused = WindowDescriptor {
                    len_bytes: 0,
                    rights: Rights(0),
                    ..descriptor
                };
                Incoming::Attached(refused, Err(Error::StaleWindow))
            }
            other => other,
        }
    }
}

#[test]
fn a_slab_that_cannot_be_attached_is_replaced_at_once() {
    let cluster = Cluster::start(4, Transport::Shm, 32 << 20, SLAB);
    let refusing = cluster.configs[0].clone();
    let guard = Refusing::default();
    let addresses = vec![refusing.address];
    let volume = cluster.guarded_volume("rs:2+1", 32 << 20, addresses, guard.clone());
    volume.map_all(|_, _| ()).unwrap();
    // None was tried again: by each worker once, in each of the extents at most.
    let refused = guard.0.load(Ordering::Relaxed);
    assert!((1..=8).contains(&refused), "{refused}");
    let status = volume.status().unwrap();
    assert_eq!(status.health, Health::Healthy);
    let mut hosts = status.extents.iter().flat_map(|extent| &extent.hosts);
    assert!(hosts.all(|host| host.as_ref() != Some(&refusing.name)));
}
