//! Order of a client's requests while a partition changes hands.
//!
//! What was sent to the former owner is passed on by it. A later request of the same client, sent to the
//! new owner at once, could overtake it: so requests for the partition wait until the former owner has
//! answered what was on its way, or its link has broken. What other nodes ask does not wait: it may be
//! just what was passed on, and its order is that node's care. A former owner that does not reach the new
//! one cannot pass anything on: its link is broken after a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cenote_memcached::Batch;

use super::super::NodeId;
use super::Lane;
use super::forwarder::{Forwarding, Mark};

/// How long a former owner may take to pass on what it was sent. Longer than it takes to miss a node, to
/// have a view without it and to wait for leases; arbitrary beyond that.
const FORMER_MAX: Duration = Duration::from_secs(3);

/// Partitions, by their index, and what has to be answered before they are asked for anything again.
#[derive(Default)]
pub(super) struct Changing {
    /// By seat: the number of the view, and the owners in it.
    owners: Vec<(u32, Vec<Option<u32>>)>,
    /// And since when.
    waits: BTreeMap<usize, (Mark, Instant)>,
}

impl Changing {
    pub(super) fn is_in_order(&self, index: usize, forwarding: &Forwarding) -> bool {
        let wait = self.waits.get(&index);
        wait.is_none_or(|(mark, _)| forwarding.has_answered(mark))
    }
}

impl Lane {
    /// Notes which partitions have another owner since it was last called. What has not been sent to the
    /// former one is to ask again.
    pub(super) fn note_owners(&mut self, asks: &mut Batch, now: Instant) {
        let forwarding = &mut self.forwarding;
        let changing = &mut self.changing;
        changing
            .waits
            .retain(|_, (mark, _)| !forwarding.has_answered(mark));
        let late = |(_, since): &&(Mark, Instant)| now.duration_since(*since) >= FORMER_MAX;
        for (mark, _) in changing.waits.values().filter(late) {
            tracing::warn!(node = %mark.node(), "it does not pass on what it was sent");
            self.links.reset(mark.node(), now, &mut self.events);
        }
        let k = self.config.code.data();
        let unknown = || (0, vec![None; k]);
        changing.owners.resize_with(self.seats.len(), unknown);
        for (number, (seat, known)) in self.seats.iter().zip(&mut changing.owners).enumerate() {
            let Some(view) = seat.member.view().filter(|view| view.number != known.0) else {
                continue;
            };
            known.0 = view.number;
            for (partition, known) in known.1.iter_mut().enumerate() {
                let owner = view.owner(partition).map(|owner| owner.node);
                let former = std::mem::replace(known, owner);
                let Some(former) = former.filter(|former| owner != Some(*former)) else {
                    continue;
                };
                // To an owner in between nothing was sent.
                let former = NodeId(former);
                forwarding.let_go(former, asks);
                if let Some(mark) = forwarding.mark(former) {
                    changing
                        .waits
                        .entry(number * k + partition)
                        .or_insert((mark, now));
                }
            }
        }
    }
}
