//! How nodes of a store serve their clients: who may ask, by which sockets, within which memory; and what they
//! tell Prometheus. Without etcd it is left out.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::memcached::{connect, with_value};
use support::well::{PATIENCE, Well};
use support::{run, signal, words};

const GROUPS: [&str; 6] = ["--nodes", "3", "--groups", "3", "--code", "2+1"];

/// Says something that ends with `mn`, and reads all answers.
fn ask(stream: &mut (impl Read + Write), said: &str) -> String {
    stream.write_all(said.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    while !answer.ends_with(b"MN\r\n") {
        let mut piece = [0; 4096];
        let length = match stream.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            length => length.expect("an answer"),
        };
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
    let serving = format!(
        "--users {users} --unix-socket socket --unix-mask 750 --max-item-size 2K --connections 5 \
         --later-meta"
    );
    let serving = words(&serving);
    let Some(well) = Well::up(&[&GROUPS[..], &serving].concat()) else {
        return;
    };
    let clients = well.clients();
    let mut stranger = TcpStream::connect(clients[0]).expect("it listens");
    stranger.write_all(b"get a\r\n").expect("it reads");
    let mut said = [0; 30];
    stranger.read_exact(&mut said).expect("an answer");
    assert_eq!(&said, b"CLIENT_ERROR unauthenticated\r\n");

    let socket = well.path("nodes/n01/socket");
    let mode = fs::metadata(&socket).expect("it is there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o750);
    let mut socket = UnixStream::connect(socket).expect("it listens");
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
fn silent_clients_are_let_go_and_full_memory_is_told_where_that_is_wished() {
    let serving = words("--memory 96M --idle-timeout 5s --no-evictions");
    let Some(well) = Well::up(&[&GROUPS[..], &serving].concat()) else {
        return;
    };
    let clients = well.clients();
    let mut stream = TcpStream::connect(clients[1]).expect("it listens");
    let length = 100_000;
    let value = "v".repeat(length);
    let mut stored = Vec::new();
    let refused = (0..).find_map(|key| {
        let said = ask(
            &mut stream,
            &format!("set k{key} 0 0 {length}\r\n{value}\r\nmn\r\n"),
        );
        let is_stored = said == "STORED\r\nMN\r\n";
        stored.extend(is_stored.then_some(key));
        assert!(key * length < 3 << 30, "it takes more than there is");
        (!is_stored).then_some(said)
    });
    let refused = refused.expect("an answer");
    assert!(
        refused.starts_with("SERVER_ERROR out of memory"),
        "{refused}"
    );
    for key in stored {
        let said = ask(&mut stream, &format!("get k{key}\r\nmn\r\n"));
        assert!(said.starts_with("VALUE "), "k{key}: {said}");
    }
    // It says nothing more, and is told nothing.
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("it is let go");
    assert!(rest.is_empty(), "{rest:?}");
}

/// A client that knows TLS, and whom to believe.
struct Tls(Child);

impl Tls {
    fn connect(address: SocketAddr, authority: &str) -> Self {
        Self::connect_as(address, authority, &[])
    }

    /// One that says who it is, by such words of openssl's.
    fn connect_as(address: SocketAddr, authority: &str, who: &[&str]) -> Self {
        let child = Command::new("openssl")
            .args(["s_client", "-quiet", "-verify_return_error"])
            .args(["-CAfile", authority, "-connect", &address.to_string()])
            .args(who)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("openssl made the certificate"))
    }
}

impl Read for Tls {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.stdout.as_mut().expect("it is piped").read(bytes)
    }
}

impl Write for Tls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.stdin.as_mut().expect("it is piped").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.stdin.as_mut().expect("it is piped").flush()
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn clients_come_by_tls_alone_where_there_is_a_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let [certificate, key, other, users] = ["certificate", "key", "other", "users"].map(path);
    for (certificate, key) in [(&certificate, &key), (&other, &path("other-key"))] {
        let made = Command::new("openssl")
            .args(words("req -x509 -newkey rsa:2048 -nodes -days 2"))
            .args(words("-subj /CN=well -addext subjectAltName=IP:127.0.0.1"))
            .args(["-keyout", key, "-out", certificate])
            .output();
        let Ok(made) = made else {
            return println!("skipped: openssl is not installed");
        };
        assert!(made.status.success(), "{made:?}");
    }
    fs::write(&users, "ann:secret\n").expect("a file");
    let serving = format!("--tls-cert {certificate} --tls-key {key} --users {users}");
    let serving = words(&serving);
    let Some(well) = Well::up(&[&GROUPS[..], &serving].concat()) else {
        return;
    };
    let clients = well.clients();
    let mut client = Tls::connect(clients[0], &certificate);
    let known = "set who 0 0 10\r\nann secret\r\n";
    let sets: String = (0..20)
        .map(|key| format!("set k{key} 0 0 1\r\n1\r\n"))
        .collect();
    let said = ask(&mut client, &format!("{known}{sets}mn\r\n"));
    assert_eq!(said, "STORED\r\n".repeat(21) + "MN\r\n");
    let mut elsewhere = Tls::connect(clients[1], &certificate);
    let keys: String = (0..20).map(|key| format!(" k{key}")).collect();
    let said = ask(&mut elsewhere, &format!("{known}get{keys}\r\nmn\r\n"));
    assert_eq!(said.matches("VALUE k").count(), 20, "{said}");

    // Neither without TLS, nor with another certificate to believe, nor unknown.
    let mut plain = TcpStream::connect(clients[0]).expect("it listens");
    plain.write_all(b"version\r\n").expect("it reads");
    let mut said = Vec::new();
    // It may be reset: what was said was not all read.
    drop(plain.read_to_end(&mut said));
    assert!(
        !said.windows(7).any(|piece| piece == b"VERSION"),
        "{said:?}"
    );
    let mut suspicious = Tls::connect(clients[0], &other);
    let mut said = Vec::new();
    suspicious.read_to_end(&mut said).expect("it ends");
    assert!(said.is_empty(), "{said:?}");
    let mut stranger = Tls::connect(clients[2], &certificate);
    stranger.write_all(b"get k0\r\n").expect("it reads");
    let mut said = [0; 30];
    stranger.read_exact(&mut said).expect("an answer");
    assert_eq!(&said, b"CLIENT_ERROR unauthenticated\r\n");
}

