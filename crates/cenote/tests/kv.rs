//! `cenote kv` with real processes: nodes, links and etcd. Without etcd it is left out.

mod support;

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use support::memcached::{connect, shard_of, shards};
use support::well::{PATIENCE, Well};
use support::{cenote, run, runs, signal, wait_ended};

fn node<'a>(status: &'a Value, name: &str) -> &'a Value {
    let mut nodes = status["nodes"].as_array().expect("nodes").iter();
    let found = nodes.find(|node| node["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {status:#}"))
}

/// What every node that answers thinks of one.
fn opinions(status: &Value, of: &str) -> Vec<String> {
    let number = &node(status, of)["node"];
    let reports = status["nodes"].as_array().expect("nodes").iter();
    reports
        .filter_map(|node| node["report"]["peers"].as_array())
        .flatten()
        .filter(|peer| peer["node"] == *number)
        .map(|peer| peer["state"].as_str().expect("text").to_owned())
        .collect()
}

#[test]
fn nodes_see_each_other_and_at_once_that_one_is_killed() {
    let Some(well) = Well::up(&["--nodes", "5", "--groups", "5", "--code", "3+2"]) else {
        return;
    };
    let names = ["n00", "n01", "n02", "n03", "n04"];
    let status = well.until("all see each other", |status| {
        let is_seen = |name: &&str| opinions(status, name) == ["alive"; 4];
        status["nodes_up"] == 5 && names.iter().all(is_seen)
    });
    for name in names {
        let planned = node(&status, name)["planned"].as_array().unwrap();
        assert_eq!(planned.len(), 5, "one slot of each group");
    }
    assert_eq!(node(&status, "n01")["planned"][0], "0.1");

    signal(well.pid("nodes/n02"), "KILL");
    // By its connection, not by its silence: that is what takes milliseconds.
    let status = well.until("the killed one is missed", |status| {
        opinions(status, "n02") == ["disconnected"; 4]
    });
    assert_ne!(node(&status, "n02")["state"], "up");
    well.shown().expect(3);

    // Back under its name it is the same node, and another process.
    let before = node(&well.status(), "n00")["report"]["incarnation"].clone();
    well.run(&["join", "--name", "n02"]).expect(0);
    let status = well.until("it is back", |status| {
        opinions(status, "n02") == ["alive"; 4] && opinions(status, "n00") == ["alive"; 4]
    });
    let back = node(&status, "n02");
    assert_eq!(back["node"], 2);
    assert!(back["report"]["incarnation"].as_u64() > before.as_u64());
    // Nobody has to say so: it gets its places back, and what it held is recovered.
    well.until("all is whole", |status| status["whole"] == true);
    well.shown().expect(0);
}

#[test]
fn a_stopped_process_is_missed_by_its_silence() {
    let Some(well) = Well::up(&["--nodes", "3", "--code", "2+1"]) else {
        return;
    };
    let pid = well.pid("nodes/n01");
    signal(pid, "STOP");
    well.until("silent", |status| opinions(status, "n01") == ["silent"; 2]);
    signal(pid, "CONT");
    well.until("alive", |status| opinions(status, "n01") == ["alive"; 2]);
}

#[test]
fn nodes_join_drain_and_go_and_nothing_is_left() {
    let Some(well) = Well::up(&["--nodes", "3", "--code", "2+1", "--lanes", "2"]) else {
        return;
    };
    well.run(&["join", "--name", "spare"]).expect(0);
    well.until("the spare is met", |status| {
        opinions(status, "spare") == ["alive"; 3]
    });
    well.run(&["join", "--name", "spare"]).expect(1);
    well.run(&["drain", "n01"]).expect(0);
    well.until("it drains", |status| {
        node(status, "n01")["state"] == "draining"
    });
    let unknown = well.run(&["drain", "n77"]).expect(1);
    assert!(
        unknown.stderr.contains("one of n00, n01, n02, spare"),
        "{unknown:#?}"
    );

    // etcd may go for a while: links do not need it.
    let etcd = well.pid("etcd");
    signal(etcd, "STOP");
    let asked = well.run(&["status"]).expect(1);
    assert!(asked.stderr.contains("etcd does not answer"), "{asked:#?}");
    assert!(
        asked.stderr.contains("  try: cenote kv up --dir "),
        "{asked:#?}"
    );
    signal(etcd, "CONT");
    well.until("still alive", |status| {
        opinions(status, "n00") == ["alive"; 3]
    });

    let again = well.run(&["up", "--nodes", "3", "--code", "2+1"]).expect(1);
    assert!(again.stderr.contains("cenote kv down"), "{again:#?}");
    assert!(again.stderr.contains("of another cluster"), "{again:#?}");
    let pids =
        ["nodes/n00", "nodes/n01", "nodes/n02", "nodes/spare", "etcd"].map(|of| well.pid(of));
    well.run(&["down"]).expect(0);
    assert!(!pids.into_iter().any(runs));
    let down = well.run(&["down"]).expect(0);
    assert!(down.stdout.contains("already down"), "{down:#?}");
    let status = well.run(&["status"]).expect(1);
    assert!(status.stderr.contains("try: cenote kv up"), "{status:#?}");
}

