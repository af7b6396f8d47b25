//! What one manager of a cache leaves to the next: which host has which region, under which generation.
//!
//! On the disk before a client or a host is told of it. It is written as the difference between what the
//! file says and what it is to say: an attempt that failed leaves nothing behind that counts, and the next
//! one makes good for it. Byte table: `docs/formats/cache-journal.md`.
//!
//! Invariants: generations in the file are never lower than those that clients know; a file that was cut
//! off inside its last batch is one that never got that batch; any other damage is an error.

mod format;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod image;
#[cfg(test)]
mod tests;

use std::io;

use cenote_durable::journal::KnownLog;

use crate::fleet::KeptMachine;
use crate::owner::Entry;
use crate::service::injected_faults::{InjectedFault, is_injected};
use format::Record;
pub use image::{Identity, Image, KeptHost, KeptRegion, Listed, listed};

pub use cenote_durable::journal::{JournalError, JournalFile, Log, Superseded};

/// An open journal: what its file is to say, and what is known of what it says.
pub struct Journal {
    log: KnownLog<Image>,
    wanted: Image,
}

impl Journal {
    /// What a log says; `None` when it is empty.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn load(log: &mut dyn Log) -> Result<Option<Image>, JournalError> {
        format::parse(&log.read()?)
    }

    /// Starts from `image`, which is on the disk once this returned.
    ///
    /// # Errors
    /// The system refuses; [`Superseded`] where the log is of a later manager.
    pub fn begin(log: Box<dyn Log>, image: Image) -> io::Result<Self> {
        let mut journal = Self {
            log: KnownLog::new(log),
            wanted: image,
        };
        journal.rewrite()?;
        Ok(journal)
    }

    /// What it is to say.
    #[must_use]
    pub fn wanted(&self) -> &Image {
        &self.wanted
    }

    /// Has it say this from the next [`Journal::write`] on. The record's hosts are the journal's.
    pub fn set_record(&mut self, record: &crate::owner::Record) {
        let number = |host: usize| u16::try_from(host).expect("at most 4096 hosts");
        self.wanted.leaving = record.leaving.iter().copied().map(number).collect();
        self.wanted.duration = record.duration;
        self.wanted.outdated.clone_from(&record.outdated);
        let kept = |entry: &Entry| KeptRegion {
            generation: entry.generation,
            access: entry.access,
            losses: match is_injected(InjectedFault::LossUnkept) {
                true => 0,
                false => entry.losses,
            },
            fell_back_ms: entry.fell_back_ms,
            hosts: entry.copies.iter().map(|copy| number(copy.host)).collect(),
        };
        self.wanted.regions = record.entries.iter().map(kept).collect();
    }

    /// The same of machines, in the order of their orders.
    pub fn set_machines(&mut self, machines: Vec<KeptMachine>) {
        self.wanted.machines = machines;
    }

    /// The same of hosts: as many as before, or more.
    pub fn set_hosts(&mut self, hosts: Vec<KeptHost>) {
        debug_assert!(
            hosts.len() >= self.wanted.hosts.len(),
            "one keeps its number"
        );
        self.wanted.hosts = hosts;
    }

    /// Brings the difference between what the file says and what it is to say to the disk. What
    /// fails is made good by the next call, whatever is wanted by then.
    ///
    /// # Errors
    /// The system refuses; the file may say either. [`Superseded`]: it stays as a later manager wrote it.
    pub fn write(&mut self) -> io::Result<()> {
        let Some(said) = self.log.said() else {
            return self.rewrite();
        };
        let news = difference(said, &self.wanted);
        if news.is_empty() {
            return Ok(());
        }
        if self.log.is_long(format::size(&self.wanted)) {
            return self.rewrite();
        }
        let apply = |said: &mut Image| said.clone_from(&self.wanted);
        match self.log.append(&format::batch(&news), apply) {
            // By a later manager; or by an earlier one, which looked, was stopped, and went on.
            Err(error) if Superseded::is_in(&error) => self.rewrite(),
            appended => appended,
        }
    }

    /// Has it say `epoch` again, as before this manager, whose journal nobody is to go on from as
    /// if it were the newest.
    ///
    /// # Errors
    /// The system refuses; [`Superseded`] where the log is not this manager's any more.
    pub fn put_back(&mut self, epoch: u64) -> io::Result<()> {
        if self.epoch_there()? != Some(self.wanted.epoch) {
            return Err(Superseded.into());
        }
        self.wanted.epoch = epoch;
        let bytes = format::whole(&self.wanted);
        self.log.replace(&bytes, self.wanted.clone())
    }

    /// Where folders are shared, a manager on another machine may have written, and of a later version
    /// than this one's.
    fn epoch_there(&mut self) -> io::Result<Option<u64>> {
        let there = format::epoch(&self.log.read()?);
        there.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Writes all of it, over whatever is not of a later manager: also over what another one put
    /// there meanwhile. Each further turn of the loop takes another one's write.
    fn rewrite(&mut self) -> io::Result<()> {
        let bytes = format::whole(&self.wanted);
        loop {
            if self.epoch_there()? > Some(self.wanted.epoch) {
                return Err(Superseded.into());
            }
            match self.log.replace(&bytes, self.wanted.clone()) {
                Err(error) if Superseded::is_in(&error) => {
                    tracing::warn!("another manager wrote over the journal: looked at again");
                }
                replaced => return replaced,
            }
        }
    }
}

/// What brings a file that says `said` to say what is `wanted`. Regions and hosts are never fewer.
fn difference(said: &Image, wanted: &Image) -> Vec<Record> {
    let mut news = Vec::new();
    for (number, host) in (0..).zip(&wanted.hosts) {
        if said.hosts.get(usize::from(number)) != Some(host) {
            news.push(Record::Host {
                number,
                host: host.clone(),
            });
        }
    }
    for (number, region) in (0_u32..).zip(&wanted.regions) {
        let known = said.regions.get(number as usize);
        let is_injected = is_injected(InjectedFault::GenerationUnkept);
        let is_same_place = |known: &KeptRegion| known.hosts == region.hosts;
        if known != Some(region) && !(is_injected && known.is_some_and(is_same_place)) {
            news.push(Record::Region {
                number,
                region: region.clone(),
            });
        }
    }
    for number in 0..u16::try_from(wanted.hosts.len()).expect("at most 4096 hosts") {
        let is_leaving = wanted.leaving.contains(&number);
        if said.leaving.contains(&number) != is_leaving {
            news.push(Record::Leaving { number, is_leaving });
        }
    }
    for machine in &wanted.machines {
        let before = said.find_machine(machine.order);
        if before.map(|at| &said.machines[at]) != Ok(machine) {
            news.push(Record::Machine(machine.clone()));
        }
    }
    for machine in &said.machines {
        if wanted.find_machine(machine.order).is_err() {
            news.push(Record::NoMachine(machine.order));
        }
    }
    if said.duration != wanted.duration {
        news.push(Record::Duration(wanted.duration));
    }
    for (&region, &until_ms) in &wanted.outdated {
        if said.outdated.get(&region) != Some(&until_ms) {
            news.push(Record::Outdated { region, until_ms });
        }
    }
    news
}