#[test]
fn clients_without_a_certificate_are_refused_where_that_is_required() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let [certificate, key, ann, ann_key] = ["certificate", "key", "ann", "ann-key"].map(path);
    // The one certifies itself and, as one has to who is no authority, the client.
    let server = words("-subj /CN=well -addext subjectAltName=IP:127.0.0.1");
    let client =
        format!("-subj /CN=ann -addext basicConstraints=CA:FALSE -CA {certificate} -CAkey {key}");
    for (certificate, key, what) in [
        (&certificate, &key, &server),
        (&ann, &ann_key, &words(&client)),
    ] {
        let made = Command::new("openssl")
            .args(words("req -x509 -newkey rsa:2048 -nodes -days 2"))
            .args(what)
            .args(["-keyout", key, "-out", certificate])
            .output();
        let Ok(made) = made else {
            return println!("skipped: openssl is not installed");
        };
        assert!(made.status.success(), "{made:?}");
    }
    let serving =
        format!("--tls-cert {certificate} --tls-key {key} --tls-ca {certificate} --tls-required");
    let serving = words(&serving);
    let Some(well) = Well::up(&[&GROUPS[..], &serving].concat()) else {
        return;
    };
    let clients = well.clients();
    let who = ["-cert", &ann, "-key", &ann_key];
    let mut known = Tls::connect_as(clients[0], &certificate, &who);
    assert_eq!(
        ask(&mut known, "set a 0 0 1\r\n1\r\nmn\r\n"),
        "STORED\r\nMN\r\n"
    );
    let mut stranger = Tls::connect(clients[0], &certificate);
    // It may be gone already.
    drop(stranger.write_all(b"get a\r\nquit\r\n"));
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).expect("it ends");
    assert!(said.is_empty(), "{said:?}");
}

/// Asks in one datagram until all datagrams of an answer have come.
fn ask_by_udp(socket: &UdpSocket, said: &str, number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    let request = [&[high, low, 0, 0, 0, 1, 0, 0], said.as_bytes()].concat();
    let deadline = Instant::now() + PATIENCE;
    let mut parts = BTreeMap::new();
    loop {
        assert!(Instant::now() < deadline, "{said}: {parts:?}");
        socket.send(&request).expect("it listens");
        let mut bytes = [0; 2048];
        while let Ok(length) = socket.recv(&mut bytes) {
            let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            if word(0) != number {
                continue;
            }
            parts.insert(word(2), bytes[8..length].to_vec());
            if parts.len() == usize::from(word(4)) {
                let all = parts.into_values().flatten().collect();
                return String::from_utf8(all).expect("text");
            }
        }
    }
}

