//! One cluster for everything: a volume, a cache with a catalogue, and a log store's tier use the same hosts
//! while one of these is drained and another one killed.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_cache::log::tiers::Tier;
use cenote_cache::log::tiers::memory::MemoryTier;
use cenote_cache::log::tiers::remote::RemoteTier;
use cenote_cache::log::{Answer, Secret, Session, Settings, Store};
use serde_json::Value;
use support::cache_load::{CacheLoad, open};
use support::lab::{Lab, VOLUME};
use support::nbd::Client;
use support::well::until;
use support::{Folder, cenote, signal};

const PATIENCE: Duration = Duration::from_secs(120);
const PAGE_BYTES: usize = 4096;
/// Pages of the volume that are written, some in each of its first extents.
const PAGES: u64 = 600;
const STRIDE: u64 = 40 * PAGE_BYTES as u64;

/// Pages of a volume, of which each byte is known.
struct Pages {
    client: Client,
    versions: BTreeMap<u64, u64>,
    next: u64,
}

impl Pages {
    fn page(offset: u64, version: u64) -> Vec<u8> {
        let word = (offset << 20 | version).to_le_bytes();
        word.repeat(PAGE_BYTES / 8)
    }

    /// Writes one and reads another.
    fn step(&mut self) {
        let offset = self.next % PAGES * STRIDE;
        let version = self.versions.get(&offset).map_or(1, |version| version + 1);
        assert_eq!(
            self.client.write(offset, &Self::page(offset, version)),
            Ok(())
        );
        self.versions.insert(offset, version);
        let other = self.next * 7 % PAGES * STRIDE;
        self.check(other);
        self.next += 1;
    }

    fn check(&mut self, offset: u64) {
        if let Some(&version) = self.versions.get(&offset) {
            let found = self.client.read(offset, PAGE_BYTES);
            assert_eq!(
                found.as_deref(),
                Ok(&Self::page(offset, version)[..]),
                "at {offset}"
            );
        }
    }

    fn check_all(&mut self) {
        for offset in self.versions.keys().copied().collect::<Vec<_>>() {
            self.check(offset);
        }
    }
}

/// A log store with a cache below its memory.
struct Log {
    store: Arc<Store>,
    session: Session,
    written: u64,
}

impl Log {
    fn new(folder: &Folder) -> Self {
        let cache = open(folder.path(), "c1").expect("its manager runs");
        let tiers: Vec<Box<dyn Tier>> = vec![
            Box::new(RemoteTier::new("cache", Box::new(cache), PAGE_BYTES)),
            Box::new(MemoryTier::new("disk", None)),
        ];
        let settings = Settings {
            page_bytes: PAGE_BYTES,
            pages: 16,
            mutable_pages: 8,
            ..Settings::default()
        };
        let secret = Secret {
            hash_key: *b"not very secret.",
            store: 77,
        };
        let keep = |_: Option<&[u8]>, new: &[u8], merged: &mut Vec<u8>| merged.extend(new);
        let store = Store::create(settings, secret, Arc::new(keep), tiers, None).expect("a store");
        let session = store.session().expect("a session");
        Self {
            store,
            session,
            written: 0,
        }
    }

    fn value(number: u64) -> Vec<u8> {
        number.to_be_bytes().repeat(8)
    }

    fn write(&mut self, count: u64) {
        for number in self.written..self.written + count {
            let (key, value) = (number.to_le_bytes(), Self::value(number));
            let upsert = |session: &mut Session| session.upsert(&key, &value);
            let done = self.session.wait(&mut Vec::new(), upsert);
            done.expect("it is written");
        }
        self.written += count;
    }

