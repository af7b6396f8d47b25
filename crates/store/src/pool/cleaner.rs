//! Cleaning: the newest durable version of each key is copied to the other half of the log, and the half
//! that it came from is empty.
//!
//! Reads and writes go on meanwhile, and whoever cleans waits for its fences without the pool. First `|` a
//! record says that the half in use is another. New versions go there from then on; the half that is left
//! is of the epoch before, and both are read. Entries of the index are copied some at a time: a copy's
//! header names the version that it is copied from, so that who gets to the copy before it is whole goes on
//! to that one. Then `|` a fence, the copies' flags, and the entries' words. An entry of which a version
//! waits for its value is come back to. When none is left `|` a record says that the half of the epoch
//! before is empty.
//!
//! A crash leaves both halves as they are, and cleaning goes on from the first entry. The half that was
//! emptied is written to after the record of the next cleaning is durable, and after the index says that
//! objects of its epoch are gone.
//! Paper: eFactory, log cleaning.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::group::set_flag;
use super::headers::Headers;
use super::{Found, Object, Pool, Source, Space, StoreError, Waiting};
use crate::format::{Header, Kind, Left, Reach, Word};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::medium::Medium;
use crate::schemes::Named;

/// How far it is.
#[derive(Clone, Debug)]
pub(super) struct Cleaning {
    next_slot: u64,
    /// Nothing is left in the other half: the record that says so is to be written.
    is_over: bool,
    /// Some entry of this pass has a version that waits for its value.
    is_deferred: bool,
    /// It is not the first pass.
    is_repeated: bool,
    /// Room that copies take at most: new versions leave it.
    reserve: u64,
    /// Where objects are being copied to.
    moving: HashMap<u64, u64>,
    /// Deletions in the half that is left that the index did not name at first: what they delete may have
    /// been copied already. `None`: a crash came in between, and all are such.
    late_deletions: Option<HashSet<u64>>,
    /// What traces have of it; ends with it.
    _span: tracing::Span,
}

impl Cleaning {
    /// Where the object at a place is being copied to.
    pub fn copy_of(&self, at: u64) -> Option<u64> {
        self.moving.get(&at).copied()
    }

