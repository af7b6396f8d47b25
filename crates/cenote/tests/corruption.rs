//! Memory of real hosts that goes wrong under load: bytes are changed in a host's process while a
//! real client writes and verifies.

mod support;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use serde_json::Value;
use support::lab::{Lab, VOLUME, has_tools, wait_until};
use support::words;

/// Bytes of a split of rs:8+3.
const SPLIT: usize = 512;

/// The slabs of a host's process.
fn slabs(pid: u32) -> Vec<File> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of ours");
    let slabs = entries.flatten().filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let is_slab = target.to_string_lossy().contains("memfd:");
        let opened = OpenOptions::new().read(true).write(true).open(entry.path());
        opened.ok().filter(|_| is_slab)
    });
    slabs.collect()
}

/// Turns bytes of up to `count` splits over, of those that hold anything; how many.
fn rot(pid: u32, count: usize) -> usize {
    let mut rotten = 0;
    for slab in slabs(pid) {
        let len = slab.metadata().expect("an open file").len();
        let mut split = [0; SPLIT];
        for offset in (0..len).step_by(SPLIT * 37) {
            let is_read = slab.read_exact_at(&mut split, offset).is_ok();
            if rotten < count && is_read && split.iter().any(|&byte| byte != 0) {
                split.iter_mut().for_each(|byte| *byte ^= 0x5a);
                slab.write_all_at(&split, offset).expect("it is writable");
                rotten += 1;
            }
        }
    }
    rotten
}

fn host(status: &Value, name: &str) -> Value {
    let hosts = status["hosts"].as_array().expect("hosts");
    let host = hosts.iter().find(|host| host["name"] == *name);
    host.expect("a host of the cluster").clone()
}

#[test]
fn a_host_whose_memory_rots_is_named_healed_and_loses_its_slabs() {
    if !has_tools() {
        return;
    }
    let lab = Lab::with_volume(13, "shm", &["--scheme", "rs:8+3", "--mode", "correction"]);
    let load = lab.fio();
    lab.wait_written(20_000);
    let bad = lab.members().swap_remove(2);
    assert!(rot(lab.folder.pid(&bad), 400) > 100);
    load.expect_clean();
    let status = lab.status();
    assert_eq!(status["counters"]["requests_failed"], 0);
    assert_eq!(status["integrity"]["corrupt_reads"], 0);
    assert!(host(&status, &bad)["wrong_splits"].as_u64() > Some(16));
    for other in status["hosts"].as_array().expect("hosts") {
        let is_right = other["name"] == *bad || other["wrong_splits"] == 0;
        assert!(is_right, "{other} beside {bad}");
    }
    wait_until(
        "the bad host's slabs are elsewhere",
        || {
            let status = lab.status();
            let extents = status["extents"].as_array().expect("extents").clone();
            let on_it = |extent: &Value| {
                extent["hosts"]
                    .as_array()
                    .expect("hosts")
                    .contains(&Value::from(&*bad))
            };
            status["health"] == "healthy" && !extents.iter().any(on_it)
        },
        || lab.status().to_string(),
    );
    let scrubbed = lab.folder.run(&["volume", "scrub", VOLUME, "--json"]);
    let report = scrubbed.expect(0).json();
    assert_eq!(report["report"]["corrupt_pages"], 0);
    assert_eq!(report["whole"], true);
}

#[test]
fn a_sealed_volume_is_served_by_its_key_and_by_no_other() {
    if !has_tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let key = |name: &str| folder.path().join(name).display().to_string();
    for name in ["key", "other"] {
        support::run(&["key", "seal", "--out", &key(name)]).expect(0);
    }
    let mut lab = Lab::with_volume(6, "shm", &["--scheme", "rs:4+2", "--seal", &key("key")]);
    lab.fio_with(&words(
        "--rw=randwrite --bs=4k --size=16M --verify=crc32c --do_verify=1",
    ))
    .expect_clean();
    let before = lab.content();
    assert_eq!(lab.status()["integrity"]["is_sealed"], true);
    lab.kill_server();
    for (code, wrong) in [
        (2, vec!["--checksum".to_owned()]),
        (1, vec!["--seal".to_owned(), key("other")]),
    ] {
        let mut arguments = vec!["nbd", "--volume", VOLUME, "--socket", "nbd2"];
        arguments.extend(wrong.iter().map(String::as_str));
        let refused = lab.folder.run(&arguments);
        assert_eq!(refused.code, code, "{refused:#?}");
        assert!(refused.stderr.contains("seal"), "{refused:#?}");
    }
    lab.serve_after_kill();
    assert!(lab.content() == before);
}
