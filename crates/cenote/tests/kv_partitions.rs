//! What clients were promised by `cenote kv`, while links between its nodes are cut and joined again.
//! Without etcd or network namespaces it is left out.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cenote_bench::history::{self, Options};
use cenote_test_kit::porcupine;
use serde_json::Value;
use support::apart::{Apart, ETCD, NODES, address_of, clients_of};
use support::kept::{Kept, store};
use support::memcached::{connect, with_value};
use support::well::{PATIENCE, places};

/// Times that all keys are stored while something is cut.
const ROUNDS: u8 = 5;

/// The nodes in an order of this run's own, and its seed.
fn shuffled() -> ([&'static str; 5], u64) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let given = std::env::var("CENOTE_SEED").ok();
    let given = given.map(|text| text.parse().expect("CENOTE_SEED is a number"));
    let seed = given.unwrap_or(since.as_secs());
    println!("CENOTE_SEED={seed}");
    let mut nodes = NODES;
    let mut rest = seed;
    for last in (1..nodes.len()).rev() {
        let choices = last as u64 + 1;
        nodes.swap(last, usize::try_from(rest % choices).unwrap());
        rest /= choices;
    }
    (nodes, seed)
}

/// The views of all groups added up. Etcd may be within reach again only just now.
fn views(apart: &Apart) -> u64 {
    views_in(&apart.until("etcd answers", |_| true))
}

fn views_in(status: &Value) -> u64 {
    let groups = status["by_group"].as_array().expect("groups").iter();
    groups
        .map(|group| group["view"].as_u64().expect("a number"))
        .sum()
}

/// Clients of a node are served, whatever is cut elsewhere.
fn is_served(node: &str) {
    let mut client = connect(clients_of(node)).unwrap();
    for round in 0..ROUNDS {
        store(&mut client, &[round]);
        for key in ["key0", "key1", "key2"] {
            assert_eq!(client.get(key).unwrap(), Some(vec![round]), "{node}");
        }
    }
}

#[test]
fn a_history_with_links_cut_is_linearizable() {
    let judge = match porcupine::judge(env!("CARGO_TARGET_TMPDIR")) {
        Ok(judge) => judge,
        Err(why) => return println!("skipped: {why}"),
    };
    let ([a, b, c, d, e], seed) = shuffled();
    Apart::with(|apart| {
        let until_out = |nodes: &[&str]| {
            apart.until("others go on without them", |status| {
                nodes.iter().all(|node| places(status, node) == 0)
            });
        };
        let until_more_views = |than: u64| {
            apart.until("somebody is given up", |status| views_in(status) > than);
        };
        let troubles: [(&str, &dyn Fn()); 6] = [
            ("one is cut off from the others", &|| {
                apart.part(a, &[b, c, d, e]);
                until_out(&[a]);
                is_served(b);
                apart.unite(a, &[b, c, d, e]);
            }),
            ("two do not reach each other", &|| {
                let before = views(apart);
                apart.part(b, &[c]);
                until_more_views(before);
                is_served(d);
                // One of the two is given its places again, which the other cannot agree to.
                until_more_views(views(apart));
                is_served(e);
                apart.unite(b, &[c]);
            }),
            ("one does not reach another, which reaches it", &|| {
                let before = views(apart);
                apart.net.mute(c, &address_of(d));
                until_more_views(before);
                is_served(e);
                apart.net.unmute(c, &address_of(d));
            }),
            ("one is cut off from the others and from etcd", &|| {
                apart.part(d, &[a, b, c, e, ETCD]);
                until_out(&[d]);
                is_served(a);
                // So long that nobody counts on it to be there at all.
                apart.until("it is not registered", |status| status["nodes_up"] == 4);
                is_served(b);
                apart.unite(d, &[a, b, c, e, ETCD]);
            }),
            ("two are cut off from everybody", &|| {
                apart.net.unplug(e);
                apart.net.unplug(a);
                until_out(&[e, a]);
                is_served(b);
                apart.net.plug(e);
                apart.net.plug(a);
            }),
            ("one is cut off while etcd is away", &|| {
                apart.net.unplug(ETCD);
                is_served(c);
                apart.part(b, &[a, c, d, e]);
                apart.net.plug(ETCD);
                until_out(&[b]);
                is_served(d);
                apart.unite(b, &[a, c, d, e]);
            }),
        ];
        for (what, trouble) in troubles {
            let options = Options {
                time: Duration::ZERO,
                at_least: 100,
                rate: 300,
                seed,
                ..Options::new(NODES.map(clients_of).to_vec())
            };
            let operations = history::record(&options, || {
                trouble();
                apart.until_whole();
                Ok(())
            });
            let operations = operations.unwrap();
            let (code, words) =
                porcupine::judged(&judge, |file| history::write_json(file, &operations));
            assert_eq!(code, 0, "{what}: {words}");
        }
    });
}

#[test]
fn who_is_cut_off_from_the_others_gives_no_stale_value_and_no_false_word() {
    Apart::with(|apart| {
        let [first, cut, rest @ ..] = NODES;
        for more in [&[][..], &[ETCD]] {
            let from = [&[first], &rest[..], more].concat();
            let mut other = connect(clients_of(first)).unwrap();
            store(&mut other, b"old");
            let mut kept = Kept::at(clients_of(cut));
            apart.part(cut, &from);
            store(&mut other, b"new");
            kept.ask();
            // It has taken note of that, and of whatever its clients said before this.
            let mut client = connect(clients_of(cut)).unwrap();
            assert!(client.ask(b"version\r\n").unwrap().starts_with("VERSION "));
            apart.unite(cut, &from);
            kept.expect(b"new", &mut other);
            apart.until_whole();
        }
    });
}

#[test]
fn more_nodes_than_a_group_bears_cut_off_together_lose_nothing_that_they_acknowledged() {
    Apart::with(|apart| {
        let [a, b, c, d, e] = NODES;
        let mut client = connect(clients_of(a)).unwrap();
        store(&mut client, b"before");
        let first = views(apart);
        // Whoever is asked refuses once it cannot be sure of what others do; what it takes before that counts.
        let acknowledged = AtomicU64::new(0);
        let set_until_refused = |node| {
            let mut client = connect(clients_of(node)).unwrap();
            let deadline = Instant::now() + PATIENCE;
            loop {
                let value = acknowledged.load(Ordering::Relaxed).to_string();
                let request = with_value("set alone", value.as_bytes(), "");
                let said = client.ask(&request).unwrap();
                match said.as_str() {
                    "STORED" => {
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                    said if said.ends_with("nothing was done") => break,
                    said => assert!(said.ends_with("outcome unknown"), "{said}"),
                }
                assert!(Instant::now() < deadline, "{node}: {said}");
            }
        };
        std::thread::scope(|scope| {
            let through_the_cut = scope.spawn(|| set_until_refused(a));
            while acknowledged.load(Ordering::Relaxed) == 0 && !through_the_cut.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            for node in [a, b, c] {
                apart.part(node, &[d, e, ETCD]);
            }
        });
        set_until_refused(d);
        let acknowledged = acknowledged.into_inner();
        assert!(acknowledged > 0, "nothing was taken before the cut");
        apart.until("they are not registered", |status| status["nodes_up"] == 2);
        assert_eq!(views(apart), first, "nothing is given up");
        for node in [a, b, c] {
            apart.unite(node, &[d, e, ETCD]);
        }
        apart.until_whole();
        for node in NODES {
            let mut client = connect(clients_of(node)).unwrap();
            for key in 0..100 {
                let found = client.get(&format!("key{key}")).unwrap();
                assert_eq!(found.as_deref(), Some(&b"before"[..]), "key{key} at {node}");
            }
            let found = client
                .get("alone")
                .unwrap()
                .map(|value| String::from_utf8(value).unwrap());
            let found: Option<u64> = found.map(|text| text.parse().unwrap());
            assert!(
                found.map_or(0, |last| last + 1) >= acknowledged,
                "{found:?} of {acknowledged} at {node}"
            );
        }
    });
}