    /// Reads all that was written.
    fn check(&mut self) {
        let (mut value, mut ended) = (Vec::new(), Vec::new());
        let mut asked = BTreeMap::new();
        for number in 0..self.written {
            let key = number.to_le_bytes();
            let read = |session: &mut Session| session.read(&key, &mut value);
            match self.session.wait(&mut ended, read).expect("it is asked") {
                Answer::Done => assert_eq!(value, Self::value(number)),
                Answer::Absent => panic!("{number} is gone"),
                Answer::Pending(ticket) => drop(asked.insert(ticket, number)),
            }
        }
        self.session.finish(&mut ended);
        for end in ended {
            let number = asked.remove(&end.ticket).expect("it was asked");
            assert_eq!(end.result.expect("it is read"), Some(Self::value(number)));
        }
        assert!(asked.is_empty());
    }
}

fn status(folder: &Folder, cache: &str) -> Value {
    let ask = || folder.run(&["cache", "status", cache, "--json"]);
    until("a status is told", ask, |_| true)
}

/// The host that has the most of both caches, besides `not`.
fn busiest(folder: &Folder, not: &str) -> String {
    let mut regions = BTreeMap::<String, u64>::new();
    for cache in ["c0", "c1"] {
        let status = status(folder, cache);
        for host in status["status"]["hosts"].as_array().expect("hosts") {
            let name = host["name"].as_str().expect("a name");
            *regions.entry(name.to_owned()).or_default() += host["regions"].as_u64().expect("some");
        }
    }
    regions.remove(not);
    let most = regions.into_iter().max_by_key(|(_, regions)| *regions);
    most.expect("there are hosts").0
}

#[test]
fn a_volume_a_cache_and_a_log_store_lose_nothing_on_hosts_that_they_share() {
    let lab = Lab::with_cluster(9, "rs:2+1", &["--slab", "1M"]);
    let folder = &lab.folder;
    let catalogue = folder.path().join("machines.toml");
    let text = "look_every_s = 1\n[[provider]]\nname = \"hosts\"\nkind = \"running\"\n\
        [[machine]]\nname = \"idle\"\nprovider = \"hosts\"\ncores = 0\nmemory_mib = 4\n\
        price_per_hour = 0\ncount = 9\n";
    fs::write(&catalogue, text).expect("a file");
    let catalogue = catalogue.to_str().expect("UTF-8");
    let of_machines = ["--copies", "2", "--slab", "1M", "--catalogue", catalogue];
    let create = ["cache", "create", "c0", "--size", "6M", "--region", "1M"];
    folder.run(&[&create[..], &of_machines].concat()).expect(0);
    let create = ["cache", "create", "c1", "--size", "4M", "--region", "1M"];
    folder.run(&create).expect(0);

    let mut pages = Pages {
        client: Client::connect(&lab.socket(), VOLUME),
        versions: BTreeMap::new(),
        next: 0,
    };
    let mut load = CacheLoad::open(folder.path(), "c0", 41);
    load.fill();
    let mut log = Log::new(folder);
    let mut work = |what: &str, is_over: &mut dyn FnMut() -> bool| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for _ in 0..20 {
                pages.step();
                load.step();
            }
            log.write(50);
            if is_over() {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {:?}", log.store.tiers());
        }
    };
    let mut rounds = 0;
    work("all of it is in use", &mut || {
        rounds += 1;
        rounds == 40
    });

    let drained = busiest(folder, "");
    let mut drain = cenote()
        .args(["host", "drain", &drained, "--dir", folder.str()])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    let mut ended = None;
    work("a host is drained", &mut || {
        ended = drain.try_wait().expect("a child of ours");
        ended.is_some()
    });
    assert!(ended.is_some_and(|ended| ended.success()), "{ended:?}");

    let killed = busiest(folder, &drained);
    signal(folder.pid(&killed), "KILL");
    work("all is whole again", &mut || {
        let whole = |cache: &str| status(folder, cache)["whole"] == true;
        whole("c0") && whole("c1") && lab.health() == "healthy"
    });

    pages.check_all();
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    assert!(load.told_lost().is_empty(), "two copies of each region");
    log.check();
    assert_eq!(lab.requests_failed(), 0);
    drop((load, log));
    for cache in ["c0", "c1"] {
        folder.run(&["cache", "delete", cache]).expect(0);
    }
}
