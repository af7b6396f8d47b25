//! Which entry goes next when memory runs out: S3-FIFO over the entries themselves.
//!
//! Newcomers enter a small queue of a tenth of the bytes. Those that were used at least twice when they reach
//! its end go on to the main queue, the others out; who comes back soon after (the [`Ghost`] of its segment
//! knows) enters the main queue at once. At the end of the main queue an entry that was used goes round again.
//! So a scan passes through the small queue and leaves the main one alone, and a read moves nothing: it
//! counts in the entry's own head.
//!
//! Reads happen at the owner only. At a replica everything that was not written repeatedly is in the small
//! queue, in order of insertion, and a new owner begins with that.
//! Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction. SOSP 2023.
//!
//! [`Ghost`]: super::ghost::Ghost

use super::{
    record::{EvictionQueue, Records, USES_MAX},
    slabs::{NONE, Slot},
};
use crate::memory::allocator::piece_bytes;

/// The small queue's part of all bytes is 1 / this.
const SMALL_PART: u64 = 10;

/// Uses that let a newcomer stay.
const STAY_USES: u8 = 2;

/// Entries that one choice may pass over: after that the next goes, used or not. A choice takes some
/// microseconds at worst, and reads paid for each entry passed over.
const PASSED_MAX: u32 = 64;

/// The order of eviction.
pub(super) struct Queues {
    small: Queue,
    main: Queue,
}

/// A list from its newest to its oldest entry.
struct Queue {
    place: EvictionQueue,
    newest: u32,
    oldest: u32,
    /// Entries' slots and the space of their values.
    bytes: u64,
}

impl Queues {
    pub(super) fn new() -> Self {
        Self {
            small: Queue::new(EvictionQueue::Small),
            main: Queue::new(EvictionQueue::Main),
        }
    }

    /// Bytes of the entries in the queues and of their values.
    pub(super) fn bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    /// An entry is new; `place` says where it begins.
    pub(super) fn enter(&mut self, records: &mut Records, slot: Slot, place: EvictionQueue) {
        match place {
            EvictionQueue::Small => self.small.push(records, slot),
            EvictionQueue::Main => self.main.push(records, slot),
            EvictionQueue::Nowhere => {}
        }
    }

    /// An entry goes, or is chosen to go.
    pub(super) fn leave(&mut self, records: &mut Records, slot: Slot) {
        if let Some(queue) = self.queue_of(records, slot) {
            queue.unlink(records, slot);
        }
    }

    /// An entry's value gets another length. Called before the entry has it.
    pub(super) fn resize(&mut self, records: &Records, slot: Slot, value_bytes: u32) {
        let (old, new) = (cost(records, slot), cost_of(records, slot, value_bytes));
        if let Some(queue) = self.queue_of(records, slot) {
            queue.bytes = queue.bytes - old + new;
        }
    }

    /// Chooses the next to go, and takes it out of its queue. Also says whether it was a newcomer, which
    /// the ghost is to remember.
    pub(super) fn choose(&mut self, records: &mut Records) -> Option<(Slot, EvictionQueue)> {
        for passed in 0.. {
            let is_small_full = self.small.bytes * SMALL_PART >= self.bytes();
            let from_small =
                self.small.oldest != NONE && (is_small_full || self.main.oldest == NONE);
            let queue = if from_small {
                &mut self.small
            } else {
                &mut self.main
            };
            if queue.oldest == NONE {
                return None;
            }
            let slot = Slot(queue.oldest);
            let uses = records.uses(slot);
            queue.unlink(records, slot);
            if passed < PASSED_MAX && from_small && uses >= STAY_USES {
                records.set_uses(slot, 0);
                self.main.push(records, slot);
            } else if passed < PASSED_MAX && !from_small && uses > 0 {
                records.set_uses(slot, uses - 1);
                self.main.push(records, slot);
            } else {
                return Some((slot, queue.place));
            }
        }
        None
    }

    fn queue_of(&mut self, records: &Records, slot: Slot) -> Option<&mut Queue> {
        match records.place(slot) {
            EvictionQueue::Nowhere => None,
            EvictionQueue::Small => Some(&mut self.small),
            EvictionQueue::Main => Some(&mut self.main),
        }
    }
}

/// An entry was used.
pub(super) fn count_use(records: &mut Records, slot: Slot) {
    let uses = records.uses(slot);
    if uses < USES_MAX {
        records.set_uses(slot, uses + 1);
    }
}

impl Queue {
    fn new(place: EvictionQueue) -> Self {
        Self {
            place,
            newest: NONE,
            oldest: NONE,
            bytes: 0,
        }
    }

    fn push(&mut self, records: &mut Records, slot: Slot) {
        records.set_place(slot, self.place);
        records.set_newer(slot, NONE);
        records.set_older(slot, self.newest);
        match self.newest {
            NONE => self.oldest = slot.0,
            newest => records.set_newer(Slot(newest), slot.0),
        }
        self.newest = slot.0;
        self.bytes += cost(records, slot);
    }

    fn unlink(&mut self, records: &mut Records, slot: Slot) {
        let (newer, older) = (records.newer(slot), records.older(slot));
        match newer {
            NONE => self.newest = older,
            newer => records.set_older(Slot(newer), older),
        }
        match older {
            NONE => self.oldest = newer,
            older => records.set_newer(Slot(older), newer),
        }
        records.set_place(slot, EvictionQueue::Nowhere);
        self.bytes -= cost(records, slot);
    }
}

/// Bytes that an entry takes from the table and the region.
pub(super) fn cost(records: &Records, slot: Slot) -> u64 {
    cost_of(records, slot, records.value_bytes(slot))
}

fn cost_of(records: &Records, slot: Slot, value_bytes: u32) -> u64 {
    let value = piece_bytes(u64::from(value_bytes)).expect("32 bits are far from the end");
    value + Records::slot_bytes(records.key(slot).len()) as u64
}
