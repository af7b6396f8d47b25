//! What the index and the log say: entries, objects, and the versions behind one another.

use std::cmp::Ordering;

use super::{Pool, StoreError};
use crate::format::{
    FLAG_AT, GRAIN_BYTES, HEADER_BYTES, Header, KEYED_BYTES_MAX, Kind, NOTED_BYTES, SEQUENCE_AT,
    Word, flag,
};
use crate::index::Found;
use crate::medium::{Medium, load};

/// An object's header and key, copied.
#[derive(Clone, Copy)]
pub(super) struct Object {
    pub at: u64,
    pub header: Header,
    bytes: [u8; KEYED_BYTES_MAX],
}

impl Object {
    pub fn key(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES as usize..][..usize::from(self.header.key_bytes)]
    }

    /// Its header as it is on the medium, with its note.
    pub fn noted(&self) -> &[u8] {
        &self.bytes[..NOTED_BYTES]
    }
}

/// Where a durable version is in the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VersionLocation {
    /// Where the object begins.
    pub at: u64,
    /// Names the version.
    pub sequence: u64,
    /// Where its value begins.
    pub value_at: u64,
    /// Its bytes.
    pub value_bytes: u32,
    /// Of the object, as in the index.
    pub word: u64,
}

/// What there is of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Located {
    /// No durable value, and nothing that may become one.
    Absent,
    /// The newest version that was asked for is durable.
    Durable(VersionLocation),
    /// The newest version that was asked for waits for its value, or is not durable yet.
    Waiting(
        /// Its sequence.
        u64,
    ),
}

impl<M: Medium> Pool<M> {
    /// Looks for the newest version of a key whose sequence is below `below`.
    ///
    /// # Errors
    /// [`StoreError::Key`], [`StoreError::Io`] after the medium failed.
    pub fn locate(&self, key: &[u8], below: u64) -> Result<Located, StoreError> {
        self.locate_where(key, |sequence| sequence < below)
    }

    /// The same of versions that are durable or awaited.
    pub(crate) fn locate_where(
        &self,
        key: &[u8],
        mut is_awaited: impl FnMut(u64) -> bool,
    ) -> Result<Located, StoreError> {
        self.check_key(key)?;
        let Found::Entry { word, .. } = self.find(key) else {
            return Ok(Located::Absent);
        };
        let mut next = self.object(word);
        while let Some(object) = next {
            let header = object.header;
            if self.is_durable(object.at) {
                return Ok(match header.kind {
                    Kind::Deletion => Located::Absent,
                    Kind::Value => Located::Durable(self.place(object.at, header)),
                });
            }
            if self.is_waiting(header.sequence) && is_awaited(header.sequence) {
                return Ok(Located::Waiting(header.sequence));
            }
            next = self.older(&object);
        }
        Ok(Located::Absent)
    }

    pub(super) fn place(&self, at: u64, header: Header) -> VersionLocation {
        let epoch = self.epoch_at(at);
        VersionLocation {
            at,
            sequence: header.sequence,
            value_at: header.value_at(at),
            value_bytes: header.value_bytes,
            word: Word::to(at, header.object_bytes(), epoch).0,
        }
    }

    pub(super) fn find(&self, key: &[u8]) -> Found {
        let is_of_key = |word| self.object(word).is_some_and(|object| object.key() == key);
        self.index.find(self.hash(key), key, is_of_key)
    }

    /// Whether a value of a key makes room by what it replaces, as a deletion does.
    pub fn makes_room(&self, key: &[u8], value_bytes: usize) -> bool {
        self.is_tombstone(self.find(key), value_bytes)
    }

    /// The newest durable version that an entry leads to.
    pub(super) fn newest_durable(&self, found: Found) -> Option<Object> {
        let Found::Entry { word, .. } = found else {
            return None;
        };
        let mut versions = std::iter::successors(self.object(word), |newer| self.older(newer));
        versions.find(|one| self.is_durable(one.at))
    }

    /// The newest version of a key that waits for its value or its fence, whether the index names it
    /// already or not. Of keys with one hash, of either; `None` perhaps if a newer one is durable.
    pub fn newest_waiting(&self, key: &[u8]) -> Option<u64> {
        self.backlog.newest_of(self.hash(key))
    }

    /// Whether a key takes no values until a version of it that waits is durable, or none waits: it
    /// has too many, or cleaning waits for them.
    pub fn is_closed_to_values(&self, key: &[u8]) -> bool {
        self.backlog.is_full_of(self.hash(key)) || self.is_awaited_by_cleaning(self.find(key))
    }

    /// Whether a version waits for its value or its fence, and was not given up.
    pub(super) fn is_waiting(&self, sequence: u64) -> bool {
        self.backlog.get(sequence).is_some()
    }

