//! What clients were promised by `cenote kv`, while its nodes are killed and stopped. Without etcd it is
//! left out.

#[path = "../../lab/tests/support/judge.rs"]
mod judge;
mod support;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cenote_lab::history::{self, Options};
use support::memcached::{Client, with_value};
use support::signal;
use support::well::{PATIENCE, Well};

const FIVE: [&str; 8] = [
    "--nodes", "5", "--groups", "5", "--code", "3+2", "--memory", "256M",
];
const WRITERS: usize = 4;

type Value = Option<Vec<u8>>;

/// Writes keys of its own, and knows what each of them may be.
struct Writer<'a> {
    number: usize,
    addresses: &'a [SocketAddr],
    client: Client,
    /// Two values where the outcome of the last request is unknown; such a key is not touched again.
    may_be: BTreeMap<String, Vec<Value>>,
    random: u64,
    names: u64,
    acknowledged: &'a AtomicU64,
}

impl<'a> Writer<'a> {
    fn new(number: usize, addresses: &'a [SocketAddr], acknowledged: &'a AtomicU64) -> Self {
        let client = Client::connect(addresses[number]).expect("it is up");
        Self {
            number,
            addresses,
            client,
            may_be: BTreeMap::new(),
            random: 0x9e37_79b9 + number as u64,
            names: 0,
            acknowledged,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        (0..length).map(|_| self.random(256) as u8).collect()
    }

    fn key(&mut self) -> String {
        let known: Vec<&String> = self
            .may_be
            .iter()
            .filter(|(_, values)| values.len() == 1)
            .map(|(key, _)| key)
            .collect();
        if known.len() >= 40 {
            let known = known.into_iter().cloned().collect::<Vec<_>>();
            return known[self.random(40) as usize].clone();
        }
        self.names += 1;
        let key = format!("w{}-{}", self.number, self.names);
        self.may_be.insert(key.clone(), vec![None]);
        key
    }

    /// A request, what it is answered, and what the value is then.
    fn ask(&mut self, key: &str, old: &Value) -> io::Result<(Vec<u8>, String, Value)> {
        let what = |found: &str| if old.is_some() { found } else { "NOT_FOUND" }.to_owned();
        let stored = |is: bool| if is { "STORED" } else { "NOT_STORED" }.to_owned();
        let sizes = [1, 2, 60, 3000, 4096, 20_000, 200 << 10];
        let size = sizes[self.random(7) as usize];
        let size = self.random(size) + 1;
        let value = self.bytes(size);
        Ok(match self.random(9) {
            0..3 => {
                let request = with_value(&format!("set {key}"), &value, "");
                (request, stored(true), Some(value))
            }
            3 => {
                let request = with_value(&format!("add {key}"), &value, "");
                let is_new = old.is_none();
                (request, stored(is_new), old.clone().or(Some(value)))
            }
            4 if old.as_ref().is_none_or(|old| old.len() < 200 << 10) => {
                let request = with_value(&format!("append {key}"), &value[..1], "");
                let longer = old.clone().map(|old| [&old[..], &value[..1]].concat());
                (request, stored(old.is_some()), longer)
            }
            5 => {
                let number = old.as_ref().and_then(|old| std::str::from_utf8(old).ok());
                match number.and_then(|text| text.parse::<u64>().ok()) {
                    Some(number) if number < 1 << 60 => {
                        let next = (number + 7).to_string();
                        let request = format!("incr {key} 7\r\n").into_bytes();
                        (request, next.clone(), Some(next.into_bytes()))
                    }
                    _ => {
                        let request = with_value(&format!("set {key}"), b"10", "");
                        (request, stored(true), Some(b"10".to_vec()))
                    }
                }
            }
            6 => {
                self.client.send(format!("gets {key}\r\n").as_bytes())?;
                let found = self.client.value()?.map_err(io::Error::other)?;
                assert_eq!(found.as_ref().map(|found| &found.1), old.as_ref(), "{key}");
                let unique = found.map_or(1, |found| found.0);
                let request = with_value(&format!("cas {key}"), &value, &format!(" {unique}"));
                let changed = old.is_some().then_some(value);
                (request, what("STORED"), changed)
            }
            7 => (
                format!("touch {key} 100000\r\n").into_bytes(),
                what("TOUCHED"),
                old.clone(),
            ),
            _ => (
                format!("delete {key}\r\n").into_bytes(),
                what("DELETED"),
                None,
            ),
        })
    }

    fn step(&mut self) {
        let key = self.key();
        let old = self.may_be[&key][0].clone();
        let asked = self.ask(&key, &old);
        let Ok((request, expected, new)) = asked else {
            return self.connect();
        };
        match self.client.ask(&request) {
            Ok(said) if said == expected => {
                self.may_be.insert(key, vec![new]);
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Ok(said) => {
                let is_unknown = said.ends_with("outcome unknown");
                let head = String::from_utf8_lossy(&request[..request.len().min(60)]);
                assert!(is_unknown, "{head:?}: {said}, not {expected}");
                self.may_be.insert(key, vec![old, new]);
            }
            Err(error) => {
                assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "{key}: silence");
                self.may_be.insert(key, vec![old, new]);
                self.connect();
            }
        }
    }

    fn connect(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let at = self.random(self.addresses.len() as u64) as usize;
            match Client::connect(self.addresses[at]) {
                Ok(client) => return self.client = client,
                Err(error) => assert!(Instant::now() < deadline, "connect: {error}"),
            }
        }
    }
}

