//! Taking a partition over: parities agree on what was acknowledged, and drop the rest.
//!
//! Every parity tells its last operation, and from then on refuses those of earlier views. What all
//! of them have is kept: an operation behind the least was not held by all, so never acknowledged
//! (C4). Nobody is served, and no unit asked for, before all have applied what is kept.
//! Paper: \[cocytus16\] section 4.1.

use std::collections::BTreeMap;

use super::debts::Word;
use super::member::Member;
use super::message::{Lacks, Message, RUN_UNITS_MAX};
use super::process::Process;
use super::replica::{Diverged, Xid};
use super::view::View;
use crate::injected_faults::{InjectedFault, is_injected};

/// A partition that is being taken over.
#[derive(Debug)]
pub(super) struct Settling {
    /// The backups, and what they said they have.
    heard: BTreeMap<Process, Option<(Xid, Lacks)>>,
    /// What is kept, and who has dropped the rest.
    stable: Option<(Xid, Vec<Process>)>,
}

impl Settling {
    pub(super) fn new(view: &View, partition: usize) -> Self {
        let backups = view.backups(partition);
        Self {
            heard: backups.map(|process| (process, None)).collect(),
            stable: None,
        }
    }

    /// What it waits for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = (Process, Word)> + '_ {
        self.heard.iter().filter_map(|(process, heard)| {
            let word = match (&self.stable, heard) {
                (None, None) => Word::Have,
                (Some((_, settled)), _) if !settled.contains(process) => Word::Settled,
                _ => return None,
            };
            Some((*process, word))
        })
    }
}

impl Member {
    pub(super) fn on_have(
        &mut self,
        from: Process,
        partition: usize,
        xid: Xid,
        lacks: Lacks,
    ) -> Result<(), Diverged> {
        let is_possible = lacks.units_from.is_none_or(|unit| {
            unit < self.shape.units() && unit.is_multiple_of(u64::from(RUN_UNITS_MAX))
        });
        let Some(owned) = self.owners.get_mut(&partition) else {
            return Ok(());
        };
        let Some(settling) = &mut owned.settling else {
            let known = owned.owner.committed_xid()..=owned.owner.last_xid();
            if !is_possible || (lacks.keys_from != Some(0) && !known.contains(&xid)) {
                self.accuse(from);
                return Ok(());
            }
            return owned.owner.hear(from, xid, lacks);
        };
        if !is_possible {
            self.accuse(from);
            return Ok(());
        }
        let Some(heard) = settling.heard.get_mut(&from) else {
            return Ok(());
        };
        *heard = Some((xid, lacks));
        match &mut settling.stable {
            Some((stable, settled)) => {
                // It said so on a new link: what it was told on the last one may be lost.
                settled.retain(|process| *process != from);
                let stable = *stable;
                self.send(from, Message::Settle { partition, stable });
                Ok(())
            }
            None => self.settle(partition),
        }
    }

    /// Settles partitions that no other parity has a say in.
    pub(super) fn settle_alone(&mut self) -> Result<(), Diverged> {
        let settling = |owned: &super::member::Owned| owned.settling.is_some();
        let all: Vec<usize> = self
            .owners
            .iter()
            .filter(|(_, owned)| settling(owned))
            .map(|(index, _)| *index)
            .collect();
        all.into_iter().try_for_each(|index| self.settle(index))
    }

    /// Decides what is kept, once all have been heard.
    fn settle(&mut self, partition: usize) -> Result<(), Diverged> {
        let own = self.stream(partition).map(|stream| stream.latest);
        let owned = self.owners.get_mut(&partition);
        let Some(settling) = owned.and_then(|owned| owned.settling.as_mut()) else {
            return Ok(());
        };
        if settling.stable.is_some() || settling.heard.values().any(Option::is_none) {
            return Ok(());
        }
        // One that came after the loss has been told nothing: nobody waited for its word before it.
        let counts =
            |lacks: &Lacks| lacks.keys_from != Some(0) || is_injected(InjectedFault::JoinUncounted);
        let others = settling.heard.values().flatten();
        let others = others
            .filter(|(_, lacks)| counts(lacks))
            .map(|(xid, _)| *xid);
        let stable = others.chain(own).min().unwrap_or(0);
        settling.stable = Some((stable, Vec::new()));
        let parities: Vec<Process> = settling.heard.keys().copied().collect();
        for process in parities {
            self.send(process, Message::Settle { partition, stable });
        }
        self.keep(partition, stable)?;
        self.open_if_settled(partition)
    }

    fn keep(&mut self, partition: usize, stable: Xid) -> Result<(), Diverged> {
        if let Some(stream) = self.stream(partition) {
            let applied = stream.applied();
            if stable < applied && stream.lacks().keys_from != Some(0) {
                return Err(Diverged::Gap {
                    xid: stable,
                    applied,
                });
            }
            stream.discard(stable);
        }
        self.apply(partition, stable)
    }

    pub(super) fn on_settle(
        &mut self,
        from: Process,
        partition: usize,
        stable: Xid,
    ) -> Result<(), Diverged> {
        self.keep(partition, stable)?;
        self.send(from, Message::Settled { partition });
        Ok(())
    }

    pub(super) fn on_settled(&mut self, from: Process, partition: usize) -> Result<(), Diverged> {
        let owned = self.owners.get_mut(&partition);
        let settling = owned.and_then(|owned| owned.settling.as_mut());
        if let Some(Settling {
            heard,
            stable: Some((_, settled)),
        }) = settling
            && heard.contains_key(&from)
            && !settled.contains(&from)
        {
            settled.push(from);
        }
        self.open_if_settled(partition)
    }

    /// Serves the partition once all parities agree.
    fn open_if_settled(&mut self, partition: usize) -> Result<(), Diverged> {
        let Some(owned) = self.owners.get_mut(&partition) else {
            return Ok(());
        };
        let Some(Settling {
            heard,
            stable: Some((stable, settled)),
        }) = &owned.settling
        else {
            return Ok(());
        };
        let is_early = is_injected(InjectedFault::UnitsBeforeSettled);
        if settled.len() < heard.len() && !is_early {
            return Ok(());
        }
        let stream = self
            .parity
            .as_mut()
            .map(|parity| &mut parity.streams[partition]);
        let Some(replica) = stream.and_then(|stream| stream.replica.take()) else {
            return Ok(());
        };
        let stable = *stable;
        let backups: Vec<(Process, Lacks)> = heard
            .iter()
            .filter_map(|(process, said)| Some((*process, said.as_ref()?.1)))
            .collect();
        owned.settling = None;
        owned.owner.begin_from(replica);
        for (process, lacks) in backups {
            owned.owner.hear(process, stable, lacks)?;
        }
        self.say_ready(partition);
        Ok(())
    }
}
