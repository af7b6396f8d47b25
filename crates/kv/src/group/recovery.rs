//! Recovering lost units, and moving them to a new owner.
//!
//! The leader starts an attempt for a run of units that somebody wants. Every owner sends what it
//! has of the run, or that it is lost, to all processes that recover. Each of those subtracts what
//! is known from a copy of its parity and sends what is left to the leader, who solves for the lost
//! partitions and sends each its bytes. A unit that is already recovered counts as known, so that a
//! second failure costs no more than it must. Attempts end with their view, and are made again when
//! nothing comes of them. Paper: \[cocytus16\] sections 4.1.3, 4.2 and 5.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::member::{Member, Shape};
use super::message::{Content, Message, RUN_UNITS_MAX, Run, UNIT_BYTES};
use super::operation::{Effect, Operation};
use super::parity;
use super::process::Process;
use super::replica::Diverged;
use super::sender::bytes_of;
use super::view::{Partition, View};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::allocator::ALIGN_BYTES;
use crate::memory::buffer::Buffer;
use crate::memory::region::is_zero;

/// How long an attempt, or a question for units, may take before it is made again.
const PATIENCE_NS: u64 = 200_000_000;
/// Attempts of a leader at the same time.
const ROUNDS_MAX: usize = 64;
/// Runs of one partition that are asked for ahead of need, ...
const AHEAD_MAX: usize = 8;
/// ... and while requests are served, which wait for what is done with each.
const AHEAD_BUSY_MAX: usize = 2;
/// For how long a partition is busy after a request.
const BUSY_NS: u64 = 5_000_000;
/// Runs of one partition that are asked for at all.
const ASKED_MAX: usize = 256;

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// At the leader, by their first unit.
    rounds: BTreeMap<u64, Round>,
    /// At the leader: attempts so far.
    attempts: u64,
    /// At the leader: partitions of which all parities agree.
    ready: u32,
    /// Runs asked for: (partition, first unit) -> the run and when.
    asked: BTreeMap<(usize, u64), (Run, u64)>,
    /// Where to look for what is missing next.
    next: u64,
}

/// One attempt of a leader.
#[derive(Debug)]
struct Round {
    number: u64,
    run: Run,
    begun: u64,
    /// By partition: what is left of the parity of who recovers it, and of whom it is made.
    residuals: BTreeMap<usize, (u32, Bytes)>,
}

impl Shape {
    /// Units of an address space.
    pub fn units(&self) -> u64 {
        self.region_bytes / UNIT_BYTES
    }

    /// Whether an operation stays inside the address space.
    pub(super) fn fits(&self, operation: &Operation) -> bool {
        let Effect::Put(entry) = operation.effect() else {
            return true;
        };
        let end = entry.address.checked_add(u64::from(entry.value_bytes));
        let is_aligned = entry.address.is_multiple_of(ALIGN_BYTES);
        is_aligned && end.is_some_and(|end| end <= self.region_bytes)
    }

    /// Whether a run is one of the address space, and the bytes are as many or none.
    pub(super) fn has(&self, run: Run, bytes: &[u8]) -> bool {
        let end = run.first.checked_add(u64::from(run.units));
        let is_inside = end.is_some_and(|end| end <= self.units());
        is_inside
            && (1..=RUN_UNITS_MAX).contains(&run.units)
            && (bytes.is_empty() || bytes.len() == run.bytes())
    }
}

impl Member {
    /// Asks for units of a partition that a request needs, or that will be needed.
    pub fn want(&mut self, partition: usize, run: Run, now: u64) {
        let asked = &mut self.recovery.asked;
        let before = asked.get(&(partition, run.first));
        let is_pending = before.is_some_and(|(known, at)| {
            known.units >= run.units && now.saturating_sub(*at) < PATIENCE_NS
        });
        if is_pending || asked.len() >= ASKED_MAX {
            return;
        }
        let Some(owned) = self.owners.get(&partition) else {
            return;
        };
        if owned.settling.is_some() {
            return;
        }
        asked.insert((partition, run.first), (run, now));
        let Some(view) = &self.view else { return };
        match view.partitions[partition] {
            Partition::Migrating { slot, .. } => {
                if let Some(holder) = view.parities[slot].process() {
                    self.send(holder, Message::Pull { partition, run });
                }
            }
            _ => match view.leader() {
                Some(leader) if leader == self.me => self.start_round(run, now),
                Some(leader) => self.send(leader, Message::Want { run }),
                None => {}
            },
        }
    }

