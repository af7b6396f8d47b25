//! Hosts whose machines need their memory, under a real load: every byte is checked, and no
//! stripe is ever short of a slab.
//!
//! Each host of the cluster has a machine of its own, a file that says how much memory is left.

mod support;

use std::fs;

use serde_json::Value;
use support::lab::{Lab, Load, has_tools, wait_until};
use support::{Ended, cenote, host_status, signal, words};

/// Six members of a stripe on eight hosts: two are to spare.
fn pressed_lab() -> Lab {
    let told = ["--headroom", "16M", "--floor", "1M", "--slab", "1M"];
    Lab::with_cluster(8, "rs:4+2", &told)
}

fn load(lab: &Lab) -> Load {
    lab.fio_with(&words(
        "--rw=randwrite --bs=4k --iodepth=16 --size=128M --verify=crc32c --do_verify=1",
    ))
}

/// Leaves as much memory to the programs of a host's machine; `None`: all that it has.
fn leave(lab: &Lab, host: &str, available_kib: Option<u64>) {
    let file = lab.folder.host(host).join("meminfo");
    let text = fs::read_to_string(&file).expect("the host's machine");
    let total = text
        .split_whitespace()
        .nth(1)
        .expect("MemTotal: and a number");
    let available = available_kib.map_or(total.to_owned(), |kib| kib.to_string());
    let next = file.with_extension("next");
    let text = format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n");
    fs::write(&next, text).expect("a file");
    fs::rename(&next, &file).expect("a file");
}

/// What a host says of itself. Asked from beside the volume, whose server may be stopped.
fn host(lab: &Lab, name: &str) -> Value {
    let aside = lab.folder.path().join("aside");
    let cluster = aside.join("cluster.toml");
    if !cluster.exists() {
        fs::create_dir(&aside).expect("a folder");
        for file in ["cluster.key", "cluster.toml"] {
            fs::copy(lab.folder.path().join(file), aside.join(file)).expect("a copy");
        }
    }
    let ask = || {
        let mut command = cenote();
        command
            .args(["status", "--json", "--cluster"])
            .arg(&cluster);
        Ended::from(command.output().expect("the binary runs"))
    };
    host_status(ask, name)
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Keeps the load going and the volume in sight until `is_done`.
fn under_load(lab: &Lab, running: &mut Load, is_done: impl Fn() -> bool) {
    wait_until(
        "the hosts have made room",
        || {
            let status = lab.status();
            assert_eq!(status["health"], "healthy", "{status}");
            if running.is_over() {
                std::mem::replace(running, load(lab)).expect_clean();
            }
            is_done()
        },
        || lab.folder.run(&["status", "--json"]).stdout,
    );
}

/// Squeezes hosts to ten slabs at once, then lets them breathe again.
fn squeeze(lab: &Lab, running: &mut Load, hosts: &[&str]) {
    for name in hosts {
        assert!(number(&host(lab, name)["slabs"]["mapped"]) > 10);
        leave(lab, name, Some(20 << 10));
    }
    let is_small = |name: &&str| number(&host(lab, name)["slabs"]["mapped"]) <= 10;
    under_load(lab, running, || hosts.iter().all(is_small));
    for name in hosts {
        leave(lab, name, None);
    }
}

#[test]
fn hosts_under_pressure_one_by_one_and_two_at_once_cost_no_byte_and_no_stripe_a_slab() {
    if !has_tools() {
        return;
    }
    let lab = pressed_lab();
    load(&lab).expect_clean();
    let mut running = load(&lab);
    squeeze(&lab, &mut running, &["h00"]);
    squeeze(&lab, &mut running, &["h01"]);
    squeeze(&lab, &mut running, &["h02", "h03"]);
    let breathes = |index: usize| {
        let pressure = host(&lab, &format!("h{index:02}"))["pressure"].take();
        pressure["slabs_max"] == 96 && pressure["asked_back"] == 0
    };
    under_load(&lab, &mut running, || (0..4).all(breathes));
    running.expect_clean();

    let (mut asked, mut done) = (0, 0);
    for index in 0..8 {
        let pressure = host(&lab, &format!("h{index:02}"))["pressure"].take();
        assert_eq!(pressure["slabs_taken"], 0, "{pressure}");
        asked += number(&pressure["evictions_asked"]);
        done += number(&pressure["evictions_done"]);
    }
    // From each of four hosts all but ten of some twenty slabs.
    assert!(asked >= done && done >= 20, "{done} of {asked}");
    let counters = lab.status()["counters"].take();
    assert!(number(&counters["slabs_moved"]) >= done, "{counters}");
    assert_eq!(counters["slabs_rebuilt"], 0, "{counters}");
    assert_eq!(lab.requests_failed(), 0);
    let seen = lab.folder.run(&["status"]).expect(0).stdout;
    assert!(
        seen.contains("HEADROOM") && seen.contains("16.0 MiB"),
        "{seen}"
    );
}

#[test]
fn a_stopped_client_keeps_its_slabs_until_the_floor() {
    if !has_tools() {
        return;
    }
    let lab = pressed_lab();
    lab.fio().expect_clean();
    let before = number(&host(&lab, "h00")["slabs"]["mapped"]);
    // Nothing is left. The host's average follows by a fifth each second: the client is stopped
    // long before it is asked.
    leave(&lab, "h00", Some(0));
    signal(lab.server.id(), "STOP");
    let mut was_asked = false;
    wait_until(
        "a slab is taken",
        || {
            let status = host(&lab, "h00");
            let (slabs, pressure) = (&status["slabs"], &status["pressure"]);
            let taken = number(&pressure["slabs_taken"]);
            if taken == 0 {
                assert_eq!(number(&slabs["mapped"]), before, "{status}");
                was_asked |= number(&pressure["asked_back"]) > 0;
                // Afterwards its lease may end while others look.
                assert_eq!(status["counters"]["leases_expired"], 0, "{status}");
            }
            taken > 0
        },
        || host(&lab, "h00").to_string(),
    );
    assert!(was_asked, "taken before it was asked for");
    let status = host(&lab, "h00");
    assert_eq!(status["pressure"]["evictions_done"], 0, "{status}");

    leave(&lab, "h00", None);
    signal(lab.server.id(), "CONT");
    lab.wait_healthy();
    lab.fio_with(&["--rw=read", "--bs=4k", "--size=192M", "--verify=crc32c"])
        .expect_clean();
    assert_eq!(lab.requests_failed(), 0);
}

/// It has no room elsewhere for a slab that is asked back, and nobody reads or writes.
#[test]
fn a_slab_that_a_host_takes_is_missed_at_once() {
    if !has_tools() {
        return;
    }
    let told = ["--headroom", "16M", "--floor", "1M", "--slab", "1M"];
    let lab = Lab::with_cluster(3, "rs:2+1", &told);
    lab.fio_with(&["--rw=write", "--bs=64k", "--size=16M"])
        .expect_clean();
    lab.wait_healthy();
    leave(&lab, "h00", Some(0));
    let taken = || number(&host(&lab, "h00")["pressure"]["slabs_taken"]);
    let show = || host(&lab, "h00").to_string();
    wait_until("a slab is taken", || taken() > 0, show);
    wait_until(
        "the volume knows",
        || lab.status()["health"] == "degraded",
        || lab.status().to_string(),
    );
    leave(&lab, "h00", None);
    lab.wait_healthy();
}
