//! Keys, facts and space of a partition, as every operation up to one leaves them.
//!
//! The owner and each parity apply the same operations in the same order, so their replicas are
//! equal; only values are elsewhere. Invariant C2: operations are applied without gaps. A replica
//! that is being told what there is ([`Replica::joining`]) has the keys whose hashes are below its
//! cursor and passes over operations on others: what comes of them follows with those keys.

use std::ops::Range;

use super::operation::{Effect, Operation};
use super::owner::comes_before;
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::allocator::{Allocator, RangeError, piece_bytes};
use crate::memory::key_hash::KeyHasher;
use crate::memory::table::{Entry, Slot, Table};

/// Number of an operation in its partition: 1, 2, 3 ...
pub type Xid = u64;

/// One partition's keys.
pub struct Replica {
    table: Table,
    allocator: Allocator,
    applied: Xid,
    /// Seconds since 1970.
    now: u32,
    /// A flush that is still to come.
    flush_at: Option<u32>,
    /// Items whose cas numbers [come before](comes_before) this one are gone.
    flushed_below: u64,
    /// Keys with this hash or a greater one are not here yet.
    cursor: Option<u64>,
}

/// What does not depend on keys, for a replica that begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Basis {
    /// Seconds since 1970.
    pub now: u32,
    /// A flush that is still to come; 0: none.
    pub flush_at: u32,
    /// Items of earlier operations than this cas number's are gone.
    pub flushed_below: u64,
}

/// An operation that does not fit what its replica has: the two sides have parted, and this one is of
/// no more use.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Diverged {
    /// Not the next one.
    #[error("operation {xid} came after {applied}")]
    Gap {
        /// Its number.
        xid: Xid,
        /// The last one applied.
        applied: Xid,
    },
    /// Its place is not free, or what it frees is.
    #[error("operation {xid} at {address:#x}: {source}")]
    GroupSlot {
        /// Its number.
        xid: Xid,
        /// The place.
        address: u64,
        /// What is the matter.
        source: RangeError,
    },
    /// It goes beyond the address space.
    #[error("operation {xid} is outside of the address space")]
    Outside {
        /// Its number.
        xid: Xid,
    },
    /// A partition was taken over of which not all keys are here.
    #[error("a partition was taken over before all of its keys had come")]
    Incomplete,
    /// Its item is not there.
    #[error("operation {xid} alters an item that is not there")]
    Missing {
        /// Its number.
        xid: Xid,
    },
}

impl Replica {
    /// A partition without items.
    pub fn new(hasher: KeyHasher, region_bytes: u64) -> Self {
        Self {
            table: Table::new(hasher),
            allocator: Allocator::new(region_bytes),
            applied: 0,
            now: 0,
            flush_at: None,
            flushed_below: 0,
            cursor: None,
        }
    }

    /// One that has nothing, and is told what there is.
    pub fn joining(hasher: KeyHasher, region_bytes: u64) -> Self {
        Self {
            cursor: Some(0),
            ..Self::new(hasher, region_bytes)
        }
    }

    /// The last operation that was applied.
    pub fn applied(&self) -> Xid {
        self.applied
    }

    /// Where the keys begin that are not here yet.
    pub fn cursor(&self) -> Option<u64> {
        self.cursor
    }

    /// The partition's time, seconds since 1970.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// The keys.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The keys; for uses, which are not replicated, and for the order of eviction.
    pub fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    /// The space of values.
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// The space of values, where the owner takes what its next operation is to carry.
    pub(super) fn allocator_mut(&mut self) -> &mut Allocator {
        &mut self.allocator
    }

    /// Whether an item is still there, by the partition's time and its flushes.
    pub fn is_live(&self, entry: &Entry) -> bool {
        let is_expired = entry.expiry != 0 && entry.expiry <= self.now;
        !is_expired && !comes_before(entry.cas, self.flushed_below)
    }

    /// When a flush is still to come.
    pub fn flush_at(&self) -> Option<u32> {
        self.flush_at
    }

    /// A live item, as of what has been applied.
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<(Slot, Entry)> {
        let slot = self.table.find(hash, key)?;
        let entry = self.table.entry(slot);
        self.is_live(&entry).then_some((slot, entry))
    }

    /// Applies the next operation. `is_placed` says that its space is taken already, as it is at
    /// the owner.
    ///
    /// # Errors
    /// [`Diverged`].
    pub fn apply(&mut self, xid: Xid, op: &Operation, is_placed: bool) -> Result<(), Diverged> {
        let hash = self.table.hash_of(op.key());
        self.apply_effect(xid, hash, op.key(), op.effect(), is_placed)
    }

