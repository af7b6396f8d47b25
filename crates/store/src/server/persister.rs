//! The thread that makes a shard's versions durable, answers what waits for that, and cleans the log.
//!
//! Whatever waits when it begins is one group with one fence, and what comes during the fence is the next:
//! under load many share one. Values that clients write one-sided come without a word, so it looks for them:
//! at once while some come, and more and more rarely while none do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::time::Duration;

use cenote_fabric::Time;

use super::job::{Job, JobKind};
use super::outbox::Outboxes;
use super::shard::{Shard, State, Waiter, place_answer};
use crate::medium::Medium;
use crate::pool::{Cleaned, Condition, Located, StoreError};
use crate::protocol::{Answer, Refusal};
use crate::schemes::Durable;

/// Most versions of one group.
const GROUP_MAX: usize = 1024;
/// Entries of the index that are cleaned between two groups.
const CLEAN_ENTRIES: usize = 64;
/// Under schemes that make nothing durable on their own, so many versions may wait; then some are.
const LAZY_BACKLOG_MAX: usize = 32_768;
/// How long a disk's fences wait for more, while nobody waits for them.
const LINGER: Duration = Duration::from_millis(5);
/// The shortest and the longest time between two looks for values.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(20));

/// The thread's own.
pub(super) struct Persister<M> {
    pub shard: Arc<Shard<M>>,
    pub outboxes: Arc<Outboxes>,
    /// How long a value may take to come.
    pub patience: Duration,
}

impl<M: Medium> Persister<M> {
    /// Until the store stops and all that is whole is durable.
    ///
    /// # Errors
    /// The medium's: the store ends.
    pub fn run(&self) -> Result<(), StoreError> {
        let shard = &self.shard;
        let mut pause = LOOK_EVERY.0;
        let mut state = shard.lock();
        loop {
            let is_stopping = state.is_stopping;
            let (settled, cleaned);
            (state, settled, cleaned) = self.turn(state, Time::now())?;
            if is_stopping && settled == 0 {
                return Ok(());
            }
            if settled > 0 || cleaned {
                pause = LOOK_EVERY.0;
            }
            let is_background = shard.scheme.durable() == Durable::InBackground;
            let looks = match is_background {
                true => state.pool.backlog() > 0,
                false => state.pool.backlog() > LAZY_BACKLOG_MAX,
            };
            if state.has_work() || cleaned {
                continue;
            }
            let wait = match (looks, shard.medium.is_quick()) {
                (false, _) => Duration::from_millis(100),
                (true, true) if settled > 0 => continue,
                (true, true) => pause,
                (true, false) => pause.max(LINGER),
            };
            pause = (pause * 2).min(LOOK_EVERY.1);
            let waited = shard.work.wait_timeout(state, wait);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// One group, and one batch of cleaning: how many versions are durable, and whether there is more to
    /// clean.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn turn<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<M>>,
        now: Time,
    ) -> Result<(MutexGuard<'a, State<M>>, usize, bool), StoreError> {
        let is_stopping = state.is_stopping;
        let jobs: Vec<Job> = state.jobs.drain(..).collect();
        let (settled, cleaned);
        (state, settled) = self.settle(state, jobs, is_stopping, now)?;
        (state, cleaned) = self.clean(state)?;
        self.give_up_late(&mut state, now);
        Ok((state, settled, cleaned))
    }

    /// Makes one group durable, and does what jobs wait for it. How many are.
    fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<M>>,
        mut jobs: Vec<Job>,
        is_last: bool,
        now: Time,
    ) -> Result<(MutexGuard<'a, State<M>>, usize), StoreError> {
        let is_background = self.shard.scheme.durable() == Durable::InBackground;
        let mut total = 0;
        loop {
            jobs = self.do_jobs(&mut state, jobs, now);
            let mut sequences: BTreeSet<u64> = state.wanted.drain(..).collect();
            for job in &jobs {
                sequences.extend(job.awaits(&state.pool));
            }
            let has_syncs = state.books.values().any(|book| !book.syncs.is_empty());
            let is_long = state.pool.backlog() > LAZY_BACKLOG_MAX;
            if is_background || is_last || has_syncs || is_long {
                sequences.extend(state.pool.next_waiting(GROUP_MAX));
            }
            if sequences.is_empty() && !state.pool.is_lease_short() {
                return Ok((state, total));
            }
            // Who waits for it by now has written it, or says so. Who asks from here on may have written it
            // after this group looked.
            let is_asked = |sequence: &u64| {
                let ticket = state.tickets.get(sequence);
                ticket.is_some_and(|ticket| !ticket.waiters.is_empty())
            };
            let asked: BTreeSet<u64> = sequences.iter().copied().filter(is_asked).collect();
            let sequences: Vec<u64> = sequences.into_iter().collect();
            let mut group = state.pool.group_of(&sequences);
            drop(state);
            let done = group.write_back().and_then(|()| group.fence());
            state = self.shard.lock();
            let settled = state.pool.end_group(group, done)?;
            total += settled.durable.len();
            for sequence in &settled.durable {
                let client = state.tickets.get(sequence).map(|ticket| ticket.client);
                let waiters = state.close_ticket(*sequence);
                self.tell(
                    waiters,
                    &Answer::Done {
                        sequence: *sequence,
                    },
                    *sequence,
                );
                if let Some(client) = client {
                    self.tell_synced(&mut state, client);
                }
            }
            for sequence in &settled.waiting {
                for job in &mut jobs {
                    if job.awaits(&state.pool) == Some(*sequence) {
                        job.below = *sequence;
                    }
                }
                if asked.contains(sequence) {
                    self.refuse(&mut state, *sequence);
                }
            }
            if jobs.is_empty() {
                return Ok((state, total));
            }
        }
    }

