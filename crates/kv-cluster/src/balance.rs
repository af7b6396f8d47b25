//! When a partition goes to another node though its owner is well, so that owners are spread evenly again.
//!
//! Places change hands as nodes end and come: after many failovers some nodes own much and others nothing. Once
//! nothing has changed anywhere for some time one partition goes from a node to one that owns at least two less, then
//! the next after the same pause. Each such step makes the difference of the two smaller, so none is ever undone. All
//! nodes decide the same from the same views and registrations; the owner that is to give claims its turn by
//! compare-and-swap ([`DocumentKeys::turn`](super::config::DocumentKeys::turn)), so that two never begin at once.
//!
//! Pure: [`next`] decides, [`Balance`] says when. Invariant: nothing begins while a group is not whole, a place is
//! with a node that is not registered as up, or something has changed within [`QUIET`].

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_kv::group::process::Process;
use cenote_kv::group::view::{Partition, View};

use crate::injected_faults::{InjectedFault, is_injected};

/// How long nothing may have changed anywhere before a partition goes to another node.
pub const QUIET: Duration = Duration::from_secs(5);
/// The same after a node was lost: it may be about to come back.
pub const QUIET_AFTER_LOSS: Duration = Duration::from_secs(10);

/// A partition that is to go from its owner to another process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HandOver {
    /// Number of the group.
    pub group: usize,
    /// The number of the view in which that was decided: in another one nothing comes of it.
    pub view: u32,
    /// Number of the partition in the group.
    pub partition: usize,
    /// Its owner.
    pub from: Process,
    /// Who is to own it: a parity of the group, which changes places with the owner, or one outside of it.
    pub to: Process,
}

/// What a node plays.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    owned: usize,
    slots: usize,
}

/// The partition that should go to another node next, if any. `views` are those of all groups in their order, `up`
/// the processes that are registered and may take places.
///
/// Of all moves to a node that owns at least two partitions less, the one with the greatest difference. Where there is
/// a choice places are made even, too; a node that plays as much as the owner gets no place more, but may change places.
#[must_use]
pub fn next(views: &[&View], up: &[Process]) -> Option<HandOver> {
    let is_well = |view: &&View| {
        let all_up = view.processes().iter().all(|process| up.contains(process));
        view.is_whole() && view.is_calm() && all_up
    };
    if !views.iter().all(is_well) && !is_injected(InjectedFault::HastyBalance) {
        return None;
    }
    let mut loads: BTreeMap<Process, Load> = up.iter().map(|one| (*one, Load::default())).collect();
    for view in views {
        for partition in 0..view.partitions.len() {
            if let Some(load) = view.owner(partition).and_then(|one| loads.get_mut(&one)) {
                load.owned += 1;
            }
        }
        for process in view.processes() {
            if let Some(load) = loads.get_mut(&process) {
                load.slots += 1;
            }
        }
    }
    let owned = || loads.values().map(|load| load.owned);
    if owned().max()? < owned().min()? + 2 {
        return None;
    }
    let mut best = None;
    for (group, view) in views.iter().enumerate() {
        for (partition, place) in view.partitions.iter().enumerate() {
            let Partition::Home(from) = *place else {
                continue;
            };
            let Some(giver) = loads.get(&from) else {
                continue;
            };
            for (to, taker) in loads
                .iter()
                .filter(|(_, taker)| taker.owned + 2 <= giver.owned)
            {
                let evens = match view.slot_of(*to) {
                    Some(_) => 1,
                    None if view.has(*to) || taker.slots >= giver.slots => continue,
                    None => {
                        if taker.slots + 1 < giver.slots {
                            2
                        } else {
                            0
                        }
                    }
                };
                let rank = (giver.owned - taker.owned, evens);
                if best.is_none_or(|(known, _)| rank > known) {
                    let next = HandOver {
                        group,
                        view: view.number,
                        partition,
                        from,
                        to: *to,
                    };
                    best = Some((rank, next));
                }
            }
        }
    }
    best.map(|(_, next)| next)
}

/// When to decide.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Something has changed since it was last asked; quiet has to follow for so long.
    Stirred(Duration),
    /// Nothing has changed; not before then, in nanoseconds.
    Waits(u64),
    /// There was nothing to do, and nothing has changed since.
    Rests,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Balance {
    state: State,
    /// The revision of the key of turns; 0: it is not there.
    pub(super) turn: i64,
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            state: State::Stirred(QUIET),
            turn: 0,
        }
    }
}

impl Balance {
    /// A view or a registration is another, or a turn was claimed.
    pub(super) fn note_change(&mut self) {
        self.stir(QUIET);
    }

    /// A node is not registered any more.
    pub(super) fn note_loss(&mut self) {
        self.stir(QUIET_AFTER_LOSS);
    }

    fn stir(&mut self, quiet: Duration) {
        self.state = match self.state {
            State::Stirred(longer) if longer > quiet => State::Stirred(longer),
            _ => State::Stirred(quiet),
        };
    }

    /// Whether to decide now, `now` in nanoseconds.
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        match self.state {
            State::Stirred(quiet) => {
                self.wait(now, quiet);
                is_injected(InjectedFault::HastyBalance)
            }
            State::Waits(until) => now >= until,
            State::Rests => false,
        }
    }

    /// Decides again after a pause: another node has the turn, or nothing can be decided yet.
    pub(super) fn pause(&mut self, now: u64) {
        self.wait(now, QUIET);
    }

    /// Decides again when something has changed.
    pub(super) fn rest(&mut self) {
        self.state = State::Rests;
    }

    fn wait(&mut self, now: u64, quiet: Duration) {
        let quiet = u64::try_from(quiet.as_nanos()).expect("a short time");
        self.state = State::Waits(now + quiet);
    }
}

#[cfg(test)]
mod tests;
