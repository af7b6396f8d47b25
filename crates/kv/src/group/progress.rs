//! What a member would have next: each step of a recovery, of a move and of a joining is proposed by
//! whoever knows that the one before is done.

use super::member::{Member, Owned};
use super::message::Lacks;
use super::parity::{Parity, Stream};
use super::process::Process;
use super::view::{self, Partition, View};
use crate::injected_faults::{InjectedFault, is_injected};

pub use super::view::GroupSlot;

/// Whether a process gives its places up, to whoever is there for them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Leave {
    /// It keeps them.
    No,
    /// It does. Those that nobody is there for it gives up only while nothing is missing in the group.
    Whole,
    /// It does, and those that nobody is there for as long as nothing is lost by that: it ends soon.
    Soon,
}

/// When a view that is proposed is agreed on or refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Decision {
    /// At once, as far as anybody knows.
    Soon,
    /// Nobody knows: those who agree on views were not heard of lately.
    Late,
}

impl Member {
    /// The view that should follow, as far as this member knows. `spare` names a process outside of the
    /// group that is there for a place. Where the answer is a view, it is to be agreed on; if another one
    /// is agreed on instead, [`adopt`](Member::adopt) takes that up; if none, [`reopen`](Member::reopen).
    ///
    /// To be called only while nothing that was proposed waits for its decision. A view for which a
    /// partition is closed until it is decided is proposed only where that is soon: where it is
    /// late, [`reopen`](Member::reopen) has what is to go served until then.
    pub fn propose(
        &mut self,
        now: u64,
        leave: Leave,
        decision: Decision,
        spare: impl Fn(GroupSlot) -> Option<Process>,
    ) -> Option<View> {
        let view = self.view.clone()?;
        self.propose_for_partitions(&view, now, decision, &spare)
            .or_else(|| self.propose_for_parities(&view, &spare))
            .or_else(|| self.propose_to_leave(&view, now, (leave, decision), &spare))
    }

    fn propose_for_partitions(
        &mut self,
        view: &View,
        now: u64,
        decision: Decision,
        spare: &impl Fn(GroupSlot) -> Option<Process>,
    ) -> Option<View> {
        for (index, owned) in &mut self.owners {
            // Who comes after it waits for nobody: no lease from before may be left.
            if !owned.is_served(now) {
                continue;
            }
            let is_whole = owned.owner.missing_units() == 0;
            let handoff = view
                .handoff
                .filter(|handoff| handoff.place == GroupSlot::Data(*index));
            match view.partitions[*index] {
                Partition::Recovering(slot)
                    if !is_whole && view.is_stale(slot) && owned.lets_go(decision) =>
                {
                    return view.with_given_up(*index);
                }
                Partition::Recovering(_) if is_whole && view.is_calm() => {
                    if let Some(process) = spare(GroupSlot::Data(*index)) {
                        return view.with_arriving(*index, process);
                    }
                }
                Partition::Arriving { process, .. }
                    if owned.owner.has_all(process) && owned.lets_go(decision) =>
                {
                    return view.with_migrating(*index);
                }
                Partition::Home(_)
                    if handoff.is_some_and(|handoff| owned.owner.has_all(handoff.process))
                        && (view.exchange().is_none() || is_told(&self.parity))
                        && owned.lets_go(decision) =>
                {
                    return view.with_succession();
                }
                Partition::Migrating { .. } if is_whole => {
                    return view.with_home(*index, is_injected(InjectedFault::SpentAsFull));
                }
                _ => {}
            }
        }
        None
    }

