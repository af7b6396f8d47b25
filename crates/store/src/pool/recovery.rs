//! What a pool comes back to after a crash.
//!
//! The log is walked from its beginning, the half that is being copied first. Of each key the newest version
//! that is durable, or whole, is the one that there is; it is made durable, and younger ones are forgotten.
//! So what was told is there, and what was not told is there whole or not at all. Recovery changes nothing
//! but flags, a record, and headers that do not count and never may: it may be cut short by a crash
//! and done again.
//!
//! Where no header can be read the walk goes on behind that, at the next one: see [`gaps`].
//!
//! A disk's values are all verified: a few versions have their flags there, as parts of blocks that were
//! written for others, and such a flag says nothing of a value that has rotted since.

mod gaps;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::group::set_flag;
use super::{Found, Object, Pool, StoreError, read_head, record};
use crate::format::{
    FLAG_AT, HEAD_BYTES, HEADER_BYTES, Head, HeadError, Header, KEYED_AT, Keyed, Kind, Left, Notes,
    Reach, Secret, Space, Word, checksum,
};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::medium::Medium;

use gaps::Gaps;

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Recovered {
    /// Keys with a value.
    pub objects: u64,
    /// Versions in the log.
    pub versions: u64,
    /// Versions that were whole and not durable yet.
    pub completed: u64,
    /// Keys whose newest version was not whole.
    pub rolled_back: u64,
    /// Versions that are not durable and not whole: their values never came.
    pub invalid: u64,
    /// Versions that were durable and whose values are others now: the disk lost them. They count as
    /// versions whose values never came.
    pub damaged: u64,
    /// Where the first of them was found.
    pub damaged_at: Option<u64>,
    /// Stretches of the log whose headers were durable and cannot be read: all in them is lost.
    pub lost: u64,
    /// Bytes of them.
    pub lost_bytes: u64,
    /// Where the first of them was found.
    pub lost_at: Option<u64>,
    /// The same of headers that were on their way when a crash came, as far as is known.
    pub torn: u64,
    /// Its headers were written with another secret than the one it was opened with, if any: what
    /// looks like a header was taken for one.
    pub has_other_secret: bool,
}

impl Recovered {
    /// Whether something durable is not what was written.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged > 0 || self.lost > 0
    }
}

/// A version without its flag, newer than the newest durable one of its key when it was found.
struct Candidate {
    slot: u64,
    at: u64,
    header: Header,
}

/// Which pool of which store a file is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Identity {
    /// Of hashes: each store has its own.
    pub seed: u64,
    /// Which of the store's shards it is, and of how many; `None`: an earlier program made it, or it is
    /// alone.
    pub shard: Option<(usize, usize)>,
}

/// What a file's first page says that it is: before a medium reads or maps all of it, or changes any.
///
/// # Errors
/// [`StoreError::Head`]: it is no pool; [`StoreError::Io`].
pub fn identify(file: &File) -> Result<Identity, StoreError> {
    let len = file.metadata()?.len();
    let mut first = vec![0; HEAD_BYTES.min(len) as usize];
    file.read_exact_at(&mut first, 0)?;
    let head = Head::decode(&first, len)?;
    Space::decode(&first)?;
    let (number, count) = head.shard;
    Ok(Identity {
        seed: head.seed,
        shard: (count > 0).then_some((number.into(), count.into())),
    })
}

impl<M: Medium> Pool<M> {
    /// Opens a pool, as it was left or as a crash left it. It trusts clients not to write what looks
    /// like headers into their values.
    ///
    /// # Errors
    /// [`StoreError::Head`]: it is no pool, or a damaged one, and nothing was changed; [`StoreError::Io`].
    pub fn open(medium: M) -> Result<(Self, Recovered), StoreError> {
        Self::open_with(medium, None)
    }

