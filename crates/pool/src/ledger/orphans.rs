//! Slabs of clients that were not heard of for a lease: they stay, as memory that others may have.

use std::time::Duration;

use crate::injected_faults::{InjectedFault, is_injected};

use super::{Ledger, Slab, SlabIndex};

impl Ledger {
    /// Orphaned slabs taken so far.
    #[must_use]
    pub fn orphans_taken(&self) -> u64 {
        self.orphans_taken
    }

    /// Whether a client may hold slabs as far as [`super::Limits::clients_max`] goes. Clients that
    /// are gone and left slabs make a place: whoever is there comes first.
    pub(super) fn make_place_for(&mut self, client: u128) -> bool {
        while !self.has_place(client) && self.places_taken() >= self.limits.clients_max {
            let Some(gone) = self.leases.longest_orphaned() else {
                return false;
            };
            let left = self.grants().filter(|(_, grant)| grant.client == gone);
            let left: Vec<SlabIndex> = left.map(|(slab, _)| slab).collect();
            left.into_iter().for_each(|slab| self.take_orphan(slab));
        }
        true
    }

    /// Whether a client holds slabs, or waits for some.
    fn has_place(&self, client: u128) -> bool {
        let waits = || self.waiting.iter().any(|waiting| waiting.client == client);
        self.leases.slabs(client) > 0 || waits()
    }

    fn places_taken(&self) -> usize {
        let clients = self.clients().map(|(client, _)| client);
        clients.filter(|&client| self.has_place(client)).count()
    }

    pub(super) fn take_orphan(&mut self, slab: SlabIndex) {
        self.orphans_taken += 1;
        if is_injected(InjectedFault::ReuseOpen)
            && let Slab::Mapped(grant) = self.slabs[slab as usize]
        {
            let window = grant.window;
            self.slabs[slab as usize] = Slab::Prepared { window };
            return self.leases.remove_slab(grant.client);
        }
        self.retire(slab, false);
    }

    /// Orphaned slabs with the time since when, ordered so that the least is the oldest.
    pub(super) fn orphans(&self) -> impl Iterator<Item = (Duration, u64, SlabIndex)> {
        self.grants().filter_map(|(slab, grant)| {
            let since = self.leases.orphaned_since(grant.client)?;
            Some((since, grant.sequence, slab))
        })
    }
}
