//! One shard of a served store: its pool, who waits for which version, and what each request does.
//!
//! Server threads hold the lock for as long as it takes to append a header, or to copy a short value that
//! is read. What waits for the medium is
//! the persister's, in `persister.rs`, which takes the lock before and after. Lock order: a shard, then a
//! landing, then an outbox.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use cenote_fabric::{ClientId, PeerId, Time};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Figures;
use super::arrival::Arrival;
use super::books::{Books, Closed, Waiter};
use super::job::{Jobs, job_of};
use super::outbox::Outboxes;
use crate::landing::Area;
use crate::medium::Medium;
use crate::pool::{
    Allocation, Condition, Located, Pool, Source, StoreError, Version, VersionLocation, hash,
};
use crate::protocol::{Answer, INLINE_BYTES_MAX, Refusal, Request, is_possible_value};
use crate::schemes::{Durable, PutStep, Scheme};

pub(super) struct State<M> {
    pub pool: Pool<M>,
    pub books: Books,
    pub jobs: Jobs,
    /// Versions that waiters wait for.
    pub wanted: BTreeSet<u64>,
    pub wants_cleaning: bool,
    /// A client's landing fills up.
    pub wants_room: bool,
    /// Bytes of the log in use when it was last cleaned; 0: not known.
    pub used_after_cleaning: u64,
    /// Deletions since then, and versions that were given up: about so many entries of the index lead to
    /// nothing.
    pub emptied: u64,
    /// Copies that cleaning makes find no room, or it may not begin.
    pub is_cleaning_stuck: bool,
    /// It may not begin: clients may still write where it would copy to.
    pub is_cleaning_fenced: bool,
    pub is_stopping: bool,
    /// What the medium said to the fence that the persister began.
    pub fenced: Option<io::Result<()>>,
    /// Bytes of values and keys that were put.
    pub put_bytes: u64,
}

/// A pool and its books.
pub(super) struct Shard<M> {
    state: Mutex<State<M>>,
    /// There is something for the persister.
    pub work: Condvar,
    pub scheme: Arc<dyn Scheme>,
    pub medium: Arc<M>,
    pub outboxes: Arc<Outboxes>,
    number: u16,
}

/// What a request comes to.
pub(super) enum Reply {
    Now(Answer),
    Later,
}

impl<M: Medium> Shard<M> {
    pub fn new(
        mut pool: Pool<M>,
        scheme: &Arc<dyn Scheme>,
        outboxes: Arc<Outboxes>,
        number: u16,
    ) -> Self {
        pool.name_versions(scheme.named());
        let medium = Arc::clone(pool.medium());
        let emptied = pool.empty_keys_at_open();
        Self {
            state: Mutex::new(State {
                pool,
                books: Books::default(),
                jobs: Jobs::default(),
                wanted: BTreeSet::new(),
                wants_cleaning: false,
                wants_room: false,
                used_after_cleaning: 0,
                emptied,
                is_cleaning_stuck: false,
                is_cleaning_fenced: false,
                is_stopping: false,
                fenced: None,
                put_bytes: 0,
            }),
            work: Condvar::new(),
            scheme: Arc::clone(scheme),
            medium,
            outboxes,
            number,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock()
    }

    /// How much it holds and has done.
    pub fn figures(&self) -> Figures {
        self.lock().figures(&self.medium)
    }

    /// The pool, at the end.
    pub fn into_pool(self) -> Pool<M> {
        self.state.into_inner().pool
    }

    /// Does what a request asks for.
    pub fn handle(
        &self,
        request: Request<'_>,
        client: ClientId,
        area: Option<&Arc<Area>>,
        waiter: Waiter,
        now: Time,
    ) -> Reply {
        let arrival = match request {
            Request::Put {
                condition: Condition::Always,
                key,
                value,
                ..
            } => Some(Arrival::new(key, value, area)),
            _ => None,
        };
        let mut state = self.lock();
        let answer = match (request, arrival) {
            (
                Request::Put {
                    is_durable, key, ..
                },
                Some(arrival),
            ) => state.put(self, key, arrival, is_durable, client, waiter, now),
            (request, _) => state.answer(self, request, client, area, waiter, now),
        };
        if state.has_work() {
            self.work.notify_one();
        }
        match answer {
            Some(answer) => Reply::Now(answer),
            None => Reply::Later,
        }
    }

    /// The newest sequence that was given with this low half: less than 2^32 are under way. 0, of which
    /// nothing is known, if there is none.
    pub fn sequence_of(&self, low: u32) -> u64 {
        let newest = self.lock().pool.next_sequence() - 1;
        newest.saturating_sub(u64::from((newest as u32).wrapping_sub(low)))
    }

    /// A client sent a notice that a version was written.
    pub fn written(&self, sequence: u64, client: ClientId, peer: PeerId, now: Time) -> Reply {
        let waiter = Waiter::notice(peer, self.number, now);
        let request = Request::Settle {
            shard: self.number,
            sequence,
        };
        self.handle(request, client, None, waiter, now)
    }

    /// What a client that is gone has not written it never will.
    pub fn client_gone(&self, client: ClientId) {
        let mut state = self.lock();
        state.books.client_gone(client);
        self.work.notify_one();
    }

    /// Whether nothing of a client waits up to this version: the landing of those is not needed any more.
    pub fn is_done_with(&self, client: ClientId, last: u64) -> bool {
        self.lock().books.is_done_with(client, last)
    }

    /// Waits in the fence that the persister began.
    pub fn end_fence(&self) {
        let fenced = self.medium.end_fence();
        self.lock().fenced = Some(fenced);
        self.work.notify_one();
    }

    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.work.notify_one();
    }
}

