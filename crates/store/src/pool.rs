//! A pool: the log of versions, the index that names the newest of each key, and their order on the
//! medium.
//!
//! What is written in which order (each `|` is a fence):
//! - a new version: header and key, then the index's word, in memory;
//! - made durable: value, and all headers up to its own `|` told; the flag.
//!
//! So recovery gets to a version that is told by walking from header to header. The index is made again
//! by that walk. A flag may follow with a later fence, or never: without it recovery verifies the value
//! as the persister did, and finds it whole.
//!
//! A pool is one thread's at a time. What takes long, verifying values and the fence, is a [`Group`]'s
//! work and needs no pool: a server's persister does it while other threads use the pool.
//! Paper: eFactory, section on PUT, hybrid GET and recovery.

mod backlog;
mod cleaner;
mod group;
mod headers;
mod lookup;
mod places;
mod record;
mod recovery;
mod version;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use cenote_fabric::Region;
use twox_hash::XxHash3_64;

use crate::format::{
    HEAD_BYTES, Head, Header, KEY_BYTES_MAX, Kind, Left, Notes, Reach, SEQUENCE_END, Space,
    VALUE_BYTES_MAX, Word, checksum,
};
use crate::index::{Found, Index};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::medium::Medium;
use crate::schemes::Named;

use backlog::{Backlog, Pending, Waiting};
use cleaner::Cleaning;
use lookup::Object;

pub(crate) use cleaner::TOMBSTONE_BYTES_MAX;
pub use cleaner::{Batch, Cleaned};
pub use group::{Group, Settled, Taking};
#[cfg(test)]
pub(crate) use lookup::OBJECTS_READ;
pub use lookup::{Located, VersionLocation};
pub use recovery::{Identity, Recovered, identify};
pub use version::{Allocation, Condition, Landing, PoolConfig, Source, StoreError, Version};

/// One shard of a store.
pub struct Pool<M> {
    medium: Arc<M>,
    head: Head,
    space: Space,
    notes: Notes,
    index: Index,
    /// Entries of the index.
    entries: u64,
    /// Entries that were taken away although the half of the log that is left, or an earlier one, still
    /// has their keys: a walk of it meets them.
    dropped: u64,
    /// Keys without a value when it was opened, of those that the log has.
    empty_at_open: u64,
    /// Where versions are whose keys may have no entry: until they are durable, or for good.
    unnamed: HashSet<u64>,
    named: Named,
    /// While one half of the log is copied to the other.
    cleaning: Option<Cleaning>,
    /// Bytes of versions that the index named before newer ones, since cleaning began last.
    replaced_bytes: u64,
    /// Where the next object goes.
    tail: u64,
    /// Headers before this place in the half in use are durable, as far as is known.
    durable_to: u64,
    next_sequence: u64,
    /// Versions that are not durable.
    backlog: Backlog,
    /// Headers that are not written back yet, as they come in the log, with their sequences. Copies are
    /// older than what is around them.
    headers: VecDeque<(u64, Range<u64>)>,
    /// Where the next group begins to look: versions whose values do not come are not in its way.
    next_try: u64,
    /// Groups that are under way.
    groups: usize,
    /// And takings.
    takings: usize,
    /// The record of the head that is being written: it counts once a fence has passed. The one after it
    /// takes the place of the one before it, so there is one at a time.
    next_space: Option<Space>,
    /// Set by an error of the medium: what is in memory may not be what is durable.
    is_broken: bool,
}

impl<M: Medium> Pool<M> {
    /// Makes a pool of a medium; whatever was there is gone.
    ///
    /// # Errors
    /// [`StoreError::Size`], [`StoreError::Io`].
    pub fn create(medium: M, config: PoolConfig) -> Result<Self, StoreError> {
        Self::create_shard(medium, config, (0, 0))
    }

    /// The same of one of a store's shards, which says which one it is and of how many.
    ///
    /// # Errors
    /// As [`Pool::create`].
    pub fn create_shard(
        medium: M,
        config: PoolConfig,
        shard: (u16, u16),
    ) -> Result<Self, StoreError> {
        let len = medium.len();
        config.check(len)?;
        let head = config.head(len, shard);
        // No object of an earlier pool is one of this: its epochs were others.
        let before = Space::decode(&read_head(&medium));
        let epoch = before.map_or(1, |space| space.epoch.saturating_add(2));
        let zeros = [0; 4096];
        for at in [0, head.half(0).start, head.half(1).start] {
            medium.write(at, &zeros);
            medium.write_back(at..at + zeros.len() as u64)?;
        }
        medium.fence()?;
        let space = Space {
            serial: 0,
            epoch,
            active: 0,
            is_cleaning: false,
            incarnation: 1,
            ceiling: 1,
            is_keyed: false,
            reach: Reach::default(),
            left: Left::default(),
        }
        .leased(1)
        .reaching(head.half(0).start);
        record::write(&medium, space)?;
        medium.fence()?;
        // Last: before that it is no pool.
        medium.write(0, &head.encode());
        medium.write_back(0..48)?;
        medium.fence()?;
        Self::with(medium, head, space, Notes::default())
    }

