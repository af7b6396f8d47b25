//! The thread that makes a shard's versions durable, answers what waits for that, and cleans the log.
//!
//! What waits when a group begins shares one fence. A disk's fence is waited for by a thread of its own
//! (`fence.rs`): meanwhile this one copies values out of their landings, so that clients have room for
//! more, and what was copied is the next group. Values that clients write one-sided come without a word, so
//! it looks for them: at once while some come, and more and more rarely while none do.

mod flights;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::Time;
use parking_lot::MutexGuard;

use super::arrival::Arrival;
use super::books::CLIENT_VERSIONS_MAX;
use super::fence::Fencer;
use super::job::{Job, JobKind, Walks};
use super::shard::{Shard, State, place_answer};
use crate::medium::Medium;
use crate::pool::{Cleaned, Condition, Located, StoreError};
use crate::protocol::{Answer, Refusal};
use crate::schemes::Durable;
use flights::Flight;

/// Most versions that are looked at in a turn, and of a group that nobody waits for.
const VERSIONS_MAX: usize = 1024;
/// Versions whose books are kept at once: then whoever waits for the shard has it first.
const BOOKED_AT_ONCE: usize = 64;
/// Of their values, bytes that are copied in a turn: those who wait for the fence wait for that as well.
const TAKEN_BYTES: u64 = 1 << 20;
/// Bytes of the values of a disk's group that nobody waits for: who comes next waits for its fence.
const GROUP_BYTES: u64 = 4 << 20;
/// The same beside values that somebody waits for.
const BESIDE_BYTES: u64 = 1 << 20;
/// Bytes of the values before copies that go with these.
const BEFORE_BYTES: u64 = 8 * GROUP_BYTES;
/// Entries of the index that are cleaned between two groups, and at once: then whoever waits for the shard
/// has it first.
const CLEAN_ENTRIES: (usize, usize) = (1024, 64);
/// Under schemes that make nothing durable on their own, so many versions may wait; then some are.
const LAZY_BACKLOG_MAX: usize = 32_768;
const _: () = assert!(LAZY_BACKLOG_MAX < CLIENT_VERSIONS_MAX);
/// How long a disk's fences wait for more, while nobody waits for them.
const LINGER: Duration = Duration::from_millis(5);
/// The shortest and the longest time between two looks for values.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(20));

/// The thread's own.
pub(super) struct Persister<M> {
    pub shard: Arc<Shard<M>>,
    /// How long a value may take to come.
    pub patience: Duration,
    /// Requests that wait for versions.
    jobs: Vec<Job>,
    /// Versions that somebody waits for, and the looks that there had been when the last of these came.
    awaited: BTreeMap<u64, u64>,
    /// How often values were looked at. What a look found says nothing to who came after it had begun: the
    /// value may be there since.
    looks: u64,
    /// The group that waits for its fence.
    flight: Option<Flight<M>>,
    /// The group behind it, written back while that one waits: its fence begins when the other's is over,
    /// so that the disk does not wait for books to be kept.
    next: Option<Flight<M>>,
    /// When the last one began to.
    fenced: Time,
    /// As many versions were in it as may be: more are waiting.
    was_full: bool,
    /// Somebody asked for the log to be cleaned, and that has not begun.
    is_asked_to_clean: bool,
    /// Versions that were looked at in turn since one was whole: as many as wait are all of them.
    passed_over: usize,
}

/// What came of one turn.
#[derive(Debug, Default)]
pub(super) struct Turned {
    /// Versions that are durable.
    settled: usize,
    /// Values that were copied.
    taken: usize,
    /// There is more to copy, or to clean, at once.
    is_more: bool,
}

type Guard<'a, M> = MutexGuard<'a, State<M>>;

impl<M: Medium> Persister<M> {
    pub fn new(shard: Arc<Shard<M>>, patience: Duration) -> Self {
        Self {
            shard,
            patience,
            jobs: Vec::new(),
            awaited: BTreeMap::new(),
            looks: 0,
            flight: None,
            next: None,
            fenced: Time::default(),
            was_full: false,
            is_asked_to_clean: false,
            passed_over: 0,
        }
    }

    /// Until the store stops and all that is whole is durable.
    ///
    /// # Errors
    /// The medium's: the store ends.
    pub fn run(mut self) -> Result<(), StoreError> {
        let shard = Arc::clone(&self.shard);
        std::thread::scope(|scope| self.run_beside(&shard, &Fencer::start(scope, &shard)))
    }