    /// Does those jobs that wait for nothing any more; the others.
    fn do_jobs(&self, state: &mut State<M>, jobs: Vec<Job>, now: Time) -> Vec<Job> {
        let mut left = Vec::new();
        for job in jobs {
            match job.awaits(&state.pool) {
                None => {}
                // What is on its way may be the newest version by now. A change that is made of one
                // version asks again until that is there, or given up.
                Some(_) if job.is_tried() => {
                    let busy = Answer::Refused(Refusal::Busy);
                    self.outboxes.answer(job.waiter, &busy, 0);
                    continue;
                }
                Some(_) => {
                    left.push(job);
                    continue;
                }
            }
            let answer = match state.pool.locate(&job.key, job.below) {
                // None that is named is awaited no more.
                Ok(Located::Waiting(_)) => Some(Answer::Refused(Refusal::Busy)),
                Ok(Located::Durable(place)) => self.do_job(state, &job, Some(place), now),
                Ok(Located::Absent) => self.do_job(state, &job, None, now),
                Err(error) => Some(Answer::Refused(state.refuse(&error))),
            };
            if let Some(answer) = answer {
                self.outboxes.answer(job.waiter, &answer, 0);
            }
        }
        left
    }

    /// Does a job now that the key's newest version is known.
    fn do_job(
        &self,
        state: &mut State<M>,
        job: &Job,
        newest: Option<crate::pool::Place>,
        now: Time,
    ) -> Option<Answer> {
        let shard = &*self.shard;
        let sequence = newest.map(|place| place.sequence);
        let holds = |condition| match condition {
            Condition::Always => true,
            Condition::Absent => sequence.is_none(),
            Condition::Sequence(wanted) => sequence == Some(wanted),
        };
        let refused = || Some(Answer::Refused(Refusal::Condition(sequence)));
        match &job.kind {
            JobKind::Locate => Some(newest.map_or(Answer::Absent, place_answer)),
            JobKind::Space { condition, .. }
            | JobKind::Put { condition, .. }
            | JobKind::Delete { condition }
                if !holds(*condition) =>
            {
                refused()
            }
            JobKind::Space {
                value_bytes,
                checksum,
                ..
            } => state.give_space(
                shard,
                &job.key,
                *value_bytes,
                *checksum,
                job.client,
                job.area.as_ref(),
                now,
            ),
            JobKind::Put {
                is_durable, value, ..
            } => state.put(
                shard,
                &job.key,
                value,
                *is_durable,
                job.client,
                job.waiter,
                now,
            ),
            JobKind::Delete { .. } => state.delete(shard, &job.key, job.client, job.waiter, now),
        }
    }

    /// One batch of cleaning, if it is due. Whether there is more.
    fn clean<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<M>>,
    ) -> Result<(MutexGuard<'a, State<M>>, bool), StoreError> {
        if !state.wants_cleaning && !state.pool.is_cleaning_due() {
            return Ok((state, false));
        }
        state.wants_cleaning = false;
        let begun = state.pool.begin_clean(CLEAN_ENTRIES);
        let batch = match begun {
            Ok((batch, _)) => batch,
            // No room for copies: reads go on, and writes are refused.
            Err(StoreError::Full) => return Ok((state, false)),
            Err(error) => return Err(error),
        };
        drop(state);
        let done = batch.write_back().and_then(|()| batch.fence());
        state = self.shard.lock();
        let cleaned = state.pool.end_clean(batch, done)?;
        if cleaned == Cleaned::Done {
            state.used_after_cleaning = state.pool.log_bytes().0;
        }
        Ok((state, cleaned == Cleaned::Going))
    }

    /// Gives up what did not come in time, or whose client is gone, once it was looked at after that.
    fn give_up_late(&self, state: &mut State<M>, now: Time) {
        let tickets = state.tickets.iter();
        // By sequence, which is by age but for those that were asked for since.
        let late = tickets.take_while(|(_, ticket)| now.since(ticket.since) > self.patience);
        let mut over: Vec<u64> = late
            .map(|(sequence, _)| *sequence)
            .take(GROUP_MAX)
            .collect();
        for client in std::mem::take(&mut state.gone) {
            let Some(book) = state.books.get(&client) else {
                continue;
            };
            over.extend(&book.waiting);
            match book.waiting.is_empty() {
                true => drop(state.books.remove(&client)),
                false => state.gone.push(client),
            }
        }
        for sequence in over {
            match state.tickets.get_mut(&sequence) {
                Some(ticket) if !ticket.is_tried => {
                    ticket.is_tried = true;
                    state.wanted.push(sequence);
                }
                _ => self.refuse(state, sequence),
            }
        }
    }

    fn refuse(&self, state: &mut State<M>, sequence: u64) {
        let client = state.tickets.get(&sequence).map(|ticket| ticket.client);
        let waiters = state.give_up(sequence);
        self.tell(waiters, &Answer::Refused(Refusal::Incomplete), sequence);
        if let Some(client) = client {
            self.tell_synced(state, client);
        }
    }

    fn tell(&self, waiters: Vec<Waiter>, answer: &Answer, sequence: u64) {
        for waiter in waiters {
            self.outboxes.answer(waiter, answer, sequence);
        }
    }

    fn tell_synced(&self, state: &mut State<M>, client: cenote_fabric::ClientId) {
        for (waiter, lost) in state.take_synced(client) {
            self.outboxes.answer(waiter, &Answer::Synced { lost }, 0);
        }
    }
}
