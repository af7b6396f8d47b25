//! Slabs that a host wants back are moved to others, under load and without a moment in which
//! one is missing.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use cenote_pool::control::Drain;
use cenote_volume::{Health, Volume};
use support::operator::Operator;
use support::{
    Cluster, Random, StopWhenDropped, Transport, page, wait_for, wait_for_health, wait_until,
};

const SLAB: u64 = 2 << 20;
const PAGE: usize = 4096;
const SIZE: u64 = 24 << 20;

/// Writes and reads pages `first, first + step, ...` until told to stop, checking each read;
/// what each page holds then.
fn load(volume: &Volume, first: u64, step: u64, stop: &AtomicBool) -> Vec<(u64, u64)> {
    let mut worker = volume.worker().unwrap();
    let pages: Vec<u64> = (first..SIZE / PAGE as u64).step_by(step as usize).collect();
    let mut rounds = vec![1; pages.len()];
    let mut random = Random(first);
    for &index in &pages {
        worker.write(index * PAGE as u64, &page(index, 1)).unwrap();
    }
    while !stop.load(Ordering::Relaxed) {
        let at = random.below(pages.len() as u64) as usize;
        let mut seen = vec![0; PAGE];
        worker.read(pages[at] * PAGE as u64, &mut seen).unwrap();
        assert!(seen == page(pages[at], rounds[at]), "page {}", pages[at]);
        rounds[at] += 1;
        let bytes = page(pages[at], rounds[at]);
        worker.write(pages[at] * PAGE as u64, &bytes).unwrap();
    }
    pages.into_iter().zip(rounds).collect()
}

fn check(volume: &Volume, written: &[(u64, u64)]) {
    let mut worker = volume.worker().unwrap();
    for &(index, round) in written {
        let mut seen = vec![0; PAGE];
        worker.read(index * PAGE as u64, &mut seen).unwrap();
        assert!(seen == page(index, round), "page {index}");
    }
}

/// Runs `act` while two threads write and read the volume; what they wrote.
fn under_load(volume: &Volume, act: impl FnOnce()) -> Vec<(u64, u64)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|first| {
            let stop = &stop;
            scope.spawn(move || load(volume, first, 2, stop))
        });
        // Also when something is waited for in vain: the threads would never end.
        let _stop = StopWhenDropped(&stop);
        wait_for(volume, |status| status.stored_bytes == SIZE);
        act();
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn holds(volume: &Volume, host: usize) -> bool {
    let name = format!("h{host:02}");
    let status = volume.status().unwrap();
    let mut hosts = status.extents.iter().flat_map(|extent| &extent.hosts);
    hosts.any(|holder| holder.as_deref() == Some(name.as_str()))
}

fn drain_under_load(scheme: &str, losses: usize, hosts: usize, transport: Transport) {
    let mut cluster = Cluster::start(hosts, transport, 64 << 20, SLAB);
    let volume = cluster.volume(scheme, SIZE);
    let written = under_load(&volume, || {
        let victim = (0..hosts).find(|&host| holds(&volume, host)).unwrap();
        assert_eq!(
            victim, 0,
            "a plain volume may spare it by chance: choose a larger one"
        );
        let mut operator = Operator::of(&cluster, victim);
        operator.drain(Drain::On);
        wait_for(&volume, |status| {
            assert_eq!(status.health, Health::Healthy, "{status:#?}");
            let slabs = operator.status().slabs;
            slabs.free == slabs.total()
        });
        assert!(!holds(&volume, victim));
    });
    let status = volume.status().unwrap();
    assert!(status.counters.slabs_moved > 0);
    assert_eq!(
        (
            status.counters.slabs_rebuilt,
            status.counters.requests_failed
        ),
        (0, 0)
    );
    cluster.stop(0);
    check(&volume, &written);
    assert_eq!(volume.status().unwrap().health, Health::Healthy);
    // What was moved is as good for decoding as what was there before.
    for host in 1..=losses {
        cluster.stop(host);
    }
    check(&volume, &written);
    assert_eq!(volume.status().unwrap().counters.requests_failed, 0);
}

