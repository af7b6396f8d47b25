//! The disk with the cluster's folder is full: what commands leave there, and what they say of it.

mod support;

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::Value;
use support::lab::wait_until;
use support::nbd::Client;
use support::server::Server;
use support::small_disk::SmallDisk;
use support::{Folder, cenote, run, signal, words};

fn hosts(count: &str) -> Folder {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", count, "--memory", "96M"])
        .expect(0);
    folder
}

#[test]
fn a_volume_that_has_no_room_is_not_there_and_can_be_made_once_there_is() {
    let hosts = hosts("3");
    let Some(disk) = SmallDisk::mount(&hosts, "8M") else {
        return;
    };
    // The folder of the volumes takes none of a tmpfs; what is in it does.
    disk.fill();
    let create = words("volume create v0 --size 4M --scheme mirror:2");
    for _ in 0..2 {
        let refused = disk.run(&create).expect(1);
        assert!(refused.stderr.contains("No space left"), "{refused:#?}");
        let left = std::fs::read_dir(disk.path().join("volumes"));
        let left: Vec<_> = left.into_iter().flatten().collect();
        // A lock that is empty is of no volume.
        let is_of_volume = |entry: &std::io::Result<std::fs::DirEntry>| {
            let name = entry.as_ref().expect("an entry").file_name();
            !name.to_string_lossy().ends_with("lock")
        };
        assert!(!left.iter().any(is_of_volume), "{left:?}");
        let list = disk.run(&["volume", "list", "--json"]).expect(0).json();
        assert_eq!(list, serde_json::json!([]));
    }
    disk.make_room();
    disk.run(&create).expect(0);
    let list = disk.run(&["volume", "list", "--json"]).expect(0).json();
    assert_eq!(list[0]["name"], "v0", "{list}");
    disk.run(&["volume", "delete", "v0"]).expect(0);
}

#[test]
fn volumes_are_reset_and_deleted_where_there_is_no_room_left() {
    let hosts = hosts("3");
    let Some(disk) = SmallDisk::mount(&hosts, "16M") else {
        return;
    };
    for command in ["delete", "reset"] {
        let create = words("volume create v0 --size 4M --scheme mirror:2");
        disk.run(&create).expect(0);
        let mut served = Served::start(&disk, &hosts);
        let mut client = Client::connect(&hosts.path().join("nbd"), "v0");
        assert_eq!(client.write(0, &[1; 4096]), Ok(()));
        drop(client);
        assert_eq!(served.server.end(), Some(0));
        let files = || -> Vec<String> {
            let entries = std::fs::read_dir(disk.path().join("volumes")).expect("a folder");
            let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("one").file_name();
            let names = entries.map(|entry| name(entry).into_string().expect("UTF-8"));
            names.filter(|name| !name.ends_with("lock")).collect()
        };
        assert!(files().contains(&"v0.journal".to_owned()), "{:?}", files());

        disk.fill();
        disk.run(&["volume", command, "v0"]).expect(0);
        let left = match command {
            "delete" => vec![],
            _ => vec!["v0.toml"],
        };
        assert_eq!(files(), left);
        disk.make_room();
    }
    disk.run(&["volume", "delete", "v0"]).expect(0);
}

/// A server of v0, and where its metrics are.
struct Served {
    server: Server,
    metrics: String,
}

