//! The documents of a cluster in etcd: its configuration, its nodes' numbers and registrations.
//!
//! ```text
//! /cenote/kv/CLUSTER/config       what the cluster is; written once
//! /cenote/kv/CLUSTER/id/NUMBER    the name that the number was given to, for ever
//! /cenote/kv/CLUSTER/node/NUMBER  a node that runs: its addresses; goes with the node's lease
//! /cenote/kv/CLUSTER/view/GROUP   who does what in a group, as docs/protocols/kv-group.md has it
//! /cenote/kv/CLUSTER/turn         the last partition that began to go to another node for balance
//! ```
//!
//! All are JSON. What is read is checked as if a stranger had written it.

use std::net::SocketAddr;

use cenote_fabric::{ClusterKey, WireProtection};
use cenote_kv::group::member::Service;
use cenote_kv::group::view::{PARITIES_MAX, PARTITIONS_MAX};
use cenote_kv::memory::footprint::{Footprint, Others, Roles};
use serde::{Deserialize, Serialize};

use super::NodeId;
use super::layout::{Code, GROUPS_MAX, LayoutError, Seats};
use super::store::EtcdError;

mod document_keys;

pub use document_keys::DocumentKeys;

/// Version of the documents.
pub const VERSION: u32 = 1;
/// Longest name of a cluster or a node.
pub const NAME_BYTES_MAX: usize = 64;
/// Most lanes: connections between two nodes.
pub const LANES_MAX: usize = 64;
/// Most nodes; arbitrary, each keeps links to all others.
pub const NODES_MAX: usize = 256;
/// Bytes of values per slot: from the least that holds the largest item to 1 TiB.
pub const REGION_BYTES: std::ops::RangeInclusive<u64> = 2 << 20..=1 << 40;
/// A recovery unit: regions are whole ones.
const UNIT_BYTES: u64 = 4096;
/// Longest document.
const DOCUMENT_BYTES_MAX: usize = 64 << 10;

/// Why a document is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// It is no such document.
    #[error("{key}: {why}")]
    Malformed {
        /// Where it was.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// Its shape cannot be.
    #[error("{key}: {source}")]
    Shape {
        /// Where it was.
        key: String,
        /// What is wrong.
        source: LayoutError,
    },
    /// Another cluster of that name is there.
    #[error("cluster {0} is there already, with another configuration")]
    Another(String),
    /// The cluster has no configuration yet.
    #[error("there is no cluster {0} in etcd")]
    NoCluster(String),
    /// A name that may not be.
    #[error(
        "{0:?} is no name: 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', the first a letter or digit"
    )]
    Name(String),
    /// All numbers are given away.
    #[error("the cluster knows {NODES_MAX} nodes, which is the most")]
    Full,
    /// etcd refused, or did not answer.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// How a group keeps its values.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Parity slots hold a code over the data slots.
    Coded,
    /// Parity slots hold copies of the one data slot.
    Replicated,
}

/// What a cluster is; the same for all its nodes and for its whole life.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClusterConfig {
    /// How many groups.
    pub groups: usize,
    /// Slots of each.
    pub code: Code,
    /// What parities hold.
    pub scheme: Scheme,
    /// Bytes of values per slot at most, whole units of 4 KiB.
    pub region_bytes: u64,
    /// Bytes of a node's whole memory.
    pub memory_bytes: u64,
    /// Connections between two nodes; partitions are spread over them.
    pub lanes: usize,
    /// How links between nodes are protected after the proof of the key.
    pub link_traffic: WireProtection,
    /// That of the cluster's key: who holds another one is told at once.
    pub key: KeyFingerprint,
    /// What is served while values are recovered.
    pub service: Service,
    /// The nodes of the plan: the group's slots are laid out over them, in this order.
    pub nodes: Vec<String>,
}

/// Tells keys of clusters apart, and nothing else of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeyFingerprint(u64);

impl KeyFingerprint {
    /// Of a key that is not known yet.
    pub const UNKNOWN: Self = Self(0);

    /// Of a cluster's key.
    #[must_use]
    pub fn of(key: &ClusterKey, cluster: &str) -> Self {
        let secret = key.derive(&format!("fingerprint for cluster {cluster}"));
        Self(u64::from_be_bytes(
            *secret.first_chunk().expect("it is longer"),
        ))
    }

