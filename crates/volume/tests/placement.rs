//! Stripes stay inside their group: as they are mapped, when hosts go and come, and when a group
//! has no host left. Hosts are real daemons on threads. Paper: \[hydra22\] 5; decision 21.

mod support;

use std::collections::BTreeSet;

use cenote_volume::{Health, Placement, Volume, VolumeConfig};
use support::{Cluster, Transport, page, wait_for_health, wait_until};

const SLAB_BYTES: u64 = 64 << 10;
const SCHEME: &str = "rs:2+1";
/// Bytes of an extent of rs:2+1.
const EXTENT_BYTES: u64 = 2 * SLAB_BYTES;

/// Hosts h00 to h03, h04 to h07, ... are groups of 2+1+1.
fn group_of(host: usize) -> usize {
    host / 4
}

fn config(cluster: &Cluster, extents: u64) -> VolumeConfig {
    VolumeConfig {
        placement: Placement::CodingSets { spare: 1 },
        ..cluster.config(SCHEME, extents * EXTENT_BYTES)
    }
}

fn open(cluster: &Cluster, extents: u64) -> Volume {
    Volume::open(config(cluster, extents), cluster.connector()).unwrap()
}

/// Writes the first page of each extent.
fn fill(volume: &Volume, extents: std::ops::Range<u64>) {
    let mut worker = volume.worker().unwrap();
    for extent in extents {
        worker
            .write(extent * EXTENT_BYTES, &page(extent, 1))
            .unwrap();
    }
}

fn check(volume: &Volume, extents: u64) {
    let mut worker = volume.worker().unwrap();
    let mut buffer = vec![0; 4096];
    for extent in 0..extents {
        worker.read(extent * EXTENT_BYTES, &mut buffer).unwrap();
        assert_eq!(buffer, page(extent, 1), "extent {extent}");
    }
}

/// The hosts of each mapped extent.
fn stripes(volume: &Volume) -> Vec<BTreeSet<usize>> {
    let number = |name: &String| name[1..].parse::<usize>().unwrap();
    let extents = volume.status().unwrap().extents;
    let hosts =
        |extent: &cenote_volume::ExtentStatus| extent.hosts.iter().flatten().map(number).collect();
    extents.iter().map(hosts).collect()
}

fn groups(stripe: &BTreeSet<usize>) -> BTreeSet<usize> {
    stripe.iter().map(|&host| group_of(host)).collect()
}

#[track_caller]
fn assert_inside(stripes: &[BTreeSet<usize>]) {
    for stripe in stripes {
        assert_eq!((stripe.len(), groups(stripe).len()), (3, 1), "{stripes:?}");
    }
}

#[test]
fn stripes_are_mapped_inside_groups_that_share_the_load() {
    let cluster = Cluster::start(12, Transport::Shm, 16 * SLAB_BYTES, SLAB_BYTES);
    let volume = open(&cluster, 24);
    fill(&volume, 0..24);
    let stripes = stripes(&volume);
    assert_eq!(stripes.len(), 24);
    assert_inside(&stripes);
    // Two draws of three groups: none is left out, and in a group no host has two slabs more.
    for group in 0..3 {
        let load = |host: usize| {
            stripes
                .iter()
                .filter(|stripe| stripe.contains(&host))
                .count()
        };
        let loads: Vec<usize> = (group * 4..group * 4 + 4).map(load).collect();
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(*least > 0 && most - least <= 1, "{loads:?}");
    }
    check(&volume, 24);
    volume.close();
}

#[test]
fn a_lost_member_is_rebuilt_in_its_group_until_that_is_used_up() {
    let mut cluster = Cluster::start(10, Transport::Shm, 32 * SLAB_BYTES, SLAB_BYTES);
    let volume = open(&cluster, 12);
    fill(&volume, 0..12);
    assert_inside(&stripes(&volume));
    // The group has one host to spare.
    cluster.stop(1);
    wait_until(
        || stripes(&volume).iter().all(|stripe| !stripe.contains(&1)),
        || format!("{:?}", stripes(&volume)),
    );
    wait_for_health(&volume, Health::Healthy);
    assert_inside(&stripes(&volume));
    check(&volume, 12);
    // And now none: h08 and h09 are of no group, and all of its stripes take the same one of them.
    cluster.stop(2);
    wait_until(
        || stripes(&volume).iter().all(|stripe| !stripe.contains(&2)),
        || format!("{:?}", stripes(&volume)),
    );
    wait_for_health(&volume, Health::Healthy);
    let after = stripes(&volume);
    let (first, second): (Vec<_>, Vec<_>) = after
        .iter()
        .partition(|stripe| stripe.contains(&0) || stripe.contains(&3));
    assert!(!first.is_empty() && !second.is_empty(), "{after:?}");
    let adopted: BTreeSet<usize> = first
        .iter()
        .flat_map(|stripe| stripe.iter().copied().filter(|&host| group_of(host) != 0))
        .collect();
    assert_eq!(adopted.len(), 1, "{after:?}");
    assert!(adopted.first() >= Some(&8), "{after:?}");
    for stripe in first {
        assert!(stripe.contains(&0) && stripe.contains(&3), "{after:?}");
    }
    for stripe in second {
        assert_eq!((stripe.len(), groups(stripe).len()), (3, 1), "{after:?}");
    }
    check(&volume, 12);
    volume.close();
}

