//! Procedures on a cache that `cenote cache create` made: put there by the command, and right while
//! its regions move and a host is killed.

mod support;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use cenote_cache::service::question::Question;
use cenote_fabric::{ClientId, ClusterKey, Connector, Hello, Session, connector};
use cenote_proc::remote::Remote;
use cenote_proc::{CacheId, ProcedureId, Status};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::{Reached, Walk};
use serde_json::Value;
use support::cache_load::open;
use support::gate::Gate;
use support::{Folder, run, signal, well, words};

/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const REGION_BYTES: u64 = 1 << 20;
const REGIONS: u64 = 6;
const NODES: u64 = 48;
const WALK_WASM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../proc/guests/walk.wasm");

fn status(folder: &Folder) -> Value {
    let ask = || folder.run(&["cache", "status", "c0", "--json"]);
    well::until("a status is told", ask, |_| true)["status"].take()
}

fn until_whole(folder: &Folder) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = status(folder);
        if status["whole"] == true {
            return status;
        }
        assert!(Instant::now() < deadline, "{status:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A client of one host's server threads.
struct User {
    remote: Remote,
    // Its end would end the connection.
    _session: Box<dyn Session>,
}

fn user(folder: &Path, address: &str) -> Option<User> {
    let key = ClusterKey::load(&folder.join("cluster.key")).expect("a key");
    let hello = Hello {
        client: ClientId(u128::from(std::process::id())),
        name: "a user of procedures".to_owned(),
    };
    let patience = Duration::from_secs(5);
    let session = connector(key).connect(&address.parse().ok()?, &hello, patience);
    let session = session.ok()?;
    let remote = Remote::new(session.caller_opener()(patience).ok()?, 16);
    Some(User {
        remote,
        _session: session,
    })
}

/// Node i is in region i mod REGIONS and has the value 7 i.
fn place(node: u64) -> u64 {
    node % REGIONS * REGION_BYTES + 4096 + node / REGIONS * 64
}

/// What a walk from each node comes to, tried until it is done: nothing is lost for ever.
fn walk_all(
    users: &mut Vec<User>,
    addresses: &[String],
    folder: &Path,
    to: (CacheId, ProcedureId),
) {
    let deadline = Instant::now() + PATIENCE;
    for (turn, node) in (0..NODES).enumerate() {
        let away = [Away::Fetch, Away::Move][turn % 2];
        let walk = Walk {
            node: place(node),
            hops: 1000,
            next_at: 0,
            value_at: 8,
            away,
        };
        loop {
            assert!(Instant::now() < deadline, "node {node} is not reached");
            if users.is_empty() {
                users.extend(addresses.iter().filter_map(|address| user(folder, address)));
                assert!(
                    !users.is_empty() || Instant::now() < deadline,
                    "no host answers"
                );
                continue;
            }
            let at = turn % users.len();
            match users[at].remote.run(to.0, to.1, &walk.to_bytes()) {
                Ok((Status::Done, answer)) => {
                    let reached = Reached::of(&answer).expect("an answer");
                    let end = (place(NODES - 1), 7 * (NODES - 1));
                    assert_eq!((reached.node, reached.value), end, "from node {node}");
                    break;
                }
                // A host that was killed, or has no slab and was told of nothing.
                Err(_) => drop(users.remove(at)),
                Ok((Status::OutOfBounds, _)) => drop(users.remove(at)),
                Ok((status, _)) => assert!(status.is_retryable(), "{status:?}"),
            }
        }
    }
}

fn follow(transport: &str) {
    let folder = Folder::new();
    folder
        .run(&words(&format!(
            "up --hosts 4 --memory 16M --slab 256K --transport {transport}"
        )))
        .expect(0);
    let arguments = ["--size", "6M", "--region", "1M", "--copies", "2"];
    folder
        .run(&[&["cache", "create", "c0"][..], &arguments].concat())
        .expect(0);
    let whole = until_whole(&folder);
    let id = u128::from_str_radix(whole["id"].as_str().expect("text"), 16).expect("a number");
    let hosts = whole["hosts"].as_array().expect("hosts").clone();
    let text = |host: &Value, of: &str| host[of].as_str().expect("text").to_owned();
    let addresses: Vec<_> = hosts.iter().map(|host| text(host, "address")).collect();

    let put = folder
        .run(&[
            "cache", "proc", "put", "walker", WALK_WASM, "--read", "c0", "--json",
        ])
        .expect(0)
        .json();
    assert_eq!((&put["version"], &put["hosts"]), (&1.into(), &4.into()));
    assert_eq!(put["kept_over_restart"], true);
    let number = put["id"].as_u64().expect("a number");
    let procedure = ProcedureId(u32::try_from(number).expect("32 bits"));
    // The same version is the same module, on every host.
    let other = folder.path().join("other.wasm");
    std::fs::write(&other, b"another").expect("a file");
    let other = other.to_str().expect("UTF-8");
    let refused = folder
        .run(&words(&format!(
            "cache proc put walker {other} --read c0 --version 1"
        )))
        .expect(1);
    assert!(refused.stderr.contains("another module"), "{refused:#?}");
    // Nor what the version may be run on: hosts that have it are told nothing.
    let again = |cache: &str| {
        let put = [
            "cache",
            "proc",
            "put",
            "walker",
            WALK_WASM,
            "--version",
            "1",
        ];
        folder.run(&[&put[..], &["--read", cache]].concat())
    };
    again(&id.to_string()).expect(0);
    let refused = again("77").expect(1);
    assert!(
        refused.stderr.contains(&format!("reads {id}")),
        "{refused:#?}"
    );

    let mut cache = open(folder.path(), "c0").expect("its manager runs");
    for node in 0..NODES {
        let next = if node + 1 < NODES { place(node + 1) } else { 0 };
        let mut bytes = next.to_le_bytes().to_vec();
        bytes.extend((7 * node).to_le_bytes());
        cache.write(place(node), &bytes).expect("written");
    }
    let (mut users, to) = (Vec::new(), (CacheId(id), procedure));
    walk_all(&mut users, &addresses, folder.path(), to);

    // Under notice its regions move; walks go on meanwhile.
    let leaving = text(&hosts[0], "name");
    let notice = Question::Notice {
        host: leaving.clone(),
        seconds: Some(60),
    };
    cache.ask(&notice).expect("taken");
    let deadline = Instant::now() + PATIENCE;
    loop {
        walk_all(&mut users, &addresses, folder.path(), to);
        let status = status(&folder);
        let of = |host: &&Value| text(host, "name") == leaving;
        let left = status["hosts"].as_array().expect("hosts").iter().find(of);
        if left.expect("it is listed")["regions"] == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{status:#}");
    }

    // One that holds copies is killed.
    signal(folder.pid(&text(&hosts[1], "name")), "KILL");
    for _ in 0..3 {
        walk_all(&mut users, &addresses, folder.path(), to);
    }
    // The next manager says it again.
    let pid = std::fs::read_to_string(folder.path().join("caches/c0/pid")).expect("a pid file");
    signal(pid.trim().parse().expect("a number"), "KILL");
    folder.run(&["cache", "start", "c0"]);
    walk_all(&mut users, &addresses, folder.path(), to);

    // A host that is down holds up no other.
    let listed = folder.run(&["cache", "proc", "list", "--json"]).expect(3);
    let mut lines = listed.stdout.lines();
    let line = lines
        .find(|line| line.contains("\"walker\""))
        .expect("listed");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(
        (&line["hosts"], &line["hosts_total"]),
        (&3.into(), &4.into())
    );
    let gone = folder
        .run(&["cache", "proc", "rm", "walker", "--json"])
        .expect(3)
        .json();
    assert_eq!(gone["hosts"], 3);
}

#[test]
fn procedures_follow_a_cache_whose_regions_move_and_whose_hosts_end_over_shm() {
    follow("shm");
}

#[test]
fn procedures_follow_a_cache_whose_regions_move_and_whose_hosts_end_over_tcp() {
    follow("tcp");
}

/// Two hosts over TCP with a cache, whose identity is returned, and a cluster file by which a
/// command asks the first one what it has, and loses it when it reaches the second.
fn cut_off_in_the_middle(folder: &Folder) -> (u128, String, std::thread::JoinHandle<Gate>) {
    let up = "up --hosts 2 --memory 16M --slab 256K --transport tcp";
    folder.run(&words(up)).expect(0);
    let create = "cache create c0 --size 4M --region 1M";
    folder.run(&words(create)).expect(0);
    let whole = until_whole(folder);
    let id = u128::from_str_radix(whole["id"].as_str().expect("text"), 16).expect("a number");
    let file = folder.path().join("cluster.toml");
    let mut text = std::fs::read_to_string(&file).expect("a cluster file");
    let cluster: toml::Table = text.parse().expect("TOML");
    let addresses = cluster["host"].as_array().expect("hosts").iter();
    let addresses = addresses.map(|host| host["address"].as_str().expect("text").to_owned());
    let [first, second]: [String; 2] = addresses.collect::<Vec<_>>().try_into().expect("two");
    let server = |address: &str| -> SocketAddr {
        let address = address.strip_prefix("tcp:").expect("over TCP");
        address.parse().expect("an address")
    };
    let gate = Gate::to(server(&first));
    let door = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gates = [gate.address(), door.local_addr().expect("its address")];
    for (address, gate) in [&first, &second].into_iter().zip(gates) {
        text = text.replace(&format!("{address:?}"), &format!("\"tcp:{gate}\""));
    }
    let behind = server(&second);
    let at_the_door = std::thread::spawn(move || {
        let (stream, _) = door.accept().expect("somebody comes");
        gate.shut();
        Gate::at(door, behind, Some(stream))
    });
    let gated = folder.path().join("gated.toml");
    std::fs::write(&gated, text).expect("a file");
    (id, gated.to_str().expect("UTF-8").to_owned(), at_the_door)
}

#[test]
fn a_request_from_the_command_line_goes_past_a_host_that_is_cut_off() {
    let folder = Folder::new();
    let (id, gated, at_the_door) = cut_off_in_the_middle(&folder);
    let ended = run(&words(&format!(
        "cache proc run echo {id} 5 --cluster {gated}"
    )))
    .expect(3);
    assert!(ended.stderr.contains("skipped: host "), "{ended:#?}");
    assert!(ended.stdout.contains(": 5"), "{ended:#?}");
    at_the_door.join().expect("it does not panic");
}

#[test]
fn a_module_goes_to_the_other_hosts_when_one_is_cut_off_meanwhile_and_to_that_one_later() {
    let folder = Folder::new();
    let (id, gated, at_the_door) = cut_off_in_the_middle(&folder);
    let put = format!("cache proc put walker {WALK_WASM} --read {id}");
    let ended = run(&words(&format!("{put} --cluster {gated} --json"))).expect(3);
    at_the_door.join().expect("it does not panic");
    assert!(ended.stderr.contains("failed: host h00"), "{ended:#?}");
    let hint = "not on h00: once they answer, the same command with --version 1";
    assert!(ended.stderr.contains(hint), "{ended:#?}");
    let report = ended.json();
    assert_eq!(report["hosts"], 1);
    assert_eq!(report["failed"], serde_json::json!(["h00"]));
    let later = folder.run(&words(&format!("{put} --version 1 --json")));
    let later = later.expect(0).json();
    assert_eq!((&later["hosts"], &later["id"]), (&1.into(), &report["id"]));
    let listed = folder.run(&words("cache proc list")).expect(0);
    let walker = listed.stdout.lines().find(|line| line.contains("walker"));
    let walker = walker.expect("it is listed");
    assert!(walker.ends_with("on 2 of 2 hosts"), "{walker}");
}
