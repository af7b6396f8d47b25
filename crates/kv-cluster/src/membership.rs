//! Who is there, as far as one lane of a node knows: by its links, and by what is registered.
//!
//! That a process is missed is no proof that it has ended. What is served elsewhere may go on without it; what
//! would be lost with it is given up only when a later process has its name, or by an operator. And whoever
//! can be counted out by others, since its registration may have run out, serves nothing that it cannot be
//! sure of ([`Membership::refused`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use cenote_kv::group::process::Process;
use cenote_kv::group::view::View;

use super::NodeId;
use super::config::NodeState;
use super::detector::{Cause, Detector, State};
use super::store::LeaseId;
use crate::injected_faults::{InjectedFault, is_injected};

/// What is known of a node that is registered.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// Which of its processes.
    pub incarnation: u64,
    /// Where the lane's peer is.
    pub address: Option<SocketAddr>,
    /// Whether it takes new roles.
    pub state: NodeState,
    /// With what the registration goes.
    pub lease: Option<LeaseId>,
}

/// Why a node refuses requests for partitions of a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Closed {
    /// It is not registered any more, and does not reach all of the group: others may go on without it.
    Unregistered,
    /// More members are missing than the group bears, and they are not registered.
    Missing,
}

/// The partitions that a node refuses, bit per partition, and why.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Refused {
    /// Which.
    pub partitions: u32,
    /// Why; none: it refuses nothing.
    pub why: Option<Closed>,
}

impl Refused {
    /// Whether and why a partition is refused.
    #[must_use]
    pub fn of(&self, partition: usize) -> Option<Closed> {
        self.why.filter(|_| self.partitions >> partition & 1 == 1)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Membership {
    me: Process,
    /// Who is heard.
    pub detector: Detector,
    /// Processes at the other ends of open links.
    linked: BTreeMap<NodeId, Process>,
    registered: BTreeMap<NodeId, Registered>,
    /// The incarnation of each node's last process that was registered and is no more.
    expired: BTreeMap<NodeId, u64>,
    own: Own,
}

/// This node's own registration, as the store told it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Own {
    /// Not told yet: it has no part in anything.
    Unknown,
    /// It goes with this.
    With(LeaseId),
    /// It is not there any more.
    Expired,
}

impl Membership {
    /// Of a process that knows nobody yet.
    #[must_use]
    pub fn new(me: Process, detector: Detector) -> Self {
        Self {
            me,
            detector,
            linked: BTreeMap::new(),
            registered: BTreeMap::new(),
            expired: BTreeMap::new(),
            own: Own::Unknown,
        }
    }

    /// The process that is linked with, of a node.
    #[must_use]
    pub fn linked(&self, node: NodeId) -> Option<Process> {
        self.linked.get(&node).copied()
    }

    /// All that are.
    pub fn all_linked(&self) -> impl Iterator<Item = (NodeId, Process)> + '_ {
        self.linked.iter().map(|(node, process)| (*node, *process))
    }

    /// A link to a process is open.
    pub fn link_up(&mut self, process: Process, now: Instant) {
        let node = NodeId(process.node);
        self.detector.add(node, now);
        self.detector.handle_connected(node, now);
        self.linked.insert(node, process);
    }

    /// The link to a node is not.
    pub fn link_down(&mut self, node: NodeId, now: Instant) {
        self.detector.handle_disconnected(node, now);
        self.linked.remove(&node);
    }

    /// A node is registered; none: it is not any more.
    pub fn take(&mut self, node: NodeId, registered: Option<Registered>, now: Instant) {
        if node.0 == self.me.node {
            let own = registered.filter(|found| found.incarnation == self.me.incarnation);
            self.own = match (own.and_then(|found| found.lease), self.own) {
                (Some(lease), _) => Own::With(lease),
                (None, Own::Unknown) => Own::Unknown,
                (None, _) => Own::Expired,
            };
            return;
        }
        match registered {
            Some(found) => {
                self.registered.insert(node, found);
                self.detector.add(node, now);
            }
            None => {
                if let Some(found) = self.registered.remove(&node) {
                    self.expired.insert(node, found.incarnation);
                }
            }
        }
    }

    /// Whether this node is registered for sure: `lease` is that of a registration that stands by now
    /// ([`RegistrationLease`](super::registration_lease::RegistrationLease)). What it was told before it was told of that it has taken up.
    #[must_use]
    pub fn is_registered(&self, lease: Option<LeaseId>) -> bool {
        lease.is_some_and(|lease| self.own == Own::With(lease))
    }

