//! Versions that become durable together: verified, written back, and one fence for all.
//!
//! A value is verified and copied out of its landing with its group, or ahead of that by a [`Taking`], so
//! that its landing is free again while the groups before it are in their fences. Both are begun and ended
//! with the pool; in between they need the medium alone, and take their time there.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::headers::Headers;
use super::{Found, Pending, Pool, Source, StoreError, Waiting};
use crate::format::{FLAG_AT, Header, Word, checksum};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::medium::Medium;
use crate::schemes::Named;

/// Some values on their way from their landings into the log.
pub struct Taking<M> {
    medium: Arc<M>,
    members: Vec<Member>,
    unreadable: Vec<u64>,
}

/// Some versions on their way to be durable.
pub struct Group<M> {
    medium: Arc<M>,
    members: VecDeque<Member>,
    /// Those of damaged headers, which are not whole.
    unreadable: Vec<u64>,
    /// Whether a record goes with it that lets more sequences be given.
    is_leasing: bool,
    /// What the medium said to the headers, and to that record.
    written: io::Result<()>,
    /// Headers that its fence makes durable.
    headers: Option<Headers>,
}

struct Member {
    at: u64,
    sequence: u64,
    header: Header,
    key: Vec<u8>,
    /// Where its value comes from, until it is in the log and verified.
    source: Option<Source>,
    /// Its flag once it is durable.
    flag: u64,
}

/// What became of a group's members.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Settled {
    /// Sequences of those that are durable.
    pub durable: Vec<u64>,
    /// Sequences of those whose values are not, or not yet, what was announced, ascending.
    pub waiting: Vec<u64>,
}

impl<M: Medium> Taking<M> {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Its values, and their bytes.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        let bytes = self
            .members
            .iter()
            .map(|one| u64::from(one.header.value_bytes));
        (self.members.len(), bytes.sum())
    }

    /// Verifies values, and copies those that are whole into the log.
    pub fn copy(&mut self) {
        let mut scratch = Vec::new();
        for member in &mut self.members {
            member.take_value(&*self.medium, &mut scratch);
        }
    }
}

impl<M: Medium> Group<M> {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.unreadable.is_empty() && !self.is_leasing
    }

    /// Whether there are some to end.
    #[must_use]
    pub fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// Verifies values, and writes back those that are whole. A fence makes them durable.
    ///
    /// # Errors
    /// Those of the medium.
    pub fn write_back(&mut self) -> io::Result<()> {
        std::mem::replace(&mut self.written, Ok(()))?;
        let mut scratch = Vec::new();
        for member in &mut self.members {
            let was_taken = member.source.is_none();
            member.take_value(&*self.medium, &mut scratch);
            if !member.is_whole() {
                continue;
            }
            if is_injected(InjectedFault::FlagBeforeValue) {
                set_flag(&*self.medium, member.at, member.flag)?;
            }
            if was_taken && is_injected(InjectedFault::TakenNotWrittenBack) {
                continue;
            }
            let value_at = member.header.value_at(member.at);
            let value_end = value_at + u64::from(member.header.value_bytes);
            self.medium.write_back(value_at..value_end)?;
        }
        Ok(())
    }

    /// Whether something was written back that a fence makes durable.
    #[must_use]
    pub fn needs_fence(&self) -> bool {
        let has_none = !self.is_leasing && !self.members.iter().any(Member::is_whole);
        let is_left_out = is_injected(InjectedFault::NoFenceBeforeFlag)
            || is_injected(InjectedFault::ReadNotPersisted);
        !has_none && !is_left_out
    }

    /// Waits until all that was written back is durable.
    ///
    /// # Errors
    /// Those of the medium.
    pub fn fence(&self) -> io::Result<()> {
        match self.needs_fence() {
            true => self.medium.fence(),
            false => Ok(()),
        }
    }
}

impl Member {
    fn is_whole(&self) -> bool {
        self.source.is_none()
    }

    /// Copies the value into the log, if it is what was announced: its landing is free then.
    fn take_value(&mut self, medium: &impl Medium, scratch: &mut Vec<u8>) {
        let Some(source) = &mut self.source else {
            return;
        };
        let value_at = self.header.value_at(self.at);
        scratch.resize(self.header.value_bytes as usize, 0);
        match source {
            // A copy of our own: the client may write to its landing while this is verified.
            Source::Landing(landing) => landing.read(scratch),
            Source::Log => medium.read(value_at, scratch),
        }
        let is_right = checksum(&[&self.key, scratch]) == self.header.checksum;
        if !is_right && !is_injected(InjectedFault::ChecksumSkipped) {
            return;
        }
        if let Source::Landing(landing) = source {
            if is_injected(InjectedFault::CheckedThenCopied) {
                landing.read(scratch);
            }
            medium.write(value_at, scratch);
        }
        self.source = None;
    }
}

