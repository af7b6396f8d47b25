//! The keys of one partition, and what belongs to each: the entry that says where its value is.
//!
//! Made for 10^8 items: no operation takes time in the number of items (see [`index`]), and an item of a key
//! of 16 bytes takes 56 bytes and six to twelve of the index. Entries lie in slabs of equal slots, are found by
//! the hash of their key, and are in the order in which they would be evicted ([`queues`]).
//!
//! Every process of a group that has the partition applies the same operations: their tables then hold the
//! [same items](Table::same_items). Last uses, hits and the order of eviction are a process's own.
//! Values are in the `region`, their space is the `allocator`'s. Paper: \[cocytus16\] section 3.

mod ghost;
mod index;
mod queues;
mod record;
mod slabs;

use super::classes::{Gauge, Gauges, class_of, item_bytes};
use super::key_hash::KeyHasher;
use super::reaper;

use self::{
    index::Index,
    queues::Queues,
    record::{EvictionQueue, Hashes, Records},
};

pub use self::slabs::Slot;

/// Most bytes of a key here; memcached takes 250.
pub const KEY_BYTES_MAX: usize = 255;

/// Most keys that an owner has in one segment of the index: many times what chance brings together, and few
/// enough that whoever looks at all of them is soon done.
const SEGMENT_KEYS_MAX: usize = 2048;

/// Bytes of keys and entries that are shown at once: all of a usual segment, and far less than a message
/// between nodes may have.
pub const STRETCH_BYTES: usize = 192 << 10;

/// What belongs to a key.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Entry {
    /// The client's, kept for it.
    pub client_flags: u32,
    /// Seconds since 1970; 0 for never.
    pub expiry: u32,
    /// Number of the operation that made it what it is.
    pub cas: u64,
    /// Where its value begins: a multiple of 16, below 2^44.
    pub address: u64,
    /// Length of its value.
    pub value_bytes: u32,
    /// The protocol's marks, as bits.
    pub marks: u8,
    /// When it was last read, seconds since 1970. A process's own.
    pub last_use: u32,
    /// Whether it was read since it was stored. A process's own.
    pub was_hit: bool,
}

impl Entry {
    /// Its [class](super::classes), with a key of so many bytes.
    pub fn class(&self, key_bytes: usize) -> usize {
        let bytes = item_bytes(key_bytes, self.client_flags, self.value_bytes as usize);
        class_of(bytes)
    }

    /// Without what a process does not share.
    fn shared(self) -> Self {
        Self {
            last_use: 0,
            was_hit: false,
            ..self
        }
    }
}

/// Keys -> entries.
///
/// Every hash that is passed is [`Table::hash_of`] the key that it is passed with.
pub struct Table {
    index: Index,
    records: Records,
    queues: Queues,
    classes: Gauges,
    hasher: KeyHasher,
}

/// One stretch of a walk over all keys.
pub struct Stretch<'a> {
    /// Each with its hash, in order of hash: those from where it was asked for to `next`.
    pub items: Vec<(u64, &'a [u8], Entry)>,
    /// The hash to go on with; nothing where this was the last.
    pub next: Option<u64>,
}

impl Table {
    /// A table without keys, which are in the order of their hashes by `hasher`.
    pub fn new(hasher: KeyHasher) -> Self {
        Self {
            index: Index::new(),
            records: Records::new(),
            queues: Queues::new(),
            classes: Gauges::default(),
            hasher,
        }
    }