    fn with(medium: M, head: Head, space: Space, notes: Notes) -> Result<Self, StoreError> {
        let entry_count = head.useful_entry_count();
        let head = Head {
            entry_count,
            ..head
        };
        let index = Index::new(head.entry_count)?;
        index.set_oldest_epoch(space.oldest_epoch());
        Ok(Self {
            medium: Arc::new(medium),
            head,
            space,
            notes,
            index,
            entries: 0,
            dropped: 0,
            empty_at_open: 0,
            unnamed: HashSet::new(),
            named: Named::AtAllocation,
            cleaning: None,
            replaced_bytes: 0,
            tail: head.half(space.active).start,
            durable_to: head.half(space.active).start,
            next_sequence: 1,
            backlog: Backlog::default(),
            headers: VecDeque::new(),
            next_try: 0,
            groups: 0,
            takings: 0,
            next_space: None,
            is_broken: false,
        })
    }

    /// Has the index name versions so from here on.
    pub fn name_versions(&mut self, named: Named) {
        self.named = named;
    }

    /// The medium, for its fences.
    #[must_use]
    pub fn medium(&self) -> &Arc<M> {
        &self.medium
    }

    /// The index, for clients to read: see [`crate::index`].
    #[must_use]
    pub fn index_memory(&self) -> &Arc<Region> {
        self.index.memory()
    }

    /// Seed of hashes, and places of the index.
    #[must_use]
    pub fn hashing(&self) -> (u64, u64) {
        (self.head.seed, self.head.entry_count)
    }

