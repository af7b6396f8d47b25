//! The manager, by the rules of the cache's owner and its herald.

use std::sync::Arc;

use super::{
    ASK, Event, Host, LEASE, MACHINES, MILLISECOND, REGION, REGIONS, Row, Step, Word, World, copy,
};
use crate::service::WriteState;
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
            let has_second = row.second.as_ref().is_some_and(|(at, _)| *at == host);
            if row.machine != host && !(has_second && self.hosts_write) {
                continue;
            }
            self.fences += 1;
            if self.copies == 2 {
                row.is_doubtful |= self.hosts_write;
                continue;
            }
            // A window of another generation: what is written from now on goes nowhere.
            row.memory = copy(&row.memory);
            row.generation += 1;
        }
    }

    /// What a process may have been writing that is no more is fenced off.
    fn lapse(&mut self, host: usize) {
        self.hosts[host].is_permitted = false;
        self.hosts[host].lease_until = None;
        let has_copy = |row: &&mut Row| {
            let second = row.second.as_ref().map(|(at, _)| *at);
            row.machine == host || second == Some(host)
        };
        for row in self.rows.iter_mut().filter(has_copy) {
            row.is_doubtful = true;
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
        let permits = host.writes == Some(host.connection) && !host.is_permitted;
        if host.is_spoken_to || news.is_empty() && !permits && now < host.asked_at + ASK {
            return;
        }
        (host.is_spoken_to, host.asked_at) = (true, now);
        let connection = host.connection;
        let heard = std::mem::take(&mut host.heard);
        let granted = host.granted.filter(|(over, _)| *over == connection);
        let word = Word {
            connection,
            entries: news
                .iter()
                .map(|index| (*index, self.slot(*index, at)))
                .collect(),
            until: granted.map(|(_, clock)| clock.after(LEASE)),
            permits,
            heard,
        };
        self.send(at, Event::Word(word));
    }

    fn slot(&self, index: usize, machine: usize) -> Slot {
        let row = &self.rows[index];
        let (memory, offset) = (Arc::clone(&row.memory).into(), 0);
        let number = |machine: usize| Machine(u32::try_from(machine).unwrap());
        let is_open = row.step == Step::Open;
        let place = match &row.second {
            Some((at, memory)) if is_open && *at == machine => RegionLocation::Second {
                memory: Arc::clone(memory).into(),
                offset,
                first: number(row.machine),
            },
            _ if row.machine != machine => RegionLocation::At(number(row.machine)),
            Some((second, _)) if is_open => RegionLocation::First {
                memory,
                offset,
                second: number(*second),
            },
            None if is_open => RegionLocation::Here { memory, offset },
            _ => RegionLocation::Leaving { memory, offset },
        };
        Slot {
            generation: row.generation,
            place,
        }
    }

    /// A machine goes by some entries. What its clock shows is looked at before that is heard.
    pub(super) fn hear_answer(
        &mut self,
        at: usize,
        connection: u64,
        known: &[(usize, u64)],
        (doubts, state): (&[(usize, u64)], WriteState),
    ) {
        let clock = self.clock(at);
        let host = &mut self.hosts[at];
        if connection != host.connection || !host.is_spoken_to {
            return;
        }
        host.is_spoken_to = false;
        host.is_permitted |= state == WriteState::Writes;
        let is_doubtful = |row: &Row| {
            let second = row.second.as_ref().map(|(at, _)| *at);
            (row.machine == at || second == Some(at)) && row.is_doubtful
        };
        match (host.writes, state) {
            (_, WriteState::Writes) => host.writes = Some(connection),
            (None, WriteState::Wants) if !self.rows.iter().any(is_doubtful) => {
                host.writes = Some(connection);
                self.hosts_write = true;
            }
            (Some(since), _) if since != connection => {
                // It is another process.
                host.writes = None;
                self.lapse(at);
            }
            _ => {}
        }
        let host = &mut self.hosts[at];
        // Before what it goes by.
        for (index, generation) in doubts {
            let row = &mut self.rows[*index];
            row.is_doubtful |= *generation > row.sure_since;
        }
        host.heard.extend(doubts);
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
            let may_lose = self.is_lively() && self.copies == 2 && !self.is_calm;
            let loses = may_lose && self.below(200) == 0;
            let gives_up = self.copies == 2 && self.below(60) == 0;
            let swaps = self.below(4) == 0;
            let all_know = self.all_know(index);
            let row = &mut self.rows[index];
            let is_second = row.second.as_ref().is_some_and(|(at, _)| *at == to);
            let lacks = self.copies == 2 && row.second.is_none();
            let step = match row.step {
                Step::Open if loses => match row.second.take() {
                    Some((second, memory)) => {
                        self.losses += 1;
                        row.machine = second;
                        row.is_doubtful = false;
                        row.old = Some(std::mem::replace(&mut row.memory, memory));
                        Step::Switched
                    }
                    None => continue,
                },
                Step::Open if row.is_doubtful => Step::Settling,
                Step::Settling if all_know => {
                    // Windows of other generations, before the second is made as the first is.
                    row.memory = copy(&row.memory);
                    if let Some((_, second)) = &mut row.second {
                        *second = copy(&row.memory);
                    }
                    row.is_doubtful = false;
                    row.sure_since = row.generation;
                    Step::Switched
                }
                Step::Open if lacks && to != row.machine => Step::Frozen { to },
                Step::Open if begins && to != row.machine && !is_second => {
                    // What is copied is to be what stays, whichever is read so far.
                    if swaps && let Some((second, memory)) = &mut row.second {
                        std::mem::swap(second, &mut row.machine);
                        std::mem::swap(memory, &mut row.memory);
                    }
                    Step::Frozen { to }
                }
                // It is given up: the copies are as they were, whoever knows of the stop.
                Step::Frozen { .. } if gives_up => Step::Open,
                Step::Frozen { to } if all_know => {
                    row.step = Step::Copying { to, until };
                    let differs = !row.is_doubtful && row.copies_differ();
                    if differs {
                        self.complain(format!("the copies of region {index} differ unsaid"));
                    }
                    continue;
                }
                // As when they are settled: nothing lands in what is copied.
                Step::Copying { .. } if row.is_doubtful => Step::Settling,
                Step::Copying { to, until } if self.now >= until => {
                    let new = copy(&row.memory);
                    if lacks {
                        row.second = Some((to, new));
                    } else {
                        row.machine = to;
                        row.old = Some(std::mem::replace(&mut row.memory, new));
                    }
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