    fn propose_for_parities(
        &self,
        view: &View,
        spare: &impl Fn(GroupSlot) -> Option<Process>,
    ) -> Option<View> {
        if self.parity.is_some()
            && matches!(
                view.parity_of(self.me),
                Some((_, view::Parity::Joining { .. }))
            )
        {
            return match view.slot_of(self.me) {
                // Its partition is part of that: see above.
                _ if view.exchange().is_some() || !is_told(&self.parity) => None,
                Some(slot) => view.with_full(slot),
                None => view.with_succession(),
            };
        }
        // One member knows that every partition is whole only if all that are left are at home.
        let mut owners = (0..view.partitions.len()).filter_map(|index| view.owner(index));
        let at_home =
            |partition: &Partition| matches!(partition, Partition::Home(_) | Partition::Lost);
        if owners.next() != Some(self.me) || !view.partitions.iter().all(at_home) {
            return None;
        }
        let vacant =
            (0..view.parities.len()).filter(|slot| view.parities[*slot] == view::Parity::Vacant);
        vacant
            .filter_map(|slot| Some((slot, spare(GroupSlot::Parity(slot))?)))
            .find_map(|(slot, process)| view.with_joining(slot, process))
    }

    /// Gives a place to a spare process or, where there is none, all places up.
    fn propose_to_leave(
        &mut self,
        view: &View,
        now: u64,
        (leave, decision): (Leave, Decision),
        spare: &impl Fn(GroupSlot) -> Option<Process>,
    ) -> Option<View> {
        if leave == Leave::No || !view.has(self.me) {
            return None;
        }
        let data = self.owners.keys().map(|index| GroupSlot::Data(*index));
        let parity = view.slot_of(self.me).map(GroupSlot::Parity);
        let mut places = data.chain(parity);
        match places.find_map(|place| Some((place, spare(place)?))) {
            Some((place, process)) if view.is_whole() => return view.with_handoff(place, process),
            // Where something is missing a spare is needed there first, if anybody can be helped by it.
            Some(_) if view.lost() == 0 => return None,
            _ if leave == Leave::Whole && !view.is_whole() => return None,
            _ => {}
        }
        let released = view.with_released(self.me)?;
        let is_served = |owned: &Owned| owned.is_served(now);
        if !self.owners.values().all(is_served) {
            return None;
        }
        let mut has_let_go = true;
        for owned in self.owners.values_mut() {
            has_let_go &= owned.lets_go(decision);
        }
        has_let_go.then_some(released)
    }

    /// The view with which a partition that it owns begins to go to another process, which is outside of the group or
    /// a parity of it: for owners to be spread. None: something is missing or on its way.
    pub fn hand_over(&self, now: u64, partition: usize, to: Process) -> Option<View> {
        let view = self.view.as_ref()?;
        let owned = self.owners.get(&partition)?;
        if !owned.is_served(now) {
            return None;
        }
        match view.slot_of(to) {
            Some(_) => view.with_exchange(partition, to),
            None => view.with_handoff(GroupSlot::Data(partition), to),
        }
    }

    /// No view that gives a partition away is proposed, or what was proposed is not agreed on, for
    /// sure: partitions that were to be given away are served on. Where the outcome of such a view
    /// is unknown this must not be called: the new owner may serve already.
    pub fn reopen(&mut self) {
        for owned in self.owners.values_mut() {
            if owned.is_leaving {
                owned.is_leaving = false;
            }
        }
    }
}

/// Whether a process has been told all that a parity of its slot has.
fn is_told(parity: &Option<Parity>) -> bool {
    let is_whole = |stream: &Stream| stream.lacks() == Lacks::NOTHING;
    let parity = parity.as_ref();
    parity.is_some_and(|parity| parity.streams.iter().all(is_whole))
}

impl Owned {
    /// Takes no more operations, and once all are committed serves nothing at all until it is known
    /// who owns the partition next.
    fn lets_go(&mut self, decision: Decision) -> bool {
        if decision == Decision::Late {
            return false;
        }
        if is_injected(InjectedFault::HandOverUndrained) {
            return true;
        }
        self.is_leaving = true;
        self.owner.is_open = false;
        if !self.owner.is_drained() {
            return false;
        }
        if !is_injected(InjectedFault::LeaseKept) {
            self.owner.give_up_lease();
        }
        true
    }
}