    /// Asks for more of what is missing, and again for what did not come.
    pub(super) fn pump_recovery(&mut self, now: u64) {
        let is_old = |at: u64| now.saturating_sub(at) >= PATIENCE_NS;
        self.recovery.rounds.retain(|_, round| !is_old(round.begun));
        let asked = self.recovery.asked.iter();
        let unanswered = asked.filter(|(_, (_, at))| is_old(*at));
        let mut wanted: Vec<(usize, Run)> = unanswered
            .map(|((index, _), (run, _))| (*index, *run))
            .collect();
        self.recovery.asked.retain(|_, (_, at)| !is_old(*at));
        wanted.retain(|(index, run)| {
            let present = self
                .owners
                .get(index)
                .and_then(|owned| owned.owner.present.as_ref());
            present.is_some_and(|present| present.count(run) < run.units)
        });
        for (index, owned) in &mut self.owners {
            let requested = owned.owner.wanted_at.get();
            let is_busy = requested.is_some_and(|at| now.saturating_sub(at) < BUSY_NS);
            let ahead_max = if is_busy { AHEAD_BUSY_MAX } else { AHEAD_MAX };
            let Some(present) = owned.owner.present.as_mut() else {
                continue;
            };
            if owned.settling.is_some() || present.is_whole() {
                continue;
            }
            let asked = self.recovery.asked.range((*index, 0)..=(*index, u64::MAX));
            let again = wanted.iter().filter(|(wanted, _)| wanted == index);
            let mut free = ahead_max.saturating_sub(asked.count() + again.count());
            while free > 0 {
                let Some(run) = present.next_missing(self.recovery.next) else {
                    break;
                };
                self.recovery.next = (run.first / 64 + 1) * 64;
                wanted.push((*index, run));
                free -= 1;
            }
        }
        for (index, run) in wanted {
            self.want(index, run, now);
        }
    }

    pub(super) fn say_ready(&mut self, partition: usize) {
        match self.view.as_ref().and_then(View::leader) {
            Some(leader) if leader == self.me => self.recovery.ready |= 1 << partition,
            Some(leader) => self.send(leader, Message::Ready { partition }),
            None => {}
        }
    }

    /// Tells a leader again what is ready here.
    pub(super) fn announce_ready(&mut self, other: Process) {
        if self.view.as_ref().and_then(View::leader) != Some(other) {
            return;
        }
        let ready: Vec<usize> = self
            .owners
            .iter()
            .filter(|(_, owned)| owned.settling.is_none())
            .map(|(index, _)| *index)
            .collect();
        ready
            .into_iter()
            .for_each(|partition| self.say_ready(partition));
    }

    pub(super) fn on_recovery(
        &mut self,
        from: Process,
        message: Message,
        now: u64,
    ) -> Result<(), Diverged> {
        match message {
            Message::Ready { partition } => self.recovery.ready |= 1 << partition,
            Message::Want { run } if self.shape.has(run, &[]) => self.start_round(run, now),
            Message::Fetch { attempt, run } if self.shape.has(run, &[]) && self.is_leader(from) => {
                return self.on_fetch(from, attempt, run, now);
            }
            Message::Units {
                attempt,
                run,
                partition,
                content,
            } if self.shape.has(run, &[]) => {
                return self.on_units(attempt, run, partition, &content);
            }
            Message::Residual {
                attempt,
                run,
                lost,
                bytes,
            } if self.shape.has(run, &bytes) => {
                let slot = self.view.as_ref().and_then(|view| view.slot_of(from));
                return self.on_residual(slot, attempt, run, lost, bytes);
            }
            Message::Mixed { attempt, run } if self.shape.has(run, &[]) => {
                self.split_round(attempt, run, now);
            }
            Message::Solved {
                run,
                partition,
                bytes,
            } if self.shape.has(run, &bytes) && self.is_leader(from) => {
                self.install(partition, run, &bytes);
            }
            Message::Pull { partition, run } if self.shape.has(run, &[]) => {
                self.on_pull(from, partition, run);
            }
            Message::Pulled {
                partition,
                run,
                bytes,
            } if self.shape.has(run, &bytes) && self.is_holder(from, partition) => {
                self.install(partition, run, &bytes);
            }
            _ => {}
        }
        Ok(())
    }

    fn is_leader(&self, process: Process) -> bool {
        self.view.as_ref().and_then(View::leader) == Some(process)
    }

    /// Whether a process has the values of a partition that another has taken over.
    fn is_holder(&self, process: Process, partition: usize) -> bool {
        let holder = self.view.as_ref().and_then(|view| {
            let slot = view.slot_holding(partition)?;
            view.parities[slot].process()
        });
        holder == Some(process)
    }