impl<M: Medium> State<M> {
    fn figures(&self, medium: &M) -> Figures {
        Figures {
            backlog: self.pool.backlog() as u64,
            log_bytes: self.pool.log_bytes(),
            put_bytes: self.put_bytes,
            written_bytes: medium.written_bytes(),
            is_cleaning: self.pool.is_cleaning(),
        }
    }

    pub fn has_work(&self) -> bool {
        !self.jobs.is_empty()
            || !self.wanted.is_empty()
            || self.wants_cleaning
            || self.is_stopping
            || self.pool.is_lease_short()
            || self.books.has_gone()
    }

    /// Whether something came since the persister began its turn that it can do at once.
    pub fn has_news(&self) -> bool {
        !self.jobs.is_empty()
            || !self.wanted.is_empty()
            || self.wants_cleaning
            || self.wants_room
            || self.fenced.is_some()
    }

    fn answer(
        &mut self,
        shard: &Shard<M>,
        request: Request<'_>,
        client: ClientId,
        area: Option<&Arc<Area>>,
        waiter: Waiter,
        now: Time,
    ) -> Option<Answer> {
        match request {
            Request::Space {
                condition: Condition::Always,
                value_bytes,
                checksum,
                key,
            } => self.give_space(shard, key, value_bytes, checksum, client, area, now),
            Request::Delete {
                condition: Condition::Always,
                key,
            } => self.delete(shard, key, client, waiter, now),
            Request::Locate { key } => self.locate(shard, key, false, client, waiter, now),
            Request::Get { key } => self.locate(shard, key, true, client, waiter, now),
            Request::Settle { sequence, .. } => self.settle(shard, sequence, client, waiter, now),
            Request::Sync { .. } => self.sync(client, waiter),
            Request::List { slot, prefix, .. } => Some(self.list(slot, prefix)),
            Request::Clean { .. } => {
                self.wants_cleaning |= self.is_worth_cleaning();
                Some(Answer::Done { sequence: 0 })
            }
            Request::Figures { .. } => Some(Answer::Figures(self.figures(&shard.medium))),
            conditional => self.wait_for_persister(conditional, client, area, waiter, now),
        }
    }

    fn wait_for_persister(
        &mut self,
        request: Request<'_>,
        client: ClientId,
        area: Option<&Arc<Area>>,
        waiter: Waiter,
        now: Time,
    ) -> Option<Answer> {
        let next_sequence = self.pool.next_sequence();
        let newest = match request {
            Request::Locate { key } => self.pool.newest_waiting(key),
            _ => None,
        };
        let job = job_of(request, client, area, waiter, next_sequence, newest, now);
        let is_taken = self.jobs.add(job);
        (!is_taken).then_some(Answer::Refused(Refusal::Busy))
    }

