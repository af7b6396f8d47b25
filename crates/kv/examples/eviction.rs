//! Hit ratios of three caches of 64 MiB on the same requests: the table with its order of eviction, the
//! same space with plain LRU, and memcached itself (`memcached` on the path; left out if it is not there).
//!
//! `cargo run --release -p cenote-kv --example eviction [requests]`. A request that misses stores the key;
//! requests come in batches of 64, whose misses are stored at its end. The first half of the requests warms up.
//! The table's memory counts as it is taken, the space of values as it is allocated from a region; memcached
//! is given `-m 64`, which leaves its hash table (half a megabyte to two) out.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    env,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use cenote_kv::memory::{
    allocator::{Allocator, piece_bytes},
    key_hash::KeyHasher,
    table::{Entry, Table},
};

const MEMORY_BYTES: u64 = 64 << 20;

const BATCH: usize = 64;

/// Keys of the Zipf traces: some ten times what fits.
const KEY_COUNT: u64 = 1_000_000;

/// Keys of the loop: a little more than fit.
const LOOP_COUNT: u64 = 125_000;

trait Cache {
    /// Which of the keys are there; those that are not are stored.
    fn serve(&mut self, keys: &[u64], hits: &mut Vec<bool>) -> io::Result<()>;

    fn state(&self) -> String;
}

fn name(key: u64) -> String {
    format!("{:016x}", mix(key))
}

/// From 32 to 1024 bytes, the key's own.
fn value_bytes(key: u64) -> u32 {
    32 + (mix(key ^ 0x5555) % 993) as u32
}

/// splitmix64.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The table, and an allocator beside it.
struct Ours {
    table: Table,
    allocator: Allocator,
    items_max: usize,
    /// Most bytes that were in use.
    filled: u64,
}

impl Ours {
    /// Parts the memory between table and region as an average item does.
    fn new() -> Self {
        let sample = 10_000;
        let values: u64 = (0..sample)
            .filter_map(|key| piece_bytes(value_bytes(key).into()))
            .sum();
        // 56 of its slot, and up to 14 of the index and of lists.
        let item = values / sample + 56 + 14;
        let items_max = MEMORY_BYTES / item;
        Self {
            table: Table::new(KeyHasher::random().expect("random bytes")),
            allocator: Allocator::new(MEMORY_BYTES - items_max * (56 + 14)),
            items_max: items_max as usize,
            filled: 0,
        }
    }

    fn evict(&mut self) {
        let slot = self.table.choose_coldest().expect("a full cache has items");
        let key = self.table.key(slot).to_vec();
        let entry = self
            .table
            .remove(self.table.hash_of(&key), &key)
            .expect("it was chosen");
        let freed = self.allocator.free(entry.address, entry.value_bytes.into());
        freed.expect("its space was used");
    }
}

impl Cache for Ours {
    fn serve(&mut self, keys: &[u64], hits: &mut Vec<bool>) -> io::Result<()> {
        for key in keys {
            let key = name(*key);
            let hash = self.table.hash_of(key.as_bytes());
            let slot = self.table.find(hash, key.as_bytes());
            slot.inspect(|slot| self.table.note_use(*slot, 0));
            hits.push(slot.is_some());
        }
        for key in missed(keys, hits) {
            let (name, value_bytes) = (name(key), value_bytes(key));
            while self.table.len() >= self.items_max {
                self.evict();
            }
            let address = loop {
                match self.allocator.allocate(value_bytes.into()) {
                    Some(address) => break address,
                    None => self.evict(),
                }
            };
            let entry = Entry {
                address,
                value_bytes,
                ..Entry::default()
            };
            let hash = self.table.hash_of(name.as_bytes());
            self.table.put(hash, name.as_bytes(), &entry);
            self.filled = self.filled.max(self.table.evictable_bytes());
        }
        Ok(())
    }

    fn state(&self) -> String {
        let taken = self.table.resident_bytes() + self.allocator.region_bytes();
        let free = self.allocator.free_bytes() * 100 / self.allocator.region_bytes();
        let mib = taken as f64 / f64::from(1 << 20);
        format!(
            "{} items in {mib:.1} MiB, {free} % of the region free",
            self.table.len()
        )
    }
}

