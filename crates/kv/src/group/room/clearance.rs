//! Parts of the region that are cleared: chunks to be given back, and a place for a value that is longer than
//! every free piece. Nothing tells what lies at an address, so all items are looked at for it.

use std::ops::Range;

use super::CHUNKS_LOOKED_AT;
use crate::group::owner::Owner;
use crate::group::replica::space_of;
use crate::memory::allocator::ALIGN_BYTES;
use crate::memory::region::CHUNK_BYTES;

/// Steps in a row by which memory above a lowered bound is given back.
const TRIMS_MAX: usize = 256;
/// Chunks that items have to leave at a time.
const CHUNKS_VACATED_MAX: usize = 16;
/// The part of the region that is cleared for a value at least, since all items are looked at for it.
const WINDOW_PART: u64 = 64;

impl Owner {
    /// Gives back what is above a bound that was lowered, and has the coldest items go for it.
    pub(super) fn trim(&mut self) {
        let Some(footprint) = self.room.bound.footprint else {
            return;
        };
        let cap = footprint.region_cap(self.table_bytes());
        let mut looked_at = 0;
        for _ in 0..TRIMS_MAX {
            let touched = self.region.touched_bytes();
            if touched <= cap {
                self.room.is_above = false;
                return;
            }
            if self.give_chunk_back() {
                continue;
            }
            if self.evicts && self.used_bytes() > cap {
                self.make_room(CHUNK_BYTES);
                continue;
            }
            looked_at += CHUNKS_LOOKED_AT;
            if looked_at * CHUNK_BYTES >= self.room.reached {
                if self.evicts {
                    self.vacate((touched - cap).div_ceil(CHUNK_BYTES));
                }
                return;
            }
        }
    }

    /// Gives the emptiest chunks back, so many of them, though items have to go for it.
    fn vacate(&mut self, count: u64) {
        let chunks = self.room.reached.div_ceil(CHUNK_BYTES);
        let chunk_of = |address: u64| usize::try_from(address / CHUNK_BYTES).expect("of a region");
        let mut used = vec![0; chunk_of(chunks * CHUNK_BYTES)];
        for piece in self.replica.allocator().pieces() {
            let (mut from, end) = (piece.address, piece.address + piece.bytes);
            while !piece.is_free && from < end && from < self.room.reached {
                let to = end.min((from / CHUNK_BYTES + 1) * CHUNK_BYTES);
                used[chunk_of(from)] += to - from;
                from = to;
            }
        }
        let addresses = (0..chunks).map(|chunk| chunk * CHUNK_BYTES);
        let touched = addresses.filter(|address| self.region.is_touched(*address, 1));
        let mut emptiest: Vec<u64> = touched.collect();
        emptiest.sort_unstable_by_key(|address| used[chunk_of(*address)]);
        emptiest.truncate(CHUNKS_VACATED_MAX.min(usize::try_from(count).unwrap_or(usize::MAX)));
        let mut is_left = vec![false; used.len()];
        emptiest
            .iter()
            .for_each(|address| is_left[chunk_of(*address)] = true);
        self.clear(|space| {
            let (first, last) = (chunk_of(space.start), chunk_of(space.end - 1));
            (first..=last).any(|chunk| is_left.get(chunk) == Some(&true))
        });
        for address in emptiest {
            if self.replica.allocator().is_free(address, CHUNK_BYTES) {
                self.region.release(address, CHUNK_BYTES);
            }
        }
    }

    /// Has the items go that lie where `is_cleared`; says what they had. Those that have just been written stay.
    fn clear(&mut self, is_cleared: impl Fn(&Range<u64>) -> bool) -> u64 {
        let table = self.replica.table();
        let slots = table.slots_of(|entry| is_cleared(&space_of(entry)));
        slots.into_iter().filter_map(|slot| self.let_go(slot)).sum()
    }

    /// Has all go that lies where a value would have a place: next to a long free piece.
    pub(super) fn clear_window(&mut self, bytes: u64) -> u64 {
        let (reach, cap) = match self.room.bound.footprint {
            Some(footprint) if self.room.is_alone => {
                let table = self.table_bytes() + self.table_step();
                (self.room.reached, footprint.region_cap(table))
            }
            _ => (self.limit(), u64::MAX),
        };
        let Some(last) = reach.checked_sub(bytes) else {
            return 0;
        };
        let room = cap.saturating_sub(self.region.touched_bytes());
        let length = usize::try_from(bytes).expect("it is shorter than its region");
        let mut starts = self.replica.allocator().longest_too_short(bytes);
        let start = starts.find_map(|address| {
            let start = address.min(last / ALIGN_BYTES * ALIGN_BYTES);
            let is_within = address < reach && self.region.lacking_bytes(start, length) <= room;
            is_within.then_some(start)
        });
        drop(starts);
        let Some(start) = start else {
            return 0;
        };
        let window = start..(start + bytes.max(reach / WINDOW_PART)).min(reach);
        self.clear(|space| space.start < window.end && window.start < space.end)
    }
}
