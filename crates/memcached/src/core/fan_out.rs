//! Requests that go to all partitions: `flush_all`.
//!
//! Whoever has one from a client asks the nodes that it knows. So nodes have to know the same owners: one that
//! gave a partition away passes it over, and who asks may not know the node that has it now. Each is told whom
//! the request is meant for, as a third word, and compares.

use cenote_kv::engine::Partition as _;
use cenote_kv::group::owner::Change;
use cenote_kv::group::replica::Xid;
use cenote_kv::protocol::Words;

use crate::backend::Partitions;

/// A request of which several have a part: partitions here, other nodes.
#[derive(Default)]
pub(super) struct FanOut {
    /// Parts that are not answered.
    pub(super) left: usize,
    /// The last error of one.
    pub(super) answer: Vec<u8>,
    /// The [owners](crate::backend::Peers::owners) whom it was meant for.
    pub(super) owners: u64,
    /// Partitions here that have theirs: what is stored behind a flush is not to go by a second one.
    flushed: Vec<usize>,
    /// Nodes that were asked for theirs, for the same reason.
    asked: Vec<u32>,
}

/// A flush as another node is asked for its part: when, and whom it is meant for.
pub(super) fn text_for_nodes(text: &[u8], owners: u64) -> Vec<u8> {
    let at = Words::new(text.trim_ascii_end()).nth(1).unwrap_or(b"0");
    [b"flush_all ", at, format!(" {owners:016x}\r\n").as_bytes()].concat()
}

/// Whom a flush is meant for that another node asks for; a node of an earlier version does not say.
pub(super) fn owners_meant(text: &[u8]) -> Option<u64> {
    let word = Words::new(text.trim_ascii_end()).nth(2)?;
    u64::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()
}

/// What came of flushing the partitions of a worker.
pub(super) struct Flush {
    /// Partitions whose operation is not committed yet.
    pub(super) waits: Vec<(usize, Xid)>,
    /// What is answered for those that refuse it.
    pub(super) refused: Vec<&'static [u8]>,
    /// None is left that has to be tried again.
    pub(super) is_done: bool,
}

impl FanOut {
    /// One that is meant for these owners, and of which this worker has a part.
    pub(super) fn new(owners: u64) -> Self {
        Self {
            left: 1,
            owners,
            ..Self::default()
        }
    }

    /// Notes that nodes are asked, and gives those of them that were not asked before.
    ///
    /// The owners are those of the first time: when a part comes back its partitions have changed
    /// hands, and who has them now may have been asked before it got them.
    pub(super) fn note_asked(&mut self, owners: u64, nodes: Vec<u32>) -> Vec<u32> {
        if self.asked.is_empty() {
            self.owners = owners;
        }
        let is_new = |node: &u32| !self.asked.contains(node);
        let new: Vec<u32> = nodes.into_iter().filter(is_new).collect();
        self.asked.extend(&new);
        new
    }

    /// Flushes the partitions here that have not had theirs.
    pub(super) fn flush<P: Partitions>(&mut self, here: &mut P, at: u32, text: &[u8]) -> Flush {
        let mut flush = Flush {
            waits: Vec::new(),
            refused: Vec::new(),
            is_done: true,
        };
        for index in 0..here.partition_count() {
            if !here.is_here(index) || self.flushed.contains(&index) {
                continue;
            }
            // Who waited for it would wait until an operator acts.
            if let Some(why) = here.loss(index, text) {
                self.flushed.push(index);
                flush.refused.push(why);
                continue;
            }
            let partition = here.partition(index);
            match partition.propose(0, &[], Change::Flush { at }) {
                Ok(xid) => {
                    self.flushed.push(index);
                    if xid > partition.committed_xid() {
                        flush.waits.push((index, xid));
                    }
                }
                Err(refusal) => {
                    here.on_refusal(index, refusal);
                    flush.is_done = false;
                }
            }
        }
        flush
    }
}
