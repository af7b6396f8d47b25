//! How much of a node's memory the links of one lane may take.

use cenote_kv::group::message::UNIT_BYTES;

use super::super::config::ClusterConfig;
use super::super::frame::PAYLOAD_BYTES_MAX;
use super::super::link;

/// Messages of a partition that are no operations: values on their way to who joins, units on theirs to who
/// recovers.
const OTHER_MESSAGES_BYTES: u64 = 512 * UNIT_BYTES;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LinkBounds {
    /// What may wait to be written on one link.
    pub(super) out_bytes: usize,
    /// Requests on their way to one node.
    pub(super) window_bytes: usize,
    /// Answers on their way to one node: what it asks for beyond waits as it came.
    pub(super) answer_bytes: usize,
    /// What groups say to one node and its link has no room for: as much as all partitions of the node may have
    /// under way, for one that was away is sent all of that at once. A link that takes too little is broken.
    pub(super) outbox_bytes: usize,
}

impl LinkBounds {
    pub(super) fn of(config: &ClusterConfig) -> Self {
        let (others, _) = config.memory();
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let share = bytes(others.links) / config.lanes;
        // Half is for what is written, a quarter for requests of others, a quarter for their answers.
        let peers = config.nodes.len().saturating_sub(1).max(1);
        let outbox = (others.operations + OTHER_MESSAGES_BYTES) * config.roles().tables();
        Self {
            out_bytes: (share / 2 / peers)
                .clamp(PAYLOAD_BYTES_MAX + (64 << 10), link::OUT_BYTES_MAX),
            window_bytes: (share / 4 / peers).clamp(64 << 10, link::OUT_BYTES_MAX),
            answer_bytes: (share / 4 / peers).max(64 << 10),
            outbox_bytes: bytes(outbox),
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_fabric::WireProtection;
    use cenote_kv::group::member::Service;

    use super::super::super::config::{KeyFingerprint, Scheme};
    use super::*;

    #[test]
    fn a_peer_that_was_away_may_be_sent_all_that_is_under_way() {
        let config = ClusterConfig {
            groups: 20,
            code: "3+2".parse().expect("a code"),
            scheme: Scheme::Coded,
            region_bytes: 1 << 30,
            memory_bytes: 64 << 30,
            lanes: 1,
            link_traffic: WireProtection::default(),
            key: KeyFingerprint::UNKNOWN,
            service: Service::Online,
            nodes: (0..5).map(|node| format!("n{node:02}")).collect(),
        };
        let roles = config.roles();
        let (others, _) = config.memory();
        // It may own one for each of its slots.
        let partitions = u64::from(roles.data + roles.parity);
        let pending = partitions * (others.operations + OTHER_MESSAGES_BYTES);
        assert!(LinkBounds::of(&config).outbox_bytes as u64 >= pending);
    }
}
