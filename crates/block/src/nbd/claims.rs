//! The order among connections: whose turn it is at which bytes of an export.
//!
//! A queue may do a request late: a volume puts it off while hosts are silent, and others pass it.
//! A client whose connection broke may have sent it again by then, on another connection, and more
//! after that. So a request claims the bytes that it changes before it goes to the queue, and waits
//! for older claims of other connections to any of them, whether these connections still live or
//! not. A request that only reads claims its bytes while it waits. Requests of one connection may
//! overtake each other, as NBD has it.
//!
//! Invariant: a claim waits for older ones alone. So nobody waits in a circle, and nobody is passed
//! again and again.
//! Concurrency: shared by all workers. The lock is held for a look at what is in the queues, a few
//! hundred entries at most; reads take it only while there are claims.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the requests to one export claim.
pub(crate) struct Claims {
    state: Mutex<State>,
    /// Entries of the state.
    count: AtomicUsize,
    /// Identity of the next connection.
    next_owner: AtomicU64,
    /// Tells all workers that somebody who waited has its turn.
    ring: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    /// Ids go up with the age.
    next_id: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    owner: u64,
    bytes: Range<u64>,
    access: Access,
}

/// What a request does to its bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    Read,
    Change,
}

impl Entry {
    /// Whether `other` has to wait for this.
    fn blocks(&self, other: &Self) -> bool {
        self.id < other.id
            && self.owner != other.owner
            && overlap(&self.bytes, &other.bytes)
            && (self.access == Access::Change || other.access == Access::Change)
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Claims {
    /// None yet; `ring` is called when one ends that was the last in the way of another.
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

impl fmt::Debug for Claims {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count.load(Ordering::SeqCst);
        formatter
            .debug_struct("Claims")
            .field("count", &count)
            .finish()
    }
}

impl State {
    fn position(&self, id: u64) -> usize {
        let mut ids = self.entries.iter().map(|entry| entry.id);
        ids.position(|other| other == id)
            .expect("there until the claim is dropped")
    }

    /// Whether the entry there waits for no other.
    fn has_turn(&self, at: usize) -> bool {
        let entry = &self.entries[at];
        !self.entries.iter().any(|other| other.blocks(entry))
    }
}

/// One connection's place among the others of its export.
#[derive(Debug)]
pub(crate) struct Place {
    claims: Arc<Claims>,
    owner: u64,
}

impl Place {
    pub(crate) fn new(claims: &Arc<Claims>) -> Self {
        Self {
            owner: claims.next_owner.fetch_add(1, Ordering::Relaxed),
            claims: Arc::clone(claims),
        }
    }

    /// Whether these bytes may be read without a claim: no other connection changes any of them, or
    /// waits to.
    pub(crate) fn may_read(&self, bytes: &Range<u64>) -> bool {
        let in_the_way = |entry: &Entry| {
            entry.access == Access::Change
                && entry.owner != self.owner
                && overlap(&entry.bytes, bytes)
        };
        let is_quiet = self.claims.count.load(Ordering::SeqCst) == 0;
        is_quiet || !self.claims.lock().entries.iter().any(in_the_way)
    }

    /// Claims bytes for a request; with the claim comes whether it is its turn already. If not, the
    /// workers are told when to ask [`Claim::has_turn`].
    pub(crate) fn claim(&self, bytes: Range<u64>, access: Access) -> (Claim, bool) {
        let mut state = self.claims.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.entries.push(Entry {
            id,
            owner: self.owner,
            bytes,
            access,
        });
        let count = state.entries.len();
        self.claims.count.store(count, Ordering::SeqCst);
        let claim = Claim {
            claims: Arc::clone(&self.claims),
            id,
        };
        (claim, state.has_turn(count - 1))
    }
}

/// Bytes that a request has claimed; it has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Arc<Claims>,
    id: u64,
}

impl Claim {
    /// Whether it is the claim's turn, now that it goes on to the end of `bytes`, which begin in it
    /// or behind it. It keeps its age when it grows.
    pub(crate) fn has_turn(&self, bytes: &Range<u64>) -> bool {
        let mut state = self.claims.lock();
        let at = state.position(self.id);
        let claimed = &mut state.entries[at].bytes;
        claimed.end = claimed.end.max(bytes.end);
        state.has_turn(at)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.claims.lock();
        let at = state.position(self.id);
        let ended = state.entries.swap_remove(at);
        self.claims
            .count
            .store(state.entries.len(), Ordering::SeqCst);
        let mut others = state.entries.iter().enumerate();
        let is_turn_of_another =
            others.any(|(at, other)| ended.blocks(other) && state.has_turn(at));
        drop(state);
        if is_turn_of_another {
            (self.claims.ring)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Access::{Change, Read};
    use super::*;

    fn counting() -> (Arc<Claims>, Arc<AtomicUsize>) {
        let rings: Arc<AtomicUsize> = Arc::default();
        let rung = Arc::clone(&rings);
        let claims = Claims::new(move || {
            rung.fetch_add(1, Ordering::SeqCst);
        });
        (claims, rings)
    }

    #[test]
    fn who_touches_what_another_changes_waits_until_that_has_ended_and_is_told() {
        let (claims, rings) = counting();
        let (first, second) = (Place::new(&claims), Place::new(&claims));
        let (change, is_turn) = first.claim(4096..8192, Change);
        assert!(is_turn);
        assert!(second.may_read(&(0..4096)) && second.may_read(&(8192..9000)));
        assert!(first.may_read(&(0..9000)), "its own is not in the way");
        assert!(first.claim(5000..6000, Change).1);
        assert_eq!(rings.load(Ordering::SeqCst), 0, "nobody waits");
        assert!(!second.may_read(&(8191..8192)));
        let (waiting, is_turn) = second.claim(0..4097, Change);
        assert!(!is_turn && !waiting.has_turn(&(0..4097)));
        drop(change);
        assert_eq!(rings.load(Ordering::SeqCst), 1);
        assert!(waiting.has_turn(&(0..4097)));
        drop(waiting);
        assert_eq!(rings.load(Ordering::SeqCst), 1, "nobody waits any more");
    }

    #[test]
    fn who_waits_is_not_passed_by_those_that_come_later() {
        for access in [Read, Change] {
            let (claims, rings) = counting();
            let (first, second) = (Place::new(&claims), Place::new(&claims));
            let (running, _) = first.claim(0..10, Change);
            let (wide, is_turn) = second.claim(0..100, access);
            assert!(!is_turn);
            let (later, is_turn) = first.claim(50..60, Change);
            assert!(!is_turn);
            drop(running);
            assert_eq!(rings.load(Ordering::SeqCst), 1);
            assert!(wide.has_turn(&(0..100)) && !later.has_turn(&(50..60)));
            drop(wide);
            assert_eq!(rings.load(Ordering::SeqCst), 2);
            assert!(later.has_turn(&(50..60)));
        }
    }

    #[test]
    fn who_waits_for_several_is_told_when_the_last_has_ended() {
        let (claims, rings) = counting();
        let (first, second) = (Place::new(&claims), Place::new(&claims));
        let (one, _) = first.claim(0..10, Change);
        let (another, _) = first.claim(90..100, Change);
        let (waiting, _) = second.claim(0..100, Change);
        drop(one);
        assert_eq!(rings.load(Ordering::SeqCst), 0, "it would look in vain");
        drop(another);
        assert_eq!(rings.load(Ordering::SeqCst), 1);
        assert!(waiting.has_turn(&(0..100)));
    }

    #[test]
    fn reads_do_not_wait_for_reads_that_wait() {
        let (claims, _) = counting();
        let [first, second, third] = [(); 3].map(|()| Place::new(&claims));
        let (_running, _) = first.claim(0..10, Change);
        let (waiting, is_turn) = second.claim(0..100, Read);
        assert!(!is_turn);
        assert!(third.may_read(&(50..60)) && third.claim(50..60, Read).1);
        drop(waiting);
    }

    #[test]
    fn a_claim_that_grows_keeps_its_age() {
        let (claims, _) = counting();
        let (first, second) = (Place::new(&claims), Place::new(&claims));
        let (before, _) = second.claim(100..200, Change);
        let (growing, _) = first.claim(0..100, Change);
        let (after, is_turn) = second.claim(200..300, Change);
        assert!(is_turn);
        assert!(!growing.has_turn(&(100..200)), "there is an older one");
        drop(before);
        assert!(growing.has_turn(&(100..200)) && growing.has_turn(&(50..60)));
        assert!(!second.may_read(&(199..200)) && second.may_read(&(200..201)));
        assert!(growing.has_turn(&(200..300)), "the other one is younger");
        drop(growing);
        assert!(after.has_turn(&(200..300)));
    }
}
