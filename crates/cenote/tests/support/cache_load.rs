//! A load on a cache of which every byte is known.
//!
//! One handle writes records and reads them back. A record says which it is and which version it has, in each
//! of its words. A read returns the version that was acknowledged last, or one that was submitted since and
//! failed; zeros where the region lost its bytes, and the cache told so.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use cenote_cache::service::{Cache, CallError, OpenError, Options};
use cenote_fabric::{Address, ClusterKey};

/// Bytes of a record. Not a divisor of a slab: some records are on two regions.
const RECORD_BYTES: u64 = 24 * 1000;

/// A check in which so many reads failed goes on for hours: each takes a request's patience.
const FAILED_MAX: u64 = 10;

/// See the module's text.
pub struct CacheLoad {
    pub cache: Cache,
    /// Address of its first record.
    begin: u64,
    records: Vec<Record>,
    random: u64,
    /// Requests that ended well.
    pub done: u64,
    /// Requests that failed and may be tried again.
    pub failed: u64,
    /// The last of their errors.
    pub error: Option<String>,
}

#[derive(Clone, Copy, Default)]
struct Record {
    acknowledged: u64,
    submitted: u64,
    /// Of the regions it is on, when it was acknowledged.
    losses: [u32; 2],
}

/// Opens a cache of a folder.
pub fn open(folder: &Path, name: &str) -> Result<Cache, OpenError> {
    let key = ClusterKey::load(&folder.join("cluster.key")).expect("a key");
    open_with(folder, name, &key, Duration::from_secs(20))
}

/// The same, as one who has a key, and waits for so long.
pub fn open_with(
    folder: &Path,
    name: &str,
    key: &ClusterKey,
    timeout: Duration,
) -> Result<Cache, OpenError> {
    let socket = folder.join("caches").join(name).join("socket");
    let options = Options {
        timeout,
        ..options(Duration::from_secs(60))
    };
    Cache::open(vec![Address::Shm(socket)], key, &options)
}

/// Of a load whose requests wait for so long.
pub fn options(patience: Duration) -> Options {
    Options {
        name: "checked load".to_owned(),
        patience,
        timeout: Duration::from_secs(20),
        ..Options::default()
    }
}

impl CacheLoad {
    pub fn open(folder: &Path, name: &str, seed: u64) -> Self {
        let cache = open(folder, name).expect("its manager runs");
        let all = 0..cache.len_bytes();
        Self::within(cache, all, seed)
    }

    /// A load on some addresses of a cache: others may be somebody else's.
    pub fn within(cache: Cache, addresses: Range<u64>, seed: u64) -> Self {
        let len_bytes = addresses.end - addresses.start;
        let records = usize::try_from(len_bytes / RECORD_BYTES).expect("small");
        println!("seed {seed}");
        Self {
            cache,
            begin: addresses.start,
            error: None,
            records: vec![Record::default(); records],
            random: seed | 1,
            done: 0,
            failed: 0,
        }
    }

    /// A number below `end`.
    pub fn draw(&mut self, end: u64) -> u64 {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    /// Writes every record once.
    pub fn fill(&mut self) {
        for record in 0..self.records.len() {
            self.write(record);
        }
    }

    /// Reads and writes records at random for so long.
    pub fn run_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step();
        }
    }

    /// Reads or writes one record.
    pub fn step(&mut self) {
        let count = self.records.len() as u64;
        let record = usize::try_from(self.draw(count)).expect("small");
        match self.draw(100) < 50 {
            true => self.write(record),
            false => self.read(record),
        }
    }

    /// Reads every record once. How many are zeros, since their region lost its bytes.
    pub fn check(&mut self) -> usize {
        let (mut lost, before) = (0, self.failed);
        for record in 0..self.records.len() {
            self.read(record);
            let failed = self.failed - before;
            assert!(failed < FAILED_MAX, "nothing is served: {:?}", self.error);
            lost += usize::from(self.records[record].acknowledged == 0);
        }
        lost
    }

    /// The regions that lost bytes since the last call, with how many times they did in all.
    pub fn told_lost(&mut self) -> BTreeMap<u32, u32> {
        let lost = std::iter::from_fn(|| self.cache.take_lost());
        lost.map(|lost| (lost.region, lost.losses)).collect()
    }

    fn address(&self, record: usize) -> u64 {
        self.begin + record as u64 * RECORD_BYTES
    }

    fn regions(&self, record: usize) -> [usize; 2] {
        let begin = self.address(record);
        let region = |at: u64| usize::try_from(at / self.cache.region_bytes()).expect("small");
        [region(begin), region(begin + RECORD_BYTES - 1)]
    }

    fn losses(&self, record: usize) -> [u32; 2] {
        self.regions(record).map(|region| self.cache.losses(region))
    }

    fn write(&mut self, record: usize) {
        let known = &mut self.records[record];
        known.submitted += 1;
        let version = known.submitted;
        let word = ((record as u64) << 32 | version).to_le_bytes();
        let bytes = word.repeat(usize::try_from(RECORD_BYTES / 8).expect("small"));
        let ended = self.cache.write(self.address(record), &bytes);
        let losses = self.losses(record);
        match ended {
            Ok(()) => {
                let known = &mut self.records[record];
                (known.acknowledged, known.losses) = (version, losses);
                self.done += 1;
            }
            Err(error) => self.failed(&error),
        }
    }

    fn read(&mut self, record: usize) {
        let (before, begin) = (self.losses(record), self.address(record));
        let mut bytes = vec![0; usize::try_from(RECORD_BYTES).expect("small")];
        if let Err(error) = self.cache.read(begin, &mut bytes) {
            return self.failed(&error);
        }
        let (after, regions) = (self.losses(record), self.regions(record));
        let known = self.records[record];
        let border = (regions[0] as u64 + 1) * self.cache.region_bytes();
        for (at, word) in (0_u64..).step_by(8).zip(bytes.chunks_exact(8)) {
            let address = begin + at;
            let half = usize::from(address >= border && regions[0] != regions[1]);
            let word = u64::from_le_bytes(word.try_into().expect("of 8"));
            let (of, version) = (word >> 32, word & 0xffff_ffff);
            let is_lost = after[half] != known.losses[half] || before[half] != after[half];
            let floor = if is_lost { 0 } else { known.acknowledged };
            assert!(
                (word == 0 || of == record as u64) && (floor..=known.submitted).contains(&version),
                "record {record} at {address}: version {version} of record {of}; it may be {floor} to {}, \
                 losses {:?} then and {after:?} now",
                known.submitted,
                known.losses,
            );
        }
        if after != known.losses {
            // From here on it may be what it is now.
            self.records[record].acknowledged = 0;
        }
        self.done += 1;
    }

    fn failed(&mut self, error: &CallError) {
        assert!(error.is_retryable(), "{error}");
        self.failed += 1;
        self.error = Some(error.to_string());
    }
}
