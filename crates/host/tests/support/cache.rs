//! A cache on the tests' hosts: its owner, who says where slabs are, and clients that run
//! procedures.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::time::{Duration, Instant};

use cenote_fabric::calls::Caller;
use cenote_fabric::{RemoteWindow, Status as Verb, Time};
use cenote_pool::control::Window;
use cenote_proc::remote::{Ended, Remote, exchange};
use cenote_proc::service::{
    Heard, Label, Named, Opened, Order, PIECE_MAX, SlabPlace, SlabWord, Told, Word, Writing,
};
use cenote_proc::{CacheId, Grants, ProcedureId};

use super::support::{Client, DEADLINE, Host, Lab, SLAB_BYTES};

/// The number of each cache of these tests.
pub const CACHE: CacheId = CacheId(77);

/// Who owns the caches here.
pub const OWNER: u128 = 1;

/// A host as a cache's owner has it.
pub struct Site {
    pub client: Client,
    pub caller: Box<dyn Caller>,
}

/// A cache and its owner.
pub struct Cache {
    pub id: CacheId,
    pub writable: bool,
    /// Whether loads end with the time that words give.
    pub leased: bool,
    pub users: Vec<u128>,
    pub sites: Vec<Site>,
    /// Their addresses, as hosts are told.
    pub machines: Vec<String>,
    pub slabs: Vec<Slab>,
    /// Slabs behind those, said to be on a machine.
    promised: Vec<u32>,
}

/// One of its slabs.
pub struct Slab {
    pub site: usize,
    pub window: Window,
    pub remote: RemoteWindow,
    pub generation: u64,
}

impl Cache {
    /// Slab i on host `on[i]`.
    pub fn new(lab: &Lab, hosts: &[&Host], on: &[usize], writable: bool) -> Self {
        let addresses: Vec<_> = hosts.iter().map(|host| host.address.to_string()).collect();
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        let cache = Self::at(lab, &addresses, &[], on);
        Self { writable, ..cache }
    }

    /// Slab i on host `on[i]` of those with these addresses; of more machines it is only said that
    /// they are there.
    pub fn at(lab: &Lab, addresses: &[&str], more: &[&str], on: &[usize]) -> Self {
        Self::of(lab, OWNER, addresses, more, on)
    }

    /// The same, of another owner.
    pub fn of(lab: &Lab, owner: u128, addresses: &[&str], more: &[&str], on: &[usize]) -> Self {
        let site = |address: &&str| {
            let client = lab.client_of(address, owner);
            let caller = client.session.caller_opener()(DEADLINE).unwrap();
            Site { client, caller }
        };
        let machines = addresses.iter().chain(more);
        let mut cache = Self {
            id: CACHE,
            writable: false,
            leased: false,
            users: vec![2, 3],
            sites: addresses.iter().map(site).collect(),
            machines: machines.map(ToString::to_string).collect(),
            slabs: Vec::new(),
            promised: Vec::new(),
        };
        for (extent, &site) in (0..).zip(on) {
            let slab = cache.lend(site, extent);
            cache.slabs.push(slab);
        }
        cache
    }

    /// Says from now on that so many more slabs are on a machine, whether they are or not.
    pub fn promise(&mut self, machine: u32, slabs: usize) {
        self.promised.extend(std::iter::repeat_n(machine, slabs));
    }

    /// A fresh slab of a host.
    pub fn lend(&mut self, site: usize, extent: u32) -> Slab {
        let client = &mut self.sites[site].client;
        let window = client.map(self.id.0, extent);
        let remote = client.attach(window).unwrap();
        Slab {
            site,
            window,
            remote,
            generation: 1,
        }
    }

    pub fn opened(&self, me: usize) -> Opened {
        Opened {
            cache: self.id,
            slab_bytes: SLAB_BYTES,
            slabs: u32::try_from(self.slabs.len() + self.promised.len()).unwrap(),
            writing: match self.writable {
                true => Writing::Direct,
                false => Writing::Denied,
            },
            leased: self.leased,
            me: u32::try_from(me).unwrap(),
            machines: self.machines.clone(),
            users: self.users.clone(),
        }
    }

    pub fn say(&mut self, site: usize, word: &Word) -> Heard {
        let mut bytes = Vec::new();
        word.write(&mut bytes);
        let answer = exchange(&mut *self.sites[site].caller, &bytes, DEADLINE).unwrap();
        Heard::read(&answer).unwrap()
    }

    /// Tells a host of the cache, without any slab.
    pub fn open(&mut self, site: usize) {
        let word = Word::Open(self.opened(site));
        assert!(matches!(self.say(site, &word), Heard::Taken { .. }));
    }

    /// Tells all hosts all of it.
    pub fn tell(&mut self) {
        for site in 0..self.sites.len() {
            self.open(site);
        }
        self.map_all(false);
    }

    /// Tells all hosts where slabs are; `leaving`: they are on the move.
    pub fn map_all(&mut self, leaving: bool) {
        for site in 0..self.sites.len() {
            let until = Time::now().after(DEADLINE * 10).0;
            let word = self.map_word(site, until, leaving);
            let heard = self.say(site, &word);
            assert!(
                matches!(heard, Heard::Taken { missing: 0, .. }),
                "{heard:?}"
            );
        }
    }