    /// The hash of a key.
    pub fn hash_of(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Whether as many keys as may be are near this hash: one more is not to be put. No more than chance
    /// ever brings together.
    pub fn is_crowded(&self, hash: u64) -> bool {
        self.index.segment_len(hash) >= SEGMENT_KEYS_MAX
    }

    /// Keys.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether it has no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all entries with their keys. The index comes to this, see
    /// [`resident_bytes`](Self::resident_bytes).
    pub fn used_bytes(&self) -> u64 {
        self.records.used_bytes()
    }

    /// All memory that it has taken.
    pub fn resident_bytes(&self) -> u64 {
        self.records.resident_bytes() + self.index.resident_bytes()
    }

    /// All memory that it may take while it has no more keys than now: what it is to be bounded by.
    pub fn churned_bytes(&self) -> u64 {
        self.records.resident_bytes() + self.index.churned_bytes()
    }

    /// Whether another key of so many bytes takes memory for its entry.
    pub fn grows_for(&self, key_bytes: usize) -> bool {
        self.records.grows_for(key_bytes)
    }

    /// Bytes of all entries and of their values' space, but for those that were [chosen](Self::choose_coldest)
    /// to go.
    pub fn evictable_bytes(&self) -> u64 {
        self.queues.bytes()
    }

    /// The items of a class.
    pub fn class(&self, class: usize) -> Gauge {
        self.classes.of(class)
    }

    /// Classes whose items have changed since this was last asked, as bits.
    pub fn take_changed_classes(&mut self) -> u64 {
        self.classes.take_changed()
    }

    /// Where a key's entry is. Valid until the key is removed.
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<Slot> {
        self.index.find(hash, |slot| self.records.key(slot) == key)
    }

    /// The entry in a slot.
    pub fn entry(&self, slot: Slot) -> Entry {
        self.records.entry(slot)
    }

    /// The key of a slot.
    pub fn key(&self, slot: Slot) -> &[u8] {
        self.records.key(slot)
    }

    /// Stores an entry, and returns the one that the key had.
    ///
    /// A key that is overwritten was used. One that was chosen to go, goes.
    ///
    /// # Panics
    /// If the key is longer than [`KEY_BYTES_MAX`], or the address is none of a value.
    pub fn put(&mut self, hash: u64, key: &[u8], entry: &Entry) -> (Slot, Option<Entry>) {
        if let Some(slot) = self.find(hash, key) {
            let old = self.records.entry(slot);
            self.overwrite(slot, entry);
            return (slot, Some(old));
        }
        let slot = self.records.add(key, entry);
        let hashes = Hashes {
            records: &self.records,
            hasher: self.hasher,
        };
        self.index.insert(hash, slot, &hashes);
        let came_back = self.index.take_eviction(hash);
        let place = if came_back {
            EvictionQueue::Main
        } else {
            EvictionQueue::Small
        };
        self.queues.enter(&mut self.records, slot, place);
        let bytes = queues::cost(&self.records, slot);
        self.classes.enter(entry.class(key.len()), bytes);
        (slot, None)
    }

    /// Replaces the entry in a slot.
    ///
    /// # Panics
    /// If the address is none of a value.
    pub fn set(&mut self, slot: Slot, entry: &Entry) {
        let old = self.records.entry(slot);
        if (old.value_bytes, old.client_flags) == (entry.value_bytes, entry.client_flags) {
            return self.records.set_entry(slot, entry);
        }
        self.queues.resize(&self.records, slot, entry.value_bytes);
        let key_bytes = self.records.key(slot).len();
        let bytes = queues::cost(&self.records, slot);
        self.classes.leave(old.class(key_bytes), bytes);
        self.records.set_entry(slot, entry);
        let bytes = queues::cost(&self.records, slot);
        self.classes.enter(entry.class(key_bytes), bytes);
    }

    /// Stores another entry for the key in a slot, which was used for it.
    ///
    /// # Panics
    /// If the address is none of a value.
    pub fn overwrite(&mut self, slot: Slot, entry: &Entry) {
        self.set(slot, entry);
        queues::count_use(&mut self.records, slot);
    }

    /// Takes a key out.
    pub fn remove(&mut self, hash: u64, key: &[u8]) -> Option<Entry> {
        let hashes = Hashes {
            records: &self.records,
            hasher: self.hasher,
        };
        let is_it = |slot| self.records.key(slot) == key;
        let slot = self.index.remove(hash, is_it, &hashes)?;
        self.queues.leave(&mut self.records, slot);
        let entry = self.records.entry(slot);
        let bytes = queues::cost(&self.records, slot);
        self.classes.leave(entry.class(key.len()), bytes);
        self.records.give_back(slot);
        Some(entry)
    }

    /// Takes all keys out, and gives all memory back: as slow as that is.
    pub fn clear(&mut self) {
        *self = Self::new(self.hasher);
    }

    /// A read found the entry, at second `now`.
    pub fn note_use(&mut self, slot: Slot, now: u32) {
        self.records.note_hit(slot, now);
        queues::count_use(&mut self.records, slot);
    }

    /// Chooses what is to go next when memory runs out. It stays in the table until it is removed, but is
    /// not chosen again.
    pub fn choose_coldest(&mut self) -> Option<Slot> {
        let (slot, place) = self.queues.choose(&mut self.records)?;
        if place == EvictionQueue::Small {
            let hash = self.hash_of(self.records.key(slot));
            self.index.note_eviction(hash);
        }
        Some(slot)
    }

    /// What was chosen to go stays after all, as if it had been used.
    pub fn keep(&mut self, slot: Slot) {
        if self.records.place(slot) == EvictionQueue::Nowhere {
            self.queues
                .enter(&mut self.records, slot, EvictionQueue::Main);
        }
    }

    /// The keys with hashes from `from` on, as far as one segment of the index goes, and some
    /// [`STRETCH_BYTES`] of them at the most. Keys of one hash are not parted.
    ///
    /// A walk begins at 0 and goes on at `next`. Every key with a hash below that has been shown, or came
    /// later: whatever is put, removed and moved between the calls.
    pub fn stretch(&self, from: u64) -> Stretch<'_> {
        let (slots, next) = self.index.segment(from);
        let items = slots.map(|slot| {
            let key = self.records.key(slot);
            (self.hash_of(key), key, self.records.entry(slot))
        });
        let mut items: Vec<_> = items.filter(|(hash, ..)| *hash >= from).collect();
        items.sort_unstable_by(|one, other| (one.0, one.1).cmp(&(other.0, other.1)));
        let mut bytes = 0;
        let mut last = None;
        let end = items.iter().position(|(hash, key, _)| {
            let is_end = bytes > STRETCH_BYTES && last != Some(*hash);
            bytes += key.len() + size_of::<Entry>();
            last = Some(*hash);
            is_end
        });
        let next = end.map_or(next, |end| Some(items[end].0));
        items.truncate(end.unwrap_or(items.len()));
        Stretch { items, next }
    }