    /// Whether a process of a view cannot be counted on: it is to be left out of the next one.
    #[must_use]
    pub fn is_dead(&self, process: Process) -> bool {
        let node = NodeId(process.node);
        if process == self.me {
            return false;
        }
        if self.is_replaced(process) {
            return true;
        }
        match self.detector.state(node) {
            Some(State::Alive) => self
                .linked
                .get(&node)
                .is_some_and(|linked| *linked != process),
            Some(State::Suspect(Cause::NeverMet)) | None => self.has_expired(process),
            Some(State::Suspect(_)) => true,
        }
    }

    /// Whether a process was registered and is not any more. One of whom nothing was heard yet is none of these:
    /// a view may come before that.
    fn has_expired(&self, process: Process) -> bool {
        let node = NodeId(process.node);
        let expired = self.expired.get(&node);
        !self.registered.contains_key(&node)
            && expired.is_some_and(|expired| *expired >= process.incarnation)
    }

    /// Whether a process has ended for sure: a later one has its name. A registration that has run out proves
    /// nothing: who is cut off from the store lives.
    #[must_use]
    pub fn is_replaced(&self, process: Process) -> bool {
        if is_injected(InjectedFault::ExpiryIsDeath) && self.has_expired(process) {
            return true;
        }
        let found = self.registered.get(&NodeId(process.node));
        found.is_some_and(|found| found.incarnation > process.incarnation)
    }

    /// Whether a process may be about to be missed.
    #[must_use]
    pub fn is_in_doubt(&self, process: Process, now: Instant) -> bool {
        self.detector.is_in_doubt(NodeId(process.node), now)
    }

    /// Linked processes that may take a place in a group, and are not in its view.
    #[must_use]
    pub fn spares(&self, view: &View) -> Vec<Process> {
        let inside = view.processes();
        let is_inside = |node: u32| inside.iter().any(|process| process.node == node);
        let all = self.linked.values().copied();
        all.filter(|process| {
            let found = self.registered.get(&NodeId(process.node));
            found.is_some_and(|found| found.state == NodeState::Up) && !is_inside(process.node)
        })
        .collect()
    }

    /// Whether a process is not reached at this moment.
    fn is_missed(&self, process: Process) -> bool {
        let node = NodeId(process.node);
        let is_alive = self.detector.state(node) == Some(State::Alive);
        process != self.me && !(is_alive && self.linked.get(&node) == Some(&process))
    }

    /// The partitions of a group that this node must not serve, or cannot have served. `lease`: as of
    /// [`Membership::is_registered`].
    #[must_use]
    pub fn refused(&self, view: &View, lease: Option<LeaseId>) -> Refused {
        if self.own == Own::Unknown {
            return Refused::default();
        }
        let missed: Vec<Process> = view
            .processes()
            .into_iter()
            .filter(|process| self.is_missed(*process))
            .collect();
        if missed.is_empty() {
            return Refused::default();
        }
        let those = |is_refused: &dyn Fn(usize) -> bool| {
            let all = (0..view.partitions.len()).filter(|partition| is_refused(*partition));
            all.fold(0, |mask, partition| mask | 1 << partition)
        };
        let is_owned_by = |partition, processes: &[Process]| {
            let owner = view.owner(partition);
            owner.is_some_and(|owner| processes.contains(&owner))
        };
        if !self.is_registered(lease) && !is_injected(InjectedFault::NeverCloses) {
            let is_mine = |partition| view.owner(partition) == Some(self.me);
            return Refused {
                partitions: those(&|partition| {
                    is_mine(partition) || is_owned_by(partition, &missed)
                }),
                why: Some(Closed::Unregistered),
            };
        }
        let is_registered = |process: &Process| {
            let found = self.registered.get(&NodeId(process.node));
            found.is_some_and(|found| found.incarnation == process.incarnation)
        };
        let gone: Vec<Process> = missed
            .into_iter()
            .filter(|process| !is_registered(process))
            .collect();
        let after = view.without(|process| gone.contains(&process));
        if after.is_none_or(|after| after.lost() == view.lost()) {
            return Refused::default();
        }
        Refused {
            partitions: those(&|partition| {
                let mut backups = view.backups(partition);
                is_owned_by(partition, &gone) || backups.any(|backup| gone.contains(&backup))
            }),
            why: Some(Closed::Missing),
        }
    }
}

#[cfg(test)]
mod tests;
