//! What clients were promised by `cenote kv`, while its nodes are killed and stopped. Without etcd it is
//! left out.

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support::kept::{Kept, store};
use support::memcached::{connect, shard_of, shards, with_value};
use support::well::{FIVE, PATIENCE, Well};
use support::writer::{Load, WRITERS};
use support::{cenote, signal, wait_ended};

use cenote_bench::history::{self, Options};
use cenote_test_kit::porcupine;

#[test]
fn acknowledged_values_survive_two_of_five_nodes_twice() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let mut first = connect(addresses[0]).unwrap();
    for index in 0..60 {
        let request = with_value(&format!("set gone{index}"), b"x", "");
        assert_eq!(first.ask(&request).unwrap(), "STORED");
    }
    assert_eq!(first.ask(b"flush_all\r\n").unwrap(), "OK");

    let load = Load::new(&addresses, false);
    let written = load.during(|| {
        load.until_more(300);
        well.kill(["n01", "n02"]);
        load.until_more(300);
        for (name, address) in [("n01", addresses[1]), ("n02", addresses[2])] {
            let address = address.to_string();
            well.run(&["join", "--name", name, "--clients", &address])
                .expect(0);
        }
        load.until_more(300);
        well.until_whole();
        well.kill(["n00", "n03"]);
        load.until_more(300);
    });
    let known = written.values().filter(|values| values.len() == 1).count();
    assert!(known >= WRITERS * 39, "{known} of {}", written.len());
    load.check(&written, &[1, 2, 4]);
    for node in [1, 2, 4] {
        let mut client = connect(addresses[node]).unwrap();
        for index in 0..60 {
            assert_eq!(client.get(&format!("gone{index}")).unwrap(), None);
        }
    }
}

#[test]
fn a_node_that_was_stopped_gives_no_stale_value_and_no_false_word() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let mut other = connect(addresses[0]).unwrap();
    store(&mut other, b"old");
    let mut kept = Kept::at(addresses[1]);

    let pid = well.pid("nodes/n01");
    signal(pid, "STOP");
    store(&mut other, b"new");
    kept.ask();
    signal(pid, "CONT");
    kept.expect(b"new", &mut other);
    well.until_whole();
}

#[test]
fn a_history_with_nodes_killed_and_stopped_is_linearizable() {
    let judge = match porcupine::judge(env!("CARGO_TARGET_TMPDIR")) {
        Ok(judge) => judge,
        Err(why) => return println!("skipped: {why}"),
    };
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let options = Options {
        time: Duration::from_secs(12),
        rate: 600,
        ..Options::new(addresses.clone())
    };
    let operations = history::record(&options, || {
        well.kill(["n01", "n03"]);
        well.until("others have taken over", |status| {
            let groups = status["by_group"].as_array().expect("groups");
            groups.iter().all(|group| group["view"].as_u64() > Some(1))
        });
        for (name, address) in [("n01", addresses[1]), ("n03", addresses[3])] {
            let address = address.to_string();
            well.run(&["join", "--name", name, "--clients", &address])
                .expect(0);
        }
        well.until_whole();
        let pid = well.pid("nodes/n04");
        signal(pid, "STOP");
        well.until("it is missed", |status| status["whole"] == false);
        signal(pid, "CONT");
        Ok(())
    });
    let operations = operations.unwrap();
    let (code, words) = porcupine::judged(&judge, |file| history::write_json(file, &operations));
    assert_eq!(code, 0, "{words}");
}