    /// Where the entries are that are wanted, of those with hashes from `from` on: of some `count` of them, a
    /// segment of the index more at most. The hash to go on with; nothing where these were the last.
    ///
    /// A walk as [`stretch`](Self::stretch) makes one.
    pub fn slots_of(
        &self,
        from: u64,
        count: usize,
        is_wanted: impl Fn(&Entry) -> bool,
    ) -> (Vec<Slot>, Option<u64>) {
        let (mut found, mut looked_at) = (Vec::new(), 0);
        let mut next = Some(from);
        while let Some(from) = next.filter(|_| looked_at < count) {
            let (slots, then) = self.index.segment(from);
            let slots = slots.inspect(|_| looked_at += 1);
            found.extend(slots.filter(|slot| is_wanted(&self.records.entry(*slot))));
            next = then;
        }
        (found, next)
    }

    /// Whether both hold the same keys, with entries that are the same but for what each process has for
    /// itself. Takes time in the number of keys.
    pub fn same_items(&self, other: &Self) -> bool {
        let mut next = Some(0);
        while let Some(from) = next {
            let stretch = self.stretch(from);
            for (hash, key, entry) in stretch.items {
                let found = other.find(hash, key).map(|slot| other.entry(slot).shared());
                if found != Some(entry.shared()) {
                    return false;
                }
            }
            next = stretch.next;
        }
        self.len() == other.len()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let bytes = self.resident_bytes();
        if bytes >= reaper::BYTES_MIN {
            let index = std::mem::replace(&mut self.index, Index::new());
            let records = std::mem::replace(&mut self.records, Records::new());
            reaper::reap(bytes, (index, records));
        }
    }
}

#[cfg(test)]
mod tests;
