//! Order of a client's requests while a partition changes hands.
//!
//! What was sent to the former owner is passed on by it. A later request of the same client, sent to the
//! new owner at once, could overtake it: so requests for the partition wait until the former owner has
//! answered what was on its way, or its link has broken. What other nodes ask does not wait: it may be
//! just what was passed on, and its order is that node's care.

use std::collections::BTreeMap;

use super::super::NodeId;
use super::Lane;
use super::forwarding::{Forwarding, Mark};
use crate::server::Batch;

/// Partitions, by their index, and what has to be answered before they are asked for anything again.
#[derive(Default)]
pub(super) struct Changing {
    /// By seat: the number of the view, and the owners in it.
    owners: Vec<(u32, Vec<Option<u32>>)>,
    waits: BTreeMap<usize, Mark>,
}

impl Changing {
    pub(super) fn is_in_order(&self, index: usize, forwarding: &Forwarding) -> bool {
        let wait = self.waits.get(&index);
        wait.is_none_or(|mark| forwarding.has_answered(mark))
    }
}

impl Lane {
    /// Notes which partitions have another owner since it was last called. What has not been sent to the
    /// former one is to ask anew.
    pub(super) fn note_owners(&mut self, asks: &mut Batch) {
        let forwarding = &mut self.forwarding;
        let changing = &mut self.changing;
        changing
            .waits
            .retain(|_, mark| !forwarding.has_answered(mark));
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
                    changing.waits.entry(number * k + partition).or_insert(mark);
                }
            }
        }
    }
}
