//! Stretches of the log in which no header can be read, with readable headers behind them.
//!
//! A flipped bit in a header leaves one, and so does a crash: headers that were being written then
//! are on the medium or not, in any order. Whole versions behind a stretch count in both cases.
//! After a crash nobody was told of them, and recovery may keep those. But damage is reported, and
//! is told from a crash by what was known to be durable:
//! - the record of the head says up to where headers were durable, and whether a crash had torn
//!   some before that place;
//! - each header notes up to where they were durable when it was written. That speaks for its own
//!   life alone: what an earlier crash tore lies before the first header of the next life. A header
//!   behind a stretch says which life wrote the stretch, since each life begins its part of the log
//!   behind all that it found.
//!
//! The search for the next header is bounded. Where it finds none the log ends, and the record says
//! so: what is behind that was written by earlier lives, and never counts again.
//!
//! A value may hold anything. Its bytes are told from headers by their notes: see
//! [`Notes`](crate::format::Notes).

use std::collections::VecDeque;
use std::ops::Range;

use super::{Left, Object, Pool, Reach, StoreError};
use crate::format::{GRAIN_BYTES, OBJECT_MAGIC};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::medium::Medium;

/// How far behind the last object the next one is searched for where the record does not say that
/// the log goes further: a few of the largest objects. That it is more than one is arbitrary.
pub(super) const SEARCH_BYTES: u64 = 4 << 20;
/// Read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The stretches that a walk has passed over.
pub(super) struct Gaps {
    /// Stretches that are lost, and their bytes.
    pub lost: u64,
    pub lost_bytes: u64,
    /// Where the first of them begins.
    pub lost_at: Option<u64>,
    /// Stretches that a crash tore, of lives that the walk has passed.
    torn: u64,
    /// Stretches of the life that is being walked: a header behind them may still say that they
    /// were durable.
    open: VecDeque<Range<u64>>,
    incarnation: u32,
    /// Before this place no crash tore anything.
    sound_to: u64,
}

/// An object that a walk came to, and up to where headers were durable when it was written.
pub(super) struct Walked {
    pub object: Object,
    pub durable_to: u64,
}

impl Gaps {
    pub fn new(reach: Reach) -> Self {
        Self {
            lost: 0,
            lost_bytes: 0,
            lost_at: None,
            torn: 0,
            open: VecDeque::new(),
            incarnation: 0,
            sound_to: if reach.has_torn { 0 } else { reach.to },
        }
    }

    /// A stretch, before a header of a life.
    pub fn begin(&mut self, stretch: Range<u64>, incarnation: u32) {
        self.enter(incarnation);
        match stretch.start < self.sound_to {
            true => self.lose(stretch),
            false => self.open.push_back(stretch),
        }
    }

    /// A header of a life. When it was written, all before `durable_to` were durable.
    pub fn pass(&mut self, incarnation: u32, durable_to: u64) {
        self.enter(incarnation);
        while let Some(stretch) = self.open.pop_front_if(|one| one.start < durable_to) {
            self.lose(stretch);
        }
    }

    pub fn lose(&mut self, stretch: Range<u64>) {
        self.lost += 1;
        let first = self.lost_at.unwrap_or(stretch.start);
        self.lost_at = Some(first.min(stretch.start));
        self.lost_bytes += stretch.end - stretch.start;
    }

    /// How many there are of which nothing says that they were ever durable.
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
    /// The next object of a half that ends at `end`, from the tail on, with what it notes. It is of
    /// no earlier life than `incarnation`; and of the one that `log` names, where `log` says that
    /// all lives before that ended.
    pub(super) fn next_in_log(&self, end: u64, incarnation: u32, log: Left) -> Option<Walked> {
        let reach = log.reach;
        let end = match reach.is_end {
            true => reach.to,
            false => end,
        };
        if self.tail >= end {
            return None;
        }
        let least = |at: u64| match reach.to > 0 && at >= reach.to {
            true => log.incarnation.max(incarnation),
            false => incarnation,
        };
        if let Some(found) = self.counting(self.tail, least(self.tail)) {
            return Some(found);
        }
        let searched = self.tail.saturating_add(SEARCH_BYTES).max(reach.to);
        self.search(self.tail + GRAIN_BYTES..searched.min(end), least)
    }

    /// The object at a place, unless a life before `least` left it there, or this store never wrote
    /// it.
    fn counting(&self, at: u64, least: u32) -> Option<Walked> {
        let object = self.read_object(at)?;
        let header = object.header;
        let durable_to = self.notes.read(object.noted(), at, self.epoch_at(at))?;
        let is_left = header.incarnation < least
            || header.incarnation > self.space.incarnation
            || header.sequence >= self.space.ceiling
            || header.hash != self.hash(object.key());
        let counts = !is_left || is_injected(InjectedFault::IncarnationIgnored);
        counts.then_some(Walked { object, durable_to })
    }

    fn search(&self, range: Range<u64>, least: impl Fn(u64) -> u32) -> Option<Walked> {
        self.beginnings(range)
            .find_map(|at| self.counting(at, least(at)))
    }

    /// Clears what still looks like headers in a stretch that was passed over. They do not count
    /// now, and might once the record says that the log goes further: they are gone before that
    /// record is durable.
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

    /// Places of a range that have an object's first bytes.
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
}

#[cfg(test)]
mod tests;
