//! Clients that write all the time, each to keys of its own, and know what is right.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::memcached::{Client, connect, with_value};
use super::well::PATIENCE;

/// Clients of a [`Load`].
pub const WRITERS: usize = 4;

/// None: there is no item.
pub type Value = Option<Vec<u8>>;

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
    /// How often each node was told to end, and has ended, together, and how often the one that it is connected
    /// to had before it connected: who is told to end may close a connection, and nothing else may go
    /// wrong. None: nodes die.
    told: Option<(&'a [AtomicU64], u64)>,
    at: usize,
}

impl<'a> Writer<'a> {
    fn new(
        number: usize,
        addresses: &'a [SocketAddr],
        acknowledged: &'a AtomicU64,
        told: Option<&'a [AtomicU64]>,
    ) -> Self {
        let client = connect(addresses[number]).expect("it is up");
        Self {
            told: told.map(|told| (told, told[number].load(Ordering::SeqCst))),
            at: number,
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
                let unique = found.map_or(1, |found| found.0.expect("a GETS has one"));
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
        let (request, expected, new) = match asked {
            Ok(asked) => asked,
            Err(error) => {
                self.forgive(&key, &error);
                return self.connect();
            }
        };
        match self.client.ask(&request) {
            Ok(said) if said == expected => {
                self.may_be.insert(key, vec![new]);
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Ok(said) => {
                let is_unknown = self.told.is_none() && said.ends_with("outcome unknown");
                let head = String::from_utf8_lossy(&request[..request.len().min(60)]);
                assert!(is_unknown, "{head:?}: {said}, not {expected}");
                self.may_be.insert(key, vec![old, new]);
            }
            Err(error) => {
                self.forgive(&key, &error);
                self.may_be.insert(key, vec![old, new]);
                self.connect();
            }
        }
    }

    /// A connection may end, if nodes die or this one was told to end.
    fn forgive(&self, key: &str, error: &io::Error) {
        let is_silence = error.kind() == io::ErrorKind::WouldBlock;
        assert!(!is_silence, "{key}: silence");
        if let Some((told, before)) = &self.told {
            let address = self.addresses[self.at];
            let is_told = told[self.at].load(Ordering::SeqCst) > *before || before % 2 == 1;
            let is_told = is_told && error.kind() != io::ErrorKind::Other;
            assert!(is_told, "{key}: {address} was to go on, and: {error}");
        }
    }

    fn connect(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let at = self.random(self.addresses.len() as u64) as usize;
            let before = self
                .told
                .map(|(told, _)| (told, told[at].load(Ordering::SeqCst)));
            match connect(self.addresses[at]) {
                Ok(client) => {
                    self.told = before;
                    self.at = at;
                    return self.client = client;
                }
                Err(error) => assert!(Instant::now() < deadline, "connect: {error}"),
            }
        }
    }
}

/// Clients that write while something is done.
pub struct Load<'a> {
    addresses: &'a [SocketAddr],
    acknowledged: AtomicU64,
    /// As of [`Writer`].
    pub told: Option<Vec<AtomicU64>>,
}

impl<'a> Load<'a> {
    /// `are_told`: nodes end when they are told to, and none dies.
    pub fn new(addresses: &'a [SocketAddr], are_told: bool) -> Self {
        let told = || addresses.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            addresses,
            acknowledged: AtomicU64::new(0),
            told: are_told.then(told),
        }
    }

    /// What was written while something was done, and all that may be read of it.
    pub fn during(&self, what: impl FnOnce()) -> BTreeMap<String, Vec<Value>> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let told = self.told.as_deref();
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

    /// Waits until so much more has been acknowledged.
    pub fn until_more(&self, more: u64) {
        let count = || self.acknowledged.load(Ordering::SeqCst);
        let wanted = count() + more;
        let deadline = Instant::now() + PATIENCE;
        while count() < wanted {
            let now = count();
            assert!(
                Instant::now() < deadline,
                "{now} acknowledged, not {wanted}"
            );
            std::thread::yield_now();
        }
    }

    /// Reads everything, at every node of these.
    pub fn check(&self, written: &BTreeMap<String, Vec<Value>>, nodes: &[usize]) {
        for node in nodes {
            let address = self.addresses[*node];
            let mut client = connect(address).unwrap();
            for (key, may_be) in written {
                let found = client.get(key).unwrap();
                let length = |value: &Value| value.as_ref().map(Vec::len);
                let lengths: Vec<_> = may_be.iter().map(length).collect();
                let is_right = may_be.contains(&found);
                let found = length(&found);
                assert!(is_right, "{key} at {address}: {found:?} of {lengths:?}");
            }
        }
    }
}

/// Stops the writers, also when what they are watched by panics.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
