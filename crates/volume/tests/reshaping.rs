//! Mode, delta and the number of parities change while a volume is in use, and its owner ends in the
//! middle of it: nothing that was acknowledged is lost, and what was promised last holds.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_volume::{
    Health, IoError, Mode, Op, PAGE_BYTES, Request, Volume, VolumeConfig, VolumeError, Worker,
};
use support::guard::Guarded;
use support::tardy::Tardy;
use support::{
    Cluster, Random, Transport, assert_pages, in_mode, page, usual, wait_changed, wait_for,
    wait_for_health, wait_until,
};

const SLAB: u64 = 1 << 20;
const PAGE: u64 = PAGE_BYTES as u64;
const PAGES: u64 = 2048;
const SIZE: u64 = PAGES * PAGE;

fn write_all(worker: &mut Worker, round: u64) {
    for index in 0..PAGES {
        worker.write(index * PAGE, &page(index, round)).unwrap();
    }
}

/// Slabs of each extent.
fn widths(volume: &Volume) -> Vec<usize> {
    let extents = volume.status().unwrap().extents;
    extents.iter().map(|extent| extent.hosts.len()).collect()
}

#[test]
fn extents_survive_as_many_losses_as_they_were_given_parities() {
    for transport in [Transport::Shm, Transport::Tcp] {
        for (from, to, losses) in [
            ("rs:4+1", "rs:4+3", 3),
            ("rs:4+3", "rs:4+1", 1),
            ("mirror:2", "mirror:4", 3),
            ("plain", "mirror:2", 1),
            ("mirror:3", "plain", 0),
        ] {
            let mut cluster = Cluster::start(8, transport, 64 << 20, SLAB);
            let volume = cluster.volume(from, SIZE);
            write_all(&mut volume.worker().unwrap(), 1);
            let lent = volume.status().unwrap().lent_bytes;
            volume.set_resilience(usual(to)).unwrap();
            let status = volume.status().unwrap();
            assert_eq!(status.scheme, to);
            // It may be over by now.
            assert!(status.change.is_none_or(|change| change.from == from));
            wait_changed(&volume);
            let width = usual(to).scheme().members();
            assert!(widths(&volume).iter().all(|&splits| splits == width));
            let status = volume.status().unwrap();
            assert_eq!(status.health, Health::Healthy);
            assert_eq!(
                status.lent_bytes > lent,
                width > usual(from).scheme().members()
            );
            assert_pages(&volume, PAGES, 1);
            for host in 0..losses {
                cluster.stop(host);
            }
            assert_pages(&volume, PAGES, 1);
        }
    }
}

/// Others write and read all the time; each page's newest acknowledged version is what is read.
#[test]
fn nobody_who_reads_or_writes_meanwhile_notices() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let mut cluster = Cluster::start(10, transport, 64 << 20, SLAB);
        let volume = Arc::new(cluster.volume("rs:4+2", SIZE));
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..2)
            .map(|part| {
                let (volume, stop) = (Arc::clone(&volume), Arc::clone(&stop));
                std::thread::spawn(move || write_and_read(&volume, part, &stop))
            })
            .collect();
        let changes = [
            in_mode("rs:4+4", Mode::Correction, 1),
            in_mode("rs:4+2", Mode::EcOnly, 0),
            in_mode("rs:4+3", Mode::FailureRecovery, 2),
            in_mode("rs:4+1", Mode::Detection, 1),
            in_mode("rs:4+2", Mode::FailureRecovery, 0),
        ];
        for change in changes {
            volume.set_resilience(change).unwrap();
            wait_changed(&volume);
            assert_eq!(volume.resilience(), change);
        }
        // Before the one has ended the next begins.
        for change in changes {
            volume.set_resilience(change).unwrap();
        }
        wait_changed(&volume);
        stop.store(true, Ordering::Release);
        let models: Vec<_> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        wait_for_health(&volume, Health::Healthy);
        cluster.stop(0);
        cluster.stop(1);
        let mut worker = volume.worker().unwrap();
        for (index, round) in models.into_iter().flatten() {
            let mut bytes = vec![0; PAGE_BYTES];
            worker.read(index * PAGE, &mut bytes).unwrap();
            assert!(bytes == page(index, round), "page {index} of round {round}");
        }
    }
}