#[test]
fn up_of_a_cluster_that_runs_says_so_and_leaves_it_as_it_is() {
    let same = ["--nodes", "3", "--code", "2+1"];
    let Some(well) = Well::up(&same) else {
        return;
    };
    let of = ["nodes/n00", "nodes/n01", "nodes/n02", "etcd"];
    let pids = of.map(|of| well.pid(of));
    let again = well.run(&[&["up"], &same[..]].concat()).expect(0);
    let told = "already up: 3 nodes, 3 groups of 2+1, etcd at http://";
    assert!(again.stdout.starts_with(told), "{again:#?}");
    let line = format!("  n01  pid {}\n", pids[1]);
    assert!(again.stdout.contains(&line), "{again:#?}");
    assert_eq!(of.map(|of| well.pid(of)), pids);
    assert!(pids.into_iter().all(runs));

    let other = well.run(&["up", "--nodes", "3", "--code", "1+1"]).expect(1);
    assert!(other.stderr.contains("of another cluster"), "{other:#?}");
    signal(pids[1], "KILL");
    wait_ended(pids[1]);
    let one_less = well.run(&[&["up"], &same[..]].concat()).expect(1);
    assert!(one_less.stderr.contains("have ended: n01"), "{one_less:#?}");
    assert!(
        one_less.stderr.contains("try: cenote kv join --name n01"),
        "{one_less:#?}"
    );
}

/// Kills `kv up` once it has noted a process.
fn kill_up(well: &Well, mut up: Command, noted: &str) -> u32 {
    up.args([
        "kv", "up", "--nodes", "3", "--code", "2+1", "--memory", "64M",
    ]);
    up.arg("--dir").arg(well.path(""));
    let mut up = up.spawn().expect("the binary runs");
    let file = well.path(noted).join("pid");
    let deadline = Instant::now() + PATIENCE;
    while !file.exists() {
        let ended = up.try_wait().expect("a child of ours");
        assert!(ended.is_none(), "it has ended: {ended:?}");
        assert!(Instant::now() < deadline, "no {noted}");
        std::thread::yield_now();
    }
    up.kill().expect("a child of ours");
    up.wait().expect("it ends");
    well.pid(noted)
}

#[test]
fn what_was_started_is_known_when_its_starter_is_killed() {
    // An etcd that never answers: it is being waited for.
    let programs = tempfile::tempdir().expect("a folder");
    let etcd = programs.path().join("etcd");
    std::fs::write(&etcd, "#!/bin/sh\nexec sleep 1000\n").expect("a script");
    std::fs::set_permissions(&etcd, Permissions::from_mode(0o755)).expect("ours");
    let path = std::env::var("PATH").expect("a path");
    let mut up = cenote();
    up.env("PATH", format!("{}:{path}", programs.path().display()));
    let well = Well::empty();
    let mute = kill_up(&well, up, "etcd");
    assert!(runs(mute));
    well.run(&["down"]).expect(0);
    assert!(!runs(mute));

    if let Err(error) = Command::new("etcd").arg("--version").output() {
        eprintln!("skipped: etcd-server: {error}");
        return;
    }
    let node = kill_up(&well, cenote(), "nodes/n00");
    let status = well.run(&["status"]);
    assert!(
        !status.stderr.contains("no cluster is running"),
        "{status:#?}"
    );
    let etcd = well.pid("etcd");
    well.run(&["down"]).expect(0);
    assert!(!runs(node) && !runs(etcd));
}

#[test]
fn a_node_that_was_killed_joins_again_at_once_where_it_was() {
    const ROUNDS: usize = 60;
    let Some(well) = Well::up(&["--nodes", "3", "--code", "2+1"]) else {
        return;
    };
    let clients = well.clients();
    for round in 0..ROUNDS {
        let index = round % 3;
        let name = format!("n{index:02}");
        signal(well.pid(&format!("nodes/{name}")), "KILL");
        let joined = well.run(&["join", "--name", &name]);
        assert_eq!(joined.code, 0, "round {round}: {joined:#?}");
        assert!(
            joined.stdout.contains(&clients[index].to_string()),
            "round {round}: its clients look for it at {}: {joined:#?}",
            clients[index]
        );
    }
}

#[test]
fn a_node_that_drains_is_up_and_nothing_is_missing_for_it() {
    let Some(well) = Well::up(&["--nodes", "4", "--groups", "4", "--code", "2+1"]) else {
        return;
    };
    well.run(&["drain", "n01"]).expect(0);
    let status = well.until("it drains, and counts as up", |status| {
        node(status, "n01")["state"] == "draining" && status["nodes_up"] == 4
    });
    let groups = status["by_group"].as_array().unwrap().iter();
    let places = groups.flat_map(|group| {
        let of = |what: &str| group[what].as_array().unwrap().clone();
        [of("data"), of("parity")].concat()
    });
    for place in places {
        // Nobody has stored anything, so nothing can be missing, whoever takes what over.
        assert_eq!(place["missing_bytes"], 0, "{place:#}");
        assert_eq!(place["moving_bytes"], 0, "{place:#}");
    }
}

