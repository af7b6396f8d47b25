//! The items of a lane's partitions by their classes: see [`cenote_kv::memory::classes`].

use cenote_memcached::ClassFigures;

use super::Lane;

impl Lane {
    /// Classes in which something has changed, as bits: all where partitions have come or gone.
    pub(super) fn changed_classes(&mut self) -> u64 {
        let mut changed = 0;
        let mut number = 0;
        let mut is_same = true;
        for (index, seat) in self.seats.iter_mut().enumerate() {
            for (partition, owner) in seat.member.owned_partitions_mut() {
                changed |= owner.take_changed_classes();
                let owned = (index, partition, owner.term());
                is_same &= self.counted.get(number) == Some(&owned);
                number += 1;
            }
        }
        if is_same && number == self.counted.len() {
            return changed;
        }
        self.counted.clear();
        for (index, seat) in self.seats.iter().enumerate() {
            let owned = seat.member.owned_partitions();
            let owned = owned.map(|(partition, owner)| (index, partition, owner.term()));
            self.counted.extend(owned);
        }
        u64::MAX
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
