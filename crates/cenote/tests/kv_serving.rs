//! How nodes of a store serve their clients: who may ask, by which sockets, within which memory; and what they
//! tell Prometheus. Without etcd it is left out.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use support::memcached::{Client, with_value};
use support::run;
use support::well::Well;

const GROUPS: [&str; 6] = ["--nodes", "3", "--groups", "3", "--code", "2+1"];

/// Says something that ends with `mn`, and reads all answers.
fn ask(stream: &mut (impl Read + Write), said: &str) -> String {
    stream.write_all(said.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    while !answer.ends_with(b"MN\r\n") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).expect("an answer");
        assert!(length > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..length]);
    }
    String::from_utf8(answer).expect("text")
}

#[test]
fn clients_say_who_they_are_and_come_by_what_sockets_there_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let users = folder.path().join("users");
    fs::write(&users, "ann:secret\n").expect("a file");
    let users = users.to_str().expect("UTF-8");
    let serving = [
        "--users",
        users,
        "--unix-socket",
        "socket",
        "--max-item-size",
        "2K",
        "--connections",
        "5",
        "--later-meta",
    ];
    let Some(well) = Well::up(&[&GROUPS[..], &serving].concat()) else {
        return;
    };
    let clients = well.clients();
    let mut stranger = TcpStream::connect(clients[0]).expect("it listens");
    stranger.write_all(b"get a\r\n").expect("it reads");
    let mut said = [0; 30];
    let length = stranger.read(&mut said).expect("an answer");
    assert_eq!(&said[..length], b"CLIENT_ERROR unauthenticated\r\n");

    let mut socket = UnixStream::connect(well.path("nodes/n01/socket")).expect("it listens");
    let known = "set who 0 0 10\r\nann secret\r\n";
    let large = format!("set b 0 0 3000\r\n{}\r\n", "v".repeat(3000));
    let said = ask(
        &mut socket,
        &format!("{known}set a 0 0 1\r\n1\r\n{large}ms c 1 MA N0\r\n7\r\nmn\r\n"),
    );
    let too_large = "SERVER_ERROR object too large for cache\r\n";
    assert_eq!(said, format!("STORED\r\nSTORED\r\n{too_large}HD\r\nMN\r\n"));
    let mut known_elsewhere = TcpStream::connect(clients[2]).expect("it listens");
    let said = ask(&mut known_elsewhere, &format!("{known}get a c\r\nmn\r\n"));
    assert_eq!(
        said,
        "STORED\r\nVALUE a 0 1\r\n1\r\nVALUE c 0 1\r\n7\r\nEND\r\nMN\r\n"
    );

    let mut more: Vec<_> = (0..5).map(|_| TcpStream::connect(clients[2])).collect();
    let mut last = more.pop().expect("five").expect("it listens");
    let mut said = String::new();
    last.read_to_string(&mut said).expect("an answer");
    assert_eq!(said, "ERROR Too many open connections\r\n");
}

#[test]
fn all_of_a_node_stays_within_its_memory() {
    let Some(well) = Well::up(&[&GROUPS[..], &["--memory", "96M"]].concat()) else {
        return;
    };
    let limit = 96 << 20;
    let beyond = 8 << 20;
    let taken = || {
        let taken = |name| {
            let pid = well.pid(&format!("nodes/{name}"));
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
            let number = line.and_then(|line| line.split_whitespace().next());
            number
                .and_then(|number| number.parse().ok())
                .unwrap_or(u64::MAX / 1024)
                * 1024
        };
        ["n00", "n01", "n02"].map(taken)
    };
    let mut stream = TcpStream::connect(well.clients()[0]).expect("it listens");
    for (kind, count, length) in [
        ("s", 400_000, 10),
        ("m", 120_000, 1_000),
        ("l", 1_500, 100_000),
    ] {
        let value = "v".repeat(length);
        let batch = (100_000 / (length + 40)).max(1);
        for first in (0..count).step_by(batch) {
            let keys = first..count.min(first + batch);
            let sets =
                keys.map(|key| format!("set {kind}{key} 0 0 {length} noreply\r\n{value}\r\n"));
            let said = sets.collect::<String>() + "mn\r\n";
            assert_eq!(ask(&mut stream, &said), "MN\r\n");
        }
        let taken = taken();
        assert!(
            taken.iter().all(|taken| *taken <= limit + beyond),
            "{kind}: {taken:?}"
        );
    }
    let status = well.status();
    let evictions = status["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| {
            let groups = node["report"]["groups"].as_array().expect("groups").iter();
            let owned = groups
                .filter_map(|group| group["owned"].as_array())
                .flatten();
            owned
                .filter_map(|owned| owned["evictions"].as_u64())
                .sum::<u64>()
        });
    assert!(evictions.min().expect("three") > 0, "{status:#}");
}

