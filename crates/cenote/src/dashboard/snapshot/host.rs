//! Hosts: how they were found, what they lend, and how short of memory their machines are.

use cenote_pool::control::HostStatus;
use serde::Serialize;

use crate::sample::{Found, Host};

/// How a host was found.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HostState {
    Up,
    /// Up, and gives its slabs back.
    Draining,
    /// Its process runs on this machine and does not answer.
    Silent,
    /// Its process on this machine has ended.
    Ended,
    Unreachable,
}

impl HostState {
    pub fn answers(self) -> bool {
        matches!(self, Self::Up | Self::Draining)
    }
}

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostView {
    pub name: String,
    pub address: String,
    pub domain: String,
    pub state: HostState,
    /// Why it does not answer.
    pub why: Option<String>,
    pub figures: Option<HostFigures>,
}

/// What a host says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostFigures {
    pub memory_bytes: u64,
    pub lent_bytes: u64,
    pub free_bytes: u64,
    pub slab_bytes: u64,
    /// Slabs in clients' hands.
    pub slabs_held: u32,
    pub clients: u32,
    pub uptime_s: u64,
    pub program: String,
    /// Another one after a restart.
    #[serde(skip)]
    pub incarnation: u64,
    /// Of hosts that look at their machine's memory.
    pub pressure: Option<Pressure>,
    /// Slabs that clients gave back because they were asked, of all that they were asked for.
    pub evictions_done: u64,
    pub evictions_asked: u64,
    /// Slabs that clients are asked for now.
    pub asked_back: u32,
    /// Slabs that were taken from clients that did not answer.
    pub slabs_taken: u64,
}

/// How short of memory a host's machine is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pressure {
    pub level: Level,
    pub used_bytes: u64,
    pub total_bytes: u64,
    /// Left besides what is used and lent, and what is to be left.
    pub left_bytes: u64,
    pub headroom_bytes: u64,
}

/// In a word.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    None,
    /// Programs waited for memory.
    Stalled,
    /// Less is left than the headroom.
    Short,
    /// Less is left than the floor.
    Floor,
}

impl HostView {
    pub fn of(host: &Host) -> Self {
        let (state, why, figures) = match &host.found {
            Found::Up(status) => {
                let state = match status.draining {
                    true => HostState::Draining,
                    false => HostState::Up,
                };
                (state, None, Some(HostFigures::of(status)))
            }
            Found::Silent(why) => (HostState::Silent, Some(why.clone()), None),
            Found::Ended(why) => (HostState::Ended, Some(why.clone()), None),
            Found::Unreachable(why) => (HostState::Unreachable, Some(why.clone()), None),
        };
        Self {
            name: host.name.clone(),
            address: host.address.clone(),
            domain: host.domain.clone(),
            state,
            why,
            figures,
        }
    }
}

impl HostFigures {
    fn of(status: &HostStatus) -> Self {
        let seen = &status.pressure;
        let level = if seen.free_bytes < seen.floor_bytes {
            Level::Floor
        } else if seen.free_bytes < seen.headroom_bytes {
            Level::Short
        } else if seen.stalled {
            Level::Stalled
        } else {
            Level::None
        };
        Self {
            memory_bytes: status.memory_bytes,
            lent_bytes: status.lent_bytes,
            free_bytes: u64::from(status.slabs_free()).saturating_mul(status.slab_bytes),
            slab_bytes: status.slab_bytes,
            slabs_held: status.slabs.mapped.saturating_add(status.slabs.orphaned),
            clients: status.clients_total,
            uptime_s: status.uptime_s,
            program: status.program.clone(),
            incarnation: status.incarnation,
            pressure: seen.watched.then_some(Pressure {
                level,
                used_bytes: seen.used_bytes,
                total_bytes: seen.total_bytes,
                left_bytes: seen.free_bytes,
                headroom_bytes: seen.headroom_bytes,
            }),
            evictions_done: seen.evictions_done,
            evictions_asked: seen.evictions_asked,
            asked_back: seen.asked_back,
            slabs_taken: seen.slabs_taken,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A host that answers, or does not.
    pub fn host(name: &str, state: HostState) -> HostView {
        HostView {
            name: name.to_owned(),
            address: format!("tcp:{name}:7000"),
            domain: name.to_owned(),
            state,
            why: None,
            figures: state.answers().then(HostFigures::default),
        }
    }

    #[test]
    fn a_host_below_its_floor_is_worse_than_one_that_is_short() {
        let level = |free_bytes, stalled| {
            let mut status = HostStatus::default();
            status.pressure.watched = true;
            status.pressure.free_bytes = free_bytes;
            status.pressure.headroom_bytes = 100;
            status.pressure.floor_bytes = 10;
            status.pressure.stalled = stalled;
            HostFigures::of(&status).pressure.unwrap().level
        };
        assert_eq!(level(9, false), Level::Floor);
        assert_eq!(level(10, true), Level::Short);
        assert_eq!(level(100, true), Level::Stalled);
        assert_eq!(level(100, false), Level::None);
        assert_eq!(HostFigures::of(&HostStatus::default()).pressure, None);
    }
}
