//! What the node's thread tells a lane: who is registered, and what was agreed on.

use std::time::Instant;

use super::super::NodeId;
use super::super::membership::Registered;
use super::super::node::Order;
use super::{Lane, now_ns};

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
                    let me = self.me;
                    if let Some(seat) = self.seat_of(group) {
                        seat.passages.note(group, &view, me);
                        seat.steering.note_view(view.number);
                        seat.member.adopt(&view);
                    }
                }
                Order::HandOver(next) => {
                    if let Some(seat) = self.seat_of(next.group) {
                        seat.steering.hand_over(next);
                    }
                }
                Order::Seeded(seed) => {
                    self.report_at_once(now_ns());
                    self.shared.set_seed(self.index, seed);
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
        self.membership.take(node, found, now);
        // Who is not registered any more may live: it is dialed on where it was.
        if let Some(found) = found.filter(|_| node.0 != self.me.node) {
            self.links
                .set_peer(node, found.address, now, &mut self.events);
        }
    }
}