    fn parse(text: &str) -> Option<Self> {
        let is_right = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_right)?;
        Some(Self(number))
    }
}

impl std::fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigDocument {
    version: u32,
    groups: usize,
    code: String,
    scheme: Scheme,
    region_bytes: u64,
    memory_bytes: u64,
    lanes: usize,
    link_traffic: String,
    key: String,
    #[serde(default, skip_serializing_if = "is_online")]
    service: Service,
    nodes: Vec<String>,
}

/// What goes without saying, also to programs that do not know the field.
fn is_online(service: &Service) -> bool {
    *service == Service::Online
}

impl ClusterConfig {
    /// Checks what types do not.
    ///
    /// # Errors
    /// `Malformed` or `Shape`, against `key`.
    fn check(&self, key: &str) -> Result<(), DocumentError> {
        let malformed = |why: String| Err(malformed(key, why));
        if self.groups == 0 || self.groups > GROUPS_MAX {
            return malformed(LayoutError::Groups(self.groups).to_string());
        }
        if self.scheme == Scheme::Replicated && self.code.data() != 1 {
            return malformed(format!("replicated groups are 1+M, not {}", self.code));
        }
        if !REGION_BYTES.contains(&self.region_bytes)
            || !self.region_bytes.is_multiple_of(UNIT_BYTES)
        {
            return malformed(format!(
                "a region of {} bytes: {} to {} bytes, a multiple of {UNIT_BYTES}",
                self.region_bytes,
                REGION_BYTES.start(),
                REGION_BYTES.end()
            ));
        }
        if self.lanes == 0 || self.lanes > LANES_MAX {
            return malformed(format!(
                "{} lanes: there may be 1 to {LANES_MAX}",
                self.lanes
            ));
        }
        if self.nodes.len() < self.code.slots() {
            let (code, nodes) = (self.code, self.nodes.len());
            return Err(DocumentError::Shape {
                key: key.to_owned(),
                source: LayoutError::Nodes { code, nodes },
            });
        }
        if self.nodes.len() > NODES_MAX {
            return malformed(format!("{} nodes, at most {NODES_MAX}", self.nodes.len()));
        }
        if self.memory().1.is_none() {
            let needed = "each of a node's slots takes some";
            return malformed(format!("{} bytes of memory: {needed}", self.memory_bytes));
        }
        for (index, name) in self.nodes.iter().enumerate() {
            check_name(name)?;
            if self.nodes[..index].contains(name) {
                return malformed(format!("node {name} is named twice"));
            }
        }
        Ok(())
    }

    /// Which node plays what by the plan, where `numbers` are those of all nodes that were ever registered;
    /// `None`: one of the plan never was.
    #[must_use]
    pub fn plan(&self, numbers: &[(NodeId, String)]) -> Option<Seats> {
        let number_of = |name: &String| {
            let found = numbers.iter().find(|(_, given)| given == name);
            found.map(|(node, _)| *node)
        };
        let nodes: Option<Vec<NodeId>> = self.nodes.iter().map(number_of).collect();
        Seats::plan(self.code, self.groups, &nodes?).ok()
    }

    /// What a node plays by the plan; of nodes that play different roles the most.
    #[must_use]
    pub fn roles(&self) -> Roles {
        let nodes: Vec<NodeId> = (0..).map(NodeId).take(self.nodes.len()).collect();
        let mut roles = Roles {
            data: 0,
            parity: 0,
            group_data: u32::try_from(self.code.data()).expect("a group is small"),
            are_copies: self.scheme == Scheme::Replicated,
        };
        if let Ok(plan) = Seats::plan(self.code, self.groups, &nodes) {
            for node in nodes {
                let seats = plan.of(node);
                let data = seats.iter().filter(|seat| seat.slot < self.code.data());
                let data = data.count() as u32;
                roles.data = roles.data.max(data);
                roles.parity = roles.parity.max(seats.len() as u32 - data);
            }
        }
        roles
    }

    /// How a node's memory is parted: what is not for regions and tables, and what is, if that is enough.
    #[must_use]
    pub fn memory(&self) -> (Others, Option<Footprint>) {
        let roles = self.roles();
        let others = Others::new(self.memory_bytes, roles);
        let footprint = Footprint::new(self.memory_bytes, others.all, roles);
        (others, footprint)
    }

