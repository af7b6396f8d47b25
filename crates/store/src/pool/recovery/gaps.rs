//! Stretches of the log in which no header can be read, with others behind them.
//!
//! One bit of a header is enough for that; and so is a crash, after which the headers that were on
//! their way are there or not, in any order. Whole versions behind it count in both cases: of a
//! crash's nobody was told, and recovery may take those. The two are told apart, so that damage is
//! reported, by what was known to be durable:
//! - the record of the head says up to where headers were durable, and whether some were torn
//!   there;
//! - each header notes the same. It speaks for its own life: what an earlier crash left torn, it
//!   has behind it. What follows a stretch says which life wrote it, since none ends its log behind
//!   what it cannot read.
//!
//! The search is bounded: where it finds nothing, the log ends, and the record says so. What is
//! behind that is of an earlier life than all that is written there afterwards, and never counts
//! again.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Object, Pool, Reach, StoreError};
use crate::format::{GRAIN_BYTES, HEADER_BYTES, NOTE_AT, NOTE_BYTES, OBJECT_MAGIC, noted};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::medium::Medium;

/// How far behind the last object the next one is looked for where nobody said how far the log
/// goes: some of the largest objects, arbitrary beyond the first.
pub(super) const SEARCH_BYTES: u64 = 4 << 20;
/// Read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// What a walk has found of them.
pub(super) struct Gaps {
    /// Stretches that are lost, and their bytes.
    pub lost: u64,
    pub lost_bytes: u64,
    torn: u64,
    /// Stretches in front of headers of the life that is being walked, of which nothing is known so
    /// far.
    open: VecDeque<Range<u64>>,
    incarnation: u32,
    /// Before this place nothing was torn.
    sound_to: u64,
}

impl Gaps {
    pub fn new(reach: Reach) -> Self {
        Self {
            lost: 0,
            lost_bytes: 0,
            torn: 0,
            open: VecDeque::new(),
            incarnation: 0,
            sound_to: if reach.has_torn { 0 } else { reach.to },
        }
    }

    /// A stretch before a header of a life.
    pub fn begin(&mut self, stretch: Range<u64>, incarnation: u32) {
        self.enter(incarnation);
        match stretch.start < self.sound_to {
            true => self.lose(stretch),
            false => self.open.push_back(stretch),
        }
    }

    /// A header, when which was written all were durable before a place.
    pub fn pass(&mut self, incarnation: u32, durable_to: u64) {
        self.enter(incarnation);
        while let Some(stretch) = self.open.pop_front_if(|one| one.start < durable_to) {
            self.lose(stretch);
        }
    }

    pub fn lose(&mut self, stretch: Range<u64>) {
        self.lost += 1;
        self.lost_bytes += stretch.end - stretch.start;
    }

    /// Those of which nothing says that they were ever durable.
    pub fn torn(&self) -> u64 {
        self.torn + self.open.len() as u64
    }

    fn enter(&mut self, incarnation: u32) {
        if incarnation != self.incarnation {
            self.torn += self.open.drain(..).count() as u64;
            self.incarnation = incarnation;
        }
    }
}

impl<M: Medium> Pool<M> {
    /// The next object of a log that ends before `end`, from the tail on; none is of an earlier
    /// life than `incarnation`.
    pub(super) fn next_in_log(&self, end: u64, incarnation: u32, reach: Reach) -> Option<Object> {
        let end = match reach.is_end {
            true => reach.to,
            false => end,
        };
        if self.tail >= end {
            return None;
        }
        let least = |at: u64| match reach.to > 0 && at >= reach.to {
            // The log of all lives before ended here at the latest.
            true => self.space.incarnation,
            false => incarnation,
        };
        if let Some(object) = self.counting(self.tail, least(self.tail)) {
            return Some(object);
        }
        let searched = self.tail.saturating_add(SEARCH_BYTES).max(reach.to);
        self.search(self.tail + GRAIN_BYTES..searched.min(end), least)
    }

    /// The object at a place, unless a life before `least` left it there, or nobody ever wrote it.
    fn counting(&self, at: u64, least: u32) -> Option<Object> {
        let object = self.read_object(at)?;
        let header = object.header;
        let is_left = header.incarnation < least
            || header.incarnation > self.space.incarnation
            || header.sequence >= self.space.ceiling
            || header.hash != self.hash(object.key());
        (!is_left || is_injected(InjectedFault::IncarnationIgnored)).then_some(object)
    }

    fn search(&self, range: Range<u64>, least: impl Fn(u64) -> u32) -> Option<Object> {
        self.beginnings(range)
            .find_map(|at| self.counting(at, least(at)))
    }

    /// Has no header of a stretch that was passed over ever count: one that a life left there before
    /// the next one began might, once the record says that the log goes further. Durable before the
    /// record that says so.
    pub(super) fn clear(&self, stretch: Range<u64>) -> Result<(), StoreError> {
        let mut has_cleared = false;
        for at in self.beginnings(stretch) {
            if self.read_object(at).is_some() {
                self.medium.write(at, &[0; 4]);
                self.medium.write_back(at..at + 4)?;
                has_cleared = true;
            }
        }
        if has_cleared {
            self.medium.fence()?;
        }
        Ok(())
    }

    /// Places of a range that begin as an object does.
    fn beginnings(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        let magic = OBJECT_MAGIC.to_le_bytes();
        let pieces = range.clone().step_by(PIECE_BYTES);
        pieces.flat_map(move |start| {
            let mut piece = vec![0; (range.end - start).min(PIECE_BYTES as u64) as usize];
            self.medium.read(start, &mut piece);
            let grains = piece.chunks_exact(GRAIN_BYTES as usize);
            let places = (start..).step_by(GRAIN_BYTES as usize).zip(grains);
            let begin = places.filter(|(_, grain)| grain.starts_with(&magic));
            begin.map(|(at, _)| at).collect::<Vec<_>>()
        })
    }

    /// What the header at a place notes.
    pub(super) fn durable_at_write(&self, at: u64) -> u64 {
        const { assert!(NOTE_AT + NOTE_BYTES as u64 <= HEADER_BYTES) }
        let mut bytes = [0; NOTE_BYTES];
        self.medium.read(at + NOTE_AT, &mut bytes);
        noted(bytes)
    }
}

#[cfg(test)]
mod tests;