#[test]
fn prometheus_is_told_what_memcacheds_exporter_tells_and_how_groups_are() {
    let Some(well) = Well::up(&[&GROUPS[..], &["--metrics", "127.0.0.1:0"]].concat()) else {
        return;
    };
    let mut client = Client::connect(well.clients()[0]).expect("it listens");
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let said = client.ask(&with_value(&format!("set {key}"), b"value", ""));
        assert_eq!(said.expect("an answer"), "STORED");
        assert_eq!(client.get(key).expect("an answer"), Some(b"value".to_vec()));
    }
    well.until("every node has said how its groups are", |status| {
        let mut nodes = status["nodes"].as_array().expect("nodes").iter();
        nodes.all(|node| {
            node["report"]["groups"]
                .as_array()
                .is_some_and(|groups| groups.len() == 3)
        })
    });
    let scrape = |node: &str| {
        let log = fs::read_to_string(well.path(&format!("nodes/{node}/log"))).expect("a log");
        let address = log
            .lines()
            .find_map(|line| line.strip_prefix("metrics at http://"));
        let address = address
            .and_then(|url| url.strip_suffix("/metrics"))
            .expect("it says so");
        let address: SocketAddr = address.parse().expect("an address");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
            .expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    let all = ["n00", "n01", "n02"].map(scrape);
    let sum = |name: &str| {
        let values = all.iter().map(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let value = line.unwrap_or_else(|| panic!("{name} in {text}"));
            value.trim().parse::<f64>().expect("a number")
        });
        values.sum::<f64>()
    };
    assert_eq!(sum("memcached_up "), 3.0);
    assert_eq!(
        sum("memcached_commands_total{command=\"get\",status=\"hit\"} "),
        8.0
    );
    assert_eq!(
        sum("memcached_commands_total{command=\"get\",status=\"miss\"} "),
        0.0
    );
    assert_eq!(
        sum("memcached_commands_total{command=\"set\",status=\"hit\"} "),
        8.0
    );
    assert_eq!(sum("memcached_current_items "), 8.0);
    assert_eq!(sum("memcached_items_total "), 8.0);
    assert_eq!(sum("memcached_items_evicted_total "), 0.0);
    assert_eq!(
        sum("memcached_limit_bytes "),
        3.0 * 1024.0 * 1024.0 * 1024.0
    );
    assert!(sum("memcached_current_connections ") >= 1.0);
    assert!(sum("memcached_uptime_seconds ") >= 0.0);
    assert_eq!(sum("cenote_kv_group_missing_bytes{group=\"0\"} "), 0.0);
    assert!(sum("cenote_kv_group_view{group=\"2\"} ") >= 3.0);
    assert!(all[0].contains("memcached_version{version=\"1.6.18-cenote"));
    let roles = all.iter().flat_map(|text| text.lines());
    let roles = roles.filter(|line| line.starts_with("cenote_kv_group_role{"));
    assert_eq!(
        roles
            .filter(|line| line.contains("home") || line.contains("full"))
            .count(),
        9
    );
    let remote = run(&["kv", "node", "--help"]).expect(0);
    assert!(remote.stdout.contains("--allow-remote"));
}
