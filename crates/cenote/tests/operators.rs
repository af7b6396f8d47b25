//! What operators use when something is wrong: doctor, the bundle for a bug report, `--watch`; against
//! processes that run, and some that do not any more.

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Ended, Folder, cenote, signal, wait_ended, words};

/// Three hosts and a volume that is served in the background, with a page of metrics.
fn up() -> Folder {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "3", "--memory", "16M"])
        .expect(0);
    let socket = folder.path().join("nbd");
    let socket = socket.to_str().expect("UTF-8");
    let serve = words("nbd --volume v0 --size 8M --scheme rs:2+1");
    let at = format!("--socket {socket} --metrics 127.0.0.1:0 --background");
    let at = words(&at);
    folder.run(&[&serve[..], &at].concat()).expect(0);
    folder
}

fn server_of(folder: &Folder) -> u32 {
    let pid = folder.path().join("servers/v0/pid");
    let text = fs::read_to_string(pid).expect("a pid file");
    text.trim().parse().expect("a number")
}

/// What no bundle may have.
const PLANTED: [&str; 7] = [
    "hunter2hunter2",
    "url-secret-4711",
    "abcdef.bearer.ghijkl",
    "opensesame-77",
    "MIIEvQIBADANBgkqhkiG9w0",
    "env-secret-99",
    "deadbeef00112233",
];

/// Puts secrets where one might find them: in files that have them, and in the log of a host.
fn plant(folder: &Folder) -> String {
    let root = folder.path();
    let key = fs::read_to_string(root.join("cluster.key")).expect("the key");
    let key = key.trim().to_owned();
    let private = |path: &Path, text: &str| {
        fs::write(path, text).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set");
    };
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        PLANTED[4]
    );
    private(&root.join("users"), &format!("alice:{}\n", PLANTED[3]));
    private(&root.join("servers/v0/extra.pem"), &pem);
    private(
        &root.join("extra.toml"),
        &format!("name = \"kept\"\napi_token = \"{}\"\n", PLANTED[6]),
    );
    let log = root.join("hosts/h00/log");
    let mut log = fs::OpenOptions::new()
        .append(true)
        .open(log)
        .expect("a log");
    write!(
        log,
        "\nkey {key}\nupper {}\npassword={}\nhttp://root:{}@10.0.0.1:2379/\n\
         Authorization: Bearer {}\nlogin {}\n{pem}from the environment {}\na line that stays\n",
        key.to_uppercase(),
        PLANTED[0],
        PLANTED[1],
        PLANTED[2],
        PLANTED[3],
        PLANTED[5],
    )
    .expect("written");
    key
}

/// Makes a bundle and unpacks it with tar; where, and what the command said.
fn bundle(folder: &Folder, into: &Path, timeout: &str) -> (PathBuf, Ended) {
    let file = into.join("report.tar.gz");
    let ended = cenote()
        .args(words(&format!(
            "support-bundle --json --timeout {timeout} --dir {} --out",
            folder.str()
        )))
        .arg(&file)
        .env("CENOTE_ETCD_PASSWORD", PLANTED[5])
        .output();
    let ended = Ended::from(ended.expect("the binary runs")).expect(0);
    assert_eq!(
        fs::metadata(&file).expect("made").permissions().mode() & 0o777,
        0o600
    );
    let unpacked = Command::new("tar")
        .arg("xzf")
        .arg(&file)
        .arg("-C")
        .arg(into)
        .output();
    let unpacked = unpacked.expect("tar runs");
    assert!(unpacked.status.success(), "{unpacked:?}");
    fs::remove_file(&file).expect("removed");
    let mut inside = fs::read_dir(into).expect("listed");
    let root = inside.next().expect("one folder").expect("read").path();
    (root, ended)
}

fn files(root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(root).expect("listed") {
        let path = entry.expect("read").path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push(path),
        }
    }
    all
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}: {text}", path.display()))
}