impl Served {
    fn start(disk: &SmallDisk, hosts: &Folder) -> Self {
        let mut program = cenote();
        program
            .args(words("nbd --volume v0 --threads 1 --metrics localhost:0"))
            .arg("--dir")
            .arg(disk.path())
            .arg("--socket")
            .arg(hosts.path().join("nbd"))
            .stderr(Stdio::piped());
        let mut server = Server::spawn(program);
        let mut said = BufReader::new(server.child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("where metrics are");
        let rest = line.trim_end().strip_prefix("metrics at http://");
        let metrics = rest.and_then(|rest| rest.strip_suffix("/metrics"));
        let metrics = metrics.unwrap_or_else(|| panic!("{line}")).to_owned();
        std::thread::spawn(move || {
            said.lines()
                .map_while(Result::ok)
                .for_each(|l| eprintln!("{l}"))
        });
        let ready = server.ready();
        assert!(ready.starts_with("ready v0"), "{ready}");
        Self { server, metrics }
    }

    /// A value on the page of metrics.
    fn metric(&self, name: &str) -> String {
        let mut stream = TcpStream::connect(&self.metrics).expect("metrics are served");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: cenote\r\nConnection: close\r\n\r\n")
            .expect("it reads");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("a page");
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{page}")).trim().to_owned()
    }
}

const FAILING: &str = "cenote_volume_journal_failing";
/// A page in each extent of a volume on slabs of 1.5 MiB.
const STRIDE: u64 = 3 << 19;
const SIZE: u64 = 48 << 20;

#[test]
fn a_journal_that_has_no_room_is_told_everywhere_until_it_has_some() {
    let hosts = hosts("4");
    let Some(disk) = SmallDisk::mount(&hosts, "16M") else {
        return;
    };
    let create = words("volume create v0 --size 48M --scheme mirror:2");
    disk.run(&create).expect(0);
    let mut served = Served::start(&disk, &hosts);
    let write = |byte: u8| {
        let mut client = Client::connect(&hosts.path().join("nbd"), "v0");
        let offsets = (0..SIZE).step_by(STRIDE as usize);
        offsets.for_each(|offset| assert_eq!(client.write(offset, &[byte; 4096]), Ok(())));
    };
    let status = || disk.run(&["volume", "status", "v0", "--json"]).json()["status"].take();
    let is_failing = || !status()["journal"]["error"].is_null();
    write(1);
    disk.run(&["volume", "status", "v0"]).expect(0);
    disk.run(&["status", "--timeout", "60s"]).expect(0);
    assert_eq!(served.metric(FAILING), "0");

    disk.fill();
    std::thread::scope(|scope| {
        // Hosts come and go, which is what a journal tells of, until the last of its room is used. What is
        // written meanwhile waits.
        let mut under_way = None;
        for round in 0_u8.. {
            assert!(round < 60, "the journal has room: {}", status());
            let name = format!("h{:02}", round % 4);
            signal(hosts.pid(&name), "KILL");
            under_way.get_or_insert_with(|| scope.spawn(|| write(2)));
            let host_is = |connected: bool| {
                let is_it =
                    |host: &Value| host["name"] == name.as_str() && host["connected"] == connected;
                is_failing()
                    || status()["hosts"]
                        .as_array()
                        .expect("hosts")
                        .iter()
                        .any(is_it)
            };
            // It looks whole until somebody misses the host.
            wait_until(
                "the host is missed",
                || host_is(false),
                || status().to_string(),
            );
            wait_until(
                "the volume is whole, or says why not",
                || is_failing() || status()["health"] == "healthy",
                || status().to_string(),
            );
            if is_failing() {
                break;
            }
            hosts
                .run(&["up", "--hosts", "4", "--memory", "96M"])
                .expect(0);
            wait_until(
                "the host is back",
                || host_is(true),
                || status().to_string(),
            );
        }
        let shown = disk.run(&["volume", "status", "v0"]).expect(3);
        assert!(
            shown.stdout.contains("the journal has not been writable"),
            "{shown:#?}"
        );
        assert!(shown.stdout.contains("No space left"), "{shown:#?}");
        // With all hosts up it is the journal that the exit code tells of.
        hosts
            .run(&["up", "--hosts", "4", "--memory", "96M"])
            .expect(0);
        let all = disk.run(&["status"]).expect(3);
        assert!(all.stdout.contains("4 of 4 hosts up"), "{all:#?}");
        assert!(
            all.stdout.contains("journal has not been writable"),
            "{all:#?}"
        );
        assert_eq!(served.metric(FAILING), "1");

        disk.make_room();
    });
    write(3);
    wait_until(
        "it is whole",
        || status()["health"] == "healthy",
        || status().to_string(),
    );
    disk.run(&["volume", "status", "v0"]).expect(0);
    disk.run(&["status", "--timeout", "60s"]).expect(0);
    assert_eq!(served.metric(FAILING), "0");
    let mut client = Client::connect(&hosts.path().join("nbd"), "v0");
    assert_eq!(client.read(0, 4096), Ok(vec![3; 4096]));
    drop(client);
    assert_eq!(served.server.end(), Some(0));
}

/// As one that was made before stores had secrets: its files have their room.
#[test]
fn a_store_without_a_secret_is_used_where_there_is_no_room_for_one() {
    let hosts = hosts("1");
    let Some(disk) = SmallDisk::mount(&hosts, "8M") else {
        return;
    };
    let store = disk.path().join("objects");
    let dir = store.to_str().expect("UTF-8");
    run(&["store", "create", dir, "--size", "1M"]).expect(0);
    let secret = store.join("secret");
    std::fs::remove_file(&secret).expect("it is there");
    disk.fill();
    // Of a store that has no room nothing is left, not even its folders.
    let large = disk.path().join("new/large");
    let large = [
        "store",
        "create",
        large.to_str().expect("UTF-8"),
        "--size",
        "64M",
    ];
    let refused = run(&large).expect(1);
    assert!(refused.stderr.contains("No space left"), "{refused:#?}");
    assert!(!disk.path().join("new").exists());
    let get = ["store", "get", dir, "key"];
    let used = run(&get).expect(1);
    assert!(used.stderr.contains("there is no object key"), "{used:#?}");
    assert!(used.stderr.contains("make the file secret"), "{used:#?}");
    assert!(!secret.exists());
    disk.make_room();
    let used = run(&get).expect(1);
    assert!(!used.stderr.contains("make the file secret"), "{used:#?}");
    assert!(secret.exists());
}

/// As `cp --sparse=always` makes one: writes to its holes would need room that is not there.
#[test]
fn a_store_with_holes_is_not_served_where_there_is_no_room_for_them() {
    let hosts = hosts("1");
    let Some(disk) = SmallDisk::mount(&hosts, "8M") else {
        return;
    };
    let store = disk.path().join("objects");
    let dir = store.to_str().expect("UTF-8");
    run(&["store", "create", dir, "--size", "1M"]).expect(0);
    let value = disk.path().join("value");
    std::fs::write(&value, b"kept").expect("room");
    let put = ["store", "put", dir, "key", value.to_str().expect("UTF-8")];
    run(&put).expect(0);
    let pool = store.join("pool");
    let dug = std::process::Command::new("fallocate")
        .arg("--dig-holes")
        .arg(&pool)
        .status();
    assert!(dug.expect("util-linux is there").success());
    disk.fill();
    let key = hosts.path().join("cluster.key");
    let key = key.to_str().expect("UTF-8");
    let listen = "tcp:127.0.0.1:0";
    let serve = ["store", "serve", dir, "--listen", listen, "--key", key];
    let refused = run(&serve).expect(1);
    assert!(refused.stderr.contains("No space left"), "{refused:#?}");
    disk.make_room();
    let got = run(&["store", "get", dir, "key"]).expect(0);
    assert_eq!(got.stdout, "kept");
}