impl<M: Medium> Pool<M> {
    /// Begins to make at most `limit` versions durable, in turn. End it with [`Pool::end_group`].
    pub fn begin_group(&mut self, limit: usize) -> Group<M> {
        let mut chosen = self.oldest_taken(limit, u64::MAX);
        self.fill_up(&mut chosen, limit, u64::MAX);
        self.group_of(&chosen)
    }

    /// Adds versions that wait for their values to some that have them, until they are `limit`, or `bytes`
    /// and one value: how many. `None`: there is no room for any.
    ///
    /// Those that have them come first: a header is durable before what is behind it in the log, so whoever
    /// makes the newest durable before the oldest writes the blocks of all between them, and once more later.
    pub fn fill_up(&mut self, chosen: &mut Vec<u64>, limit: usize, bytes: u64) -> Option<usize> {
        let pending = chosen.iter().filter_map(|one| self.backlog.get(*one));
        let taken: u64 = pending.map(|one| u64::from(one.value_bytes)).sum();
        let left = limit.checked_sub(chosen.len()).filter(|left| *left > 0)?;
        let next = self.next_waiting(left, bytes.checked_sub(taken).filter(|left| *left > 0)?);
        chosen.extend(&next);
        Some(next.len())
    }

    /// At most `limit` versions that wait for their values, and of their bytes `bytes` and one value at most:
    /// those first that were not looked at for longest.
    pub fn next_waiting(&mut self, limit: usize, bytes: u64) -> Vec<u64> {
        let waiting = self.backlog.untaken_from(self.next_try);
        let chosen = up_to(waiting.take(limit), bytes);
        self.next_try = chosen.last().map_or(0, |last| last + 1);
        chosen
    }

    /// The oldest versions whose values are in the log and wait for a fence: `limit`, and `bytes` and one
    /// value, at most.
    #[must_use]
    pub fn oldest_taken(&self, limit: usize, bytes: u64) -> Vec<u64> {
        up_to(self.backlog.taken().take(limit), bytes)
    }

    /// Versions whose values are in the log and wait for a fence.
    #[must_use]
    pub fn taken_count(&self) -> usize {
        self.backlog.taken_count()
    }

    /// The sequence that is given next.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Begins to copy the values of these into the log, those that come from landings and wait for it. End
    /// it with [`Pool::end_taking`].
    pub fn begin_taking(&mut self, sequences: &[u64]) -> Taking<M> {
        let is_beside = |sequence: &&u64| {
            let version = self.backlog.get(**sequence);
            version.is_some_and(|one| matches!(one.state, Waiting::Value(Source::Landing(_))))
        };
        let beside: Vec<u64> = sequences.iter().filter(is_beside).copied().collect();
        self.takings += 1;
        let (members, unreadable) = self.members(&beside);
        Taking {
            medium: Arc::clone(&self.medium),
            members,
            unreadable,
        }
    }

    /// Ends it: landings of values that are whole are free. The others, which wait on.
    pub fn end_taking(&mut self, taking: Taking<M>) -> Vec<u64> {
        self.takings -= 1;
        let mut waiting = taking.unreadable;
        for member in taking.members {
            let state = match member.source {
                None => Waiting::Fence,
                Some(source) => {
                    waiting.push(member.sequence);
                    Waiting::Value(source)
                }
            };
            self.backlog.set(member.sequence, state);
        }
        waiting.sort_unstable();
        waiting
    }

    /// Takes hold of these, those that wait and are nobody's; and those whose headers are damaged.
    fn members(&mut self, sequences: &[u64]) -> (Vec<Member>, Vec<u64>) {
        let mut members = Vec::with_capacity(sequences.len());
        let mut unreadable = Vec::new();
        for sequence in sequences {
            let Some(at) = self.backlog.get(*sequence).map(|one| one.at) else {
                continue;
            };
            let Some(object) = self.read_object(at) else {
                unreadable.push(*sequence);
                continue;
            };
            let source = match self.backlog.hold(*sequence) {
                Some(Waiting::Value(source)) => Some(source),
                Some(Waiting::Fence) => None,
                Some(Waiting::Holder) | None => continue,
            };
            members.push(Member {
                at,
                sequence: *sequence,
                header: object.header,
                key: object.key().to_vec(),
                source,
                flag: self.flag(at, *sequence),
            });
        }
        (members, unreadable)
    }

    /// Begins to make these durable, those that wait and are nobody's.
    pub fn group_of(&mut self, sequences: &[u64]) -> Group<M> {
        self.groups += 1;
        let is_leasing = self.is_lease_short() && self.next_space.is_none() && !self.is_broken;
        let mut group = Group {
            written: match is_leasing {
                true => {
                    let next = self.space.next().leased(self.next_sequence);
                    self.begin_record(next.reaching(self.durable_to))
                }
                false => Ok(()),
            },
            headers: None,
            medium: Arc::clone(&self.medium),
            members: VecDeque::with_capacity(sequences.len()),
            unreadable: Vec::new(),
            is_leasing,
        };
        self.add_to(&mut group, sequences);
        group
    }

