//! Operations of a partition that are under way: proposed by its owner, and not committed yet.
//!
//! In the order of their numbers, which follow that of the last committed one. Found by number, and by key: the
//! last one on it. Pure bookkeeping; who proposes and commits is [`super::owner`].

use std::collections::{HashMap, VecDeque};

use super::operation::Operation;
use super::replica::Xid;
use crate::memory::table::Entry;

/// Most operations that are under way in a partition.
const OPERATIONS_MAX: usize = 64 << 10;

/// An operation under way.
pub(super) struct Pending {
    /// Of its key.
    pub hash: u64,
    pub operation: Operation,
    /// The item afterwards, and which operation has its value.
    pub after: Option<(Entry, Option<Xid>)>,
    /// Bytes that it frees to make room.
    pub frees: u64,
    /// For the mistake [`InjectedFault::OldAtIssue`](crate::injected_faults::InjectedFault::OldAtIssue).
    pub old: Option<Entry>,
}

/// All that are under way.
#[derive(Default)]
pub(super) struct Backlog {
    /// The last operation that is not among them any more.
    committed: Xid,
    operations: VecDeque<Pending>,
    /// Of the operations themselves.
    bytes: usize,
    /// Bytes that they free to make room.
    freeing_bytes: u64,
    /// Hash of a key -> the last operation on it.
    newest: HashMap<u64, Xid>,
}

impl Backlog {
    /// None, after this operation.
    pub fn after(committed: Xid) -> Self {
        Self {
            committed,
            ..Self::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Whether no more are taken before some are committed.
    pub fn is_full(&self, bytes_max: usize) -> bool {
        self.operations.len() >= OPERATIONS_MAX || self.bytes >= bytes_max
    }

    /// The last of them, or the last committed one.
    pub fn last_xid(&self) -> Xid {
        self.committed + self.operations.len() as u64
    }

    /// Bytes that they free to make room.
    pub fn freeing_bytes(&self) -> u64 {
        self.freeing_bytes
    }

    /// Adds one, and gives its number.
    pub fn push(&mut self, pending: Pending) -> Xid {
        let xid = self.last_xid() + 1;
        if !pending.operation.key().is_empty() {
            self.newest.insert(pending.hash, xid);
        }
        self.bytes += pending.operation.bytes().len();
        self.freeing_bytes += pending.frees;
        self.operations.push_back(pending);
        xid
    }

    /// Gives a number to an operation that is committed already, where none is under way.
    pub fn pass(&mut self) -> Xid {
        debug_assert!(self.is_empty(), "operations are committed in order");
        self.committed += 1;
        self.committed
    }

    /// The last of them frees so many bytes to make room.
    pub fn note_frees(&mut self, bytes: u64) {
        if let Some(pending) = self.operations.back_mut() {
            pending.frees = bytes;
            self.freeing_bytes += bytes;
        }
    }

    /// Takes the first, with its number: it is committed.
    pub fn pop(&mut self) -> Option<(Xid, Pending)> {
        let first = self.operations.pop_front()?;
        self.committed += 1;
        self.bytes -= first.operation.bytes().len();
        self.freeing_bytes -= first.frees;
        if self.newest.get(&first.hash) == Some(&self.committed) {
            self.newest.remove(&first.hash);
        }
        Some((self.committed, first))
    }

    /// One by its number.
    pub fn get(&self, xid: Xid) -> Option<&Pending> {
        let index = xid.checked_sub(self.committed + 1)?;
        self.operations.get(usize::try_from(index).ok()?)
    }

    /// The last one on a key.
    pub fn last_on(&self, hash: u64, key: &[u8]) -> Option<(Xid, &Pending)> {
        let xid = *self.newest.get(&hash)?;
        let newest = self.get(xid)?;
        if newest.operation.key() == key {
            return Some((xid, newest));
        }
        // Another key has the same hash.
        let mut all = self.operations.iter();
        let index = all.rposition(|pending| pending.operation.key() == key)?;
        Some((self.committed + 1 + index as u64, &self.operations[index]))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.operations.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::super::operation::Effect;
    use super::*;

    fn pending(hash: u64, key: &[u8]) -> Pending {
        Pending {
            hash,
            operation: Operation::new(Effect::Remove, key, |_| {}),
            after: None,
            frees: 0,
            old: None,
        }
    }

    #[test]
    fn the_last_on_a_key_is_found_until_it_is_committed_also_beside_one_of_the_same_hash() {
        let mut backlog = Backlog::after(7);
        assert_eq!((backlog.last_xid(), backlog.is_empty()), (7, true));
        assert_eq!(backlog.push(pending(1, b"a")), 8);
        assert_eq!(backlog.push(pending(1, b"b")), 9);
        let last_on = |backlog: &Backlog, key: &[u8]| backlog.last_on(1, key).map(|found| found.0);
        assert_eq!(last_on(&backlog, b"a"), Some(8), "the same hash");
        assert_eq!(last_on(&backlog, b"b"), Some(9));
        assert_eq!(last_on(&backlog, b"c"), None);
        assert_eq!(backlog.pop().map(|(xid, _)| xid), Some(8));
        assert_eq!(
            (last_on(&backlog, b"a"), last_on(&backlog, b"b")),
            (None, Some(9))
        );
        assert!(backlog.get(8).is_none() && backlog.get(9).is_some() && backlog.get(10).is_none());
        assert_eq!(backlog.pop().map(|(xid, _)| xid), Some(9));
        assert_eq!(last_on(&backlog, b"b"), None);
        assert!(backlog.pop().is_none());
        assert_eq!(backlog.last_xid(), 9);
    }

    #[test]
    fn what_is_under_way_is_bounded_and_what_it_frees_is_counted() {
        let mut backlog = Backlog::after(0);
        assert!(!backlog.is_full(1) && backlog.is_full(0));
        backlog.push(pending(1, b"a"));
        backlog.note_frees(5);
        backlog.push(pending(2, b"b"));
        backlog.note_frees(6);
        assert_eq!((backlog.freeing_bytes(), backlog.is_full(1)), (11, true));
        assert!(backlog.pop().is_some());
        assert_eq!(backlog.freeing_bytes(), 6);
        assert!(backlog.pop().is_some());
        assert_eq!((backlog.freeing_bytes(), backlog.is_full(1)), (0, false));
    }
}
