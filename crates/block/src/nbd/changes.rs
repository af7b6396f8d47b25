//! The order among connections: which bytes of an export are being changed, and for whom.
//!
//! A queue may do a request late: a volume puts it off while hosts are silent, and others pass it.
//! A client whose connection broke may have sent it again by then, on another connection, and more
//! after that. So a request waits for changes to its bytes that other connections' requests before
//! it are making, whether these connections still live or not. Requests of one connection may
//! overtake each other, as NBD has it.
//!
//! Invariant: who has a change noted waits for its queue alone, so no two wait for each other.
//! Concurrency: shared by all workers. The lock is held for a look at what is in the queues, a few
//! hundred entries at most; reads take it only while there are changes.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the queues of one export are changing.
pub(crate) struct Changes {
    state: Mutex<State>,
    /// Entries of the state.
    count: AtomicUsize,
    /// Identity of the next connection.
    next_owner: AtomicU64,
    /// Tells all workers that a change has ended which somebody waits for.
    ring: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    next_id: u64,
    /// Whether a request was refused since the last ring.
    is_awaited: bool,
}

struct Entry {
    id: u64,
    owner: u64,
    bytes: Range<u64>,
}

impl Changes {
    /// None yet; `ring` is called when one ends that a request was refused for.
    pub(crate) fn new(ring: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            count: AtomicUsize::new(0),
            next_owner: AtomicU64::new(0),
            ring: Box::new(ring),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count.load(Ordering::SeqCst);
        formatter
            .debug_struct("Changes")
            .field("count", &count)
            .finish()
    }
}

impl State {
    /// Whether nobody else is changing any of these bytes; notes that somebody waits if so.
    fn is_clear(&mut self, owner: u64, bytes: &Range<u64>) -> bool {
        let in_the_way = |entry: &Entry| {
            entry.owner != owner && entry.bytes.start < bytes.end && bytes.start < entry.bytes.end
        };
        let is_clear = !self.entries.iter().any(in_the_way);
        self.is_awaited |= !is_clear;
        is_clear
    }
}

/// One connection's place among the others of its export.
#[derive(Debug)]
pub(crate) struct Place {
    changes: Arc<Changes>,
    owner: u64,
}

impl Place {
    pub(crate) fn new(changes: &Arc<Changes>) -> Self {
        Self {
            owner: changes.next_owner.fetch_add(1, Ordering::Relaxed),
            changes: Arc::clone(changes),
        }
    }

    /// Whether no other connection is changing any of these bytes. If not, the workers are told
    /// when to ask again.
    pub(crate) fn is_clear(&self, bytes: &Range<u64>) -> bool {
        let is_quiet = self.changes.count.load(Ordering::SeqCst) == 0;
        is_quiet || self.changes.lock().is_clear(self.owner, bytes)
    }

    /// Notes that a request is about to change these bytes; `None` as [`Place::is_clear`].
    pub(crate) fn begin(&self, bytes: Range<u64>) -> Option<Change> {
        let mut state = self.changes.lock();
        if !state.is_clear(self.owner, &bytes) {
            return None;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.entries.push(Entry {
            id,
            owner: self.owner,
            bytes,
        });
        self.changes
            .count
            .store(state.entries.len(), Ordering::SeqCst);
        Some(Change {
            changes: Arc::clone(&self.changes),
            id,
        })
    }
}

/// A change that is noted; it has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Change {
    changes: Arc<Changes>,
    id: u64,
}

impl Change {
    /// Notes that it goes on to the end of `bytes`, which begin in it or behind it; false as
    /// [`Place::is_clear`].
    pub(crate) fn extend(&self, bytes: &Range<u64>) -> bool {
        let mut state = self.changes.lock();
        let at = self.position(&state);
        if bytes.end <= state.entries[at].bytes.end {
            return true;
        }
        let owner = state.entries[at].owner;
        let is_clear = state.is_clear(owner, bytes);
        if is_clear {
            state.entries[at].bytes.end = bytes.end;
        }
        is_clear
    }

    fn position(&self, state: &State) -> usize {
        let mut ids = state.entries.iter().map(|entry| entry.id);
        ids.position(|id| id == self.id)
            .expect("noted until it is dropped")
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut state = self.changes.lock();
        let at = self.position(&state);
        state.entries.swap_remove(at);
        self.changes
            .count
            .store(state.entries.len(), Ordering::SeqCst);
        let is_awaited = std::mem::take(&mut state.is_awaited);
        drop(state);
        if is_awaited {
            (self.changes.ring)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> (Arc<Changes>, Arc<AtomicUsize>) {
        let rings: Arc<AtomicUsize> = Arc::default();
        let rung = Arc::clone(&rings);
        let changes = Changes::new(move || {
            rung.fetch_add(1, Ordering::SeqCst);
        });
        (changes, rings)
    }

    #[test]
    fn who_touches_what_another_changes_waits_until_that_has_ended_and_is_told() {
        let (changes, rings) = counting();
        let (first, second) = (Place::new(&changes), Place::new(&changes));
        let change = first.begin(4096..8192).unwrap();
        assert!(second.is_clear(&(0..4096)) && second.is_clear(&(8192..9000)));
        assert!(first.is_clear(&(0..9000)), "its own is not in the way");
        assert!(first.begin(5000..6000).is_some());
        assert_eq!(rings.load(Ordering::SeqCst), 0, "nobody waits");
        assert!(!second.is_clear(&(8191..8192)));
        assert!(second.begin(0..4097).is_none());
        drop(change);
        assert_eq!(rings.load(Ordering::SeqCst), 1);
        assert!(second.begin(0..4097).is_some());
        assert_eq!(rings.load(Ordering::SeqCst), 1, "once for all who wait");
    }

    #[test]
    fn a_change_grows_up_to_that_of_another() {
        let (changes, _) = counting();
        let (first, second) = (Place::new(&changes), Place::new(&changes));
        let growing = first.begin(0..100).unwrap();
        let other = second.begin(200..300).unwrap();
        assert!(growing.extend(&(100..200)) && growing.extend(&(50..60)));
        assert!(!second.is_clear(&(199..200)));
        assert!(!growing.extend(&(200..201)));
        assert!(second.is_clear(&(200..201)), "it did not grow");
        drop(other);
        assert!(growing.extend(&(200..201)));
        assert!(!second.is_clear(&(200..201)));
    }
}