    pub fn map_word(&self, site: usize, writes_until: u64, leaving: bool) -> Word {
        let slabs = (0..).zip(&self.slabs).map(|(index, slab)| {
            let named = Named {
                window: slab.window.id,
                generation: slab.window.generation,
            };
            SlabWord {
                slab: index,
                generation: slab.generation,
                place: match slab.site == site {
                    true if leaving => SlabPlace::Leaving(named),
                    true => SlabPlace::Here(named),
                    false => SlabPlace::At(u32::try_from(slab.site).unwrap()),
                },
            }
        });
        let first = u32::try_from(self.slabs.len()).unwrap();
        let promised = (first..)
            .zip(&self.promised)
            .map(|(slab, machine)| SlabWord {
                slab,
                generation: 1,
                place: SlabPlace::At(*machine),
            });
        Word::Map {
            cache: self.id,
            writes_until,
            slabs: slabs.chain(promised).collect(),
        }
    }

    /// Writes bytes at an address, slab by slab.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let (mut address, mut rest) = (address, bytes);
        while !rest.is_empty() {
            let slab = &self.slabs[usize::try_from(address / SLAB_BYTES).unwrap()];
            let offset = address % SLAB_BYTES;
            let room = usize::try_from(SLAB_BYTES - offset).unwrap();
            let (part, later) = rest.split_at(rest.len().min(room));
            let client = &mut self.sites[slab.site].client;
            assert_eq!(client.write(&slab.remote, offset, part), Verb::Ok);
            (address, rest) = (address + part.len() as u64, later);
        }
    }

    pub fn read(&mut self, address: u64, len: usize) -> Vec<u8> {
        let slab = &self.slabs[usize::try_from(address / SLAB_BYTES).unwrap()];
        let mut bytes = vec![0; len];
        let client = &mut self.sites[slab.site].client;
        let status = client.read(&slab.remote, address % SLAB_BYTES, &mut bytes);
        assert_eq!(status, Verb::Ok);
        bytes
    }

    /// Moves a slab to a fresh one of another host, as an owner does: no writes, copy, tell, give
    /// back.
    pub fn relocate(&mut self, index: usize, to: usize, pause: impl FnOnce()) {
        self.slabs[index].generation += 1;
        // Loads go on, stores wait. All threads of the old host say so.
        self.map_all(true);
        let bytes = self.read(index as u64 * SLAB_BYTES, SLAB_BYTES as usize);
        let mut new = self.lend(to, u32::try_from(index).unwrap());
        new.generation = self.slabs[index].generation + 1;
        assert_eq!(
            self.sites[to].client.write(&new.remote, 0, &bytes),
            Verb::Ok
        );
        let old = std::mem::replace(&mut self.slabs[index], new);
        pause();
        self.sites[old.site].client.unmap(old.window);
        self.map_all(false);
    }
}

/// Polls until `enough` says so.
pub fn poll_until(
    remote: &mut Remote,
    ended: &mut Vec<Ended>,
    mut enough: impl FnMut(&[Ended]) -> bool,
) {
    let deadline = Instant::now() + 3 * DEADLINE;
    loop {
        remote.poll(Time::now(), ended);
        if enough(ended) {
            return;
        }
        assert!(Instant::now() < deadline, "so far: {ended:?}");
        remote.wait(Duration::from_millis(5));
    }
}

/// Polls for so long, for what is not to happen.
pub fn poll_for(remote: &mut Remote, ended: &mut Vec<Ended>, patience: Duration) {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        remote.poll(Time::now(), ended);
        remote.wait(Duration::from_millis(5));
    }
}

/// A client's connection.
pub fn remote(client: &Client) -> Remote {
    Remote::new(client.session.caller_opener()(DEADLINE).unwrap(), 16)
}

pub fn order(caller: &mut dyn Caller, order: &Order) -> Told {
    let mut bytes = Vec::new();
    order.write(&mut bytes);
    Told::read(&exchange(caller, &bytes, DEADLINE).unwrap()).unwrap()
}

/// Puts a module on a host, and waits until it is there or refused.
pub fn put(client: &Client, id: u32, grants: Grants, module: &[u8]) -> Told {
    let mut caller = client.session.caller_opener()(DEADLINE).unwrap();
    let label = Label {
        id: ProcedureId(id),
        name: format!("guest-{id}"),
        version: 1,
        grants,
        len_bytes: u32::try_from(module.len()).unwrap(),
    };
    let begun = order(&mut *caller, &Order::Begin(label));
    if begun != Told::Going {
        return begun;
    }
    finish(client, &mut *caller, module)
}

/// Sends a module that was begun, and waits for its end.
pub fn finish(client: &Client, caller: &mut dyn Caller, module: &[u8]) -> Told {
    for (piece, bytes) in module.chunks(PIECE_MAX).enumerate() {
        let offset = u32::try_from(piece * PIECE_MAX).unwrap();
        let bytes = bytes.to_vec();
        let told = order(caller, &Order::Piece { offset, bytes });
        assert_eq!(told, Told::Going);
    }
    loop {
        match order(caller, &Order::Ask) {
            Told::Going => client.rest(),
            told => return told,
        }
    }
}
