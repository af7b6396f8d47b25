//! A volume outlives its server: real servers are killed under a real client, hosts besides.
//!
//! The client is an nbdkit that connects again, and behind it the verifying load of
//! [`support::lab`]: requests that were under way when the server was killed are said again.

mod support;

use support::lab::{Lab, has_tools};

/// Writes and verifies all of it in 4 KiB blocks.
const LOAD: [&str; 6] = [
    "--rw=randwrite",
    "--bs=4k",
    "--iodepth=16",
    "--size=64M",
    "--verify=crc32c",
    "--do_verify=1",
];

#[test]
fn a_server_killed_and_started_again_under_load() {
    if !has_tools() {
        return;
    }
    for (transport, scheme) in [("shm", "rs:8+2"), ("tcp", "rs:4+2"), ("tcp", "mirror:3")] {
        let mut lab = Lab::new(transport, scheme);
        let client = lab.patient_client();
        let load = lab.fio_to(&client.uri(), &LOAD);
        for _ in 0..3 {
            lab.wait_written(4_000);
            lab.kill_and_serve_again();
        }
        load.expect_clean();
        assert_eq!(lab.health(), "healthy", "{transport} {scheme}");
        // What any two hosts less leave is the same.
        let before = lab.content();
        let members = lab.members();
        lab.kill(&members[0]);
        lab.kill(&members[1]);
        assert!(before == lab.content(), "{transport} {scheme}");
    }
}

#[test]
fn a_server_killed_with_hosts_lost_before_and_meanwhile() {
    if !has_tools() {
        return;
    }
    let mut lab = Lab::new("tcp", "rs:8+2");
    let client = lab.patient_client();
    let load = lab.fio_to(&client.uri(), &LOAD);
    lab.wait_written(4_000);
    let members = lab.members();
    // Degraded writes first: this host's slabs are not current when the next owner comes.
    lab.kill(&members[0]);
    lab.wait_not_healthy();
    lab.wait_written(6_000);
    lab.kill_server();
    lab.kill(&members[1]);
    lab.serve_after_kill();
    // Pages that were being written, with a data split lost besides: the client writes them again.
    load.expect_clean();
    lab.wait_healthy();
    assert_eq!(lab.status()["torn_pages"], 0);
}
