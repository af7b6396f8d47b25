//! Faults under load: real host processes are killed and stopped under a real NBD client.
//!
//! Faults are triggered by how far the load of [`support::lab`] got, not by time.

mod support;

use support::lab::{Lab, has_tools, wait_until};
use support::{signal, words};

#[test]
fn hosts_killed_one_after_the_other() {
    if !has_tools() {
        return;
    }
    for transport in ["shm", "tcp"] {
        let lab = Lab::new(transport, "rs:8+2");
        let load = lab.fio();
        lab.wait_written(8_000);
        let members = lab.members();
        lab.kill(&members[0]);
        lab.wait_written(16_000);
        lab.kill(&members[9]);
        load.expect_clean();
        assert_eq!(
            lab.status()["counters"]["requests_failed"],
            0,
            "{transport}"
        );
    }
}

#[test]
fn hosts_killed_at_once() {
    if !has_tools() {
        return;
    }
    for (transport, scheme) in [("shm", "rs:8+2"), ("tcp", "rs:8+2"), ("shm", "mirror:3")] {
        let lab = Lab::new(transport, scheme);
        let load = lab.fio();
        lab.wait_written(12_000);
        let members = lab.members();
        lab.kill(&members[0]);
        lab.kill(&members[1]);
        load.expect_clean();
        lab.wait_healthy();
        lab.fio_with(&["--rw=read", "--bs=64k", "--size=192M"])
            .expect_clean();
    }
}

#[test]
fn a_host_stopped_and_continued() {
    if !has_tools() {
        return;
    }
    for transport in ["tcp", "shm"] {
        let lab = Lab::new(transport, "rs:8+2");
        let load = lab.fio();
        lab.wait_written(8_000);
        let victim = lab.members()[2].clone();
        let pid = lab.folder.pid(&victim);
        signal(pid, "STOP");
        if transport == "tcp" {
            // Silent for longer than the failure timeout: it is replaced and comes back as a stranger.
            lab.wait_connected(&victim, false);
            lab.wait_healthy();
        }
        lab.wait_written(30_000);
        signal(pid, "CONT");
        load.expect_clean();
        assert_eq!(
            lab.status()["counters"]["requests_failed"],
            0,
            "{transport}"
        );
    }
}

/// As many hosts are lost as the scheme bears, and then one is slow: silence is not death.
#[test]
fn a_host_that_is_silent_when_no_other_may_be_lost_is_waited_for() {
    if !has_tools() {
        return;
    }
    // No host is left to rebuild on.
    let lab = Lab::with_hosts(10, "tcp", "rs:8+2");
    let load = lab.fio();
    lab.wait_written(8_000);
    let members = lab.members();
    lab.kill(&members[0]);
    lab.kill(&members[9]);
    for victim in [&members[4], &members[1]] {
        lab.wait_connected(victim, true);
        let pid = lab.folder.pid(victim);
        signal(pid, "STOP");
        lab.wait_connected(victim, false);
        signal(pid, "CONT");
        lab.wait_connected(victim, true);
    }
    load.expect_clean();
    assert_eq!(lab.requests_failed(), 0);
}

#[test]
fn source_and_target_of_a_regeneration_killed() {
    if !has_tools() {
        return;
    }
    let lab = Lab::new("shm", "rs:8+2");
    let load = lab.fio();
    lab.wait_written(20_000);
    let before = lab.members();
    lab.kill(&before[4]);
    // Before that is seen all are healthy.
    lab.wait_connected(&before[4], false);
    let regenerating = || {
        lab.status()["extents"]
            .as_array()
            .unwrap()
            .iter()
            .any(|e| e["regenerated"].is_number())
    };
    wait_until(
        "a regeneration runs",
        || regenerating() || lab.health() == "healthy",
        || lab.status().to_string(),
    );
    let source = lab
        .members()
        .into_iter()
        .find(|host| before.contains(host) && *host != before[4])
        .unwrap();
    lab.kill(&source);
    load.expect_clean();
    lab.wait_healthy();
    // Ten hosts are left and all are members; the next loss has no target, only a loss.
    let lab = Lab::new("shm", "rs:8+2");
    let load = lab.fio();
    lab.wait_written(20_000);
    let before = lab.members();
    let spare: Vec<String> = (0..12)
        .map(|i| format!("h{i:02}"))
        .filter(|host| !before.contains(host))
        .collect();
    lab.kill(&before[0]);
    lab.wait_connected(&before[0], false);
    lab.kill(&spare[0]);
    load.expect_clean();
    lab.wait_healthy();
}

#[test]
fn two_connections_on_the_same_pages_leave_no_mixture_for_a_loss_to_reveal() {
    if !has_tools() {
        return;
    }
    let lab = Lab::new("shm", "rs:8+2");
    let same =
        words("--rw=randwrite --size=4M --iodepth=8 --numjobs=2 --norandommap=1 --io_size=64M");
    lab.fio_with(&[&same[..], &["--bs=4k"]].concat())
        .expect_clean();
    lab.fio_with(&[&same[..], &["--bs=512", "--io_size=8M"]].concat())
        .expect_clean();
    let before = lab.content();
    let members = lab.members();
    for victim in [&members[1], &members[3]] {
        lab.kill(victim);
        lab.wait_connected(victim, false);
    }
    assert!(
        before == lab.content(),
        "decoding gives what was read before"
    );
    lab.wait_healthy();
    assert!(before == lab.content(), "and so does the rebuilt volume");
}

#[test]
fn a_client_frozen_for_longer_than_its_lease_loses_nothing() {
    if !has_tools() {
        return;
    }
    let lab = Lab::new("tcp", "rs:8+2");
    let load = lab.fio();
    lab.wait_written(8_000);
    signal(lab.server.id(), "STOP");
    let orphaned = || {
        let status = lab.folder.run(&["status", "--json"]).json();
        let hosts = status["hosts"].as_array().expect("hosts").clone();
        hosts.iter().any(|host| {
            host["status"]["clients"]
                .as_array()
                .is_some_and(|all| all.iter().any(|client| client["orphaned"] == true))
        })
    };
    wait_until("the lease runs out", orphaned, || {
        lab.folder.run(&["status", "--json"]).stdout
    });
    signal(lab.server.id(), "CONT");
    load.expect_clean();
    assert_eq!(lab.status()["counters"]["requests_failed"], 0);
}