    #[expect(clippy::too_many_arguments, reason = "the request's own fields")]
    pub fn give_space(
        &mut self,
        shard: &Shard<M>,
        key: &[u8],
        value_bytes: u32,
        checksum: u32,
        client: ClientId,
        area: Option<&Arc<Area>>,
        now: Time,
    ) -> Option<Answer> {
        if !shard.scheme.put_steps().contains(&PutStep::CallForSpace) {
            return Some(Answer::Refused(Refusal::Scheme));
        }
        if !self.books.has_room_for(client) {
            return Some(Answer::Refused(Refusal::Busy));
        }
        let lands_beside = shard.scheme.lands_beside_log();
        let slot = match area {
            _ if !is_possible_value(value_bytes) => {
                return Some(Answer::Refused(Refusal::Value));
            }
            // A landing that is empty and too small is so for ever.
            Some(area) if lands_beside && u64::from(value_bytes) > area.region().len_bytes() => {
                return Some(Answer::Refused(Refusal::Value));
            }
            Some(area) if lands_beside => {
                let slot = area.take(value_bytes);
                if slot.is_none() || area.is_short() {
                    self.want_room(shard);
                }
                if slot.is_none() {
                    return Some(Answer::Refused(Refusal::Busy));
                }
                slot
            }
            None if lands_beside => return Some(Answer::Refused(Refusal::Busy)),
            _ => None,
        };
        let offset = slot.as_ref().map(|slot| slot.offset);
        let source = match slot {
            Some(slot) => Source::Landing(Box::new(slot)),
            None => Source::Log,
        };
        let always = Condition::Always;
        let given = self
            .pool
            .allocate(key, value_bytes as usize, checksum, source, always);
        Some(match given {
            Ok(given) => {
                self.books.open(given.sequence, client, Vec::new(), now);
                self.put_bytes += key.len() as u64 + u64::from(value_bytes);
                Answer::Space {
                    sequence: given.sequence,
                    shard: shard.number,
                    offset: offset.unwrap_or(given.value_at),
                }
            }
            Err(error) => self.refuse_value(key, value_bytes as usize, &error),
        })
    }

