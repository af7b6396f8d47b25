//! Keys and values of the load: what is stored follows from item and version, so every byte that
//! is read can be checked without having kept it.
//!
//! A value is its version (u32), 48 bits of a hash of item, version and length, and a stretch of
//! random bytes at a place that this hash chooses. `Book` knows which versions an answer may have:
//! one that is older than an acknowledged write, or that nobody wrote, is an error.
//!
//! Invariants: a value has at least [`HEADER_BYTES`]; the version of what was filled in is 0.

use std::io::Write as _;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

use cenote_measure::random::{Random, mix};
use cenote_measure::zipf::Zipf;

/// How long values are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sizes {
    /// All alike, in bytes.
    Fixed(u32),
    /// 10 to 1024 bytes, short ones more often by Zipf's law.
    Zipf,
}

impl Sizes {
    /// As in a row.
    #[must_use]
    pub fn label(self) -> String {
        match self {
            Self::Fixed(bytes) if bytes.is_multiple_of(1024) => format!("{} KiB", bytes / 1024),
            Self::Fixed(bytes) => format!("{bytes} B"),
            Self::Zipf => "zipf".to_owned(),
        }
    }
}

/// Lengths of [`Sizes::Zipf`].
const ZIPF_BYTES: RangeInclusive<u64> = 10..=1024;
/// Version and hash; the shortest value has no more.
pub(crate) const HEADER_BYTES: usize = 10;
/// Longest value that may be asked for: the least that every server here takes.
pub(crate) const VALUE_BYTES_MAX: usize = 512 << 10;
/// Places at which the random part of a value may begin; arbitrary, half of a second-level cache.
const PLACES: usize = 512 << 10;

/// What is stored.
pub(crate) struct Items {
    seed: u64,
    count: u32,
    sizes: Sizes,
    lengths: Zipf,
    pool: Vec<u8>,
}

/// Why a value is not what was stored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wrong {
    /// No version has this length.
    Length,
    /// The bytes are not those of item and version.
    Bytes,
}

impl Items {
    pub(crate) fn new(count: u32, sizes: Sizes, seed: u64) -> Self {
        let longest = match sizes {
            Sizes::Fixed(bytes) => bytes as usize,
            Sizes::Zipf => *ZIPF_BYTES.end() as usize,
        };
        assert!((HEADER_BYTES..=VALUE_BYTES_MAX).contains(&longest));
        let mut random = Random::new(seed);
        let pool = (0..(PLACES + longest).div_ceil(8))
            .flat_map(|_| random.next().to_le_bytes())
            .collect();
        Self {
            seed,
            count,
            sizes,
            lengths: Zipf::new(ZIPF_BYTES.end() - ZIPF_BYTES.start() + 1),
            pool,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of a version of an item.
    pub(crate) fn value_bytes(&self, item: u32, version: u32) -> usize {
        match self.sizes {
            Sizes::Fixed(bytes) => bytes as usize,
            Sizes::Zipf => {
                let unit = Random::new(self.word(item, version)).unit();
                (ZIPF_BYTES.start() + self.lengths.rank(unit)) as usize
            }
        }
    }

    /// Bytes of all keys and of all values as they are filled in.
    pub(crate) fn filled_bytes(&self) -> u64 {
        let mut key = Vec::new();
        (0..self.count)
            .map(|item| {
                key.clear();
                push_key(item, &mut key);
                (key.len() + self.value_bytes(item, 0)) as u64
            })
            .sum()
    }

    /// Appends a version of an item.
    pub(crate) fn push_value(&self, item: u32, version: u32, out: &mut Vec<u8>) {
        let length = self.value_bytes(item, version);
        let tag = self.tag(item, version, length);
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&tag.to_le_bytes()[..6]);
        out.extend_from_slice(self.body(tag, length));
    }

    /// The version that a value has, if it is one of this item to its last byte.
    pub(crate) fn check(&self, item: u32, value: &[u8]) -> Result<u32, Wrong> {
        let (header, body) = value.split_at_checked(HEADER_BYTES).ok_or(Wrong::Length)?;
        let version = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        let tag = self.tag(item, version, value.len());
        if header[4..] != tag.to_le_bytes()[..6] || body != self.body(tag, value.len()) {
            return Err(Wrong::Bytes);
        }
        if self.value_bytes(item, version) != value.len() {
            return Err(Wrong::Length);
        }
        Ok(version)
    }

    fn word(&self, item: u32, version: u32) -> u64 {
        mix(self.seed ^ (u64::from(item) << 32 | u64::from(version)))
    }

    fn tag(&self, item: u32, version: u32, length: usize) -> u64 {
        mix(self.word(item, version) ^ length as u64)
    }

    fn body(&self, tag: u64, length: usize) -> &[u8] {
        let place = (tag >> 40) as usize % PLACES;
        // A value from a server may be longer than any that was stored.
        self.pool
            .get(place..place + length - HEADER_BYTES)
            .unwrap_or_default()
    }
}

/// Appends an item's key: `user` and its number.
pub(crate) fn push_key(item: u32, out: &mut Vec<u8>) {
    write!(out, "user{item}").expect("a Vec takes what is written");
}

/// Which versions each item may have, shared by all that read and write one server.
///
/// Writes of an item that overlap are a *cluster*: any of them may be the last. When none is under
/// way any more, what is older than the cluster's first is gone for good.
pub(crate) struct Book(Vec<Mutex<Writes>>);

#[derive(Clone, Copy, Default)]
struct Writes {
    newest: u32,
    /// First of the writes of which one at least is under way.
    cluster: u32,
    /// Older versions are stale.
    floor: u32,
    under_way: u32,
}

impl Book {
    pub(crate) fn new(items: &Items) -> Self {
        Self((0..items.count()).map(|_| Mutex::default()).collect())
    }

