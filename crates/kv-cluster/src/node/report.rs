//! What a node says of itself and its peers to who asks: JSON in a frame.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::BytesMut;
use cenote_fabric::strangers::Counts;
use cenote_kv::group::member::Member;
use cenote_kv::group::message::UNIT_BYTES;
use cenote_kv::group::process::Process;
use cenote_kv::group::view::{GroupSlot, Parity, Partition, View};
use cenote_kv::group::wire::{decode_view, encode_view};
use serde::{Deserialize, Serialize};

use super::super::NodeId;
use super::super::config::NodeState;
use super::super::detector::{Cause, State};
use super::times::{AgreedReport, Clock, TakeoverReport};

/// How a node is.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its number.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Greater each time it starts.
    pub incarnation: u64,
    /// Whether it takes new roles.
    pub state: NodeState,
    /// Since it started.
    pub uptime_ms: u64,
    /// Bytes of values per slot.
    pub region_bytes: u64,
    /// What it thinks of each other node.
    pub peers: Vec<PeerReport>,
    /// When it last thought otherwise, oldest first.
    pub changes: Vec<ChangeReport>,
    /// Its part in each group, in their order.
    #[serde(default)]
    pub groups: Vec<GroupReport>,
    /// Views that it had agreed on lately, oldest first.
    #[serde(default)]
    pub agreed: Vec<AgreedReport>,
    /// The seed of etcd's content that its groups' views are up to; 0: it was never seeded again.
    #[serde(default)]
    pub seed: u64,
    /// Connections to its lanes that had not proven the cluster's key.
    #[serde(default)]
    pub strangers: StrangersReport,
    /// Bytes that its groups have given up, and that the system does not have back yet: they count for none of them.
    #[serde(default)]
    pub released_bytes: u64,
}

/// What has become of connections that had not proven the key, of all lanes since the node started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StrangersReport {
    /// Accepted.
    pub accepted: u64,
    /// Proved the key: other nodes, and commands.
    pub proven: u64,
    /// Have another key.
    pub wrong_key: u64,
    /// Speak other versions.
    pub wrong_version: u64,
    /// Hung up.
    pub hung_up: u64,
    /// Took too long.
    pub late: u64,
    /// Went for others, when all places were taken.
    pub displaced: u64,
    /// Have not ended: how many there are now.
    pub waiting: u64,
}

impl From<Counts> for StrangersReport {
    fn from(counts: Counts) -> Self {
        Self {
            accepted: counts.accepted,
            proven: counts.proven,
            wrong_key: counts.wrong_key,
            wrong_version: counts.wrong_version,
            hung_up: counts.hung_up,
            late: counts.late,
            displaced: counts.displaced,
            waiting: counts.waiting,
        }
    }
}

/// A group as one of its nodes knows it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Its number.
    pub group: usize,
    /// The number of its view.
    pub view: u32,
    /// The view as it is in etcd, in base64: for an operator, should etcd lose it.
    #[serde(default)]
    pub encoded: String,
    /// Who has each partition, and how it stands.
    pub data: Vec<PlaceReport>,
    /// Who has each parity.
    pub parity: Vec<PlaceReport>,
    /// The partitions that this node owns.
    pub owned: Vec<PartitionReport>,
    /// Bytes that this node is still to be told before it has its place: it joins, or is to take one over.
    #[serde(default)]
    pub joining_bytes: u64,
    /// Who takes a place over from a node that leaves.
    #[serde(default, rename = "heir")]
    pub handoff: Option<HandoffReport>,
    /// Partitions that this node took over lately, oldest first.
    #[serde(default)]
    pub takeovers: Vec<TakeoverReport>,
    /// Bytes of values here.
    pub value_bytes: u64,
    /// Bytes of parity, or of copies, here.
    pub parity_bytes: u64,
    /// Bytes of keys and facts here.
    pub table_bytes: u64,
}

/// A place of a group.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct PlaceReport {
    /// Whose it is.
    pub node: Option<NodeId>,
    /// Which process of that node: one that was started since is another.
    #[serde(default)]
    pub incarnation: Option<u64>,
    /// `home`, `recovering`, `arriving`, `migrating`, `lost`; `full`, `joining`, `vacant`.
    pub state: String,
}

/// Who takes a place over.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct HandoffReport {
    /// Number of the slot, data first.
    pub slot: usize,
    /// The node that is to have it.
    pub node: NodeId,
}

