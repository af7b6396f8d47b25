//! Machines with second copies that do not answer: stores for them wait, and hold up no others.
//!
//! A flight ends when all of its messages are answered, and a machine that stands still answers
//! none for a failure timeout. So once one was lost, or could not be sent, nothing is stored into
//! regions whose second copy is there, until it has answered an empty message that travels alone.
//! Where that takes long, the owner is to hear of it: it may reach both machines and know nothing.
//! So regions that requests wait for count as doubtful, and the owner finds another place for a
//! copy if it cannot make them equal.

use std::time::Duration;

use cenote_fabric::Time;

use super::{Action, Executor};
use crate::message::Replicate;
use crate::table::Life;
use crate::{CacheId, Machine, RegionLocation, Table};

/// A machine that did not answer.
#[derive(Debug)]
pub(super) struct Suspect {
    /// The message whose answer is waited for.
    probe: Option<u64>,
    /// When the next one goes.
    probe_at: Time,
    /// How many went in vain.
    in_vain: u32,
    /// When the owner is to hear of it, and how often it was to.
    doubt_at: Time,
    doubted: u32,
}

/// Until the second message to a machine that does not answer, and between two at most. Arbitrary:
/// more than its way takes, and less than a client's patience.
const PROBE: Duration = Duration::from_millis(5);
const PROBE_MAX: Duration = Duration::from_millis(500);

/// Until the owner is to hear that a machine is out of reach, and between two times at most.
/// Arbitrary: longer than a process takes to follow another, and shorter than a request waits.
const OUT_OF_REACH: Duration = Duration::from_secs(3);
const OUT_OF_REACH_MAX: Duration = Duration::from_secs(60);

impl Executor {
    /// Takes no stores for the second copies of a machine for now.
    pub(super) fn suspect(&mut self, machine: Machine) {
        let suspect = Suspect {
            probe: None,
            probe_at: Time(0),
            in_vain: 0,
            doubt_at: self.now.after(OUT_OF_REACH),
            doubted: 0,
        };
        self.suspects.entry(machine).or_insert(suspect);
        self.tell_tables_of_suspects();
    }

    /// Whether `token` is a probe's, which has ended.
    pub(super) fn take_probe(&mut self, token: u64, is_answered: bool) -> bool {
        let mut suspects = self.suspects.iter_mut();
        let probed = suspects.find(|(_, suspect)| suspect.probe == Some(token));
        let Some((machine, suspect)) = probed else {
            return false;
        };
        let pause = PROBE.saturating_mul(1 << suspect.in_vain.min(16));
        suspect.in_vain += 1;
        (suspect.probe, suspect.probe_at) = (None, self.now.after(pause.min(PROBE_MAX)));
        let machine = *machine;
        if is_answered {
            self.trust(machine);
        }
        true
    }

    fn trust(&mut self, machine: Machine) {
        self.suspects.remove(&machine);
        self.tell_tables_of_suspects();
        let regions = |(cache, table): (&CacheId, &Table)| {
            let cache = *cache;
            let regions = table.with_second_at(machine);
            regions.map(|region| (cache, region)).collect::<Vec<_>>()
        };
        let regions: Vec<_> = self.caches.iter().flat_map(regions).collect();
        for (cache, region) in regions {
            for waiting in self.parked.take_for_map(cache, region) {
                self.pursue(waiting);
            }
        }
    }

    pub(super) fn tell_tables_of_suspects(&mut self) {
        for table in self.caches.values_mut().filter(|table| table.keeps_back()) {
            table.pending().suspects.clear();
            table
                .pending()
                .suspects
                .extend(self.suspects.keys().copied());
        }
    }

    /// When the next one is to be asked.
    pub(super) fn next_probe(&self) -> Option<Time> {
        let waits = |suspect: &&Suspect| suspect.probe.is_none();
        let waiting = self.suspects.values().filter(waits);
        waiting.map(|suspect| suspect.probe_at).min()
    }

    /// Leaves regions in doubt that requests wait for, as their second copies are long out of reach.
    fn doubt_second_copies(&mut self) {
        let now = self.now;
        let is_due = |suspect: &Suspect| suspect.doubt_at <= now;
        let due = self.suspects.iter().filter(|(_, suspect)| is_due(suspect));
        let machines: Vec<_> = due.map(|(machine, _)| *machine).collect();
        for machine in machines {
            let doubtful = self.awaited_with_second_at(machine);
            if let Some(suspect) = self.suspects.get_mut(&machine) {
                let pause = match doubtful.is_empty() {
                    true => PROBE_MAX,
                    false => OUT_OF_REACH.saturating_mul(2 << suspect.doubted.min(16)),
                };
                suspect.doubted += u32::from(!doubtful.is_empty());
                suspect.doubt_at = now.after(pause.min(OUT_OF_REACH_MAX));
            }
            for (cache, region, generation, life) in doubtful {
                self.raise_doubt(cache, region, generation, life);
            }
        }
    }

    /// Regions with a second copy on that machine, for which requests wait, and not in doubt yet.
    fn awaited_with_second_at(&self, machine: Machine) -> Vec<(CacheId, usize, u64, Life)> {
        let caches = self.caches.iter().filter(|(_, table)| table.keeps_back());
        let awaited = caches.flat_map(|(&cache, table)| {
            let regions = table.with_second_at(machine).filter(move |&region| {
                self.parked.is_awaited(cache, region) && !self.doubts.contains_key(&(cache, region))
            });
            regions.filter_map(move |region| {
                let generation = table.slot(region)?.generation;
                Some((cache, region, generation, table.life(region)?))
            })
        });
        awaited.collect()
    }

    /// Asks those that are suspected, each with one message at a time.
    pub(super) fn probe_suspects(&mut self) {
        self.doubt_second_copies();
        let now = self.now;
        let due = |suspect: &Suspect| suspect.probe.is_none() && suspect.probe_at <= now;
        let due = self.suspects.iter().filter(|(_, suspect)| due(suspect));
        let machines: Vec<_> = due.map(|(machine, _)| *machine).collect();
        for machine in machines {
            // Regions that are doubtful may be its own again once they are fenced.
            let is_wanted = |table: &Table| {
                let has_doubts = table.keeps_back() && !self.doubts.is_empty();
                has_doubts || table.with_second_at(machine).next().is_some()
            };
            let mut caches = self.caches.iter();
            let concerned = caches.find(|(_, table)| is_wanted(table));
            let Some(cache) = concerned.map(|(cache, _)| *cache) else {
                self.suspects.remove(&machine);
                self.tell_tables_of_suspects();
                continue;
            };
            self.replicates_sent += 1;
            let token = self.replicates_sent;
            if let Some(suspect) = self.suspects.get_mut(&machine) {
                suspect.probe = Some(token);
            }
            let replicate = Replicate {
                token,
                cache,
                pieces: Vec::new(),
            };
            let to = machine;
            self.actions.push_back(Action::Replicate { to, replicate });
        }
    }
}

impl Table {
    /// Regions whose first copy is here, and the second on that machine.
    fn with_second_at(&self, machine: Machine) -> impl Iterator<Item = usize> {
        self.places().enumerate().filter_map(move |(index, place)| {
            let is_there =
                matches!(place, RegionLocation::First { second, .. } if *second == machine);
            is_there.then_some(index)
        })
    }
}