    /// The same with a secret, by which headers are told from bytes of values: always the same one
    /// for a pool. What was written while it was opened without it, or with another, is trusted.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_with(medium: M, secret: Option<Secret>) -> Result<(Self, Recovered), StoreError> {
        let span = tracing::info_span!(
            "recover pool",
            cenote.store.medium_bytes = medium.len() as i64,
            cenote.store.objects = tracing::field::Empty,
            cenote.store.versions = tracing::field::Empty,
            cenote.store.rolled_back = tracing::field::Empty,
        );
        let first = read_head(&medium);
        let head = Head::decode(&first, medium.len())?;
        let space = Space::decode(&first)?;
        let notes = Notes::new(secret, &first, space.is_keyed);
        let has_other_secret = space.is_keyed && !notes.is_keyed();
        let mut pool = Self::with(medium, head, space, notes)?;
        let mut recovered = Recovered {
            has_other_secret,
            ..Recovered::default()
        };
        let mut candidates = Vec::new();
        let mut old_bytes = 0;
        let mut torn = 0;
        for half in [1 - space.active, space.active] {
            if space.epoch_of(half).is_some() {
                torn = pool.walk(half, &mut recovered, &mut candidates)?;
                recovered.torn += torn;
            }
            if half != space.active {
                old_bytes = pool.log_bytes_of(half);
            }
        }
        pool.next_sequence = match is_injected(InjectedFault::SequenceReused) {
            true => pool.next_sequence,
            false => space.ceiling.max(pool.next_sequence),
        };
        let completed = pool.choose(candidates, &mut recovered);
        if space.is_cleaning {
            pool.tail = pool.end_of_named(&completed);
        }
        pool.take_over(&completed, torn > 0)?;
        recovered.completed = completed.len() as u64;
        recovered.objects = pool.drop_deleted();
        span.record("cenote.store.objects", recovered.objects as i64);
        span.record("cenote.store.versions", recovered.versions as i64);
        span.record("cenote.store.rolled_back", recovered.rolled_back as i64);
        pool.empty_at_open = pool.keys_in_log() - recovered.objects;
        if space.is_cleaning {
            pool.resume_cleaning(old_bytes);
        }
        pool.durable_to = pool.tail;
        Ok((pool, recovered))
    }

    /// Makes winners durable, and this process the pool's next: what is behind the log's end is not of it.
    fn take_over(&mut self, completed: &[(u64, Header)], has_torn: bool) -> Result<(), StoreError> {
        let reach = Reach {
            to: self.tail,
            has_torn,
            is_end: false,
        };
        let space = Space {
            incarnation: self.space.incarnation.saturating_add(1),
            reach,
            is_keyed: self.notes.has_secret(),
            ..self.space.next().leased(self.next_sequence)
        };
        let keyed = self.notes.key_from(self.space.epoch, self.tail);
        self.guarded(|pool| {
            // Durable before the record that makes it count.
            if let Some(keyed) = keyed {
                let at = KEYED_AT as u64;
                pool.medium.write(at, &keyed.encode());
                pool.medium.write_back(at..at + Keyed::BYTES as u64)?;
                pool.medium.fence()?;
            }
            // Read is durable of a disk, which is told to be so before it is read. What is read of memory may
            // be in a cache.
            if pool.medium.is_quick() {
                for (at, header) in completed {
                    pool.medium.write_back(*at..at + header.object_bytes())?;
                }
                // The record that this life began with, before the next one takes the other's
                // place.
                pool.medium.write_back(0..HEAD_BYTES)?;
                pool.medium.fence()?;
            }
            record::write(&*pool.medium, space)?;
            pool.medium.fence()?;
            for (at, header) in completed {
                let flag = pool.flag(*at, header.sequence);
                set_flag(&*pool.medium, *at, flag)?;
            }
            Ok(())
        })?;
        self.space = space;
        Ok(())
    }

    /// Bytes of a half that was just walked.
    fn log_bytes_of(&self, half: u8) -> u64 {
        self.tail.saturating_sub(self.head.half(half).start)
    }

    /// Walks one half of the log to its end, which is the tail when this is the half in use. Entries lead to
    /// the newest version with a flag. How many stretches in it were torn by a crash.
    fn walk(
        &mut self,
        half: u8,
        recovered: &mut Recovered,
        candidates: &mut Vec<Candidate>,
    ) -> Result<u64, StoreError> {
        let log = self.head.half(half);
        let told = match half == self.space.active {
            true => Left {
                reach: self.space.reach,
                incarnation: self.space.incarnation,
            },
            false => self.space.left,
        };
        let told = match (log.start..=log.end).contains(&told.reach.to) {
            true => told,
            false => Left::default(),
        };
        let reach = told.reach;
        let mut gaps = Gaps::new(reach);
        self.tail = log.start;
        let mut incarnation = 0;
        while let Some(found) = self.next_in_log(log.end, incarnation, told) {
            let object = found.object;
            let header = object.header;
            if object.at > self.tail {
                self.clear(self.tail..object.at)?;
                gaps.begin(self.tail..object.at, header.incarnation);
            }
            gaps.pass(header.incarnation, found.durable_to);
            incarnation = header.incarnation;
            recovered.versions += 1;
            if self.is_rotten(&object) {
                recovered.damaged += 1;
                recovered.damaged_at.get_or_insert(object.at);
                // Whoever reads goes by the flag.
                self.medium.store(object.at + FLAG_AT, 0);
            }
            self.write_back_walked(&object)?;
            self.note(&object, candidates)?;
            self.next_sequence = self.next_sequence.max(header.sequence + 1);
            let next = object.at + header.object_bytes();
            if is_injected(InjectedFault::TailTooEarly) && self.read_object(next).is_none() {
                break;
            }
            self.tail = next;
        }
        if self.tail < reach.to && !is_injected(InjectedFault::TailTooEarly) {
            self.clear(self.tail..reach.to)?;
            gaps.lose(self.tail..reach.to);
            self.tail = reach.to;
        }
        recovered.lost += gaps.lost;
        recovered.lost_bytes += gaps.lost_bytes;
        recovered.lost_at = recovered.lost_at.or(gaps.lost_at);
        Ok(gaps.torn())
    }

    /// A process that was killed may have left a header in the processor's caches, where this walk
    /// finds it and one after a power failure does not: the fence that takes the pool over makes it
    /// durable, before anything is behind it. What has its flag had its fence.
    fn write_back_walked(&self, object: &Object) -> Result<(), StoreError> {
        if self.medium.is_quick() && !self.is_durable(object.at) {
            let bytes = HEADER_BYTES + u64::from(object.header.key_bytes);
            self.medium.write_back(object.at..object.at + bytes)?;
        }
        Ok(())
    }

    fn note(&mut self, object: &Object, candidates: &mut Vec<Candidate>) -> Result<(), StoreError> {
        let (at, header) = (object.at, object.header);
        let slot = match self.find_or_claim(object)? {
            (slot, Some(named)) if named.header.sequence > header.sequence => {
                // Out of order: an older version that became durable later.
                if self.is_durable(at) || !self.is_durable(named.at) {
                    candidates.push(Candidate { slot, at, header });
                }
                return Ok(());
            }
            (slot, _) => slot,
        };
        if self.is_durable(at) {
            self.name(slot, at, header);
        } else {
            candidates.push(Candidate { slot, at, header });
        }
        Ok(())
    }

    /// The entry of an object's key, and what it leads to. A new entry leads to the object itself.
    fn find_or_claim(&mut self, object: &Object) -> Result<(u64, Option<Object>), StoreError> {
        match self.find(object.key()) {
            Found::Entry { slot, word } => Ok((slot, self.object(word))),
            Found::Free { slot } if self.entries + 1 < self.head.entry_count => {
                let hash = object.header.hash;
                self.index.add(slot, hash, object.key(), Word::default());
                self.name(slot, object.at, object.header);
                self.entries += 1;
                Ok((slot, None))
            }
            Found::Free { .. } => {
                let wrong = "places of the index: fewer than the log has keys";
                Err(HeadError::Damaged(wrong).into())
            }
        }
    }

    fn name(&mut self, slot: u64, at: u64, header: Header) {
        let word = Word::to(at, header.object_bytes(), self.epoch_at(at));
        self.index.set_word(slot, word);
    }

    /// Has each entry lead to the newest version of its key that is durable or whole. Those that are whole
    /// and not durable.
    fn choose(
        &mut self,
        candidates: Vec<Candidate>,
        recovered: &mut Recovered,
    ) -> Vec<(u64, Header)> {
        let mut of_slot: HashMap<u64, Vec<Candidate>> = HashMap::new();
        for candidate in candidates {
            of_slot.entry(candidate.slot).or_default().push(candidate);
        }
        let mut completed = Vec::new();
        for (slot, mut candidates) in of_slot {
            candidates.sort_by_key(|one| (one.header.sequence, self.is_durable(one.at)));
            let named = self.object(self.index.word(slot));
            let floor = named.filter(|named| self.is_durable(named.at));
            let floor_sequence = floor.map(|floor| floor.header.sequence);
            let active = self.head.half(self.space.active);
            let mut winner = None;
            let mut is_rolled_back = false;
            for one in candidates.iter().rev() {
                // A copy without its flag is as good as what it was copied from, and is not made again.
                let is_copy =
                    floor_sequence == Some(one.header.sequence) && active.contains(&one.at);
                let is_newer = floor_sequence.is_none_or(|floor| one.header.sequence > floor);
                let is_there = self.is_durable(one.at)
                    || is_injected(InjectedFault::RecoveredUnverified)
                    || self.is_whole(one.at);
                recovered.invalid += u64::from(!is_there);
                if !(is_newer || is_copy) || winner.is_some() {
                    continue;
                }
                let is_forgotten = one.header.kind == Kind::Deletion
                    && is_injected(InjectedFault::DeletionForgotten);
                match is_there && !is_forgotten {
                    true => winner = Some((one.at, one.header)),
                    false => is_rolled_back |= is_newer,
                }
            }
            recovered.rolled_back += u64::from(is_rolled_back);
            let floor = floor.map(|floor| (floor.at, floor.header));
            let winner = match is_rolled_back && is_injected(InjectedFault::OldVersionForgotten) {
                true => None,
                false => winner.or(floor),
            };
            match winner {
                Some((at, header)) => {
                    if !self.is_durable(at) {
                        completed.push((at, header));
                    }
                    self.name(slot, at, header);
                }
                // It is taken away once the others have their flags.
                None => {
                    let newest = candidates.last().expect("a slot with candidates");
                    self.name(slot, newest.at, newest.header);
                }
            }
        }
        completed
    }

    /// Takes entries away that lead to no durable version. How many have values.
    fn drop_deleted(&mut self) -> u64 {
        let entries = self.entries;
        let mut objects = 0;
        let mut slot = self.index.next_used(0);
        while slot < self.index.slot_count() {
            let named = self.object(self.index.word(slot));
            match named.filter(|named| self.is_durable(named.at)) {
                Some(object) => objects += u64::from(object.header.kind == Kind::Value),
                None if self.index.hash(slot) != 0 => {
                    self.remove_entry(slot);
                    continue;
                }
                None => {}
            }
            slot = self.index.next_used(slot + 1);
        }
        match self.entries == entries {
            true => objects,
            // Where one was taken away others moved, perhaps from before this walk to behind it.
            false => self.drop_deleted(),
        }
    }

    /// Where the log ends, behind the last object that is there: copies that a crash left without
    /// their values are made again, and take this room. Until something is there their keys keep
    /// their places.
    fn end_of_named(&self, completed: &[(u64, Header)]) -> u64 {
        let completed: HashSet<u64> = completed.iter().map(|(at, _)| *at).collect();
        let mut end = self.head.half(self.space.active).start;
        let mut slot = self.index.next_used(0);
        while slot < self.index.slot_count() {
            let word = self.index.word(slot);
            let is_there = |at: &u64| self.is_durable(*at) || completed.contains(at);
            if let Some(at) = word.object_at().filter(|at| self.is_in_use(*at))
                && is_there(&at)
            {
                end = end.max(at + word.object_bytes());
            }
            slot = self.index.next_used(slot + 1);
        }
        end
    }

    /// Whether a version has its flag, and a value that is not its own. Memory's values are not verified:
    /// whoever opens it does not wait for all of it to be read.
    fn is_rotten(&self, object: &Object) -> bool {
        !self.medium.is_quick() && self.is_durable(object.at) && !self.is_whole(object.at)
    }

    /// Whether the value is what its client announced.
    pub(super) fn is_whole(&self, at: u64) -> bool {
        let Some(object) = self.read_object(at) else {
            return false;
        };
        let header = object.header;
        let mut value = vec![0; header.value_bytes as usize];
        self.medium.read(header.value_at(at), &mut value);
        checksum(&[object.key(), &value]) == header.checksum
    }
}

#[cfg(test)]
mod tests;