/// Least recently used first.
struct Lru {
    bytes: u64,
    bytes_max: u64,
    now: u64,
    uses: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl Lru {
    fn new(bytes_max: u64) -> Self {
        Self {
            bytes: 0,
            bytes_max,
            now: 0,
            uses: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    fn cost(key: u64) -> u64 {
        56 + piece_bytes(value_bytes(key).into()).expect("values are short")
    }

    fn touch(&mut self, key: u64) {
        self.now += 1;
        if let Some(before) = self.uses.insert(key, self.now) {
            self.order.remove(&before);
        }
        self.order.insert(self.now, key);
    }
}

impl Cache for Lru {
    fn serve(&mut self, keys: &[u64], hits: &mut Vec<bool>) -> io::Result<()> {
        for key in keys {
            hits.push(self.uses.contains_key(key));
            if self.uses.contains_key(key) {
                self.touch(*key);
            }
        }
        for key in missed(keys, hits) {
            self.touch(key);
            self.bytes += Self::cost(key);
            while self.bytes > self.bytes_max {
                let (_, coldest) = self.order.pop_first().expect("a full cache has items");
                self.uses.remove(&coldest);
                self.bytes -= Self::cost(coldest);
            }
        }
        Ok(())
    }

    fn state(&self) -> String {
        format!("{} items", self.uses.len())
    }
}

/// memcached, over its socket.
struct Memcached {
    process: Child,
    stream: BufReader<UnixStream>,
    stored: u64,
    refused: u64,
    _directory: tempfile::TempDir,
}

impl Memcached {
    fn start() -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("memcached");
        let process = Command::new("memcached")
            .args(["-m", "64", "-t", "1", "-u", "root", "-s"])
            .arg(&socket)
            .spawn()?;
        let begun = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if begun.elapsed() > Duration::from_secs(10) => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        };
        Ok(Self {
            process,
            stream: BufReader::new(stream),
            stored: 0,
            refused: 0,
            _directory: directory,
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let ended = self.process.kill().and_then(|()| self.process.wait());
        ended.expect("a process of ours can be ended");
    }
}

impl Cache for Memcached {
    fn serve(&mut self, keys: &[u64], hits: &mut Vec<bool>) -> io::Result<()> {
        let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
        let get = format!("get {}\r\n", names.join(" "));
        self.stream.get_mut().write_all(get.as_bytes())?;
        let mut names = names.iter();
        loop {
            let line = self.line()?;
            let mut words = line.split(' ').skip(1);
            let (Some(found), Some(bytes)) = (words.next(), words.nth(1)) else {
                assert_eq!(line, "END");
                hits.extend(names.map(|_| false));
                break;
            };
            // Values come in the order of the keys.
            hits.extend(
                names
                    .by_ref()
                    .take_while(|name| *name != found)
                    .map(|_| false),
            );
            hits.push(true);
            let bytes: usize = bytes.parse().expect("a length");
            let mut value = vec![0; bytes + 2];
            self.stream.read_exact(&mut value)?;
        }
        let missed = missed(keys, hits);
        for key in &missed {
            let value = vec![b'v'; value_bytes(*key) as usize];
            let line = format!("set {} 0 0 {}\r\n", name(*key), value.len());
            let set = [line.as_bytes(), &value, b"\r\n"].concat();
            self.stream.get_mut().write_all(&set)?;
        }
        for _ in &missed {
            let was_stored = self.line()? == "STORED";
            self.stored += u64::from(was_stored);
            self.refused += u64::from(!was_stored);
        }
        Ok(())
    }

    fn state(&self) -> String {
        format!("{} stored, {} refused", self.stored, self.refused)
    }
}

/// Those of the last keys that were not there, once each.
fn missed(keys: &[u64], hits: &[bool]) -> Vec<u64> {
    let hits = &hits[hits.len() - keys.len()..];
    let mut seen = HashSet::new();
    let missed = keys.iter().zip(hits).filter(|(_, hit)| !**hit);
    missed
        .map(|(key, _)| *key)
        .filter(|key| seen.insert(*key))
        .collect()
}

/// Ranks by Zipf's law with exponent 0.99, by a table of sums.
struct Zipf {
    sums: Vec<f64>,
    state: u64,
}

impl Zipf {
    fn new() -> Self {
        let mut sum = 0.0;
        let sums = (1..=KEY_COUNT).map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        });
        Self {
            sums: sums.collect(),
            state: 1,
        }
    }

    fn next(&mut self) -> u64 {
        self.state += 1;
        let part = (mix(self.state) >> 11) as f64 / (1_u64 << 53) as f64;
        let total = self.sums.last().expect("keys");
        self.sums.partition_point(|sum| *sum <= part * total) as u64
    }
}

fn zipf(count: usize) -> Vec<u64> {
    let mut zipf = Zipf::new();
    (0..count).map(|_| zipf.next()).collect()
}

/// Every 150,000 requests end with 50,000 for keys that are asked for once.
fn zipf_and_scans(count: usize) -> Vec<u64> {
    let mut zipf = Zipf::new();
    let key = |at: usize| {
        if at % 150_000 < 100_000 {
            zipf.next()
        } else {
            KEY_COUNT + at as u64
        }
    };
    (0..count).map(key).collect()
}

fn round_and_round(count: usize) -> Vec<u64> {
    (0..count as u64).map(|at| at % LOOP_COUNT).collect()
}

fn run(what: &str, cache: &mut dyn Cache, trace: &[u64]) -> io::Result<()> {
    let mut hits = Vec::with_capacity(trace.len());
    for keys in trace.chunks(BATCH) {
        cache.serve(keys, &mut hits)?;
    }
    let counted = &hits[hits.len() / 2..];
    let hit_count = counted.iter().filter(|hit| **hit).count();
    let percent = hit_count as f64 * 100.0 / counted.len() as f64;
    println!("  {what:<10} {percent:6.2} % hits   ({})", cache.state());
    Ok(())
}

fn main() -> io::Result<()> {
    let requests = env::args()
        .nth(1)
        .map_or(Ok(3_000_000), |count| count.parse());
    let requests = requests.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let traces = [
        ("Zipf 0.99 over 1 M keys", zipf(requests)),
        ("Zipf 0.99 and scans", zipf_and_scans(requests)),
        ("a loop of 125 k keys", round_and_round(requests)),
    ];
    for (what, trace) in &traces {
        println!("{what}: {} requests", trace.len());
        let mut ours = Ours::new();
        run("ours", &mut ours, trace)?;
        run("LRU", &mut Lru::new(ours.filled), trace)?;
        match Memcached::start() {
            Ok(mut memcached) => run("memcached", &mut memcached, trace)?,
            Err(error) => println!("  memcached  was not started: {error}"),
        }
    }
    Ok(())
}
