//! What a pool comes back to after a crash.
//!
//! The log is walked from its beginning: each header was durable before the next was written. Then, for
//! each entry of the index, the newest version that is durable, or whole, is made durable and is the
//! newest; younger ones are forgotten. So what was told is there, and what was not told is there whole
//! or not at all. Recovery may be cut short by a crash and done again.

use super::{DURABLE, Pool, StoreError, hash};
use crate::format::{ENTRY_BYTES, FLAG_AT, Head, Header, Kind, Space, Word, checksum};
use crate::medium::Medium;
use crate::planted::{Planted, is_planted};

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Recovered {
    /// Keys with a value.
    pub objects: u64,
    /// Versions in the log.
    pub versions: u64,
    /// Versions that were whole and not durable yet.
    pub completed: u64,
    /// Entries whose newest version was not whole.
    pub rolled_back: u64,
    /// Versions that are not durable and not whole: their values never came.
    pub invalid: u64,
}

impl<M: Medium> Pool<M> {
    /// Opens a pool, as it was left or as a crash left it.
    ///
    /// # Errors
    /// [`StoreError::Head`]: it is no pool, and nothing was changed; [`StoreError::Io`].
    pub fn open(medium: M) -> Result<(Self, Recovered), StoreError> {
        let head = Head::decode(medium.bytes())?;
        let space = Space::decode(medium.bytes())?;
        let mut pool = Self::with(medium, head, space);
        let mut recovered = Recovered::default();
        for half in [1 - space.active, space.active] {
            if space.epoch_of(half).is_some() {
                pool.walk(half, &mut recovered);
            }
        }
        let winners: Vec<(u64, Option<(u64, Header)>)> = (0..head.entry_count)
            .filter(|slot| pool.word(*slot) != Word::default())
            .map(|slot| (slot, pool.winner(slot)))
            .collect();
        pool.guarded(|pool| {
            let mut flags = Vec::new();
            for (slot, winner) in &winners {
                let entry_at = head.entry_at(*slot);
                let word = winner.map_or(Word::default(), |(at, _)| Word::to(at));
                recovered.rolled_back += u64::from(word != pool.word(*slot));
                pool.medium.write(entry_at + 8, &word.0.to_le_bytes());
                pool.medium.write_back(entry_at..entry_at + ENTRY_BYTES)?;
                let Some((at, header)) = winner else {
                    continue;
                };
                recovered.objects += u64::from(header.kind == Kind::Value);
                if !pool.is_durable(*at) {
                    // Read is not durable: a file is read from the system's memory.
                    pool.medium.write_back(*at..at + header.object_bytes())?;
                    flags.push(at + FLAG_AT);
                }
            }
            pool.medium.fence()?;
            recovered.completed = flags.len() as u64;
            for flag_at in flags {
                pool.medium.write(flag_at, &DURABLE.to_le_bytes());
                pool.medium.write_back(flag_at..flag_at + 8)?;
            }
            pool.medium.fence()
        })?;
        if space.is_cleaning {
            pool.resume_cleaning();
        }
        Ok((pool, recovered))
    }

    /// Walks one half of the log to its end, which is the tail when this is the half in use.
    fn walk(&mut self, half: u8, recovered: &mut Recovered) {
        self.tail = self.head.half(half).start;
        while let Some(header) = self.header(self.tail) {
            recovered.versions += 1;
            let is_invalid = !self.is_durable(self.tail) && !self.is_whole(self.tail, header);
            recovered.invalid += u64::from(is_invalid);
            if !is_planted(Planted::SequenceReused) || self.is_durable(self.tail) {
                let next = header.sequence.saturating_add(1);
                self.next_sequence = self.next_sequence.max(next);
            }
            let next = self.tail + header.object_bytes();
            if is_planted(Planted::TailTooEarly) && self.header(next).is_none() {
                break;
            }
            self.tail = next;
        }
    }

    /// Whether the value is what its client announced.
    fn is_whole(&self, at: u64, header: Header) -> bool {
        let bytes = self.medium.bytes();
        checksum(&[header.key(bytes, at), header.value(bytes, at)]) == header.checksum
    }

    /// The newest version of an entry that is durable or whole.
    fn winner(&self, slot: u64) -> Option<(u64, Header)> {
        let mut next = self.object(self.word(slot));
        while let Some((at, header)) = next {
            let bytes = self.medium.bytes();
            let key = header.key(bytes, at);
            let entry = self.head.entry_at(slot) as usize;
            let is_ours =
                header.slot == slot && hash(self.head, key) == crate::format::u64_at(bytes, entry);
            let is_whole = || is_planted(Planted::RecoveredUnverified) || self.is_whole(at, header);
            let is_forgotten =
                header.kind == Kind::Deletion && is_planted(Planted::DeletionForgotten);
            if is_ours && !is_forgotten && (self.is_durable(at) || is_whole()) {
                return Some((at, header));
            }
            if is_planted(Planted::OldVersionForgotten) {
                return None;
            }
            next = self.older(header);
        }
        None
    }
}
