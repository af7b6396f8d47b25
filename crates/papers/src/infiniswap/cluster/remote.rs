//! Slabs between machines: who maps which, on whom, and what goes over the network.
//!
//! A machine's swap space fills from its beginning, and its page I/Os fall evenly on what is
//! full. A slab that is hot is mapped; pages reach it as they are written out next, so reads find
//! there what was written since it was mapped, and the disk has the rest. A host that is short of
//! room evicts within the second; what it evicts is on its owner's disk, and is mapped again at
//! once, elsewhere, while it is hot.

use cenote_measure::random::Random;
use cenote_pool::eviction::{draw, least_active};
use cenote_pool::placement::{Candidate, Policy};
use cenote_pool::pressure::{Pressure, Sample, Settings};

use super::{Load, Options};

/// Weight of the newest second in a slab's activity.
const ALPHA: f64 = 0.2;
const SLAB_GIB: f64 = 1.0;
const GIB: f64 = (1_u64 << 30) as f64;
const PAGE_BYTES: f64 = 4096.0;
const SLAB_PAGES: f64 = GIB * SLAB_GIB / PAGE_BYTES;

/// A slab of somebody's swap space.
#[derive(Clone, Copy, Debug, Default)]
struct Slab {
    /// Page I/Os per second, averaged.
    activity: f64,
    /// Which machine has it, if one does.
    host: Option<usize>,
    /// Share of its pages that were written out since it was mapped.
    filled: f64,
}

/// What a machine lends: the slabs of others, by owner and number.
struct Host {
    pressure: Pressure,
    slabs_max: usize,
    lent: Vec<(usize, usize)>,
}

/// All machines, as lenders and as borrowers.
pub struct Remote {
    hot_slab: f64,
    extra: usize,
    memory_bytes: u64,
    slabs_total: u32,
    hosts: Vec<Host>,
    clients: Vec<Vec<Slab>>,
    network_bytes: f64,
    evictions: u64,
}

impl Remote {
    /// Nothing lent yet.
    pub fn new(options: &Options) -> Self {
        let spare_gib = f64::from(options.memory_gib) - options.headroom_gib;
        let slabs_total = spare_gib.max(0.0) as u32;
        let headroom_bytes = bytes(options.headroom_gib);
        let settings = Settings {
            slab_bytes: bytes(SLAB_GIB),
            slabs_total,
            headroom_bytes,
            // Clients here always answer.
            floor_bytes: 0,
        };
        let host = |_| Host {
            pressure: Pressure::new(settings),
            slabs_max: 0,
            lent: Vec::new(),
        };
        Self {
            hot_slab: options.hot_slab,
            extra: options.extra,
            memory_bytes: bytes(f64::from(options.memory_gib)),
            slabs_total,
            hosts: (0..options.machines).map(host).collect(),
            clients: vec![Vec::new(); options.machines],
            network_bytes: 0.0,
            evictions: 0,
        }
    }

    /// A second: hosts look at their memory and take back what they must, then programs page.
    pub fn step(&mut self, loads: &[Load], random: &mut Random) {
        for (host, load) in loads.iter().enumerate() {
            self.look(host, load.used_gib);
            self.take_back(host, random);
        }
        for (client, load) in loads.iter().enumerate() {
            self.page(client, load);
        }
        for client in 0..self.clients.len() {
            self.map(client, random);
        }
    }

    fn look(&mut self, host: usize, used_gib: f64) {
        let used = bytes(used_gib);
        let room = self.hosts[host].pressure.handle_sample(Sample {
            total_bytes: self.memory_bytes,
            used_least_bytes: used,
            used_most_bytes: used,
            is_stalled: false,
        });
        self.hosts[host].slabs_max = room.slabs_max as usize;
    }

    /// Evicts what a host has no room for, the least active of a few more.
    fn take_back(&mut self, host: usize, random: &mut Random) {
        let Host {
            slabs_max, lent, ..
        } = &mut self.hosts[host];
        let count = lent.len().saturating_sub(*slabs_max);
        if count == 0 {
            return;
        }
        let asked: Vec<_> = draw(lent, count, self.extra, random.next())
            .into_iter()
            .map(|(client, slab)| {
                let activity = self.clients[client][slab].activity;
                // Saturating, as on the wire.
                ((client, slab), Some((activity * 1000.0) as u32))
            })
            .collect();
        let victims = least_active(&asked, count);
        lent.retain(|slab| !victims.contains(slab));
        for (client, slab) in victims {
            let slab = &mut self.clients[client][slab];
            (slab.host, slab.filled) = (None, 0.0);
            self.evictions += 1;
        }
    }

