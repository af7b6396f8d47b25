//! How many slabs are in which state, and how many of them a client may have.

use super::{Ledger, Slab};
use crate::control::SlabCounts;

impl Ledger {
    /// Slabs that clients were given.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Slabs that their clients gave back, be it by another request for the same place. Whatever
    /// was granted is lent still, was given back, or was taken.
    #[must_use]
    pub fn given_back(&self) -> u64 {
        self.given_back
    }

    /// Slabs by state.
    #[must_use]
    pub fn counts(&self) -> SlabCounts {
        let mut counts = SlabCounts::default();
        for slab in &self.slabs {
            *match slab {
                Slab::Free => &mut counts.free,
                Slab::Preparing => &mut counts.preparing,
                Slab::Prepared { .. } => &mut counts.prepared,
                Slab::Mapped(grant) if self.leases.is_orphaned(grant.client) => {
                    &mut counts.orphaned
                }
                Slab::Mapped(_) => &mut counts.mapped,
                Slab::Retired { .. } => &mut counts.retired,
            } += 1;
        }
        counts
    }

    /// Slabs that could still be lent without taking one from a client.
    #[must_use]
    pub fn slabs_free(&self) -> u32 {
        if self.draining.is_some() {
            return 0;
        }
        let counts = self.counts();
        let left = counts.available().saturating_sub(self.awaited());
        left.min(self.room.slabs_max.saturating_sub(self.claimed(&counts)))
    }

    /// Slabs that a client may ask for: those that are free, and orphans, which it would be given.
    #[must_use]
    pub fn slabs_lendable(&self) -> u32 {
        if self.draining.is_some() {
            return 0;
        }
        let counts = self.counts();
        let left = (counts.available() + counts.orphaned).saturating_sub(self.awaited());
        let claimed = self.claimed(&counts) - counts.orphaned;
        left.min(self.room.slabs_max.saturating_sub(claimed))
    }

    /// Requests that wait for a slab.
    #[must_use]
    pub fn awaited(&self) -> u32 {
        u32::try_from(self.waiting.len()).expect("bounded by the slabs")
    }

    /// Slabs that clients hold or are about to.
    pub(super) fn claimed(&self, counts: &SlabCounts) -> u32 {
        counts.mapped + counts.orphaned + self.awaited()
    }
}