#[test]
fn whoever_has_another_key_is_told_so_and_changes_nothing() {
    let Some(well) = Well::up(&["--nodes", "2", "--code", "1+1"]) else {
        return;
    };
    let url = well.status()["etcd"]
        .as_str()
        .expect("its address")
        .to_owned();
    let file = well.path("cluster.key");
    let key = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "5a".repeat(32)).unwrap();
    // No node answers it: without a look at the key all would seem to be down.
    for command in [
        &["status"][..],
        &["drain", "n00"],
        &["reset-lost"],
        &["join", "--name", "stranger"],
    ] {
        let refused = well.run(command).expect(1);
        let said = refused.stderr;
        assert!(said.contains("is not the key of cluster kv"), "{said}");
    }
    let mut node = cenote();
    node.args(["kv", "node", "--name", "stranger", "--etcd", &url]);
    node.args(["--etcd-user", "root", "--etcd-password-file"]);
    node.arg(well.path("etcd/password"));
    let node = node.arg("--key").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&node.stderr);
    assert!(said.contains("this is not the key of cluster"), "{said}");
    assert!(node.stdout.is_empty() && !node.status.success(), "{node:?}");
    std::fs::write(&file, key).unwrap();
    let status = well.status();
    let names = status["nodes"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|node| (&node["name"], &node["state"])).collect();
    assert!(
        names
            .iter()
            .all(|(name, state)| **name != "stranger" && **state == "up"),
        "{names:?}"
    );
    // Who starts it with the right one is told what its clients may do.
    well.run(&["join", "--name", "stranger"]).expect(0);
    let log = well.log("stranger");
    assert!(log.contains("can read and change every item"), "{log}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("well");
    let dir = dir.to_str().unwrap();
    for (arguments, reason) in [
        (&["--code", "3"][..], "write a code as K+M"),
        (
            &["--nodes", "4", "--code", "3+2"],
            "needs 5 nodes, there are 4",
        ),
        (
            &["--replicated", "--code", "3+2"],
            "replicated groups are 1+M",
        ),
        (&["--memory", "1M"], "--memory 1M: too little"),
        (&["--lanes", "0"], "0 lanes"),
    ] {
        let ended = run(&[&["kv", "up", "--dir", dir], arguments].concat()).expect(2);
        assert!(ended.stderr.contains(reason), "{ended:#?}");
    }
    assert!(!folder.path().join("well").exists());
    // More than any machine has.
    let large = ["kv", "up", "--nodes", "5", "--memory", "1T", "--dir", dir];
    let large = run(&large).expect(1);
    assert!(
        large.stderr.contains("5 nodes with 1T each do not fit: ")
            && large.stderr.contains(" free on this machine")
            && large.stderr.contains("try: use --memory "),
        "{large:#?}"
    );
    let nameless = run(&["kv", "status"]).expect(2);
    assert!(
        nameless.stderr.contains("no cluster given"),
        "{nameless:#?}"
    );
    for command in ["up", "join", "node", "status", "drain", "down"] {
        let help = run(&["kv", command, "--help"]).expect(0);
        assert!(
            help.stdout.contains(&format!("  cenote kv {command} ")),
            "{command}"
        );
    }
}

#[test]
fn clients_are_told_who_owns_what_also_when_that_changes() {
    let Some(well) = Well::up(&["--nodes", "5", "--groups", "5", "--code", "3+2"]) else {
        return;
    };
    let addresses = well.clients();
    let owners = |status: &Value| -> Vec<Option<SocketAddr>> {
        let groups = status["by_group"].as_array().expect("groups").iter();
        let places = groups.flat_map(|group| group["data"].as_array().expect("places"));
        places
            .map(|place| {
                addresses
                    .get(usize::try_from(place["node"].as_u64()?).unwrap())
                    .copied()
            })
            .collect()
    };
    for at in &addresses {
        assert_eq!(shards(*at), owners(&well.status()));
    }
    // Whoever asks an owner is answered by it.
    let served = |at: SocketAddr| -> u64 {
        let mut client = connect(at).unwrap();
        client.send(b"stats\r\n").unwrap();
        let mut lines = std::iter::from_fn(|| client.line().ok());
        let line = lines
            .find(|line| line.starts_with("STAT cmd_set "))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let owned = shards(addresses[0]);
    for index in 0..40 {
        let key = format!("key{index}");
        let shard = shard_of(&key, owned.len());
        let owner = owned[shard].expect("all are at home");
        let before = served(owner);
        let request = format!("set {key} 0 0 1\r\nx\r\n");
        let said = connect(addresses[index % 5])
            .unwrap()
            .ask(request.as_bytes());
        assert_eq!(said.unwrap(), "STORED");
        assert_eq!(served(owner), before + 1, "{key}");
    }

    signal(well.pid("nodes/n02"), "KILL");
    let dead = addresses[2];
    well.until("others own what it owned", |_| {
        let owners = shards(addresses[0]);
        owners
            .iter()
            .all(|owner| owner.is_some_and(|owner| owner != dead))
    });
}