    /// The object at a place, if there is one that is whole, of the epoch of its half, and inside it.
    pub(super) fn read_object(&self, at: u64) -> Option<Object> {
        // What leads here may stand in a header that somebody made up.
        if !at.is_multiple_of(GRAIN_BYTES) {
            return None;
        }
        #[cfg(test)]
        OBJECTS_READ.with(|count| count.set(count.get() + 1));
        let half = self.head.half_of(at)?;
        let epoch = self.space.epoch_of(half)?;
        let end = self.head.half(half).end;
        let len = (end - at).min(KEYED_BYTES_MAX as u64) as usize;
        let mut bytes = [0; KEYED_BYTES_MAX];
        let short = len.min(HEADER_BYTES as usize);
        self.medium.read(at, &mut bytes[..short]);
        // Most keys are short: the rest is read by its length.
        let peeked = Header::peek(&bytes[..short])?;
        let keyed = HEADER_BYTES as usize + usize::from(peeked.key_bytes);
        if keyed > len || at + peeked.object_bytes() > end {
            return None;
        }
        self.medium
            .read(at + HEADER_BYTES, &mut bytes[HEADER_BYTES as usize..keyed]);
        let header = Header::decode(&bytes[..keyed], at, epoch)?;
        Some(Object { at, header, bytes })
    }

    pub(super) fn object(&self, word: Word) -> Option<Object> {
        self.read_object(word.object_at()?)
    }

    /// The version before. Sequences only fall, but from a copy to what it is a copy of, so that a damaged
    /// list ends.
    pub(super) fn older(&self, newer: &Object) -> Option<Object> {
        let at = newer.header.previous_at;
        let older = self.read_object((at != 0).then_some(at)?)?;
        if older.header.hash != newer.header.hash {
            return None;
        }
        let active = self.head.half(self.space.active);
        let is_older = match older.header.sequence.cmp(&newer.header.sequence) {
            Ordering::Less => true,
            Ordering::Equal => active.contains(&newer.at) && !active.contains(&older.at),
            Ordering::Greater => false,
        };
        is_older.then_some(older)
    }

    /// Whether the object at a place has its flag.
    pub(super) fn is_durable(&self, at: u64) -> bool {
        let sequence = load(&*self.medium, at + SEQUENCE_AT);
        load(&*self.medium, at + FLAG_AT) == self.flag(at, sequence)
    }

    /// What the flag of the version at a place is to be.
    pub(super) fn flag(&self, at: u64, sequence: u64) -> u64 {
        flag(sequence, self.epoch_at(at))
    }

    /// The epoch of what is at a place.
    pub(super) fn epoch_at(&self, at: u64) -> u64 {
        let half = self.head.half_of(at);
        let epoch = half.and_then(|half| self.space.epoch_of(half));
        epoch.unwrap_or(self.space.epoch)
    }
}

#[cfg(test)]
thread_local! {
    /// Objects that were read by this thread.
    pub(crate) static OBJECTS_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::ModelMedium;
    use crate::pool::{Allocation, Condition, PoolConfig, Source};

    const KEY: &[u8] = b"key";

    /// One durable version.
    fn new_pool() -> Pool<ModelMedium> {
        let config = PoolConfig {
            entry_count: 16,
            seed: 42,
        };
        let mut pool = Pool::create(ModelMedium::new(1 << 20, 512), config).unwrap();
        pool.put_durable(KEY, b"first", Condition::Always).unwrap();
        pool
    }

    /// A version whose value does not come.
    fn take(pool: &mut Pool<ModelMedium>) -> Result<Allocation, StoreError> {
        let landing = Source::Landing(Box::new(b"other".to_vec()));
        pool.allocate(KEY, 5, 1, landing, Condition::Always)
    }

    /// Versions that a read looks at which waits for none.
    fn walked(pool: &Pool<ModelMedium>) -> usize {
        let Found::Entry { word, .. } = pool.find(KEY) else {
            panic!("it is there");
        };
        let versions = std::iter::successors(pool.object(word), |newer| pool.older(newer));
        1 + versions
            .take_while(|object| !pool.is_durable(object.at))
            .count()
    }

    #[test]
    fn a_new_version_leads_past_those_that_were_given_up() {
        let mut pool = new_pool();
        for _ in 0..100 {
            let taken = take(&mut pool).unwrap();
            assert!(pool.give_up(taken.sequence));
            assert_eq!(walked(&pool), 2);
        }
        assert_eq!(pool.get(KEY).unwrap().unwrap().value, b"first");
    }

    #[test]
    fn a_read_walks_a_bounded_number_of_versions_whatever_clients_give_up() {
        let mut pool = new_pool();
        // Each is given up once the next leads to it.
        let mut before = take(&mut pool).unwrap();
        let refused = loop {
            match take(&mut pool) {
                Ok(next) => {
                    assert!(pool.give_up(before.sequence));
                    before = next;
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, StoreError::Backlog(1)), "{refused}");
        assert_eq!(walked(&pool), 1025);
        // Other keys are not the worse for it.
        pool.put_durable(b"other", b"value", Condition::Always)
            .unwrap();
        assert!(pool.give_up(before.sequence));
        assert_eq!(pool.get(KEY).unwrap().unwrap().value, b"first");
        pool.put_durable(KEY, b"second", Condition::Always).unwrap();
        assert_eq!(walked(&pool), 1);
    }
}
