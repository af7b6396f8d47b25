//! Versions that become durable together: verified, written back, and one fence for all.
//!
//! Begun and ended with the pool; in between it needs the medium alone, and takes its time there.

use std::io;
use std::sync::Arc;

use super::{Found, LEASE, Pool, Source, StoreError, Waiting};
use crate::format::{FLAG_AT, Header, Space, Word, checksum};
use crate::medium::Medium;
use crate::planted::{Planted, is_planted};
use crate::schemes::Named;

/// Some versions on their way to be durable.
pub struct Group<M> {
    medium: Arc<M>,
    members: Vec<Member>,
    /// Whether a record goes with it that lets more sequences be given.
    is_leasing: bool,
    /// What the medium said to the headers.
    headers: io::Result<()>,
}

struct Member {
    at: u64,
    sequence: u64,
    header: Header,
    key: Vec<u8>,
    source: Source,
    /// Its flag once it is durable.
    flag: u64,
    is_whole: bool,
}

/// What became of a group's members.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Settled {
    /// Sequences of those that are durable.
    pub durable: Vec<u64>,
    /// Sequences of those whose values are not, or not yet, what was announced.
    pub waiting: Vec<u64>,
}

impl<M: Medium> Group<M> {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && !self.is_leasing
    }

    /// Verifies values, and writes back those that are whole. A fence makes them durable.
    ///
    /// # Errors
    /// Those of the medium.
    pub fn write_back(&mut self) -> io::Result<()> {
        std::mem::replace(&mut self.headers, Ok(()))?;
        let mut scratch = Vec::new();
        for member in &mut self.members {
            member.is_whole = member.take_value(&*self.medium, &mut scratch);
            if !member.is_whole {
                continue;
            }
            if is_planted(Planted::FlagBeforeValue) {
                set_flag(&*self.medium, member.at, member.flag)?;
            }
            let value_at = member.header.value_at(member.at);
            let value_end = value_at + u64::from(member.header.value_bytes);
            self.medium.write_back(value_at..value_end)?;
        }
        Ok(())
    }

    /// Waits until all that was written back is durable.
    ///
    /// # Errors
    /// Those of the medium.
    pub fn fence(&self) -> io::Result<()> {
        let has_none = !self.is_leasing && !self.members.iter().any(|member| member.is_whole);
        let is_left_out =
            is_planted(Planted::NoFenceBeforeFlag) || is_planted(Planted::ReadNotPersisted);
        match has_none || is_left_out {
            true => Ok(()),
            false => self.medium.fence(),
        }
    }
}

impl Member {
    /// Copies the value into the log, if it is what was announced.
    fn take_value(&mut self, medium: &impl Medium, scratch: &mut Vec<u8>) -> bool {
        let value_at = self.header.value_at(self.at);
        scratch.resize(self.header.value_bytes as usize, 0);
        match &mut self.source {
            // A copy of our own: the client may write to its landing while this is verified.
            Source::Landing(landing) => landing.read(scratch),
            Source::Log => medium.read(value_at, scratch),
        }
        let is_right = checksum(&[&self.key, scratch]) == self.header.checksum;
        if !is_right && !is_planted(Planted::ChecksumSkipped) {
            return false;
        }
        if let Source::Landing(landing) = &mut self.source {
            if is_planted(Planted::CheckedThenCopied) {
                landing.read(scratch);
            }
            medium.write(value_at, scratch);
        }
        true
    }
}

impl<M: Medium> Pool<M> {
    /// Begins to make at most `limit` versions durable, in turn. End it with [`Pool::end_group`].
    pub fn begin_group(&mut self, limit: usize) -> Group<M> {
        let taken = self.next_waiting(limit);
        self.group_of(&taken)
    }

    /// At most `limit` versions that wait for their values, those first that were not looked at for longest.
    pub fn next_waiting(&mut self, limit: usize) -> Vec<u64> {
        let start = self
            .pending
            .partition_point(|one| one.sequence < self.next_try);
        let count = self.pending.len();
        let mut taken = Vec::new();
        for step in 0..count {
            let index = (start + step) % count;
            if let Waiting::Value(_) = self.pending[index].state {
                taken.push(self.pending[index].sequence);
                if taken.len() == limit {
                    break;
                }
            }
        }
        self.next_try = taken.last().map_or(0, |last| last + 1);
        taken
    }

