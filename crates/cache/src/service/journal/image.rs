//! What a journal says of a cache, and what follows from it for the next manager.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_pool::control::Window;

use crate::fleet::{KeptMachine, Order};
use crate::links::HostConfig;
use crate::owner::{Access, Copy, Entry};
use crate::service::injected_faults::{InjectedFault, is_injected};

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
    pub(super) fn find_machine(&self, order: Order) -> Result<usize, usize> {
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
