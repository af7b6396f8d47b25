//! What the node's thread tells a lane: who is registered, and what was agreed on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::super::NodeId;
use super::super::config::NodeState;
use super::{Lane, now_ns};
use crate::group::view::View;

/// What the node's thread tells a lane.
#[derive(Clone, Debug)]
pub(in super::super) enum Order {
    /// A node is registered; or it is not any more.
    Node {
        node: NodeId,
        registered: Option<Registered>,
    },
    /// A view was agreed on.
    View { group: usize, view: Arc<View> },
    /// What was wished for was not agreed on, for sure.
    Refused { group: usize, number: u32 },
}

/// What is known of a node that is registered.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Registered {
    pub(in super::super) incarnation: u64,
    /// Where the lane's peer is.
    pub(in super::super) address: Option<SocketAddr>,
    pub(in super::super) state: NodeState,
}

impl Lane {
    /// Takes what the node's thread has said.
    pub(super) fn take_orders(&mut self, now: Instant) {
        for order in self.shared.take_orders(self.index) {
            self.busy_at = now_ns();
            match order {
                Order::Node { node, registered } => {
                    self.take_registration(node, registered, now);
                }
                Order::View { group, view } => {
                    tracing::info!(group, number = view.number, "view");
                    if let Some(seat) = self.seat_of(group) {
                        seat.steering.note_view(view.number);
                        seat.member.adopt(&view);
                    }
                }
                Order::Refused { group, number } => {
                    if let Some(seat) = self.seat_of(group)
                        && seat.steering.note_refusal(number)
                    {
                        seat.member.reopen();
                    }
                }
            }
        }
    }

    fn take_registration(&mut self, node: NodeId, found: Option<Registered>, now: Instant) {
        if node.0 == self.me.node {
            return;
        }
        match found {
            Some(found) => {
                self.registered.insert(node, found);
                self.detector.add(node, now);
                self.links
                    .set_peer(node, found.address, now, &mut self.events);
            }
            None => {
                if let Some(found) = self.registered.remove(&node) {
                    self.ended.insert(node, found.incarnation);
                }
                if !self.links.is_open(node) {
                    self.links.set_peer(node, None, now, &mut self.events);
                }
            }
        }
    }
}
