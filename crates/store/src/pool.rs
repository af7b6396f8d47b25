//! A pool: the log of versions, the index that names the newest of each key, and their order on the
//! medium.
//!
//! What is written in which order (each `|` is a fence):
//! - a new version: header, key, the entry's hash `|` the entry's word;
//! - made durable: value, the entry `|` told; the flag.
//!
//! So whatever a durable word names has a durable header, and a flag means a durable value that a
//! durable word leads to. A flag may follow with the next fence: until then recovery verifies the
//! value as the persister did, and finds it whole. One thread owns a pool; a store has several.
//! Paper: eFactory, section on PUT, hybrid GET and recovery.

mod cleaning;
mod lookup;
mod recovery;

use std::collections::VecDeque;
use std::io;

use twox_hash::XxHash3_64;

use crate::format::{
    ENTRY_BYTES, FLAG_AT, HEADER_BYTES, Head, HeadError, Header, KEY_BYTES_MAX, Kind,
    POOL_BYTES_MAX, SPACE_BYTES, Space, VALUE_BYTES_MAX, Word, checksum,
};
use crate::medium::Medium;
use crate::planted::{Planted, is_planted};

use cleaning::Cleaning;

pub use cleaning::Cleaned;
pub use recovery::Recovered;

/// What a new pool is to be.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Keys that it has room for, a power of two; half of it is quick.
    pub entry_count: u64,
    /// Of hashes, chosen at random: who chooses keys is not to choose their places.
    pub seed: u64,
}

/// Where a client's value arrives, and where the client may write at any time.
pub trait Landing: Send {
    /// Copies what is there now.
    fn read(&mut self, out: &mut [u8]);
}

impl Landing for Vec<u8> {
    fn read(&mut self, out: &mut [u8]) {
        let len = self.len().min(out.len());
        out[..len].copy_from_slice(&self[..len]);
    }
}

/// Space for one version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Allocation {
    /// Names the version; later ones have larger numbers.
    pub sequence: u64,
    at: u64,
}

/// A durable value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Version {
    /// Names the version.
    pub sequence: u64,
    /// Its bytes.
    pub value: Vec<u8>,
}

/// When a change is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Condition {
    /// In any case.
    Always,
    /// If the key has no value.
    Absent,
    /// If the key's newest durable version is this one.
    Sequence(u64),
}

/// Why something was not done. Nothing is changed then, but by `Io`, after which the pool has to be
/// opened again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Keys have 1 to 250 bytes.
    #[error("a key of {0} bytes: 1 to {KEY_BYTES_MAX} are allowed")]
    Key(usize),
    /// Values have 1 MiB at most.
    #[error("a value of {0} bytes: at most {VALUE_BYTES_MAX} are allowed")]
    Value(usize),
    /// The log or the index is full.
    #[error("the pool is full")]
    Full,
    /// Too many versions wait to be made durable.
    #[error("{0} versions wait to be made durable: try again later")]
    Backlog(usize),
    /// The condition does not hold.
    #[error("the key has another version")]
    Condition(
        /// The newest durable one.
        Option<u64>,
    ),
    /// The client's bytes are not, or not yet, what it said.
    #[error("the value is not the one that was announced")]
    Incomplete,
    /// A pool of such a size cannot be made.
    #[error("a pool of {len} bytes has no room for {entry_count} entries and a log")]
    Size {
        /// Bytes of the medium.
        len: u64,
        /// As in the configuration.
        entry_count: u64,
    },
    /// What is there is no pool.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// The medium failed.
    #[error("the pool's medium failed; it has to be opened again")]
    Io(#[from] io::Error),
}

/// Versions that may wait to be made durable.
const BACKLOG_MAX: usize = 65_536;

/// The flag of a durable version.
const DURABLE: u64 = 1;

/// One shard of a store.
pub struct Pool<M> {
    medium: M,
    head: Head,
    space: Space,
    /// While one half of the log is copied to the other.
    cleaning: Option<Cleaning>,
    /// Where the next object goes.
    tail: u64,
    next_sequence: u64,
    /// Versions that are not durable, by sequence; some in the middle are by now.
    pending: VecDeque<Pending>,
    /// How many are not.
    backlog: usize,
    /// Set by an error of the medium: what is in memory may not be what is durable.
    is_broken: bool,
}

