//! A crash at a step of a relocation: no fault that is drawn by time alone meets them often.
//!
//! Slabs move `ACTIVE -> FENCED -> DRAINED -> FILLED -> PUBLISHED -> RETIRED`; the driver looks
//! after each turn of a client or host which arrow was passed, and springs what lies in wait there.

use cenote_fabric::sim::{Memory, Notice};
use cenote_volume::{Relocation, RelocationStage};

use super::world::{Actor, World};

/// An arrow of the relocation machine, by the state that it leads to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrow {
    Fenced,
    Drained,
    Filled,
    Published,
    Retired,
}

pub const ARROWS: [Arrow; 5] = [
    Arrow::Fenced,
    Arrow::Drained,
    Arrow::Filled,
    Arrow::Published,
    Arrow::Retired,
];

/// Who crashes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Victim {
    /// The host of the slab that moves: the new one, or at the last arrow the old one.
    Target,
    /// A host that the slab is rebuilt from.
    Source,
    /// The volume's owner.
    Client,
}

pub const VICTIMS: [Victim; 3] = [Victim::Target, Victim::Source, Victim::Client];

/// What lies in wait.
#[derive(Clone, Debug)]
pub struct Ambush {
    pub arrow: Arrow,
    pub victim: Victim,
    /// Hosts that may crash; `None`: any.
    pub hosts: Option<Vec<usize>>,
}

/// An arrow that was just passed.
struct Passed {
    arrow: Arrow,
    client: usize,
    target: usize,
    extent: usize,
}

impl World {
    /// Looks which arrows a client's relocations passed in its turn, and springs the ambush.
    pub(super) fn look_for_arrows(&mut self, client: usize) {
        let now = self.clients[client].relocations();
        let before = std::mem::replace(&mut self.relocations[client], now.clone());
        if before == now {
            return;
        }
        let same = |one: &Relocation, other: &Relocation| {
            (one.extent, one.split, one.target) == (other.extent, other.split, other.target)
        };
        let mut passed = Vec::new();
        for new in &now {
            let old = before.iter().find(|old| same(old, new));
            let arrow = match (old.map(|old| old.stage), new.stage) {
                (None, RelocationStage::Fenced) => Arrow::Fenced,
                (Some(RelocationStage::Drained), RelocationStage::Fenced) => Arrow::Filled,
                (Some(RelocationStage::Fenced) | None, RelocationStage::Drained) => Arrow::Drained,
                _ => continue,
            };
            passed.push((arrow, *new));
        }
        for old in &before {
            if !now.iter().any(|new| same(old, new)) && self.clients[client].is_published(old) {
                passed.push((Arrow::Published, *old));
            }
        }
        for (arrow, relocation) in passed {
            self.spring(&Passed {
                arrow,
                client,
                target: relocation.target,
                extent: relocation.extent,
            });
        }
    }

    /// A host has taken back a slab of one of the clients.
    pub(super) fn look_for_retired(&mut self, host: usize, owner: cenote_fabric::ClientId) {
        let owners = self.clients.iter();
        if let Some(client) = owners.clone().position(|client| client.id() == owner) {
            self.spring(&Passed {
                arrow: Arrow::Retired,
                client,
                target: host,
                extent: 0,
            });
        }
    }

    fn spring(&mut self, passed: &Passed) {
        let Some(ambush) = self.ambush.take_if(|ambush| ambush.arrow == passed.arrow) else {
            return;
        };
        let host = match ambush.victim {
            Victim::Client => None,
            Victim::Target => Some(passed.target),
            Victim::Source => {
                let sources = self.clients[passed.client].live_hosts(passed.extent);
                (!sources.is_empty()).then(|| *self.random.pick(&sources))
            }
        };
        match host {
            None if ambush.victim == Victim::Client => {
                self.note(format!("c{} ends at {:?}", passed.client, ambush.arrow));
                let is_new = self.random.percent(30);
                self.replace_client(passed.client, is_new);
            }
            Some(host) if ambush.hosts.as_ref().is_none_or(|may| may.contains(&host)) => {
                if !self.hosts[host].is_up() || self.is_paused(Actor::Host(host)) {
                    return;
                }
                self.note(format!(
                    "h{host:02} crashes at {:?} of c{}'s extent {}",
                    ambush.arrow, passed.client, passed.extent
                ));
                let net = self.net.clone();
                self.hosts[host].crash(&net, Memory::Lost, Notice::AtOnce);
                self.sprung.push(host);
            }
            _ => return,
        }
        self.faults += 1;
        self.arrows_hit[passed.arrow as usize] += 1;
    }
}
