//! What is never otherwise, whatever happens: asserted after each event.

use std::collections::BTreeSet;

use super::Owner;
use super::region::{Access, Task};
use crate::planted::{Planted, is_planted};

impl Owner {
    /// Asserts the invariants of the region table.
    ///
    /// # Panics
    /// If one is broken: a bug of this crate.
    pub(super) fn audit(&self) {
        let mut windows = BTreeSet::new();
        for (index, region) in self.regions.iter().enumerate() {
            let target = region.target().map(|target| &target.copy);
            // R1: a window is of one region and one use.
            for copy in region.copies.iter().chain(&region.retiring).chain(target) {
                for window in copy.windows.iter().filter(|_| !copy.is_recovered) {
                    let name = (copy.host, window.id, window.generation);
                    assert!(windows.insert(name), "region {index}: {window:?} twice");
                }
            }
            // Nobody writes while copies differ, or while clients may know different ones.
            let is_stopped = matches!(
                region.task,
                Task::Draining(_) | Task::Filling(_) | Task::Switching
            );
            let may_write = region.access == Access::Open;
            assert!(
                !(is_stopped && may_write),
                "region {index}: open in {:?}",
                region.stage()
            );
            assert!(
                !may_write || !region.copies.is_empty(),
                "region {index}: open without memory"
            );
            // R2: what retires is given back when nobody can use it, not before.
            assert!(
                region.retiring.is_empty() || matches!(region.task, Task::Switching),
                "region {index}: retires in {:?}",
                region.stage()
            );
            let domains: BTreeSet<u32> = region
                .copies
                .iter()
                .map(|copy| self.hosts[copy.host].domain)
                .collect();
            assert!(
                domains.len() == region.copies.len() || is_planted(Planted::SameDomain),
                "region {index}: two copies in one domain"
            );
        }
    }
}
