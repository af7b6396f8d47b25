//! What all clients together have seen of a partition that must not change: time, and cas numbers.

use std::collections::BTreeMap;

use cenote_kv::memory::table::Entry;

/// Of a whole simulation.
#[derive(Default)]
pub(super) struct Observations {
    /// The latest time of each partition.
    clocks: BTreeMap<usize, u32>,
    /// What each cas number of a partition was given to: a key, its value, its expiry.
    given: BTreeMap<(usize, u64), (u64, u32, u32)>,
}

impl Observations {
    /// A read was answered at this time of the partition's.
    ///
    /// # Errors
    /// What cannot be.
    pub(super) fn note_time(&mut self, partition: usize, now: u32) -> Result<(), String> {
        let latest = self.clocks.entry(partition).or_default();
        if now < *latest {
            return Err(format!(
                "the time of partition {partition} went from {latest} back to {now}"
            ));
        }
        *latest = now;
        Ok(())
    }

    /// A partition starts from scratch, at no time yet.
    pub(super) fn forget_time(&mut self, partition: usize) {
        self.clocks.remove(&partition);
    }

    /// An item that was committed was seen.
    ///
    /// # Errors
    /// What cannot be.
    pub(super) fn note_item(
        &mut self,
        partition: usize,
        key: u64,
        entry: &Entry,
    ) -> Result<(), String> {
        let seen = (key, entry.client_flags, entry.expiry);
        let first = *self.given.entry((partition, entry.cas)).or_insert(seen);
        if first == seen {
            Ok(())
        } else {
            Err(format!(
                "cas {:#x} was given to {first:?} and to {seen:?}",
                entry.cas
            ))
        }
    }
}
