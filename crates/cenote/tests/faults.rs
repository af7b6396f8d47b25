//! Faults under load: real host processes are killed and stopped under a real NBD client.
//!
//! The load is `fio --verify`: it writes blocks that carry their own checksum and position,
//! reads all of them back, and fails on an I/O error or a wrong byte. Faults are triggered
//! by how far it got, not by time.

mod support;

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Folder, cenote, signal};

/// Twelve hosts and a server of one rs:8+2 volume on them.
struct Lab {
    server: Child,
    folder: Folder,
}

const HOSTS: &str = "12";
const VOLUME: &str = "v0";

impl Lab {
    fn new(transport: &str, scheme: &str) -> Self {
        let folder = Folder::new();
        let hosts = [
            "up",
            "--hosts",
            HOSTS,
            "--memory",
            "96M",
            "--transport",
            transport,
        ];
        folder.run(&hosts).expect(0);
        folder
            .run(&[
                "volume", "create", VOLUME, "--size", "256M", "--scheme", scheme,
            ])
            .expect(0);
        let server = cenote()
            .args(["nbd", "--volume", VOLUME, "--cluster"])
            .arg(folder.path().join("cluster.toml"))
            .arg("--socket")
            .arg(folder.path().join("nbd"))
            .stdout(Stdio::null())
            .spawn()
            .expect("the server starts");
        let lab = Self { server, folder };
        wait_until("the server listens", || lab.socket().exists(), String::new);
        lab
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd")
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket().display())
    }

    /// Writes and verifies the whole volume in 4 KiB blocks, 16 in flight.
    fn fio(&self) -> Load {
        self.fio_with(&[
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=16",
            "--size=192M",
            "--verify=crc32c",
            "--do_verify=1",
        ])
    }

    fn fio_with(&self, arguments: &[&str]) -> Load {
        let child = Command::new("fio")
            .args([
                "--name=load",
                "--ioengine=nbd",
                "--verify_fatal=1",
                "--verify_state_save=0",
            ])
            .arg(format!("--uri={}", self.uri()))
            // Slow enough that faults land in the middle, whatever the machine.
            .args(["--rate_iops=12000"])
            .args(arguments)
            .current_dir(self.folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("fio is installed");
        Load(child)
    }

    fn status(&self) -> Value {
        let ended = self.folder.run(&["volume", "status", VOLUME, "--json"]);
        assert!([0, 3].contains(&ended.code), "{ended:#?}");
        ended.json()["status"].take()
    }

    fn written(&self) -> u64 {
        self.status()["counters"]["pages_written"]
            .as_u64()
            .expect("a counter")
    }

    fn wait_written(&self, pages: u64) {
        wait_until(
            "pages are written",
            || self.written() >= pages,
            || self.status().to_string(),
        );
    }

    fn health(&self) -> String {
        self.status()["health"].as_str().expect("health").to_owned()
    }

    fn wait_healthy(&self) {
        wait_until(
            "the volume is whole again",
            || self.health() == "healthy",
            || self.status().to_string(),
        );
    }

    fn wait_not_healthy(&self) {
        wait_until(
            "the loss is noticed",
            || self.health() != "healthy",
            || self.status().to_string(),
        );
    }

    /// Names of the hosts of the first extent.
    fn members(&self) -> Vec<String> {
        let status = self.status();
        let hosts = status["extents"][0]["hosts"]
            .as_array()
            .expect("an extent")
            .clone();
        hosts
            .iter()
            .filter_map(|host| host.as_str().map(str::to_owned))
            .collect()
    }

    fn kill(&self, host: &str) {
        signal(self.folder.pid(host), "KILL");
    }

    /// The volume's bytes, as a client copies them out.
    fn content(&self) -> Vec<u8> {
        let file = self.folder.path().join("content");
        let status = Command::new("nbdcopy")
            .args(["--connections=4", &self.uri()])
            .arg(&file)
            .status();
        assert!(status.expect("nbdcopy is installed").success());
        std::fs::read(file).expect("the copy")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        signal(self.server.id(), "CONT");
        signal(self.server.id(), "TERM");
        let ended = self.server.wait();
        assert!(
            std::thread::panicking() || ended.is_ok_and(|status| status.success()),
            "the server ends well"
        );
    }
}

/// A running fio.
struct Load(Child);

impl Load {
    /// Waits for its end; it must have seen no error and no wrong byte.
    fn expect_clean(self) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.0.wait_with_output().expect("fio ends");
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        );
        assert!(status.success(), "fio: {text}");
        assert!(text.contains("err= 0"), "fio: {text}");
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool, state: impl Fn() -> String) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "waited in vain until {what}: {}",
            state()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the client tools are there; says so when the test is skipped.
fn has_tools() -> bool {
    let missing = ["fio", "nbdcopy"].into_iter().find(|tool| {
        Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_err()
    });
    if let Some(tool) = missing {
        eprintln!("skipped: {tool} is not installed (scripts/install-packages.sh installs it)");
    }
    missing.is_none()
}

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
            lab.wait_not_healthy();
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
    // The hosts that hold nothing of the first extent are where its lost slab can go.
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
    lab.wait_not_healthy();
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
    let same = [
        "--rw=randwrite",
        "--size=4M",
        "--iodepth=8",
        "--numjobs=2",
        "--norandommap=1",
        "--io_size=64M",
    ];
    lab.fio_with(&[&same[..], &["--bs=4k"]].concat())
        .expect_clean();
    lab.fio_with(&[&same[..], &["--bs=512", "--io_size=8M"]].concat())
        .expect_clean();
    let before = lab.content();
    let members = lab.members();
    lab.kill(&members[1]);
    lab.kill(&members[3]);
    lab.wait_not_healthy();
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
