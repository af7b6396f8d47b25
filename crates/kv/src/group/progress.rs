//! What a member would have next: each step of a recovery, of a move and of a joining is proposed by
//! whoever knows that the one before is done.

use super::member::Member;
use super::message::Lacks;
use super::process::Process;
use super::view::{Parity, Partition, View};
use crate::planted::{Planted, is_planted};

/// A place in a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// That of a partition's data process.
    Data(usize),
    /// That of a parity.
    Parity(usize),
}

impl Member {
    /// The view that should follow, as far as this member knows. `spare` names a process outside of the
    /// group that is there for a place. Where the answer is a view, it is to be agreed on; if another one
    /// is agreed on instead, [`adopt`](Member::adopt) takes that up; if none, [`reopen`](Member::reopen).
    pub fn propose(&mut self, now: u64, spare: impl Fn(Place) -> Option<Process>) -> Option<View> {
        let view = self.view.clone()?;
        self.propose_for_partitions(&view, now, &spare)
            .or_else(|| self.propose_for_parities(&view, &spare))
    }

    fn propose_for_partitions(
        &mut self,
        view: &View,
        now: u64,
        spare: &impl Fn(Place) -> Option<Process>,
    ) -> Option<View> {
        for (index, owned) in &mut self.owners {
            // Who comes after it waits for nobody: no lease from before may be left.
            if !owned.is_served(now) {
                continue;
            }
            let is_whole = owned.owner.missing_units() == 0;
            match view.partitions[*index] {
                Partition::Recovering(_) if is_whole && view.is_calm() => {
                    if let Some(process) = spare(Place::Data(*index)) {
                        return view.with_arriving(*index, process);
                    }
                }
                Partition::Arriving { process, .. } if owned.owner.has_all(process) => {
                    if !is_planted(Planted::HandOverUndrained) {
                        owned.is_leaving = true;
                        owned.owner.is_open = false;
                        if !owned.owner.is_drained() {
                            continue;
                        }
                        // Until the outcome is known no read is answered either.
                        owned.owner.give_up_lease();
                    }
                    return view.with_migrating(*index);
                }
                Partition::Migrating { .. } if is_whole => {
                    return view.with_home(*index, is_planted(Planted::SpentAsFull));
                }
                _ => {}
            }
        }
        None
    }

    fn propose_for_parities(
        &self,
        view: &View,
        spare: &impl Fn(Place) -> Option<Process>,
    ) -> Option<View> {
        if let Some(parity) = &self.parity
            && matches!(view.parities[parity.slot], Parity::Joining { .. })
        {
            let is_told = parity
                .streams
                .iter()
                .all(|stream| stream.lacks() == Lacks::NOTHING);
            return is_told.then(|| view.with_full(parity.slot)).flatten();
        }
        // One member knows that every partition is whole only if all are at home.
        let is_first = view.owner(0) == Some(self.me);
        let at_home = |partition: &Partition| matches!(partition, Partition::Home(_));
        if !is_first || !view.partitions.iter().all(at_home) {
            return None;
        }
        let vacant = (0..view.parities.len()).filter(|slot| view.parities[*slot] == Parity::Vacant);
        vacant
            .filter_map(|slot| Some((slot, spare(Place::Parity(slot))?)))
            .find_map(|(slot, process)| view.with_joining(slot, process))
    }

    /// What was proposed is not agreed on, for sure: partitions that were to be given away are served
    /// on. Where the outcome is unknown this must not be called: the new owner may serve already.
    pub fn reopen(&mut self) {
        for owned in self.owners.values_mut() {
            if owned.is_leaving {
                owned.is_leaving = false;
            }
        }
    }
}
