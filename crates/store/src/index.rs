//! The index: where the newest version of each key is, in memory that clients read.
//!
//! Open addressing: an entry is the key's hash and a [`Word`], and is at the first free place from its
//! hash on. It is not on the medium: recovery makes it from the log. Clients READ it while it changes:
//! each word is one store, and what it leads to is verified by key, place and epoch. An entry that a
//! client does not find may be on its way to another place; the server is asked then.
//!
//! In front of the entries is the oldest epoch of which objects are still there: who has read an object,
//! and reads this afterwards, knows that the object was not overwritten meanwhile.
//!
//! A stretch of places that never had an entry is not looked at, since memory is taken by a look: an
//! index costs what its log's keys cost, however many places there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_fabric::{Region, RegionOptions};

use crate::format::Word;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: u64 = 16;
/// Where the entries begin.
pub(crate) const ENTRIES_AT: u64 = 64;
/// Entries that a client reads at once.
pub(crate) const PROBE_COUNT: u64 = 4;
/// Entries of a stretch: as many as take a page of memory.
const STRETCH: u64 = 4096 / ENTRY_BYTES;

/// The entries of one pool. One thread at a time changes them.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    memory: Arc<Region>,
    entry_count: u64,
    /// Of each stretch, whether it ever had an entry.
    was_used: Arc<[AtomicBool]>,
}

/// Where a hash may be.
pub(crate) fn home(hash: u64, entry_count: u64) -> u64 {
    hash & (entry_count - 1)
}

/// Bytes of the index of so many entries. Some are there twice, so that a read of [`PROBE_COUNT`] never
/// passes the end.
pub(crate) fn index_bytes(entry_count: u64) -> u64 {
    ENTRIES_AT + (entry_count + PROBE_COUNT) * ENTRY_BYTES
}

