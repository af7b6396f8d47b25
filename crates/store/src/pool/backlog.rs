//! Versions that are not durable yet, in the order of their sequences.
//!
//! Each waits for its value, then for a fence. Whoever copies a value or makes a group durable holds it
//! meanwhile, and nobody else may. What stands in the sets beside the list follows from its states, which
//! [`Backlog::set`] alone changes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::RandomState;

use super::Source;
use crate::sequenced::Sequenced;

/// Versions that may wait to be made durable.
const VERSIONS_MAX: usize = 65_536;
/// Bytes of their values: what a disk writes in a second or two. Clients wait while there are more.
const BYTES_MAX: u64 = 256 << 20;
/// Versions of one key from its newest durable one on, those included that were given up: whoever looks for
/// that one may walk all of them.
const OF_KEY_MAX: u64 = 1024;

#[derive(Default)]
pub(super) struct Backlog {
    pending: Sequenced<Pending>,
    /// Of those, which wait for their values.
    untaken: Sequenced<()>,
    /// Which have them in the log.
    taken: Sequenced<()>,
    /// Versions by their keys' hashes.
    of_hash: HashMap<u64, OfHash, RandomState>,
    value_bytes: u64,
}

/// One of them.
pub(super) struct Pending {
    pub at: u64,
    /// Of its key.
    pub hash: u64,
    pub value_bytes: u32,
    pub state: Waiting,
    /// Among its key's, from 1 on: [`Backlog::push`] gives it.
    pub number: u64,
}

/// What a version waits for.
pub(super) enum Waiting {
    /// Its value.
    Value(Source),
    /// A fence: its value is in the log, and right.
    Fence,
    /// Whoever holds it.
    Holder,
}

/// Versions of one key that wait. Once none does, the next that comes leads past those that were given up.
#[derive(Default)]
struct OfHash {
    count: usize,
    /// The number of the last that came.
    last: u64,
    /// Of the last that is durable.
    durable: u64,
    /// The newest of them; `None`: it is over, and the others are older than a durable one.
    newest: Option<u64>,
}

impl Backlog {
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= VERSIONS_MAX || self.value_bytes >= BYTES_MAX
    }

    /// Whether a key, by the hash, takes no version until a newer one of it is durable.
    pub fn is_full_of(&self, hash: u64) -> bool {
        let versions = self.of_hash.get(&hash);
        versions.is_some_and(|of_hash| of_hash.last - of_hash.durable >= OF_KEY_MAX)
    }

    /// A version, the newest of all, waits for its value.
    pub fn push(&mut self, sequence: u64, mut version: Pending) {
        let of_hash = self.of_hash.entry(version.hash).or_default();
        of_hash.count += 1;
        of_hash.last += 1;
        version.number = of_hash.last;
        of_hash.newest = Some(sequence);
        self.value_bytes += u64::from(version.value_bytes);
        self.untaken.insert(sequence, ());
        self.pending.insert(sequence, version);
    }

    pub fn get(&self, sequence: u64) -> Option<&Pending> {
        self.pending.get(sequence)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Pending)> {
        self.pending.iter()
    }

    pub fn oldest(&self) -> Option<u64> {
        Some(self.pending.iter().next()?.0)
    }

    /// The newest of a key's, by the hash.
    pub fn newest_of(&self, hash: u64) -> Option<u64> {
        self.of_hash.get(&hash)?.newest
    }

    /// Those that wait for their values, from a sequence on and then those before it.
    pub fn untaken_from(&self, start: u64) -> impl Iterator<Item = (u64, &Pending)> {
        let before = self
            .untaken
            .iter()
            .take_while(move |(one, ())| *one < start);
        let in_turn = self.untaken.from(start).chain(before);
        in_turn.map(|(sequence, ())| (sequence, self.get(sequence).expect(IN_BOTH)))
    }

    /// Those whose values are in the log, the oldest first.
    pub fn taken(&self) -> impl Iterator<Item = (u64, &Pending)> {
        let taken = self.taken.iter();
        taken.map(|(sequence, ())| (sequence, self.get(sequence).expect(IN_BOTH)))
    }

    pub fn taken_count(&self) -> usize {
        self.taken.len()
    }

    /// Gives a version to who holds it from here on, with what it waited for; `None`: there is none, or
    /// another holds it.
    pub fn hold(&mut self, sequence: u64) -> Option<Waiting> {
        let before = self.set(sequence, Waiting::Holder)?;
        (!matches!(before, Waiting::Holder)).then_some(before)
    }

    /// What a version waits for from here on; what it waited for.
    pub fn set(&mut self, sequence: u64, state: Waiting) -> Option<Waiting> {
        let version = self.pending.get_mut(sequence)?;
        let before = std::mem::replace(&mut version.state, state);
        match &before {
            Waiting::Value(_) => _ = self.untaken.remove(sequence),
            Waiting::Fence => _ = self.taken.remove(sequence),
            Waiting::Holder => {}
        }
        match &version.state {
            Waiting::Value(_) => self.untaken.insert(sequence, ()),
            Waiting::Fence => self.taken.insert(sequence, ()),
            Waiting::Holder => {}
        }
        Some(before)
    }

    /// Removes a version that is durable.
    pub fn complete(&mut self, sequence: u64) {
        if let Some(version) = self.pending.get(sequence)
            && let Some(of_hash) = self.of_hash.get_mut(&version.hash)
        {
            of_hash.durable = of_hash.durable.max(version.number);
        }
        self.remove(sequence);
    }

    fn remove(&mut self, sequence: u64) {
        self.set(sequence, Waiting::Holder);
        let Some(version) = self.pending.remove(sequence) else {
            return;
        };
        self.value_bytes -= u64::from(version.value_bytes);
        if let Entry::Occupied(mut of_hash) = self.of_hash.entry(version.hash) {
            let versions = of_hash.get_mut();
            versions.count -= 1;
            versions.newest = versions.newest.filter(|newest| *newest != sequence);
            if versions.count == 0 {
                of_hash.remove();
            }
        }
    }

    /// Removes a version whose value never came; `false`: it has come, or there is none. One before it may
    /// be its key's newest again.
    pub fn give_up(&mut self, sequence: u64) -> bool {
        let Some(version) = self.pending.get(sequence) else {
            return false;
        };
        if !matches!(version.state, Waiting::Value(_)) {
            return false;
        }
        let hash = version.hash;
        self.remove(sequence);
        if let Some(of_hash) = self.of_hash.get_mut(&hash)
            && of_hash.newest.is_none()
        {
            let mut newer_first = self.pending.iter().rev();
            let newest = newer_first.find(|(_, one)| one.hash == hash);
            of_hash.newest = newest.map(|(sequence, _)| sequence);
        }
        true
    }
}

