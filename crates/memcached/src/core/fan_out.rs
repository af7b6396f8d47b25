//! Requests that go to all partitions: `flush_all`.

use std::mem;

use cenote_kv::engine::Partition as _;
use cenote_kv::group::owner::Change;

use super::super::backend::{Backend, Peers, Route};
use super::super::batch::{Asker, Ticket};
use super::Core;

/// A request of which several have a part: partitions here, other nodes.
#[derive(Default)]
pub(super) struct FanOut {
    /// Parts that are not answered.
    pub(super) left: usize,
    /// The last error of one.
    pub(super) answer: Vec<u8>,
    /// The [owners](Peers::owners) whom it was meant for.
    pub(super) owners: u64,
    /// Partitions here that have theirs: what is stored behind a flush is not to go by a second one.
    flushed: Vec<usize>,
}

impl<B: Backend> Core<B> {
    /// Flushes all partitions of this worker, each once, and then those of other nodes unless one of these
    /// asks. Where one cannot be flushed now, it is tried again; where one is refused, its refusal is the answer.
    pub(super) fn try_flush(&mut self, ticket: Ticket, at: u64, text: &[u8]) -> bool {
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        let owners = self.owners();
        // What comes back from a node that owns nothing any more is a part that is waited for already.
        let spread = self.spreads.entry(ticket).or_insert(FanOut {
            left: 1,
            owners,
            ..FanOut::default()
        });
        let mut flushed = mem::take(&mut spread.flushed);
        let mut waits = Vec::new();
        let mut refused = Vec::new();
        let mut is_done = true;
        for index in 0..self.backend.partition_count() {
            if !self.backend.is_here(index) || flushed.contains(&index) {
                continue;
            }
            // Who waited for it would wait until an operator acts.
            if let Some(why) = self.backend.loss(index, text) {
                flushed.push(index);
                refused.push(why);
                continue;
            }
            let partition = self.backend.partition(index);
            match partition.propose(0, &[], Change::Flush { at }) {
                Ok(xid) => {
                    flushed.push(index);
                    if xid > partition.committed_xid() {
                        waits.push((index, xid));
                    }
                }
                Err(refusal) => {
                    self.backend.on_refusal(index, refusal);
                    is_done = false;
                }
            }
        }
        let is_to_spread = is_done && matches!(ticket.asker, Asker::Worker(_));
        let spread = self.spreads.entry(ticket).or_default();
        let mut nodes = Vec::new();
        if is_to_spread {
            nodes = self.backend.peers().map(Peers::nodes).unwrap_or_default();
            spread.owners = owners;
        }
        spread.flushed = flushed;
        spread.left += waits.len() + refused.len() + nodes.len();
        for why in refused {
            self.deliver(ticket, why);
        }
        for (index, xid) in waits {
            self.hold(index, xid, ticket, Vec::new());
        }
        for node in nodes {
            self.send(Route::Node(node), ticket, text);
        }
        if is_done {
            self.deliver(ticket, b"");
        }
        is_done
    }
}