    /// Page I/Os of a machine's programs, evenly over what is swapped.
    fn page(&mut self, client: usize, load: &Load) {
        let slabs = &mut self.clients[client];
        let count = (load.swapped_gib / SLAB_GIB).ceil() as usize;
        if slabs.len() < count {
            slabs.resize(count, Slab::default());
        }
        for (index, slab) in slabs.iter_mut().enumerate() {
            let full = (load.swapped_gib / SLAB_GIB - index as f64).clamp(0.0, 1.0);
            let share = if load.swapped_gib > 0.0 {
                full * SLAB_GIB / load.swapped_gib
            } else {
                0.0
            };
            let faults = load.faults * share;
            slab.activity = ALPHA * 2.0 * faults + (1.0 - ALPHA) * slab.activity;
            if slab.host.is_some() {
                // Out and, of what is there, in.
                self.network_bytes += faults * (1.0 + slab.filled) * PAGE_BYTES;
                if full > 0.0 {
                    let of_pages = (faults / (SLAB_PAGES * full)).min(1.0);
                    slab.filled += (1.0 - slab.filled) * of_pages;
                }
            }
        }
    }

    /// Maps what is hot, on other machines with room.
    fn map(&mut self, client: usize, random: &mut Random) {
        let hot: Vec<usize> = self.clients[client]
            .iter()
            .enumerate()
            .filter(|(_, slab)| slab.host.is_none() && slab.activity > self.hot_slab)
            .map(|(index, _)| index)
            .collect();
        if hot.is_empty() {
            return;
        }
        let itself = u32::try_from(client).expect("MACHINES_MAX fits 32 bits");
        for slab in hot {
            // Asked again for each slab, as QUERY_MEM is.
            let candidates = self.candidates();
            let is_old = |host: usize| {
                let mut mapped = self.clients[client].iter();
                mapped.any(|slab| slab.host == Some(host))
            };
            let chosen = Policy::TwoChoices.place(&candidates, is_old, &[itself], 1, random.next());
            let Some(&host) = chosen.first() else {
                return;
            };
            self.hosts[host].lent.push((client, slab));
            let slab = &mut self.clients[client][slab];
            (slab.host, slab.filled) = (Some(host), 0.0);
        }
    }

    /// What every machine could lend right now. The memory that its own programs use counts as
    /// lent, since the paper asks for the machine with the most available slabs.
    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |(index, host): (usize, &Host)| Candidate {
            host: index,
            domain: u32::try_from(index).expect("MACHINES_MAX fits 32 bits"),
            slabs_free: u32::try_from(host.slabs_max.saturating_sub(host.lent.len()))
                .expect("at most slabs_total"),
            slabs_total: self.slabs_total,
        };
        self.hosts.iter().enumerate().map(candidate).collect()
    }

    /// Whether hosts and owners say the same of every slab, and nobody lends to itself.
    #[cfg(test)]
    pub fn books_agree(&self) -> bool {
        let hosts = self.hosts.iter().enumerate();
        let mut lent: Vec<_> = hosts
            .flat_map(|(host, known)| known.lent.iter().map(move |&(c, slab)| (c, slab, host)))
            .collect();
        let clients = self.clients.iter().enumerate();
        let mapped: Vec<_> = clients
            .flat_map(|(client, slabs)| {
                let slabs = slabs.iter().enumerate();
                slabs.filter_map(move |(index, slab)| Some((client, index, slab.host?)))
            })
            .collect();
        lent.sort_unstable();
        lent == mapped && mapped.iter().all(|(client, _, host)| client != host)
    }

    /// What a machine lends.
    pub fn lent_gib(&self, machine: usize) -> f64 {
        self.hosts[machine].lent.len() as f64 * SLAB_GIB
    }

    /// Of pages, in all.
    pub fn network_bytes(&self) -> f64 {
        self.network_bytes
    }

    /// Slabs that were taken back.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Slabs of swap space that are mapped, of all that are in use; 1 where none is.
    pub fn share(&self) -> f64 {
        let slabs: Vec<&Slab> = self.clients.iter().flatten().collect();
        if slabs.is_empty() {
            return 1.0;
        }
        let mapped = slabs.iter().filter(|slab| slab.host.is_some()).count();
        mapped as f64 / slabs.len() as f64
    }
}

/// Of a size that is not negative and far from 2^64.
fn bytes(gib: f64) -> u64 {
    (gib * GIB) as u64
}
