//! A manager that is cut off from etcd: it serves, and changes nothing. Without etcd it is left out.

mod support;

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use cenote_cache::service::Cache;
use cenote_fabric::{Address, ClusterKey};
use cenote_kv_cluster::etcd::{EtcdServer, ServerError};
use serde_json::Value;
use support::cache_load::{CacheLoad, open, options};
use support::gate::Gate;
use support::market::{Market, PATIENCE, machine, used};
use support::well::until;
use support::{Folder, runs, signal, wait_ended};
use tempfile::TempDir;

fn pid_of_manager(folder: &Folder) -> u32 {
    let text = fs::read_to_string(folder.path().join("caches/c0/pid")).expect("a manager");
    text.trim().parse().expect("a number")
}

fn is_in_charge(status: &Value) -> bool {
    !status["troubles"].to_string().contains("leadership")
}

/// The cache's folder as it is now, for a manager elsewhere that reaches etcd, and whose commands have a log
/// of their own.
fn copy(market: &Market, gate: &Gate, etcd: &EtcdServer, types: &str) -> Folder {
    let copy = Folder::new();
    let copied = Command::new("cp")
        .args(["-a", "caches", "cluster.toml", "cluster.key"])
        .arg(copy.path())
        .current_dir(market.folder.path())
        .status();
    assert!(copied.expect("cp runs").success());
    for file in ["pid", "started", "socket"] {
        // What the copy says of a process is that of the other folder.
        fs::remove_file(copy.path().join("caches/c0").join(file)).expect("it was copied");
    }
    market.write_catalogue("elsewhere.toml", "elsewhere", types);
    let spec = copy.path().join("caches/c0/cache.toml");
    let text = fs::read_to_string(&spec).expect("what the cache is");
    let gated = format!("http://{}", gate.address());
    assert!(
        text.contains(&gated) && text.contains("machines.toml"),
        "{text}"
    );
    let text = text.replace(&gated, etcd.url());
    fs::write(&spec, text.replace("machines.toml", "elsewhere.toml")).expect("a file");
    copy
}

/// A cache whose manager reaches etcd through a gate; `None`, with the reason printed, without etcd.
fn gated_cache(market: &Market) -> Option<(TempDir, EtcdServer, Gate)> {
    let beside = tempfile::tempdir().expect("a temporary folder");
    let etcd = match EtcdServer::start(beside.path(), |_| {}) {
        Err(ServerError::Missing) => {
            println!("skipped: no etcd-server");
            return None;
        }
        other => other.expect("etcd"),
    };
    let server: SocketAddr = etcd.url()["http://".len()..].parse().expect("an address");
    let gate = Gate::to(server);
    let url = format!("http://{}", gate.address());
    market.create(&["--etcd", &url]).expect(0);
    Some((beside, etcd, gate))
}

