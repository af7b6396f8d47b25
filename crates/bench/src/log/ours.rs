//! The log store, over what is below its memory.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cenote_cache::log::tiers::remote::RemoteTier;
use cenote_cache::log::tiers::ssd::SsdTier;
use cenote_cache::log::{Answer, Error, Secret, Session, Settings, Store, Tier};
use cenote_cache::service::{Cache, Options};
use cenote_fabric::{Address, ClusterKey};

use super::contender::{Contender, Rate};
use super::load::{Load, Request};
use super::{Mix, RECORD_BYTES, log_file};
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt;
use crate::swap_rig::our_swap::cenote;

/// How much there is.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Records.
    pub keys: u64,
    /// Bytes of the log in memory, where not all of it is.
    pub memory_bytes: u64,
}

/// What is below memory.
#[derive(Clone, Copy)]
pub enum Below<'a> {
    /// All is in memory.
    Nothing,
    /// A file.
    Disk,
    /// A cache on this cluster, of this name, and a file.
    Cache(&'a LocalCluster, &'static str),
}

/// See the module.
pub struct Ours {
    name: String,
    keys: u64,
    session: Session,
}

const PAGE_BYTES: usize = 1 << 20;
/// Reads under way: what a disk takes, see the disk tier.
const PENDING_MAX: usize = 128;
/// Keys that are read in one call.
const BATCH: usize = 32;
const VALUE_BYTES: usize = 16;
/// Records that are loaded between two looks for an interruption.
const LOOK: u64 = 1 << 12;
/// Bytes of a region of the cache: a slab of the hosts.
const REGION_BYTES: u64 = 16 << 20;
/// The cache's name.
const CACHE: &str = "log";

impl Ours {
    /// Makes a store and loads it.
    pub fn start(below: Below<'_>, sizes: Sizes, folder: &Path) -> anyhow::Result<Self> {
        let log_bytes = sizes.keys * RECORD_BYTES;
        let (name, memory_bytes) = match below {
            Below::Nothing => ("memory".to_owned(), 2 * log_bytes),
            Below::Disk => ("memory+SSD".to_owned(), sizes.memory_bytes),
            Below::Cache(_, transport) => (format!("memory+{transport}+SSD"), sizes.memory_bytes),
        };
        let mut tiers: Vec<Box<dyn Tier>> = Vec::new();
        if let Below::Cache(cluster, name) = below {
            let cache = cache(cluster, log_bytes + log_bytes / 8)?;
            tiers.push(Box::new(RemoteTier::new(name, Box::new(cache), PAGE_BYTES)));
        }
        if !matches!(below, Below::Nothing) {
            tiers.push(Box::new(SsdTier::create(&log_file(folder, &name))?));
        }
        let pages = (memory_bytes as usize / PAGE_BYTES)
            .next_power_of_two()
            .max(4);
        let buckets = (sizes.keys / 3).next_power_of_two() as usize;
        let settings = Settings {
            page_bytes: PAGE_BYTES,
            pages,
            mutable_pages: (pages * 7 / 8).min(pages - 2),
            index_buckets: (buckets >> 6).max(1),
            index_buckets_max: buckets,
            overflow_buckets: buckets,
            pending_max: PENDING_MAX,
            ..Settings::default()
        };
        let merge =
            |_: Option<&[u8]>, operand: &[u8], new: &mut Vec<u8>| new.extend_from_slice(operand);
        let store = Store::create(settings, Secret::random()?, Arc::new(merge), tiers, None)?;
        let mut session = store.session()?;
        let began = Instant::now();
        for key in 0..sizes.keys {
            if key % LOOK == 0 {
                interrupt::check()?;
            }
            let upsert = |session: &mut Session| session.upsert(&key.to_le_bytes(), &value(key, 0));
            session.wait(&mut Vec::new(), upsert)?;
        }
        let rate = sizes.keys as f64 / began.elapsed().as_secs_f64() / 1e6;
        eprintln!("{name}: loaded, {rate:.2} M upserts/s");
        Ok(Self {
            name,
            keys: sizes.keys,
            session,
        })
    }

    /// One key by a call of its own, as a program reads that has no other to read beside it.
    fn one(&mut self, key: [u8; 8], done: &mut Done) {
        while self.session.pending_count() >= PENDING_MAX {
            self.poll(done);
        }
        let mut value = std::mem::take(&mut done.value);
        match self.session.read(&key, &mut value) {
            Ok(Answer::Done) => done.judge(&value, Some(key)),
            Ok(Answer::Pending(_)) => self.poll(done),
            Ok(Answer::Absent) => done.wrong = Some("a key is gone".to_owned()),
            Err(error) => done.wrong = Some(error.to_string()),
        }
        done.value = value;
    }