impl Index {
    /// No key.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn new(entry_count: u64) -> std::io::Result<Self> {
        let bytes = index_bytes(entry_count);
        let memory = Region::create("cenote-store-index", bytes, RegionOptions::default())
            .map_err(std::io::Error::other)?;
        let stretches = entry_count.div_ceil(STRETCH);
        Ok(Self {
            memory: Arc::new(memory.kept()),
            entry_count,
            was_used: (0..stretches).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    /// What clients may read.
    pub fn memory(&self) -> &Arc<Region> {
        &self.memory
    }

    /// Says which epoch is the oldest, before anything of an older one is overwritten.
    pub fn set_oldest_epoch(&self, epoch: u64) {
        self.store(0, epoch);
        // What is written next may be streamed, and must not overtake this.
        cenote_fabric::order_stores();
    }

    pub fn hash(&self, slot: u64) -> u64 {
        match self.was_used(slot) {
            true => self.load(ENTRIES_AT + slot * ENTRY_BYTES),
            false => 0,
        }
    }

    pub fn word(&self, slot: u64) -> Word {
        match self.was_used(slot) {
            true => Word(self.load(ENTRIES_AT + slot * ENTRY_BYTES + 8)),
            false => Word::default(),
        }
    }

    /// The first place from `slot` on that may have an entry; the number of places if there is none.
    pub fn next_used(&self, slot: u64) -> u64 {
        if slot >= self.entry_count || self.was_used(slot) {
            return slot.min(self.entry_count);
        }
        let stretches = self.was_used[(slot / STRETCH) as usize..].iter();
        let skipped = stretches.take_while(|was_used| !was_used.load(Ordering::Relaxed));
        let next = (slot / STRETCH + skipped.count() as u64) * STRETCH;
        next.min(self.entry_count)
    }

    fn was_used(&self, slot: u64) -> bool {
        self.was_used[(slot / STRETCH) as usize].load(Ordering::Relaxed)
    }

    pub fn set_word(&self, slot: u64, word: Word) {
        self.store(ENTRIES_AT + slot * ENTRY_BYTES + 8, word.0);
        if slot < PROBE_COUNT {
            let again = slot + self.entry_count;
            self.store(ENTRIES_AT + again * ENTRY_BYTES + 8, word.0);
        }
    }

    pub fn set(&self, slot: u64, hash: u64, word: Word) {
        self.was_used[(slot / STRETCH) as usize].store(true, Ordering::Relaxed);
        // In between it is an entry of nothing.
        self.set_word(slot, Word::default());
        self.store(ENTRIES_AT + slot * ENTRY_BYTES, hash);
        if slot < PROBE_COUNT {
            let again = slot + self.entry_count;
            self.store(ENTRIES_AT + again * ENTRY_BYTES, hash);
        }
        self.set_word(slot, word);
    }

    /// Takes an entry away; those behind it that would not be found any more move up. So entry `slot` may
    /// be another one afterwards, and none before it changes but across the end.
    pub fn remove(&self, slot: u64) {
        let mask = self.entry_count - 1;
        let (mut free, mut next) = (slot, slot);
        for _ in 0..mask {
            next = (next + 1) & mask;
            let hash = self.hash(next);
            if hash == 0 {
                break;
            }
            // Whether its home is at the free place or before it, on the way to where it is.
            let distance = next.wrapping_sub(home(hash, self.entry_count)) & mask;
            if distance >= next.wrapping_sub(free) & mask {
                self.set(free, hash, self.word(next));
                free = next;
            }
        }
        self.set(free, 0, Word::default());
    }

    fn load(&self, at: u64) -> u64 {
        self.memory.load(at).expect(OURS)
    }

    fn store(&self, at: u64, value: u64) {
        self.memory.store(at, value).expect(OURS);
    }
}

/// Why memory is not gone.
const OURS: &str = "nobody else truncates the memory of a store";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn find(index: &Index, hash: u64) -> Option<u64> {
        let mask = index.entry_count - 1;
        let places = (0..=mask).map(|step| hash.wrapping_add(step) & mask);
        let mut seen = places.take_while(|slot| index.hash(*slot) != 0);
        seen.find(|slot| index.hash(*slot) == hash)
    }

    #[test]
    fn a_walk_passes_over_places_that_never_had_an_entry() {
        let index = Index::new(1 << 12).unwrap();
        assert_eq!(index.next_used(0), 1 << 12);
        for slot in [300, 3000] {
            index.set(slot, slot, Word(slot));
        }
        let walk = |slot: &u64| {
            let next = index.next_used(slot + 1);
            (next < 1 << 12).then_some(next)
        };
        let seen: Vec<u64> = std::iter::successors(Some(index.next_used(0)), walk).collect();
        let stretches = (256..512).chain(2816..3072);
        assert_eq!(seen, stretches.collect::<Vec<_>>());
        assert_eq!((index.hash(300), index.word(3000)), (300, Word(3000)));
        assert_eq!((index.hash(600), index.word(600)), (0, Word::default()));
    }

    #[test]
    fn entries_are_found_whatever_was_taken_away() {
        let index = Index::new(16).unwrap();
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut state = 7_u64;
        for round in 1..20_000_u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let hash = 1 + (state >> 33) % 40;
            match find(&index, hash) {
                Some(slot) => {
                    index.remove(slot);
                    model.remove(&hash);
                }
                None if model.len() < 15 => {
                    let slot = (0..16).map(|step| (hash + step) & 15);
                    let slot = { slot }.find(|slot| index.hash(*slot) == 0).unwrap();
                    index.set(slot, hash, Word(round));
                    model.insert(hash, round);
                }
                None => {}
            }
            for hash in 1..41 {
                let found = find(&index, hash).map(|slot| index.word(slot).0);
                assert_eq!(found, model.get(&hash).copied());
            }
            for slot in 0..PROBE_COUNT {
                assert_eq!(index.hash(slot), index.hash(slot + 16));
                assert_eq!(index.word(slot), index.word(slot + 16));
            }
        }
    }
}