#[test]
fn new_stripes_avoid_a_group_with_too_few_hosts_until_they_are_back() {
    let mut cluster = Cluster::start(8, Transport::Shm, 32 * SLAB_BYTES, SLAB_BYTES);
    cluster.stop(4);
    cluster.stop(5);
    let volume = open(&cluster, 16);
    fill(&volume, 0..6);
    let before = stripes(&volume);
    assert!(
        before.iter().all(|stripe| groups(stripe) == [0].into()),
        "{before:?}"
    );
    cluster.restart(4);
    cluster.restart(5);
    wait_until(
        || {
            volume
                .status()
                .unwrap()
                .hosts
                .iter()
                .all(|host| host.connected)
        },
        || format!("{:?}", volume.status().unwrap().hosts),
    );
    fill(&volume, 6..16);
    let after = stripes(&volume);
    assert_inside(&after);
    assert_eq!(after[..6], before, "slabs that were placed stay");
    let joined = after.iter().filter(|stripe| groups(stripe) == [1].into());
    assert!(
        joined.count() >= 4,
        "the empty group is the less loaded: {after:?}"
    );
    check(&volume, 16);
    volume.close();
}

#[test]
fn where_no_group_is_whole_a_stripe_has_all_its_members_nevertheless() {
    let mut cluster = Cluster::start(8, Transport::Shm, 32 * SLAB_BYTES, SLAB_BYTES);
    for host in [0, 1, 4, 5] {
        cluster.stop(host);
    }
    let volume = open(&cluster, 4);
    fill(&volume, 0..4);
    for stripe in stripes(&volume) {
        assert_eq!(stripe.len(), 3, "{stripe:?}");
        // Two of one group, and one that it adopted.
        assert_eq!(groups(&stripe).len(), 2, "{stripe:?}");
    }
    assert_eq!(volume.status().unwrap().health, Health::Healthy);
    check(&volume, 4);
    volume.close();
}

#[test]
fn the_next_owner_knows_a_host_that_joined_and_none_that_retired() {
    let mut cluster = Cluster::start(12, Transport::Shm, 32 * SLAB_BYTES, SLAB_BYTES);
    let all = cluster.configs.clone();
    cluster.configs.truncate(8);
    let volume = Volume::open_kept(config(&cluster, 24), cluster.kept(), cluster.connector());
    let volume = volume.unwrap();
    fill(&volume, 0..8);
    let before = stripes(&volume);
    assert_inside(&before);
    volume.detach();
    drop(volume);
    cluster.configs = all;
    cluster.configs[0].retired = true;
    cluster.configs[1].retired = true;
    let volume = Volume::open_kept(config(&cluster, 24), cluster.kept(), cluster.connector());
    let volume = volume.unwrap();
    wait_for_health(&volume, Health::Healthy);
    fill(&volume, 8..24);
    let after = stripes(&volume);
    assert_eq!(after[..8], before, "slabs that were placed stay");
    assert_inside(&after);
    // With two of four hosts left the first group takes no more, and the third is there.
    let new: BTreeSet<usize> = after[8..].iter().flat_map(groups).collect();
    assert_eq!(new, [1, 2].into(), "{after:?}");
    check(&volume, 24);
    volume.close();
}

#[test]
fn a_power_domain_has_no_more_of_a_stripe_than_it_can_lose() {
    for placement in ["least-loaded", "coding-sets:1", "random", "two-choices"] {
        let mut cluster = Cluster::start(8, Transport::Shm, 32 * SLAB_BYTES, SLAB_BYTES);
        // Five hosts on one feed, and three others, each on its own.
        for (index, host) in cluster.configs.iter_mut().enumerate() {
            let feed = if index < 5 { 0 } else { index };
            host.power = Some(format!("feed-{feed}"));
        }
        let config = VolumeConfig {
            placement: placement.parse().unwrap(),
            ..config(&cluster, 8)
        };
        let volume = Volume::open(config, cluster.connector()).unwrap();
        fill(&volume, 0..8);
        for stripe in stripes(&volume) {
            let fed = stripe.iter().filter(|&&host| host < 5).count();
            assert!(stripe.len() == 3 && fed <= 1, "{placement}: {stripe:?}");
        }
        volume.close();
    }
}