struct Pending {
    at: u64,
    sequence: u64,
    /// None: it is durable, or was given up.
    landing: Option<Box<dyn Landing>>,
}

/// Where a key's entry is, or may be.
enum Found {
    Entry { slot: u64, word: Word },
    Free { slot: u64 },
    Full,
}

impl<M: Medium> Pool<M> {
    /// Makes a pool of a medium; whatever was there is gone.
    ///
    /// # Errors
    /// [`StoreError::Size`], [`StoreError::Io`].
    pub fn create(mut medium: M, config: PoolConfig) -> Result<Self, StoreError> {
        let len = medium.bytes().len() as u64;
        let head = Head {
            seed: config.seed,
            entry_count: config.entry_count,
            len,
        };
        let is_small = config.entry_count.is_power_of_two()
            && config.entry_count <= len / ENTRY_BYTES
            && head.half_bytes() > 0
            && len <= POOL_BYTES_MAX;
        if !is_small {
            return Err(StoreError::Size {
                len,
                entry_count: config.entry_count,
            });
        }
        medium.write(0, &vec![0; len as usize]);
        medium.write_back(0..len)?;
        medium.fence()?;
        let space = Space {
            epoch: 1,
            active: 0,
            is_cleaning: false,
            next_sequence: 1,
        };
        medium.write(space.at(), &space.encode());
        medium.write_back(space.at()..space.at() + SPACE_BYTES as u64)?;
        medium.fence()?;
        // Last: before that it is no pool.
        medium.write(0, &head.encode());
        medium.write_back(0..48)?;
        medium.fence()?;
        Ok(Self::with(medium, head, space))
    }

    fn with(medium: M, head: Head, space: Space) -> Self {
        Self {
            medium,
            head,
            space,
            cleaning: None,
            tail: head.half(space.active).start,
            next_sequence: space.next_sequence,
            pending: VecDeque::new(),
            backlog: 0,
            is_broken: false,
        }
    }

    /// The medium, for who ends the pool.
    #[must_use]
    pub fn into_medium(self) -> M {
        self.medium
    }

