//! Groups on their way to the disk: one in its fence, and one behind it.

use std::collections::BTreeSet;

use cenote_fabric::Time;
use parking_lot::MutexGuard;

use super::{BESIDE_BYTES, BOOKED_AT_ONCE, GROUP_BYTES, Guard, Persister, VERSIONS_MAX, in_order};
use crate::medium::Medium;
use crate::pool::{Group, StoreError};
use crate::server::fence::Fencer;
use crate::server::shard::Shard;

/// A group that is written back.
pub(super) struct Flight<M> {
    pub(super) group: Group<M>,
    /// Members that are given up if they are not whole.
    decided: BTreeSet<u64>,
    /// Which look it was.
    look: u64,
}

impl<M: Medium> Persister<M> {
    /// Begins to make a group durable, if there is something to be made so.
    pub(super) fn begin<'a>(
        &mut self,
        shard: &'a Shard<M>,
        mut state: Guard<'a, M>,
        fencer: &Fencer,
        now: Time,
    ) -> Result<Guard<'a, M>, StoreError> {
        let bytes = match (shard.medium.is_quick(), self.awaited.is_empty()) {
            (true, _) => u64::MAX,
            (false, true) => GROUP_BYTES,
            (false, false) => BESIDE_BYTES,
        };
        let mut chosen = state.pool.oldest_taken(VERSIONS_MAX, bytes);
        // Where there is none in it, landings are emptied beside it.
        state.wants_room &= !self.fill_up(&mut state, &mut chosen, bytes);
        if chosen.is_empty() && !state.pool.is_lease_short() {
            return Ok(state);
        }
        let chosen = in_order(chosen);
        let is_alone = !self.awaited.is_empty() && chosen.len() == state.pool.backlog();
        let mut flight = self.gather(&mut state, &chosen);
        drop(state);
        let written = flight.group.write_back();
        // Another thread waits for it, unless that is quicker here, or nothing else is to be done.
        let is_over =
            is_alone || shard.medium.is_quick() || written.is_err() || !flight.group.needs_fence();
        let fenced = match written {
            Ok(()) if is_over => flight.group.fence(),
            written => written,
        };
        self.flight = Some(flight);
        self.fenced = now;
        if !is_over {
            fencer.fence(shard);
        }
        state = shard.lock();
        if is_over {
            state.fenced = Some(fenced);
        }
        Ok(state)
    }

    /// Writes back the group behind the one that waits for its fence, if more wait than go into one.
    pub(super) fn begin_next<'a>(
        &mut self,
        shard: &'a Shard<M>,
        mut state: Guard<'a, M>,
    ) -> Result<Guard<'a, M>, StoreError> {
        // Who waits for a version is not to wait for two groups, and copies take along what is before them.
        let is_first = self.flight.is_some() && self.next.is_none();
        if !is_first || !self.awaited.is_empty() || state.pool.is_cleaning() {
            return Ok(state);
        }
        let chosen = state.pool.oldest_taken(VERSIONS_MAX, GROUP_BYTES);
        if chosen.len() == state.pool.taken_count() {
            return Ok(state);
        }
        let mut next = self.gather(&mut state, &chosen);
        drop(state);
        let written = next.group.write_back();
        state = shard.lock();
        if written.is_err() {
            state.pool.end_group(next.group, written)?;
            return Ok(state);
        }
        self.next = Some(next);
        Ok(state)
    }

    /// The group that copies of a cleaning take along: versions before them, whose values have blocks in
    /// common with the headers that are written for the copies' sake.
    pub(super) fn gather_before(&mut self, state: &mut Guard<'_, M>, bytes: u64) -> Flight<M> {
        let mut before = state.pool.oldest_taken(usize::MAX, bytes);
        if self.is_eager(state) {
            let most = before.len() + VERSIONS_MAX;
            let more = state.pool.fill_up(&mut before, most, bytes);
            self.passed_over += more.unwrap_or(0);
        }
        self.gather(state, &in_order(before))
    }

    /// A group of these versions, which is to be written back.
    fn gather(&mut self, state: &mut Guard<'_, M>, chosen: &[u64]) -> Flight<M> {
        self.looks += 1;
        let decided = state.books.decided_of(chosen);
        let mut group = state.pool.group_of(&[]);
        for some in chosen.chunks(BOOKED_AT_ONCE) {
            state.pool.add_to(&mut group, some);
            MutexGuard::bump(state);
        }
        Flight {
            group,
            decided,
            look: self.looks,
        }
    }

    /// Ends the group whose fence is over, if it is, and has the next one's begin; how many versions are
    /// durable.
    pub(super) fn land_if_over<'a>(
        &mut self,
        shard: &'a Shard<M>,
        mut state: Guard<'a, M>,
        fencer: &Fencer,
        now: Time,
    ) -> Result<(Guard<'a, M>, usize), StoreError> {
        let Some(fenced) = state.fenced.take() else {
            return Ok((state, 0));
        };
        let over = std::mem::replace(&mut self.flight, self.next.take());
        if self.flight.is_some() && fenced.is_ok() {
            self.fenced = now;
            drop(state);
            fencer.fence(shard);
            state = shard.lock();
        }
        let count = match over {
            Some(over) => self.land(&mut state, over, fenced, now)?,
            None => 0,
        };
        Ok((state, count))
    }

    /// Ends a group whose fence is over; how many versions are durable.
    pub(super) fn land(
        &mut self,
        state: &mut Guard<'_, M>,
        over: Flight<M>,
        fenced: std::io::Result<()>,
        now: Time,
    ) -> Result<usize, StoreError> {
        let Flight {
            mut group,
            decided,
            look,
        } = over;
        let mut waiting = Vec::new();
        let mut count = 0;
        if fenced.is_ok() {
            while group.has_members() {
                let some = state.pool.end_members(&mut group, BOOKED_AT_ONCE)?;
                for sequence in &some.durable {
                    self.awaited.remove(sequence);
                    state.is_stored(&self.shard.outboxes, *sequence);
                }
                count += some.durable.len();
                waiting.extend(some.waiting);
                MutexGuard::bump(state);
            }
        }
        waiting.extend(state.pool.end_group(group, fenced)?.waiting);
        waiting.sort_unstable();
        self.was_full = count >= VERSIONS_MAX;
        self.pass_over(state, &waiting, &decided, look);
        self.do_jobs(state, now);
        Ok(count)
    }
}
