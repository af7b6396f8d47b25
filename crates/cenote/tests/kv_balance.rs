//! Owners of `cenote kv` are spread over nodes again while clients write and read all the time: no request
//! fails, nothing is lost and nothing stale. Without etcd it is left out.

mod support;

use serde_json::Value;
use support::well::{FIVE, Well};
use support::writer::Load;

/// Rounds of two kills within which a node has lost partitions to another.
const ROUNDS: usize = 12;

/// Most and least partitions of a node.
fn extremes(status: &Value) -> (u64, u64) {
    let nodes = status["nodes"].as_array().expect("nodes").iter();
    let owned = nodes.map(|node| node["owned"].as_u64().expect("a number"));
    let owned: Vec<u64> = owned.collect();
    (*owned.iter().max().unwrap(), *owned.iter().min().unwrap())
}

fn is_spread(status: &Value) -> bool {
    let (most, least) = extremes(status);
    status["whole"] == true && most - least < 2
}

#[test]
fn a_node_that_is_new_gets_its_share_and_no_request_fails() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let load = Load::new(&addresses, true);
    let written = load.during(|| {
        well.run(&["join", "--name", "spare"]).expect(0);
        let status = well.until("the new one owns two", |status| {
            let nodes = status["nodes"].as_array().expect("nodes");
            nodes
                .iter()
                .any(|node| node["name"] == "spare" && node["owned"] == 2)
        });
        assert_eq!(extremes(&status).1, 2, "{status:#}");
        load.until_more(100);
    });
    load.check(&written, &[0, 1, 2, 3, 4]);
}

/// Each node is in each group: owners and parities change places.
#[test]
fn owners_that_kills_have_left_on_few_nodes_are_spread_and_no_request_fails() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let join = |node: usize| {
        let (name, address) = (format!("n0{node}"), addresses[node].to_string());
        well.run(&["join", "--name", &name, "--clients", &address])
            .expect(0);
    };
    let mut rounds = 0;
    while is_spread(&well.status()) {
        assert!(rounds < ROUNDS, "owners stay spread: {:#}", well.status());
        let (first, second) = (rounds % 5, (rounds + 1) % 5);
        let names = [first, second].map(|node| format!("n0{node}"));
        well.kill([&names[0], &names[1]]);
        // Who comes first gets what the other had.
        join(second);
        join(first);
        well.until_whole();
        rounds += 1;
    }
    println!("after {rounds} rounds: {:?}", extremes(&well.status()));
    let load = Load::new(&addresses, true);
    let written = load.during(|| {
        let status = well.until("owners are spread", is_spread);
        assert_eq!(extremes(&status), (3, 3), "15 partitions on 5 nodes");
        load.until_more(100);
    });
    load.check(&written, &[0, 1, 2, 3, 4]);
}
