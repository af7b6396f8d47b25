//! `cenote kv` when etcd is out of reach of some nodes, loses its data, or dies. Without etcd it is left out.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use cenote_kv_cluster::etcd::{Etcd, EtcdServer, ServerError};
use cenote_kv_cluster::store::EtcdError;
use serde_json::Value;
use support::gate::Gate;
use support::memcached::{Client, connect, with_value};
use support::net::Killed;
use support::well::{PATIENCE, Well, places, until};
use support::{Ended, Folder, cenote, signal, words};

/// Nodes that reach etcd each through a gate of its own.
struct Gated {
    // Ended in this order.
    well: Well,
    gates: BTreeMap<&'static str, Gate>,
    etcd: Option<EtcdServer>,
    url: String,
}

/// An etcd with its data in a folder; `None` where there is none.
fn start_etcd(folder: &Path) -> Option<EtcdServer> {
    match EtcdServer::start(folder, |_| ()) {
        Err(error @ ServerError::Missing) => {
            eprintln!("skipped: {error}");
            None
        }
        other => Some(other.expect("etcd starts")),
    }
}

impl Gated {
    /// A cluster of this shape, of which no node runs yet.
    fn found(shape: &[&str]) -> Option<Self> {
        let well = Well::empty();
        let etcd = start_etcd(&well.path("etcd"))?;
        let url = etcd.url().to_owned();
        let made = [
            &["up", "--plan-only", "--memory", "64M", "--etcd", &url],
            shape,
        ]
        .concat();
        well.run(&made).expect(0);
        let etcd = Some(etcd);
        let gates = BTreeMap::new();
        Some(Self {
            well,
            gates,
            etcd,
            url,
        })
    }

    fn join(&mut self, name: &'static str) {
        let server: SocketAddr = self.url["http://".len()..].parse().expect("an address");
        let gate = self.gates.entry(name).or_insert_with(|| Gate::to(server));
        let url = format!("http://{}", gate.address());
        self.well
            .run(&["join", "--name", name, "--etcd", &url])
            .expect(0);
    }

    fn status(&self) -> Value {
        self.until("a status is told", |_| true)
    }

    fn ask(&self) -> Ended {
        let arguments = format!("status --json --timeout 500ms --etcd {}", self.url);
        let arguments = words(&arguments);
        self.well.run(&arguments)
    }

    fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        until(what, || self.ask(), wanted)
    }

    fn address(&self, name: &str) -> SocketAddr {
        let address = |status: &Value| node(status, name)["registration"]["clients"][0].clone();
        let status = self.until("it is registered", |status| address(status).is_string());
        let address = address(&status);
        address.as_str().expect("text").parse().expect("one")
    }

    fn kill(&self, name: &str) {
        signal(self.well.pid(&format!("nodes/{name}")), "KILL");
    }

    /// Etcd dies with all that it had, and is there again without.
    fn lose_etcd(&mut self) {
        self.begin_etcd_again(|_| ());
    }

    /// The same, and it has the number that it had: it is made again by the same words.
    fn lose_etcd_of_that_number(&mut self) {
        let process = self.etcd.as_ref().expect("it runs").process();
        let words = fs::read_to_string(format!("/proc/{process}/cmdline")).expect("it runs");
        let words: Vec<String> = words.split('\0').map(str::to_owned).collect();
        let of = |name: &str| {
            let index = words
                .iter()
                .position(|word| word == name)
                .expect("it was told so");
            words[index + 1].clone()
        };
        let peers = [
            "--listen-peer-urls",
            "--initial-advertise-peer-urls",
            "--initial-cluster",
        ];
        let peers = peers.map(|name| [name.to_owned(), of(name)]).concat();
        // The later one of two counts.
        self.begin_etcd_again(|command| {
            command.args(&peers);
        });
    }

    fn begin_etcd_again(&mut self, prepare: impl Fn(&mut Command)) {
        drop(self.etcd.take());
        let folder = self.well.path("etcd");
        fs::remove_dir_all(folder.join("data")).expect("its data");
        let again = EtcdServer::start_at(&folder, &self.url, prepare);
        self.etcd = Some(again.expect("etcd starts again"));
    }

    /// Waits until etcd has all of these nodes, and views of all groups that were raised.
    fn until_seeded(&self, names: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        // Until then the command has no cluster to tell of.
        while let ended = self.well.run(&["status", "--json", "--etcd", &self.url])
            && ((ended.code == 1 && ended.stdout.is_empty())
                || !names
                    .iter()
                    .all(|name| node(&ended.json(), name)["state"] == "up"))
        {
            assert!(Instant::now() < deadline, "it is not seeded: {ended:#?}");
        }
        self.until("views are in it again", |status| {
            let groups = status["by_group"].as_array().expect("groups");
            groups
                .iter()
                .all(|group| group["view"].as_u64() > Some(1 << 16))
        });
    }
}