    fn batch(&mut self, keys: &[[u8; 8]], done: &mut Done) {
        while self.session.pending_count() + keys.len() > PENDING_MAX {
            self.poll(done);
        }
        self.session
            .read_many(keys, |at, answer, value| match answer {
                Ok(Answer::Done) => done.judge(value, Some(keys[at])),
                Ok(Answer::Pending(_)) => {}
                Ok(Answer::Absent) => done.wrong = Some("a key is gone".to_owned()),
                Err(error) => done.wrong = Some(error.to_string()),
            });
        if self.session.pending_count() > 0 {
            self.poll(done);
        }
    }

    fn poll(&mut self, done: &mut Done) {
        let mut ended = std::mem::take(&mut done.ended);
        self.session.poll(&mut ended);
        for end in ended.drain(..) {
            match end.result {
                Ok(Some(value)) => done.judge(&value, None),
                Ok(None) => done.wrong = Some("a key is gone".to_owned()),
                Err(error) => done.wrong = Some(error.to_string()),
            }
        }
        done.ended = ended;
    }
}

/// What was done, and the first answer that is wrong.
#[derive(Default)]
struct Done {
    count: u64,
    wrong: Option<String>,
    ended: Vec<cenote_cache::log::Completion>,
    value: Vec<u8>,
}

impl Done {
    fn check(&mut self, name: &str) -> anyhow::Result<()> {
        match self.wrong.take() {
            Some(wrong) => bail!("{name}: {wrong}"),
            None => Ok(()),
        }
    }

    /// Looks at a value; of a read that waited the value says of which key it is, which the store
    /// has compared.
    fn judge(&mut self, value: &[u8], key: Option<[u8; 8]>) {
        self.count += 1;
        let is_right = value.len() == VALUE_BYTES && key.is_none_or(|key| value[..8] == key);
        if !is_right {
            self.wrong = Some(format!("a value is wrong: {value:?}"));
        }
    }
}

impl Contender for Ours {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn run(&mut self, mix: Mix, seconds: u64, seed: u64) -> anyhow::Result<Rate> {
        let mut load = Load::new(self.keys, mix, seed);
        let mut done = Done::default();
        let mut keys = Vec::with_capacity(BATCH);
        let used = processor_seconds()?;
        let (began, time) = (Instant::now(), Duration::from_secs(seconds));
        while began.elapsed() < time {
            interrupt::check()?;
            for _ in 0..8 * BATCH {
                match load.next_request() {
                    Request::Read(key) if mix == Mix::Single => {
                        self.one(key.to_le_bytes(), &mut done);
                    }
                    Request::Read(key) => keys.push(key.to_le_bytes()),
                    Request::Upsert(key) => {
                        let value = value(key, done.count);
                        let upsert =
                            |session: &mut Session| session.upsert(&key.to_le_bytes(), &value);
                        loop {
                            match upsert(&mut self.session) {
                                Ok(()) => break,
                                Err(Error::Busy) => self.poll(&mut done),
                                Err(error) => return Err(error.into()),
                            }
                        }
                        done.count += 1;
                    }
                }
                if keys.len() == BATCH {
                    self.batch(&keys, &mut done);
                    keys.clear();
                }
            }
            done.check(&self.name)?;
        }
        while self.session.pending_count() > 0 {
            interrupt::check()?;
            self.poll(&mut done);
        }
        // What ended last is judged like the rest.
        done.check(&self.name)?;
        let count = done.count as f64 / 1e6;
        Ok(Rate {
            clock: count / began.elapsed().as_secs_f64(),
            processor: count / (processor_seconds()? - used),
        })
    }
}

fn value(key: u64, number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[8..].copy_from_slice(&number.to_le_bytes());
    value
}

/// What this thread has used: the first number of its scheduler's figures, in nanoseconds.
fn processor_seconds() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text.split_whitespace().next().context("no figures")?;
    Ok(nanos.parse::<f64>()? / 1e9)
}

/// A cache of at least so many bytes, as users have one: with a manager in a process of its own.
fn cache(cluster: &LocalCluster, len_bytes: u64) -> anyhow::Result<Cache> {
    let regions = len_bytes.div_ceil(REGION_BYTES);
    let size = (regions * REGION_BYTES).to_string();
    let region = REGION_BYTES.to_string();
    // As many verbs under way to a host as reads may be: none waits in the client for another.
    let configuration = format!("1,0,1,{PENDING_MAX}");
    let mut arguments = vec!["cache", "create", CACHE, "--size", &size];
    arguments.extend(["--region", &region, "--configuration", &configuration]);
    cenote(&arguments, cluster.dir())?;
    let key = ClusterKey::load(&cluster.dir().join("cluster.key"))?;
    let manager = Address::Shm(cluster.dir().join("caches").join(CACHE).join("socket"));
    let cache = Cache::open(vec![manager], &key, &Options::default())?;
    ensure!(cache.len_bytes() >= len_bytes, "the cache is too short");
    Ok(cache)
}
