//! Where an item is, for whoever reads it.
//!
//! A read that waits for units is asked again from the start, and looks its address up again: its
//! item may have been replaced meanwhile, and its space be another's.

use super::owner::{Found, Gone, Newest, Owner};
#[cfg(feature = "injected-faults")]
use crate::injected_faults::{InjectedFault, is_injected};

impl Owner {
    /// The newest state of a key, operations under way included.
    pub fn newest(&self, hash: u64, key: &[u8]) -> Newest {
        let newest = self.newest_of(hash, key);
        Newest {
            found: self.looked_up(hash, newest.found),
            ..newest
        }
    }

    /// The committed state of a key.
    pub fn committed(&self, hash: u64, key: &[u8]) -> Option<Found> {
        let is_live = |found: &Found| self.replica.is_live(&found.entry);
        self.looked_up(hash, self.stored(hash, key).filter(is_live))
    }

    /// Why a key's item is not there, of one that was seen last and not removed.
    pub fn gone(&self, hash: u64, key: &[u8]) -> Option<Gone> {
        let entry = self.stored(hash, key)?.entry;
        if self.replica.is_live(&entry) {
            return None;
        }
        let has_ended = entry.expiry != 0 && entry.expiry <= self.now();
        Some(if has_ended {
            Gone::Ended
        } else {
            Gone::Flushed
        })
    }

    /// What a lookup gives: what is there now.
    #[inline]
    fn looked_up(&self, hash: u64, found: Option<Found>) -> Option<Found> {
        #[cfg(feature = "injected-faults")]
        if is_injected(InjectedFault::StaleAddress) {
            return self.stale.borrow_mut().look(hash, found);
        }
        #[cfg(not(feature = "injected-faults"))]
        let _ = hash;
        found
    }

    /// Whether the value that is being read is here.
    #[inline]
    pub(super) fn note_read(&self, is_here: bool) {
        #[cfg(feature = "injected-faults")]
        if is_injected(InjectedFault::StaleAddress) {
            self.stale.borrow_mut().read(is_here);
        }
        #[cfg(not(feature = "injected-faults"))]
        let _ = is_here;
    }
}

/// Of the mistake [`InjectedFault::StaleAddress`]: what was looked up last, and what reads found that wait
/// for units, by the key's hash.
#[cfg(feature = "injected-faults")]
#[derive(Default)]
pub(super) struct Stale {
    last: Option<(u64, Found)>,
    waiting: std::collections::HashMap<u64, Found>,
}

#[cfg(feature = "injected-faults")]
impl Stale {
    /// What a key is taken for: what was found before, if its read waits.
    fn look(&mut self, hash: u64, found: Option<Found>) -> Option<Found> {
        let found = self.waiting.get(&hash).copied().or(found);
        self.last = found.map(|found| (hash, found));
        found
    }

    /// Whether the item that was looked up last is here by now.
    fn read(&mut self, is_here: bool) {
        let Some((hash, found)) = self.last else {
            return;
        };
        if is_here {
            self.waiting.remove(&hash);
        } else {
            self.waiting.insert(hash, found);
        }
    }
}