#[test]
fn a_host_is_drained_under_load_over_shm() {
    drain_under_load("rs:8+2", 2, 12, Transport::Shm);
    drain_under_load("rs:2+1", 1, 5, Transport::Shm);
    drain_under_load("mirror:2", 1, 4, Transport::Shm);
    drain_under_load("plain", 0, 2, Transport::Shm);
}

#[test]
fn a_host_is_drained_under_load_over_tcp() {
    drain_under_load("rs:4+2", 2, 8, Transport::Tcp);
    drain_under_load("mirror:3", 2, 5, Transport::Tcp);
}

/// Hosts know nothing of each other: these three want every slab of most stripes back at the same
/// moment, one more than a stripe of 2+2 can lose (soundness Y6).
#[test]
fn hosts_that_want_most_of_a_stripe_back_at_once_get_it_slab_by_slab() {
    let cluster = Cluster::start(8, Transport::Shm, 64 << 20, SLAB);
    let volume = cluster.volume("rs:2+2", SIZE);
    let written = under_load(&volume, || {
        let mut operators = [0, 1, 2].map(|host| Operator::of(&cluster, host));
        for operator in &mut operators {
            operator.drain(Drain::On);
        }
        wait_for(&volume, |status| {
            // All members of every stripe are there at any time, copies aside.
            assert_eq!(status.health, Health::Healthy, "{status:#?}");
            operators.iter_mut().all(|operator| {
                let slabs = operator.status().slabs;
                slabs.free == slabs.total()
            })
        });
    });
    let status = volume.status().unwrap();
    assert!((0..3).all(|host| !holds(&volume, host)));
    let counters = status.counters;
    assert_eq!((counters.slabs_rebuilt, counters.requests_failed), (0, 0));
    let steps = status.repair;
    assert!(counters.slabs_moved > 0 && steps.leave.count == counters.slabs_moved);
    assert_eq!(steps.place.count, counters.slabs_moved);
    check(&volume, &written);
}

