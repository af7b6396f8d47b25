//! Requests and bytes that travel between machines, while regions move.

use cenote_fabric::Time;
use cenote_proc_sdk::Memory as _;

use super::inactive_requests::{Wait, Waiting};
use super::{Action, Executor, Ready};
use crate::injected_faults::{self, InjectedFault};
use crate::message::{Data, Fetch, Moved, Need, Refusal, Refused};
use crate::procedures::is_size;
use crate::{CacheId, Machine, Request, Status};

/// What a machine does with a request that names a region and its generation.
enum Route {
    /// The region is here.
    Serve,
    /// Stale: the region went to another machine, as of a newer generation.
    Onward(Machine, u64),
    /// The sender knows more than this machine.
    Early,
    /// Stale, and forwarded before; or the region is nobody's.
    Stale,
    /// There is no such region.
    Nowhere,
}

impl Executor {
    /// A request, or bytes, are on another machine, or on none that is known.
    pub(super) fn go_after(
        &mut self,
        waiting: Waiting,
        need: Need,
        (at, index): (u64, usize),
        wanted: u64,
    ) {
        let cache = waiting.request.cache;
        if let Some(&successor) = self.successors.get(&cache) {
            return self.hand_over(waiting, successor);
        }
        let slot = self.table(cache).and_then(|table| table.slot(index));
        let Some(slot) = slot else {
            return self.answer(waiting.request, Status::OutOfBounds);
        };
        let generation = slot.generation;
        let to = match slot.place.elsewhere() {
            Some(to) if to != self.me => to,
            _ => return self.parked.put(waiting, Wait::Map { index }),
        };
        match need {
            Need::Place { .. } => self.send(waiting, to, Some(generation), false),
            Need::Data { .. } => {
                let rest = self
                    .table(cache)
                    .map_or(0, |table| table.rest_of_region(at));
                let size = u32::try_from(wanted.min(rest)).unwrap_or(u32::MAX);
                let wait = Wait::Fetch {
                    index,
                    generation,
                    size,
                };
                let fetch = Fetch {
                    from: self.me,
                    token: self.parked.put_with_token(waiting, wait),
                    cache,
                    addr: at,
                    size,
                    generation,
                    forwarded: false,
                };
                self.actions.push_back(Action::Fetch { to, fetch });
            }
        }
    }

    pub(super) fn send(
        &mut self,
        waiting: Waiting,
        to: Machine,
        generation: Option<u64>,
        forwarded: bool,
    ) {
        self.accounts.departed(waiting.request.client);
        if injected_faults::is(InjectedFault::AnswerTwice) {
            self.answer(waiting.request.clone(), Status::TimedOut);
        }
        let moved = Moved {
            from: self.me,
            need: waiting.need,
            generation: generation.unwrap_or(0),
            forwarded,
            request: waiting.request,
        };
        let give_up = waiting.give_up;
        self.actions.push_back(Action::Move { to, moved, give_up });
    }

    /// The region that a request needs, and the generation that is known of it.
    fn known(&self, cache: CacheId, need: Need) -> Option<(usize, u64)> {
        let table = self.table(cache)?;
        let index = table.index(need.range().0)?;
        Some((index, table.slot(index)?.generation))
    }

    /// Where a message belongs that names the region of `addr` at `generation`.
    fn route(&self, cache: CacheId, addr: u64, generation: u64, forwarded: bool) -> Route {
        let Some(table) = self.table(cache) else {
            return Route::Stale;
        };
        let slot = table.index(addr).and_then(|index| table.slot(index));
        let Some(slot) = slot else {
            return Route::Nowhere;
        };
        match slot.place.elsewhere() {
            _ if slot.generation < generation => Route::Early,
            None if slot.place.is_here() => Route::Serve,
            // The sender has the same word, and yet sent it here.
            Some(_) if slot.generation == generation => Route::Stale,
            Some(to) if !forwarded || injected_faults::is(InjectedFault::ForwardTwice) => {
                Route::Onward(to, slot.generation)
            }
            Some(_) | None => Route::Stale,
        }
    }

