//! The store: four addresses, memory, index and tiers, shared by all sessions.
//!
//! ```text
//!  begin         head           read-only          tail
//!    |  on tiers   |  copy to the tail  |  in place   |
//! ```
//!
//! Invariants: begin <= head <= read-only, head <= tail, and each only grows; begin and head are
//! multiples of the page. (The read-only address may be ahead of the tail while a cut is made.)
//! What is below the head is on a tier, or in a page that is on its way to one.
//! Paper: FASTER sections 4 and 5, as \[redy22\] uses it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use siphasher::sip::SipHasher13;

use super::epoch::Epochs;
use super::error::Error;
use super::fetch::LikelyLength;
use super::flow::{Flow, FlowLock};
use super::index::{BucketTag, Entry, Index};
use super::memory::Memory;
use super::page;
use super::record::{ADDRESS_END, Link, Shape};
use super::session::Session;
use super::settings::Settings;
use super::tiers::{Tier, Tiers};

/// How a read-modify-write makes the new value.
pub trait Merge: Send + Sync {
    /// Puts the value that follows from `old` (`None`: the key is not there) and `operand` into
    /// `new`, which is empty. It may be called more than once for one operation.
    fn merge(&self, old: Option<&[u8]>, operand: &[u8], new: &mut Vec<u8>);
}

impl<F: Fn(Option<&[u8]>, &[u8], &mut Vec<u8>) + Send + Sync> Merge for F {
    fn merge(&self, old: Option<&[u8]>, operand: &[u8], new: &mut Vec<u8>) {
        self(old, operand, new);
    }
}

/// What no client may guess: whoever can choose the hashes of keys can put all into one chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Secret {
    /// Key of the hash of keys.
    pub hash_key: [u8; 16],
    /// Tells the pages of this store from those of others.
    pub store: u64,
}

impl Secret {
    /// A fresh one.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; 24];
        getrandom::fill(&mut bytes).map_err(|error| Error::Io {
            what: "read random bytes",
            source: std::io::Error::other(error.to_string()),
        })?;
        let (hash_key, store) = bytes.split_at(16);
        Ok(Self {
            hash_key: hash_key.try_into().expect("sixteen bytes"),
            store: u64::from_le_bytes(store.try_into().expect("eight bytes")),
        })
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        SipHasher13::new_with_key(&self.hash_key).hash(key)
    }
}

/// A log store. Sessions do the work: see [`Store::session`].
pub struct Store {
    pub(super) settings: Settings,
    pub(super) secret: Secret,
    pub(super) merge: Arc<dyn Merge>,
    pub(super) memory: Memory,
    pub(super) index: Index,
    pub(super) epochs: Epochs,
    pub(super) tiers: Tiers,
    pub(super) flow: FlowLock,
    pub(super) addresses: Addresses,
    pub(super) likely_length: LikelyLength,
    /// Where checkpoints go.
    pub(super) file: Option<PathBuf>,
    /// The begin that the checkpoint file has. Held while the file is written.
    pub(super) file_begin: Mutex<u64>,
}

/// The four addresses.
pub(super) struct Addresses {
    pub begin: Line,
    pub head: Line,
    pub read_only: Line,
    pub tail: Line,
}

/// An address on a cache line of its own.
#[repr(align(128))]
pub(super) struct Line(AtomicU64);

impl Line {
    #[inline]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub fn raise(&self, address: u64) {
        self.0.fetch_max(address, Ordering::AcqRel);
    }
}

/// Where the log's addresses are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// First address of the log.
    pub begin: u64,
    /// First address in memory.
    pub head: u64,
    /// First address where records change in place.
    pub read_only: u64,
    /// Behind the last record.
    pub tail: u64,
}

/// What a tier is at.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TierStatus {
    /// Its name.
    pub name: String,
    /// The addresses that it has; `None` when it is lost.
    pub holds: Option<std::ops::Range<u64>>,
    /// Reads that failed or returned what was not written.
    pub fault_count: u64,
}

/// A key found, or not, without asking a tier.
pub(super) enum Traced {
    /// The newest record of the key.
    InMemory(u64),
    /// The chain goes on below the head.
    Below(u64),
    /// There is none.
    Absent,
}