    /// As JSON.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let document = ConfigDocument {
            version: VERSION,
            groups: self.groups,
            code: self.code.to_string(),
            scheme: self.scheme,
            region_bytes: self.region_bytes,
            memory_bytes: self.memory_bytes,
            lanes: self.lanes,
            link_traffic: self.link_traffic.to_string(),
            key: self.key.to_string(),
            service: self.service,
            nodes: self.nodes.clone(),
        };
        serde_json::to_vec(&document).expect("text and numbers")
    }

    /// Reads and checks JSON that was at `key`.
    ///
    /// # Errors
    /// `Malformed` or `Shape`.
    pub fn parse(key: &str, bytes: &[u8]) -> Result<Self, DocumentError> {
        let document: ConfigDocument = document(key, bytes)?;
        check_version(key, document.version)?;
        let code = document.code.parse().map_err(|source| {
            let key = key.to_owned();
            DocumentError::Shape { key, source }
        })?;
        let config = Self {
            groups: document.groups,
            code,
            scheme: document.scheme,
            region_bytes: document.region_bytes,
            memory_bytes: document.memory_bytes,
            lanes: document.lanes,
            link_traffic: document
                .link_traffic
                .parse()
                .map_err(|error: cenote_fabric::Error| malformed(key, error.to_string()))?,
            key: KeyFingerprint::parse(&document.key)
                .ok_or_else(|| malformed(key, "key: no fingerprint".to_owned()))?,
            service: document.service,
            nodes: document.nodes,
        };
        config.check(key)?;
        Ok(config)
    }
}

/// Whether a node takes new roles.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It plays its roles.
    Up,
    /// Its roles are to go to others.
    Draining,
}

/// A node that runs.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Version of the document.
    pub version: u32,
    /// The node's name.
    pub name: String,
    /// Where clients are served; none while it serves none.
    pub clients: Vec<SocketAddr>,
    /// Where peers connect, by lane.
    pub peers: Vec<SocketAddr>,
    /// Greater each time the node starts.
    pub incarnation: u64,
    /// Whether it takes new roles.
    pub state: NodeState,
}

impl Registration {
    /// As JSON.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and numbers")
    }

    /// Reads and checks JSON that was at `key`.
    ///
    /// # Errors
    /// `Malformed` or `Name`.
    pub fn parse(key: &str, bytes: &[u8]) -> Result<Self, DocumentError> {
        let found: Self = document(key, bytes)?;
        check_version(key, found.version)?;
        check_name(&found.name)?;
        if found.peers.is_empty() || found.peers.len() > LANES_MAX {
            let why = format!("{} addresses for peers", found.peers.len());
            return Err(malformed(key, why));
        }
        if found.clients.len() > LANES_MAX {
            let why = format!("{} addresses for clients", found.clients.len());
            return Err(malformed(key, why));
        }
        Ok(found)
    }

    /// Where clients of other machines find it, if it serves any.
    #[must_use]
    pub fn reachable(&self) -> Option<SocketAddr> {
        let mut address = *self.clients.first()?;
        if address.ip().is_unspecified() {
            address.set_ip(self.peers.first()?.ip());
        }
        Some(address)
    }
}

/// Names become parts of keys, of file names and of lines on terminals.
///
/// # Errors
/// [`DocumentError::Name`].
pub fn check_name(name: &str) -> Result<(), DocumentError> {
    let first = name.bytes().next();
    let good = name.len() <= NAME_BYTES_MAX
        && first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if good {
        return Ok(());
    }
    Err(DocumentError::Name(
        name.chars().take(NAME_BYTES_MAX).collect(),
    ))
}

fn document<T: serde::de::DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, DocumentError> {
    if bytes.len() > DOCUMENT_BYTES_MAX {
        return Err(malformed(key, format!("{} bytes long", bytes.len())));
    }
    serde_json::from_slice(bytes).map_err(|error| malformed(key, error.to_string()))
}

fn check_version(key: &str, version: u32) -> Result<(), DocumentError> {
    if version == VERSION {
        return Ok(());
    }
    let why = format!("version {version} of the document, this program knows {VERSION}");
    Err(malformed(key, why))
}

fn malformed(key: &str, why: String) -> DocumentError {
    DocumentError::Malformed {
        key: key.to_owned(),
        why,
    }
}

const _: () = assert!(PARTITIONS_MAX + PARITIES_MAX <= NODES_MAX);

#[cfg(test)]
mod tests;