    /// The persister is to copy values out of landings.
    fn want_room(&mut self, shard: &Shard<M>) {
        if !self.wants_room {
            self.wants_room = true;
            shard.work.notify_one();
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the request's own fields")]
    pub fn put(
        &mut self,
        shard: &Shard<M>,
        key: &[u8],
        arrival: Arrival,
        is_durable: bool,
        client: ClientId,
        waiter: Waiter,
        now: Time,
    ) -> Option<Answer> {
        let Arrival {
            value_bytes,
            checksum,
            source,
            is_short,
        } = arrival;
        if is_short {
            self.want_room(shard);
        }
        let Some(source) = source.filter(|_| self.books.has_room_for(client)) else {
            return Some(Answer::Refused(Refusal::Busy));
        };
        let always = Condition::Always;
        let given = match self
            .pool
            .allocate(key, value_bytes, checksum, source, always)
        {
            Ok(given) => given,
            Err(error) => return Some(self.refuse_value(key, value_bytes, &error)),
        };
        self.put_bytes += (key.len() + value_bytes) as u64;
        let waits = is_durable || shard.scheme.durable() == Durable::BeforeAck;
        self.end_put(shard, given, waits, client, waiter, now)
    }

    pub fn delete(
        &mut self,
        shard: &Shard<M>,
        key: &[u8],
        client: ClientId,
        waiter: Waiter,
        now: Time,
    ) -> Option<Answer> {
        if !self.books.has_room_for(client) {
            return Some(Answer::Refused(Refusal::Busy));
        }
        match self.pool.begin_delete(key, Condition::Always) {
            Ok(given) => {
                self.emptied += 1;
                self.end_put(shard, given, true, client, waiter, now)
            }
            Err(error) => Some(self.refuse_deletion(key, &error)),
        }
    }

    /// A version whose value is here: told at once, or when it is durable.
    fn end_put(
        &mut self,
        shard: &Shard<M>,
        given: Allocation,
        waits: bool,
        client: ClientId,
        waiter: Waiter,
        now: Time,
    ) -> Option<Answer> {
        let sequence = given.sequence;
        if !waits {
            self.books.open(given.sequence, client, Vec::new(), now);
            return Some(Answer::Done { sequence });
        }
        if shard.medium.is_quick() && !self.pool.is_busy() {
            return Some(match self.pool.settle(&[sequence]) {
                Ok(_) => Answer::Done { sequence },
                Err(error) => Answer::Refused(self.refuse(&error)),
            });
        }
        self.books.open(given.sequence, client, vec![waiter], now);
        self.wanted.insert(sequence);
        None
    }

    /// Where the newest version is, or, if the client wants that and it is short, its value.
    fn locate(
        &mut self,
        shard: &Shard<M>,
        key: &[u8],
        wants_value: bool,
        client: ClientId,
        waiter: Waiter,
        now: Time,
    ) -> Option<Answer> {
        let is_quick = shard.medium.is_quick() && !self.pool.is_busy();
        let place = match self.pool.locate(key, u64::MAX) {
            Ok(Located::Durable(place)) => Ok(Some(place)),
            Ok(Located::Absent) => Ok(None),
            Ok(Located::Waiting(_)) if is_quick => self.settle_newest(shard, key),
            Ok(Located::Waiting(_)) => {
                let request = Request::Locate { key };
                return self.wait_for_persister(request, client, None, waiter, now);
            }
            Err(error) => Err(error),
        };
        Some(match place {
            Ok(Some(place)) => {
                if shard.scheme.verifies_each_read() && !self.pool.is_right(place) {
                    return Some(Answer::Refused(Refusal::Incomplete));
                }
                match wants_value && place.value_bytes as usize <= INLINE_BYTES_MAX {
                    true => value_answer(self.pool.version(place)),
                    false => place_answer(place),
                }
            }
            Ok(None) => Answer::Absent,
            Err(error) => Answer::Refused(self.refuse(&error)),
        })
    }

    /// Makes the newest version durable whose value is whole.
    fn settle_newest(
        &mut self,
        shard: &Shard<M>,
        key: &[u8],
    ) -> Result<Option<VersionLocation>, StoreError> {
        let mut below = u64::MAX;
        loop {
            match self.pool.locate(key, below)? {
                Located::Absent => return Ok(None),
                Located::Durable(place) => return Ok(Some(place)),
                Located::Waiting(sequence) => match self.pool.settle(&[sequence])? {
                    0 => below = sequence,
                    _ => self.is_stored(&shard.outboxes, sequence),
                },
            }
        }
    }

    fn settle(
        &mut self,
        shard: &Shard<M>,
        sequence: u64,
        client: ClientId,
        waiter: Waiter,
        now: Time,
    ) -> Option<Answer> {
        if sequence >= self.pool.next_sequence() {
            // Nobody was given it, and it is not to be told as durable.
            return Some(Answer::Refused(Refusal::Incomplete));
        }
        if let Err(answer) = self.books.claim(sequence, client, now) {
            return Some(answer);
        }
        if shard.medium.is_quick() && !self.pool.is_busy() {
            return Some(match self.pool.settle(&[sequence]) {
                Ok(0) => {
                    self.give_up(&shard.outboxes, sequence);
                    Answer::Refused(Refusal::Incomplete)
                }
                Ok(_) => {
                    self.is_stored(&shard.outboxes, sequence);
                    Answer::Done { sequence }
                }
                Err(error) => Answer::Refused(self.refuse(&error)),
            });
        }
        self.books.wait(sequence, waiter);
        self.wanted.insert(sequence);
        None
    }

    fn sync(&mut self, client: ClientId, waiter: Waiter) -> Option<Answer> {
        if !self.books.may_sync(client) {
            return Some(Answer::Refused(Refusal::Busy));
        }
        match self.books.sync(client, waiter) {
            Ok(last) => {
                self.wanted.insert(last);
                None
            }
            Err(lost) => Some(Answer::Synced { lost }),
        }
    }

    /// A version is durable: who waits for that is told.
    pub fn is_stored(&mut self, outboxes: &Outboxes, sequence: u64) {
        let closed = self.books.close(sequence);
        self.tell(outboxes, closed, &Answer::Done { sequence }, sequence);
    }

    /// A version's value did not come, or is another: who waits for it is told.
    pub fn give_up(&mut self, outboxes: &Outboxes, sequence: u64) {
        self.emptied += u64::from(self.pool.give_up(sequence));
        let closed = self.books.give_up(sequence, false);
        let refused = Answer::Refused(Refusal::Incomplete);
        self.tell(outboxes, closed, &refused, sequence);
    }

    /// Cleaning gives up what waits behind a newer version: who waits for one is told.
    pub fn tell_of_cleaned(&mut self, outboxes: &Outboxes) {
        let pool = &self.pool;
        for sequence in self.books.without(|sequence| pool.is_space_of(sequence)) {
            let closed = self.books.give_up(sequence, true);
            self.tell(
                outboxes,
                closed,
                &Answer::Refused(Refusal::Incomplete),
                sequence,
            );
        }
    }

    /// Tells who waited for a version, and who waited for all of its client's.
    fn tell(
        &mut self,
        outboxes: &Outboxes,
        closed: Option<Closed>,
        answer: &Answer,
        sequence: u64,
    ) {
        let Some(Closed {
            client, waiters, ..
        }) = closed
        else {
            return;
        };
        for waiter in waiters {
            outboxes.answer(waiter, answer, sequence);
        }
        for (waiter, lost) in self.books.take_synced(client) {
            outboxes.answer(waiter, &Answer::Synced { lost }, 0);
        }
    }
}

pub(super) fn place_answer(place: VersionLocation) -> Answer {
    Answer::Place {
        sequence: place.sequence,
        word: place.word,
    }
}

fn value_answer(version: Version) -> Answer {
    let Version { sequence, value } = version;
    Answer::Value { sequence, value }
}

/// Which of a store's shards a key is in; `seed` is of their hashes.
#[must_use]
pub fn shard_of(seed: u64, key: &[u8], count: usize) -> usize {
    (hash(seed, key) >> 48) as usize % count
}