    fn run_beside(&mut self, shard: &Shard<M>, fencer: &Fencer) -> Result<(), StoreError> {
        let mut pause = LOOK_EVERY.0;
        let mut state = shard.lock();
        loop {
            let is_stopping = state.is_stopping;
            let turned;
            (state, turned) = self.turn(shard, state, fencer, Time::now())?;
            let is_idle = turned.settled + turned.taken == 0;
            // What was looked at before the end may be whole by then.
            if !is_idle || !is_stopping {
                self.passed_over = 0;
            }
            if !is_idle || turned.is_more {
                pause = LOOK_EVERY.0;
            }
            if is_stopping && self.flight.is_none() {
                if is_idle && self.passed_over >= state.pool.backlog() {
                    return Ok(());
                }
                continue;
            }
            if turned.is_more || state.has_news() || state.is_stopping != is_stopping {
                continue;
            }
            let looks = self.is_eager(&state) && state.pool.backlog() > 0;
            let wait = match (looks, shard.medium.is_quick()) {
                (false, _) => Duration::from_millis(100),
                (true, true) if turned.settled > 0 => continue,
                (true, true) => pause,
                (true, false) => pause.max(LINGER),
            };
            pause = (pause * 2).min(LOOK_EVERY.1);
            shard.work.wait_for(&mut state, wait);
        }
    }

    /// Whether a group waits for its fence.
    pub fn is_in_fence(&self) -> bool {
        self.flight.is_some()
    }