#[test]
fn a_bundle_has_what_a_report_needs_and_no_secret_also_with_a_dead_host() {
    let folder = up();
    let key = plant(&folder);
    let host = folder.pid("h01");
    signal(host, "KILL");
    wait_ended(host);
    let into = tempfile::tempdir().expect("a folder");
    let (root, ended) = bundle(&folder, into.path(), "60s");

    for path in files(&root) {
        let text = String::from_utf8_lossy(&fs::read(&path).expect("read")).into_owned();
        let upper = key.to_uppercase();
        for secret in PLANTED.iter().copied().chain([key.as_str(), &upper]) {
            assert!(
                !text.contains(secret),
                "{}: {secret}: {text}",
                path.display()
            );
        }
    }
    let manifest = json(&root.join("manifest.json"));
    assert_eq!(manifest["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(manifest["parts"], ended.json()["parts"]);
    let part = |name: &str| {
        let parts = manifest["parts"].as_array().expect("parts");
        let found = parts.iter().find(|part| part["name"] == name);
        found
            .unwrap_or_else(|| panic!("{name}: {manifest:#}"))
            .clone()
    };
    // Hosts are not all up: the answer is there, and the code says so.
    assert_eq!(part("status/hosts.json")["code"], 3, "{manifest:#}");
    let hosts = json(&root.join("status/hosts.json"));
    let state = |at: usize| hosts["hosts"][at]["state"].clone();
    assert_eq!(
        [state(0), state(1), state(2)],
        ["up", "ended", "up"],
        "{hosts:#}"
    );
    let volumes = json(&root.join("status/volumes.json"));
    assert_eq!(volumes[0]["name"], "v0", "{volumes:#}");
    let doctor = json(&root.join("doctor.json"));
    let findings = doctor["findings"].as_array().expect("findings");
    let found = findings
        .iter()
        .find(|finding| finding["subject"] == "hosts");
    assert!(
        found.expect("hosts")["found"]
            .as_str()
            .expect("text")
            .contains("h01"),
        "{doctor:#}"
    );
    assert!(json(&root.join("kernel.json"))["files"]["/proc/version"].is_string());
    let read = |name: &str| fs::read_to_string(root.join(name)).expect(name);
    assert!(read("logs/hosts/h00/log").contains("a line that stays"));
    assert!(read("config/cluster.toml").contains("name = \"h02\""));
    assert!(read("config/extra.toml").contains("name = \"kept\""));
    assert!(read("config/volumes/v0.toml").contains("rs:2+1"));
    let pages: Vec<_> = files(&root.join("metrics"));
    let page = fs::read_to_string(pages.first().expect("a page")).expect("read");
    assert!(page.contains("cenote_volume_size_bytes 8388608"), "{page}");
    for missing in ["users", "cluster.key", "extra.pem"] {
        let is_there = files(&root).iter().any(|path| path.ends_with(missing));
        assert!(!is_there, "{missing}");
    }
}

#[test]
fn a_bundle_notes_what_does_not_answer() {
    let folder = up();
    let server = server_of(&folder);
    signal(server, "STOP");
    let into = tempfile::tempdir().expect("a folder");
    let (root, _) = bundle(&folder, into.path(), "10s");
    signal(server, "CONT");
    let manifest = json(&root.join("manifest.json"));
    let parts = manifest["parts"].as_array().expect("parts");
    let error_of = |name: &str| {
        let found = parts.iter().find(|part| part["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {manifest:#}"))["error"].clone()
    };
    // One owner that is stopped takes nothing of the others away.
    let hosts = json(&root.join("status/hosts.json"));
    assert_eq!(hosts["hosts_up"], 3, "{hosts:#}");
    let volumes = json(&root.join("status/volumes.json"));
    let why = volumes[0]["error"].as_str().expect("an error");
    assert!(why.contains("v0: its server does not answer"), "{why}");
    let doctor = json(&root.join("doctor.json"));
    assert_eq!(doctor["state"], "warning", "{doctor:#}");
    let page = parts.iter().find(|part| {
        part["name"]
            .as_str()
            .expect("a name")
            .starts_with("metrics/")
    });
    assert!(page.expect("a page")["error"].is_string(), "{manifest:#}");
    // And the rest is there.
    assert_eq!(error_of("kernel.json"), Value::Null);
    assert!(root.join("logs/servers/v0/log").exists());
}

#[test]
fn a_swap_server_that_says_nothing_is_given_up() {
    let folder = Folder::new();
    let swap = folder.path().join("swap");
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&swap)
        .expect("made");
    let _silent = UnixListener::bind(swap.join("swap.sock")).expect("it listens");
    let only = ["doctor", "--json", "--timeout", "200ms", "--only", "swap"];
    // Without a limit this would not end.
    let report = folder.run(&only).expect(0).json();
    let findings = report["findings"].as_array().expect("findings");
    assert_eq!(findings.len(), 1, "{report:#}");
    assert_eq!(findings[0]["state"], "warning", "{report:#}");
}

#[test]
fn a_bundle_overwrites_nothing() {
    let into = tempfile::tempdir().expect("a folder");
    let file = into.path().join("report.tar.gz");
    fs::write(&file, "mine").expect("written");
    let ended = support::run(&["support-bundle", "--out", file.to_str().expect("UTF-8")]);
    assert!(ended.expect(1).stderr.contains("report.tar.gz"));
    assert_eq!(fs::read_to_string(&file).expect("there"), "mine");
}

#[test]
fn doctor_finds_what_has_ended_and_forgets_it_when_asked_to() {
    let folder = up();
    let server = server_of(&folder);
    signal(server, "KILL");
    wait_ended(server);
    let host = folder.pid("h02");
    signal(host, "KILL");
    wait_ended(host);
    let look = |more: &[&str]| {
        let only = ["doctor", "--json", "--only", "hosts", "--only", "processes"];
        folder.run(&[&only[..], more].concat()).expect(0).json()
    };
    let before = look(&[]);
    let found = |report: &Value, subject: &str| {
        let findings = report["findings"].as_array().expect("findings");
        let found = findings
            .iter()
            .find(|finding| finding["subject"] == subject);
        found
            .unwrap_or_else(|| panic!("{subject}: {report:#}"))
            .clone()
    };
    assert_eq!(
        found(&before, "processes")["state"],
        "warning",
        "{before:#}"
    );
    assert_eq!(found(&before, "processes")["fixable"], true, "{before:#}");
    let hosts = found(&before, "hosts");
    assert!(
        hosts["found"]
            .as_str()
            .expect("text")
            .starts_with("2 of 3 answer; h02"),
        "{hosts}"
    );
    assert!(before["mended"].is_null());
    assert!(
        folder.path().join("servers/v0/pid").exists(),
        "it only looked"
    );

    let after = look(&["--fix"]);
    let mended = after["mended"].as_array().expect("what was done");
    assert_eq!(mended.len(), 1, "{after:#}");
    let did = mended[0]["did"].as_str().expect("done");
    assert!(did.contains(&format!("servers/v0 (was {server})")), "{did}");
    assert_eq!(found(&after, "processes")["state"], "ok", "{after:#}");
    assert!(!folder.path().join("servers/v0/pid").exists());
    // What the volume holds is for its next owner, and a host that is down stays one.
    assert!(folder.path().join("volumes/v0.journal").exists());
    assert!(folder.path().join("hosts/h02/pid").exists());
    assert_eq!(found(&after, "hosts")["state"], "warning", "{after:#}");
    let status = folder.run(&["status", "--json"]).expect(3).json();
    assert_eq!(status["hosts"][2]["state"], "ended", "{status:#}");
}

#[test]
fn a_status_that_is_watched_is_told_again_and_again_until_nobody_reads() {
    let folder = up();
    for command in [
        &["status"][..],
        &["volume", "status"],
        &["volume", "status", "v0"],
        &["volume", "list"],
    ] {
        let mut child = cenote()
            .args(command)
            .args(["--watch=100ms", "--json", "--dir", folder.str()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        for _ in 0..3 {
            let line = lines.next().expect("one more").expect("read");
            let value: Value = serde_json::from_str(&line).expect("a page of JSON in a line");
            assert!(value.is_object() || value.is_array(), "{line}");
        }
        drop(lines);
        assert!(!child.wait().expect("it ends").success(), "{command:?}");
    }
    // A mistake in the arguments is none to wait for.
    support::run(&["status", "--watch", "--dir", "/nowhere"]).expect(1);
}
