//! A list of a shard's keys, in parts: between two of them others change the index.

use cenote_fabric::calls::CALL_BYTES_MAX;

use super::shard::State;
use crate::format::KEY_BYTES_MAX;
use crate::index::WALK_MAX;
use crate::medium::Medium;
use crate::protocol::{Answer, LIST_BYTES};

/// Entries of one part: so few that others do not wait long for the shard.
const PART_SLOTS: u64 = 16_384;
// Those that may have moved go with a part, whose last key may be behind its end.
const _: () = assert!(LIST_BYTES + (WALK_MAX as usize + 1) * (KEY_BYTES_MAX + 1) < CALL_BYTES_MAX);

impl<M: Medium> State<M> {
    /// Keys from a place of the index on, and where the next part begins.
    pub fn list(&self, slot: u64, prefix: &[u8]) -> Answer {
        let (count, (_, places)) = (self.pool.slot_count(), self.pool.hashing());
        let mut slot = slot.min(count);
        // Entries that were behind the end of the part before may have moved up since, at most so far.
        let moved = match slot < places {
            true => slot.saturating_sub(WALK_MAX - 1)..slot,
            false => slot..slot,
        };
        let moved = moved.filter_map(|slot| self.pool.key_at(slot, prefix));
        let mut keys: Vec<_> = moved.collect();
        let mut bytes = 0;
        let end = count.min(slot.saturating_add(PART_SLOTS));
        while slot < end && bytes < LIST_BYTES {
            if let Some(key) = self.pool.key_at(slot, prefix) {
                bytes += key.len() + 1;
                keys.push(key);
            }
            slot += 1;
        }
        let next_slot = (slot < count).then_some(slot);
        Answer::Keys { next_slot, keys }
    }
}