/// Writes pages of its own and reads them back; what each holds in the end.
fn write_and_read(volume: &Volume, part: u64, stop: &AtomicBool) -> Vec<(u64, u64)> {
    let mut worker = volume.worker().unwrap();
    let mut random = Random(part);
    let mut rounds = vec![0; PAGES as usize / 2];
    let mut bytes = vec![0; PAGE_BYTES];
    while !stop.load(Ordering::Acquire) {
        let own = random.below(PAGES / 2);
        let (index, round) = (own * 2 + part, &mut rounds[own as usize]);
        *round += 1;
        worker.write(index * PAGE, &page(index, *round)).unwrap();
        let own = random.below(PAGES / 2);
        let (index, round) = (own * 2 + part, rounds[own as usize]);
        worker.read(index * PAGE, &mut bytes).unwrap();
        assert!(round == 0 || bytes == page(index, round), "page {index}");
    }
    let pages = rounds.into_iter().enumerate();
    pages
        .filter(|&(_, round)| round > 0)
        .map(|(own, round)| (own as u64 * 2 + part, round))
        .collect()
}

#[test]
fn the_next_owner_goes_on_with_a_change_or_goes_back() {
    for (from, to) in [
        ("rs:4+1", "rs:4+3"),
        ("rs:4+3", "rs:4+1"),
        ("mirror:2", "mirror:3"),
    ] {
        for back in [false, true] {
            let mut cluster = Cluster::start(8, Transport::Tcp, 64 << 20, SLAB);
            let volume = cluster.kept_volume(from, SIZE).unwrap();
            write_all(&mut volume.worker().unwrap(), 1);
            // A slab takes a quarter of a minute: the owner ends in the middle.
            volume.pace_repairs(64 << 10, true);
            volume.set_resilience(usual(to)).unwrap();
            let mut worker = volume.worker().unwrap();
            write_all(&mut worker, 2);
            let grows = usual(to).scheme().r() > usual(from).scheme().r();
            assert!(!grows || volume.status().unwrap().change.is_some());
            worker.abandon();
            volume.detach();
            let scheme = if back { from } else { to };
            let volume = cluster.kept_volume(scheme, SIZE).unwrap();
            wait_changed(&volume);
            wait_for_health(&volume, Health::Healthy);
            let width = usual(scheme).scheme().members();
            assert!(widths(&volume).iter().all(|&splits| splits == width));
            assert_pages(&volume, PAGES, 2);
            for host in 0..usual(scheme).scheme().r() {
                cluster.stop(host);
            }
            assert_pages(&volume, PAGES, 2);
        }
    }
}

/// A write that was acknowledged before all its splits had landed is still the old mode's; once the
/// change has ended, no acknowledged page is any more where a host may yet be missing it.
#[test]
fn a_change_of_mode_ends_when_what_the_old_one_acknowledged_has_landed() {
    let cluster = Cluster::start(6, Transport::Tcp, 16 << 20, SLAB);
    let tardy = Tardy::default();
    let connector = Guarded {
        inner: cluster.connector(),
        addresses: vec![cluster.configs[0].address.clone()],
        guard: tardy.clone(),
    };
    let config = VolumeConfig {
        resilience: in_mode("rs:4+2", Mode::EcOnly, 0),
        ..cluster.config("rs:4+2", SIZE)
    };
    let volume = Volume::open(config, Arc::new(connector)).unwrap();
    let mut worker = volume.worker().unwrap();
    worker.write(0, &page(0, 0)).unwrap();
    worker.write(PAGE, &page(1, 0)).unwrap();
    tardy.holds_writes.store(true, Ordering::Release);
    let mut done = Vec::new();
    let submit = |worker: &mut Worker, index: u64| {
        let op = Op::Write(page(index, 1));
        let request = Request {
            tag: index,
            offset: index * PAGE,
            op,
        };
        assert!(worker.submit(request).is_ok());
    };
    submit(&mut worker, 0);
    wait_until(
        || {
            worker.poll(&mut done);
            !done.is_empty()
        },
        || "not acknowledged early".into(),
    );
    volume
        .set_resilience(in_mode("rs:4+2", Mode::FailureRecovery, 0))
        .unwrap();
    assert_eq!(volume.status().unwrap().mode, "failure-recovery");
    // It is not over, and what begins now waits for every host.
    submit(&mut worker, 1);
    for _ in 0..2_000 {
        worker.poll(&mut done);
        std::thread::yield_now();
    }
    assert_eq!(done.len(), 1, "acknowledged without a host");
    assert!(volume.status().unwrap().change.is_some());
    tardy.holds_writes.store(false, Ordering::Release);
    wait_for(&volume, |status| {
        worker.poll(&mut done);
        done.len() == 2 && status.change.is_none()
    });
    let mut bytes = vec![0; PAGE_BYTES];
    for index in 0..2 {
        worker.read(index * PAGE, &mut bytes).unwrap();
        assert!(bytes == page(index, 1));
    }
}

