//! Room for values: what has ended goes, and what was not read for longest makes room for others.
//!
//! Items go by operations like any other, so the space is there once these are committed; until
//! then a Put waits. Only the owner chooses. Deviation: \[cocytus16\] does not evict.

use super::operation::Effect;
use super::owner::{Owner, Refusal};
use super::replica::space_of;
use crate::memory::table::{Entry, key_hash};

/// Room that is kept at most, so that a request seldom waits for items to go.
const RESERVE_BYTES_MAX: u64 = 4 << 20;
/// How often a part of the table is searched for items that have ended, and how large a part.
const SWEEP_NS: u64 = 10_000_000;
const SWEEP_STRETCHES: usize = 8;
/// Most items that make room for one.
const EVICTIONS_MAX: usize = 64;

/// The search for items that have ended.
#[derive(Debug)]
pub(super) struct Sweep {
    /// There may be some, now or later.
    pub(super) is_needed: bool,
    /// This time around an item was seen that ends.
    has_mortal: bool,
    /// Where it goes on, in hashes.
    to: u64,
    /// When it last went on, in nanoseconds.
    last: u64,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            is_needed: true,
            has_mortal: false,
            to: 0,
            last: 0,
        }
    }
}

impl Owner {
    /// Removes some items that have expired or been flushed: a part of the table at a time, and only while
    /// there are items that end. To be called often.
    pub fn sweep(&mut self, now: u64) {
        let is_due = now.saturating_sub(self.sweep.last) >= SWEEP_NS;
        if is_due && self.sweep.is_needed && self.check_open().is_ok() {
            self.sweep.last = now;
            self.sweep_some();
        }
    }

    /// Removes what is dead in some stretches of the table, and says whether there was something.
    fn sweep_some(&mut self) -> bool {
        let mut has_found = false;
        for _ in 0..SWEEP_STRETCHES {
            let stretch = self.replica.table().stretch(self.sweep.to);
            let mut dead = Vec::new();
            for (hash, key, entry) in stretch.items {
                self.sweep.has_mortal |= entry.expiry != 0;
                let is_dead = !self.replica.is_live(&entry);
                if is_dead && self.pending_on(hash, key).is_none() {
                    dead.push((hash, key.to_vec(), entry));
                }
            }
            let next = stretch.next;
            has_found |= !dead.is_empty();
            for (hash, key, entry) in &dead {
                self.free_by_removal(*hash, key, entry);
            }
            self.sweep.to = next.unwrap_or(0);
            if next.is_none() {
                // Once around: where nothing can end any more, nothing is looked for.
                self.sweep.is_needed = std::mem::take(&mut self.sweep.has_mortal) || has_found;
                break;
            }
        }
        has_found
    }

    /// Removes an item for its space.
    fn free_by_removal(&mut self, hash: u64, key: &[u8], entry: &Entry) -> u64 {
        let space = space_of(entry);
        let bytes = space.end - space.start;
        self.push(hash, key, Effect::Remove, None);
        if let Some(pending) = self.pending.back_mut() {
            pending.frees = bytes;
            self.freeing_bytes += bytes;
        }
        bytes
    }

    /// Takes space whose units are all here.
    pub(super) fn place(&mut self, bytes: u64) -> Result<u64, Refusal> {
        loop {
            if let Some(address) = self.replica.allocator_mut().allocate(bytes) {
                let entry = Entry {
                    address,
                    value_bytes: u32::try_from(bytes).expect("it was one"),
                    ..Entry::default()
                };
                return self
                    .check_present(&entry)
                    .map(|()| address)
                    .inspect_err(|_| {
                        let freed = self.replica.allocator_mut().free(address, bytes);
                        freed.expect("it was just taken");
                    });
            }
            if bytes > self.replica.allocator().region_bytes() {
                return Err(Refusal::NoSpace);
            }
            if !self.evicts {
                let is_freeing = self.freeing_bytes > 0 || self.sweep_some();
                match is_freeing {
                    true if self.pending.is_empty() => continue,
                    true => return Err(Refusal::Busy),
                    false => return Err(Refusal::NoSpace),
                }
            }
            let is_freeing = self.freeing_bytes >= bytes || self.make_room(bytes);
            if !self.pending.is_empty() {
                return Err(Refusal::Busy);
            }
            if !is_freeing {
                return Err(Refusal::NoSpace);
            }
        }
    }

    /// Lets items go ahead of need, so that what comes next does not wait for it.
    pub(super) fn keep_room(&mut self) {
        let allocator = self.replica.allocator();
        let reserve = (allocator.region_bytes() / 64).min(RESERVE_BYTES_MAX);
        let room = allocator.free_bytes() + self.freeing_bytes;
        if self.evicts && !self.backups.is_empty() && room < reserve {
            self.make_room(reserve - room);
        }
    }

    /// Proposes that items go whose space is as much as `bytes`. False if there are none.
    fn make_room(&mut self, bytes: u64) -> bool {
        let mut freed = 0;
        for _ in 0..EVICTIONS_MAX {
            if freed >= bytes {
                break;
            }
            let Some(slot) = self.replica.table_mut().choose_coldest() else {
                break;
            };
            let entry = self.replica.table().entry(slot);
            let key = self.replica.table().key(slot).to_vec();
            let hash = key_hash(&key);
            if self.pending_on(hash, &key).is_some() {
                // It has just been written.
                self.replica.table_mut().keep(slot);
                continue;
            }
            freed += self.free_by_removal(hash, &key, &entry);
            self.evictions += 1;
        }
        freed > 0
    }
}
