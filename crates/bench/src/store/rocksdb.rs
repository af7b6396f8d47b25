//! RocksDB within this process, under the same load: a thread for each loop, since it blocks.
//!
//! A write-ahead log, no compression, a Bloom filter and a block cache that holds everything. PUTs
//! either leave the log to the kernel (`sync=false`) or wait for the disk (`sync=true`), in which
//! case RocksDB commits those of several threads together.

mod library;

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use self::library::Database;
use super::super::kv::wire::Reply;
use super::contender::{Client, Promise, Request, Role, Store, Way};
use crate::swap_rig::interrupt;

/// A database that is open.
pub(super) struct RocksDb {
    database: Arc<Database>,
    ways: [Way; 2],
}

/// More than all values of a run.
const CACHE_BYTES: usize = 512 << 20;
/// What is 0 when nothing goes on in the background.
const BUSY: [&CStr; 4] = [
    c"rocksdb.num-running-flushes",
    c"rocksdb.num-running-compactions",
    c"rocksdb.mem-table-flush-pending",
    c"rocksdb.compaction-pending",
];
/// How long that may take.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(10);

impl RocksDb {
    /// Makes one in `dir`, which is there and empty.
    ///
    /// # Errors
    /// The library is not installed.
    pub(super) fn create(dir: &Path) -> Result<Self> {
        let database = Arc::new(Database::create(dir, CACHE_BYTES)?);
        let way = |scheme, promise| Way {
            scheme,
            label: format!("{} sync={}", database.name, promise == Promise::Durable),
            transport: "in-process",
            promise,
            role: Role::Peer,
            reads_like_another: promise == Promise::Durable,
        };
        let ways = [
            way("rocksdb", Promise::Later),
            way("rocksdb-sync", Promise::Durable),
        ];
        Ok(Self { database, ways })
    }
}

impl Store for RocksDb {
    fn ways(&self) -> &[Way] {
        &self.ways
    }

    fn connect(&self, way: &Way, loops: usize) -> Result<Vec<Box<dyn Client>>> {
        let client = || -> Box<dyn Client> {
            Box::new(Caller {
                database: self.database.clone(),
                is_synced: way.promise == Promise::Durable,
                key: Vec::new(),
                ended: Ended::Nothing,
            })
        };
        Ok((0..loops).map(|_| client()).collect())
    }

    fn pids(&self) -> Vec<u32> {
        vec![std::process::id()]
    }

    fn settle(&self) -> Result<()> {
        self.database.sync()?;
        let deadline = Instant::now() + SETTLE_LIMIT;
        loop {
            let busy = BUSY.iter().map(|name| self.database.property(name));
            if busy.sum::<Result<u64>>()? == 0 {
                return Ok(());
            }
            interrupt::check()?;
            ensure!(Instant::now() < deadline, "RocksDB stays busy");
            std::thread::sleep(LOOK);
        }
    }
}

/// A thread that calls RocksDB.
struct Caller {
    database: Arc<Database>,
    is_synced: bool,
    key: Vec<u8>,
    ended: Ended,
}

/// What is to be handed over.
enum Ended {
    Nothing,
    /// A PUT that is done.
    Stored,
    /// A GET of `key`, which is read where its value can be shown without a copy.
    Get,
}

impl Client for Caller {
    fn loops(&self) -> usize {
        1
    }

    fn submit(&mut self, _at: usize, request: Request<'_>) -> Result<()> {
        match request {
            Request::Get { key } => {
                self.key.clear();
                self.key.extend_from_slice(key);
                self.ended = Ended::Get;
            }
            Request::Put { key, value } => {
                self.database.put(key, value, self.is_synced)?;
                self.ended = Ended::Stored;
            }
        }
        Ok(())
    }

    fn wait(&mut self, take: &mut dyn FnMut(usize, Reply<'_>)) -> Result<()> {
        match std::mem::replace(&mut self.ended, Ended::Nothing) {
            Ended::Stored => take(0, Reply::Stored),
            Ended::Get => self.database.get(&self.key, |value| {
                take(0, value.map_or(Reply::Miss, Reply::Value));
            })?,
            Ended::Nothing => bail!("nothing is under way"),
        }
        Ok(())
    }
}