#[test]
fn a_manager_that_is_cut_off_from_etcd_gets_and_gives_back_no_machine_while_the_next_is_in_charge()
{
    let types = machine("small", "cloud", 12, "1");
    let market = Market::new(&types);
    let Some((_beside, etcd, gate)) = gated_cache(&market) else {
        return;
    };
    let mut load = CacheLoad::open(market.folder.path(), "c0", 21);
    load.fill();
    let mut load = Some(load);

    gate.shut();
    let cut = market.until(&mut load, "it notices", |status| !is_in_charge(status));
    let load = load.as_mut().expect("it runs");
    assert_eq!(load.check(), 0, "what is there is served: {cut:#}");
    assert_eq!(load.failed, 0);
    let mut newcomer = open(market.folder.path(), "c0").expect("one that comes is served, too");
    newcomer.read(0, &mut [0; 64]).expect("it has a lease");
    drop(newcomer);
    for change in [
        &["cache", "reshape", "c0", "--size", "9M"][..],
        &["cache", "renew", "c0", "--duration", "1h"],
        &["cache", "checkpoint", "c0"],
    ] {
        let refused = market.folder.run(change).expect(1);
        let said = "cannot prove that no other manager began";
        assert!(refused.stderr.contains(said), "{refused:#?}");
    }
    let journal = || fs::read(market.path("caches/c0/journal")).expect("a journal");
    let (before, commands) = (journal(), market.log());
    let [first] = used(&cut)[..] else {
        panic!("{cut:#}");
    };
    let elsewhere = copy(&market, &gate, &etcd, &types);

    // It would have to get another machine.
    signal(market.pid(first), "KILL");
    elsewhere.run(&["cache", "start", "c0"]).expect(0);
    let ask = || elsewhere.run(&["cache", "status", "c0", "--json"]);
    let whole = until("the next one has a machine", ask, |of| {
        of["whole"] == true && used(&of["status"]).len() == 1
    });
    assert_eq!(whole["status"]["epoch"], 2, "{whole:#}");
    let deadline = Instant::now() + PATIENCE;
    while !market
        .log_in("elsewhere")
        .contains(&format!("released {first}"))
    {
        assert!(Instant::now() < deadline, "{}", market.log_in("elsewhere"));
        std::thread::yield_now();
    }
    assert!(
        market.log_in("elsewhere").contains("got vm-2-"),
        "{whole:#}"
    );
    let former = pid_of_manager(&market.folder);
    assert!(runs(former), "nobody told it");
    assert_eq!(market.log(), commands, "it ran no command");
    assert_eq!(journal(), before, "and changed nothing");

    // It hears of the other one, and leaves everything to it.
    gate.open();
    wait_ended(former);
    assert_eq!(market.log(), commands);
    assert_eq!(journal(), before);
    assert_eq!(ask().json()["whole"], true);
    elsewhere.run(&["cache", "delete", "c0"]).expect(0);
    assert_eq!(market.running(), Vec::<u32>::new());
}

#[test]
fn a_manager_that_reaches_etcd_again_goes_on_with_what_it_had_put_off() {
    let types = machine("small", "cloud", 12, "1");
    let market = Market::new(&types);
    let Some((_beside, _etcd, gate)) = gated_cache(&market) else {
        return;
    };
    gate.shut();
    let cut = market.until(&mut None, "it notices", |status| !is_in_charge(status));
    let [first] = used(&cut)[..] else {
        panic!("{cut:#}");
    };
    let commands = market.log();
    signal(market.pid(first), "KILL");
    let down = |status: &Value| status["hosts"].to_string().contains("\"up\":false");
    market.until(&mut None, "the host's end is seen", down);
    assert_eq!(market.log(), commands);
    gate.open();
    let whole = market.until(&mut None, "whole again", |status| {
        status["whole"] == true && used(status) != [first]
    });
    assert_eq!(whole["epoch"], 1, "{whole:#}");
    market.folder.run(&["cache", "delete", "c0"]).expect(0);
    assert_eq!(market.running(), Vec::<u32>::new(), "{}", market.log());
}

#[test]
fn clients_of_a_manager_that_is_stopped_find_the_next_one() {
    let types = machine("small", "cloud", 12, "1");
    let market = Market::new(&types);
    let Some((_beside, etcd, gate)) = gated_cache(&market) else {
        return;
    };
    drop(open(market.folder.path(), "c0").expect("it is there"));
    let elsewhere = copy(&market, &gate, &etcd, &types);
    let socket = |folder: &Folder| Address::Shm(folder.path().join("caches/c0/socket"));
    let both = vec![socket(&market.folder), socket(&elsewhere)];
    let key = ClusterKey::load(&market.path("cluster.key")).expect("a key");
    let cache = Cache::open(both, &key, &options(PATIENCE)).expect("its manager runs");
    let all = 0..cache.len_bytes();
    let mut load = CacheLoad::within(cache, all, 22);
    load.fill();

    let former = pid_of_manager(&market.folder);
    signal(former, "STOP");
    elsewhere.run(&["cache", "start", "c0"]).expect(0);
    assert_eq!(load.check(), 0, "{:?}", load.error);
    assert_eq!(load.failed, 0, "{:?}", load.error);
    assert_eq!(load.cache.status().expect("it answers").epoch, 2);
    drop(load);
    signal(former, "CONT");
    wait_ended(former);
    elsewhere.run(&["cache", "delete", "c0"]).expect(0);
    assert_eq!(market.running(), Vec::<u32>::new());
}
