//! Who owns which volume, and taking one over from an owner that is gone.
//!
//! Owners of a volume are numbered by **epochs**, which they count themselves, in a journal that
//! each finds where the last one left it. A client that knows no epoch (0) owns what nobody else
//! uses.
//!
//! Invariant: once a volume has passed to a client, no verb and no request of an earlier owner
//! changes what it holds here: its slabs have new generations, its requests are refused.

use std::time::Duration;

use super::{Action, Grant, Ledger, Slab, SlabIndex, StripeMember};
use crate::control::{Refusal, Reply, Window};
use crate::injected_faults::{InjectedFault, is_injected};

/// The one client that may map a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub client: u128,
    pub epoch: u64,
}

/// Volumes that a client may own without holding anything of them, on average. Arbitrary; it
/// bounds the table.
const IDLE_VOLUMES_PER_CLIENT: usize = 16;

impl Ledger {
    /// A client says that it owns a volume. Slabs of an owner that is gone pass to it.
    ///
    /// # Panics
    /// If the client is not connected: a caller's bug.
    pub fn handle_own(
        &mut self,
        now: Duration,
        client: u128,
        request: u64,
        volume: u128,
        epoch: u64,
    ) {
        assert!(
            self.leases.is_connected(client),
            "client {client:032x} asks without a session"
        );
        self.leases.renew(now, client);
        let reply = match self.own(client, volume, epoch) {
            Ok(slabs) => Reply::Owned { request, slabs },
            Err(reason) => Reply::Refused { request, reason },
        };
        self.send(client, reply);
        self.forget_idle_owners();
        self.prepare_ahead(now);
    }

    /// Whether a client that says so now becomes the owner of a volume.
    ///
    /// # Errors
    /// Why it does not.
    pub fn may_own(&self, client: u128, volume: u128, epoch: u64) -> Result<(), Refusal> {
        let known = self.owners.get(&volume);
        if known.is_some_and(|owner| {
            owner.epoch > epoch || (owner.epoch == epoch && owner.client != client)
        }) {
            return Err(Refusal::Superseded);
        }
        let idle_max = self.limits.clients_max * IDLE_VOLUMES_PER_CLIENT;
        if known.is_none() && self.owners.len() >= self.slabs.len() + idle_max {
            return Err(Refusal::ClientBound);
        }
        let is_live =
            |other: u128| self.leases.is_connected(other) && !self.leases.is_orphaned(other);
        match self.others(client, volume).any(is_live) {
            true => Err(Refusal::Owned),
            false => Ok(()),
        }
    }

    /// Clients besides this one that use a volume.
    fn others(&self, client: u128, volume: u128) -> impl Iterator<Item = u128> {
        let clients = self.clients().map(|(other, _)| other);
        clients.filter(move |&other| other != client && self.uses(other, volume))
    }

    fn own(&mut self, client: u128, volume: u128, epoch: u64) -> Result<u32, Refusal> {
        self.may_own(client, volume, epoch)?;
        let mut former: Vec<u128> = self.others(client, volume).collect();
        former.sort_unstable();
        for &other in &former {
            if self.leases.is_connected(other) {
                self.actions.push_back(Action::CutOff { client: other });
            }
        }
        self.waiting
            .retain(|waiting| waiting.place.volume != volume || waiting.client == client);
        for slab in 0..self.slabs.len() {
            self.hand_over(slab, client, volume);
        }
        self.owners.insert(volume, Owner { client, epoch });
        let held =
            |(_, grant): &(_, &Grant)| grant.client == client && grant.place.volume == volume;
        Ok(u32::try_from(self.grants().filter(held).count()).expect("bounded by the slabs"))
    }

    fn hand_over(&mut self, slab: usize, client: u128, volume: u128) {
        let Slab::Mapped(grant) = &mut self.slabs[slab] else {
            return;
        };
        if grant.place.volume != volume || grant.client == client {
            return;
        }
        let former = std::mem::replace(&mut grant.client, client);
        grant.is_left = true;
        // It was the former owner that was asked.
        grant.asked = None;
        grant.declined = false;
        grant.renewal = None;
        let window = grant.window;
        self.leases.add_slab(client);
        self.leases.remove_slab(former);
        let slab = SlabIndex::try_from(slab).expect("slabs are counted in 32 bits");
        self.actions.push_back(Action::Renew { slab, window });
    }

    /// The slab's window has a new generation; its memory is untouched. A slab that its client gave back
    /// after it had asked is on its way to the system, and goes there.
    pub fn handle_renewed(&mut self, slab: SlabIndex, window: Window) {
        let Slab::Mapped(grant) = &mut self.slabs[slab as usize] else {
            return;
        };
        grant.window = window;
        if let Some(request) = grant.renewal.take() {
            let client = grant.client;
            self.send(client, Reply::Mapped { request, window });
        }
    }