#[test]
fn what_is_lost_with_more_nodes_than_a_group_bears_is_told() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let mut client = connect(addresses[4]).unwrap();
    for index in 0..100 {
        let request = with_value(&format!("set key{index}"), b"x", "");
        assert_eq!(client.ask(&request).unwrap(), "STORED");
    }
    for name in ["n00", "n01", "n02"] {
        signal(well.pid(&format!("nodes/{name}")), "KILL");
    }
    // Whoever asks is told so once they are not registered any more: they may be back. A key of each partition, since
    // what is answered comes in order.
    let deadline = Instant::now() + PATIENCE;
    let mut refused = 0;
    for index in 0..100 {
        let request = with_value(&format!("set key{index}"), b"x", "");
        let said = client.ask(&request).unwrap();
        if said != "STORED" {
            let is_refused = said.ends_with("nothing was done");
            assert!(is_refused || said.ends_with("outcome unknown"), "{said}");
            refused += u64::from(is_refused);
        }
        assert!(Instant::now() < deadline, "{said}");
    }
    assert!(refused > 0);
    let lost = |status: &serde_json::Value| {
        let groups = status["by_group"].as_array().expect("groups").iter();
        let data = groups.flat_map(|group| group["data"].as_array().expect("places"));
        data.filter(|place| place["state"] == "lost").count()
    };
    let status = well.until("they are not registered", |status| status["nodes_up"] == 2);
    assert_eq!(lost(&status), 0, "not by itself: {status:#}");

    // By the word of an operator, and without nodes for it.
    let refused = well.run(&["reset-lost", "--timeout", "0s"]).expect(3);
    assert!(refused.stdout.contains("had is lost"), "{refused:#?}");
    assert!(refused.stdout.contains("cenote kv join"), "{refused:#?}");
    let status = well.until("what is gone is known to be", |status| lost(status) >= 5);
    // Nobody waits for what cannot come back.
    let owners = shards(addresses[4]);
    let mut gone = 0;
    for key in (0..100).map(|index| format!("key{index}")) {
        if owners[shard_of(&key, owners.len())].is_none() {
            for read in ["get", "gets", "gat 100", "mg", "get other"] {
                let said = client.ask(format!("{read} {key}\r\n").as_bytes()).unwrap();
                assert!(
                    said.ends_with("its items are gone"),
                    "{read}: {said}: {status:#}"
                );
                // That was all of it.
                assert_eq!(client.ask(b"mn\r\n").unwrap(), "MN");
            }
            let request = with_value(&format!("set {key}"), b"y", "");
            let said = client.ask(&request).unwrap();
            assert!(said.ends_with("its items are gone"), "{said}: {status:#}");
            gone += 1;
        }
    }
    assert!(gone >= 5, "{gone} keys of five partitions in fifteen");

    for name in ["n00", "n01", "n02"] {
        well.run(&["join", "--name", name]).expect(0);
    }
    let reset = well.run(&["reset-lost"]).expect(0);
    assert!(reset.stdout.contains(" restarts empty on "), "{reset:#?}");
    well.until("all is whole", |status| status["whole"] == true);
    for key in (0..100).map(|index| format!("key{index}")) {
        let request = with_value(&format!("set {key}"), b"z", "");
        assert_eq!(client.ask(&request).unwrap(), "STORED");
        let value = client.get(&key).unwrap();
        assert_eq!(value.as_deref(), Some(&b"z"[..]));
    }
    let again = well.run(&["reset-lost"]).expect(0);
    assert_eq!(again.stdout, "nothing is lost; nothing was changed\n");
}

/// The binary, with lanes that panic as soon as there is a file.
fn with_failing_clock(well: &Well, file: &Path) -> Command {
    let library = well.path("failing_clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/failing_clock.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, Path::new(source)])
        .status();
    assert!(compiled.expect("what links Rust too").success());
    let mut program = cenote();
    program
        .env("LD_PRELOAD", library)
        .env("CLOCK_FAILS_WITH", file);
    program
}

#[test]
fn a_node_whose_lane_panics_ends_and_its_group_serves_on() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let [first, second, ..] = well.clients()[..] else {
        panic!("five nodes");
    };
    signal(well.pid("nodes/n01"), "KILL");
    let file = well.path("clock-fails");
    let joins = ["join", "--name", "n01", "--clients", &second.to_string()];
    let program = with_failing_clock(&well, &file);
    well.run_by(program, &joins).expect(0);
    let state = |status: &serde_json::Value| {
        let nodes = status["nodes"].as_array().expect("nodes");
        let node = nodes.iter().find(|node| node["name"] == "n01");
        node.expect("it was there")["state"].clone()
    };
    well.until_whole();
    // Some of them are its own.
    let mut client = connect(first).unwrap();
    for key in 0..60 {
        let request = with_value(&format!("set key{key}"), b"before", "");
        assert_eq!(client.ask(&request).unwrap(), "STORED");
    }

    let pid = well.pid("nodes/n01");
    std::fs::write(&file, "").expect("a file");
    well.until("its registration is gone", |status| state(status) == "down");
    let log = well.log("n01");
    assert!(log.contains("thread kv-worker-0 panicked"), "{log}");
    wait_ended(pid);
    for key in 0..60 {
        let key = format!("key{key}");
        let value = client.get(&key).unwrap();
        assert_eq!(value.as_deref(), Some(&b"before"[..]), "{key}");
        let request = with_value(&format!("set {key}"), b"after", "");
        assert_eq!(client.ask(&request).unwrap(), "STORED");
    }
    well.run(&["join", "--name", "n01"]).expect(0);
    well.until_whole();
}

