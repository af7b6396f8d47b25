//! Real clients of memcached on a cluster of which two nodes are killed. Without etcd, or without the
//! client, it is left out.

mod support;

use cenote_test_kit::memcached_clients as client;
use serde_json::Value;
use support::well::Well;

fn items(status: &Value) -> u64 {
    let groups = status["by_group"].as_array().expect("groups").iter();
    let places = groups.flat_map(|group| group["data"].as_array().expect("places"));
    places.filter_map(|place| place["items"].as_u64()).sum()
}

fn keeps_what_was_acknowledged(name: &str) {
    if !client::is_ready(name, env!("CARGO_TARGET_TMPDIR")) {
        return;
    }
    let up = ["--nodes", "5", "--groups", "5", "--memory", "256M"];
    let Some(well) = Well::up(&up) else {
        return;
    };
    let mut running = client::start(name, &well.clients(), env!("CARGO_TARGET_TMPDIR"));
    well.until("it stores", |status| {
        items(status) >= 100 || running.try_wait().unwrap().is_some()
    });
    well.kill(["n01", "n02"]);
    well.until("others have taken over", |status| {
        let groups = status["by_group"].as_array().expect("groups");
        groups.iter().all(|group| group["view"].as_u64() > Some(1))
    });
    let Some((code, words)) = client::end(running) else {
        return;
    };
    assert_eq!(code, 0, "{words}");
}

macro_rules! clients {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            crate::keeps_what_was_acknowledged(stringify!($name));
        }
    )*};
}

clients!(tools);

/// Those of other languages, which their registries give.
mod long {
    clients!(pymemcache, pylibmc, gomemcache, ycsb);
}