#[test]
fn a_rebuild_with_a_limit_keeps_it_and_ends() {
    let mut cluster = Cluster::start(5, Transport::Shm, 64 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", SIZE);
    let mut worker = volume.worker().unwrap();
    for index in 0..SIZE / PAGE as u64 {
        worker.write(index * PAGE as u64, &page(index, 1)).unwrap();
    }
    // A slab of 2 MiB in a second, which is slower than any machine, in steps of a quarter MiB.
    volume.pace_repairs(SLAB, true);
    let victim = (0..5).find(|&host| holds(&volume, host)).unwrap();
    let began = std::time::Instant::now();
    cluster.stop(victim);
    wait_for(&volume, |status| {
        status.counters.slabs_rebuilt > 0 && status.health == Health::Healthy
    });
    let status = volume.status().unwrap();
    assert_eq!(status.repair.bytes_per_s, Some(SLAB));
    let seconds = status.counters.rebuilt_bytes.saturating_sub(SLAB) as f64 / SLAB as f64;
    let took = began.elapsed().as_secs_f64();
    // The first step and the last one of each slab are not waited for.
    assert!(took > seconds * 0.5, "{took} s for {seconds} s of slabs");
    for index in 0..SIZE / PAGE as u64 {
        let mut seen = vec![0; PAGE];
        worker.read(index * PAGE as u64, &mut seen).unwrap();
        assert!(seen == page(index, 1), "page {index}");
    }
}

#[test]
fn slabs_with_nowhere_to_go_stay_and_are_declined() {
    let cluster = Cluster::start(3, Transport::Shm, 64 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", SIZE);
    let mut operator = Operator::of(&cluster, 1);
    let written = under_load(&volume, || {
        let slabs = operator.status().slabs.mapped;
        assert!(slabs > 0);
        operator.drain(Drain::On);
        wait_for(&volume, |_| {
            operator
                .status()
                .clients
                .iter()
                .any(|client| client.declined == slabs)
        });
        assert_eq!(operator.status().slabs.mapped, slabs);
        operator.drain(Drain::Off);
    });
    check(&volume, &written);
    let status = volume.status().unwrap();
    assert_eq!(status.health, Health::Healthy);
    assert_eq!(
        (status.counters.slabs_moved, status.counters.requests_failed),
        (0, 0)
    );
    let lends = operator.status();
    assert_eq!((lends.draining, lends.clients[0].declined), (false, 0));
}

#[test]
fn a_host_that_dies_while_it_is_drained_is_rebuilt_from_the_others() {
    let mut cluster = Cluster::start(6, Transport::Tcp, 64 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", SIZE);
    let mut operator = Operator::of(&cluster, 0);
    assert_eq!(operator.status().slabs.mapped, 0);
    let written = under_load(&volume, || {
        operator.drain(Drain::On);
        wait_for(&volume, |status| status.counters.slabs_moved >= 1);
        cluster.stop(0);
        wait_until(|| !holds(&volume, 0), || format!("{:#?}", volume.status()));
        wait_for_health(&volume, Health::Healthy);
    });
    check(&volume, &written);
    assert_eq!(volume.status().unwrap().counters.requests_failed, 0);
    cluster.stop(1);
    check(&volume, &written);
}

/// The slabs go to the one host that is left over; when it dies with copies half made, they
/// are still where they were.
#[test]
fn a_copys_host_that_dies_takes_nothing_with_it() {
    let mut cluster = Cluster::start(4, Transport::Tcp, 64 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", SIZE);
    let written = under_load(&volume, || {
        let mut operator = Operator::of(&cluster, 0);
        operator.drain(Drain::On);
        wait_for(&volume, |status| status.counters.slabs_moved >= 1);
        // Some of the rest is under way to any of the others; one of them is lost.
        cluster.stop(3);
        wait_for(&volume, |status| {
            let mut hosts = status.hosts.iter();
            hosts.any(|host| host.name == "h03" && !host.connected)
        });
        operator.drain(Drain::Off);
        wait_for_health(&volume, Health::Healthy);
    });
    check(&volume, &written);
    assert_eq!(volume.status().unwrap().counters.requests_failed, 0);
}

#[test]
fn a_volume_that_is_closed_while_slabs_move_gives_all_of_them_back() {
    let cluster = Cluster::start(4, Transport::Tcp, 64 << 20, SLAB);
    let volume = cluster.volume("rs:2+1", SIZE);
    let mut operators: Vec<_> = (0..4).map(|host| Operator::of(&cluster, host)).collect();
    under_load(&volume, || {
        operators[0].drain(Drain::On);
        wait_for(&volume, |status| status.counters.slabs_moved >= 1);
    });
    drop(volume);
    for operator in &mut operators {
        let mut left = operator.status();
        wait_until(
            || {
                left = operator.status();
                left.slabs.mapped == 0
            },
            || "slabs are held by nobody".into(),
        );
    }
}

/// The journal names the copy before it takes the slab's place, and the slab until then: whenever
/// an owner ends, the next finds slabs that missed nothing, and frees what was half made.
#[test]
fn the_next_owner_finds_what_was_moved_and_goes_on_moving() {
    let mut cluster = Cluster::start(5, Transport::Tcp, 64 << 20, SLAB);
    let mut operators: Vec<_> = (0..5).map(|host| Operator::of(&cluster, host)).collect();
    let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
    let written = under_load(&volume, || {
        operators[0].drain(Drain::On);
        wait_for(&volume, |status| status.counters.slabs_moved >= 1);
    });
    volume.detach();

    let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
    check(&volume, &written);
    wait_for(&volume, |_| operators[0].status().slabs.mapped == 0);
    let status = volume.status().unwrap();
    assert_eq!(status.health, Health::Healthy);
    assert_eq!((status.counters.slabs_rebuilt, status.torn_pages), (0, 0));
    let wanted = status.extents.len() * 3;
    let lent = |operators: &mut [Operator]| -> u32 {
        operators
            .iter_mut()
            .map(|host| host.status().slabs.mapped)
            .sum()
    };
    wait_until(
        || lent(&mut operators) as usize == wanted,
        || format!("{wanted} slabs are in use: {:#?}", volume.status()),
    );
    volume.detach();
    cluster.stop(0);
    let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
    check(&volume, &written);
    cluster.stop(1);
    check(&volume, &written);
    assert_eq!(volume.status().unwrap().counters.requests_failed, 0);
}
