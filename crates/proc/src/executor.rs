//! What becomes of requests on one server thread.
//!
//! Events come in by `handle_*`, steps are taken by [`Executor::run`], and
//! [`Executor::poll_action`] says what to send. A request that needs bytes of another machine is
//! INACTIVE: parked with its state alone until they are here (DFlow), or it goes there (FFlow).
//!
//! Regions move meanwhile. Everything that names a region names its generation as well: the machine
//! that had it forwards what is stale once, to the owner that it knows, and refuses it otherwise;
//! who is refused waits for the word about the new owner and asks again (R2, R3).
//! Where a cache has two copies, what a step stored has to be in both before it ends (`commits`).
//! Pure, but for a look at the clock behind what counts until some time; only the [`Shelf`] of
//! requests that wait to be run is shared, so that idle threads can help.
//! Paper: `[compucache]` Execution, Migration with forwarding.

mod accounts;
mod commits;
mod doubts;
mod inactive_requests;
mod moves;
mod shelf;
mod suspects;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_proc_sdk::Memory as _;
use foldhash::HashMap;

use crate::injected_faults::{self, InjectedFault};
use crate::message::{Data, Fetch, Moved, Need, Refused, Replicate};
use crate::service::WriteState;
use crate::table::Clock;
use crate::{
    CacheId, ClientId, Life, Machine, Outcome, RegionLocation, Request, Response, Slot, Status,
    Stores, Table, Trap,
};
use accounts::Accounts;
pub use commits::Delivery;
use commits::{Commits, Hold};
use doubts::Doubted;
use inactive_requests::{Parked, Wait, Waiting};
use shelf::Lanes;
pub use shelf::{Ready, Shelf};
use suspects::Suspect;

/// Runs steps of procedures.
pub trait Run {
    /// Called before some steps.
    fn begin(&mut self) {}

    /// Takes one step on the bytes of `table`; `data` are what was fetched from `addr`, if
    /// anything.
    fn step(&mut self, request: &mut Request, table: &mut Table, addr: u64, data: &[u8])
    -> Outcome;
}

/// What a thread and a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests of a client that are queued or parked on a thread; more are answered `Busy`.
    pub client_requests: usize,
    /// Clients with requests on a thread; requests of more are answered `Busy`.
    pub clients: usize,
    /// Steps of a request in all, on whichever machines.
    pub steps: u32,
    /// How long a request waits for bytes, or for the word about a region.
    pub wait: Duration,
    /// How long until a machine is asked again that has not heard of its region yet.
    pub retry: Duration,
    /// Answers travel together up to so many bytes.
    pub batch_bytes: usize,
    /// Rounds that an answer waits for others at most, while its client has requests queued.
    pub batch_rounds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            client_requests: 4096,
            clients: 4096,
            steps: 1 << 20,
            wait: Duration::from_secs(10),
            retry: Duration::from_millis(1),
            batch_bytes: 4096,
            batch_rounds: 8,
        }
    }
}

/// Something to send.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A batch of answers.
    Answer {
        /// Whose.
        client: ClientId,
        /// One at least.
        responses: Vec<Response>,
    },
    /// A request that goes on elsewhere.
    Move {
        /// Where.
        to: Machine,
        /// The request.
        moved: Moved,
        /// Until when it is worth asking again if it could not be sent.
        give_up: Time,
    },
    /// A request that came here for nothing goes back.
    Refuse {
        /// Who sent it.
        to: Machine,
        /// The request.
        refused: Refused,
    },
    /// Bytes are asked for.
    Fetch {
        /// Their owner.
        to: Machine,
        /// Which.
        fetch: Fetch,
    },
    /// Bytes that were asked for.
    Data {
        /// Who asked.
        to: Machine,
        /// The bytes, or why not.
        data: Data,
    },
    /// Stores, for second copies.
    Replicate {
        /// Who has them.
        to: Machine,
        /// The stores.
        replicate: Replicate,
    },
    /// A region is doubtful: the machine's other threads are to know
    /// ([`Executor::handle_doubt`]) before anything is answered.
    Doubt {
        /// Of the cache.
        cache: CacheId,
        /// Which.
        region: usize,
        /// By which the store was sent.
        generation: u64,
        /// Of the first copy.
        life: Life,
    },
}

/// A step that was taken; by whom does not matter.
pub struct Ended {
    request: Request,
    /// `None`: it was not taken. The thread that was to run it does not know the cache, or has no
    /// time left for it.
    outcome: Option<Outcome>,
    stores: Stores,
    /// When its loads were over for certain, if it made some that count until some time alone.
    loaded_by: Option<Time>,
    /// Its end is to wait for copies.
    hold: Option<Box<Hold>>,
}

