//! Cleaning: the newest durable version of each key is copied to the other half of the log, and the half that it
//! came from is empty.
//!
//! Reads and writes go on meanwhile. New versions go to the new half from the beginning; the other half is of
//! the epoch before, and both are read. For each entry of the index, in order (each `|` is a fence):
//! the copy `|` the entry's word, the copy's flag. An entry of which a version waits for its value is come
//! back to. When none is left `|` a record says that the half of the epoch before is empty.
//!
//! A crash leaves both halves as they are, and cleaning goes on from the first entry. The half that was
//! emptied is written to after the record of the next cleaning is durable, so no word leads there.
//! Paper: eFactory, log cleaning.

use std::io;
use std::ops::Range;

use super::{DURABLE, Pool, StoreError};
use crate::format::{ENTRY_BYTES, FLAG_AT, HEADER_BYTES, Header, Kind, SPACE_BYTES, Space, Word};
use crate::medium::Medium;
use crate::planted::{Planted, is_planted};

/// How far it is.
#[derive(Clone, Debug)]
pub(super) struct Cleaning {
    next_slot: u64,
    /// Some entry of this pass has a version that waits for its value.
    is_deferred: bool,
    /// Room that copies take at most: new versions leave it.
    reserve: u64,
}

impl Cleaning {
    pub fn reserve(&self) -> u64 {
        self.reserve
    }
}

/// How a part of cleaning ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cleaned {
    /// The log holds the newest versions alone, and what came meanwhile.
    Done,
    /// There is more to copy.
    Going,
    /// What is left are versions that wait for their values: persist them, or give them up.
    Waiting,
}

/// What becomes of an entry.
enum Plan {
    Keep,
    Copy(u64, Header),
    Drop,
    Wait,
}

/// Entries whose copies share a fence.
const BATCH: usize = 64;

impl<M: Medium> Pool<M> {
    /// Bytes of the half of the log that is in use, and all of them.
    #[must_use]
    pub fn log_bytes(&self) -> (u64, u64) {
        let half = self.head.half(self.space.active);
        (self.tail - half.start, half.end - half.start)
    }

    /// Where the medium holds nothing of the pool.
    #[must_use]
    pub fn unused(&self) -> Vec<Range<u64>> {
        let rest = self.tail..self.head.half(self.space.active).end;
        let other = (!self.space.is_cleaning).then(|| self.head.half(1 - self.space.active));
        std::iter::once(rest).chain(other).collect()
    }

    /// Whether so much of the log is used that cleaning should begin, or it has begun.
    #[must_use]
    pub fn is_cleaning_due(&self) -> bool {
        let (used, all) = self.log_bytes();
        self.cleaning.is_some() || used > all / 4 * 3
    }

