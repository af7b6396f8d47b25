//! What a slot of the table holds: 40 bytes, and the key behind them.
//!
//! ```text
//! 0 cas            8 | 16 address / 16, low 4 | 28 queue: next older    4 | 37 bytes of the key 1
//! 8 client flags   4 | 20 bytes of the value 4 | 32 last use, seconds    4 | 38 marks            1
//! 12 expiry        4 | 24 queue: next newer  4 | 36 address / 16, high   1 | 39 place, uses, hit 1
//! ```
//!
//! The hash is not kept: it would cost 8 bytes, and the key gives it in a few nanoseconds when a segment
//! is split or an item is sent.

use super::{
    Entry,
    slabs::{Slabs, Slot},
};
use crate::memory::allocator::ALIGN_BYTES;
use crate::memory::key_hash::KeyHasher;

/// Bytes before the key.
pub(super) const HEAD_BYTES: usize = 40;

const ADDRESS: usize = 16;
const VALUE_BYTES: usize = 20;
const NEWER: usize = 24;
const OLDER: usize = 28;
const LAST_USE: usize = 32;
const ADDRESS_HIGH: usize = 36;
const KEY_BYTES: usize = 37;
const MARKS: usize = 38;
const STATE: usize = 39;

/// In the state: which queue has the entry, ...
const PLACE_BITS: u8 = 0b11;
/// ... how often it was used lately, ...
const USES_SHIFT: u8 = 2;
const USES_BITS: u8 = 0b11;
/// ... and whether a read found it since it was stored.
const HIT: u8 = 1 << 4;

/// Slots that hold an entry and its key.
pub(super) type Records = Slabs<HEAD_BYTES>;

/// Hashes of the keys in slots.
pub(super) struct Hashes<'a> {
    pub(super) records: &'a Records,
    pub(super) hasher: KeyHasher,
}

impl Hashes<'_> {
    pub(super) fn hash(&self, slot: Slot) -> u64 {
        self.hasher.hash(self.records.key(slot))
    }

    /// Some byte next to the key.
    pub(super) fn touch(&self, slot: Slot) -> u8 {
        self.records.head(slot)[KEY_BYTES]
    }
}

/// Which queue of the eviction order an entry is in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EvictionQueue {
    /// None: it was chosen to go.
    Nowhere,
    Small,
    Main,
}

/// Most uses that are counted.
pub(super) const USES_MAX: u8 = USES_BITS;

impl Records {
    /// Takes a slot for a key that was not there; the entry is in no queue.
    pub(super) fn add(&mut self, key: &[u8], entry: &Entry) -> Slot {
        let key_bytes = u8::try_from(key.len()).expect("keys have up to 255 bytes");
        let slot = self.take(key.len());
        let bytes = self.bytes_mut(slot);
        bytes[..HEAD_BYTES].fill(0);
        bytes[KEY_BYTES] = key_bytes;
        bytes[HEAD_BYTES..][..key.len()].copy_from_slice(key);
        self.set_entry(slot, entry);
        slot
    }

    pub(super) fn key(&self, slot: Slot) -> &[u8] {
        let bytes = self.bytes(slot);
        &bytes[HEAD_BYTES..][..usize::from(bytes[KEY_BYTES])]
    }

    pub(super) fn entry(&self, slot: Slot) -> Entry {
        let head = self.head(slot);
        let units = u64::from(head[ADDRESS_HIGH]) << 32 | u64::from(word(head, ADDRESS));
        Entry {
            cas: u64::from(word(head, 4)) << 32 | u64::from(word(head, 0)),
            client_flags: word(head, 8),
            expiry: word(head, 12),
            address: units * ALIGN_BYTES,
            value_bytes: word(head, VALUE_BYTES),
            last_use: word(head, LAST_USE),
            marks: head[MARKS],
            was_hit: head[STATE] & HIT != 0,
        }
    }

    /// # Panics
    /// If the address is no multiple of 16, or not below 2^44.
    pub(super) fn set_entry(&mut self, slot: Slot, entry: &Entry) {
        let units = entry.address / ALIGN_BYTES;
        assert!(
            entry.address.is_multiple_of(ALIGN_BYTES) && units >> 40 == 0,
            "address {} of a value",
            entry.address
        );
        let head = self.head_mut(slot);
        head[..8].copy_from_slice(&entry.cas.to_le_bytes());
        set_word(head, 8, entry.client_flags);
        set_word(head, 12, entry.expiry);
        set_word(head, ADDRESS, units as u32);
        head[ADDRESS_HIGH] = (units >> 32) as u8;
        set_word(head, VALUE_BYTES, entry.value_bytes);
        set_word(head, LAST_USE, entry.last_use);
        head[MARKS] = entry.marks;
        head[STATE] = head[STATE] & !HIT | if entry.was_hit { HIT } else { 0 };
    }

    pub(super) fn value_bytes(&self, slot: Slot) -> u32 {
        word(self.head(slot), VALUE_BYTES)
    }

    pub(super) fn newer(&self, slot: Slot) -> u32 {
        word(self.head(slot), NEWER)
    }

    pub(super) fn set_newer(&mut self, slot: Slot, newer: u32) {
        set_word(self.head_mut(slot), NEWER, newer);
    }

    pub(super) fn older(&self, slot: Slot) -> u32 {
        word(self.head(slot), OLDER)
    }

    pub(super) fn set_older(&mut self, slot: Slot, older: u32) {
        set_word(self.head_mut(slot), OLDER, older);
    }

    pub(super) fn place(&self, slot: Slot) -> EvictionQueue {
        match self.head(slot)[STATE] & PLACE_BITS {
            0 => EvictionQueue::Nowhere,
            1 => EvictionQueue::Small,
            _ => EvictionQueue::Main,
        }
    }

    pub(super) fn set_place(&mut self, slot: Slot, place: EvictionQueue) {
        let state = &mut self.head_mut(slot)[STATE];
        *state = *state & !PLACE_BITS | place as u8;
    }

    pub(super) fn uses(&self, slot: Slot) -> u8 {
        self.head(slot)[STATE] >> USES_SHIFT & USES_BITS
    }

    pub(super) fn set_uses(&mut self, slot: Slot, uses: u8) {
        let state = &mut self.head_mut(slot)[STATE];
        *state = *state & !(USES_BITS << USES_SHIFT) | uses.min(USES_MAX) << USES_SHIFT;
    }

    /// A read found the entry.
    pub(super) fn note_hit(&mut self, slot: Slot, now: u32) {
        let head = self.head_mut(slot);
        set_word(head, LAST_USE, now);
        head[STATE] |= HIT;
    }

    fn head(&self, slot: Slot) -> &[u8; HEAD_BYTES] {
        let head = self.bytes(slot).first_chunk();
        head.expect("a slot begins with a head")
    }

    fn head_mut(&mut self, slot: Slot) -> &mut [u8; HEAD_BYTES] {
        let head = self.bytes_mut(slot).first_chunk_mut();
        head.expect("a slot begins with a head")
    }
}

fn word(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

fn set_word(head: &mut [u8; HEAD_BYTES], at: usize, word: u32) {
    head[at..at + 4].copy_from_slice(&word.to_le_bytes());
}