    /// Whether a copy that this cleaning made may need a deletion, so that the deletion is copied as well.
    fn may_have_copied_before(&self, deletion: &Header) -> bool {
        let late = self.late_deletions.as_ref();
        late.is_none_or(|late| late.contains(&deletion.sequence))
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

/// What becomes durable by one fence: objects that are copied together, or the record that begins or ends
/// a cleaning.
pub struct Batch<M> {
    medium: Arc<M>,
    copies: VecDeque<Copy>,
    /// Of the copies that were begun.
    bytes: u64,
    /// Headers that its fence makes durable.
    headers: Option<Headers>,
    is_record: bool,
}

struct Copy {
    from: u64,
    to: u64,
    header: Header,
    key: Vec<u8>,
}

impl<M: Medium> Batch<M> {
    /// Whether it has copies to end.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Bytes of its copies.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies them. A fence makes the copies durable.
    ///
    /// # Errors
    /// Those of the medium.
    pub fn write_back(&self) -> io::Result<()> {
        let mut value = Vec::new();
        for copy in &self.copies {
            let header = copy.header;
            value.resize(header.value_bytes as usize, 0);
            self.medium.read(header.value_at(copy.from), &mut value);
            self.medium.write(header.value_at(copy.to), &value);
            let end = copy.to + header.object_bytes();
            self.medium.write_back(copy.to..end)?;
        }
        Ok(())
    }

    /// Waits until the copies, or the record, are durable.
    ///
    /// # Errors
    /// Those of the medium.
    pub fn fence(&self) -> io::Result<()> {
        let has_copies = !self.copies.is_empty() && !is_injected(InjectedFault::CopyUnfenced);
        match self.is_record || has_copies {
            true => self.medium.fence(),
            false => Ok(()),
        }
    }
}

/// What becomes of an entry.
enum Plan {
    Keep,
    Copy(Box<Object>),
    Drop,
    Wait,
}

/// Entries that are looked at together, and bytes of copies that share a fence.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 4 << 20;

/// Largest value that may stand for a deletion, as the copies of an object that was deleted do.
pub(crate) const TOMBSTONE_BYTES_MAX: usize = 16;

/// Of a half of the log, what values leave to deletions: room for some at least, before cleaning
/// gives it back.
fn deletion_bytes(half_bytes: u64) -> u64 {
    (half_bytes / 64).max(1024)
}

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

    /// Bytes of versions that have been replaced or deleted since cleaning began last: those that it would
    /// leave out. More where a version that replaced another was given up.
    #[must_use]
    pub fn replaced_bytes(&self) -> u64 {
        self.replaced_bytes
    }

    /// Whether so much of the log is used that cleaning should begin, or it has begun.
    #[must_use]
    pub fn is_cleaning_due(&self) -> bool {
        let (used, all) = self.log_bytes();
        self.cleaning.is_some() || used > all / 4 * 3
    }

    /// Whether the log is being cleaned.
    #[must_use]
    pub fn is_cleaning(&self) -> bool {
        self.cleaning.is_some()
    }

    /// Cleans, or goes on with it, for at most so many entries of the index.
    ///
    /// # Errors
    /// [`StoreError::Io`]; [`StoreError::Full`]: what crashes left of earlier copies takes the room for others.
    pub fn clean(&mut self, entries: usize) -> Result<Cleaned, StoreError> {
        let mut left = entries.max(1);
        loop {
            let (batch, looked_at) = self.begin_clean(left)?;
            left = left.saturating_sub(looked_at);
            let done = batch.write_back().and_then(|()| batch.fence());
            match self.end_clean(batch, done)? {
                Cleaned::Going if left > 0 => {}
                cleaned => return Ok(cleaned),
            }
        }
    }

    /// Chooses what is copied next, and where to, and how many entries were looked at. End it with
    /// [`Pool::end_clean`]; one batch at a time.
    ///
    /// # Errors
    /// As [`Pool::clean`].
    pub fn begin_clean(&mut self, entries: usize) -> Result<(Batch<M>, usize), StoreError> {
        self.check_whole()?;
        let mut batch = Batch {
            medium: Arc::clone(&self.medium),
            copies: VecDeque::new(),
            bytes: 0,
            headers: None,
            is_record: false,
        };
        if let Some(record) = self.cleaning_record()? {
            // That of a lease may be on its way: this one comes after it.
            batch.is_record = self.next_space.is_none();
            if batch.is_record {
                self.guarded(|pool| pool.begin_record(record))?;
            }
            return Ok((batch, 0));
        }
        let looked_at = self.add_copies(&mut batch, entries.min(BATCH))?;
        Ok((batch, looked_at))
    }

    /// Adds the next copies to those of a batch that has some and is not written back yet, until they have
    /// `BATCH_BYTES`; how many entries were looked at.
    ///
    /// # Errors
    /// As [`Pool::clean`].
    ///
    /// # Panics
    /// The log is not being cleaned: the batch has no copies.
    pub fn add_copies(
        &mut self,
        batch: &mut Batch<M>,
        entries: usize,
    ) -> Result<usize, StoreError> {
        let copies = &mut batch.copies;
        let before = copies.len();
        let mut looked_at = 0;
        while looked_at < entries && batch.bytes < BATCH_BYTES {
            let next = self.cleaning_mut().next_slot;
            let slot = self.index.next_used(next);
            self.cleaning_mut().next_slot = slot;
            if slot >= self.index.slot_count() {
                break;
            }
            looked_at += 1;
            match self.plan(slot) {
                Plan::Keep => {}
                // Another entry may be here now, and is looked at next.
                Plan::Drop => {
                    self.remove_entry(slot);
                    continue;
                }
                Plan::Copy(object) => match self.begin_copy(&object) {
                    Ok(copy) => {
                        batch.bytes += object.header.object_bytes();
                        copies.push_back(copy);
                    }
                    // What was begun is ended first.
                    Err(StoreError::Full) if !copies.is_empty() => break,
                    Err(error) => return Err(error),
                },
                Plan::Wait => self.cleaning_mut().is_deferred = true,
            }
            self.cleaning_mut().next_slot += 1;
        }
        if copies.len() > before {
            self.guarded(|pool| {
                batch.headers = Some(pool.write_back_headers(u64::MAX)?);
                Ok(())
            })?;
        }
        Ok(looked_at)
    }

    /// Has the index name what was copied, and ends cleaning when nothing is left.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the medium's error, after which the pool is not used any more.
    pub fn end_clean(
        &mut self,
        mut batch: Batch<M>,
        fenced: io::Result<()>,
    ) -> Result<Cleaned, StoreError> {
        if let Err(error) = fenced {
            self.is_broken = true;
            return Err(error.into());
        }
        if batch.is_record {
            self.end_record();
            return Ok(self.take_cleaning_record());
        }
        if self.cleaning.as_ref().is_none_or(|one| one.is_over) {
            return Ok(Cleaned::Waiting);
        }
        self.end_copies(&mut batch, usize::MAX)?;
        let slot_count = self.index.slot_count();
        let cleaning = self.cleaning_mut();
        if cleaning.next_slot < slot_count {
            return Ok(Cleaned::Going);
        }
        let is_deferred = cleaning.is_deferred && !is_injected(InjectedFault::EmptiedTooEarly);
        if is_deferred || !self.leave_behind() {
            let cleaning = self.cleaning_mut();
            (cleaning.next_slot, cleaning.is_deferred) = (0, false);
            cleaning.is_repeated = true;
            return Ok(Cleaned::Waiting);
        }
        self.cleaning_mut().is_over = true;
        Ok(Cleaned::Going)
    }

    /// Has the index name at most `limit` copies of a batch that a fence has made durable: whoever shares the
    /// pool may have it in between.
    ///
    /// # Errors
    /// As [`Pool::end_clean`].
    pub fn end_copies(&mut self, batch: &mut Batch<M>, limit: usize) -> Result<(), StoreError> {
        if let Some(headers) = batch.headers.take() {
            self.note_fenced(headers);
        }
        for copy in batch.copies.drain(..limit.min(batch.copies.len())) {
            let flag = self.flag(copy.to, copy.header.sequence);
            self.guarded(|pool| set_flag(&*pool.medium, copy.to, flag))?;
            self.cleaning_mut().moving.remove(&copy.from);
            // New versions that came meanwhile lead to the copy themselves.
            if let Found::Entry { slot, word } = self.find(&copy.key)
                && self.leads_past(word, &copy)
            {
                let word = Word::to(copy.to, copy.header.object_bytes(), self.space.epoch);
                self.index.set_word(slot, word);
            }
        }
        Ok(())
    }

    /// The index names a version from here on. If that is in the half that is left, this pass is not the
    /// last one.
    pub(super) fn defer_cleaning(&mut self, at: u64, header: Header) {
        let active = self.head.half(self.space.active);
        let Some(cleaning) = self.cleaning.as_mut().filter(|_| !active.contains(&at)) else {
            return;
        };
        cleaning.is_deferred = true;
        if let (Kind::Deletion, Some(late)) = (header.kind, &mut cleaning.late_deletions) {
            late.insert(header.sequence);
        }
    }

    /// Whether cleaning comes back to an entry until what waits there is over, so that no more
    /// values may: who asks for space again and again would have it wait for ever, and everybody's
    /// log fill up. A deletion is durable soon, and ends that wait; what nothing names yet is not
    /// waited for.
    pub(super) fn is_awaited_by_cleaning(&self, found: Found) -> bool {
        let is_waited_for = |one: &&Cleaning| one.is_repeated && self.named == Named::AtAllocation;
        let cleaning = self.cleaning.as_ref().filter(is_waited_for);
        cleaning.is_some_and(|cleaning| {
            let durable = self.newest_durable(found);
            durable.is_some_and(|one| !self.is_in_use(one.at) && cleaning.copy_of(one.at).is_none())
        })
    }

    /// Where new objects end at the latest: what copies take is left to them, and some to deletions
    /// and tombstones, by which a store that is full is emptied.
    pub(super) fn end_for_all(&self) -> u64 {
        let half = self.head.half(self.space.active);
        let deletions = deletion_bytes(half.end - half.start);
        self.end_for_deletions().saturating_sub(deletions)
    }

    /// The same of deletions and tombstones.
    pub(super) fn end_for_deletions(&self) -> u64 {
        let copies = self.cleaning.as_ref().map_or(0, |one| one.reserve);
        self.head.half(self.space.active).end.saturating_sub(copies)
    }

    /// Whether a value makes room as a deletion does: it is as small as one, and smaller than the
    /// durable one that it replaces. A key does that a few times, however little smaller each is.
    pub(super) fn is_tombstone(&self, found: Found, value_bytes: usize) -> bool {
        let before = || {
            let durable = self.newest_durable(found);
            durable.map_or(0, |one| one.header.value_bytes as usize)
        };
        value_bytes <= TOMBSTONE_BYTES_MAX && value_bytes < before()
    }

    /// Gives up what still waits in the half that is left: durable versions came after it. `false`: the value
    /// of one has come, or it may become the newest, since nothing names it until it is durable; or its client
    /// may still write it into the log.
    fn leave_behind(&mut self) -> bool {
        let old = self.head.half(1 - self.space.active);
        let may_be_named = self.named == Named::WhenDurable;
        let left = self.backlog.iter().filter(|(_, one)| old.contains(&one.at));
        let mut over = Vec::new();
        for (sequence, one) in left {
            let is_over = match one.state {
                Waiting::Value(Source::Landing(_)) => true,
                Waiting::Value(Source::Log) => self.is_whole(one.at),
                Waiting::Fence | Waiting::Holder => false,
            };
            if may_be_named || !is_over {
                return false;
            }
            over.push(sequence);
        }
        for sequence in over {
            self.give_up(sequence);
        }
        true
    }

    /// Whether an older version may still become durable that nothing names: without the deletion that came
    /// after it, it would be the newest.
    fn may_be_followed(&self, deletion: &Object) -> bool {
        let oldest = self.backlog.oldest();
        self.named == Named::WhenDurable
            && oldest.is_some_and(|oldest| oldest < deletion.header.sequence)
    }

    fn may_have_copied_before(&self, deletion: &Header) -> bool {
        let cleaning = self.cleaning.as_ref();
        cleaning.is_some_and(|cleaning| cleaning.may_have_copied_before(deletion))
    }

    /// Whether all versions in front of a copy were given up, so that the copy is the newest.
    fn leads_past(&self, word: Word, copy: &Copy) -> bool {
        let mut next = self.object(word);
        while let Some(object) = next {
            if object.at == copy.from || object.at == copy.to {
                return true;
            }
            if self.is_durable(object.at) || self.is_waiting(object.header.sequence) {
                return false;
            }
            next = self.older(&object);
        }
        false
    }

    /// The record that is to be written now: that a cleaning begins, or that one is over.
    fn cleaning_record(&self) -> Result<Option<Space>, StoreError> {
        let next = self.space.next();
        match &self.cleaning {
            None if !self.space.has_epochs() => Err(StoreError::Full),
            None => Ok(Some(Space {
                epoch: self.space.epoch + 1,
                active: 1 - self.space.active,
                is_cleaning: true,
                reach: Reach {
                    to: self.head.half(1 - self.space.active).start,
                    ..Reach::default()
                },
                left: Left {
                    reach: next.reaching(self.durable_to).reach,
                    incarnation: self.space.incarnation,
                },
                ..next
            })),
            Some(cleaning) if cleaning.is_over => Ok(Some(Space {
                is_cleaning: false,
                left: Left::default(),
                ..next.reaching(self.durable_to)
            })),
            Some(_) => Ok(None),
        }
    }

    /// That record is durable. Versions that came meanwhile are where those before them are.
    fn take_cleaning_record(&mut self) -> Cleaned {
        // Before the first byte of an emptied half is overwritten.
        self.index.set_oldest_epoch(self.space.oldest_epoch());
        if !self.space.is_cleaning {
            self.forget_cleaning();
            return Cleaned::Done;
        }
        let left = self.head.half(1 - self.space.active);
        let reserve = self.tail - left.start;
        self.tail = self.head.half(self.space.active).start;
        self.durable_to = self.tail;
        self.resume_cleaning(reserve);
        self.cleaning_mut().late_deletions = Some(HashSet::new());
        Cleaned::Going
    }

    /// From the first entry on, after a beginning or a crash. What the other half holds takes `reserve`
    /// bytes at most.
    pub(super) fn resume_cleaning(&mut self, reserve: u64) {
        self.replaced_bytes = 0;
        self.cleaning = Some(Cleaning {
            next_slot: 0,
            is_over: false,
            is_deferred: false,
            is_repeated: false,
            reserve,
            moving: HashMap::new(),
            late_deletions: None,
            _span: tracing::info_span!("clean log", cenote.store.log_bytes = reserve as i64),
        });
    }

    fn cleaning_mut(&mut self) -> &mut Cleaning {
        self.cleaning.as_mut().expect("it has begun")
    }

    fn forget_cleaning(&mut self) {
        self.cleaning = None;
        let active = self.head.half(self.space.active);
        self.unnamed.retain(|at| active.contains(at));
        self.dropped = 0;
    }

    /// Gives an object a place in the half in use, with its header and without its value and its flag.
    fn begin_copy(&mut self, object: &Object) -> Result<Copy, StoreError> {
        let (from, to) = (object.at, self.tail);
        let bytes = object.header.object_bytes();
        if to + bytes > self.head.half(self.space.active).end {
            return Err(StoreError::Full);
        }
        let header = Header {
            previous_at: from,
            incarnation: self.space.incarnation,
            ..object.header
        };
        let key = object.key().to_vec();
        // Recovery gets to what follows in the log by this header.
        self.write_header(to, header, &key)?;
        self.tail += bytes;
        let cleaning = self.cleaning_mut();
        cleaning.reserve = cleaning.reserve.saturating_sub(bytes);
        cleaning.moving.insert(from, to);
        Ok(Copy {
            from,
            to,
            header,
            key,
        })
    }

    fn plan(&self, slot: u64) -> Plan {
        let active = self.head.half(self.space.active);
        let (mut waits, mut waits_in_old) = (false, false);
        let mut next = self.object(self.index.word(slot));
        let Some(newest) = next else {
            return match self.index.hash(slot) {
                0 => Plan::Keep,
                _ => Plan::Drop,
            };
        };
        let is_named_in_old = !active.contains(&newest.at);
        while let Some(object) = next {
            if self.is_durable(object.at) {
                return match object.header.kind {
                    _ if active.contains(&object.at) => Plan::Keep,
                    _ if waits && !is_injected(InjectedFault::OldVersionCopied) => Plan::Wait,
                    Kind::Value => Plan::Copy(Box::new(object)),
                    Kind::Deletion if self.may_be_followed(&object) => Plan::Wait,
                    Kind::Deletion if self.may_have_copied_before(&object.header) => {
                        Plan::Copy(Box::new(object))
                    }
                    Kind::Deletion => Plan::Drop,
                };
            }
            if self.is_waiting(object.header.sequence) {
                waits = true;
                waits_in_old |= !active.contains(&object.at);
            }
            next = self.older(&object);
        }
        match (waits_in_old, is_named_in_old) {
            (true, _) => Plan::Wait,
            // Nothing that was ever whole.
            (false, true) => Plan::Drop,
            (false, false) => Plan::Keep,
        }
    }
}