/// A partition, at its owner.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct PartitionReport {
    /// Its number in the group.
    pub partition: usize,
    /// Items.
    pub items: u64,
    /// Bytes of values, in whole pieces.
    pub stored_bytes: u64,
    /// Bytes that are still to be recovered, or moved here.
    pub missing_bytes: u64,
    /// Operations so far.
    pub operations: u64,
    /// Items that made room for others.
    pub evictions: u64,
}

impl GroupReport {
    /// The view that it is in.
    #[must_use]
    pub fn whole_view(&self) -> Option<View> {
        let bytes = BASE64.decode(&self.encoded).ok()?;
        decode_view(bytes.into()).ok()
    }

    pub(in super::super) fn of(group: usize, view: &View, member: &Member, clock: Clock) -> Self {
        let place = |process: Option<Process>, state: &str| PlaceReport {
            node: process.map(|process| NodeId(process.node)),
            incarnation: process.map(|process| process.incarnation),
            state: state.to_owned(),
        };
        let data = view
            .partitions
            .iter()
            .enumerate()
            .map(|(index, partition)| {
                let state = match partition {
                    Partition::Home(_) => "home",
                    Partition::Recovering(_) => "recovering",
                    Partition::Arriving { .. } => "arriving",
                    Partition::Migrating { .. } => "migrating",
                    Partition::Lost => "lost",
                };
                place(view.owner(index), state)
            });
        let parity = view.parities.iter().map(|parity| {
            let state = match parity {
                Parity::Vacant => "vacant",
                Parity::Joining { .. } => "joining",
                Parity::Full { .. } => "full",
            };
            place(parity.process(), state)
        });
        let owned = member.owned_partitions().map(|(partition, owner)| {
            let replica = owner.replica();
            let allocator = replica.allocator();
            PartitionReport {
                partition,
                items: replica.table().len() as u64,
                stored_bytes: allocator.region_bytes() - allocator.free_bytes(),
                missing_bytes: owner.missing_units() * UNIT_BYTES,
                operations: owner.committed_xid(),
                evictions: owner.counts().evictions,
            }
        });
        let memory = member.memory();
        let handoff = view.handoff.map(|handoff| HandoffReport {
            slot: match handoff.place {
                GroupSlot::Data(index) => index,
                GroupSlot::Parity(slot) => view.partitions.len() + slot,
            },
            node: NodeId(handoff.process.node),
        });
        Self {
            joining_bytes: member.joining_bytes(),
            handoff,
            group,
            view: view.number,
            encoded: {
                let mut bytes = BytesMut::new();
                encode_view(view, &mut bytes);
                BASE64.encode(&bytes)
            },
            data: data.collect(),
            parity: parity.collect(),
            owned: owned.collect(),
            takeovers: member
                .takeovers()
                .map(|takeover| TakeoverReport::of(takeover, clock))
                .collect(),
            value_bytes: memory.values,
            parity_bytes: memory.parity,
            table_bytes: memory.tables,
        }
    }
}

/// What a node thinks of another.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// The other's number.
    pub node: NodeId,
    /// Its name; empty when it has not been registered since this one started.
    pub name: String,
    /// Whether it seems to be alive.
    pub state: PeerState,
    /// Since it was last heard.
    pub silence_ms: u64,
    /// Of the last probe.
    pub round_trip_us: Option<u64>,
    /// What the last try to reach it came to.
    pub trouble: Option<String>,
}

/// [`State`] as text.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerState {
    /// Heard of lately.
    Alive,
    /// There was never a link.
    NeverMet,
    /// No sign for too long.
    Silent,
    /// Its link ended and was not made again.
    Disconnected,
}

/// That a node began to think otherwise of another.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ChangeReport {
    /// The other's number.
    pub node: NodeId,
    /// What it is thought to be since.
    pub state: PeerState,
    /// When, by this machine's clock.
    pub at_unix_ms: u64,
}

impl NodeReport {
    /// As JSON.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and numbers")
    }

    /// Reads JSON of [`NodeReport::to_bytes`], also of a newer program that says more.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

impl PeerState {
    pub(super) fn of(state: State) -> Self {
        match state {
            State::Alive => Self::Alive,
            State::Suspect(Cause::NeverMet) => Self::NeverMet,
            State::Suspect(Cause::Silent) => Self::Silent,
            State::Suspect(Cause::Disconnected) => Self::Disconnected,
        }
    }
}

impl std::fmt::Display for PeerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Alive => "alive",
            Self::NeverMet => "never met",
            Self::Silent => "silent",
            Self::Disconnected => "disconnected",
        })
    }
}