    /// Adds these to a group that is not written back yet, those that wait and are nobody's.
    pub fn add_to(&mut self, group: &mut Group<M>, sequences: &[u64]) {
        let (members, unreadable) = self.members(sequences);
        let last = members.iter().map(|member| member.sequence).max();
        if group.written.is_ok() {
            match self.write_back_headers(last.unwrap_or(0)) {
                Ok(headers) => group.headers = Some(headers),
                Err(error) => group.written = Err(error),
            }
        }
        group.members.extend(members);
        group.unreadable.extend(unreadable);
    }

    /// Whether groups or takings are under way: versions in them cannot be settled by others.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.groups > 0 || self.takings > 0
    }

    /// Ends a group: its members that are whole are durable if the medium says so.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the medium's error, after which the pool is not used any more.
    pub fn end_group(
        &mut self,
        mut group: Group<M>,
        fenced: io::Result<()>,
    ) -> Result<Settled, StoreError> {
        if let Err(error) = fenced {
            self.groups -= 1;
            self.is_broken = true;
            return Err(error.into());
        }
        let mut settled = self.end_members(&mut group, usize::MAX)?;
        self.groups -= 1;
        settled.waiting.extend(group.unreadable);
        if group.is_leasing {
            self.end_record();
        }
        settled.waiting.sort_unstable();
        Ok(settled)
    }

    /// The same of at most so many members of a group that is fenced; [`Pool::end_group`] ends the rest.
    ///
    /// # Errors
    /// As [`Pool::end_group`].
    pub fn end_members(
        &mut self,
        group: &mut Group<M>,
        limit: usize,
    ) -> Result<Settled, StoreError> {
        let mut settled = Settled::default();
        if group.needs_fence()
            && let Some(headers) = group.headers.take()
        {
            self.note_fenced(headers);
        }
        for member in group.members.drain(..limit.min(group.members.len())) {
            if let Some(source) = member.source {
                self.backlog.set(member.sequence, Waiting::Value(source));
                settled.waiting.push(member.sequence);
                continue;
            }
            if !is_injected(InjectedFault::ReadNotPersisted) {
                self.guarded(|pool| set_flag(&*pool.medium, member.at, member.flag))?;
            }
            if self.named == Named::WhenDurable {
                self.name_durable(member.at, member.header, &member.key);
            }
            settled.durable.push(member.sequence);
            self.backlog.complete(member.sequence);
        }
        Ok(settled)
    }

    /// Has the index name a version, unless it names a later one.
    fn name_durable(&mut self, at: u64, header: Header, key: &[u8]) {
        let word = Word::to(at, header.object_bytes(), self.epoch_at(at));
        // Cleaning may have passed its entry: it comes back to what is named in the half that it leaves.
        self.defer_cleaning(at, header);
        self.unnamed.remove(&at);
        match self.find(key) {
            Found::Entry { slot, word: named } => {
                let newer = self.object(named);
                if newer.is_none_or(|newer| newer.header.sequence < header.sequence) {
                    self.replaced_bytes += named.object_bytes();
                    self.index.set_word(slot, word);
                }
            }
            Found::Free { slot } => {
                self.index.add(slot, header.hash, key, word);
                self.entries += 1;
            }
        }
    }

    /// All of a group, for who has the pool for himself.
    pub(super) fn carry_out(&mut self, mut group: Group<M>) -> Result<usize, StoreError> {
        self.check_whole()?;
        if group.is_empty() {
            self.groups -= 1;
            return Ok(0);
        }
        let done = group.write_back().and_then(|()| group.fence());
        Ok(self.end_group(group, done)?.durable.len())
    }

    /// Makes those of some versions durable whose values are whole, at once. How many are.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn settle(&mut self, sequences: &[u64]) -> Result<usize, StoreError> {
        let group = self.group_of(sequences);
        self.carry_out(group)
    }
}

/// Versions in their order, until they have so many bytes.
fn up_to<'a>(versions: impl Iterator<Item = (u64, &'a Pending)>, bytes: u64) -> Vec<u64> {
    let mut left = Some(bytes);
    let fitting = versions.map_while(|(sequence, one)| {
        let before = left?;
        left = before.checked_sub(u64::from(one.value_bytes));
        Some(sequence)
    });
    fitting.collect()
}

/// A crash may take it: recovery looks at the value then.
pub(super) fn set_flag(medium: &impl Medium, at: u64, flag: u64) -> io::Result<()> {
    medium.store(at + FLAG_AT, flag);
    medium.write_back_hint(at + FLAG_AT..at + FLAG_AT + 8)
}
