//! Which node plays which slot of which group.
//!
//! A group has K data slots (0..K) and M parity slots (K..K+M), each on a node of its own. Groups
//! are rotated over the nodes, so that every node plays data and parity roles, and the first
//! parities of one node's groups, which lead recoveries, are on different nodes. Arithmetic only.
//!
//! Invariants of a plan: no node plays two slots of one group, and nodes differ by at most one in
//! the slots they play.
//! Paper: \[cocytus16\] section 3.2, Figure 3.

use std::collections::BTreeSet;

use cenote_kv::group::view::{PARITIES_MAX, PARTITIONS_MAX};

use super::NodeId;

/// Most groups of a cluster; arbitrary, bounds what a document may ask for.
pub const GROUPS_MAX: usize = 4096;

/// Data and parity slots of a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Code {
    data: usize,
    parities: usize,
}

impl Code {
    /// K data and M parity slots.
    ///
    /// # Errors
    /// No data slot, or more slots than a group may have.
    pub fn new(data: usize, parities: usize) -> Result<Self, LayoutError> {
        if !(1..=PARTITIONS_MAX).contains(&data) || parities > PARITIES_MAX {
            return Err(LayoutError::Code { data, parities });
        }
        Ok(Self { data, parities })
    }

    /// K.
    #[must_use]
    pub fn data(self) -> usize {
        self.data
    }

    /// M.
    #[must_use]
    pub fn parities(self) -> usize {
        self.parities
    }

    /// K + M.
    #[must_use]
    pub fn slots(self) -> usize {
        self.data + self.parities
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}", self.data, self.parities)
    }
}

impl std::str::FromStr for Code {
    type Err = LayoutError;

    /// `3+2`.
    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        let parts = text.split_once('+');
        let (data, parities) = parts
            .and_then(|(data, parities)| Some((number(data)?, number(parities)?)))
            .ok_or(LayoutError::NoCode)?;
        Self::new(data, parities)
    }
}

/// Why there is no such layout.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The text is no code.
    #[error("write a code as K+M, as in 3+2")]
    NoCode,
    /// Shape of a group that cannot be.
    #[error(
        "code {data}+{parities}: a group has 1 to {PARTITIONS_MAX} data slots and at most {PARITIES_MAX} parities"
    )]
    Code {
        /// K.
        data: usize,
        /// M.
        parities: usize,
    },
    /// A node would have to play two slots of one group.
    #[error("code {code} needs {} nodes, there are {nodes}", code.slots())]
    Nodes {
        /// The group's shape.
        code: Code,
        /// How many nodes there are.
        nodes: usize,
    },
    /// A node is named twice.
    #[error("node {0} is named twice")]
    Twice(NodeId),
    /// No group, or more than there may be.
    #[error("{0} groups: there may be 1 to {GROUPS_MAX}")]
    Groups(usize),
}

/// The slots of one node, by group and slot number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Seat {
    /// Number of the group.
    pub group: usize,
    /// Number of the slot in it.
    pub slot: usize,
}

/// Who plays each slot of each group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Seats {
    /// By group, then by slot.
    groups: Vec<Vec<NodeId>>,
}

impl Seats {
    /// The plan for these nodes: where groups are a multiple of the nodes, slot s of group g is
    /// on node (g + s) mod n, so that all nodes play as many data and as many parity slots;
    /// otherwise each group takes the nodes that have the least so far.
    ///
    /// # Errors
    /// The shape cannot be laid out.
    pub fn plan(code: Code, groups: usize, nodes: &[NodeId]) -> Result<Self, LayoutError> {
        if groups == 0 || groups > GROUPS_MAX {
            return Err(LayoutError::Groups(groups));
        }
        if nodes.len() < code.slots() {
            return Err(LayoutError::Nodes {
                code,
                nodes: nodes.len(),
            });
        }
        let mut seen = BTreeSet::new();
        if let Some(&twice) = nodes.iter().find(|&&node| !seen.insert(node)) {
            return Err(LayoutError::Twice(twice));
        }
        let groups = if groups.is_multiple_of(nodes.len()) {
            (0..groups)
                .map(|group| rotated(code, group, nodes))
                .collect()
        } else {
            let mut loads = vec![Load::default(); nodes.len()];
            (0..groups)
                .map(|group| least_loaded(code, group, nodes, &mut loads))
                .collect()
        };
        Ok(Self { groups })
    }

    /// Who plays each slot of a group.
    ///
    /// # Panics
    /// There is no such group.
    #[must_use]
    pub fn group(&self, group: usize) -> &[NodeId] {
        &self.groups[group]
    }

    /// What a node plays, by group.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Vec<Seat> {
        self.seats()
            .filter(|&(_, player)| player == node)
            .map(|(seat, _)| seat)
            .collect()
    }

    fn seats(&self) -> impl Iterator<Item = (Seat, NodeId)> + '_ {
        self.groups.iter().enumerate().flat_map(|(group, players)| {
            let players = players.iter().enumerate();
            players.map(move |(slot, &player)| (Seat { group, slot }, player))
        })
    }
}

/// What a node has to do in a plan so far.
#[derive(Clone, Copy, Default)]
struct Load {
    slots: usize,
    parities: usize,
    first_parities: usize,
}

fn rotated(code: Code, group: usize, nodes: &[NodeId]) -> Vec<NodeId> {
    (0..code.slots())
        .map(|slot| nodes[(group + slot) % nodes.len()])
        .collect()
}

fn least_loaded(code: Code, group: usize, nodes: &[NodeId], loads: &mut [Load]) -> Vec<NodeId> {
    // Equal ones from a different place on for each group, else the last nodes never lead.
    let turn = |index: usize| (index + nodes.len() - group % nodes.len()) % nodes.len();
    let mut chosen: Vec<usize> = (0..nodes.len()).collect();
    chosen.sort_by_key(|&index| (loads[index].slots, turn(index)));
    chosen.truncate(code.slots());
    let mut players = vec![nodes[0]; code.slots()];
    // Parities first, and of them the one that leads: those are the fewest.
    for slot in (code.data()..code.slots()).chain(0..code.data()) {
        let is_parity = slot >= code.data();
        let cost = |&place: &usize| {
            let load = loads[chosen[place]];
            let leads = if slot == code.data() {
                load.first_parities
            } else {
                0
            };
            (leads, load.parities, turn(chosen[place]))
        };
        let places = 0..chosen.len();
        let place = if is_parity {
            places.min_by_key(cost)
        } else {
            places.min_by_key(|&place| turn(chosen[place]))
        };
        let index = chosen.swap_remove(place.expect("as many nodes as slots were chosen"));
        players[slot] = nodes[index];
        loads[index].slots += 1;
        loads[index].parities += usize::from(is_parity);
        loads[index].first_parities += usize::from(slot == code.data());
    }
    players
}

#[cfg(test)]
mod tests;