#[test]
fn clients_come_by_udp_to_keys_of_all_nodes() {
    let Some(well) = Well::up(&GROUPS) else {
        return;
    };
    // UDP needs a port: that which was found for TCP.
    let address = well.clients()[1];
    signal(well.pid("nodes/n01"), "KILL");
    let at = address.to_string();
    let again = ["join", "--name", "n01", "--udp", "--clients", &at];
    well.run(&again).expect(0);
    well.until_whole();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.connect(address).expect("an address");
    let silence = Some(Duration::from_secs(1));
    socket.set_read_timeout(silence).expect("a time");
    for number in 0..20 {
        // More than one datagram has.
        let value = number.to_string().repeat(2500);
        let length = value.len();
        let mut client = connect(well.clients()[0]).expect("it listens");
        let said = client.ask(&with_value(&format!("set u{number}"), value.as_bytes(), ""));
        assert_eq!(said.expect("an answer"), "STORED");
        let said = ask_by_udp(&socket, &format!("get u{number}\r\n"), number);
        assert_eq!(
            said,
            format!("VALUE u{number} 0 {length}\r\n{value}\r\nEND\r\n")
        );
        let said = ask_by_udp(
            &socket,
            &format!("set v{number} 0 0 1\r\n7\r\n"),
            100 + number,
        );
        assert_eq!(said, "STORED\r\n");
        assert_eq!(
            client.get(&format!("v{number}")).expect("an answer"),
            Some(b"7".to_vec())
        );
    }
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
    let mut client = connect(well.clients()[0]).expect("it listens");
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
    for text in &all {
        let (_, page) = text.split_once("\r\n\r\n").expect("a page");
        assert_eq!(support::prometheus::faults(page), Vec::<String>::new());
    }
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
    assert!(sum("memcached_malloced_bytes ") > 0.0);
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

/// What memcached_exporter reads of `stats`, `stats slabs` and `stats items`, without what it takes as
/// absent where a server has no segmented LRU, no disk and no proxy.
const GENERAL: &str = "uptime time version cas_badval cmd_flush cmd_set rusage_user rusage_system bytes limit_maxbytes \
    curr_items total_items bytes_read bytes_written curr_connections total_connections rejected_connections conn_yields \
    listen_disabled_num evictions reclaimed store_too_large store_no_memory accepting_conns \
    get_hits get_misses delete_hits delete_misses incr_hits incr_misses decr_hits decr_misses cas_hits cas_misses \
    touch_hits touch_misses";
const OF_SLABS: &str = "get_hits delete_hits incr_hits decr_hits cas_hits touch_hits cas_badval cmd_set chunk_size \
    chunks_per_page total_pages total_chunks used_chunks free_chunks free_chunks_end mem_requested";
const OF_ITEMS: &str = "number evicted evicted_unfetched expired_unfetched outofmemory reclaimed";

#[test]
fn memcacheds_exporter_finds_what_it_reads() {
    let Some(well) = Well::up(&GROUPS) else {
        return;
    };
    let mut stream = TcpStream::connect(well.clients()[1]).expect("it listens");
    let sets: String = (0..20)
        .map(|key| format!("set k{key} 0 0 1\r\n1\r\n"))
        .collect();
    ask(&mut stream, &(sets + "mn\r\n"));
    let mut check = |command: &str, before: usize, names: &str| {
        let said = ask(&mut stream, &format!("{command}\r\nmn\r\n"));
        let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split(' ').collect()).collect();
        for name in names.split_whitespace() {
            let is_it = |words: &&Vec<&str>| {
                let mut parts = words.get(1).map_or("", |word| word).split(':').skip(before);
                words.len() == 3 && parts.next() == Some(name) && parts.next().is_none()
            };
            let found = lines.iter().find(is_it);
            let found = found.unwrap_or_else(|| panic!("{name} is not in {said}"));
            assert!(
                name == "version" || found[2].parse::<f64>().is_ok(),
                "{found:?}"
            );
        }
        lines
            .iter()
            .filter(|words| words[0] == "STAT")
            .all(|words| matches!(words.len(), 3 | 4))
    };
    check("stats", 0, GENERAL);
    check("stats slabs", 1, OF_SLABS);
    check("stats slabs", 0, "active_slabs total_malloced");
    check("stats items", 2, OF_ITEMS);
    // Of settings it can read no other line than these.
    assert!(check("stats settings", 0, "maxconns"));
}
