//! Taking up a view: what a process gives up, keeps and begins.
//!
//! A process may have passed over views. What it owned before and owns again it keeps only if nobody
//! can have owned it in between.

use std::sync::Arc;

use super::arrival::Arrival;
use super::backup::Backup;
use super::member::{Member, Owned, Shape};
use super::message::{Lacks, Message};
use super::owner::Owner;
use super::parity::Parity;
use super::recovery::Recovery;
use super::replica::{Diverged, Replica};
use super::room::Room;
use super::sender::LEASE_WAIT_NS;
use super::settlement::Settling;
use super::units::Units;
use super::view::{self, Partition, View};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::region::Region;

impl Member {
    /// Takes up a view, unless it is older than its own.
    pub fn adopt(&mut self, view: &View) {
        if self
            .view
            .as_ref()
            .is_some_and(|own| own.number >= view.number)
        {
            return;
        }
        let before = self.view.replace(view.clone());
        self.recovery = Recovery::default();
        for other in view.processes() {
            self.send(other, Message::View(view.clone()));
        }
        let is_next = before
            .as_ref()
            .is_none_or(|before| before.number + 1 == view.number);
        self.arrive_by_exchange(view);
        self.leave_partitions(view, is_next);
        self.adopt_parity(before.as_ref(), view);
        self.adopt_partitions(view);
        let others = view.processes();
        others.into_iter().for_each(|other| self.announce(other));
        let advanced = self.advance_all();
        self.note(advanced);
    }

    /// Gives up what another owns now, or may have owned in a view that this process did not see.
    fn leave_partitions(&mut self, view: &View, is_next: bool) {
        let me = Some(self.me);
        let is_recovered = |index| view.recovering().any(|(other, _)| other == index);
        let is_left = |index: &usize| {
            let is_lost = view.begun[*index] > self.owners[index].owner.term;
            view.owner(*index) != me || is_lost || (!is_next && is_recovered(*index))
        };
        let left: Vec<usize> = self.owned().filter(is_left).collect();
        for index in left {
            let owned = self.owners.remove(&index).expect("it is one of them");
            let owned = match self.fold_by_exchange(view, index, owned) {
                Some(owned) => owned,
                None => continue,
            };
            // Whoever has the values goes on as a parity, with all keys.
            if owned.settling.is_none()
                && let Some(parity) = &mut self.parity
                && view.slot_holding(index) == Some(parity.slot)
            {
                let stream = &mut parity.streams[index];
                let replica = owned.owner.into_replica();
                stream.discard(0);
                stream.latest = replica.applied();
                stream.replica = Some(replica);
            }
        }
        let me = self.me;
        self.arriving = self
            .arriving
            .take()
            .filter(|arrival| arrival.is_of(view, me));
    }

    fn adopt_parity(&mut self, before: Option<&View>, view: &View) {
        match view.parity_of(self.me) {
            Some((slot, place)) => {
                self.keep_parity(before, view, slot, place);
                if let Some(parity) = &mut self.parity {
                    parity.lost = view.lost();
                    parity.is_stale = view.is_stale(slot);
                }
            }
            None => self.parity = None,
        }
        self.adopt_exchange(view);
    }

    fn keep_parity(
        &mut self,
        before: Option<&View>,
        view: &View,
        slot: usize,
        place: view::Parity,
    ) {
        let since = place.since();
        let is_joining = matches!(place, view::Parity::Joining { .. });
        if let Some(parity) = &mut self.parity {
            parity.forget_attempts();
            parity.end_lost(view, is_joining);
            if since == self.parity_since {
                if is_injected(InjectedFault::SpentAsFull) && view.held_by(slot).is_none() {
                    parity.count_as_full();
                }
                return;
            }
            // It gave a partition's data away in the view just before, and has all keys.
            let was_full = before.is_some_and(|before| {
                before.number + 1 == view.number
                    && before.slot_of(self.me) == Some(slot)
                    && matches!(before.parities[slot], view::Parity::Full { .. })
            });
            if was_full && parity.streams.iter().all(|stream| stream.replica.is_some()) {
                self.parity_since = since;
                return parity.empty(view);
            }
        }
        self.parity_since = since;
        self.parity = Some(Parity::new(
            slot,
            self.shape.scheme,
            Arc::clone(&self.code),
            (self.shape.hasher, self.shape.region_bytes),
            view,
            is_joining,
        ));
    }

