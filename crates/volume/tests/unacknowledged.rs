//! Writes that a host has carried out while its answer was lost: over TCP, with a link that is cut in between.
//!
//! The page is as before or as written, never an error, and what the hosts lend is what the volume uses.

mod support;

use cenote_volume::{Health, Op, Request, Volume, Worker};
use support::backed_volume::{SLAB, read, status};
use support::operator::Operator;
use support::relay::Relay;
use support::replacement::{LONG, PAGES, Scene, at, end_of, poll_some};
use support::{Cluster, Transport, page, wait_for, wait_for_health, wait_until};

/// Hosts of which the first is behind a relay, and who asks them what they lend, not through that.
fn behind_a_relay(hosts: usize) -> (Cluster, Relay, Vec<Operator>) {
    let mut cluster = Cluster::start(hosts, Transport::Tcp, 16 << 20, SLAB);
    let operators = (0..hosts).map(|host| Operator::of(&cluster, host));
    let operators = operators.collect();
    let relay = Relay::before(&cluster.configs[0].address);
    cluster.configs[0].address = relay.address();
    (cluster, relay, operators)
}

/// Submits a write of the first page whose answer the first host's client does not hear, and waits until the
/// host has carried it out.
fn submit_unheard(worker: &mut Worker, relay: &Relay, round: u64) {
    let before = relay.lost_bytes();
    relay.lose_answers();
    let op = Op::Write(page(0, round));
    let (tag, offset) = (0, 0);
    worker.submit(Request { tag, offset, op }).unwrap();
    let mut done = Vec::new();
    wait_until(
        || {
            worker.poll(&mut done);
            relay.lost_bytes() > before
        },
        || "the host does not answer".into(),
    );
    assert!(done.is_empty(), "{:?}", done[0].result);
}

/// Waits until hosts lend what the volume uses and no slab more.
fn wait_for_agreement(volume: &Volume, operators: &mut [Operator]) {
    let used = || (volume.status().unwrap().lent_bytes / SLAB) as u32;
    let mut lent = 0;
    wait_for(volume, |_| {
        let slabs = operators.iter_mut().map(|host| host.status().slabs);
        lent = slabs.map(|slabs| slabs.mapped + slabs.orphaned).sum();
        lent > 0 && lent == used()
    });
}

#[test]
fn with_a_disk_behind_it_and_a_host_that_is_awaited_it_is_the_disks_or_waits() {
    for (hosts, scheme) in [(1, "plain"), (2, "mirror:2"), (3, "rs:2+1")] {
        for is_refused in [false, true] {
            let (cluster, relay, mut operators) = behind_a_relay(hosts);
            let (scene, mut worker) = Scene::over(cluster, scheme, |_| ());
            scene.disk.break_page(is_refused.then_some(0));
            scene.guard.say_it_leaves(LONG);
            submit_unheard(&mut worker, &relay, 2);
            relay.cut();
            wait_for(&scene.volume, |status| !status.hosts[0].connected);
            if is_refused {
                wait_for(&scene.volume, |status| {
                    status.backing.unwrap().stale_pages == 1
                });
                poll_some(&mut worker, "its slabs are awaited");
            } else {
                assert_eq!(end_of(&mut worker).result, Ok(()), "{scheme}");
                assert!(read(&mut worker, 0) == page(0, 2), "{scheme}");
            }
            relay.mend();
            wait_for_health(&scene.volume, Health::Healthy);
            if is_refused {
                assert_eq!(end_of(&mut worker).result, Ok(()), "{scheme}");
            }
            for _ in 0..2 {
                assert!(read(&mut worker, 0) == page(0, 2), "{scheme}");
            }
            for index in 1..PAGES {
                assert!(read(&mut worker, index) == page(index, 1), "{scheme}");
            }
            scene.expect_kept();
            wait_for_agreement(&scene.volume, &mut operators);
        }
    }
}

#[test]
fn with_a_disk_behind_it_and_a_host_that_goes_without_a_word_it_is_the_disks() {
    for (hosts, scheme) in [(1, "plain"), (3, "rs:2+1")] {
        let (cluster, relay, mut operators) = behind_a_relay(hosts);
        let (scene, mut worker) = Scene::over(cluster, scheme, |_| ());
        submit_unheard(&mut worker, &relay, 2);
        relay.cut();
        assert_eq!(end_of(&mut worker).result, Ok(()), "{scheme}");
        assert!(read(&mut worker, 0) == page(0, 2), "{scheme}");
        relay.mend();
        wait_for(&scene.volume, |status| {
            status.hosts.iter().all(|host| host.connected)
        });
        worker.write(at(1), &page(1, 2)).unwrap();
        wait_for_health(&scene.volume, Health::Healthy);
        for index in 0..PAGES {
            let round = 1 + u64::from(index < 2);
            assert!(read(&mut worker, index) == page(index, round), "{scheme}");
        }
        wait_for_agreement(&scene.volume, &mut operators);
    }
}

/// Without a disk: a stripe that can spare the slab goes on without it, and one that cannot waits for it.
#[test]
fn without_a_disk_it_goes_to_the_others_or_waits() {
    for (hosts, scheme) in [(1, "plain"), (2, "mirror:2"), (3, "rs:2+1")] {
        let (cluster, relay, mut operators) = behind_a_relay(hosts);
        let config = cluster.config(scheme, SLAB);
        let volume = Volume::open(config, cluster.connector()).unwrap();
        let mut worker = volume.worker().unwrap();
        for index in 0..PAGES {
            worker.write(at(index), &page(index, 1)).unwrap();
        }
        let holder = "h00".to_owned();
        let hosts_of = |volume: &Volume| status(volume).extents[0].hosts.clone();
        if !hosts_of(&volume).contains(&Some(holder)) {
            panic!(
                "{scheme}: the first host has no slab: {:#?}",
                volume.status()
            );
        }
        submit_unheard(&mut worker, &relay, 2);
        relay.cut();
        if scheme == "plain" {
            poll_some(&mut worker, "nobody else has it");
            relay.mend();
        }
        assert_eq!(end_of(&mut worker).result, Ok(()), "{scheme}");
        assert!(read(&mut worker, 0) == page(0, 2), "{scheme}");
        relay.mend();
        wait_for_health(&volume, Health::Healthy);
        assert!(read(&mut worker, 0) == page(0, 2), "{scheme}");
        for index in 1..PAGES {
            assert!(read(&mut worker, index) == page(index, 1), "{scheme}");
        }
        wait_for_agreement(&volume, &mut operators);
        assert_eq!(status(&volume).counters.requests_failed, 0, "{scheme}");
    }
}