    /// A client wants the window of one of its slabs renewed: verbs of clients of its own may be on
    /// their way to it that are not to take effect any more.
    pub fn handle_renew(&mut self, now: Duration, client: u128, request: u64, window: Window) {
        self.leases.renew(now, client);
        let Some(slab) = self.find(client, window) else {
            let reason = Refusal::NotHeld;
            return self.send(client, Reply::Refused { request, reason });
        };
        self.renew_for(slab, request);
    }

    /// Has the window of a lent slab renewed for a request. Of several that come before it is, the last is
    /// answered: earlier ones are of sessions that are over.
    fn renew_for(&mut self, slab: SlabIndex, request: u64) {
        if let Slab::Mapped(grant) = &mut self.slabs[slab as usize]
            && grant.renewal.replace(request).is_none()
        {
            let window = grant.window;
            self.actions.push_back(Action::Renew { slab, window });
        }
    }

    /// The slab's window could not be renewed: it is of no use to anybody.
    pub fn handle_renew_failed(&mut self, slab: SlabIndex) {
        if matches!(self.slabs[slab as usize], Slab::Mapped(_)) {
            self.retire(slab, false);
        }
    }

    /// A client asks for a slab that it holds, by place and birth.
    ///
    /// Its last session has ended, and writes of that session may still be on their way: the window gets a
    /// new generation before the client learns its name. A slab that came by [`Ledger::handle_own`] got one
    /// then.
    pub fn handle_retake(
        &mut self,
        now: Duration,
        client: u128,
        request: u64,
        place: StripeMember,
        birth: u64,
    ) {
        self.leases.renew(now, client);
        let held = (0..)
            .zip(&mut self.slabs)
            .find_map(|(index, slab)| match slab {
                Slab::Mapped(grant)
                    if grant.client == client && grant.place == place && grant.birth == birth =>
                {
                    Some((index, grant))
                }
                _ => None,
            });
        let Some((slab, grant)) = held else {
            let reason = Refusal::NotHeld;
            return self.send(client, Reply::Refused { request, reason });
        };
        let window = grant.window;
        if std::mem::take(&mut grant.is_left) || is_injected(InjectedFault::RetakeUnrenewed) {
            return self.send(client, Reply::Mapped { request, window });
        }
        self.renew_for(slab, request);
    }

    /// A client has retaken all that it wants of a volume; the rest goes.
    pub fn handle_leave(&mut self, now: Duration, client: u128, volume: u128) {
        let left =
            |grant: &Grant| grant.is_left && grant.client == client && grant.place.volume == volume;
        let rest: Vec<SlabIndex> = self
            .grants()
            .filter(|(_, grant)| left(grant))
            .map(|(slab, _)| slab)
            .collect();
        for slab in rest {
            self.take_back(slab, false);
        }
        self.forget_idle_owners();
        self.prepare_ahead(now);
    }

    /// Whether another client has the volume, and may be there to use it.
    pub(super) fn is_owned_by_another(&self, client: u128, volume: u128) -> bool {
        let Some(owner) = self.owners.get(&volume) else {
            return false;
        };
        let is_live = || !self.leases.is_orphaned(owner.client) && self.uses(owner.client, volume);
        owner.client != client && (owner.epoch > 0 || is_live())
    }

    /// Notes who maps a volume; an epoch that is known stays.
    pub(super) fn note_owner(&mut self, client: u128, volume: u128) {
        let epoch = match self.owners.get(&volume) {
            Some(owner) if owner.client == client => owner.epoch,
            _ => 0,
        };
        self.owners.insert(volume, Owner { client, epoch });
    }

    /// Whether the client holds or waits for a slab of the volume.
    fn uses(&self, client: u128, volume: u128) -> bool {
        let holds =
            |(_, grant): (_, &Grant)| grant.client == client && grant.place.volume == volume;
        let waits = |w: &super::Waiting| w.client == client && w.place.volume == volume;
        self.grants().any(holds) || self.waiting.iter().any(waits)
    }

    /// Drops the owners that use their volume no longer and are gone; bounds the table.
    pub(super) fn forget_idle_owners(&mut self) {
        let mut owners = std::mem::take(&mut self.owners);
        owners.retain(|&volume, owner| {
            let is_here = owner.epoch > 0 && self.leases.is_connected(owner.client);
            is_here || self.uses(owner.client, volume)
        });
        self.owners = owners;
    }
}

#[cfg(test)]
mod tests;