fn until_more(count: &AtomicU64, more: u64) {
    let wanted = count.load(Ordering::SeqCst) + more;
    let deadline = Instant::now() + PATIENCE;
    while count.load(Ordering::SeqCst) < wanted {
        let now = count.load(Ordering::SeqCst);
        assert!(
            Instant::now() < deadline,
            "{now} acknowledged, not {wanted}"
        );
        std::thread::yield_now();
    }
}

/// Stops the writers, also when what they are watched by panics.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn acknowledged_values_survive_two_of_five_nodes_twice() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let mut first = Client::connect(addresses[0]).unwrap();
    for index in 0..60 {
        let request = with_value(&format!("set gone{index}"), b"x", "");
        assert_eq!(first.ask(&request).unwrap(), "STORED");
    }
    assert_eq!(first.ask(b"flush_all\r\n").unwrap(), "OK");

    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let mut writer = Writer::new(number, &addresses, &acknowledged);
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
        until_more(&acknowledged, 500);
        well.kill(["n01", "n02"]);
        until_more(&acknowledged, 300);
        for (name, address) in [("n01", addresses[1]), ("n02", addresses[2])] {
            let address = address.to_string();
            well.run(&["join", "--name", name, "--clients", &address])
                .expect(0);
        }
        until_more(&acknowledged, 300);
        well.until_whole();
        well.kill(["n00", "n03"]);
        until_more(&acknowledged, 300);
        drop(stopping);
        let all = writers.into_iter().map(|writer| writer.join().unwrap());
        all.flatten().collect::<BTreeMap<String, Vec<Value>>>()
    });
    let known = written.values().filter(|values| values.len() == 1).count();
    assert!(known >= WRITERS * 39, "{known} of {}", written.len());
    for address in [addresses[1], addresses[2], addresses[4]] {
        let mut client = Client::connect(address).unwrap();
        for (key, may_be) in &written {
            let found = client.get(key).unwrap();
            let length = found.as_ref().map(Vec::len);
            let lengths: Vec<_> = may_be
                .iter()
                .map(|one| one.as_ref().map(Vec::len))
                .collect();
            let is_right = may_be.contains(&found);
            assert!(is_right, "{key} at {address}: {length:?} of {lengths:?}");
        }
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
    let mut other = Client::connect(addresses[0]).unwrap();
    let mut kept = Client::connect(addresses[1]).unwrap();
    let keys: Vec<String> = (0..100).map(|index| format!("key{index}")).collect();
    for key in &keys {
        let request = with_value(&format!("set {key}"), b"old", "");
        assert_eq!(other.ask(&request).unwrap(), "STORED");
        assert_eq!(kept.get(key).unwrap().as_deref(), Some(&b"old"[..]));
    }

    let pid = well.pid("nodes/n01");
    signal(pid, "STOP");
    for key in &keys {
        let request = with_value(&format!("set {key}"), b"new", "");
        let said = other.ask(&request).unwrap();
        if said.ends_with("outcome unknown") {
            // It had been passed on to the node that is stopped.
            assert_eq!(other.ask(&request).unwrap(), "STORED");
        } else {
            assert_eq!(said, "STORED");
        }
    }
    for key in &keys {
        kept.send(format!("get {key}\r\n").as_bytes()).unwrap();
        let request = with_value(&format!("set {key}-late"), b"late", "");
        kept.send(&request).unwrap();
    }
    signal(pid, "CONT");
    let mut acknowledged = Vec::new();
    for key in &keys {
        let Ok(found) = kept.value() else {
            break;
        };
        if let Ok(found) = found {
            let value = found.map(|(_, value)| value);
            assert_eq!(value.as_deref(), Some(&b"new"[..]), "{key}");
        }
        match kept.line() {
            Ok(said) if said == "STORED" => acknowledged.push(key),
            Ok(said) => assert!(said.starts_with("SERVER_ERROR"), "{key}: {said}"),
            Err(_) => break,
        }
    }
    for key in acknowledged {
        let found = other.get(&format!("{key}-late")).unwrap();
        assert_eq!(found.as_deref(), Some(&b"late"[..]), "{key}");
    }
    well.until_whole();
}

#[test]
fn a_history_with_nodes_killed_and_stopped_is_linearizable() {
    let judge = match judge::judge() {
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
    assert!(operations.len() > 1000, "{}", operations.len());
    let (code, words) = judge::judged(&judge, &operations);
    assert_eq!(code, 0, "{words}");
}
