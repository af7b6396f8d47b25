//! Real clients of memcached on a cluster of which two nodes are killed. Without etcd, or without the
//! client, it is left out.

#[path = "../../lab/tests/support/client.rs"]
mod client;
mod support;

use client::{client, ended};
use serde_json::Value;
use support::well::Well;

fn items(status: &Value) -> u64 {
    let groups = status["by_group"].as_array().expect("groups").iter();
    let places = groups.flat_map(|group| group["data"].as_array().expect("places"));
    places.filter_map(|place| place["items"].as_u64()).sum()
}

fn keeps_what_was_acknowledged(name: &str) {
    let up = ["--nodes", "5", "--groups", "5", "--memory", "256M"];
    let Some(well) = Well::up(&up) else {
        return;
    };
    let mut running = client(name, 6, &well.clients()).spawn().unwrap();
    well.until("it stores", |status| {
        items(status) >= 100 || running.try_wait().unwrap().is_some()
    });
    let is_cut = running.try_wait().unwrap().is_none();
    well.kill(["n01", "n02"]);
    let output = running.wait_with_output().unwrap();
    let Some((code, words)) = ended(&output) else {
        return;
    };
    assert_eq!(code, 0, "{words}");
    assert!(is_cut, "nodes were killed while it ran: {words}");
}

macro_rules! clients {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            keeps_what_was_acknowledged(stringify!($name));
        }
    )*};
}

clients!(pymemcache, pylibmc, gomemcache, tools, ycsb);