impl Store {
    /// An empty store over `tiers`, the fastest first; the last one holds the whole log. With no
    /// tier all has to fit into memory. With `file` the store can be recovered: a first checkpoint
    /// is written there.
    ///
    /// # Errors
    /// The settings; the checkpoint file, which must not be there.
    pub fn create(
        settings: Settings,
        secret: Secret,
        merge: Arc<dyn Merge>,
        tiers: Vec<Box<dyn Tier>>,
        file: Option<PathBuf>,
    ) -> Result<Arc<Self>, Error> {
        let store = Self::at(settings, secret, merge, tiers, file, 0, 0)?;
        super::checkpoint::write_first(&store)?;
        Ok(Arc::new(store))
    }

    /// A store whose log is from `begin` to `end`, all of it on the last tier; no index.
    pub(super) fn at(
        settings: Settings,
        secret: Secret,
        merge: Arc<dyn Merge>,
        tiers: Vec<Box<dyn Tier>>,
        file: Option<PathBuf>,
        begin: u64,
        end: u64,
    ) -> Result<Self, Error> {
        settings.check()?;
        if tiers
            .iter()
            .any(|tier| !settings.page_bytes.is_multiple_of(tier.block_bytes()))
        {
            return Err(Error::Settings(
                "page_bytes is a multiple of each tier's block",
            ));
        }
        let line = |address| Line(AtomicU64::new(address));
        let last = tiers.len().wrapping_sub(1);
        let tiers = Tiers::new(tiers, settings.sessions + 1, end);
        if tiers.count() > 0 {
            tiers.hold_from(last, begin);
        }
        Ok(Self {
            memory: Memory::new(
                settings.page_bytes,
                settings.pages,
                end / settings.page_bytes as u64,
            ),
            index: Index::new(
                settings.index_buckets,
                settings.index_buckets_max,
                settings.overflow_buckets,
            ),
            epochs: Epochs::new(settings.sessions),
            tiers,
            flow: Flow::lock_at(end),
            addresses: Addresses {
                begin: line(begin),
                head: line(end),
                read_only: line(end),
                tail: line(end),
            },
            settings,
            secret,
            merge,
            file,
            likely_length: LikelyLength::default(),
            file_begin: Mutex::new(begin),
        })
    }

    /// What one thread works with.
    ///
    /// # Errors
    /// [`Error::SessionsTaken`].
    pub fn session(self: &Arc<Self>) -> Result<Session, Error> {
        let slot = self.epochs.claim().ok_or(Error::SessionsTaken)?;
        Ok(Session::new(Arc::clone(self), slot))
    }

    /// Where the log's addresses are.
    #[must_use]
    pub fn extent(&self) -> Extent {
        let begin = self.addresses.begin.load();
        let head = self.addresses.head.load();
        let read_only = self.addresses.read_only.load();
        Extent {
            begin,
            head,
            read_only,
            tail: self.addresses.tail.load(),
        }
    }

    /// What each tier is at.
    #[must_use]
    pub fn tiers(&self) -> Vec<TierStatus> {
        let status = |tier| TierStatus {
            name: self.tiers.name(tier),
            holds: self.tiers.range(tier),
            fault_count: self.tiers.fault_count(tier),
        };
        (0..self.tiers.count()).map(status).collect()
    }

    /// Takes a tier out, as when it fails by itself. The store goes on with the others.
    ///
    /// # Panics
    /// There is no such tier.
    pub fn drop_tier(&self, tier: usize) {
        self.tiers.lose(tier);
    }

    /// Puts `tier` in the place of number `number`, which is lost. It starts empty and takes what is
    /// written from now on; nothing is copied into it.
    ///
    /// # Errors
    /// [`Error::Settings`]: it is the last tier, which holds the whole log, or it is not lost, or
    /// its blocks do not fit.
    pub fn restore_tier(&self, number: usize, tier: Box<dyn Tier>) -> Result<(), Error> {
        if number + 1 >= self.tiers.count() || !self.tiers.is_lost(number) {
            return Err(Error::Settings(
                "only a lost tier before the last is restored",
            ));
        }
        if !self.settings.page_bytes.is_multiple_of(tier.block_bytes()) {
            return Err(Error::Settings(
                "page_bytes is a multiple of each tier's block",
            ));
        }
        let flow = self.flow.wait();
        self.tiers.restore(number, tier, flow.issued());
        Ok(())
    }

    pub(super) fn place(&self, key: &[u8]) -> BucketTag {
        self.index.place(self.secret.hash(key))
    }

