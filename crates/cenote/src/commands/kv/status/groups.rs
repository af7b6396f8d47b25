//! The groups, put together from what their nodes say: the newest view that any of them knows, and of
//! each partition what its owner says.

use cenote_kv_cluster::NodeId;
use cenote_kv_cluster::node::{GroupReport, NodeReport, PlaceReport};
use serde::Serialize;

use super::{NodeStatus, State};

/// A group.
#[derive(Serialize)]
pub struct GroupStatus {
    pub group: usize,
    /// Number of the newest view that a node tells; `None`: none that answers knows one.
    pub view: Option<u32>,
    pub data: Vec<PlaceStatus>,
    pub parity: Vec<PlaceStatus>,
}

/// A place of a group, and what its owner says of it where it is a partition.
#[derive(Serialize)]
pub struct PlaceStatus {
    pub node: Option<NodeId>,
    /// Name of the node.
    pub name: Option<String>,
    /// As in the view.
    pub state: String,
    /// Whether its node answers.
    pub answers: bool,
    pub items: u64,
    pub stored_bytes: u64,
    /// Values that are still to be recovered, or moved; what a parity that joins is still to be told.
    pub missing_bytes: u64,
    /// Name of the node that is to have the place, where its node leaves or owns more than others.
    #[serde(rename = "heir")]
    pub handoff: Option<String>,
    /// What that node is still to be told. Nothing is missing meanwhile: the node at the place has it.
    pub moving_bytes: u64,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// Of partitions' regions.
    pub values: u64,
    /// Of parity, or of copies.
    pub parity: u64,
    /// Of keys and facts.
    pub tables: u64,
    /// Values that its partitions hold, in whole pieces.
    pub stored: u64,
}

impl Memory {
    pub fn of(report: &NodeReport) -> Self {
        let of_group = |group: &GroupReport| Self {
            values: group.value_bytes,
            parity: group.parity_bytes,
            tables: group.table_bytes,
            stored: group.owned.iter().map(|owned| owned.stored_bytes).sum(),
        };
        let groups = report.groups.iter().map(of_group);
        groups.fold(Self::default(), Self::with)
    }

    pub fn with(self, other: Self) -> Self {
        Self {
            values: self.values + other.values,
            parity: self.parity + other.parity,
            tables: self.tables + other.tables,
            stored: self.stored + other.stored,
        }
    }
}

impl GroupStatus {
    /// Whether it could lose as many nodes as its code bears.
    pub fn is_whole(&self) -> bool {
        let is = |places: &[PlaceStatus], state| {
            let mut places = places.iter();
            places.all(|place| place.answers && place.state == state)
        };
        self.view.is_some() && is(&self.data, "home") && is(&self.parity, "full")
    }
}

/// The groups of nodes that have been asked.
pub fn of(nodes: &[NodeStatus], groups: usize) -> Vec<GroupStatus> {
    (0..groups).map(|group| one(nodes, group)).collect()
}

fn one(nodes: &[NodeStatus], group: usize) -> GroupStatus {
    let reports = nodes.iter().filter_map(|node| {
        let mut groups = node.report.as_ref()?.groups.iter();
        let found = groups.find(|report| report.group == group)?;
        Some((node.node, found))
    });
    let reports: Vec<(NodeId, &GroupReport)> = reports.collect();
    let newest = reports.iter().max_by_key(|(_, report)| report.view);
    let Some((_, newest)) = newest else {
        return GroupStatus {
            group,
            view: None,
            data: Vec::new(),
            parity: Vec::new(),
        };
    };
    let place = |place: &PlaceReport| {
        let found = nodes.iter().find(|one| Some(one.node) == place.node);
        // A process that was started since has nothing of what the one of the view had.
        let is_same = |report: &NodeReport| Some(report.incarnation) == place.incarnation;
        let answers = |found: &NodeStatus| {
            matches!(found.state, State::Up | State::Draining)
                && found.report.as_ref().is_some_and(is_same)
        };
        PlaceStatus {
            node: place.node,
            name: found.map(|found| found.name.clone()),
            state: place.state.clone(),
            answers: found.is_some_and(answers),
            items: 0,
            stored_bytes: 0,
            missing_bytes: 0,
            handoff: None,
            moving_bytes: 0,
        }
    };
    let data = newest.data.iter().enumerate().map(|(partition, found)| {
        let mut status = place(found);
        let owner = reports.iter().find(|(node, _)| Some(*node) == found.node);
        let owned = owner.map_or(&[][..], |(_, report)| &report.owned);
        if let Some(owned) = owned.iter().find(|owned| owned.partition == partition) {
            status.items = owned.items;
            status.stored_bytes = owned.stored_bytes;
            status.missing_bytes = owned.missing_bytes;
        }
        status
    });
    let of = |wanted: NodeId| reports.iter().find(|(node, _)| *node == wanted);
    // Nodes count how much of a region they have not been told, which is not all full.
    let owned = reports.iter().flat_map(|(_, report)| &report.owned);
    let stored_bytes: u64 = owned.map(|owned| owned.stored_bytes).sum();
    let joining =
        |node: NodeId| of(node).map_or(0, |(_, report)| report.joining_bytes.min(stored_bytes));
    let parity = newest.parity.iter().map(|found| {
        let mut status = place(found);
        if found.state == "joining" {
            status.missing_bytes = found.node.map_or(0, joining);
        }
        status
    });
    let mut status = GroupStatus {
        group,
        view: Some(newest.view),
        data: data.collect(),
        parity: parity.collect(),
    };
    if let Some(handoff) = &newest.handoff {
        let mut places = status.data.iter_mut().chain(&mut status.parity);
        if let Some(place) = places.nth(handoff.slot) {
            let known = nodes.iter().find(|node| node.node == handoff.node);
            place.handoff = known.map(|node| node.name.clone());
            place.moving_bytes = joining(handoff.node);
        }
    }
    status
}