/// Why what a set names is there.
const IN_BOTH: &str = "sets name versions that wait";

#[cfg(test)]
mod tests {
    use super::*;

    fn version(hash: u64, value_bytes: u32) -> Pending {
        Pending {
            at: 0,
            hash,
            value_bytes,
            state: Waiting::Value(Source::Log),
            number: 0,
        }
    }

    fn sequences<'a>(of: impl Iterator<Item = (u64, &'a Pending)>) -> Vec<u64> {
        of.map(|(sequence, _)| sequence).collect()
    }

    #[test]
    fn a_version_has_one_holder_and_waits_for_its_value_then_for_its_fence() {
        let mut backlog = Backlog::default();
        for sequence in 1..=3 {
            backlog.push(sequence, version(sequence, 1));
        }
        assert_eq!(sequences(backlog.untaken_from(2)), [2, 3, 1]);
        assert!(matches!(backlog.hold(2), Some(Waiting::Value(_))));
        assert!(backlog.hold(2).is_none() && !backlog.give_up(2));
        assert_eq!(sequences(backlog.untaken_from(0)), [1, 3]);
        backlog.set(2, Waiting::Fence);
        assert_eq!(sequences(backlog.taken()), [2]);
        assert!(!backlog.give_up(2), "its value has come");
        assert!(matches!(backlog.hold(2), Some(Waiting::Fence)));
        backlog.complete(2);
        assert!(backlog.hold(2).is_none() && backlog.set(2, Waiting::Fence).is_none());
        assert!(backlog.give_up(1) && !backlog.give_up(1));
        assert_eq!((backlog.len(), backlog.oldest()), (1, Some(3)));
    }

    #[test]
    fn a_keys_newest_is_an_older_one_once_that_is_given_up() {
        let mut backlog = Backlog::default();
        for sequence in 1..=3 {
            backlog.push(sequence, version(7, 1));
        }
        assert!(backlog.give_up(3));
        assert_eq!(backlog.newest_of(7), Some(2));
        // Durable: what is older counts no more.
        backlog.complete(2);
        assert_eq!(backlog.newest_of(7), None);
        backlog.complete(1);
        assert!(backlog.of_hash.is_empty());
    }

    #[test]
    fn it_is_full_of_a_key_until_a_newer_version_is_durable_or_none_waits() {
        let mut backlog = Backlog::default();
        let mut next = 0;
        let mut fill = |backlog: &mut Backlog| {
            let first = next;
            while !backlog.is_full_of(7) {
                backlog.push(next, version(7, 0));
                next += 1;
            }
            next - first
        };
        assert_eq!(fill(&mut backlog), 1024);
        assert!(!backlog.is_full_of(8));
        // Those that were given up are walked as well.
        for sequence in 0..1000 {
            assert!(backlog.give_up(sequence));
        }
        assert_eq!(fill(&mut backlog), 0);
        backlog.complete(1010);
        assert_eq!(fill(&mut backlog), 1011);
        // The newest durable one counts.
        backlog.complete(1005);
        assert_eq!(fill(&mut backlog), 0);
        for sequence in 0..2035 {
            backlog.give_up(sequence);
        }
        assert_eq!((backlog.len(), fill(&mut backlog)), (0, 1024));
    }

    #[test]
    fn it_is_full_by_count_and_by_bytes() {
        let mut backlog = Backlog::default();
        for sequence in 0..256 {
            assert!(!backlog.is_full());
            backlog.push(sequence, version(sequence, 1 << 20));
        }
        assert!(backlog.is_full());
        backlog.complete(9);
        assert!(!backlog.is_full());
        for sequence in 256..65_537 {
            assert!(!backlog.is_full());
            backlog.push(sequence, version(sequence, 0));
        }
        assert!(backlog.is_full());
    }
}
