//! What checkpoints have of regions that were cut off.

use std::collections::BTreeMap;

/// Copies in checkpoints of bytes that are gone with the region's earlier life: it was cut off, and is
/// empty if it comes again.
#[derive(Debug, Default)]
pub(super) struct Outdated {
    /// When each region was copied last, in milliseconds since 1970: its newest bytes in any checkpoint.
    pub copied: BTreeMap<u32, u64>,
    /// Copies of a region up to this time are of bytes that were cut off.
    pub until: BTreeMap<u32, u64>,
    /// A checkpoint of this time or an earlier one may have any region: it was not read yet, or could not be.
    pub unread_until: Option<u64>,
}

impl Outdated {
    pub fn recovered(until: BTreeMap<u32, u64>) -> Self {
        Self {
            until,
            ..Self::default()
        }
    }

    pub fn has(&self, region: u32, taken_ms: u64) -> bool {
        self.until
            .get(&region)
            .is_some_and(|&until| taken_ms <= until)
    }

    pub fn note_copied(&mut self, region: u32, taken_ms: u64) {
        let newest = self.copied.entry(region).or_default();
        *newest = taken_ms.max(*newest);
    }
}
