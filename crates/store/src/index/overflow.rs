//! Entries of keys that found no free place near that of their hash.
//!
//! Clients do not see them: they ask the server for a key that is not where its hash says. A key is
//! found by a hash that no client can tell, so that none chooses keys that are slow to find. An
//! entry keeps its place until it is removed.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};

use crate::format::Word;

#[derive(Debug, Default)]
pub(super) struct Overflow {
    /// Seeded at random.
    hasher: RandomState,
    /// By their places.
    entries: Vec<Option<Entry>>,
    /// Places without an entry.
    free: Vec<u64>,
    /// Secret hashes, each with a place of an entry: two keys may have the same.
    places: BTreeSet<(u64, u64)>,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    secret_hash: u64,
    word: Word,
}

impl Overflow {
    /// Places of keys that may be this one.
    pub fn places_of(&self, key: &[u8]) -> impl Iterator<Item = u64> {
        // Few pools have any, and hashing takes time.
        let range = (!self.places.is_empty()).then(|| {
            let secret_hash = self.hasher.hash_one(key);
            (self.places).range((secret_hash, 0)..=(secret_hash, u64::MAX))
        });
        range.into_iter().flatten().map(|(_, place)| *place)
    }

    /// Where the next one goes.
    pub fn next_place(&self) -> u64 {
        self.free.last().copied().unwrap_or(self.place_count())
    }

    pub fn place_count(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Adds a key that is not there at the [next place](Self::next_place).
    pub fn add(&mut self, place: u64, hash: u64, key: &[u8], word: Word) {
        debug_assert_eq!(place, self.next_place());
        let secret_hash = self.hasher.hash_one(key);
        let entry = Entry {
            hash,
            secret_hash,
            word,
        };
        match self.free.pop() {
            Some(free) => self.entries[free as usize] = Some(entry),
            None => self.entries.push(Some(entry)),
        }
        self.places.insert((secret_hash, place));
    }

    pub fn remove(&mut self, place: u64) {
        if let Some(entry) = self.entries[place as usize].take() {
            self.places.remove(&(entry.secret_hash, place));
            self.free.push(place);
        }
    }

    /// Of the key at a place; 0: there is none.
    pub fn hash(&self, place: u64) -> u64 {
        self.entry(place).map_or(0, |entry| entry.hash)
    }

    pub fn word(&self, place: u64) -> Word {
        self.entry(place)
            .map_or(Word::default(), |entry| entry.word)
    }

    pub fn set_word(&mut self, place: u64, word: Word) {
        if let Some(Some(entry)) = self.entries.get_mut(place as usize) {
            entry.word = word;
        }
    }

    /// The first place from `place` on that has an entry; the number of places if there is none.
    pub fn next_used(&self, place: u64) -> u64 {
        let mut behind = place..self.place_count();
        behind
            .find(|place| self.entry(*place).is_some())
            .unwrap_or(self.place_count())
    }

    fn entry(&self, place: u64) -> Option<&Entry> {
        self.entries.get(place as usize)?.as_ref()
    }
}