    /// Cleans, or goes on with it, for at most so many entries of the index.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn clean(&mut self, entries: usize) -> Result<Cleaned, StoreError> {
        if self.is_broken {
            return Err(io::Error::other("it failed before").into());
        }
        if self.cleaning.is_none() {
            self.begin_cleaning()?;
        }
        let mut left = entries;
        while left > 0 {
            let count = left.min(BATCH);
            self.clean_some(count)?;
            left -= count;
            let cleaning = self.cleaning.as_mut().expect("it has begun");
            if cleaning.next_slot < self.head.entry_count {
                continue;
            }
            if cleaning.is_deferred {
                (cleaning.next_slot, cleaning.is_deferred) = (0, false);
                return Ok(Cleaned::Waiting);
            }
            self.end_cleaning()?;
            return Ok(Cleaned::Done);
        }
        Ok(Cleaned::Going)
    }

    fn begin_cleaning(&mut self) -> Result<(), StoreError> {
        let space = Space {
            epoch: self.space.epoch + 1,
            active: 1 - self.space.active,
            is_cleaning: true,
            next_sequence: self.next_sequence,
        };
        self.set_space(space)?;
        self.tail = self.head.half(space.active).start;
        self.resume_cleaning();
        Ok(())
    }

    /// From the first entry on, after a beginning or a crash.
    pub(super) fn resume_cleaning(&mut self) {
        let slots = 0..self.head.entry_count;
        let reserve = slots.map(|slot| self.bytes_to_copy(slot)).sum();
        self.cleaning = Some(Cleaning {
            next_slot: 0,
            is_deferred: false,
            reserve,
        });
    }

    /// Bytes of the object that is copied for an entry, at most: which of those that wait for their values
    /// will be whole, nobody knows.
    fn bytes_to_copy(&self, slot: u64) -> u64 {
        let active = self.head.half(self.space.active);
        let mut most = 0;
        let mut next = self.object(self.word(slot));
        while let Some((at, header)) = next {
            if !active.contains(&at) {
                most = most.max(header.object_bytes());
            }
            if self.is_durable(at) {
                break;
            }
            next = self.older(header);
        }
        most
    }

    fn end_cleaning(&mut self) -> Result<(), StoreError> {
        if !is_planted(Planted::EmptiedTooEarly) {
            self.guarded(|pool| pool.medium.fence())?;
        }
        let space = Space {
            is_cleaning: false,
            next_sequence: match is_planted(Planted::NumbersForgotten) {
                true => 1,
                false => self.next_sequence,
            },
            ..self.space
        };
        self.set_space(space)?;
        self.cleaning = None;
        Ok(())
    }

    fn set_space(&mut self, space: Space) -> Result<(), StoreError> {
        self.guarded(|pool| {
            pool.medium.write(space.at(), &space.encode());
            let end = space.at() + SPACE_BYTES as u64;
            pool.medium.write_back(space.at()..end)?;
            pool.medium.fence()
        })?;
        self.space = space;
        Ok(())
    }

    fn clean_some(&mut self, count: usize) -> Result<(), StoreError> {
        let mut words: Vec<(u64, Word)> = Vec::new();
        let mut copies: Vec<(u64, u64, Header)> = Vec::new();
        for _ in 0..count {
            let slot = self.cleaning.as_ref().expect("it has begun").next_slot;
            if slot >= self.head.entry_count {
                break;
            }
            let taken = self.bytes_to_copy(slot);
            match self.plan(slot) {
                Plan::Keep => {}
                Plan::Drop => words.push((slot, Word::default())),
                Plan::Copy(from, header) => {
                    words.push((slot, Word::to(self.tail)));
                    copies.push((from, self.tail, header));
                    self.tail += header.object_bytes();
                }
                Plan::Wait => {
                    let cleaning = self.cleaning.as_mut().expect("it has begun");
                    cleaning.is_deferred = true;
                    cleaning.next_slot += 1;
                    continue;
                }
            }
            let cleaning = self.cleaning.as_mut().expect("it has begun");
            cleaning.next_slot += 1;
            cleaning.reserve = cleaning.reserve.saturating_sub(taken);
        }
        debug_assert!(
            self.tail <= self.head.half(self.space.active).end,
            "room was set aside"
        );
        self.guarded(|pool| {
            let set_words = |pool: &mut Self| {
                for (slot, word) in &words {
                    let at = pool.head.entry_at(*slot);
                    pool.medium.write(at + 8, &word.0.to_le_bytes());
                    pool.medium.write_back(at..at + ENTRY_BYTES)?;
                }
                io::Result::Ok(())
            };
            if is_planted(Planted::FlipBeforeCopy) {
                set_words(pool)?;
                pool.medium.fence()?;
            }
            for (from, to, header) in &copies {
                pool.copy(*from, *to, *header)?;
            }
            if !is_planted(Planted::CopyUnfenced) {
                pool.medium.fence()?;
            }
            for (_, to, _) in &copies {
                pool.medium.write(to + FLAG_AT, &DURABLE.to_le_bytes());
                pool.medium.write_back(to + FLAG_AT..to + FLAG_AT + 8)?;
            }
            set_words(pool)
        })
    }

    /// Copies a version without its flag and its past.
    fn copy(&mut self, from: u64, to: u64, header: Header) -> io::Result<()> {
        let bytes = self.medium.bytes();
        let key = header.key(bytes, from).to_vec();
        let value = header.value(bytes, from).to_vec();
        let copy = Header {
            previous_at: 0,
            ..header
        };
        let medium = &mut self.medium;
        medium.write(to, &copy.encode(to, self.space.epoch, &key));
        medium.write(to + FLAG_AT, &0_u64.to_le_bytes());
        medium.write(to + HEADER_BYTES, &key);
        medium.write(copy.value_at(to), &value);
        medium.write_back(to..to + copy.object_bytes())
    }

    fn plan(&self, slot: u64) -> Plan {
        let active = self.head.half(self.space.active);
        let word = self.word(slot);
        let (mut waits, mut waits_in_old) = (false, false);
        let mut next = self.object(word);
        let mut is_named_in_old = false;
        if let Some((at, _)) = next {
            is_named_in_old = !active.contains(&at);
        }
        while let Some((at, header)) = next {
            if self.is_durable(at) {
                return match header.kind {
                    _ if active.contains(&at) => Plan::Keep,
                    _ if waits => Plan::Wait,
                    Kind::Value => Plan::Copy(at, header),
                    Kind::Deletion => Plan::Drop,
                };
            }
            if self.is_waiting(at) {
                waits = true;
                waits_in_old |= !active.contains(&at);
            }
            next = self.older(header);
        }
        match (waits_in_old, is_named_in_old) {
            (true, _) => Plan::Wait,
            // Nothing that was ever whole.
            (false, true) => Plan::Drop,
            (false, false) => Plan::Keep,
        }
    }

    /// Whether a version waits for its value, and was not given up.
    fn is_waiting(&self, at: u64) -> bool {
        let index = self.waiting(at);
        index.is_some_and(|index| self.pending[index].landing.is_some())
    }
}