    /// Starts an attempt, unless one for some of the units is under way.
    fn start_round(&mut self, run: Run, now: u64) {
        let Some(view) = &self.view else { return };
        let recovering = view
            .recovering()
            .fold(0, |mask, (index, _)| mask | 1 << index);
        let is_agreed = self.recovery.ready & recovering == recovering
            || is_injected(InjectedFault::UnitsBeforeSettled);
        let rounds = &mut self.recovery.rounds;
        let is_busy = rounds.values().any(|round| round.run.meets(&run));
        if view.leader() != Some(self.me) || !is_agreed || is_busy || rounds.len() >= ROUNDS_MAX {
            // Whoever wants the units asks again.
            return;
        }
        self.recovery.attempts += 1;
        let attempt = self.recovery.attempts;
        let round = Round {
            number: attempt,
            run,
            begun: now,
            residuals: BTreeMap::new(),
        };
        self.recovery.rounds.insert(run.first, round);
        let mut owners: Vec<Process> = (0..view.partitions.len())
            .filter_map(|index| view.owner(index))
            .collect();
        owners.sort_unstable();
        owners.dedup();
        for owner in owners {
            if owner == self.me {
                let done = self.on_fetch(owner, attempt, run, now);
                self.note(done);
            } else {
                self.send(owner, Message::Fetch { attempt, run });
            }
        }
    }

    /// Somebody has some of the units and lacks others: they are asked for one by one.
    fn split_round(&mut self, attempt: u64, run: Run, now: u64) {
        let round = self.recovery.rounds.get(&run.first);
        if round.is_none_or(|round| round.number != attempt) {
            return;
        }
        self.recovery.rounds.remove(&run.first);
        if run.units > 1 {
            for first in run.first..run.first + u64::from(run.units) {
                self.start_round(Run { first, units: 1 }, now);
            }
        }
    }

    /// Sends what is here of a run to all who recover.
    fn on_fetch(
        &mut self,
        from: Process,
        attempt: u64,
        run: Run,
        now: u64,
    ) -> Result<(), Diverged> {
        let Some(view) = &self.view else {
            return Ok(());
        };
        let recovering: Vec<Process> = view
            .recovering()
            .filter_map(|(_, slot)| view.parities[slot].process())
            .collect();
        let mut said = Vec::new();
        let mut absent = Vec::new();
        for (index, owned) in &self.owners {
            if owned.settling.is_some() {
                return Ok(());
            }
            let here = match &owned.owner.present {
                None => run.units,
                Some(present) => present.count(&run),
            };
            let content = if here == run.units {
                Content::Known {
                    at: owned.owner.committed_xid(),
                    bytes: bytes_of(&owned.owner.region, run),
                }
            } else if matches!(view.partitions[*index], Partition::Migrating { .. }) {
                // They are on their way here, not lost: the attempt is made again.
                absent.push(*index);
                continue;
            } else if here == 0 {
                Content::Lost
            } else if from == self.me {
                let begun = self
                    .recovery
                    .rounds
                    .get(&run.first)
                    .map_or(0, |round| round.begun);
                self.split_round(attempt, run, begun);
                return Ok(());
            } else {
                self.send(from, Message::Mixed { attempt, run });
                return Ok(());
            };
            said.push((*index, content));
        }
        for partition in absent {
            self.want(partition, run, now);
        }
        for (partition, content) in said {
            for process in &recovering {
                if *process == self.me {
                    self.on_units(attempt, run, partition, &content)?;
                } else {
                    let message = Message::Units {
                        attempt,
                        run,
                        partition,
                        content: content.clone(),
                    };
                    self.send(*process, message);
                }
            }
        }
        Ok(())
    }

    fn on_units(
        &mut self,
        attempt: u64,
        run: Run,
        partition: usize,
        content: &Content,
    ) -> Result<(), Diverged> {
        let Some(parity) = &mut self.parity else {
            return Ok(());
        };
        let slot = parity.slot;
        let Some(residual) = parity.learn(attempt, run, partition, content)? else {
            return Ok(());
        };
        let Some(leader) = self.view.as_ref().and_then(View::leader) else {
            return Ok(());
        };
        let parity::Residual { lost, bytes } = residual;
        if leader == self.me {
            return self.on_residual(Some(slot), attempt, run, lost, bytes);
        }
        let message = Message::Residual {
            attempt,
            run,
            lost,
            bytes,
        };
        self.send(leader, message);
        Ok(())
    }