    /// Another machine asks for bytes.
    pub fn handle_fetch(&mut self, mut fetch: Fetch) {
        let route = self.route(fetch.cache, fetch.addr, fetch.generation, fetch.forwarded);
        let bytes = match route {
            Route::Serve => self.read_for(&fetch),
            Route::Onward(to, generation) => {
                fetch.generation = generation;
                fetch.forwarded = true;
                return self.actions.push_back(Action::Fetch { to, fetch });
            }
            Route::Early => Err(Refusal::Early),
            Route::Stale => Err(Refusal::Stale),
            Route::Nowhere => Err(Refusal::OutOfBounds),
        };
        let token = fetch.token;
        let data = Data { token, bytes };
        let to = fetch.from;
        self.actions.push_back(Action::Data { to, data });
    }

    fn read_for(&mut self, fetch: &Fetch) -> Result<Vec<u8>, Refusal> {
        let table = self.caches.get_mut(&fetch.cache).ok_or(Refusal::Stale)?;
        // A peer's number: no more than a fetch may bring, and of one region.
        let fits = u64::from(fetch.size) <= table.rest_of_region(fetch.addr);
        if !is_size(fetch.size) || !fits {
            return Err(Refusal::OutOfBounds);
        }
        let mut bytes = vec![0; fetch.size as usize];
        match table.load(fetch.addr, &mut bytes) {
            // It asks again: this machine may have more time by then, or have heard who has it.
            Ok(()) if table.is_stale_now() && !injected_faults::is(InjectedFault::LateFetch) => {
                Err(Refusal::Early)
            }
            Ok(()) => Ok(bytes),
            Err(_) => Err(Refusal::Stale),
        }
    }

    /// Bytes that were asked for, or why not.
    pub fn handle_data(&mut self, data: Data) {
        let Some((mut waiting, wait)) = self.parked.take(data.token) else {
            return;
        };
        let Wait::Fetch {
            index,
            generation,
            size,
        } = wait
        else {
            // A token is told to one machine, for one fetch; a peer made this one up.
            return self.parked.put(waiting, wait);
        };
        let known = self
            .table(waiting.request.cache)
            .and_then(|table| table.slot(index))
            .map(|slot| slot.generation);
        match data.bytes {
            Ok(bytes) if bytes.len() == size as usize => {
                waiting.buffer.extend_from_slice(&bytes);
                self.pursue(waiting);
            }
            Ok(_) | Err(Refusal::OutOfBounds) => self.answer(waiting.request, Status::OutOfBounds),
            Err(Refusal::Stale | Refusal::Early)
                if injected_faults::is(InjectedFault::ForgetInactive) => {}
            Err(Refusal::Stale) if known.is_some_and(|known| known <= generation) => {
                self.parked.put(waiting, Wait::Map { index });
            }
            Err(Refusal::Stale) => self.pursue(waiting),
            Err(Refusal::Early) => self.retry(waiting),
        }
    }

    fn retry(&mut self, waiting: Waiting) {
        let at = self.now.after(self.limits.retry);
        self.parked.put(waiting, Wait::Retry { at });
    }

    /// A request comes here from another machine.
    pub fn handle_moved(&mut self, mut moved: Moved) {
        let request = &moved.request;
        let Some(Need::Place { addr, .. }) = moved.need else {
            return self.adopt(moved);
        };
        match self.route(request.cache, addr, moved.generation, moved.forwarded) {
            // Early: the word about the region is on its way here.
            Route::Serve | Route::Early => self.adopt(moved),
            Route::Onward(to, generation) => {
                moved.generation = generation;
                moved.forwarded = true;
                let give_up = self.now.after(self.limits.wait);
                self.actions.push_back(Action::Move { to, moved, give_up });
            }
            Route::Stale => {
                let to = moved.from;
                let refused = Refused { moved };
                self.actions.push_back(Action::Refuse { to, refused });
            }
            Route::Nowhere => {
                let client = moved.request.client;
                let responses = vec![moved.request.into_response(Status::OutOfBounds)];
                self.actions.push_back(Action::Answer { client, responses });
            }
        }
    }