    /// The version to write.
    pub(crate) fn begin_write(&self, item: u32) -> u32 {
        self.with(item, |writes| {
            writes.newest += 1;
            if writes.under_way == 0 {
                writes.cluster = writes.newest;
            }
            writes.under_way += 1;
            writes.newest
        })
    }

    /// A write was acknowledged. One whose fate is unknown is under way for ever.
    pub(crate) fn end_write(&self, item: u32) {
        self.with(item, |writes| {
            writes.under_way -= 1;
            if writes.under_way == 0 {
                writes.floor = writes.cluster;
            }
        });
    }

    /// The oldest version that a read which begins now may return.
    pub(crate) fn floor(&self, item: u32) -> u32 {
        self.with(item, |writes| writes.floor)
    }

    /// Whether a read that began at `floor` may return `version` now.
    pub(crate) fn allows(&self, item: u32, floor: u32, version: u32) -> bool {
        version >= floor && version <= self.with(item, |writes| writes.newest)
    }

    fn with<R>(&self, item: u32, act: impl FnOnce(&mut Writes) -> R) -> R {
        let writes = &self.0[item as usize];
        act(&mut writes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(items: &Items, item: u32, version: u32) -> Vec<u8> {
        let mut value = Vec::new();
        items.push_value(item, version, &mut value);
        value
    }

    #[test]
    fn a_value_tells_its_version_and_every_changed_byte() {
        for sizes in [Sizes::Fixed(10), Sizes::Fixed(300), Sizes::Zipf] {
            let items = Items::new(50, sizes, 7);
            for (item, version) in [(0, 0), (49, 1), (3, 1 << 30)] {
                let good = value(&items, item, version);
                assert_eq!(items.check(item, &good), Ok(version));
                assert_eq!(items.check(item + 1, &good), Err(Wrong::Bytes));
                for at in 0..good.len() {
                    let mut bad = good.clone();
                    bad[at] ^= 0x40;
                    assert!(items.check(item, &bad).is_err(), "byte {at} of {sizes:?}");
                }
                assert!(items.check(item, &good[..good.len() - 1]).is_err());
                assert!(items.check(item, &[]).is_err());
            }
            let long = vec![0; VALUE_BYTES_MAX * 2];
            assert!(
                items.check(1, &long).is_err(),
                "longer than all that is kept"
            );
        }
    }

    #[test]
    fn zipf_sizes_are_mostly_short_and_follow_from_item_and_version() {
        let items = Items::new(10_000, Sizes::Zipf, 1);
        let lengths: Vec<usize> = (0..10_000).map(|item| items.value_bytes(item, 0)).collect();
        assert_eq!(
            lengths,
            (0..10_000)
                .map(|item| items.value_bytes(item, 0))
                .collect::<Vec<_>>()
        );
        assert!(lengths.iter().all(|bytes| (10..=1024).contains(bytes)));
        let shortest = lengths.iter().filter(|bytes| **bytes == 10).count();
        // One of the sum of 1/i^0.99 for i up to 1015, which is about 7.7.
        assert!((1150..1450).contains(&shortest), "{shortest}");
        let key_bytes: u64 = 10 * 5 + 90 * 6 + 900 * 7 + 9000 * 8;
        let all = lengths.iter().sum::<usize>() as u64;
        assert_eq!(items.filled_bytes(), key_bytes + all);
    }

    #[test]
    fn keys_stay_below_sixteen_bytes() {
        let mut key = Vec::new();
        push_key(u32::MAX, &mut key);
        assert_eq!(key, b"user4294967295");
    }

    #[test]
    fn an_acknowledged_write_makes_what_is_older_stale() {
        let items = Items::new(2, Sizes::Fixed(10), 1);
        let book = Book::new(&items);
        assert!(book.allows(0, book.floor(0), 0), "what was filled in");
        assert!(!book.allows(0, book.floor(0), 1), "nobody wrote it");
        assert_eq!(book.begin_write(0), 1);
        let early = book.floor(0);
        assert!(book.allows(0, early, 0) && book.allows(0, early, 1));
        book.end_write(0);
        assert_eq!(book.floor(0), 1);
        assert!(!book.allows(0, book.floor(0), 0));
        assert!(book.allows(0, early, 0), "a read that began before");
        assert_eq!(book.floor(1), 0, "each item for itself");
    }

    #[test]
    fn any_of_overlapping_writes_may_be_the_last() {
        let items = Items::new(1, Sizes::Fixed(10), 1);
        let book = Book::new(&items);
        assert_eq!((book.begin_write(0), book.begin_write(0)), (1, 2));
        book.end_write(0);
        assert_eq!(book.floor(0), 0, "one of them is not answered");
        book.end_write(0);
        assert_eq!(book.floor(0), 1);
        assert!(book.allows(0, 1, 1) && book.allows(0, 1, 2));
    }
}
