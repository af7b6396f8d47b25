//! Order of a client's requests while a partition changes hands.
//!
//! What was sent to the former owner is passed on by it. A later request of the same client, sent to the
//! new owner at once, could overtake it: so requests for the partition wait until the former owner has
//! answered what was on its way, or its link has broken. What other nodes ask does not wait: it may be
//! just what was passed on, and its order is that node's care. A former owner that does not reach the new
//! one cannot pass anything on: its link is broken after a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cenote_kv::group::view::View;
use cenote_memcached::Batch;

use super::super::NodeId;
use super::forwarder::{Forwarding, Mark};

/// How long a former owner may take to pass on what it was sent. Longer than it takes to miss a node, to
/// have a view without it and to wait for leases; arbitrary beyond that.
const FORMER_MAX: Duration = Duration::from_secs(3);

/// Partitions, by their index, and what has to be answered before they are asked for anything again.
pub(super) struct Changing {
    /// Partitions of a group.
    k: usize,
    /// By seat: the number of the view, and the owners in it.
    owners: Vec<(u32, Vec<Option<u32>>)>,
    /// And since when.
    waits: BTreeMap<usize, (Mark, Instant)>,
}

impl Changing {
    /// Of so many groups of `k` partitions, whose views are not known.
    pub(super) fn new(seats: usize, k: usize) -> Self {
        Self {
            k,
            owners: vec![(0, vec![None; k]); seats],
            waits: BTreeMap::new(),
        }
    }

    pub(super) fn is_in_order(&self, index: usize, forwarding: &Forwarding) -> bool {
        let wait = self.waits.get(&index);
        wait.is_none_or(|(mark, _)| forwarding.has_answered(mark))
    }

    /// Forgets what has been answered. Former owners that take too long to answer the rest.
    pub(super) fn late(&mut self, forwarding: &Forwarding, now: Instant) -> Vec<NodeId> {
        self.waits
            .retain(|_, (mark, _)| !forwarding.has_answered(mark));
        let late = |(_, since): &&(Mark, Instant)| now.duration_since(*since) >= FORMER_MAX;
        let late = self.waits.values().filter(late);
        late.map(|(mark, _)| mark.node()).collect()
    }

    /// Notes which partitions have another owner by this view. What has not been sent to the former one is
    /// to ask again.
    pub(super) fn note_view(
        &mut self,
        seat: usize,
        view: &View,
        forwarding: &mut Forwarding,
        asks: &mut Batch,
        now: Instant,
    ) {
        let (number, owners) = &mut self.owners[seat];
        if std::mem::replace(number, view.number) == view.number {
            return;
        }
        let mut formers = Vec::new();
        for (partition, known) in owners.iter_mut().enumerate() {
            let owner = view.owner(partition).map(|owner| owner.node);
            let former = std::mem::replace(known, owner);
            let former = former.filter(|former| owner != Some(*former));
            formers.extend(former.map(|former| (partition, former)));
        }
        for (partition, former) in formers {
            let mut owners = self.owners.iter().flat_map(|(_, owners)| owners);
            let has_others = owners.any(|owner| *owner == Some(former));
            // To an owner in between nothing was sent.
            let former = NodeId(former);
            if has_others {
                forwarding.note_loss(former, asks);
            } else {
                forwarding.let_go(former, asks);
            }
            if let Some(mark) = forwarding.mark(former) {
                let index = seat * self.k + partition;
                self.waits.entry(index).or_insert((mark, now));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_kv::group::process::Process;
    use cenote_kv::group::view::Scheme;
    use cenote_memcached::{Asker, Ticket};

    use super::*;

    #[test]
    fn a_flush_waits_for_a_node_until_it_owns_nothing() {
        let process = |node| Process {
            node,
            incarnation: 1,
        };
        let both = View::first(Scheme::Coded, &[process(1)], &[process(0)]);
        let without = both.without(|dead| dead == process(1));
        let without = without.expect("a parity is there");
        let mut changing = Changing::new(2, 1);
        let mut forwarding = Forwarding::new(1 << 20);
        let now = Instant::now();
        let mut note = |seat, view, forwarding: &mut Forwarding| {
            let mut asks = Batch::default();
            changing.note_view(seat, view, forwarding, &mut asks, now);
            let texts = asks.iter().map(|(_, text)| text.to_vec());
            texts.collect::<Vec<_>>()
        };
        for seat in 0..2 {
            assert!(note(seat, &both, &mut forwarding).is_empty());
        }
        let ticket = Ticket {
            asker: Asker::Worker(0),
            client: 7,
            generation: 1,
            slot: 1,
        };
        let texts = [&b"flush_all 0\r\n"[..], b"get a\r\n"];
        for text in texts {
            forwarding.ask(NodeId(1), ticket, text);
        }
        assert_eq!(note(0, &without, &mut forwarding), [texts[1]]);
        assert_eq!(note(1, &without, &mut forwarding), [texts[0]]);
        assert!(forwarding.is_quiet() && forwarding.asked_bytes() == 0);
    }
}