fn node<'a>(status: &'a Value, name: &str) -> &'a Value {
    let mut nodes = status["nodes"].as_array().expect("nodes").iter();
    let found = nodes.find(|node| node["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {status:#}"))
}

fn is_whole(status: &Value) -> bool {
    status["whole"] == true
}

fn view(status: &Value) -> u64 {
    status["by_group"][0]["view"].as_u64().expect("a number")
}

fn put(client: &mut Client, key: usize, value: &str) {
    let request = with_value(&format!("set key{key}"), value.as_bytes(), "");
    assert_eq!(client.ask(&request).unwrap(), "STORED", "key{key} {value}");
}

fn expect_all(at: SocketAddr, value: &str) {
    let mut client = connect(at).unwrap();
    for key in 0..50 {
        let found = client.get(&format!("key{key}")).unwrap();
        let found = found.map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(found.as_deref(), Some(value), "key{key} at {at}");
    }
}

#[test]
fn a_node_that_waits_for_etcd_ends_when_it_is_told_to() {
    let folder = Folder::with_key();
    // It takes connections, and says nothing.
    let etcd = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = etcd.local_addr().expect("bound");
    for name in ["TERM", "INT"] {
        let node = cenote()
            .args(words(&format!(
                "kv node --name n00 --etcd http://{address} --key"
            )))
            .arg(folder.path().join("cluster.key"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let asked = etcd.accept().expect("it asks etcd");
        signal(node.id(), name);
        // Not as one that waited in vain, which takes 20 s and is an error.
        let ended = Ended::from(node.wait_with_output().expect("a child of ours")).expect(0);
        assert_eq!(ended.stdout, "", "it has announced nothing");
        drop(asked);
    }
}

#[test]
fn users_that_change_while_a_node_waits_for_etcd_are_those_that_it_has() {
    let Some(gated) = Gated::found(&["--nodes", "2", "--groups", "1", "--code", "1+1"]) else {
        return;
    };
    let users = gated.well.path("users");
    fs::write(&users, "ann:first\n").expect("a file");
    let door = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut command = cenote();
    command.args(words("kv node --name n00 --etcd"));
    command.arg(format!("http://{}", door.local_addr().expect("bound")));
    command.arg("--key").arg(gated.well.path("cluster.key"));
    command.arg("--users").arg(&users);
    let mut node = Killed(command.stdout(Stdio::piped()).spawn().expect("it runs"));
    // By then it has read them.
    let (asked, _) = door.accept().expect("it asks etcd");
    fs::write(&users, "ann:second\n").expect("a file");
    signal(node.0.id(), "HUP");
    let server = gated.url["http://".len()..].parse().expect("an address");
    let _gate = Gate::at(door, server, Some(asked));
    let mut line = String::new();
    let stdout = node.0.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let address = line.trim().rsplit(' ').next().expect("an address");
    let said = |password: &str| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        let login = format!("ann {password}");
        write!(stream, "set who 0 0 {}\r\n{login}\r\n", login.len()).expect("it reads");
        let mut said = String::new();
        BufReader::new(stream)
            .read_line(&mut said)
            .expect("it answers");
        said
    };
    assert_eq!(said("second"), "STORED\r\n");
    assert!(said("first").starts_with("CLIENT_ERROR"));
}

#[test]
fn a_group_whose_nodes_are_cut_off_from_etcd_alone_is_served_on_and_stays_what_it_is() {
    let shape = ["--nodes", "2", "--groups", "1", "--code", "1+1"];
    let Some(mut gated) = Gated::found(&shape) else {
        return;
    };
    for name in ["n00", "n01"] {
        gated.join(name);
    }
    gated.until("all is whole", is_whole);
    // The group goes to two other nodes, and those of its plan are there again.
    for (planned, target) in [("n00", "x0"), ("n01", "x1")] {
        gated.join(target);
        gated.kill(planned);
        gated.until("another has its place", |status| {
            is_whole(status) && places(status, target) == 1
        });
    }
    for name in ["n00", "n01"] {
        gated.join(name);
    }
    gated.until("all are up", |status| {
        let up = |name: &&str| node(status, name)["state"] == "up";
        ["n00", "n01", "x0", "x1"].iter().all(up)
    });
    let [away, here] = ["x0", "n00"].map(|name| gated.address(name));
    let mut client = connect(away).unwrap();
    (0..50).for_each(|key| put(&mut client, key, "before"));
    let before = view(&gated.status());

    for name in ["x0", "x1"] {
        gated.gates[name].shut();
    }
    gated.until("they are not registered any more", |status| {
        ["x0", "x1"].map(|name| node(status, name)["state"] == "down") == [true; 2]
    });
    expect_all(here, "before");
    (0..50).for_each(|key| put(&mut client, key, "meanwhile"));
    expect_all(here, "meanwhile");
    let status = gated.status();
    assert_eq!(view(&status), before, "nobody begins it again: {status:#}");

    for name in ["x0", "x1"] {
        gated.gates[name].open();
    }
    let status = gated.until("they are registered again, and all is whole", |status| {
        ["x0", "x1"].map(|name| node(status, name)["state"] == "up") == [true; 2]
            && is_whole(status)
    });
    assert_eq!(view(&status), before, "{status:#}");
    for at in [away, here] {
        expect_all(at, "meanwhile");
    }
}

#[test]
fn a_node_that_is_to_end_while_etcd_is_away_says_so_once_it_is_back() {
    let shape = ["--nodes", "2", "--groups", "1", "--code", "1+1"];
    let Some(mut gated) = Gated::found(&shape) else {
        return;
    };
    for name in ["n00", "n01"] {
        gated.join(name);
    }
    gated.until("all is whole", is_whole);
    // Nobody is left who could take what it has: it stays for as long as a drain may take.
    gated.kill("n00");
    gated.until("the other has all of it", |status| {
        places(status, "n00") == 0 && places(status, "n01") == 1
    });
    gated.gates["n01"].shut();
    signal(gated.well.pid("nodes/n01"), "TERM");
    let deadline = Instant::now() + PATIENCE;
    while !gated.well.log("n01").contains("mark this node as draining") {
        assert!(Instant::now() < deadline, "it does not try");
        std::thread::yield_now();
    }
    gated.gates["n01"].open();
    gated.until("it is marked", |status| {
        let log = gated.well.log("n01");
        assert!(!log.contains("nobody else has"), "it has ended: {log}");
        node(status, "n01")["state"] == "draining"
    });
}

#[test]
fn an_etcd_that_has_lost_its_data_is_given_what_nodes_know_and_they_fail_over_again() {
    let shape = ["--nodes", "3", "--groups", "3", "--code", "2+1"];
    let Some(mut gated) = Gated::found(&shape) else {
        return;
    };
    for name in ["n00", "n01", "n02", "spare"] {
        gated.join(name);
    }
    gated.until("all is whole", is_whole);
    let [first, last] = ["n00", "n02"].map(|name| gated.address(name));
    let mut client = connect(first).unwrap();
    (0..50).for_each(|key| put(&mut client, key, "before"));
    gated.lose_etcd();
    (0..50).for_each(|key| put(&mut client, key, "meanwhile"));
    gated.until_seeded(&["n00", "n01", "n02", "spare"]);
    gated.kill("n01");
    gated.until("others take its places", |status| {
        is_whole(status) && places(status, "n01") == 0
    });
    (0..25).for_each(|key| put(&mut client, key, "meanwhile"));
    for at in [first, last] {
        expect_all(at, "meanwhile");
    }
    gated.join("n01");
    gated.until("it is back", |status| node(status, "n01")["state"] == "up");
}

/// Neither its number nor its revision tells: nodes find out by their registrations, which are gone.
#[test]
fn an_etcd_that_has_lost_its_data_and_has_gone_on_past_it_is_given_what_nodes_know() {
    let shape = ["--nodes", "2", "--groups", "1", "--code", "1+1"];
    let Some(mut gated) = Gated::found(&shape) else {
        return;
    };
    let names = ["n00", "n01"];
    names.iter().for_each(|name| gated.join(name));
    gated.until("all is whole", is_whole);
    let mut client = connect(gated.address("n00")).unwrap();
    (0..50).for_each(|key| put(&mut client, key, "before"));
    gated.gates.values().for_each(Gate::shut);
    let store = Etcd::new(&gated.url, None).expect("an address");
    let store = store.patient(PATIENCE);
    let before = store.list("/").expect("it answers");
    gated.lose_etcd_of_that_number();
    // Nothing of it is the nodes' own.
    while store.list("/").expect("it answers").revision < before.revision + 100 {
        store.put("/another", b"program", None).expect("it answers");
    }
    let after = store.list("/").expect("it answers");
    assert_eq!(after.cluster, before.cluster, "it has another number");
    gated.gates.values().for_each(Gate::open);
    gated.until_seeded(&names);
    gated.until("all is whole", is_whole);
    expect_all(gated.address("n01"), "before");
}

#[test]
fn a_group_that_is_ended_while_nodes_run_elsewhere_begins_again_by_command() {
    let shape = ["--nodes", "2", "--groups", "1", "--code", "1+1"];
    let Some(mut gated) = Gated::found(&shape) else {
        return;
    };
    let names = ["n00", "n01"];
    names.into_iter().for_each(|name| gated.join(name));
    let elsewhere = Well::empty();
    fs::copy(
        gated.well.path("cluster.key"),
        elsewhere.path("cluster.key"),
    )
    .expect("a copy");
    let joins = ["join", "--name", "other", "--etcd", &gated.url];
    elsewhere.run(&joins).expect(0);
    let status = gated.until("all is whole", |status| {
        is_whole(status) && node(status, "other")["state"] == "up"
    });
    let before = view(&status);

    let down = gated.well.run(&["down"]).expect(0);
    let etcd = Etcd::new(&gated.url, None).expect("an address");
    let etcd = etcd.patient(PATIENCE);
    let has = |key: &str| {
        etcd.read(&format!("/cenote/kv/kv/{key}"))
            .unwrap()
            .is_some()
    };
    assert!(
        has("view/00000"),
        "it is a loss to those who run: {down:#?}"
    );
    assert!(down.stderr.contains("reset-lost"), "{down:#?}");

    names.into_iter().for_each(|name| gated.join(name));
    let reset = gated
        .well
        .run(&["reset-lost", "--etcd", &gated.url])
        .expect(0);
    assert!(reset.stdout.contains("restarts empty"), "{reset:#?}");
    let status = gated.until("it is whole again", is_whole);
    assert!(view(&status) > before, "{status:#}");
    assert!(!has("seed"), "etcd has lost nothing");
    // Where nobody is left it is forgotten.
    elsewhere.run(&["down"]).expect(0);
    gated.well.run(&["down"]).expect(0);
    assert!(!has("view/00000"));
}

#[test]
fn of_two_processes_of_one_name_that_start_at_once_one_stays() {
    let shape = ["--nodes", "2", "--groups", "1", "--code", "1+1"];
    let Some(gated) = Gated::found(&shape) else {
        return;
    };
    let key = gated.well.path("cluster.key");
    let mut all: Vec<_> = (0..4)
        .map(|_| {
            let mut command = cenote();
            command.args(["kv", "node", "--name", "twin", "--etcd", &gated.url]);
            command.arg("--key").arg(&key);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("it starts")
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = all.iter_mut().map(|twin| twin.try_wait().expect("a child"));
        let running = ended.filter(Option::is_none).count();
        if running == 1 {
            break;
        }
        assert!(Instant::now() < deadline && running > 0, "{running} run");
    }
    gated.until("the one that stays is registered", |status| {
        node(status, "twin")["state"] == "up"
    });
    for twin in &mut all {
        // All but one have ended, and are not to be started again.
        twin.kill().ok();
        let code = twin.wait().expect("it ends").code();
        assert!(code.is_none_or(|code| code == 4), "{code:?}");
    }
}

#[test]
fn an_etcd_of_the_clusters_own_asks_for_its_password_and_is_brought_back_with_its_data() {
    let Some(well) = Well::up(&["--nodes", "3", "--groups", "3", "--code", "2+1"]) else {
        return;
    };
    let status = well.status();
    let url = status["etcd"].as_str().expect("its address").to_owned();
    let file = well.path("etcd/password");
    let mode = fs::metadata(&file)
        .expect("a password")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let stranger = Etcd::new(&url, None).expect("an address");
    for asked in [
        stranger.list("").map(drop),
        stranger.delete("/cenote/kv/kv/config"),
    ] {
        assert!(matches!(asked, Err(EtcdError::Refused { .. })), "{asked:?}");
    }
    let password = fs::read_to_string(&file).expect("a password");
    let line = fs::read(format!("/proc/{}/cmdline", well.pid("nodes/n00"))).expect("it runs");
    let line = String::from_utf8_lossy(&line);
    assert!(
        !line.contains(password.trim()) && !password.trim().is_empty(),
        "{line}"
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
    let open = well.run(&["status"]).expect(1);
    assert!(open.stderr.contains("chmod 600"), "{open:#?}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");

    let addresses = well.clients();
    let mut client = connect(addresses[0]).unwrap();
    (0..50).for_each(|key| put(&mut client, key, "before"));
    signal(well.pid("etcd"), "KILL");
    let gone = well.run(&["status"]).expect(1);
    assert!(gone.stderr.contains("etcd does not answer"), "{gone:#?}");
    let again = well.run(&["up"]).expect(0);
    assert!(again.stdout.contains("was restarted"), "{again:#?}");
    well.until_whole();
    signal(well.pid("nodes/n01"), "KILL");
    well.until("others have its places", |status| {
        places(status, "n01") == 0
    });
    for at in [addresses[0], addresses[2]] {
        expect_all(at, "before");
    }
    well.run(&["up"]).expect(1);
}

#[test]
fn clusters_of_different_names_share_an_etcd_and_no_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(etcd) = start_etcd(folder.path()) else {
        return;
    };
    let names = ["one", "two"];
    let wells = names.map(|name| {
        let well = Well::empty();
        let shape = words("--nodes 2 --code 1+1 --memory 64M");
        let of = ["up", "--etcd", etcd.url(), "--cluster-name", name];
        well.run(&[&of[..], &shape].concat()).expect(0);
        well
    });
    let mut clients = wells
        .each_ref()
        .map(|well| connect(well.clients()[0]).expect("it listens"));
    for (client, name) in clients.iter_mut().zip(names) {
        let said = client.ask(&with_value("set key", name.as_bytes(), ""));
        assert_eq!(said.expect("an answer"), "STORED");
    }
    for ((client, name), well) in clients.iter_mut().zip(names).zip(&wells) {
        let value = client.get("key").expect("an answer");
        assert_eq!(value.as_deref(), Some(name.as_bytes()));
        // Whoever knows no more than where etcd is, and the key.
        let key = well.path("cluster.key");
        let told = until(
            "etcd answers",
            || ask_etcd(etcd.url(), name, &key),
            |_| true,
        );
        assert_eq!(told["cluster"], name);
        let nodes = told["nodes"].as_array().expect("nodes");
        assert_eq!(nodes.len(), 2, "{told:#}");
    }
}

/// What a cluster's status is, asked with a key and by nobody's folder.
fn ask_etcd(url: &str, name: &str, key: &Path) -> Ended {
    let mut status = cenote();
    status
        .args([
            "kv",
            "status",
            "--json",
            "--etcd",
            url,
            "--cluster-name",
            name,
        ])
        .arg("--key")
        .arg(key);
    Ended::from(status.output().expect("the binary runs"))
}