    /// Versions that are not durable.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.backlog.len()
    }

    /// Ends the work with a pool: versions that are not durable may be lost, and the next that is given is
    /// the one that would have been. Without it some numbers are left out.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn close(mut self) -> Result<Arc<M>, StoreError> {
        if !self.is_broken {
            self.await_record()?;
            self.guarded(|pool| {
                pool.write_back_headers(u64::MAX)?;
                pool.medium.fence()
            })?;
            let next = self.space.next().reaching(self.tail);
            let space = Space {
                ceiling: self.next_sequence,
                reach: Reach {
                    is_end: true,
                    ..next.reach
                },
                ..next
            };
            self.set_space(space)?;
        }
        Ok(self.medium)
    }

    /// The checksum that a client announces.
    #[must_use]
    pub fn checksum(key: &[u8], value: &[u8]) -> u32 {
        checksum(&[key, value])
    }

    /// Makes room for a version whose value comes from `source`, now or later. It is durable when it was
    /// verified: [`Pool::persist`], or a read.
    ///
    /// # Errors
    /// [`StoreError`]; `Io` only after the medium failed.
    pub fn allocate(
        &mut self,
        key: &[u8],
        value_bytes: usize,
        checksum: u32,
        source: Source,
        condition: Condition,
    ) -> Result<Allocation, StoreError> {
        self.check(condition, key)?;
        if value_bytes > VALUE_BYTES_MAX {
            return Err(StoreError::Value(value_bytes));
        }
        let allocation = self.append(Kind::Value, key, value_bytes, checksum)?;
        self.wait_for(key, value_bytes, allocation, source);
        Ok(allocation)
    }

    /// Writes a value that is durable when this returns.
    ///
    /// # Errors
    /// As [`Pool::allocate`].
    pub fn put_durable(
        &mut self,
        key: &[u8],
        value: &[u8],
        condition: Condition,
    ) -> Result<Allocation, StoreError> {
        let sum = checksum(&[key, value]);
        let source = Source::Landing(Box::new(value.to_vec()));
        let allocation = self.allocate(key, value.len(), sum, source, condition)?;
        match self.settle(&[allocation.sequence])? {
            1 => Ok(allocation),
            _ => Err(StoreError::Incomplete),
        }
    }

    /// Begins to delete a key: it is deleted when that is made durable, as a version is.
    ///
    /// # Errors
    /// As [`Pool::allocate`].
    pub fn begin_delete(
        &mut self,
        key: &[u8],
        condition: Condition,
    ) -> Result<Allocation, StoreError> {
        self.check(condition, key)?;
        let sum = checksum(&[key]);
        let allocation = self.append(Kind::Deletion, key, 0, sum)?;
        self.wait_for(key, 0, allocation, Source::Landing(Box::new(Vec::new())));
        Ok(allocation)
    }

    /// Deletes a key, durably. A key that is not there may be deleted.
    ///
    /// # Errors
    /// As [`Pool::allocate`].
    pub fn delete(&mut self, key: &[u8], condition: Condition) -> Result<Allocation, StoreError> {
        let allocation = self.begin_delete(key, condition)?;
        self.settle(&[allocation.sequence])?;
        Ok(allocation)
    }

    /// The newest version whose value is whole; it is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Key`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Version>, StoreError> {
        let place = self.settle_newest(key)?;
        Ok(place.map(|place| self.version(place)))
    }

    /// What a reader finds who goes by the index alone, whether it is durable or not.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Key`].
    pub fn peek(&self, key: &[u8]) -> Result<Option<Version>, StoreError> {
        self.check_key(key)?;
        let named = match self.find(key) {
            Found::Entry { word, .. } => self.object(word),
            Found::Free { .. } => None,
        };
        let value = named.filter(|object| object.header.kind == Kind::Value);
        Ok(value.map(|object| self.version(self.place(object.at, object.header))))
    }

    /// Where the newest version is whose value is whole; it is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Key`].
    pub fn settle_newest(&mut self, key: &[u8]) -> Result<Option<VersionLocation>, StoreError> {
        let mut below = u64::MAX;
        loop {
            match self.locate(key, below)? {
                Located::Absent => return Ok(None),
                Located::Durable(place) => return Ok(Some(place)),
                Located::Waiting(sequence) => {
                    if self.settle(&[sequence])? == 0 {
                        below = sequence;
                    }
                }
            }
        }
    }

    /// The bytes at a place that was just located.
    #[must_use]
    pub fn version(&self, place: VersionLocation) -> Version {
        let mut value = vec![0; place.value_bytes as usize];
        self.medium.read(place.value_at, &mut value);
        Version {
            sequence: place.sequence,
            value,
        }
    }

    /// Whether the value at a place that was just located is what was announced.
    #[must_use]
    pub fn is_right(&self, place: VersionLocation) -> bool {
        self.is_whole(place.at)
    }

    /// Makes at most `limit` versions durable, the oldest first; those whose values are not whole wait.
    /// How many it made durable.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn persist(&mut self, limit: usize) -> Result<usize, StoreError> {
        let group = self.begin_group(limit);
        self.carry_out(group)
    }

    /// Whether a version is not durable and was not given up, so that its space is its client's.
    #[must_use]
    pub fn is_space_of(&self, sequence: u64) -> bool {
        self.is_waiting(sequence)
    }

    /// Gives up a version whose value never came. `false`: it is durable, is becoming so, or was given up.
    pub fn give_up(&mut self, sequence: u64) -> bool {
        self.backlog.give_up(sequence)
    }

    /// Keys with a durable value that begin with `prefix`, in no order.
    pub fn keys<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = Vec<u8>> + 'a {
        let count = self.index.slot_count();
        let used = move |slot| Some(self.index.next_used(slot)).filter(|at| *at < count);
        let slots = std::iter::successors(used(0), move |slot| used(slot + 1));
        slots.filter_map(move |slot| self.key_at(slot, prefix))
    }

    /// The key at a place of the index, if it has a durable value and begins with `prefix`.
    #[must_use]
    pub fn key_at(&self, slot: u64, prefix: &[u8]) -> Option<Vec<u8>> {
        let mut next = self.object(self.index.word(slot));
        while let Some(object) = next {
            if self.is_durable(object.at) {
                let key = object.key();
                let is_wanted = object.header.kind == Kind::Value && key.starts_with(prefix);
                return is_wanted.then(|| key.to_vec());
            }
            next = self.older(&object);
        }
        None
    }

    /// # Errors
    /// [`StoreError::Io`]: the medium failed before.
    pub(crate) fn check_whole(&self) -> Result<(), StoreError> {
        match self.is_broken {
            true => Err(io::Error::other("it failed before").into()),
            false => Ok(()),
        }
    }

    fn check_key(&self, key: &[u8]) -> Result<(), StoreError> {
        self.check_whole()?;
        match key.len() {
            1..=KEY_BYTES_MAX => Ok(()),
            len => Err(StoreError::Key(len)),
        }
    }

    fn check(&mut self, condition: Condition, key: &[u8]) -> Result<(), StoreError> {
        self.check_key(key)?;
        let wanted = match condition {
            Condition::Always => return Ok(()),
            Condition::Absent => None,
            Condition::Sequence(sequence) => Some(sequence),
        };
        let newest = self.settle_newest(key)?.map(|place| place.sequence);
        match newest == wanted {
            true => Ok(()),
            false => Err(StoreError::Condition(newest)),
        }
    }

    /// Appends an object without its value, and has the index name it if that is the way.
    fn append(
        &mut self,
        kind: Kind,
        key: &[u8],
        value_bytes: usize,
        checksum: u32,
    ) -> Result<Allocation, StoreError> {
        if self.next_sequence >= SEQUENCE_END {
            return Err(StoreError::Full);
        }
        let hash = self.hash(key);
        let is_full = self.backlog.is_full() || self.backlog.is_full_of(hash);
        if is_full || self.next_sequence >= self.space.ceiling {
            return Err(StoreError::Backlog(self.backlog()));
        }
        let found = self.find(key);
        let (slot, previous_at) = match found {
            Found::Entry { slot, word } => (slot, self.predecessor(word)),
            Found::Free { slot } if self.has_place() => (slot, 0),
            Found::Free { .. } => return Err(StoreError::Full),
        };
        if kind == Kind::Value && self.is_awaited_by_cleaning(found) {
            return Err(StoreError::Backlog(self.backlog()));
        }
        // Where that one is being copied to another place, the copy comes before this one.
        let copy_of = |cleaning: &Cleaning| cleaning.copy_of(previous_at);
        let previous_at = self
            .cleaning
            .as_ref()
            .and_then(copy_of)
            .unwrap_or(previous_at);
        let sequence = self.next_sequence;
        let header = Header {
            kind,
            key_bytes: key.len() as u16,
            value_bytes: value_bytes as u32,
            checksum,
            sequence,
            previous_at: match is_injected(InjectedFault::BackLinkNotSet) {
                true => 0,
                false => previous_at,
            },
            hash,
            incarnation: self.space.incarnation,
        };
        let at = self.tail;
        let makes_room = || kind == Kind::Deletion || self.is_tombstone(found, value_bytes);
        let end = at + header.object_bytes();
        let has_room = end <= self.end_for_all() || end <= self.end_for_deletions() && makes_room();
        if !has_room {
            return Err(StoreError::Full);
        }
        self.write_header(at, header, key)?;
        self.tail += header.object_bytes();
        self.next_sequence += 1;
        if self.named == Named::AtAllocation || is_injected(InjectedFault::NamedTooEarly) {
            let word = Word::to(at, header.object_bytes(), self.space.epoch);
            if let Found::Entry { word: before, .. } = found {
                self.replaced_bytes += before.object_bytes();
                self.index.set_word(slot, word);
            } else {
                self.index.add(slot, hash, key, word);
                self.entries += 1;
            }
        } else if !self.is_entry_lasting(found) {
            self.unnamed.insert(at);
        }
        Ok(Allocation {
            sequence,
            at,
            value_at: header.value_at(at),
        })
    }

    /// Where the version is that comes before a new one. Those that were given up are left out: reads would
    /// walk them, and what is behind them may be moving, and its copy is to be found from the new one.
    fn predecessor(&self, word: Word) -> u64 {
        let mut next = self.object(word);
        while let Some(object) = next {
            if self.is_durable(object.at) || self.is_waiting(object.header.sequence) {
                return object.at;
            }
            next = self.older(&object);
        }
        0
    }

    fn wait_for(&mut self, key: &[u8], value_bytes: usize, allocation: Allocation, source: Source) {
        let version = Pending {
            at: allocation.at,
            hash: self.hash(key),
            value_bytes: value_bytes as u32,
            state: Waiting::Value(source),
            number: 0,
        };
        self.backlog.push(allocation.sequence, version);
    }

    /// Does what may fail in the middle: after that the pool is not used any more.
    fn guarded(&mut self, act: impl FnOnce(&mut Self) -> io::Result<()>) -> Result<(), StoreError> {
        let was_broken = std::mem::replace(&mut self.is_broken, true);
        act(self)?;
        self.is_broken = was_broken;
        Ok(())
    }

    fn hash(&self, key: &[u8]) -> u64 {
        hash(self.head.seed, key)
    }
}

/// A key's hash; never 0, which is a place of the index without an entry.
pub(crate) fn hash(seed: u64, key: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, key).max(1)
}

/// The first page of a medium.
fn read_head(medium: &impl Medium) -> Vec<u8> {
    let mut head = vec![0; HEAD_BYTES.min(medium.len()) as usize];
    medium.read(0, &mut head);
    head
}
