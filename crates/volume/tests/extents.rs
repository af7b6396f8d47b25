//! Extents that the volume's size does not fill.

mod support;

use cenote_volume::{Health, VolumeConfig};
use support::{Cluster, Transport, wait_for_health, wait_until};

const SLAB: u64 = 2 << 20;
const PAGE: usize = 4096;

#[test]
fn a_volume_smaller_than_its_extents_is_reported_rebuilt_and_reclaimed() {
    let mut cluster = Cluster::start(4, Transport::Shm, 32 << 20, SLAB);
    let size_bytes = 5 << 20;
    let config = VolumeConfig {
        name: "test".into(),
        id: 7,
        scheme: "rs:2+1".parse().unwrap(),
        size_bytes,
        size_bytes_max: size_bytes,
        hosts: cluster.configs.clone(),
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
    wait_until(
        || volume.status().unwrap().counters.slabs_rebuilt == 1,
        || format!("{:#?}", volume.status()),
    );
    let mut page = [0; PAGE];
    worker.read(last, &mut page).unwrap();
    assert_eq!(page, [7; PAGE]);
    worker.discard(0, size_bytes).unwrap();
    wait_until(
        || volume.status().unwrap().mapped_bytes == 0,
        || format!("{:#?}", volume.status()),
    );
}
