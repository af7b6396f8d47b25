//! What the index and the log say: entries, objects, and the versions behind one another.

use super::{DURABLE, Found, Pool, hash};
use crate::format::{FLAG_AT, Header, Word, u64_at};
use crate::medium::Medium;

impl<M: Medium> Pool<M> {
    pub(super) fn find(&self, key: &[u8]) -> Found {
        let wanted = hash(self.head, key);
        let bytes = self.medium.bytes();
        let mut free = None;
        for step in 0..self.head.entry_count {
            let slot = (wanted.wrapping_add(step)) & (self.head.entry_count - 1);
            let found = u64_at(bytes, self.head.entry_at(slot) as usize);
            if found == 0 {
                return Found::Free {
                    slot: free.unwrap_or(slot),
                };
            }
            if found != wanted {
                continue;
            }
            match self.word(slot).object_at() {
                // Claimed before a crash, and never used.
                None => free = free.or(Some(slot)),
                Some(at) => {
                    let is_same = |header: Header| header.key(bytes, at) == key;
                    if self.header(at).is_some_and(is_same) {
                        let word = self.word(slot);
                        return Found::Entry { slot, word };
                    }
                }
            }
        }
        free.map_or(Found::Full, |slot| Found::Free { slot })
    }

    pub(super) fn word(&self, slot: u64) -> Word {
        Word(u64_at(
            self.medium.bytes(),
            self.head.entry_at(slot) as usize + 8,
        ))
    }

    /// Of the version at a place, its number in what waits.
    pub(super) fn waiting(&self, at: u64) -> Option<usize> {
        let sequence = self.header(at)?.sequence;
        let found = self
            .pending
            .binary_search_by_key(&sequence, |one| one.sequence);
        found.ok().filter(|&index| self.pending[index].at == at)
    }

    pub(super) fn header(&self, at: u64) -> Option<Header> {
        let is_in = |half: &u8| self.head.half(*half).contains(&at);
        let half = [0, 1].into_iter().find(is_in)?;
        let epoch = self.space.epoch_of(half)?;
        let end = self.head.half(half).end;
        Header::decode(&self.medium.bytes()[..end as usize], at, epoch)
    }

    pub(super) fn object(&self, word: Word) -> Option<(u64, Header)> {
        let at = word.object_at()?;
        Some((at, self.header(at)?))
    }

    /// The version before. Sequences only fall, so that a damaged list ends.
    pub(super) fn older(&self, newer: Header) -> Option<(u64, Header)> {
        let at = (newer.previous_at != 0).then_some(newer.previous_at)?;
        let header = self.header(at)?;
        (header.sequence < newer.sequence).then_some((at, header))
    }

    pub(super) fn is_durable(&self, at: u64) -> bool {
        u64_at(self.medium.bytes(), (at + FLAG_AT) as usize) == DURABLE
    }
}
