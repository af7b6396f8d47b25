//! A volume with a disk behind it, under a real NBD client: every host may go.

mod support;

use support::lab::{Lab, has_tools, wait_until};
use support::words;

fn counter(lab: &Lab, part: &str, name: &str) -> u64 {
    lab.status()[part][name].as_u64().expect("a counter")
}

#[test]
fn all_hosts_are_killed_under_a_verified_load() {
    if !has_tools() {
        return;
    }
    for transport in ["shm", "tcp"] {
        let lab = Lab::backed(3, transport);
        let load = lab.fio();
        for host in 0..3 {
            lab.wait_written(8_000 * (host + 1));
            lab.kill(&format!("h{host:02}"));
        }
        load.expect_clean();
        assert_eq!(counter(&lab, "counters", "requests_failed"), 0);
        wait_until(
            "nobody is left",
            || lab.status()["mapped_bytes"] == 0,
            || lab.status().to_string(),
        );
        assert_eq!(counter(&lab, "backing", "errors"), 0);
        assert_eq!(counter(&lab, "backing", "stale_pages"), 0);
    }
}

#[test]
fn slabs_are_asked_back_one_host_after_the_other_under_a_verified_load() {
    if !has_tools() {
        return;
    }
    let lab = Lab::backed(3, "shm");
    let load = lab.fio();
    for round in 0..6 {
        let host = format!("h{:02}", round % 3);
        lab.wait_written(6_000 * (round + 1));
        lab.folder.run(&["host", "drain", &host]).expect(0);
        lab.folder
            .run(&["host", "drain", &host, "--cancel"])
            .expect(0);
    }
    load.expect_clean();
    assert_eq!(counter(&lab, "counters", "requests_failed"), 0);
    assert!(counter(&lab, "eviction", "count") > 0);
    assert_eq!(counter(&lab, "counters", "slabs_moved"), 0);
}

#[test]
fn the_file_holds_what_the_client_wrote() {
    if !has_tools() {
        return;
    }
    let lab = Lab::backed(2, "shm");
    lab.fio_with(&["--rw=randwrite", "--bs=4k", "--size=32M"])
        .expect_clean();
    wait_until(
        "the disk has everything",
        || counter(&lab, "backing", "pending_bytes") == 0,
        || lab.status().to_string(),
    );
    let (content, size) = (lab.content(), 256 << 20);
    let file = std::fs::read(lab.backing()).expect("the backing store");
    assert_eq!(file.len(), 4096 + size, "behind its signature");
    let mut compared = 0;
    // Pages that were never written read as zeros, whatever the file has there.
    for (at, page) in content.chunks(4096).enumerate() {
        let is_written = page.iter().any(|&byte| byte != 0);
        let in_file = &file[4096 + at * 4096..][..4096];
        assert!(!is_written || in_file == page, "page {at}");
        compared += usize::from(is_written);
    }
    assert!(compared > 1000, "{compared} pages");
}

#[test]
fn what_is_not_a_backing_store_is_not_touched() {
    let lab = Lab::backed(2, "shm");
    let thesis = lab.backing().with_file_name("thesis");
    std::fs::write(&thesis, "x".repeat(10_000)).expect("a file");
    let refused = lab.folder.run(&words(&format!(
        "nbd --size 64M --socket /dev/null/no --backing {}",
        thesis.display()
    )));
    assert!(
        refused.code != 0 && refused.stderr.contains("holds something else"),
        "{refused:#?}"
    );
    assert_eq!(
        std::fs::read(&thesis).expect("a file"),
        "x".repeat(10_000).as_bytes()
    );
    let busy = lab.backing();
    let refused = lab.folder.run(&words(&format!(
        "nbd --size 64M --socket /dev/null/no --backing {}",
        busy.display()
    )));
    assert!(
        refused.stderr.contains("another process uses it"),
        "{refused:#?}"
    );
}