    /// Looks for values, makes one group durable or begins to, answers who waited, and cleans one batch.
    ///
    /// # Errors
    /// The medium's.
    pub fn turn<'a>(
        &mut self,
        shard: &'a Shard<M>,
        mut state: Guard<'a, M>,
        fencer: &Fencer,
        now: Time,
    ) -> Result<(Guard<'a, M>, Turned), StoreError> {
        state.pool.check_whole()?;
        let mut turned = Turned::default();
        // First: who asks for what was in that group is looked at again.
        (state, turned.settled) = self.land_if_over(shard, state, fencer, now)?;
        let looks = self.looks;
        let jobs = state.jobs.take().into_iter();
        self.jobs.extend(jobs.map(|job| Job { looks, ..job }));
        self.do_jobs(&mut state, now);
        let wanted = std::mem::take(&mut state.wanted).into_iter();
        let wanted = wanted.map(|sequence| (sequence, looks));
        let mut walks = Walks::default();
        let awaits = |job: &Job| Some((job.awaits(&state.pool, &mut walks)?, job.looks));
        for (sequence, since) in self.jobs.iter().filter_map(awaits).chain(wanted) {
            let newest = self.awaited.entry(sequence).or_insert(since);
            *newest = since.max(*newest);
        }
        let is_over = |sequence: &u64, _: &mut u64| !state.pool.is_space_of(*sequence);
        let over: Vec<_> = self.awaited.extract_if(.., is_over).collect();
        for (sequence, _) in over {
            // Who waits for it was told when it was made durable; if not, it was not.
            state.give_up(&shard.outboxes, sequence);
        }
        if shard.medium.is_quick() || self.is_due(&state, now) {
            state = self.begin(shard, state, fencer, now)?;
        } else {
            if state.wants_room {
                state = self.take(shard, state, &mut turned, now);
            }
            state = self.begin_next(shard, state)?;
        }
        if state.fenced.is_some() {
            let settled;
            (state, settled) = self.land_if_over(shard, state, fencer, now)?;
            turned.settled += settled;
            turned.is_more |= !self.jobs.is_empty();
        }
        let is_more;
        (state, is_more) = self.clean(shard, state, now)?;
        turned.is_more |= is_more;
        self.look_at_late(&mut state, now);
        Ok((state, turned))
    }

    /// Whether all versions are to be durable soon, not those alone that somebody waits for.
    fn is_eager(&self, state: &State<M>) -> bool {
        self.shard.scheme.durable() == Durable::InBackground
            || state.is_stopping
            || state.books.has_syncs()
            || state.pool.backlog() > LAZY_BACKLOG_MAX
    }

    /// Whether a disk's next group may begin: one at a time, and not at once if nobody waits for it.
    fn is_due(&self, state: &State<M>, now: Time) -> bool {
        let is_awaited = !self.awaited.is_empty() || state.is_stopping || state.books.has_syncs();
        let is_large = || state.pool.oldest_taken(VERSIONS_MAX, GROUP_BYTES).len();
        self.flight.is_none()
            && (is_awaited
                || self.was_full
                || now.since(self.fenced) >= LINGER
                || is_large() < state.pool.taken_count())
    }

    /// Adds those that wait for their values to some that have them, in turn, and all that somebody waits
    /// for. Whether there is room for the former.
    fn fill_up(&mut self, state: &mut State<M>, chosen: &mut Vec<u64>, bytes: u64) -> bool {
        let count = match self.is_eager(state) {
            true => state.pool.fill_up(chosen, VERSIONS_MAX, bytes),
            false => Some(0),
        };
        self.passed_over += count.unwrap_or(0);
        chosen.extend(self.awaited.keys());
        count.is_some()
    }

    /// Copies values out of their landings, ahead of their group.
    fn take<'a>(
        &mut self,
        shard: &'a Shard<M>,
        mut state: Guard<'a, M>,
        turned: &mut Turned,
        now: Time,
    ) -> Guard<'a, M> {
        let mut chosen = Vec::new();
        self.fill_up(&mut state, &mut chosen, TAKEN_BYTES);
        self.looks += 1;
        let chosen = in_order(chosen);
        let decided = state.books.decided_of(&chosen);
        let mut taking = state.pool.begin_taking(&chosen);
        let (count, bytes) = taking.size();
        if count > 0 {
            drop(state);
            taking.copy();
            state = shard.lock();
        }
        let waiting = state.pool.end_taking(taking);
        turned.taken = count - waiting.len();
        turned.is_more = turned.taken > 0 && (count >= VERSIONS_MAX || bytes >= TAKEN_BYTES);
        state.wants_room = turned.is_more;
        self.pass_over(&mut state, &waiting, &decided, self.looks);
        self.do_jobs(&mut state, now);
        state
    }

    /// Versions whose values turned out not to be whole in a look: who came before it waits for them no
    /// more. `decided`: it is their last.
    fn pass_over(
        &mut self,
        state: &mut State<M>,
        waiting: &[u64],
        decided: &BTreeSet<u64>,
        look: u64,
    ) {
        let mut walks = Walks::default();
        for job in self.jobs.iter_mut().filter(|job| job.looks < look) {
            job.pass_over(&state.pool, waiting, &mut walks);
        }
        for sequence in waiting {
            if self
                .awaited
                .get(sequence)
                .is_some_and(|since| *since < look)
            {
                self.awaited.remove(sequence);
            }
            if decided.contains(sequence) {
                state.give_up(&self.shard.outboxes, *sequence);
            }
        }
    }

    /// Does those jobs that wait for nothing any more.
    fn do_jobs(&mut self, state: &mut Guard<'_, M>, now: Time) {
        let mut left = Vec::new();
        let mut walks = Walks::default();
        for (number, job) in std::mem::take(&mut self.jobs).into_iter().enumerate() {
            if number % BOOKED_AT_ONCE == BOOKED_AT_ONCE - 1 {
                MutexGuard::bump(state);
                walks = Walks::default();
            }
            let awaited = job.awaits(&state.pool, &mut walks);
            if awaited.is_some() && !job.is_tried() {
                left.push(job);
                continue;
            }
            state.jobs.end(&job);
            if awaited.is_some() {
                // What is on its way may be the newest version by now. A change that is made of one
                // version asks again until that is there, or given up.
                let busy = Answer::Refused(Refusal::Busy);
                self.shard.outboxes.answer(job.waiter, &busy, 0);
                continue;
            }
            let next = state.pool.next_sequence();
            let located = match job.refused_by(&state.pool, &mut walks) {
                Some(newest) => Ok(Located::Durable(newest)),
                None => walks.locate(&state.pool, &job.key, job.below),
            };
            let answer = match located {
                // None that is named is awaited no more.
                Ok(Located::Waiting(_)) => Some(Answer::Refused(Refusal::Busy)),
                Ok(Located::Durable(place)) => self.do_job(state, &job, Some(place), now),
                Ok(Located::Absent) => self.do_job(state, &job, None, now),
                Err(error) => Some(Answer::Refused(state.refuse(&error))),
            };
            if state.pool.next_sequence() != next {
                walks = Walks::default();
            }
            if let Some(answer) = answer {
                self.shard.outboxes.answer(job.waiter, &answer, 0);
            }
        }
        self.jobs = left;
    }

    /// Does a job now that the key's newest version is known.
    fn do_job(
        &self,
        state: &mut State<M>,
        job: &Job,
        newest: Option<crate::pool::VersionLocation>,
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
                // Its client counts from its call, and the turn may have begun before that.
                now.max(job.since),
            ),
            JobKind::Put {
                is_durable, value, ..
            } => state.put(
                shard,
                &job.key,
                // Its memory is the job's, of which there are few.
                Arrival::new(&job.key, value, None),
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
        &mut self,
        shard: &'a Shard<M>,
        mut state: Guard<'a, M>,
        now: Time,
    ) -> Result<(Guard<'a, M>, bool), StoreError> {
        self.is_asked_to_clean |= std::mem::take(&mut state.wants_cleaning);
        if !self.is_asked_to_clean && !state.is_cleaning_due() && !state.is_cleaning_fenced {
            return Ok((state, false));
        }
        self.fence_cleaning(&mut state);
        if state.is_cleaning_fenced {
            return Ok((state, false));
        }
        if !state.pool.is_cleaning() {
            state.emptied = 0;
        }
        // Another record may be on its way: then it is asked for until it has begun.
        self.is_asked_to_clean &= state.pool.is_recording();
        let begun = state.pool.begin_clean(CLEAN_ENTRIES.1);
        // No room for copies: reads go on, and writes are refused.
        state.is_cleaning_stuck = matches!(begun, Err(StoreError::Full));
        let (mut batch, mut looked_at) = match begun {
            Ok(begun) => begun,
            Err(StoreError::Full) => return Ok((state, false)),
            Err(error) => return Err(error),
        };
        let (bytes, bytes_before) = match self.awaited.is_empty() {
            true => (GROUP_BYTES, BEFORE_BYTES),
            false => (BESIDE_BYTES, BESIDE_BYTES),
        };
        // Many at once: their fence has the headers of all versions before them written.
        while batch.has_copies() && batch.bytes() < bytes && looked_at < CLEAN_ENTRIES.0 {
            MutexGuard::bump(&mut state);
            match state.pool.add_copies(&mut batch, CLEAN_ENTRIES.1)? {
                0 => break,
                more => looked_at += more,
            }
        }
        let has_shared_blocks = batch.has_copies() && !shard.medium.is_quick();
        let mut flight = has_shared_blocks.then(|| self.gather_before(&mut state, bytes_before));
        drop(state);
        let written = flight.as_mut().map_or(Ok(()), |one| one.group.write_back());
        let written = written.and_then(|()| batch.write_back());
        let done = written.and_then(|()| batch.fence());
        state = shard.lock();
        if let Some(over) = flight.filter(|_| done.is_ok()) {
            self.land(&mut state, over, Ok(()), now)?;
        }
        while done.is_ok() && batch.has_copies() {
            state.pool.end_copies(&mut batch, BOOKED_AT_ONCE)?;
            MutexGuard::bump(&mut state);
        }
        let cleaned = state.pool.end_clean(batch, done)?;
        if cleaned == Cleaned::Done {
            state.used_after_cleaning = state.pool.log_bytes().0;
            state.tell_of_cleaned(&shard.outboxes);
        }
        Ok((state, cleaned == Cleaned::Going))
    }

    /// Where clients write to the log, a place is not for other versions while the client of one that was given
    /// up may still write there: cleaning, which has places used again, begins once that client says that it
    /// has written, or is gone.
    fn fence_cleaning(&self, state: &mut State<M>) {
        let writers = match self.shard.scheme.lands_beside_log() || state.pool.is_cleaning() {
            true => 0,
            false => state.books.late_writers(),
        };
        let was_fenced = std::mem::replace(&mut state.is_cleaning_fenced, writers > 0);
        state.is_cleaning_stuck |= writers > 0;
        if writers > 0 && !was_fenced {
            tracing::warn!(
                writers,
                "the log is not cleaned: clients may still write values that were given up"
            );
        }
    }

    /// Has what did not come in time, or whose client is gone, looked at once more: what is not whole then
    /// is given up.
    fn look_at_late(&self, state: &mut State<M>, now: Time) {
        let late = (state.books).newly_late(self.patience, VERSIONS_MAX, now);
        state.wanted.extend(late);
    }
}

/// Sequences once each, ascending.
fn in_order(mut sequences: Vec<u64>) -> Vec<u64> {
    sequences.sort_unstable();
    sequences.dedup();
    sequences
}
