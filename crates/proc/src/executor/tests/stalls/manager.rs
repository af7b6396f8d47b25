//! The manager, by the rules of the cache's owner and its herald.

use std::sync::Arc;

use super::{
    ASK, Event, Host, LEASE, MACHINES, MILLISECOND, REGION, REGIONS, Step, Word, World, copy,
};
use crate::{Machine, RegionLocation, Slot};

impl World {
    pub(super) fn expire(&mut self, host: usize) {
        if self.hosts[host]
            .lease_until
            .is_none_or(|until| self.now < until)
        {
            return;
        }
        self.hosts[host].lease_until = None;
        for row in &mut self.rows {
            if row.machine != host {
                continue;
            }
            self.fences += 1;
            // A window of another generation: what is written from now on goes nowhere.
            row.memory = copy(&row.memory);
            row.generation += 1;
        }
    }

    pub(super) fn speak(&mut self, at: usize) {
        let now = self.now;
        let host = &mut self.hosts[at];
        if now < host.cut_until {
            if host.is_spoken_to {
                // What is under way may come, and its answer does not.
                (host.is_spoken_to, host.asking) = (false, None);
                host.connection += 1;
                host.told = vec![0; REGIONS];
            }
            return;
        }
        if let Some(asking) = host.asking.take() {
            host.lease_until = Some(now + u64::try_from(LEASE.as_nanos()).unwrap());
            host.granted = Some(asking);
        }
        let news: Vec<usize> = (0..REGIONS)
            .filter(|index| host.told[*index] < self.rows[*index].generation)
            .collect();
        if host.is_spoken_to || news.is_empty() && now < host.asked_at + ASK {
            return;
        }
        (host.is_spoken_to, host.asked_at) = (true, now);
        let connection = host.connection;
        let granted = host.granted.filter(|(over, _)| *over == connection);
        let word = Word {
            connection,
            entries: news
                .iter()
                .map(|index| (*index, self.slot(*index, at)))
                .collect(),
            until: granted.map(|(_, clock)| clock.after(LEASE)),
        };
        self.send(at, Event::Word(word));
    }

    fn slot(&self, index: usize, machine: usize) -> Slot {
        let row = &self.rows[index];
        let (memory, offset) = (Arc::clone(&row.memory).into(), 0);
        let place = match row.step {
            _ if row.machine != machine => {
                RegionLocation::At(Machine(u32::try_from(row.machine).unwrap()))
            }
            Step::Open => RegionLocation::Here { memory, offset },
            _ => RegionLocation::Leaving { memory, offset },
        };
        Slot {
            generation: row.generation,
            place,
        }
    }

    /// A machine goes by some entries. What its clock shows is looked at before that is heard.
    pub(super) fn hear_answer(&mut self, at: usize, connection: u64, known: &[(usize, u64)]) {
        let clock = self.clock(at);
        let host = &mut self.hosts[at];
        if connection != host.connection || !host.is_spoken_to {
            return;
        }
        host.is_spoken_to = false;
        for (index, generation) in known {
            host.told[*index] = host.told[*index].max(*generation);
            host.known[*index] = host.known[*index].max(*generation);
        }
        host.asking = Some((connection, clock));
    }

    fn all_know(&self, index: usize) -> bool {
        let generation = self.rows[index].generation;
        let knows = |host: &Host| host.lease_until.is_none() || host.known[index] >= generation;
        self.hosts.iter().all(knows)
    }

    pub(super) fn move_regions(&mut self) {
        for index in 0..REGIONS {
            let begins = self.is_lively() && self.below(40) == 0;
            let to = self.below(MACHINES);
            let until = self.now + MILLISECOND * self.below(30) as u64;
            let all_know = self.all_know(index);
            let row = &mut self.rows[index];
            let step = match row.step {
                Step::Open if begins && to != row.machine => Step::Frozen { to },
                Step::Frozen { to } if all_know => {
                    row.step = Step::Copying { to, until };
                    continue;
                }
                Step::Copying { to, until } if self.now >= until => {
                    row.machine = to;
                    let new = copy(&row.memory);
                    row.old = Some(std::mem::replace(&mut row.memory, new));
                    Step::Switched
                }
                Step::Switched if all_know => {
                    if let Some(old) = row.old.take() {
                        // It is used for something else.
                        old.write(0, &[0xee; REGION as usize]).unwrap();
                    }
                    Step::Open
                }
                _ => continue,
            };
            row.step = step;
            row.generation += 1;
        }
    }
}