    /// Makes a request that came from elsewhere one of this thread's own.
    fn adopt(&mut self, moved: Moved) {
        let Moved {
            request,
            need,
            generation,
            ..
        } = moved;
        let Some(request) = self.admit(request) else {
            return;
        };
        let Some(need) = need else {
            return self.queue(Ready::from(request));
        };
        let known = self.known(request.cache, need);
        let waiting = Waiting {
            request,
            need: Some(need),
            buffer: Vec::new(),
            give_up: self.now.after(self.limits.wait),
        };
        match (known, need) {
            (Some((index, known)), Need::Place { .. }) if known < generation => {
                self.parked.put(waiting, Wait::Map { index });
            }
            _ => self.pursue(waiting),
        }
    }

    /// A request of this machine was refused where it went: the region is elsewhere again.
    pub fn handle_refused(&mut self, refused: Refused) {
        let moved = refused.moved;
        let Some(request) = self.admit(moved.request) else {
            return;
        };
        let Some(need) = moved.need else {
            return self.queue(Ready::from(request));
        };
        let waiting = Waiting {
            request,
            need: Some(need),
            buffer: Vec::new(),
            give_up: self.now.after(self.limits.wait),
        };
        let has_left = self.successors.contains_key(&waiting.request.cache);
        match self.known(waiting.request.cache, need) {
            Some((index, known)) if known <= moved.generation && !has_left => {
                self.parked.put(waiting, Wait::Map { index });
            }
            _ => self.pursue(waiting),
        }
    }

    /// A request of this machine could not be sent, or the other machine was not ready for it: it
    /// goes again in a moment, until `give_up`. This says nothing about where the region is.
    pub fn handle_unsent(&mut self, moved: Moved, give_up: Time) {
        let Some(request) = self.admit(moved.request) else {
            return;
        };
        self.retry(Waiting {
            request,
            need: moved.need,
            buffer: Vec::new(),
            give_up,
        });
    }

    /// Counts a request that comes to this thread, or answers it.
    fn admit(&mut self, request: Request) -> Option<Request> {
        let client = request.client;
        if self.accounts.admit(client) {
            return Some(request);
        }
        // `Busy` says that nothing was run.
        let status = match request.steps {
            0 => Status::Busy,
            _ => Status::Lost,
        };
        let responses = vec![request.into_response(status)];
        self.actions.push_back(Action::Answer { client, responses });
        None
    }

    /// Gives all requests for a cache to another machine, because this one leaves it: those that
    /// are queued, those that are INACTIVE, and those that come back or come later and need what is
    /// not here.
    ///
    /// This machine goes on forwarding what is stale as long as it has the table. It is back once a
    /// region is here again.
    pub fn handle_leave(&mut self, cache: CacheId, successor: Machine) {
        self.abandon_commits(cache);
        let mut queued = Vec::new();
        self.shelf.take(usize::MAX, &mut queued);
        self.own.take(usize::MAX, &mut queued);
        let (leaving, staying): (Vec<_>, Vec<_>) = queued
            .into_iter()
            .partition(|ready| ready.request.cache == cache);
        staying.into_iter().for_each(|ready| self.shelve(ready));
        for ready in leaving {
            self.accounts.unqueued(ready.request.client);
            self.accounts.departed(ready.request.client);
            // Bytes that came are fetched again over there: the step that waited for them asks.
            let moved = Moved {
                from: self.me,
                need: None,
                generation: 0,
                forwarded: false,
                request: ready.request,
            };
            let to = successor;
            let give_up = self.now.after(self.limits.wait);
            self.actions.push_back(Action::Move { to, moved, give_up });
        }
        if injected_faults::is(InjectedFault::LeaveInactive) {
            return;
        }
        self.successors.insert(cache, successor);
        for waiting in self.parked.take_of(cache) {
            self.hand_over(waiting, successor);
        }
    }

    /// A request goes on from its state on the machine that follows this one. What it needs it finds
    /// out there: as it is known here, it may be known to be elsewhere there, too, and be refused.
    fn hand_over(&mut self, mut waiting: Waiting, successor: Machine) {
        waiting.need = None;
        self.send(waiting, successor, None, false);
    }
}
