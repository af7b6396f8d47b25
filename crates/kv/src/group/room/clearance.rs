//! Parts of the region that are cleared: chunks to be given back, and a place for a value that is longer than
//! every free piece. Nothing tells what lies at an address, so all items are looked at for it.
//!
//! Where there are many items they are looked at some at a time, as [`Owner::sweep`] is called. Until the value
//! has its place, no shorter one gets any of what is cleared.

use std::ops::Range;

use super::CHUNKS_LOOKED_AT;
use crate::group::owner::Owner;
use crate::group::replica::{Xid, space_of};
use crate::memory::allocator::{ALIGN_BYTES, NOTHING};
use crate::memory::region::CHUNK_BYTES;
use crate::memory::table::Entry;

/// Steps in a row by which memory above a lowered bound is given back.
const TRIMS_MAX: usize = 256;
/// Chunks that items have to leave at a time.
const CHUNKS_VACATED_MAX: usize = 16;
/// The part of the region that is cleared for a value at least, since all items are looked at for it.
const WINDOW_PART: u64 = 64;
/// Items that are looked at in one go: a group would miss a member that looks at more. Of more, so many at a
/// time, which takes a part of what is between two sweeps.
const LOOKED_AT_MAX: usize = 1 << 20;
const LOOKED_AT_STEP: usize = 1 << 15;
/// Sweeps for which a cleared place is kept for a value that does not come: ten seconds and more.
const KEPT_SWEEPS: u32 = 1000;

/// A part of the region that is being cleared for a value, or was.
#[derive(Debug)]
pub(super) struct Clearing {
    window: Range<u64>,
    /// How long the value is.
    wanted: u64,
    /// The hash from which on items are still to be looked at; none: the last one that had to go goes with
    /// this operation.
    next: Result<u64, Xid>,
    /// Sweeps since then.
    kept_sweeps: u32,
}

/// What comes of clearing a place for a value.
pub(super) enum Cleared {
    /// Items go.
    Freeing,
    /// It takes a while.
    Later,
    /// Nothing.
    Nothing,
}

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
        let is_cleared = |entry: &Entry| is_cleared(&space_of(entry));
        let (slots, _) = table.slots_of(0, usize::MAX, is_cleared);
        slots.into_iter().filter_map(|slot| self.let_go(slot)).sum()
    }

    /// Has all go that lies where a value would have a place: next to a long free piece. Of many items that
    /// is begun, unless it is under way.
    pub(super) fn clear_window(&mut self, bytes: u64) -> Cleared {
        if let Some(clearing) = &self.room.clearing {
            match clearing.next {
                Err(last) if last <= self.committed_xid() && clearing.wanted == bytes => {}
                _ => return Cleared::Later,
            }
            // Something is in the way still that had just been written then.
            self.room.clearing = None;
            return Cleared::Nothing;
        }
        let Some(window) = self.window_for(bytes) else {
            return Cleared::Nothing;
        };
        if self.replica.table().len() > LOOKED_AT_MAX {
            self.room.clearing = Some(Clearing {
                window,
                wanted: bytes,
                next: Ok(0),
                kept_sweeps: 0,
            });
            return Cleared::Later;
        }
        match self.clear(|space| meets(space, &window)) {
            0 => Cleared::Nothing,
            _ => Cleared::Freeing,
        }
    }

    fn window_for(&self, bytes: u64) -> Option<Range<u64>> {
        let (reach, cap) = match self.room.bound.footprint {
            Some(footprint) if self.room.is_alone => {
                let table = self.table_bytes() + self.table_step();
                (self.room.reached, footprint.region_cap(table))
            }
            _ => (self.limit(), u64::MAX),
        };
        let last = reach.checked_sub(bytes)?;
        let room = cap.saturating_sub(self.region.touched_bytes());
        let length = usize::try_from(bytes).expect("it is shorter than its region");
        let mut starts = self.replica.allocator().longest_too_short(bytes);
        let start = starts.find_map(|address| {
            let start = address.min(last / ALIGN_BYTES * ALIGN_BYTES);
            let is_within = address < reach && self.region.lacking_bytes(start, length) <= room;
            is_within.then_some(start)
        })?;
        Some(start..(start + bytes.max(reach / WINDOW_PART)).min(reach))
    }

    /// Goes on with a window that is being cleared.
    pub(super) fn clear_some(&mut self) {
        let Some(clearing) = &mut self.room.clearing else {
            return;
        };
        let Ok(from) = clearing.next else {
            clearing.kept_sweeps += 1;
            if clearing.kept_sweeps > KEPT_SWEEPS {
                self.room.clearing = None;
            }
            return;
        };
        let window = clearing.window.clone();
        let is_cleared = |entry: &Entry| meets(&space_of(entry), &window);
        let table = self.replica.table();
        let (slots, next) = table.slots_of(from, LOOKED_AT_STEP, is_cleared);
        for slot in slots {
            self.let_go(slot);
        }
        let last = self.last_xid();
        if let Some(clearing) = &mut self.room.clearing {
            clearing.next = next.ok_or(last);
        }
    }

    /// What a value of so many bytes gets nothing of: it is being cleared for a longer one.
    pub(super) fn kept_from(&self, bytes: u64) -> Range<u64> {
        let clearing = self.room.clearing.as_ref();
        let clearing = clearing.filter(|clearing| bytes < clearing.wanted);
        clearing.map_or(NOTHING, |clearing| clearing.window.clone())
    }

    /// A value of so many bytes has its place at an address.
    pub(super) fn note_placed(&mut self, address: u64, bytes: u64) {
        let place = address..address + bytes;
        self.room
            .clearing
            .take_if(|clearing| bytes == clearing.wanted || meets(&place, &clearing.window));
    }
}

fn meets(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
