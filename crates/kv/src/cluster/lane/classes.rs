//! The items of a lane's partitions by their classes: see [`crate::memory::classes`].

use super::Lane;
use crate::server::ClassFigures;

impl Lane {
    /// Classes in which something has changed, as bits: all where partitions have come or gone.
    pub(super) fn changed_classes(&mut self) -> u64 {
        let mut changed = 0;
        let mut owned = Vec::new();
        for (index, seat) in self.seats.iter_mut().enumerate() {
            for (partition, owner) in seat.member.owned_partitions_mut() {
                changed |= owner.take_changed_classes();
                owned.push((index, partition, owner.tenure()));
            }
        }
        if owned != self.counted {
            self.counted = owned;
            changed = u64::MAX;
        }
        changed
    }

    pub(super) fn class_figures(&self, class: usize) -> ClassFigures {
        let mut figures = ClassFigures::default();
        for seat in &self.seats {
            for (_, owner) in seat.member.owned_partitions() {
                figures.add(owner, class);
            }
        }
        figures
    }
}