    /// As [`apply`](Self::apply), of an effect on a key with this hash.
    ///
    /// # Errors
    /// [`Diverged`].
    pub(super) fn apply_effect(
        &mut self,
        xid: Xid,
        hash: u64,
        key: &[u8],
        effect: Effect,
        is_placed: bool,
    ) -> Result<(), Diverged> {
        if xid != self.applied + 1 {
            let applied = self.applied;
            return Err(Diverged::Gap { xid, applied });
        }
        self.applied = xid;
        let is_here = self.cursor.is_none_or(|cursor| hash < cursor);
        match effect {
            Effect::Tick { now, cas } => {
                self.now = self.now.max(now);
                if self.flush_at.is_some_and(|at| at <= self.now) {
                    self.flush_at = None;
                    self.flushed_below = cas;
                }
            }
            Effect::Flush { at, cas } if at <= self.now => {
                self.flush_at = None;
                self.flushed_below = cas;
            }
            Effect::Flush { at, .. } => self.flush_at = Some(at),
            _ if !is_here => {}
            Effect::Put(entry) => self.put(xid, hash, key, entry, is_placed)?,
            Effect::Alter { expiry, marks, cas } => {
                let slot = self.table.find(hash, key);
                let slot = slot.ok_or(Diverged::Missing { xid })?;
                let entry = Entry {
                    expiry,
                    marks: marks.bits(),
                    cas,
                    ..self.table.entry(slot)
                };
                self.table.set(slot, &entry);
            }
            Effect::Remove => {
                if let Some(old) = self.table.remove(hash, key) {
                    self.free(xid, &old)?;
                }
            }
        }
        Ok(())
    }

    /// Applies an operation that stores an item in the place of its last value.
    pub(super) fn overwrite(&mut self, xid: Xid, slot: Slot, mut entry: Entry) {
        self.applied = xid;
        entry.last_use = self.now;
        self.table.overwrite(slot, &entry);
    }

    /// The mistake [`InjectedFault::OldAtIssue`]: frees what was found when the operation was proposed.
    pub(super) fn apply_freeing(
        &mut self,
        xid: Xid,
        op: &Operation,
        old: Option<Entry>,
    ) -> Result<(), Diverged> {
        let hash = self.table.hash_of(op.key());
        let found = self.table.find(hash, op.key());
        let found = found.map(|slot| self.table.entry(slot));
        self.apply(xid, op, true)?;
        // What is freed in its place stays taken.
        let Some(found) = found.filter(|found| old.as_ref() != Some(found)) else {
            return Ok(());
        };
        let carved = self
            .allocator
            .carve(found.address, u64::from(found.value_bytes));
        if carved.is_err() {
            return Ok(());
        }
        old.map_or(Ok(()), |old| self.free(xid, &old))
    }

    fn put(
        &mut self,
        xid: Xid,
        hash: u64,
        key: &[u8],
        mut entry: Entry,
        is_placed: bool,
    ) -> Result<(), Diverged> {
        if !is_placed {
            let bytes = u64::from(entry.value_bytes);
            if is_injected(InjectedFault::ChooseAtApply) {
                entry.address = self.allocator.allocate(bytes).unwrap_or(entry.address);
            } else {
                let carved = self.allocator.carve(entry.address, bytes);
                carved.map_err(|source| Diverged::GroupSlot {
                    xid,
                    address: entry.address,
                    source,
                })?;
            }
        }
        entry.last_use = self.now;
        let (_, old) = self.table.put(hash, key, &entry);
        old.map_or(Ok(()), |old| self.free(xid, &old))
    }

    fn free(&mut self, xid: Xid, old: &Entry) -> Result<(), Diverged> {
        let freed = self.allocator.free(old.address, u64::from(old.value_bytes));
        freed.map_err(|source| Diverged::GroupSlot {
            xid,
            address: old.address,
            source,
        })
    }

    /// What does not depend on keys.
    pub fn basis(&self) -> Basis {
        Basis {
            now: self.now,
            flush_at: self.flush_at.unwrap_or(0),
            flushed_below: self.flushed_below,
        }
    }

    /// Takes the keys from the cursor up to `end`, as they were after operation `at`: a part of what one
    /// moment had, so no two have the same space.
    ///
    /// # Errors
    /// [`Diverged`]: places that overlap.
    pub fn take(
        &mut self,
        at: Xid,
        basis: Basis,
        entries: &[(&[u8], Entry)],
        end: Option<u64>,
    ) -> Result<(), Diverged> {
        self.applied = self.applied.max(at);
        self.now = self.now.max(basis.now);
        self.flush_at = Some(basis.flush_at).filter(|at| *at != 0);
        if comes_before(self.flushed_below, basis.flushed_below) {
            self.flushed_below = basis.flushed_below;
        }
        for (key, entry) in entries {
            self.put(at, self.table.hash_of(key), key, *entry, false)?;
        }
        self.cursor = end;
        Ok(())
    }
}

/// The range of an item's space.
pub fn space_of(entry: &Entry) -> Range<u64> {
    let bytes = piece_bytes(u64::from(entry.value_bytes)).unwrap_or(0);
    entry.address..entry.address + bytes
}

#[cfg(test)]
mod tests {
    use super::super::owner::cas_of;
    use super::*;

    #[test]
    fn a_replica_that_joins_takes_the_later_flush_whatever_the_views() {
        const REGION_BYTES: u64 = 1 << 16;
        let basis = |view, xid| Basis {
            now: 1,
            flush_at: 0,
            flushed_below: cas_of(view, xid),
        };
        let mut replica = Replica::joining(KeyHasher::new([7; 16]), REGION_BYTES);
        // The views' part of cas numbers begins anew in between.
        for (at, basis) in [
            (5, basis(u32::MAX, 5)),
            (9, basis(0, 9)),
            (9, basis(u32::MAX, 5)),
        ] {
            replica.take(at, basis, &[], Some(0)).unwrap();
        }
        let is_live = |view, xid| {
            replica.is_live(&Entry {
                cas: cas_of(view, xid),
                ..Entry::default()
            })
        };
        assert!(!is_live(u32::MAX, 8) && !is_live(0, 8));
        assert!(is_live(0, 9) && is_live(0, 10));
    }
}
