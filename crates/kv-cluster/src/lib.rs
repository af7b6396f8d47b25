//! Nodes as one cluster: agreement in etcd, links between nodes, failure detection.
//!
//! [`etcd`] keeps the cluster's few documents ([`config`]), [`layout`] assigns roles to nodes,
//! [`links`] carry frames between nodes and [`detector`] detects dead ones. Byte tables:
//! `docs/protocols/kv-peers.md`. Paper: \[cocytus16\] section 3.2 and 4.

#![forbid(unsafe_code)]

pub mod ask;
mod backoff;
pub mod balance;
pub mod config;
pub mod detector;
pub mod etcd;
pub mod forward;
pub mod frame;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod handshake;
pub mod injected_faults;
mod lane;
pub mod layout;
pub mod link;
pub mod links;
pub mod membership;
pub mod node;
pub mod registrar;
pub mod registration_lease;
pub mod reset;
mod seeder;
pub mod seeding;
pub mod steering;
pub mod steward;
pub mod store;

/// Number of a node, given once and never to another node of the cluster.
#[derive(
    Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
