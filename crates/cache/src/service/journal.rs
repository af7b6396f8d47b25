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
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use cenote_pool::control::Window;

use crate::fleet::{KeptMachine, Order};
use crate::links::HostConfig;
use crate::owner::{Access, Copy, Entry};
use crate::service::injected_faults::{InjectedFault, is_injected};
use format::Record;

pub use cenote_durable::journal::{JournalError, JournalFile, Log, Superseded};

/// What does not change in the life of a cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Identity {
    /// The cache.
    pub cache: u128,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Slabs of a region.
    pub slabs_per_region: u32,
    /// Copies of each region.
    pub copies: u8,
}

/// A host by what outlives a cluster file in which it moves or is left out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeptHost {
    /// Its name: what identifies it.
    pub name: String,
    /// Where it was reached last.
    pub address: String,
    /// Its failure domain.
    pub domain: String,
}

/// A region as the next manager begins with it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeptRegion {
    /// Of its entry.
    pub generation: u64,
    /// What clients may do.
    pub access: Access,
    /// How many times its bytes were lost.
    pub losses: u32,
    /// Of what it holds since, when it was so, in milliseconds since 1970; 0: zeros.
    pub fell_back_ms: u64,
    /// The hosts that have it, by their number in the journal.
    pub hosts: Vec<u16>,
}

/// What a journal says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Image {
    /// Of the cache.
    pub identity: Identity,
    /// Managers so far.
    pub epoch: u64,
    /// Hosts by their number. One keeps its number for good.
    pub hosts: Vec<KeptHost>,
    /// By region.
    pub regions: Vec<KeptRegion>,
    /// Hosts that are to go, by their numbers.
    pub leaving: Vec<u16>,
    /// How long the cache is kept after it was renewed; `None`: until it is deleted.
    pub duration: Option<Duration>,
    /// Machines that providers gave, or may have given, by their orders.
    pub machines: Vec<KeptMachine>,
    /// By region, until when a checkpoint's copies of it are of bytes that were cut off, in milliseconds
    /// since 1970.
    pub outdated: BTreeMap<u32, u64>,
}

impl Image {
    /// Of a cache that had no manager yet.
    #[must_use]
    pub fn fresh(identity: Identity) -> Self {
        Self {
            identity,
            epoch: 0,
            hosts: Vec::new(),
            regions: Vec::new(),
            leaving: Vec::new(),
            duration: None,
            machines: Vec::new(),
            outdated: BTreeMap::new(),
        }
    }

    /// Where the machine of an order is, or would be.
    fn find_machine(&self, order: Order) -> Result<usize, usize> {
        self.machines.binary_search_by_key(&order, |one| one.order)
    }

    /// The hosts by their numbers, as they are reached now: those of `cluster` where it names them, and at the
    /// end those that are new. A host that the cluster has no more keeps its number and its last address. One
    /// whose address a host with another name has by now was renamed: it is that host, with all that it has.
    #[must_use]
    pub fn hosts_in(&self, cluster: &[HostConfig]) -> Vec<HostConfig> {
        let now = |kept: &KeptHost| {
            let named = cluster.iter().find(|host| host.name == kept.name).cloned();
            named.or_else(|| {
                Some(HostConfig {
                    name: kept.name.clone(),
                    address: kept.address.parse().ok()?,
                    domain: kept.domain.clone(),
                })
            })
        };
        // An address that does not parse was checked when it was read.
        let mut hosts: Vec<HostConfig> = self.hosts.iter().filter_map(now).collect();
        let is_new = |host: &&HostConfig| !self.hosts.iter().any(|kept| kept.name == host.name);
        for new in cluster.iter().filter(is_new) {
            let is_it = |&number: &usize| {
                hosts[number].address == new.address
                    && listed(&hosts[number], cluster) == Listed::Displaced
            };
            // Several were at that address, one after the other: the one of which regions are there.
            let known = 0..self.hosts.len().min(hosts.len());
            match known
                .filter(is_it)
                .max_by_key(|&number| (self.has_regions_on(number), number))
            {
                Some(number) => hosts[number] = new.clone(),
                None => hosts.push(new.clone()),
            }
        }
        hosts
    }

    /// Whether a host's machine is one that a provider gave.
    #[must_use]
    pub fn has_machine(&self, number: usize) -> bool {
        let is_it = |host: u16| usize::from(host) == number;
        self.machines
            .iter()
            .any(|machine| machine.host.is_some_and(is_it))
    }

    fn has_regions_on(&self, number: usize) -> bool {
        let is_it = |&host: &u16| usize::from(host) == number;
        self.regions
            .iter()
            .any(|region| region.hosts.iter().any(is_it))
    }

