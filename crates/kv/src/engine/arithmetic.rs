//! `incr`, `decr` and `ma`.
//!
//! A number that has room where the old one was stays the same item: its marks, and whether it was
//! fetched, stay. A longer one is a new item with the old one's client flags and expiry time.

use super::partition::{Item, Partition, expiry_of_flag, seconds_left};
use super::{Reply, Work};
use crate::group::marks::Marks;
use crate::group::owner::{Change, Refusal};
use crate::protocol::reply::{self, Answer, Counted, MetaStatus};
use crate::protocol::{Direction, Error, Exptime, MetaArithmetic, arithmetic};

/// What counting came to.
pub(super) enum Count {
    /// A new number, and what the item was before.
    Number(u64, Item),
    Missing,
    /// The cas number is another.
    Exists,
    NoNumber,
}

impl<P: Partition, R: Reply> Work<'_, P, R> {
    pub(super) fn arithmetic(
        &mut self,
        direction: Direction,
        delta: u64,
        noreply: bool,
    ) -> Result<(), Refusal> {
        match self.count(direction, delta, 0, None) {
            Ok(Count::Number(number, _)) => {
                if !noreply {
                    reply::number(self.out.text(), number);
                }
            }
            Ok(Count::Missing) => self.answer(Answer::NotFound, noreply),
            Ok(Count::NoNumber) => self.error(Error::NonNumeric, noreply),
            Ok(Count::Exists) => unreachable!("no cas number was given"),
            Err(refusal) => return self.out_of_memory(refusal, noreply),
        }
        Ok(())
    }

    pub(super) fn meta_arithmetic(&mut self, request: &MetaArithmetic<'_>) -> Result<(), Refusal> {
        let (direction, delta) = (request.direction, request.delta);
        // `next_cas` is what a number gets that is written below.
        let cas = self.shown_cas(self.partition.next_cas());
        let now = self.partition.now();
        let key = self.key;
        let counted = |number, seconds_left, is_new| Counted {
            number,
            cas,
            seconds_left,
            now,
            is_new,
            key,
        };
        let status = match self.count(direction, delta, request.cas, request.touch) {
            Ok(Count::Number(number, old)) => {
                let left = seconds_left(old.expiry, now);
                reply::meta_arithmetic(self.out.text(), request, &counted(number, left, false));
                return Ok(());
            }
            Ok(Count::Missing) if request.vivify.is_some() => {
                return match self.make_number(request, now) {
                    Ok(()) => {
                        let counted = counted(request.initial, None, true);
                        reply::meta_arithmetic(self.out.text(), request, &counted);
                        Ok(())
                    }
                    Err(refusal) => self.out_of_memory(refusal, false),
                };
            }
            Ok(Count::NoNumber) => {
                self.error(Error::NonNumeric, false);
                return Ok(());
            }
            Ok(Count::Missing) => MetaStatus::NotFound,
            Ok(Count::Exists) => MetaStatus::Exists,
            Err(refusal) => return self.out_of_memory(refusal, false),
        };
        let dialect = self.limits.dialect;
        reply::meta_arithmetic_miss(self.out.text(), request, self.key, status, dialect);
        Ok(())
    }

    /// Makes the item of an `ma` that found none. Of both times the later flag's counts.
    fn make_number(&mut self, request: &MetaArithmetic<'_>, now: u64) -> Result<(), Refusal> {
        let mut expiry = 0;
        for flag in request.flags {
            match flag.letter {
                b'T' => expiry = expiry_of_flag(request.touch, now),
                b'N' => expiry = expiry_of_flag(request.vivify, now),
                _ => {}
            }
        }
        let mut scratch = std::mem::take(self.scratch);
        scratch.clear();
        reply::decimal(&mut scratch, request.initial);
        self.set_class(0, scratch.len());
        let written = self.write(0, expiry, Marks::NONE, &[&scratch]);
        *self.scratch = scratch;
        written
    }

    /// Counts. `touch` is the expiry time that the item gets if it stays the same one.
    pub(super) fn count(
        &mut self,
        direction: Direction,
        delta: u64,
        cas: u64,
        touch: Option<Exptime>,
    ) -> Result<Count, Refusal> {
        let (hits, misses) = match direction {
            Direction::Up => (&self.counters.incr_hits, &self.counters.incr_misses),
            Direction::Down => (&self.counters.decr_hits, &self.counters.decr_misses),
        };
        let Some(found) = self.find() else {
            misses.count();
            return Ok(Count::Missing);
        };
        let old = P::item(&found);
        if !arithmetic::may_be_number(old.value_bytes as usize) {
            return Ok(Count::NoNumber);
        }
        if cas != 0 && cas != old.cas {
            return Ok(Count::Exists);
        }
        self.append_to_scratch(&found)?;
        let Ok(number) = arithmetic::count(self.scratch, direction, delta) else {
            return Ok(Count::NoNumber);
        };
        let mut value = std::mem::take(self.scratch);
        let in_place = arithmetic::write_over(&mut value, number);
        let (mut expiry, mut marks) = (old.expiry, Marks::NONE);
        if in_place {
            marks = old.marks;
            if touch.is_some() {
                expiry = expiry_of_flag(touch, self.partition.now());
            }
        }
        self.set_class(old.client_flags, value.len());
        let written = self.propose(Change::Put {
            client_flags: old.client_flags,
            expiry,
            marks,
            value: &[&value],
        });
        *self.scratch = value;
        written?;
        if in_place && old.was_hit {
            self.note_newest_use();
        }
        hits.count();
        let class = self.class(&old);
        match direction {
            Direction::Up => class.incr_hits.count(),
            Direction::Down => class.decr_hits.count(),
        }
        Ok(Count::Number(number, old))
    }

    fn note_newest_use(&mut self) {
        if let Some(found) = self.partition.newest(self.hash, self.key).found {
            self.partition.note_use(&found);
        }
    }
}