    /// The newest record of a chain; 0 if there is none.
    #[inline]
    pub(super) fn front(&self, place: BucketTag) -> u64 {
        self.index.find(place).map_or(0, |entry| entry.address())
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.settings.page_bytes as u64
    }

    pub(super) fn page_start(&self, address: u64) -> u64 {
        address & !(self.page_bytes() - 1)
    }

    /// First address that a chain may have. Loaded before the index: a record that was below the
    /// begin by then had its copy in front of the chain before.
    #[inline]
    pub(super) fn first(&self) -> u64 {
        self.addresses.begin.load().max(1)
    }

    /// Whether the log begins behind `address` now. Not by [`first`](Self::first): the page at 0 is
    /// below that, and is there.
    pub(super) fn is_given_up(&self, address: u64) -> bool {
        address < self.addresses.begin.load()
    }

    pub(super) fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        let max = self.settings.key_bytes_max();
        if !(1..=max).contains(&key.len()) {
            return Err(Error::KeyLength { max });
        }
        Ok(())
    }

    pub(super) fn check_value(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let max = self.settings.value_bytes_max(key.len());
        if value.len() > max {
            return Err(Error::ValueLength { max });
        }
        Ok(())
    }

    /// Follows a chain from `address` through memory, no lower than `floor`. The caller is pinned.
    #[inline]
    pub(super) fn trace(&self, mut address: u64, key: &[u8], first: u64, floor: u64) -> Traced {
        let floor = floor.max(self.addresses.head.load());
        loop {
            if address < first {
                return Traced::Absent;
            }
            if address < floor {
                return Traced::Below(address);
            }
            if self.memory.has_key(address, key) {
                return Traced::InMemory(address);
            }
            address = self.memory.link(address).previous();
        }
    }

    /// Writes a record at the tail and puts it in front of the chain. `false`: the chain has changed
    /// since `entry` was found, and nothing was done. The caller is pinned.
    pub(super) fn append(
        &self,
        entry: &Entry<'_>,
        key: &[u8],
        value: &[u8],
        is_deleted: bool,
    ) -> Result<bool, Error> {
        if entry.is_frozen() {
            std::thread::yield_now();
            return Ok(false);
        }
        let address = self.allocate(Shape::of(key, value).record_bytes() as u64)?;
        // A chain that is all below the begin ends here.
        let previous = entry.address();
        let link = Link::new(previous, is_deleted);
        self.memory.put(address, link, key, value);
        if entry.replace(address) {
            return Ok(true);
        }
        self.memory.void(address);
        Ok(false)
    }

    /// The entry of a chain, for a record of this shape. One that is not there is added if there is
    /// room for the record: keys that are refused take none of the index. The caller is pinned.
    pub(super) fn entry_for(&self, place: BucketTag, shape: Shape) -> Result<Entry<'_>, Error> {
        if let Some(entry) = self.index.find(place) {
            return Ok(entry);
        }
        let tail = self.addresses.tail.load();
        self.address_behind(tail, shape.record_bytes() as u64)?;
        self.index.find_or_add(place).map_err(|_| Error::IndexFull)
    }

    /// Where a record goes while the log ends at `end`, on a page that has a frame.
    fn address_behind(&self, end: u64, len_bytes: u64) -> Result<u64, Error> {
        let page_bytes = self.page_bytes();
        let used = end & (page_bytes - 1);
        let address = if used == 0 {
            end + page::HEADER_BYTES as u64
        } else if used + len_bytes > page_bytes {
            self.page_start(end) + page_bytes + page::HEADER_BYTES as u64
        } else {
            end
        };
        if address + len_bytes > ADDRESS_END {
            return Err(Error::LogEnd);
        }
        if !self.memory.is_ready(address / page_bytes) {
            return Err(self.why_full());
        }
        Ok(address)
    }

    /// Room for a record.
    fn allocate(&self, len_bytes: u64) -> Result<u64, Error> {
        let tail = &self.addresses.tail.0;
        let mut end = tail.load(Ordering::Acquire);
        loop {
            let address = self.address_behind(end, len_bytes)?;
            match tail.compare_exchange_weak(
                end,
                address + len_bytes,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(address),
                Err(now) => end = now,
            }
        }
    }

    /// Moves the tail from `from` to `to`, if it is there.
    pub(super) fn move_tail(&self, from: u64, to: u64) -> bool {
        let tail = &self.addresses.tail.0;
        tail.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}