impl Ended {
    fn is_slow(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Trap(Trap::TooLong)))
    }
}

/// One server thread's requests.
pub struct Executor {
    me: Machine,
    limits: Limits,
    now: Time,
    shelf: Arc<Shelf>,
    /// The same for caches with two copies: what a step finds is on this thread alone.
    own: Lanes,
    caches: HashMap<CacheId, Table>,
    /// Who gets the requests for caches that this machine left.
    successors: HashMap<CacheId, Machine>,
    accounts: Accounts,
    parked: Parked,
    commits: HashMap<CacheId, Commits>,
    /// Messages with stores that are not answered: of which cache each is, and to whom.
    flights: HashMap<u64, (CacheId, Machine)>,
    replicates_sent: u64,
    doubts: BTreeMap<(CacheId, usize), Doubted>,
    suspects: BTreeMap<Machine, Suspect>,
    actions: VecDeque<Action>,
    round: u64,
    /// Reused between rounds.
    batch: Vec<Ready>,
    ended: Vec<Ended>,
    clock: Clock,
}

impl Executor {
    /// Of a thread of machine `me`.
    #[must_use]
    pub fn new(me: Machine, limits: Limits) -> Self {
        Self {
            me,
            limits,
            now: Time::default(),
            shelf: Arc::default(),
            own: Lanes::default(),
            caches: HashMap::default(),
            successors: HashMap::default(),
            accounts: Accounts::new(limits),
            parked: Parked::default(),
            commits: HashMap::default(),
            flights: HashMap::default(),
            replicates_sent: 0,
            doubts: BTreeMap::new(),
            suspects: BTreeMap::new(),
            actions: VecDeque::new(),
            round: 0,
            batch: Vec::new(),
            ended: Vec::new(),
            clock: Clock::default(),
        }
    }

    /// The requests that wait to be run, for threads that have none.
    #[must_use]
    pub fn shelf(&self) -> Arc<Shelf> {
        Arc::clone(&self.shelf)
    }

    /// Takes a cache in, or forgets what was known of it. Requests wait for the words that follow,
    /// but for those whose regions are no more.
    pub fn handle_cache(&mut self, cache: CacheId, mut table: Table) {
        self.abandon_commits(cache);
        if let Some(before) = self.caches.get(&cache) {
            table.succeed(before);
        }
        table.set_clock(self.clock);
        let regions = table.len();
        self.caches.insert(cache, table);
        self.tell_tables_of_suspects();
        self.successors.remove(&cache);
        for waiting in self.parked.take_for_maps_from(cache, regions) {
            self.pursue(waiting);
        }
    }

    /// Ends the use of a cache: requests for it are answered `OutOfBounds` from now on.
    pub fn handle_deleted(&mut self, cache: CacheId) {
        self.abandon_commits(cache);
        self.caches.remove(&cache);
        self.successors.remove(&cache);
        for waiting in self.parked.take_of(cache) {
            self.answer(waiting.request, Status::OutOfBounds);
        }
    }

    /// What is known of a cache here.
    #[must_use]
    pub fn table(&self, cache: CacheId) -> Option<&Table> {
        self.caches.get(&cache)
    }

    /// Requests of clients. What a client may not have under way is answered `Busy`.
    pub fn handle_requests(&mut self, requests: impl IntoIterator<Item = Request>) {
        let (accounts, actions, caches) = (&mut self.accounts, &mut self.actions, &self.caches);
        let own = &mut self.own;
        self.shelf
            .extend(requests.into_iter().filter_map(|request| {
                let table = caches.get(&request.cache);
                let status = if table.is_none() {
                    Status::OutOfBounds
                } else if !accounts.admit_queued(request.client) {
                    Status::Busy
                } else if table.is_some_and(Table::keeps_back) {
                    own.push(Ready::from(request));
                    return None;
                } else {
                    return Some(Ready::from(request));
                };
                let client = request.client;
                let responses = vec![request.into_response(status)];
                actions.push_back(Action::Answer { client, responses });
                None
            }));
    }

    /// A word about a region; what waited for it goes on. Returns whether it holds now: a newer
    /// word, or another of the same generation, is known otherwise.
    pub fn handle_map(&mut self, cache: CacheId, index: usize, mut slot: Slot) -> bool {
        self.heed_doubt(cache, index, &mut slot);
        let Some(table) = self.caches.get_mut(&cache) else {
            return false;
        };
        let is_known = table.agrees(index, &slot);
        let is_leaving = matches!(slot.place, RegionLocation::Leaving { .. });
        let is_back = slot.place.is_here() && !is_leaving;
        let is_news = table.set(index, slot);
        if is_news {
            // Steps that stored, or found stores, are taken again by what is known now.
            self.scatter(cache);
        }
        if is_news && is_back {
            self.successors.remove(&cache);
        }
        if is_news && !injected_faults::is(InjectedFault::SleepOn) {
            for waiting in self.parked.take_for_map(cache, index) {
                self.pursue(waiting);
            }
        }
        is_news || is_known
    }