/// The rest of `make test-long`.
mod long {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    /// Short ones, each with a trouble: what is judged is what came of it.
    const HISTORIES: u64 = 52;

    #[test]
    fn fifty_histories_with_nodes_killed_and_stopped_are_linearizable() {
        let judge = match porcupine::judge(env!("CARGO_TARGET_TMPDIR")) {
            Ok(judge) => judge,
            Err(why) => return println!("skipped: {why}"),
        };
        let Some(well) = Well::up(&FIVE) else {
            return;
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let given = std::env::var("CENOTE_SEED").ok();
        let given = given.map(|text| text.parse().expect("CENOTE_SEED is a number"));
        let first: u64 = given.unwrap_or(since.as_secs());
        println!("CENOTE_SEED={first}");
        let mut operations = 0;
        for number in 0..HISTORIES {
            let seed = first + number;
            let options = Options {
                time: Duration::ZERO,
                at_least: 200,
                rate: 400,
                seed,
                ..Options::new(well.clients())
            };
            let history = history::record(&options, || {
                trouble(&well, number);
                Ok(())
            });
            let history = history.unwrap();
            operations += history.len();
            let (code, words) =
                porcupine::judged(&judge, |file| history::write_json(file, &history));
            assert_eq!(code, 0, "history {number}, seed {seed}: {words}");
        }
        println!("{HISTORIES} histories, {operations} operations");
    }

    /// One or two nodes, each pair and each single one in turn, are killed and come back, or stand
    /// still until they are missed.
    fn trouble(well: &Well, number: u64) {
        const NODES: [&str; 5] = ["n00", "n01", "n02", "n03", "n04"];
        let index = |number: u64| usize::try_from(number % 5).expect("below 5");
        let one = index(number);
        let other = (one + 1 + index(number / 5) % 4) % 5;
        let nodes = match number % 4 {
            0 | 1 => vec![one],
            _ => vec![one, other],
        };
        let before = views(&well.until("etcd answers", |_| true));
        let is_missed = |status: &serde_json::Value| views(status) > before;
        if number.is_multiple_of(2) {
            for &node in &nodes {
                signal(well.pid(&format!("nodes/{}", NODES[node])), "KILL");
            }
            well.until("others go on without it", is_missed);
            let addresses = well.clients();
            for &node in &nodes {
                let address = addresses[node].to_string();
                well.run(&["join", "--name", NODES[node], "--clients", &address])
                    .expect(0);
            }
        } else {
            let pids = nodes
                .iter()
                .map(|node| well.pid(&format!("nodes/{}", NODES[*node])));
            let pids: Vec<_> = pids.collect();
            pids.iter().for_each(|&pid| signal(pid, "STOP"));
            well.until("others go on without it", is_missed);
            pids.iter().for_each(|&pid| signal(pid, "CONT"));
        }
        well.until_whole();
    }

    /// The views of all groups added up.
    fn views(status: &serde_json::Value) -> u64 {
        let groups = status["by_group"].as_array().expect("groups").iter();
        groups
            .map(|group| group["view"].as_u64().expect("a number"))
            .sum()
    }
}
