//! Places of the index, and the keys that have them.

use super::{Found, Pool};
use crate::medium::Medium;

impl<M: Medium> Pool<M> {
    /// Whether the index takes one more key. Keys that the log has keep their places until it is cleaned,
    /// also those that are deleted or whose values never came: recovery finds a place for each. One place
    /// is always free, where a search ends.
    pub(super) fn has_place(&self) -> bool {
        self.keys_in_log() + 1 < self.head.entry_count
    }

    /// Keys of which the log may have versions, those included that it has nothing of but that: cleaning
    /// makes them fewer.
    #[must_use]
    pub fn keys_in_log(&self) -> u64 {
        self.entries + self.dropped + self.unnamed.len() as u64
    }

    /// Of these, when the pool was opened, those without a value.
    #[must_use]
    pub fn empty_keys_at_open(&self) -> u64 {
        self.empty_at_open
    }

    /// Places that keys may be at: those of the index, and those that only the server knows.
    #[must_use]
    pub fn slot_count(&self) -> u64 {
        self.index.slot_count()
    }

    /// Whether a key has an entry that the cleaning which is under way does not take away.
    pub(super) fn is_entry_lasting(&self, found: Found) -> bool {
        match found {
            Found::Entry { word, .. } => word.object_at().is_some_and(|at| self.is_in_use(at)),
            Found::Free { .. } => false,
        }
    }

    /// Takes an entry away. Its key is counted on: for as long as an object in the half in use has it, or
    /// until cleaning ends.
    pub(super) fn remove_entry(&mut self, slot: u64) {
        if self.index.hash(slot) != 0 {
            self.entries -= 1;
            match self.index.word(slot).object_at() {
                Some(at) if self.is_in_use(at) => _ = self.unnamed.insert(at),
                _ => self.dropped += 1,
            }
        }
        self.index.remove(slot);
    }

    /// Whether a place is in the half of the log that new versions go to.
    pub(super) fn is_in_use(&self, at: u64) -> bool {
        self.head.half(self.space.active).contains(&at)
    }
}
