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
/// The part of the region that is cleared for a value at least, since all items are looked at for it. As much is
/// given back at a time where that takes many steps.
const WINDOW_PART: u64 = 64;
/// Places that are looked at for chunks side by side of which much is free. Arbitrary, two at least.
const PLACES_LOOKED_AT: usize = 16;
/// Sweeps between two times that items leave some chunks by steps: long values get their places then.
const PAUSE_SWEEPS: u32 = 16;
/// Between two looks at all chunks, in nanoseconds, where each is in use and nothing makes room:
/// clients may remove items meanwhile. A worker is awake once in a second anyway.
const REST_NS: u64 = 1_000_000_000;
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

/// How far memory above a lowered bound is given back.
#[derive(Debug, Default)]
pub(super) struct Trimming {
    /// Chunks that were looked at since one was found that nobody used.
    looked_at: u64,
    /// A part of the region that items leave by steps, and the hash from which on they are still to be looked at.
    leaving: Option<(Range<u64>, u64)>,
    /// Sweeps until the next part is chosen.
    pause: u32,
    /// When all chunks are looked at again, in nanoseconds: they are in use, and nothing makes
    /// room.
    rests_until: Option<u64>,
}

impl Trimming {
    /// Whether there is nothing to do for now.
    pub(super) fn rests(&self) -> bool {
        self.rests_until.is_some()
    }
}

/// How much is done in one go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    trims: usize,
    items_max: usize,
    items_step: usize,
}

impl Default for Strides {
    fn default() -> Self {
        Self {
            trims: TRIMS_MAX,
            items_max: LOOKED_AT_MAX,
            items_step: LOOKED_AT_STEP,
        }
    }
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
    pub(super) fn trim(&mut self, now: u64) {
        let Some(footprint) = self.room.bound.footprint else {
            return;
        };
        let trimming = &mut self.room.trimming;
        if trimming.rests_until.is_some_and(|until| now < until) {
            return;
        }
        trimming.rests_until = None;
        if self.leave_some() {
            return;
        }
        let cap = footprint.region_cap(self.table_bytes());
        for _ in 0..self.room.strides.trims {
            let touched = self.region.touched_bytes();
            if touched <= cap {
                self.room.is_above = false;
                self.room.trimming = Trimming::default();
                return;
            }
            if self.give_chunk_back() {
                self.room.trimming.looked_at = 0;
                continue;
            }
            if self.evicts && self.used_bytes() > cap {
                self.make_room(CHUNK_BYTES);
                continue;
            }
            let trimming = &mut self.room.trimming;
            trimming.looked_at += CHUNKS_LOOKED_AT;
            if trimming.looked_at * CHUNK_BYTES >= self.room.reached {
                match self.evicts {
                    true => self.vacate((touched - cap).div_ceil(CHUNK_BYTES)),
                    false => {
                        trimming.looked_at = 0;
                        trimming.rests_until = Some(now + REST_NS);
                    }
                }
                return;
            }
        }
    }

    /// Gives the emptiest chunks back, so many of them, though items have to go for it. Where there are many
    /// items, that is begun.
    fn vacate(&mut self, count: u64) {
        if self.replica.table().len() > self.room.strides.items_max {
            return self.begin_to_leave(count);
        }
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

    /// Chooses chunks side by side for items to leave, so many at the most: where much is free, as far as a look
    /// at one of them tells.
    fn begin_to_leave(&mut self, count: u64) {
        let trimming = &mut self.room.trimming;
        if trimming.pause > 0 || self.room.clearing.is_some() {
            trimming.pause = trimming.pause.saturating_sub(1);
            return;
        }
        let chunks = self.room.reached.div_ceil(CHUNK_BYTES);
        let addresses = (0..chunks).map(|chunk| chunk * CHUNK_BYTES);
        let touched = addresses.filter(|address| self.region.is_touched(*address, 1));
        let touched: Vec<u64> = touched.collect();
        let part = touched.len().div_ceil(WINDOW_PART as usize);
        let wanted = usize::try_from(count).unwrap_or(usize::MAX);
        let length = part.max(CHUNKS_VACATED_MAX).min(wanted);
        let length = length.min(touched.len());
        if length == 0 {
            return;
        }
        let last = touched.len() - length;
        let starts = (0..PLACES_LOOKED_AT).map(|place| last * place / (PLACES_LOOKED_AT - 1));
        let allocator = self.replica.allocator();
        let free = |start: &usize| {
            let middle = touched[start + length / 2];
            allocator.free_bytes_of(&(middle..middle + CHUNK_BYTES))
        };
        let start = starts.max_by_key(free).unwrap_or(last);
        let window = touched[start]..touched[start + length - 1] + CHUNK_BYTES;
        self.room.trimming.leaving = Some((window, 0));
    }

    /// Has some more items leave the chunks that were chosen for it, and gives these back at the end; whether
    /// there were such.
    fn leave_some(&mut self) -> bool {
        let Some((window, from)) = self.room.trimming.leaving.take() else {
            return false;
        };
        let is_left = |entry: &Entry| meets(&space_of(entry), &window);
        let table = self.replica.table();
        let (slots, next) = table.slots_of(from, self.room.strides.items_step, is_left);
        for slot in slots {
            self.let_go(slot);
        }
        if let Some(next) = next {
            self.room.trimming.leaving = Some((window, next));
            return true;
        }
        for address in window.step_by(CHUNK_BYTES as usize) {
            if self.replica.allocator().is_free(address, CHUNK_BYTES) {
                self.region.release(address, CHUNK_BYTES);
            }
        }
        self.room.trimming.pause = PAUSE_SWEEPS;
        true
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
        // One part of the region at a time.
        if self.room.trimming.leaving.is_some() {
            return Cleared::Later;
        }
        let Some(window) = self.window_for(bytes) else {
            return Cleared::Nothing;
        };
        if self.replica.table().len() > self.room.strides.items_max {
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
        let (slots, next) = table.slots_of(from, self.room.strides.items_step, is_cleared);
        for slot in slots {
            self.let_go(slot);
        }
        let last = self.last_xid();
        if let Some(clearing) = &mut self.room.clearing {
            clearing.next = next.ok_or(last);
        }
    }

    /// What a value of so many bytes gets nothing of: it is being cleared for a longer one, or given back.
    pub(super) fn kept_from(&self, bytes: u64) -> Range<u64> {
        if let Some((window, _)) = &self.room.trimming.leaving {
            return window.clone();
        }
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

#[cfg(test)]
mod tests;
