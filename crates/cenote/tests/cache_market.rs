//! A cache whose manager gets its machines: by commands, as processes, from the cluster's file.

mod support;

use std::fs;
use std::time::{Duration, Instant};

use support::cache_load::CacheLoad;
use support::market::{Market, PATIENCE, is_only_on, machine, used};
use support::well::until;
use support::{Folder, runs, signal};

/// Has a load run until the cache is whole on one host.
fn until_only_on(folder: &Folder, load: &mut CacheLoad, host: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        load.run_for(Duration::from_millis(50));
        let ask = || folder.run(&["cache", "status", "c0", "--json"]);
        let status = until("a status is told", ask, |_| true);
        if status["whole"] == true && is_only_on(&status["status"], host) {
            return;
        }
        assert!(Instant::now() < deadline, "{status:#}");
    }
}

#[test]
fn a_machine_that_is_taken_back_is_followed_by_another_under_load() {
    let market = Market::new(&machine("small", "cloud", 12, "1"));
    market.create(&[]).expect(0);
    let status = market.status();
    let [first] = used(&status)[..] else {
        panic!("{status:#}");
    };
    assert_eq!(status["price_per_hour"], 1.0);
    let mut load = CacheLoad::open(market.folder.path(), "c0", 11);
    load.fill();
    let mut load = Some(load);
    signal(market.pid(first), "TERM");
    let moved = market.until(&mut load, "on another machine", |status| {
        let machines = status["machines"].as_array().expect("machines");
        status["whole"] == true && machines.len() == 1 && machines[0]["id"] != first
    });
    assert!(is_only_on(&moved, used(&moved)[0]), "{moved:#}");
    let mut load = load.expect("it runs");
    assert_eq!(load.check(), 0, "{moved:#}");
    assert!(load.told_lost().is_empty());
    assert_eq!(load.failed, 0);
    assert!(
        market.log().contains(&format!("released {first}")),
        "{}",
        market.log()
    );
    drop(load);
    market.folder.run(&["cache", "delete", "c0"]).expect(0);
    assert_eq!(market.running(), Vec::<u32>::new(), "{}", market.log());
}

#[test]
fn a_cluster_whose_caches_have_machines_is_not_ended_in_silence() {
    let market = Market::new(&machine("small", "cloud", 12, "1"));
    market.create(&[]).expect(0);
    let running = market.running();
    assert_eq!(running.len(), 1);
    let refused = market.folder.run(&["down"]).expect(1);
    assert!(
        refused.stderr.contains("machines of cache c0: 1"),
        "{refused:#?}"
    );
    // Nothing was ended.
    assert_eq!(market.status()["whole"], true);
    assert_eq!(market.running(), running);
    market.folder.run(&["cache", "delete", "c0"]).expect(0);
    assert_eq!(market.running(), Vec::<u32>::new(), "{}", market.log());
    market.folder.run(&["down"]).expect(0);
}

#[test]
fn a_cheaper_machine_that_appears_is_moved_to() {
    let dear = machine("dear", "cloud", 12, "1");
    let market = Market::new(&dear);
    market.create(&[]).expect(0);
    let mut load = CacheLoad::open(market.folder.path(), "c0", 12);
    load.fill();
    let mut load = Some(load);
    market.set_catalogue(&(dear + &machine("cheap", "cloud", 8, "0.2")));
    let moved = market.until(&mut load, "on the cheap machine", |status| {
        let machines = status["machines"].as_array().expect("machines");
        status["whole"] == true && machines.len() == 1 && machines[0]["machine"] == "cheap"
    });
    assert_eq!(moved["price_per_hour"], 0.2, "{moved:#}");
    let mut load = load.expect("it runs");
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    assert!(load.told_lost().is_empty());
    assert_eq!(market.running().len(), 1, "{}", market.log());
}

#[test]
fn a_machine_that_a_killed_manager_got_and_did_not_note_is_given_back() {
    let market = Market::new(&machine("small", "cloud", 12, "1"));
    fs::write(market.path("slow"), "").expect("a file");
    market.create(&["--timeout", "0s"]).expect(3);
    let deadline = Instant::now() + PATIENCE;
    while !market.log().contains("got ") {
        assert!(Instant::now() < deadline, "{}", market.log());
        std::thread::yield_now();
    }
    let unnoted = market.running();
    assert_eq!(unnoted.len(), 1);
    let ordered = market.status();
    assert_eq!(ordered["machines"][0]["state"], "ordered", "{ordered:#}");
    let manager = fs::read_to_string(market.path("caches/c0/pid")).expect("a pid file");
    let manager: u32 = manager.trim().parse().expect("a number");
    signal(manager, "KILL");
    while runs(manager) {
        assert!(Instant::now() < deadline, "it is still there");
        std::thread::yield_now();
    }
    fs::remove_file(market.path("slow")).expect("it was there");
    market.folder.run(&["cache", "start", "c0"]).expect(0);
    let whole = market.until(&mut None, "whole, and that one is gone", |status| {
        status["whole"] == true && !runs(unnoted[0])
    });
    assert_eq!(used(&whole), ["vm-2-1"], "{whole:#}");
    assert_eq!(market.running().len(), 1, "{}", market.log());
}