    /// Solves for the lost partitions once all who recover them have been heard.
    fn on_residual(
        &mut self,
        slot: Option<usize>,
        attempt: u64,
        run: Run,
        lost: u32,
        bytes: Bytes,
    ) -> Result<(), Diverged> {
        let Some(view) = &self.view else {
            return Ok(());
        };
        let held = slot.and_then(|slot| view.held_by(slot));
        let round = self.recovery.rounds.get_mut(&run.first);
        let (Some(partition), Some(round)) = (held, round) else {
            return Ok(());
        };
        if round.number != attempt || round.run != run || bytes.len() != run.bytes() {
            return Ok(());
        }
        round.residuals.insert(partition, (lost, bytes));
        let is_heard = |index: usize| {
            lost >> index & 1 == 0
                || round
                    .residuals
                    .get(&index)
                    .is_some_and(|(same, _)| *same == lost)
        };
        if !(0..self.shape.k).all(is_heard) {
            return Ok(());
        }
        let residuals: Vec<(usize, usize, Bytes)> = round
            .residuals
            .iter()
            .filter(|(index, _)| lost >> **index & 1 == 1)
            .filter_map(|(index, (_, bytes))| {
                Some((*index, view.slot_holding(*index)?, bytes.clone()))
            })
            .collect();
        // All that is known has been subtracted.
        let zeroes = (0..self.shape.k).filter(|index| lost >> index & 1 == 0);
        let zeroes: u64 = zeroes.map(|index| 1 << index).sum();
        let parities = residuals.iter();
        let parities = parities.map(|(_, slot, bytes)| (self.shape.k + slot, &bytes[..]));
        let sources: Vec<(usize, &[u8])> = parities.collect();
        let mut solved = Vec::new();
        let mut own = None;
        for (partition, slot, _) in &residuals {
            if view.parities[*slot].process() == Some(self.me) {
                own = Some(*partition);
                continue;
            }
            let mut out = Buffer::new(run.bytes());
            let rebuilt = self
                .code
                .rebuild_beside(*partition, &sources, zeroes, &mut out);
            if rebuilt.is_err() {
                return Ok(());
            }
            let owner = view.parities[*slot].process();
            solved.push((*partition, owner, out.freeze()));
        }
        self.recovery.rounds.remove(&run.first);
        if let Some(partition) = own {
            self.solve_here(partition, run, &sources, zeroes);
        }
        for (partition, owner, bytes) in solved {
            if let Some(owner) = owner {
                let message = Message::Solved {
                    run,
                    partition,
                    bytes,
                };
                self.send(owner, message);
            }
        }
        Ok(())
    }

    /// Solves for the partition that this process recovers: to where it stays, if nothing of the run is
    /// there yet.
    fn solve_here(&mut self, partition: usize, run: Run, sources: &[(usize, &[u8])], zeroes: u64) {
        if sources.iter().all(|(_, bytes)| is_zero(bytes)) {
            return self.install(partition, run, &[]);
        }
        let code = Arc::clone(&self.code);
        let solve = |range: Range<usize>, out: &mut [u8]| {
            let parts = sources.iter();
            let parts = parts.map(|(index, bytes)| (*index, &bytes[range.clone()]));
            let parts: Vec<(usize, &[u8])> = parts.collect();
            let solved = code.rebuild_beside(partition, &parts, zeroes, out);
            solved.expect("who is heard has a slot of its own and said all of the run");
        };
        let held = self.parity.as_mut().filter(|parity| {
            let held = parity.held();
            held.is_some_and(|(held, _)| *held == partition)
        });
        match held.and_then(|parity| parity.install_in_place(run, &solve)) {
            Some(filled) => {
                self.takeovers.note_units(partition, filled);
                let owned = self.owners.get_mut(&partition);
                if let Some(present) = owned.and_then(|owned| owned.owner.present.as_mut()) {
                    present.add_all(&run);
                }
                self.recovery.asked.remove(&(partition, run.first));
            }
            None => {
                let mut out = Buffer::new(run.bytes());
                solve(0..run.bytes(), &mut out);
                self.install(partition, run, &out);
            }
        }
    }

    /// Units of a partition that this process owns have come.
    fn install(&mut self, partition: usize, run: Run, bytes: &[u8]) {
        let Some(owned) = self.owners.get_mut(&partition) else {
            return;
        };
        let Some(present) = owned.owner.present.as_mut() else {
            return;
        };
        let held = self.parity.as_ref().and_then(|parity| parity.held());
        if held.is_some_and(|(held, _)| *held == partition)
            && let Some(parity) = &mut self.parity
        {
            let filled = parity.install(run, bytes);
            self.takeovers.note_units(partition, filled);
            present.add_all(&run);
        } else {
            parity::install(&owned.owner.region, present, run, bytes);
        }
        self.recovery.asked.remove(&(partition, run.first));
    }

    /// Sends values of a partition to who has taken it over.
    fn on_pull(&mut self, from: Process, partition: usize, run: Run) {
        let (Some(view), Some(parity)) = (&self.view, &self.parity) else {
            return;
        };
        let is_partner = matches!(
            view.partitions[partition],
            Partition::Migrating { slot, process, .. } if slot == parity.slot && process == from
        );
        let is_here = match parity.held() {
            Some((held, units)) => *held == partition && units.count(&run) == run.units,
            None => true,
        };
        if is_partner && is_here {
            let bytes = bytes_of(parity.region(partition), run);
            let message = Message::Pulled {
                partition,
                run,
                bytes,
            };
            self.send(from, message);
        }
    }
}