#[test]
fn a_cluster_that_has_become_too_small_for_a_scheme_is_whole_with_fewer_parities() {
    let mut cluster = Cluster::start(7, Transport::Shm, 64 << 20, SLAB);
    let volume = cluster.volume("rs:4+3", SIZE);
    write_all(&mut volume.worker().unwrap(), 1);
    cluster.stop(2);
    wait_for_health(&volume, Health::Degraded);
    volume.set_resilience(usual("rs:4+2")).unwrap();
    wait_for_health(&volume, Health::Healthy);
    wait_changed(&volume);
    cluster.stop(0);
    cluster.stop(1);
    assert_pages(&volume, PAGES, 1);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let cluster = Cluster::start(6, Transport::Shm, 16 << 20, SLAB);
    let volume = cluster.volume("rs:4+2", SIZE);
    let mut worker = volume.worker().unwrap();
    worker.write(0, &page(0, 1)).unwrap();
    for (scheme, splits) in [("rs:4+3", 7), ("rs:8+2", 10)] {
        let refused = volume.set_resilience(usual(scheme));
        let is_so = |error: &VolumeError| match error {
            VolumeError::TooFewDomains {
                needed, domains, ..
            } => (*needed, *domains) == (splits, 6),
            _ => false,
        };
        assert!(refused.as_ref().is_err_and(is_so), "{refused:?}");
    }
    let status = volume.status().unwrap();
    assert_eq!((status.scheme.as_str(), status.change), ("rs:4+2", None));
    volume.close();
    let closed = volume.set_resilience(usual("rs:4+1"));
    assert!(matches!(closed, Err(VolumeError::Closed)), "{closed:?}");
    assert_eq!(worker.write(0, &page(0, 2)), Err(IoError::Closed));
}

/// The next owner finds every extent short of what it is to have, and some short of what they had.
#[test]
fn what_was_lost_is_rebuilt_before_what_is_yet_to_come_after_a_takeover() {
    const SMALL: u64 = 128 << 10;
    let mut cluster = Cluster::start(9, Transport::Shm, 16 << 20, SMALL);
    let volume = cluster.kept_volume("rs:4+1", SIZE).unwrap();
    write_all(&mut volume.worker().unwrap(), 1);
    let extents = volume.status().unwrap().extents;
    let has = |extent: usize, host: usize| {
        let name = Some(cluster.configs[host].name.clone());
        extents[extent].hosts.contains(&name)
    };
    // One that is not of the first extent, so that others come before those that have lost something.
    let gone = (0..9).find(|&host| !has(0, host) && (1..extents.len()).any(|at| has(at, host)));
    let gone = gone.expect("five of nine hosts have the first extent");
    let has_lost: Vec<bool> = (0..extents.len()).map(|at| has(at, gone)).collect();
    volume.detach();
    cluster.stop(gone);
    let volume = cluster.kept_volume("rs:4+2", SIZE).unwrap();
    // A slab takes some tenths of a second.
    volume.pace_repairs(1 << 20, true);
    let mut grown_seen = false;
    wait_for(&volume, |status| {
        let of_kind = |lost: bool| {
            let extents = status.extents.iter().zip(&has_lost);
            extents.filter(move |(_, has_lost)| **has_lost == lost)
        };
        let mut grown = of_kind(false);
        if grown.any(|(extent, _)| extent.regenerated.is_some()) {
            grown_seen = true;
            for (extent, _) in of_kind(true) {
                let there = extent.hosts.iter().flatten().count();
                let is_seen_to = extent.regenerated.is_some() || there > 4;
                assert!(is_seen_to, "{:#?}", status.extents);
            }
        }
        status.health == Health::Healthy
    });
    assert!(grown_seen, "it took no time");
    assert_pages(&volume, PAGES, 1);
}
