//! A host whose machine has memory to spare: who is told, and who comes first.

mod support;

use std::time::Instant;

use cenote_fabric::{Incoming, machine_id};
use cenote_host::{Headroom, Share};
use cenote_pool::control::{HostStatus, Reply, Request};
use support::{Client, DEADLINE, Fabric, Host, Lab, SLAB_BYTES};

/// 16 slabs on a machine of 40, 10 of which are to stay free; the slack is a slab and a quarter.
fn host(lab: &Lab, used_slabs: u64) -> (Host, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("meminfo");
    let kib = SLAB_BYTES >> 10;
    let (total, free) = (40 * kib, (40 - used_slabs) * kib);
    std::fs::write(
        &file,
        format!("MemTotal: {total} kB\nMemAvailable: {free} kB\n"),
    )
    .unwrap();
    let mut config = lab.config("h", 16);
    config.headroom = Some(Headroom {
        meminfo: Some(file),
        ..Headroom::hydra()
    });
    assert_eq!(config.headroom.as_ref().unwrap().keep, Share::PerMille(250));
    (Host::start(config), folder)
}

/// What a client is told until its host's status is as wanted.
fn told_until(client: &mut Client, wanted: impl Fn(&HostStatus) -> bool) -> (HostStatus, Vec<u64>) {
    let deadline = Instant::now() + DEADLINE * 2;
    let mut told = Vec::new();
    client.send(&Request::Status);
    loop {
        assert!(Instant::now() < deadline, "the host stays as it is");
        let Incoming::Message(bytes) = client.incoming().unwrap() else {
            panic!("not a message");
        };
        match Reply::decode(&bytes).unwrap() {
            Reply::Reclaim { bytes } => told.push(bytes),
            Reply::Status(status) if wanted(&status) => return (*status, told),
            Reply::Status(_) => {
                client.rest();
                client.send(&Request::Status);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn here(machine: u128, slabs_away: u64) -> Request {
    Request::Here {
        machine,
        away_bytes: slabs_away * SLAB_BYTES,
    }
}

#[test]
fn clients_of_this_machine_are_told_and_come_before_slabs_for_others() {
    if machine_id() == 0 {
        return println!("skipped: this system does not say which machine it is");
    }
    let lab = Lab::new(Fabric::Tcp);
    let (host, _folder) = host(&lab, 10);
    let (mut local, mut far) = (lab.client(&host, 1), lab.client(&host, 2));
    let mut silent = lab.client(&host, 3);
    local.send(&here(machine_id(), 5));
    far.send(&here(machine_id() ^ 1, 5));
    let (offered, told) = told_until(&mut local, |s| {
        s.pressure.reclaim_bytes > 0 && s.uptime_s > 8
    });
    // 40 less 10 in use, 10 to stay free and the slack.
    let spare = 20 * SLAB_BYTES - SLAB_BYTES * 5 / 4;
    assert_eq!(offered.pressure.reclaim_bytes, spare);
    assert_eq!(offered.pressure.away_bytes, 5 * SLAB_BYTES);
    assert_eq!((offered.pressure.reclaims, offered.slabs.prepared), (1, 0));
    assert!(
        !told.is_empty() && told.iter().all(|&bytes| bytes == spare),
        "{told:?}"
    );
    for other in [&mut far, &mut silent] {
        assert_eq!(told_until(other, |_| true).1, [0_u64; 0]);
    }

    // All of it was reclaimed: now slabs are made for others, and what they take is not to spare.
    local.send(&here(machine_id(), 0));
    let (later, _) = told_until(&mut local, |status| status.slabs.prepared > 0);
    let prepared = u64::from(later.slabs.prepared);
    let (last, _) = told_until(&mut local, |s| s.pressure.reclaim_bytes < spare);
    assert_eq!(last.pressure.reclaim_bytes, spare - prepared * SLAB_BYTES);
}

#[test]
fn a_client_that_reclaims_nothing_does_not_keep_memory_from_others_for_ever() {
    if machine_id() == 0 {
        return println!("skipped: this system does not say which machine it is");
    }
    let lab = Lab::new(Fabric::Shm);
    let (host, _folder) = host(&lab, 10);
    let mut local = lab.client(&host, 1);
    local.send(&here(machine_id(), 5));
    let (seen, _) = told_until(&mut local, |status| status.slabs.prepared > 0);
    assert!(
        seen.pressure.away_bytes > 0 && seen.pressure.reclaim_bytes > 0,
        "{seen:?}"
    );
    assert!(seen.uptime_s > 10, "it was waited for: {seen:?}");
}

#[test]
fn nobody_is_told_of_memory_that_the_headroom_needs() {
    let lab = Lab::new(Fabric::Shm);
    // 12 are free: less than the headroom and twice the slack.
    let (host, _folder) = host(&lab, 28);
    let mut local = lab.client(&host, 1);
    local.send(&here(machine_id(), 5));
    let (seen, told) = told_until(&mut local, |status| status.uptime_s > 8);
    assert_eq!((seen.pressure.reclaims, told), (0, Vec::new()));
}
