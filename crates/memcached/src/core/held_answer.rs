//! Answers that wait for operations, ordered by these.

use std::collections::HashMap;

use cenote_kv::group::replica::Xid;

use crate::batch::{Asker, Ticket};

/// An answer that is held until an operation is committed.
pub(super) struct Waiting {
    pub xid: Xid,
    /// The partition's when it was proposed.
    pub term: u32,
    /// Answers that wait for one operation keep their order.
    pub order: u64,
    pub ticket: Ticket,
    pub answer: Vec<u8>,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.xid, self.order).cmp(&(other.xid, other.order))
    }
}

/// Bytes of answers that wait for an operation.
#[derive(Default)]
pub(super) struct Held {
    /// Of clients of this process, whether they are still there or have gone.
    pub(super) clients: usize,
    pub(super) nodes: HashMap<u32, usize>,
}

impl Held {
    pub(super) fn of(&mut self, ticket: &Ticket) -> &mut usize {
        match ticket.asker {
            Asker::Worker(_) => &mut self.clients,
            Asker::Node(node) => self.nodes.entry(node).or_default(),
        }
    }
}
