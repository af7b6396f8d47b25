//! What is never otherwise, whatever happens: asserted after each event.

use std::collections::BTreeSet;

use super::Owner;
use super::region::{Access, Copy, CopyState, Task};
use crate::injected_faults::{InjectedFault, is_injected};

#[cfg(test)]
thread_local! {
    /// How many times this thread audited: once for each time that something was concluded.
    pub(super) static AUDITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Owner {
    /// Asserts the invariants of the region table.
    ///
    /// # Panics
    /// If one is broken: a bug of this crate.
    pub fn audit(&self) {
        #[cfg(test)]
        AUDITS.set(AUDITS.get() + 1);
        let mut windows = BTreeSet::new();
        for (index, region) in self.regions.iter().enumerate() {
            // R1: a window is of one region and one use. Hosts are checked where they say it.
            let copies = region.copies.iter().chain(&region.retiring);
            for copy in copies.chain(region.new_copy()) {
                for window in copy.windows.iter().filter(|_| !copy.is_unlearned()) {
                    let name = (copy.host, window.id, window.generation);
                    assert!(windows.insert(name), "region {index}: {window:?} twice");
                }
            }
            // Nobody writes while copies differ, or while clients may know different ones.
            let is_stopped = match &region.task {
                Task::Draining(_) | Task::Filling(_) | Task::Switching(_) | Task::Held(_) => true,
                Task::Fencing(fencing) => fencing.target.is_some(),
                Task::None | Task::Placing(_) | Task::Ready(_) | Task::Restoring(_) => false,
            };
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
                region.retiring.is_empty() || matches!(region.task, Task::Switching(_)),
                "region {index}: retires in {:?}",
                region.stage()
            );
            let stays = |copy: &&Copy| copy.state == CopyState::Current;
            let staying = region.copies.iter().filter(stays);
            let domains: BTreeSet<u32> = staying
                .clone()
                .map(|copy| self.hosts[copy.host].domain)
                .collect();
            assert!(
                domains.len() == staying.count() || is_injected(InjectedFault::SameDomain),
                "region {index}: two copies in one domain"
            );
        }
    }
}
