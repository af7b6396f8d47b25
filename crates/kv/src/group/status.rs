//! What a member has to tell of itself, and the few things that whoever drives it needs besides.

use std::sync::Arc;

use super::exchange::Taking;
use super::member::Member;
use super::owner::Owner;
use super::replica::Replica;
use crate::memory::key_hash::KeyHasher;
use crate::memory::region::Region;

/// Bytes of a member, by what they are for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Memory {
    /// Values of partitions that it owns, or is about to.
    pub values: u64,
    /// Parity, or copies of values.
    pub parity: u64,
    /// Keys and facts of items, its own and those that it backs up.
    pub tables: u64,
}

impl Owner {
    /// A partition that is not here: it has nothing and takes nothing.
    pub fn closed(hasher: KeyHasher) -> Self {
        Self::new(0, Replica::new(hasher, 0), Arc::new(Region::new(0)), None)
    }
}

impl Member {
    /// The partitions that it owns.
    pub fn owned_partitions(&self) -> impl Iterator<Item = (usize, &Owner)> {
        let owned = self.owners.iter();
        owned.map(|(index, owned)| (*index, &owned.owner))
    }

    /// The same, for what an owner has beside what its backups know.
    pub fn owned_partitions_mut(&mut self) -> impl Iterator<Item = (usize, &mut Owner)> {
        let owned = self.owners.iter_mut();
        owned.map(|(index, owned)| (*index, &mut owned.owner))
    }

    /// The term of a partition that it owns: see [`Owner::term`].
    pub fn term(&self, partition: usize) -> Option<u32> {
        Some(self.owners.get(&partition)?.owner.term())
    }

    /// What the system says the time is, seconds since 1970, at a moment of a clock that never jumps:
    /// partitions that it owns [follow](Owner::follow).
    pub fn tick(&mut self, said: u32, now_ns: u64) {
        // Who opens now takes the time first: what is stored before would end by second 0.
        self.open_owners(now_ns);
        for owned in self.owners.values_mut() {
            owned.owner.follow(said, now_ns);
        }
    }

    /// What its memory is used for.
    pub fn memory(&self) -> Memory {
        let mut memory = Memory::default();
        for (_, owner) in self.owned_partitions() {
            memory.tables += owner.replica().table().resident_bytes();
            let is_shared = self.parity.as_ref().is_some_and(|parity| {
                let mut regions = parity.regions.iter();
                regions.any(|region| Arc::ptr_eq(region, &owner.region))
            });
            if !is_shared {
                memory.values += owner.region.touched_bytes();
            }
        }
        if let Some(arrival) = &self.arriving {
            let region = arrival.region.as_ref();
            memory.values += region.map_or(0, |region| region.touched_bytes());
            let replica = arrival.stream.replica.as_ref();
            memory.tables += replica.map_or(0, |replica| replica.table().resident_bytes());
        }
        if let Some(parity) = &self.parity {
            let regions = parity.regions.iter();
            memory.parity += regions.map(|region| region.touched_bytes()).sum::<u64>();
            memory.values += parity.taking.as_ref().map_or(0, Taking::touched_bytes);
            for stream in &parity.streams {
                let replica = stream.replica.as_ref();
                memory.tables += replica.map_or(0, |replica| replica.table().resident_bytes());
            }
        }
        memory
    }
}