#[test]
fn a_provider_that_hangs_is_told_of_and_processes_are_got_that_outlive_the_manager() {
    let hang = "[[provider]]\nname = \"far\"\nkind = \"command\"\nlimit_s = 3\n\
        acquire = [\"sleep\", \"600\"]\nrelease = [\"true\"]\n\
        [[provider]]\nname = \"here\"\nkind = \"processes\"\n";
    let types = machine("cheap", "far", 12, "0.1") + &machine("local", "here", 12, "1");
    let market = Market::new(&(hang.to_owned() + &types));
    market.create(&[]).expect(0);
    // A host is there a moment before its machine is noted as used.
    let status = market.until(&mut None, "a machine is used", |status| {
        used(status).len() == 1
    });
    let troubles = status["troubles"].to_string();
    assert!(
        troubles.contains("far") && troubles.contains("not within 3s"),
        "{troubles}"
    );
    let text = market.folder.run(&["cache", "status", "c0"]);
    assert!(
        text.stdout.contains("far: sleep: not within 3s"),
        "{text:#?}"
    );
    let [id] = used(&status)[..] else {
        panic!("{status:#}");
    };
    let number = id.strip_prefix("c0-m").expect("a name of the cache's");
    let pid = market.path("caches/c0/machines").join(number).join("pid");
    let pid: u32 = fs::read_to_string(pid)
        .expect("noted")
        .trim()
        .parse()
        .expect("a number");
    let mut load = CacheLoad::open(market.folder.path(), "c0", 13);
    load.fill();
    market.folder.run(&["cache", "stop", "c0"]).expect(0);
    assert!(runs(pid), "what the cache holds is there");
    market.folder.run(&["cache", "start", "c0"]).expect(0);
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    drop(load);
    market.folder.run(&["cache", "delete", "c0"]).expect(0);
    assert!(!runs(pid), "it was ended");
}

#[test]
fn hosts_that_join_or_leave_the_cluster_file_are_used_or_left_by_clients_that_were_there_before() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "2", "--memory", "8M", "--slab", "256K"])
        .expect(0);
    let ClusterFile {
        both,
        first,
        second,
    } = ClusterFile::of(&folder);
    let put = |text: &str| put_cluster_file(&folder, text);
    put(&first);
    let create = ["cache", "create", "c0", "--size", "6M", "--region", "1M"];
    folder.run(&create).expect(0);
    let mut load = CacheLoad::open(folder.path(), "c0", 14);
    load.fill();
    put(&both);
    let grown = folder
        .run(&["cache", "reshape", "c0", "--size", "7M"])
        .expect(0);
    drop(grown);
    // The first one leaves: all that this client wrote is on a host that it was told of later.
    put(&second);
    until_only_on(&folder, &mut load, "h01");
    signal(folder.pid("h00"), "KILL");
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    assert!(load.told_lost().is_empty());
}

#[test]
fn a_host_that_is_in_the_cluster_file_again_stays_also_when_no_manager_saw_it_come_back() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "2", "--memory", "8M", "--slab", "256K"])
        .expect(0);
    let ClusterFile { both, second, .. } = ClusterFile::of(&folder);
    // More than one of them has room for.
    let create = ["cache", "create", "c0", "--size", "12M", "--region", "1M"];
    folder.run(&create).expect(0);
    let becomes_whole = |is_whole: bool| {
        let ask = || folder.run(&["cache", "status", "c0", "--json"]);
        until("whole, or not", ask, |status| status["whole"] == is_whole);
    };
    becomes_whole(true);
    put_cluster_file(&folder, &second);
    becomes_whole(false);
    folder.run(&["cache", "stop", "c0"]).expect(0);
    put_cluster_file(&folder, &both);
    folder.run(&["cache", "start", "c0"]).expect(0);
    becomes_whole(true);
}

/// The file of a cluster of two hosts, and the same with one of them.
struct ClusterFile {
    both: String,
    first: String,
    second: String,
}

impl ClusterFile {
    fn of(folder: &Folder) -> Self {
        let both = fs::read_to_string(folder.path().join("cluster.toml")).expect("a cluster file");
        let begin = both.find("[[host]]").expect("two hosts");
        let second = both.rfind("[[host]]").expect("two hosts");
        Self {
            first: both[..second].to_owned(),
            second: both[..begin].to_owned() + &both[second..],
            both,
        }
    }
}

fn put_cluster_file(folder: &Folder, text: &str) {
    let beside = folder.path().join("cluster.new");
    fs::write(&beside, text).expect("a file");
    fs::rename(beside, folder.path().join("cluster.toml")).expect("in one step");
}

#[test]
fn an_operator_s_notice_has_a_host_emptied_and_one_that_is_called_off_keeps_it() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "2", "--memory", "8M", "--slab", "256K"])
        .expect(0);
    let create = ["cache", "create", "c0", "--size", "4M", "--region", "1M"];
    folder.run(&create).expect(0);
    let mut load = CacheLoad::open(folder.path(), "c0", 15);
    load.fill();
    let said = folder
        .run(&["host", "notice", "h00", "--grace", "100s", "--json"])
        .expect(0)
        .json();
    assert_eq!(
        (&said["leaving"], &said["within_ms"]),
        (&true.into(), &100_000.into()),
        "{said}"
    );
    until_only_on(&folder, &mut load, "h01");
    folder
        .run(&["host", "notice", "h01", "--grace", "100s"])
        .expect(0);
    let stays = folder.run(&["host", "notice", "h01", "--cancel"]).expect(0);
    assert!(stays.stdout.contains("h01: notice withdrawn"), "{stays:#?}");
    assert!(runs(folder.pid("h01")));
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    folder
        .run(&["host", "notice", "h01", "--grace", "0s"])
        .expect(2);
}