    fn adopt_partitions(&mut self, view: &View) {
        for index in 0..view.partitions.len() {
            if self.arriving.is_none() {
                self.arriving = Arrival::begin(view, index, self.me, &self.shape);
            }
            if view.owner(index) != Some(self.me) {
                continue;
            }
            let is_new = !self.owners.contains_key(&index);
            let owned = match self.owners.remove(&index) {
                Some(owned) => Some(owned),
                None => self.begin(view, index),
            };
            let Some(mut owned) = owned else {
                continue;
            };
            owned.owner.enter(view.number, Backup::all(view, index));
            owned.is_leaving = false;
            owned.owner.is_open = false;
            if owned.settling.is_some() {
                owned.settling = Some(Settling::new(view, index));
            }
            let is_free = view.let_go >> index & 1 == 1;
            let last_answer = self.answered[index].filter(|_| is_new && !is_free);
            owned.serves_from = last_answer.map_or(owned.serves_from, |at| at + LEASE_WAIT_NS);
            let is_home = matches!(view.partitions[index], Partition::Home(_));
            if is_home && owned.owner.missing_units() == 0 {
                owned.owner.present = None;
            }
            self.owners.insert(index, owned);
        }
    }

    /// Begins to own a partition.
    fn begin(&mut self, view: &View, index: usize) -> Option<Owned> {
        let Shape {
            region_bytes,
            hasher,
            ..
        } = self.shape;
        let (owner, settling) = match view.partitions[index] {
            Partition::Home(_) => {
                let arrival = self.arriving.take_if(|arrival| arrival.partition == index);
                let (replica, region) = match arrival {
                    Some(arrival) => self.take_over(arrival)?,
                    None => (
                        Replica::new(hasher, region_bytes),
                        Arc::new(Region::new(region_bytes)),
                    ),
                };
                (Owner::new(index, replica, region, None), None)
            }
            Partition::Recovering(_) | Partition::Arriving { .. } => {
                let parity = self.parity.as_mut()?;
                let present = parity.hold(index);
                let region = Arc::clone(parity.region(index));
                // The replica stays in its stream until all agree on what was acknowledged.
                let replica = Replica::new(hasher, 0);
                let owner = Owner::new(index, replica, region, present);
                self.takeovers.begin(index, view.number);
                (owner, Some(Settling::new(view, index)))
            }
            Partition::Migrating { .. } => {
                let arrival = self.arriving.take_if(|arrival| arrival.partition == index);
                let Some(arrival) = arrival else {
                    self.failure = self.failure.or(Some(Diverged::Incomplete));
                    return None;
                };
                let (replica, region) = self.take_over(arrival)?;
                let present = Some(Units::none(region_bytes));
                let owner = Owner::new(index, replica, region, present);
                (owner, None)
            }
            Partition::Lost => return None,
        };
        let mut owner = owner;
        owner.set_eviction(self.shape.evicts);
        owner.room = Room::new(self.shape.bound);
        owner.term = view.number;
        Some(Owned {
            owner,
            settling,
            serves_from: 0,
            is_leaving: false,
        })
    }

    /// What a new owner was told. The former one had nothing under way: all that came is stable.
    fn take_over(&mut self, mut arrival: Arrival) -> Option<(Replica, Arc<Region>)> {
        let latest = arrival.stream.latest;
        let applied = arrival.apply(latest);
        self.note(applied);
        if arrival.stream.lacks() != Lacks::NOTHING {
            self.note(Err(Diverged::Incomplete));
        }
        let region_bytes = self.shape.region_bytes;
        let region = arrival.region;
        let region = region.unwrap_or_else(|| Arc::new(Region::new(region_bytes)));
        Some((arrival.stream.replica?, region))
    }
}
