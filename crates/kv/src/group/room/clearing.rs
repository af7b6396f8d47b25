//! Parts of the region that are cleared: a place for a value that is longer than every free piece. Nothing tells what lies at an address, so all items are looked at for it.

use std::ops::Range;

use crate::group::owner::Owner;
use crate::group::replica::space_of;
use crate::memory::allocator::ALIGN_BYTES;

/// The part of the region that is cleared for a value at least, since all items are looked at for it.
const WINDOW_PART: u64 = 64;

impl Owner {
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
