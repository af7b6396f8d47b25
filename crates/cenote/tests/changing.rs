//! `cenote volume set`: a served volume's mode, delta and scheme change under a load that verifies
//! every byte, and its server is killed in the middle.
//!
//! The client is an nbdkit that connects again, as in `owners`.

mod support;

use serde_json::Value;
use support::lab::{Lab, VOLUME, has_tools, wait_until};
use support::words;

/// Writes and verifies all of it in 4 KiB blocks.
const LOAD: &str = "--rw=randwrite --bs=4k --iodepth=16 --size=48M --verify=crc32c --do_verify=1";

fn set(lab: &Lab, flags: &[&str]) -> Value {
    let command = ["volume", "set", VOLUME, "--json"];
    let ended = lab.folder.run(&[&command, flags].concat());
    ended.expect(0).json()
}

#[test]
fn a_served_volume_changes_under_load() {
    if !has_tools() {
        return;
    }
    for transport in ["shm", "tcp"] {
        let mut lab = Lab::new(transport, "rs:4+1");
        let client = lab.patient_client();
        let load = lab.fio_to(&client.uri(), &words(LOAD));
        lab.wait_written(1_000);
        let done = set(&lab, &["--scheme", "rs:4+3", "--mode", "correction"]);
        assert_eq!(done["scheme"], "rs:4+3");
        assert_eq!(done["delta"], 1);
        assert_eq!(done["change"], Value::Null);
        assert_eq!(lab.status()["mode"], "correction");
        // What compares is looked through, and what does not is not, unless somebody says how fast.
        assert_eq!(lab.status()["scrub"]["rate_bytes"], 4 << 20);
        set(&lab, &["--mode", "failure-recovery", "--delta", "0"]);
        assert_eq!(lab.status()["scrub"]["rate_bytes"], 0);
        set(&lab, &["--scheme", "rs:4+2"]);
        // The next server goes on with what this one does not end.
        set(&lab, &["--scheme", "rs:4+4", "--no-wait"]);
        lab.kill_and_serve_again();
        load.expect_clean();
        assert_becomes(&lab, "rs:4+4", 4);
    }
}

/// The volume comes to a scheme, with which it survives so many losses.
fn assert_becomes(lab: &Lab, scheme: &str, losses: usize) {
    wait_until(
        "the change ends",
        || lab.status()["change"].is_null(),
        || lab.status().to_string(),
    );
    lab.wait_healthy();
    assert_eq!(lab.status()["scheme"], scheme);
    let before = lab.content();
    for host in &lab.members()[..losses] {
        lab.kill(host);
    }
    assert!(before == lab.content(), "{scheme}");
}

/// All pages are restriped, twice, and the server is killed in the middle of the second time.
#[test]
fn a_served_volumes_pages_are_restriped_under_load() {
    if !has_tools() {
        return;
    }
    for transport in ["shm", "tcp"] {
        let mut lab = Lab::new(transport, "rs:4+2");
        let client = lab.patient_client();
        let load = lab.fio_to(&client.uri(), &words(LOAD));
        lab.wait_written(1_000);
        let done = set(&lab, &["--scheme", "rs:2+2"]);
        assert_eq!(
            (&done["scheme"], &done["change"]),
            (&"rs:2+2".into(), &Value::Null)
        );
        set(&lab, &["--scheme", "mirror:3", "--no-wait"]);
        lab.kill_and_serve_again();
        load.expect_clean();
        assert_becomes(&lab, "mirror:3", 2);
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let mut lab = Lab::with_hosts(6, "shm", "rs:4+2");
    for (flags, status, reason) in [
        (&["--scheme", "rs:8+2"][..], 1, "10 failure domains"),
        (&["--scheme", "rs:4+3"], 1, "7 failure domains"),
        (&["--mode", "correction"], 2, "needs at least 3 more"),
        (&["--scheme", "rs:5+2"], 2, "is not a scheme"),
        (&[], 2, "required"),
    ] {
        let command = ["volume", "set", VOLUME];
        let refused = lab.folder.run(&[&command, flags].concat()).expect(status);
        assert!(refused.stderr.contains(reason), "{refused:?}");
        assert_eq!(lab.status()["scheme"], "rs:4+2");
        assert!(lab.status()["change"].is_null());
    }
    // Of a volume that nobody serves the description changes, and its next owner finds it.
    lab.kill_server();
    assert_eq!(set(&lab, &["--scheme", "rs:4+1"])["in_use"], false);
    lab.serve_after_kill();
    assert_eq!(lab.status()["scheme"], "rs:4+1");
    let list = lab.folder.run(&["volume", "list", "--json"]).expect(0);
    assert_eq!(list.json()[0]["scheme"], "rs:4+1");
}
