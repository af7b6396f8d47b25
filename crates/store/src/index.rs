//! The index: where the newest version of each key is, in memory that clients read.
//!
//! Open addressing: an entry is the key's hash and a [`Word`], and is at the first free place from
//! its hash on, of [`WALK_MAX`] places. It is not on the medium: recovery makes it from the log.
//! Clients READ it while it changes: each word is one store, and what it leads to is verified by
//! key, place and epoch. An entry that a client does not find may be on its way to another place;
//! the server is asked then.
//!
//! Clients know the hash, since they look for its place, and choose keys: as many as they like may
//! have one place. So no walk is longer than [`WALK_MAX`]. A key that finds no free place in that
//! is in an [`Overflow`] of the server's own, whose order nobody else knows. Its places are
//! numbered from the end of the others on.
//!
//! In front of the entries is the oldest epoch of which objects are still there: who has read an object,
//! and reads this afterwards, knows that the object was not overwritten meanwhile.
//!
//! A stretch of places that never had an entry is not looked at, since memory is taken by a look: an
//! index costs what its log's keys cost, however many places there are.

mod overflow;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_fabric::{Region, RegionOptions};

use crate::format::Word;
use overflow::Overflow;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: u64 = 16;
/// Where the entries begin.
pub(crate) const ENTRIES_AT: u64 = 64;
/// Entries that a client reads at once.
pub(crate) const PROBE_COUNT: u64 = 4;
/// Places that are looked at for a hash. In an index that is half full, even of 2^30 places, no
/// walk is as long by chance.
pub(crate) const WALK_MAX: u64 = 128;
/// Entries of a stretch: as many as take a page of memory.
const STRETCH: u64 = 4096 / ENTRY_BYTES;

/// The entries of one pool. One thread at a time changes them.
#[derive(Debug)]
pub(crate) struct Index {
    memory: Arc<Region>,
    entry_count: u64,
    /// Of each stretch, whether it ever had an entry.
    was_used: Arc<[AtomicBool]>,
    overflow: Overflow,
}

/// Where a key's entry is, or goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Found {
    Entry { slot: u64, word: Word },
    Free { slot: u64 },
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
        let memory = Region::create_kept("cenote-store-index", bytes, RegionOptions::default())
            .map_err(std::io::Error::other)?;
        let stretches = entry_count.div_ceil(STRETCH);
        Ok(Self {
            memory: Arc::new(memory),
            entry_count,
            was_used: (0..stretches).map(|_| AtomicBool::new(false)).collect(),
            overflow: Overflow::default(),
        })
    }

    /// Looks for the entry of a key with this hash; `is_of_key` says whether a word leads to it.
    pub fn find(&self, hash: u64, key: &[u8], is_of_key: impl Fn(Word) -> bool) -> Found {
        let mask = self.entry_count - 1;
        let first = home(hash, self.entry_count);
        let mut free = None;
        for step in 0..WALK_MAX.min(self.entry_count) {
            let slot = (first + step) & mask;
            let found = self.hash(slot);
            if found == 0 {
                free = Some(slot);
                break;
            }
            let word = self.word(slot);
            if found == hash && is_of_key(word) {
                return Found::Entry { slot, word };
            }
        }
        // A place may have become free since the key came.
        for place in self.overflow.places_of(key) {
            let word = self.overflow.word(place);
            if is_of_key(word) {
                let slot = self.entry_count + place;
                return Found::Entry { slot, word };
            }
        }
        let slot = free.unwrap_or_else(|| self.entry_count + self.overflow.next_place());
        Found::Free { slot }
    }

    /// Places, with those of the overflow.
    pub fn slot_count(&self) -> u64 {
        self.entry_count + self.overflow.place_count()
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
        if let Some(place) = self.in_overflow(slot) {
            return self.overflow.hash(place);
        }
        match self.was_used(slot) {
            true => self.load(ENTRIES_AT + slot * ENTRY_BYTES),
            false => 0,
        }
    }

    pub fn word(&self, slot: u64) -> Word {
        if let Some(place) = self.in_overflow(slot) {
            return self.overflow.word(place);
        }
        match self.was_used(slot) {
            true => Word(self.load(ENTRIES_AT + slot * ENTRY_BYTES + 8)),
            false => Word::default(),
        }
    }

    /// The first place from `slot` on that may have an entry; the number of places if there is none.
    pub fn next_used(&self, slot: u64) -> u64 {
        if let Some(place) = self.in_overflow(slot) {
            return self.entry_count + self.overflow.next_used(place);
        }
        if self.was_used(slot) {
            return slot;
        }
        let stretches = self.was_used[(slot / STRETCH) as usize..].iter();
        let skipped = stretches.take_while(|was_used| !was_used.load(Ordering::Relaxed));
        let next = (slot / STRETCH + skipped.count() as u64) * STRETCH;
        match next < self.entry_count {
            true => next,
            false => self.entry_count + self.overflow.next_used(0),
        }
    }

    fn in_overflow(&self, slot: u64) -> Option<u64> {
        slot.checked_sub(self.entry_count)
    }

    fn was_used(&self, slot: u64) -> bool {
        self.was_used[(slot / STRETCH) as usize].load(Ordering::Relaxed)
    }

    pub fn set_word(&mut self, slot: u64, word: Word) {
        if let Some(place) = self.in_overflow(slot) {
            return self.overflow.set_word(place, word);
        }
        self.store_word(slot, word);
    }

    fn store_word(&self, slot: u64, word: Word) {
        self.store(ENTRIES_AT + slot * ENTRY_BYTES + 8, word.0);
        if slot < PROBE_COUNT {
            let again = slot + self.entry_count;
            self.store(ENTRIES_AT + again * ENTRY_BYTES + 8, word.0);
        }
    }

    /// Gives a key without an entry one, at the place that [`find`](Self::find) found for it.
    pub fn add(&mut self, slot: u64, hash: u64, key: &[u8], word: Word) {
        match self.in_overflow(slot) {
            Some(place) => self.overflow.add(place, hash, key, word),
            None => self.set(slot, hash, word),
        }
    }

    fn set(&self, slot: u64, hash: u64, word: Word) {
        self.was_used[(slot / STRETCH) as usize].store(true, Ordering::Relaxed);
        // In between it is an entry of nothing.
        self.store_word(slot, Word::default());
        self.store(ENTRIES_AT + slot * ENTRY_BYTES, hash);
        if slot < PROBE_COUNT {
            let again = slot + self.entry_count;
            self.store(ENTRIES_AT + again * ENTRY_BYTES, hash);
        }
        self.store_word(slot, word);
    }

    /// Takes an entry away; those behind it that would not be found any more move up. So entry
    /// `slot` may be another one afterwards, and none before it changes but across the end. None
    /// moves into the overflow or out of it.
    pub fn remove(&mut self, slot: u64) {
        if let Some(place) = self.in_overflow(slot) {
            return self.overflow.remove(place);
        }
        let mask = self.entry_count - 1;
        let (mut free, mut next) = (slot, slot);
        for _ in 0..mask {
            next = (next + 1) & mask;
            let hash = self.hash(next);
            // Entries so far behind have their homes behind the free place as well.
            if hash == 0 || next.wrapping_sub(free) & mask >= WALK_MAX {
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
mod tests;