    /// With what the next owner begins.
    #[must_use]
    pub fn record(&self) -> crate::owner::Record {
        let leaving = match is_injected(InjectedFault::NoticeForgotten) {
            true => &[][..],
            false => &self.leaving,
        };
        crate::owner::Record {
            hosts: self.hosts.iter().map(|host| host.name.clone()).collect(),
            leaving: leaving.iter().copied().map(usize::from).collect(),
            duration: self.duration,
            outdated: self.outdated.clone(),
            entries: self.entries(),
        }
    }

    fn entries(&self) -> Vec<Entry> {
        // Hosts tell of the real ones.
        let unknown = Window {
            id: u32::MAX,
            generation: 0,
            len_bytes: self.identity.slab_bytes,
            rights: 0,
        };
        let slabs = self.identity.slabs_per_region as usize;
        let regions = self.regions.iter().zip(0..);
        let entry = |(kept, region): (&KeptRegion, u32)| Entry {
            region,
            generation: kept.generation,
            access: kept.access,
            copies: kept
                .hosts
                .iter()
                .map(|&host| Copy::new(usize::from(host), vec![unknown; slabs]))
                .collect(),
            losses: kept.losses,
            fell_back_ms: kept.fell_back_ms,
            next: Vec::new(),
        };
        regions.map(entry).collect()
    }
}

/// What the cluster says of a host that the cache knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Listed {
    /// It is one of the cluster's, and lends.
    There,
    /// It is not, or lends no more. What it has of the cache may be there still.
    NoMore,
    /// It is not, and a host that is has its address: whoever answers there is that one.
    Displaced,
}

/// What `cluster` says of a host, by its name and its address.
#[must_use]
pub fn listed(host: &HostConfig, cluster: &[HostConfig]) -> Listed {
    if cluster.iter().any(|other| other.name == host.name) {
        Listed::There
    } else if cluster.iter().any(|other| other.address == host.address) {
        Listed::Displaced
    } else {
        Listed::NoMore
    }
}

/// A journal is written again when it is longer than this and four times what it has to say.
const COMPACT_BYTES: u64 = 64 << 10;

/// An open journal: what its file is to say, and what is known of what it says.
pub struct Journal {
    log: Box<dyn Log>,
    wanted: Image,
    disk: Disk,
}

/// What the file says.
enum Disk {
    /// Exactly this, in so many bytes.
    Says(Image, u64),
    /// A write failed: nothing is appended behind bytes that may be half there.
    Unknown,
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
            log,
            wanted: image,
            disk: Disk::Unknown,
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
        let Disk::Says(said, len_bytes) = &self.disk else {
            return self.rewrite();
        };
        let news = difference(said, &self.wanted);
        if news.is_empty() {
            return Ok(());
        }
        if *len_bytes > COMPACT_BYTES.max(4 * format::size(&self.wanted)) {
            return self.rewrite();
        }
        let bytes = format::batch(&news);
        let len_bytes = *len_bytes + bytes.len() as u64;
        self.disk = Disk::Unknown;
        self.log.append(&bytes)?;
        self.disk = Disk::Says(self.wanted.clone(), len_bytes);
        Ok(())
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let bytes = format::whole(&self.wanted);
        self.disk = Disk::Unknown;
        // Where folders are shared, its manager may be on another machine. What makes no sense was cut off.
        if let Ok(Some(there)) = format::parse(&self.log.read()?)
            && there.epoch > self.wanted.epoch
        {
            return Err(Superseded.into());
        }
        self.log.replace(&bytes)?;
        self.disk = Disk::Says(self.wanted.clone(), bytes.len() as u64);
        Ok(())
    }
}

/// What brings a file that says `said` to say what is `wanted`. Regions and hosts are never fewer.
fn difference(said: &Image, wanted: &Image) -> Vec<Record> {
    let mut news = Vec::new();
    for (number, host) in (0..).zip(&wanted.hosts) {
        if said.hosts.get(usize::from(number)) != Some(host) {
            news.push(Record::Host(number, host.clone()));
        }
    }
    for (number, region) in (0_u32..).zip(&wanted.regions) {
        let known = said.regions.get(number as usize);
        let is_injected = is_injected(InjectedFault::GenerationUnkept);
        let is_same_place = |known: &KeptRegion| known.hosts == region.hosts;
        if known != Some(region) && !(is_injected && known.is_some_and(is_same_place)) {
            news.push(Record::Region(number, region.clone()));
        }
    }
    for number in 0..u16::try_from(wanted.hosts.len()).expect("at most 4096 hosts") {
        let is_leaving = wanted.leaving.contains(&number);
        if said.leaving.contains(&number) != is_leaving {
            news.push(Record::Leaving(number, is_leaving));
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
            news.push(Record::Outdated(region, until_ms));
        }
    }
    news
}