    /// The owner of a cache with two copies knows that procedures here write.
    pub fn handle_permit(&mut self, cache: CacheId) {
        let Some(table) = self.caches.get_mut(&cache) else {
            return;
        };
        table.permit_writes();
        for waiting in self.parked.take_for_maps_from(cache, 0) {
            self.pursue(waiting);
        }
    }

    /// How far this thread is with writing to a cache with two copies.
    #[must_use]
    pub fn write_state(&self, cache: CacheId) -> WriteState {
        let table = self.caches.get(&cache);
        table.map_or(WriteState::Idle, Table::write_state)
    }

    /// Procedures may use a cache until then; those that were too late go on.
    pub fn handle_lease(&mut self, cache: CacheId, until: Time) {
        let Some(table) = self.caches.get_mut(&cache) else {
            return;
        };
        table.allow_writes(until);
        for waiting in self.parked.take_for_lease(cache) {
            self.pursue(waiting);
        }
    }

    /// A client does not wait for answers any more: its requests here end with the next step that does
    /// not end them. Those on other machines run on to their own limits.
    pub fn handle_client_left(&mut self, client: ClientId) {
        self.accounts.leave(client);
    }

    /// Time goes on: asks again what was too early, gives up what waited too long.
    pub fn handle_tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        for waiting in self.parked.take_overdue(self.now) {
            self.answer(waiting.request, Status::TimedOut);
        }
        for waiting in self.parked.take_retries(self.now) {
            self.pursue(waiting);
        }
        self.probe_suspects();
    }

    /// Acts on a step's end, or has it wait for copies.
    pub fn settle(&mut self, mut ended: Ended) {
        // Answers of its client do not wait for copies.
        self.accounts.unqueued(ended.request.client);
        match ended.hold.take() {
            Some(hold) => self.hold(ended, *hold),
            None => self.finish(ended),
        }
    }

    fn finish(&mut self, ended: Ended) {
        let Ended {
            request,
            outcome,
            stores,
            loaded_by,
            hold: _,
        } = ended;
        let table = self.caches.get(&request.cache);
        let outcome = match (outcome, table) {
            // It may have written, or may have read what is no more. Nothing of it is to be
            // believed, and what it wrote is not to be done again unasked.
            (Some(_), Some(table))
                if stores == Stores::InDoubt
                    || loaded_by.is_some_and(|by| table.is_stale(by))
                        && !injected_faults::is(InjectedFault::LateLoad) =>
            {
                return self.answer(request, Status::TimedOut);
            }
            // The cache was closed since, so nobody can say until when a load counted.
            (Some(_), None) if stores == Stores::InDoubt || loaded_by.is_some() => {
                return self.answer(request, Status::TimedOut);
            }
            (Some(outcome), _) => outcome,
            (None, Some(table)) if table.is_lapsing(self.now) => {
                return self.await_lease(request);
            }
            // Too much is on its way to copies.
            (None, Some(table)) if table.is_full() => return self.redo(request),
            // A thread that helped has not heard of the cache yet, no longer knows it, or leaves it
            // to this one.
            (None, Some(_)) => return self.queue(Ready::from(request)),
            (None, None) => return self.answer(request, Status::OutOfBounds),
        };
        // Where this step did not run others may have.
        let has_run = request.steps > 1;
        let is_over = match outcome {
            Outcome::Done | Outcome::Stop | Outcome::Trap(_) => true,
            Outcome::Coming => !has_run,
            _ => false,
        };
        if !is_over && request.steps >= self.limits.steps {
            return self.answer(request, Status::TooManySteps);
        }
        if !is_over && self.accounts.has_left(request.client) {
            return self.answer(request, Status::TimedOut);
        }
        match outcome {
            Outcome::Done => self.answer(request, Status::Done),
            Outcome::Stop => self.answer(request, Status::Stopped),
            // What others of its steps did is not to be done again.
            Outcome::Coming if has_run => self.await_code(request),
            Outcome::Coming => self.answer(request, Status::Busy),
            Outcome::Trap(Trap::Unknown | Trap::Denied) if has_run => {
                self.answer(request, Status::Trapped(Trap::Gone));
            }
            Outcome::Trap(trap) => self.answer(request, Status::Trapped(trap)),
            Outcome::Again => self.queue(Ready::from(request)),
            Outcome::DataNeeded { addr, size } => {
                let need = Need::Data { addr, size };
                self.need(request, need, stores);
            }
            Outcome::Forward { addr, size } => {
                let need = Need::Place { addr, size };
                self.need(request, need, stores);
            }
        }
    }

    /// What is to be sent next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Executor::handle_tick`] is due next, if nothing else comes.
    #[must_use]
    pub fn next_tick(&self) -> Option<Time> {
        let probe = self.next_probe();
        self.parked.next_time().into_iter().chain(probe).min()
    }

    /// Requests that wait to be run and that no other thread takes, or for copies.
    #[must_use]
    pub fn own(&self) -> usize {
        self.own.len() + self.commits.values().map(Commits::held).sum::<usize>()
    }

    /// Whether there are steps to take that no other thread takes.
    #[must_use]
    pub fn has_own_work(&self) -> bool {
        self.own.len() > 0
    }

    /// Requests that wait for bytes or for a word.
    #[must_use]
    pub fn inactive(&self) -> usize {
        self.parked.len()
    }

    fn queue(&mut self, ready: Ready) {
        self.accounts.queued(ready.request.client);
        self.shelve(ready);
    }

    fn shelve(&mut self, ready: Ready) {
        let table = self.caches.get(&ready.request.cache);
        match table.is_some_and(Table::keeps_back) {
            true => self.own.push(ready),
            false => self.shelf.extend([ready]),
        }
    }

    fn answer(&mut self, request: Request, status: Status) {
        let client = request.client;
        let response = request.into_response(status);
        self.accounts
            .answer(client, response, self.round, &mut self.actions);
    }

    /// Parks a request, and goes after what it needs.
    fn need(&mut self, request: Request, need: Need, stores: Stores) {
        let waiting = Waiting {
            request,
            need: Some(need),
            buffer: Vec::new(),
            give_up: self.now.after(self.limits.wait),
        };
        let (addr, _) = need.range();
        let Some(table) = self.caches.get(&waiting.request.cache) else {
            return self.answer(waiting.request, Status::OutOfBounds);
        };
        match (table.index(addr), stores) {
            // A write waits for the end of the move, and is then done at the new owner. Who helped
            // may have met a move that is over by now, whose word wakes nobody any more.
            (Some(_), Stores::Wait { index }) => {
                let holds = table.holds_stores(index);
                let waiting = Waiting {
                    need: Some(Need::Place { addr, size: 1 }),
                    ..waiting
                };
                match holds {
                    true => self.parked.put(waiting, Wait::Map { index }),
                    false => self.pursue(waiting),
                }
            }
            _ => self.pursue(waiting),
        }
    }

    /// Does the next thing for a request that waits: it can run, goes away, asks, or waits on.
    fn pursue(&mut self, mut waiting: Waiting) {
        loop {
            let Some(table) = self.caches.get_mut(&waiting.request.cache) else {
                return self.answer(waiting.request, Status::OutOfBounds);
            };
            let Some(need) = waiting.need else {
                // Of a cache that this machine left it could not be sent on the last time.
                return match self.successors.get(&waiting.request.cache) {
                    Some(&successor) => self.send(waiting, successor, None, false),
                    None => self.queue(Ready::from(waiting.request)),
                };
            };
            let (addr, size) = need.range();
            let wanted = u64::from(size) - waiting.buffer.len() as u64;
            let at = addr.checked_add(waiting.buffer.len() as u64);
            let place = at.and_then(|at| Some((at, table.index(at)?)));
            let half = injected_faults::is(InjectedFault::HalfData) && !waiting.buffer.is_empty();
            if wanted == 0 || half {
                return self.queue(waiting.into_ready(addr));
            }
            let Some((at, index)) = place else {
                return self.answer(waiting.request, Status::OutOfBounds);
            };
            let here = table.here(at, wanted);
            if here == wanted && matches!(need, Need::Place { .. }) {
                return self.queue(Ready::from(waiting.request));
            }
            if here > 0 {
                // The rest of bytes that begin here is brought, whichever way they were wanted.
                waiting.need = Some(Need::Data { addr, size });
                let mut bytes = vec![0; usize::try_from(here).unwrap_or(0)];
                let loaded = table.load(at, &mut bytes);
                if loaded.is_err() || table.is_stale_now() {
                    return self.parked.put(waiting, Wait::Map { index });
                }
                waiting.buffer.extend_from_slice(&bytes);
                continue;
            }
            return self.go_after(waiting, need, (at, index), wanted);
        }
    }
}
