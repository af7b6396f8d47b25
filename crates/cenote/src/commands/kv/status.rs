//! `cenote kv status`: the nodes, as etcd knows them and as they say themselves, and their groups.

mod groups;
mod text;

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::{DONE, NOT_WHOLE};
use cenote_cli::span;
use cenote_kv::group::process::Process;
use cenote_kv::group::view::View;
use cenote_kv_cluster::NodeId;
use cenote_kv_cluster::ask;
use cenote_kv_cluster::config::{NodeState, Registration};
use cenote_kv_cluster::node::{GroupReport, NodeReport, PeerReport, PeerState};
use serde::Serialize;

use super::place::{Found, Which};
use crate::watch::Watch;
use groups::GroupStatus;
pub use groups::{Memory, PlaceStatus};
pub use text::print;

/// `kv status` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote kv status --dir ~/.cenote/well
  cenote kv status --dir ~/.cenote/well --watch
  cenote kv status --etcd http://10.0.0.1:2379 --key cluster.key --json | jq .nodes_up

Exit code 3: a partition is not home at a node that answers, or a parity is not full.")]
pub struct Args {
    #[command(flatten)]
    pub which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Timeout for answers of a node
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = span::within("1ms", "60s"))]
    timeout: Duration,
    #[command(flatten)]
    watch: Watch,
}

/// What is shown.
#[derive(Serialize)]
pub struct Report {
    pub cluster: String,
    etcd: String,
    groups: usize,
    pub code: String,
    region_bytes: u64,
    nodes_planned: usize,
    nodes_up: usize,
    /// Whether every group could lose as many nodes as its code bears.
    whole: bool,
    /// Of all nodes that answer.
    memory: Memory,
    pub nodes: Vec<NodeStatus>,
    pub by_group: Vec<GroupStatus>,
}

impl Report {
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether so many nodes are up and see each other.
    pub fn all_met(&self, count: usize) -> bool {
        let met = |node: &&NodeStatus| {
            let peers = node.report.as_ref().map(|report| report.peers.as_slice());
            let alive = peers.unwrap_or_default().iter();
            let alive = alive.filter(|peer| is_alive(peer)).count();
            node.state == State::Up && alive + 1 >= count
        };
        self.nodes.iter().filter(met).count() >= count
    }
}

/// One node.
#[derive(Serialize)]
pub struct NodeStatus {
    node: NodeId,
    pub name: String,
    pub state: State,
    /// Slots that the plan has for it, as group.slot.
    pub planned: Vec<String>,
    /// Partitions that it owns now.
    pub owned: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registration: Option<Registration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<NodeReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl NodeStatus {
    /// Operations of each partition that it owns, by group and partition, since the partition is there.
    pub fn operations(&self) -> impl Iterator<Item = ((usize, usize), u64)> {
        let groups = self.report.iter().flat_map(|report| &report.groups);
        groups.flat_map(|group| {
            let owned = group.owned.iter();
            owned.map(|owned| ((group.group, owned.partition), owned.operations))
        })
    }

    /// Bytes that it is still to recover or to be told, before its places are whole.
    pub fn missing_bytes(&self) -> u64 {
        let groups = self.report.iter().flat_map(|report| &report.groups);
        let of_group = |group: &GroupReport| {
            let owned = group.owned.iter().map(|owned| owned.missing_bytes);
            owned.sum::<u64>() + group.joining_bytes
        };
        groups.map(of_group).sum()
    }
}

/// How a node is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It answers.
    Up,
    /// It answers, and is to take no new roles.
    Draining,
    /// It is registered and does not answer.
    Silent,
    /// It is not registered.
    Down,
}

pub fn run(args: &Args) -> Result<u8> {
    let found = args.which.load()?;
    args.watch.show(args.json, |out| {
        let report = report(&found, args.timeout)?;
        if args.json {
            serde_json::to_writer_pretty(&mut *out, &report)?;
            writeln!(out)?;
        } else {
            print(out, &report)?;
        }
        Ok(if report.whole { DONE } else { NOT_WHOLE })
    })
}