    /// Versions that are not durable.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.backlog
    }

    /// The checksum that a client announces.
    #[must_use]
    pub fn checksum(key: &[u8], value: &[u8]) -> u32 {
        checksum(&[key, value])
    }

    /// Makes room for a version whose value the client writes to `landing`, now or later. It is
    /// durable when it was verified: [`Pool::persist`], or a read.
    ///
    /// # Errors
    /// [`StoreError`]; `Io` only after the medium failed.
    pub fn allocate(
        &mut self,
        key: &[u8],
        value_bytes: usize,
        checksum: u32,
        landing: Box<dyn Landing>,
        condition: Condition,
    ) -> Result<Allocation, StoreError> {
        self.check(condition, key)?;
        if value_bytes > VALUE_BYTES_MAX {
            return Err(StoreError::Value(value_bytes));
        }
        // A version that never comes keeps those behind it in the list.
        if self.pending.len() >= BACKLOG_MAX {
            return Err(StoreError::Backlog(self.backlog));
        }
        let allocation = self.append(Kind::Value, key, value_bytes, checksum)?;
        self.wait_for(allocation, landing);
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
        let landing = Box::new(value.to_vec());
        let allocation = self.allocate(key, value.len(), sum, landing, condition)?;
        match self.settle(&[allocation.at])? {
            1 => Ok(allocation),
            _ => Err(StoreError::Incomplete),
        }
    }

    /// Deletes a key, durably. A key that is not there may be deleted.
    ///
    /// # Errors
    /// As [`Pool::allocate`].
    pub fn delete(&mut self, key: &[u8], condition: Condition) -> Result<Allocation, StoreError> {
        self.check(condition, key)?;
        let sum = checksum(&[key]);
        let allocation = self.append(Kind::Deletion, key, 0, sum)?;
        self.wait_for(allocation, Box::new(Vec::new()));
        self.settle(&[allocation.at])?;
        Ok(allocation)
    }

    /// The newest version whose value is whole; it is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Key`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Version>, StoreError> {
        self.check_key(key)?;
        let Found::Entry { word, .. } = self.find(key) else {
            return Ok(None);
        };
        let mut next = self.object(word);
        while let Some((at, header)) = next {
            let is_whole = self.is_durable(at) || self.settle(&[at])? == 1;
            if is_whole {
                let value = || header.value(self.medium.bytes(), at).to_vec();
                return Ok((header.kind == Kind::Value).then(|| Version {
                    sequence: header.sequence,
                    value: value(),
                }));
            }
            next = self.older(header);
        }
        Ok(None)
    }

    /// Makes at most `limit` versions durable, the oldest first; those whose values are not whole wait.
    /// How many it made durable.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn persist(&mut self, limit: usize) -> Result<usize, StoreError> {
        let waiting = self.pending.iter().filter(|one| one.landing.is_some());
        let ats: Vec<u64> = waiting.take(limit).map(|one| one.at).collect();
        self.settle(&ats)
    }

    /// Gives up a version whose value never came. `false`: it is durable, or was given up.
    pub fn give_up(&mut self, allocation: Allocation) -> bool {
        let before = self.backlog;
        self.end_wait(allocation.at);
        self.backlog < before
    }

    /// Keys with a durable value that begin with `prefix`, in no order.
    pub fn keys<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let bytes = self.medium.bytes();
        (0..self.head.entry_count).filter_map(move |slot| {
            let mut next = self.object(self.word(slot));
            while let Some((at, header)) = next {
                if self.is_durable(at) {
                    let key = header.key(bytes, at);
                    let is_wanted = header.kind == Kind::Value && key.starts_with(prefix);
                    return is_wanted.then_some(key);
                }
                next = self.older(header);
            }
            None
        })
    }

    fn check_key(&self, key: &[u8]) -> Result<(), StoreError> {
        if self.is_broken {
            return Err(io::Error::other("it failed before").into());
        }
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
        let newest = self.get(key)?.map(|version| version.sequence);
        match newest == wanted {
            true => Ok(()),
            false => Err(StoreError::Condition(newest)),
        }
    }

    /// Appends an object without its value, and has the index name it.
    fn append(
        &mut self,
        kind: Kind,
        key: &[u8],
        value_bytes: usize,
        checksum: u32,
    ) -> Result<Allocation, StoreError> {
        let (slot, previous_at) = match self.find(key) {
            Found::Entry { slot, word } => (slot, word.object_at().unwrap_or(0)),
            Found::Free { slot } => (slot, 0),
            Found::Full => return Err(StoreError::Full),
        };
        let sequence = self.next_sequence;
        let header = Header {
            kind,
            key_bytes: key.len() as u16,
            value_bytes: value_bytes as u32,
            checksum,
            sequence,
            previous_at: match is_planted(Planted::BackLinkNotSet) {
                true => 0,
                false => previous_at,
            },
            slot,
        };
        let at = self.tail;
        let reserve = self.cleaning.as_ref().map_or(0, Cleaning::reserve);
        let end = self.head.half(self.space.active).end;
        if at + header.object_bytes() + reserve > end {
            return Err(StoreError::Full);
        }
        let entry_at = self.head.entry_at(slot);
        self.guarded(|pool| {
            let medium = &mut pool.medium;
            medium.write(at, &header.encode(at, pool.space.epoch, key));
            medium.write(at + FLAG_AT, &0_u64.to_le_bytes());
            medium.write(at + HEADER_BYTES, key);
            // The hash is durable before any entry that is found by passing this one.
            medium.write(entry_at, &hash(pool.head, key).to_le_bytes());
            if !is_planted(Planted::IndexBeforeHeader) {
                medium.write_back(at..at + HEADER_BYTES + key.len() as u64)?;
                medium.write_back(entry_at..entry_at + 8)?;
                medium.fence()?;
            }
            medium.write(entry_at + 8, &Word::to(at).0.to_le_bytes());
            Ok(())
        })?;
        self.tail += header.object_bytes();
        self.next_sequence += 1;
        Ok(Allocation { sequence, at })
    }

    /// Makes those of some versions durable whose values are whole. How many are.
    fn settle(&mut self, ats: &[u64]) -> Result<usize, StoreError> {
        let whole: Vec<u64> = ats
            .iter()
            .copied()
            .filter(|at| self.take_value(*at))
            .collect();
        if whole.is_empty() {
            return Ok(0);
        }
        self.guarded(|pool| {
            let set_flags = |pool: &mut Self| {
                for at in &whole {
                    let flag_at = at + FLAG_AT;
                    pool.medium.write(flag_at, &DURABLE.to_le_bytes());
                    pool.medium.write_back(flag_at..flag_at + 8)?;
                }
                io::Result::Ok(())
            };
            if is_planted(Planted::FlagBeforeValue) {
                set_flags(pool)?;
            }
            for at in &whole {
                let header = pool.header(*at).expect("it was just verified");
                let value_at = header.value_at(*at);
                let value_end = value_at + u64::from(header.value_bytes);
                pool.medium.write_back(value_at..value_end)?;
                let entry_at = pool.head.entry_at(header.slot);
                if !is_planted(Planted::IndexNotWrittenBack) {
                    pool.medium.write_back(entry_at..entry_at + ENTRY_BYTES)?;
                }
            }
            if is_planted(Planted::ReadNotPersisted) {
                return set_flags_live(&mut pool.medium, &whole);
            }
            if !is_planted(Planted::NoFenceBeforeFlag) {
                pool.medium.fence()?;
            }
            set_flags(pool)
        })?;
        for at in &whole {
            self.end_wait(*at);
        }
        Ok(whole.len())
    }

    fn wait_for(&mut self, allocation: Allocation, landing: Box<dyn Landing>) {
        self.backlog += 1;
        self.pending.push_back(Pending {
            at: allocation.at,
            sequence: allocation.sequence,
            landing: Some(landing),
        });
    }

    fn end_wait(&mut self, at: u64) {
        if let Some(index) = self.waiting(at) {
            let had = self.pending[index].landing.take();
            self.backlog -= usize::from(had.is_some());
        }
        while self
            .pending
            .front()
            .is_some_and(|one| one.landing.is_none())
        {
            self.pending.pop_front();
        }
    }

    /// Copies a pending version's value into the log, if it is what was announced.
    fn take_value(&mut self, at: u64) -> bool {
        let (Some(index), Some(header)) = (self.waiting(at), self.header(at)) else {
            return false;
        };
        let Some(landing) = &mut self.pending[index].landing else {
            return false;
        };
        let key = header.key(self.medium.bytes(), at);
        let mut value = vec![0; header.value_bytes as usize];
        // A copy of our own: the client may write to its landing while this is verified.
        landing.read(&mut value);
        let is_right = checksum(&[key, &value]) == header.checksum;
        if !is_right && !is_planted(Planted::ChecksumSkipped) {
            return false;
        }
        if is_planted(Planted::CheckedThenCopied) {
            landing.read(&mut value);
        }
        self.medium.write(header.value_at(at), &value);
        true
    }

    /// Does what may fail in the middle: after that the pool is not used any more.
    fn guarded(&mut self, act: impl FnOnce(&mut Self) -> io::Result<()>) -> Result<(), StoreError> {
        self.is_broken = true;
        act(self)?;
        self.is_broken = false;
        Ok(())
    }
}

/// A key's hash; never 0, which is an entry that was never used.
fn hash(head: Head, key: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(head.seed, key).max(1)
}

/// What a planted mistake leaves of making versions durable.
fn set_flags_live(medium: &mut impl Medium, ats: &[u64]) -> io::Result<()> {
    for at in ats {
        medium.write(at + FLAG_AT, &DURABLE.to_le_bytes());
    }
    Ok(())
}
