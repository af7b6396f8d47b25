//! Nodes of `cenote kv` that leave as planned while clients write and read all the time: no request
//! fails, nothing is lost and nothing stale. Without etcd it is left out.

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use support::memcached::Client;
use support::well::{PATIENCE, Well, places};
use support::writer::{Stopping, Value, Writer, until_more};
use support::{runs, signal};

const FIVE: [&str; 8] = [
    "--nodes", "5", "--groups", "5", "--code", "3+2", "--memory", "256M",
];
const NAMES: [&str; 5] = ["n00", "n01", "n02", "n03", "n04"];
const WRITERS: usize = 4;

/// Clients that write while something is done, and what they count.
struct Load<'a> {
    addresses: &'a [SocketAddr],
    acknowledged: AtomicU64,
    /// How often each node was told to end, and has ended, together.
    told: Vec<AtomicU64>,
}

impl<'a> Load<'a> {
    fn new(addresses: &'a [SocketAddr]) -> Self {
        Self {
            addresses,
            acknowledged: AtomicU64::new(0),
            told: addresses.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// What was written while something was done, and all that may be read of it.
    fn during(&self, what: impl FnOnce()) -> BTreeMap<String, Vec<Value>> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let told = Some(&self.told[..]);
                    let mut writer = Writer::new(number, self.addresses, &self.acknowledged, told);
                    let stop = &stop;
                    scope.spawn(move || {
                        while !stop.load(Ordering::SeqCst) {
                            writer.step();
                        }
                        writer.may_be
                    })
                })
                .collect();
            let stopping = Stopping(&stop);
            self.until_more(200);
            what();
            drop(stopping);
            let all = writers.into_iter().map(|writer| writer.join().unwrap());
            all.flatten().collect()
        })
    }

    fn until_more(&self, more: u64) {
        until_more(&self.acknowledged, more);
    }

    /// Tells a node to end, as a supervisor does, and waits until it has.
    fn end(&self, well: &Well, node: usize) {
        let pid = well.pid(&format!("nodes/{}", NAMES[node]));
        self.told[node].fetch_add(1, Ordering::SeqCst);
        signal(pid, "TERM");
        let deadline = Instant::now() + PATIENCE;
        while runs(pid) {
            assert!(Instant::now() < deadline, "{} does not end", NAMES[node]);
            std::thread::yield_now();
        }
        self.told[node].fetch_add(1, Ordering::SeqCst);
        let log = well.log(NAMES[node]);
        assert!(!log.contains("nobody else has"), "{log}");
    }

    /// Reads everything, at every node that is there.
    fn check(&self, written: &BTreeMap<String, Vec<Value>>, nodes: &[usize]) {
        for node in nodes {
            let address = self.addresses[*node];
            let mut client = Client::connect(address).unwrap();
            for (key, may_be) in written {
                let found = client.get(key).unwrap();
                let length = found.as_ref().map(Vec::len);
                assert!(may_be.contains(&found), "{key} at {address}: {length:?}");
            }
        }
    }
}

#[test]
fn five_nodes_are_restarted_one_by_one_and_no_request_fails() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let load = Load::new(&addresses);
    let written = load.during(|| {
        for (node, name) in NAMES.into_iter().enumerate() {
            load.end(&well, node);
            load.until_more(100);
            // Where it was: clients keep their list of addresses.
            let address = addresses[node].to_string();
            well.run(&["join", "--name", name, "--clients", &address])
                .expect(0);
            well.until_whole();
            load.until_more(100);
        }
    });
    // Without being told it comes back where it was told to be before.
    load.end(&well, 0);
    well.run(&["join", "--name", "n00"]).expect(0);
    well.until_whole();
    assert_eq!(well.clients(), addresses);
    let unknown = written.values().filter(|values| values.len() > 1).count();
    assert!(unknown <= WRITERS * NAMES.len(), "{unknown}");
    load.check(&written, &[0, 1, 2, 3, 4]);
}

#[test]
fn what_a_drained_node_has_goes_to_a_spare_and_nothing_is_missing_meanwhile() {
    let Some(well) = Well::up(&[&FIVE[..], &["--lanes", "2", "--seal"]].concat()) else {
        return;
    };
    let addresses = well.clients();
    let load = Load::new(&addresses);
    let written = load.during(|| {
        // With nobody there to take them it gives its places up, and says so.
        let drained = well.run(&["drain", "n01", "--wait"]).expect(3);
        assert!(drained.stdout.contains("nobody could take"), "{drained:#?}");
        well.until("it has nothing", |status| places(status, "n01") == 0);
        well.run(&["join", "--name", "spare"]).expect(0);
        well.until_whole();
        load.until_more(100);

        let address = addresses[1].to_string();
        load.end(&well, 1);
        well.run(&["join", "--name", "n01", "--clients", &address])
            .expect(0);
        well.until("it is there", |status| status["nodes_up"] == 5);
        let drained = well.run(&["drain", "n02", "--wait"]).expect(0);
        assert!(drained.stdout.contains("others took 5"), "{drained:#?}");
        well.until("it has nothing", |status| {
            places(status, "n02") == 0 && status["whole"] == true
        });
        load.until_more(100);
        load.end(&well, 2);
    });
    load.check(&written, &[0, 1, 3, 4]);
}