/// Asks etcd, and every node that it knows.
pub fn report(found: &Found, limit: Duration) -> Result<Report> {
    let config = found.config()?;
    let names = found.keys.numbers(&found.etcd)?;
    let listing = found.etcd.list(&found.keys.nodes())?;
    let registered = |node: NodeId| {
        let key = found.keys.node(node);
        let entry = listing.entries.iter().find(|entry| entry.key == key)?;
        Some(Registration::parse(&entry.key, &entry.value))
    };
    let plan = config.plan(&names);
    let mut nodes = Vec::new();
    for (node, name) in &names {
        let (registration, error) = match registered(*node) {
            Some(Ok(registration)) => (Some(registration), None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, None),
        };
        let seats = plan.as_ref().map(|plan| plan.of(*node));
        let seats = seats.unwrap_or_default();
        nodes.push(NodeStatus {
            node: *node,
            name: name.clone(),
            state: State::Down,
            planned: seats
                .iter()
                .map(|seat| format!("{}.{}", seat.group, seat.slot))
                .collect(),
            owned: 0,
            registration,
            report: None,
            memory: None,
            error,
        });
    }
    std::thread::scope(|scope| {
        for node in &mut nodes {
            scope.spawn(|| ask_one(node, found, limit));
        }
    });
    let up = |node: &&NodeStatus| {
        let answers = matches!(node.state, State::Up | State::Draining);
        answers && config.nodes.contains(&node.name)
    };
    let groups = groups::of(&nodes, config.groups);
    for node in &mut nodes {
        let places = groups.iter().flat_map(|group| &group.data);
        node.owned = places.filter(|place| place.node == Some(node.node)).count();
    }
    let memories = nodes.iter().filter_map(|node| node.memory);
    Ok(Report {
        memory: memories.fold(Memory::default(), Memory::with),
        whole: groups.iter().all(GroupStatus::is_whole),
        cluster: found.known.cluster.clone(),
        etcd: found.known.etcd.clone(),
        groups: config.groups,
        code: config.code.to_string(),
        region_bytes: config.region_bytes,
        nodes_planned: config.nodes.len(),
        nodes_up: nodes.iter().filter(up).count(),
        nodes,
        by_group: groups,
    })
}

fn ask_one(node: &mut NodeStatus, found: &Found, limit: Duration) {
    let Some(address) = node.registration.as_ref().map(address) else {
        return;
    };
    let answer = ask::report(address, &found.key, &found.known.cluster, limit)
        .map_err(|error| error.to_string())
        .and_then(|bytes| NodeReport::parse(&bytes).map_err(|error| error.to_string()));
    match answer {
        Ok(report) => {
            node.state = match report.state {
                NodeState::Up => State::Up,
                NodeState::Draining => State::Draining,
            };
            node.memory = Some(Memory::of(&report));
            node.report = Some(report);
        }
        Err(error) => {
            node.state = State::Silent;
            node.error = Some(error);
        }
    }
}

fn address(registration: &Registration) -> SocketAddr {
    registration.peers[0]
}

impl Report {
    /// The latest view of a group that any node has.
    pub fn latest_view(&self, group: usize) -> Option<View> {
        let reports = self.nodes.iter().filter_map(|node| node.report.as_ref());
        let groups = reports.flat_map(|report| &report.groups);
        let of_group = groups.filter(|found| found.group == group);
        of_group
            .max_by_key(|found| found.view)
            .and_then(GroupReport::whole_view)
    }

    /// Whether any node hears a process that is not registered.
    pub fn is_heard(&self, process: Process) -> bool {
        let id = NodeId(process.node);
        let is_registered = |node: &NodeStatus| node.node == id && node.registration.is_some();
        let reports = self.nodes.iter().filter_map(|node| node.report.as_ref());
        let mut peers = reports.flat_map(|report| &report.peers);
        !self.nodes.iter().any(is_registered) && peers.any(|peer| peer.node == id && is_alive(peer))
    }
}

/// Whether a node sees this peer.
fn is_alive(peer: &PeerReport) -> bool {
    peer.state == PeerState::Alive
}