    /// The sequence that is given next.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Begins to make these durable, those that wait for it.
    pub fn group_of(&mut self, sequences: &[u64]) -> Group<M> {
        let mut members = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let Some(index) = self.waiting(*sequence) else {
                continue;
            };
            let at = self.pending[index].at;
            let Some(object) = self.read_object(at) else {
                continue;
            };
            let flag = self.flag(at, *sequence);
            let pending = &mut self.pending[index];
            match std::mem::replace(&mut pending.state, Waiting::Group) {
                Waiting::Value(source) => members.push(Member {
                    at,
                    sequence: *sequence,
                    header: object.header,
                    key: object.key().to_vec(),
                    source,
                    flag,
                    is_whole: false,
                }),
                other => pending.state = other,
            }
        }
        self.groups += 1;
        let last = members.iter().map(|member| member.sequence).max();
        Group {
            headers: self.write_back_headers(last.unwrap_or(0)),
            medium: Arc::clone(&self.medium),
            members,
            is_leasing: self.is_lease_short() && self.groups == 1 && !self.is_broken,
        }
    }

    /// Whether numbers of versions run out until a group has passed.
    #[must_use]
    pub fn is_lease_short(&self) -> bool {
        self.space.ceiling.saturating_sub(self.next_sequence) < LEASE / 2
    }

    /// Whether groups are under way: versions in them cannot be settled by others.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.groups > 0
    }

    /// Ends a group: its members that are whole are durable if the medium says so.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the medium's error, after which the pool is not used any more.
    pub fn end_group(
        &mut self,
        group: Group<M>,
        fenced: io::Result<()>,
    ) -> Result<Settled, StoreError> {
        self.groups -= 1;
        if let Err(error) = fenced {
            self.is_broken = true;
            return Err(error.into());
        }
        let mut settled = Settled::default();
        for member in group.members {
            let Some(index) = self.waiting(member.sequence) else {
                continue;
            };
            if !member.is_whole {
                self.pending[index].state = Waiting::Value(member.source);
                settled.waiting.push(member.sequence);
                continue;
            }
            if !is_planted(Planted::ReadNotPersisted) {
                self.guarded(|pool| set_flag(&*pool.medium, member.at, member.flag))?;
            }
            if self.named == Named::WhenDurable {
                self.name_durable(member.at, member.header, &member.key);
            }
            settled.durable.push(member.sequence);
            self.end_wait(index);
        }
        if group.is_leasing {
            self.set_space(Space {
                ceiling: self.next_sequence + LEASE,
                ..self.space.next()
            })?;
        }
        Ok(settled)
    }

    /// Has the index name a version, unless it names a later one.
    fn name_durable(&mut self, at: u64, header: Header, key: &[u8]) {
        let word = Word::to(at, header.object_bytes(), self.epoch_at(at));
        // Cleaning may have passed its entry: it comes back to what is named in the half that it leaves.
        self.defer_cleaning(at);
        match self.find(key) {
            Found::Entry { slot, word: named } => {
                let newer = self.object(named);
                if newer.is_none_or(|newer| newer.header.sequence < header.sequence) {
                    self.index.set_word(slot, word);
                }
            }
            Found::Free { slot } => {
                self.index.set(slot, header.hash, word);
                self.entries += 1;
            }
            Found::Full => unreachable!("a place was kept when there was space"),
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

    /// Makes one version durable if its value is whole; whether it is.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn settle_if_idle(&mut self, sequence: u64) -> Result<bool, StoreError> {
        Ok(!self.is_busy() && self.settle(&[sequence])? == 1)
    }
}

/// A crash may take it: recovery looks at the value then.
pub(super) fn set_flag(medium: &impl Medium, at: u64, flag: u64) -> io::Result<()> {
    medium.store(at + FLAG_AT, flag);
    medium.write_back_hint(at + FLAG_AT..at + FLAG_AT + 8)
}
