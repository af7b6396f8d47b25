//! The key-value store, caches and stores of objects.

use std::collections::BTreeMap;

use cenote_cache::service::question::{Checkpoint, Status as CacheStatus};
use serde::Serialize;

use crate::commands::kv::status as kv;

/// The key-value store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KvView {
    pub cluster: String,
    pub code: String,
    /// Whether every group could lose as many nodes as its code bears.
    pub whole: bool,
    pub nodes: Vec<NodeView>,
    pub groups: Vec<GroupView>,
    /// Operations so far of each partition that some node told of.
    #[serde(skip)]
    pub operations: Operations,
}

/// Operations by group and partition.
pub type Operations = BTreeMap<(usize, usize), u64>;

/// An earlier owner may not know yet that it is one: the highest number is the partition's.
fn operations_of(report: &kv::Report) -> Operations {
    let mut operations = Operations::new();
    for (partition, count) in report.nodes.iter().flat_map(kv::NodeStatus::operations) {
        let known = operations.entry(partition).or_default();
        *known = count.max(*known);
    }
    operations
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeView {
    pub name: String,
    pub state: kv::State,
    pub why: Option<String>,
    /// Partitions that it owns.
    pub owned: usize,
    pub memory: Option<kv::Memory>,
    /// What it is still to recover or to be told.
    pub missing_bytes: u64,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupView {
    pub group: usize,
    pub whole: bool,
    /// Partitions first, then parities.
    pub places: Vec<PlaceView>,
}

/// A place of a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaceView {
    /// Name of the node.
    pub name: Option<String>,
    pub state: String,
    pub answers: bool,
    pub is_parity: bool,
}

impl KvView {
    pub fn of(report: &kv::Report) -> Self {
        let place = |place: &kv::PlaceStatus, is_parity| PlaceView {
            name: place.name.clone(),
            state: place.state.clone(),
            answers: place.answers,
            is_parity,
        };
        let groups = report.by_group.iter().map(|group| {
            let data = group.data.iter().map(|found| place(found, false));
            let parity = group.parity.iter().map(|found| place(found, true));
            GroupView {
                group: group.group,
                whole: group.is_whole(),
                places: data.chain(parity).collect(),
            }
        });
        let nodes = report.nodes.iter().map(|node| NodeView {
            name: node.name.clone(),
            state: node.state,
            why: node.error.clone(),
            owned: node.owned,
            memory: node.memory,
            missing_bytes: node.missing_bytes(),
        });
        Self {
            cluster: report.cluster.clone(),
            code: report.code.clone(),
            whole: report.is_whole(),
            nodes: nodes.collect(),
            groups: groups.collect(),
            operations: operations_of(report),
        }
    }
}

/// How a cache is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    Whole,
    /// Regions lack memory or copies, or are on their way.
    Partial,
    /// It is being deleted.
    Ending,
    /// No process is its manager.
    Idle,
    /// Its manager does not answer.
    Silent,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheView {
    pub name: String,
    pub state: CacheState,
    pub why: Option<String>,
    pub figures: Option<CacheFigures>,
}

/// What the manager of a cache says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CacheFigures {
    pub size_bytes: u64,
    pub copies: usize,
    pub clients: usize,
    pub regions: usize,
    /// Regions that are read and written, ...
    pub open: usize,
    /// ... that have no memory, ...
    pub absent: usize,
    /// ... and that are on their way.
    pub moving: usize,
    pub hosts_up: usize,
    pub hosts: usize,
    /// Regions that lost their bytes at some time.
    pub losses: usize,
    pub is_checkpointing: bool,
    pub troubles: Vec<String>,
}

impl CacheView {
    /// Of what its manager answered; `is_managed`: whether it has one.
    pub fn of(name: &str, is_managed: bool, answer: Result<CacheStatus, String>) -> Self {
        let (state, why, figures) = match answer {
            Ok(status) => {
                let state = match (status.ending, status.whole) {
                    (true, _) => CacheState::Ending,
                    (false, true) => CacheState::Whole,
                    (false, false) => CacheState::Partial,
                };
                (state, None, Some(CacheFigures::of(&status)))
            }
            Err(_) if !is_managed => (CacheState::Idle, None, None),
            Err(why) => (CacheState::Silent, Some(why), None),
        };
        Self {
            name: name.to_owned(),
            state,
            why,
            figures,
        }
    }
}

impl CacheFigures {
    fn of(status: &CacheStatus) -> Self {
        let journal = status.journal_error.as_ref();
        let journal = journal.map(|error| format!("its journal cannot be written: {error}"));
        let troubles = status.troubles.iter();
        let troubles = troubles.map(|trouble| format!("{}: {}", trouble.with, trouble.what));
        Self {
            size_bytes: status.size_bytes,
            copies: status.copies,
            clients: status.clients,
            regions: status.regions.total,
            open: status.regions.open,
            absent: status.regions.absent,
            moving: status.moves.len(),
            hosts_up: status.hosts.iter().filter(|host| host.up).count(),
            hosts: status.hosts.len(),
            losses: status.losses.len(),
            is_checkpointing: status.checkpoint == Some(Checkpoint::Running),
            troubles: journal.into_iter().chain(troubles).take(8).collect(),
        }
    }
}

/// A store of objects that is served.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoreView {
    pub address: String,
    pub answers: bool,
    pub why: Option<String>,
    pub figures: Option<StoreFigures>,
}

/// What a store says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoreFigures {
    pub scheme: String,
    pub shards: usize,
    /// Bytes of the log in use, of all that it has.
    pub used_bytes: u64,
    pub log_bytes: u64,
    /// Versions that are not durable yet.
    pub backlog: u64,
    /// Shards whose log is being cleaned.
    pub cleaning: u64,
    /// Bytes that clients put so far, and that were written for it.
    pub put_bytes: u64,
    pub written_bytes: u64,
}
