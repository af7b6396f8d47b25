//! Stores into caches with two copies: gathered, sent to the second copies, then made in the first.
//!
//! Of each cache one **flight** is under way at a time; what steps store meanwhile gathers for the
//! next. A step whose stores, or what it found of others', are not in both copies yet is **held**:
//! nothing of its end is acted on before. If none of the second copies took its stores, the step is
//! taken again from the state before it. If nobody knows whether one did, its request ends as *may
//! have run*, and the region is **doubtful** (`doubts`).
//!
//! A word about a region is to be gone by only when no flight with stores for it is under way
//! ([`Executor::is_flying`]): then whoever said it knows that what was sent has ended, or is in
//! doubt.

use std::collections::BTreeMap;

use cenote_fabric::Unwritten;
use smallvec::SmallVec;

use super::{Action, Ended, Executor, Ready};
use crate::injected_faults::{self, InjectedFault};
use crate::message::{MESSAGE_MAX, PIECE_MAX, Piece, Replicate, Replicated};
use crate::table::pending::{Regions, StepWrites};
use crate::table::{Life, Local};
use crate::{CacheId, Machine, Outcome, Request, Slot, Status, Table, Trap};

/// What became of a message to another machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Delivery {
    /// It was answered.
    Answered(Replicated),
    /// The machine did not get it.
    NotSent,
    /// Nobody knows whether the machine got it.
    Lost,
}

/// What holds a step's end.
pub(super) struct Hold {
    /// The request before the step.
    before: Request,
    /// That it stored into, or found stores in that are in no copy yet.
    regions: Regions,
}

/// A step that waits for copies.
struct Held {
    ended: Ended,
    hold: Hold,
}

/// Of one cache.
#[derive(Default)]
pub(super) struct Commits {
    gathered: Vec<Held>,
    flight: Option<Flight>,
    /// No further flight is to begin.
    is_stopped: bool,
    /// A step loaded what may have been old by then: none of those that were gathered ends as it
    /// did.
    is_spoiled: bool,
}

/// Stores on their way.
struct Flight {
    held: Vec<Held>,
    /// Where they go once second copies have them.
    landings: Vec<Landing>,
    regions: BTreeMap<usize, Way>,
    /// Messages without their answers, with the regions that each is for.
    under_way: BTreeMap<u64, Regions>,
}

struct Landing {
    region: usize,
    memory: Local,
    offset: u64,
    bytes: SmallVec<[u8; 16]>,
}

/// How stores for a region fare.
#[derive(Clone)]
struct Way {
    generation: u64,
    life: Life,
    has_second: bool,
    /// Some of it is in the first copy.
    has_landed: bool,
    /// Of those messages that were answered.
    end: Option<Replicated>,
}

impl Way {
    fn note(&mut self, end: Replicated) {
        self.end = match self.end {
            None => Some(end),
            Some(known) if known == end => Some(end),
            // Some of it is there.
            Some(_) => Some(Replicated::InDoubt),
        };
    }
}

/// What one message brings. As with answers, so that others get their turn.
const REPLICATE_BYTES: usize = MESSAGE_MAX / 2;

/// Refusals until a request ends: with a pause after each, as long as others wait.
const REFUSALS_MAX: u32 = 10_000;

impl Commits {
    /// Steps that wait.
    pub(super) fn held(&self) -> usize {
        let flying = self.flight.as_ref().map_or(0, |flight| flight.held.len());
        self.gathered.len() + flying
    }

    fn is_over(&self) -> bool {
        self.flight.is_none() && self.gathered.is_empty() && !self.is_stopped
    }
}

impl Hold {
    /// Gathers what a step stored. `None`: its end does not have to wait.
    pub(super) fn new(
        before: Request,
        writes: StepWrites,
        outcome: &Outcome,
        table: &mut Table,
    ) -> Option<Self> {
        // A step that was cut off, or not taken, has stored nothing.
        let is_cut = match outcome {
            Outcome::Coming => true,
            Outcome::Trap(trap) => !matches!(trap, Trap::Failed(_)),
            _ => false,
        };
        if is_cut || writes.regions.is_empty() {
            return None;
        }
        table.pending().gather(&writes.stores);
        let regions = writes.regions;
        Some(Self { before, regions })
    }
}

impl Executor {
    /// Holds a step's end until copies have what it stored, and what it found of others'.
    pub(super) fn hold(&mut self, ended: Ended, hold: Hold) {
        let cache = ended.request.cache;
        let table = self.caches.get_mut(&cache);
        let Some(table) = table.filter(|table| table.keeps_back()) else {
            // It was closed, or is another one: nothing of it was sent.
            return self.take_again([Held { ended, hold }]);
        };
        let is_stale = ended.loaded_by.is_some_and(|by| table.is_stale(by));
        let has_gathered = !table.pending().is_gathered_empty();
        let commits = self.commits.entry(cache).or_default();
        let held = Held { ended, hold };
        match &mut commits.flight {
            // It only found what is on its way.
            Some(_) if !has_gathered && is_stale => self.take_again([held]),
            Some(flight) if !has_gathered => flight.held.push(held),
            _ => {
                commits.is_spoiled |= is_stale;
                commits.gathered.push(held);
            }
        }
    }

    /// Sends what was gathered, of each cache that has nothing under way.
    pub(super) fn launch_all(&mut self) {
        if self.commits.is_empty() {
            return;
        }
        let is_ready = |commits: &Commits| {
            commits.flight.is_none() && !commits.is_stopped && !commits.gathered.is_empty()
        };
        let ready = self.commits.iter().filter(|(_, commits)| is_ready(commits));
        let ready: Vec<_> = ready.map(|(cache, _)| *cache).collect();
        for cache in ready {
            self.launch(cache);
        }
    }

    fn launch(&mut self, cache: CacheId) {
        let Some(table) = self.caches.get_mut(&cache) else {
            return;
        };
        let is_spoiled = self.commits.get(&cache).is_some_and(|c| c.is_spoiled);
        if is_spoiled || table.is_lapsing(self.now) {
            // The steps go on with the next lease.
            return self.scatter(cache);
        }
        let region_bytes = table.region_bytes();
        let pieces = table.pending().launch().pieces(region_bytes);
        let mut landings = Vec::with_capacity(pieces.len());
        let mut regions = BTreeMap::new();
        let mut by_second: BTreeMap<Machine, Vec<Piece>> = BTreeMap::new();
        for (addr, bytes) in pieces {
            let index = table.index(addr);
            let (Some(region), Some(copies)) = (index, table.copies(addr)) else {
                // It moves, or has moved: the steps find that out for themselves.
                table.pending().land();
                return self.scatter(cache);
            };
            let (generation, memory, offset, second) = copies;
            let has_second = second.is_some();
            regions.entry(region).or_insert(Way {
                generation,
                life: memory.life(),
                has_second,
                has_landed: false,
                end: None,
            });
            if let Some(second) = second {
                let mut at = addr;
                let pieces = bytes.chunks(PIECE_MAX).map(|bytes| {
                    let addr = at;
                    at += bytes.len() as u64;
                    Piece {
                        addr,
                        generation,
                        bytes: bytes.to_vec(),
                    }
                });
                by_second.entry(second).or_default().extend(pieces);
            }
            landings.push(Landing {
                region,
                memory,
                offset,
                bytes,
            });
        }
        let mut under_way = BTreeMap::new();
        for (to, pieces) in by_second {
            for pieces in messages(pieces) {
                self.replicates_sent += 1;
                let token = self.replicates_sent;
                let of = |piece: &Piece| (piece.addr / region_bytes) as usize;
                let mut concerned: Regions = pieces.iter().map(of).collect();
                concerned.dedup();
                under_way.insert(token, concerned);
                self.flights.insert(token, (cache, to));
                let replicate = Replicate {
                    token,
                    cache,
                    pieces,
                };
                self.actions.push_back(Action::Replicate { to, replicate });
            }
        }
        let commits = self.commits.entry(cache).or_default();
        let is_over = under_way.is_empty() || injected_faults::is(InjectedFault::FirstFirst);
        commits.flight = Some(Flight {
            held: std::mem::take(&mut commits.gathered),
            landings,
            regions,
            under_way,
        });
        if is_over {
            self.land(cache);
        }
    }

    /// What became of stores that were sent.
    pub fn handle_replicated(&mut self, token: u64, delivery: Delivery) {
        if self.take_probe(token, matches!(delivery, Delivery::Answered(_))) {
            return;
        }
        let Some((cache, to)) = self.flights.remove(&token) else {
            return;
        };
        let end = match delivery {
            Delivery::Answered(end) => end,
            Delivery::NotSent | Delivery::Lost => {
                self.suspect(to);
                match delivery {
                    Delivery::NotSent => Replicated::Refused,
                    _ => Replicated::InDoubt,
                }
            }
        };
        let commits = self.commits.get_mut(&cache);
        let Some(flight) = commits.and_then(|commits| commits.flight.as_mut()) else {
            return;
        };
        let end = match end {
            Replicated::InDoubt if injected_faults::is(InjectedFault::ForgetDoubt) => {
                Replicated::Refused
            }
            end => end,
        };
        for region in flight.under_way.remove(&token).unwrap_or_default() {
            if let Some(way) = flight.regions.get_mut(&region) {
                way.note(end);
            }
        }
        if flight.under_way.is_empty() {
            self.land(cache);
            self.launch_all();
        }
    }

    /// All second copies have answered: the first ones follow, and the steps end.
    fn land(&mut self, cache: CacheId) {
        let Some(mut flight) = self.take_flight(cache) else {
            return;
        };
        for way in flight.regions.values_mut() {
            if !way.has_second || injected_faults::is(InjectedFault::FirstFirst) {
                way.end = Some(Replicated::Written);
            }
        }
        for landing in &flight.landings {
            let Some(way) = flight.regions.get_mut(&landing.region) else {
                continue;
            };
            if way.end != Some(Replicated::Written) {
                continue;
            }
            way.end = match landing.memory.write(landing.offset, &landing.bytes) {
                Ok(()) => Some(Replicated::Written),
                Err(Unwritten::Nothing) if !way.has_second && !way.has_landed => {
                    Some(Replicated::Refused)
                }
                // The second copy has it, or some of it is here.
                Err(_) => Some(Replicated::InDoubt),
            };
            way.has_landed = true;
        }
        let table = self.caches.get_mut(&cache);
        let is_late = table.as_ref().is_none_or(|table| table.is_over());
        if let Some(table) = table.filter(|table| table.keeps_back()) {
            table.pending().land();
        }
        for way in flight.regions.values_mut() {
            // Copied while the time was over, or before: nobody knows.
            if is_late && way.end == Some(Replicated::Written) {
                way.end = Some(Replicated::InDoubt);
            }
        }
        let all_written = |way: &Way| way.end == Some(Replicated::Written);
        if !flight.regions.values().all(all_written) {
            // They may have seen what is not to be.
            self.scatter(cache);
        }
        self.end_flight(cache, flight);
    }

    fn end_flight(&mut self, cache: CacheId, flight: Flight) {
        for (region, way) in &flight.regions {
            if way.has_second && way.end == Some(Replicated::InDoubt) {
                self.raise_doubt(cache, *region, way.generation, way.life.clone());
            }
        }
        for Held { ended, hold } in flight.held {
            // A region that is none of these has nothing on its way: it was seen, and has landed.
            let ways = hold
                .regions
                .iter()
                .filter_map(|region| flight.regions.get(region));
            let mut ends = ways.map(|way| way.end.unwrap_or(Replicated::Refused));
            let first = ends.next().unwrap_or(Replicated::Written);
            match ends.all(|end| end == first).then_some(first) {
                Some(Replicated::Written) => self.finish(ended),
                Some(Replicated::Refused) => self.refused(hold.before),
                Some(Replicated::InDoubt) | None => self.answer(ended.request, Status::TimedOut),
            }
        }
    }

    /// None of what a request's step stored is anywhere.
    fn refused(&mut self, mut request: Request) {
        request.refusals += 1;
        match request.refusals > REFUSALS_MAX {
            true => self.answer(request, Status::TimedOut),
            false => self.redo(request),
        }
    }

    fn take_flight(&mut self, cache: CacheId) -> Option<Flight> {
        let commits = self.commits.get_mut(&cache)?;
        let flight = commits.flight.take();
        if commits.is_over() {
            self.commits.remove(&cache);
        }
        flight
    }

    /// What was gathered is not sent: its steps are taken again.
    pub(super) fn scatter(&mut self, cache: CacheId) {
        let table = self.caches.get_mut(&cache);
        if let Some(table) = table.filter(|table| table.keeps_back()) {
            table.pending().scatter();
        }
        if let Some(commits) = self.commits.get_mut(&cache) {
            commits.is_spoiled = false;
            let gathered = std::mem::take(&mut commits.gathered);
            if commits.is_over() {
                self.commits.remove(&cache);
            }
            self.take_again(gathered);
        }
    }

    fn take_again(&mut self, steps: impl IntoIterator<Item = Held>) {
        for Held { hold, .. } in steps {
            match self.caches.contains_key(&hold.before.cache) {
                true => self.queue(Ready::from(hold.before)),
                false => self.answer(hold.before, Status::OutOfBounds),
            }
        }
    }

    /// Stores that are on their way count as lost: something waits for their end.
    pub fn lose_flight(&mut self, cache: CacheId) {
        let flight = self.commits.get(&cache).and_then(|c| c.flight.as_ref());
        let tokens = flight.map(|flight| flight.under_way.keys().copied().collect::<Vec<_>>());
        for token in tokens.unwrap_or_default() {
            self.handle_replicated(token, Delivery::Lost);
        }
    }

    /// A cache is left, closed, or another: what is under way is nobody's to end.
    pub(super) fn abandon_commits(&mut self, cache: CacheId) {
        self.scatter(cache);
        self.lose_flight(cache);
        self.commits.remove(&cache);
    }

    /// Whether stores for any of these regions are on their way, and a word about them is to wait;
    /// `None`: for any at all.
    #[must_use]
    pub fn is_flying(&self, cache: CacheId, regions: Option<&[(usize, Slot)]>) -> bool {
        if injected_faults::is(InjectedFault::HastyWord) {
            return false;
        }
        let flight = self.commits.get(&cache).and_then(|c| c.flight.as_ref());
        flight.is_some_and(|flight| match regions {
            None => true,
            Some(regions) => regions
                .iter()
                .any(|(region, _)| flight.regions.contains_key(region)),
        })
    }

    /// While words wait for what is on its way, nothing else is sent.
    pub fn stop_flights(&mut self, cache: CacheId, is_stopped: bool) {
        let commits = self.commits.entry(cache).or_default();
        commits.is_stopped = is_stopped;
        if commits.is_over() {
            self.commits.remove(&cache);
        }
        self.launch_all();
    }

    /// Another machine's stores, for second copies here.
    pub fn handle_replicate(&mut self, replicate: &Replicate) -> Replicated {
        let table = self.caches.get(&replicate.cache);
        table.map_or(Replicated::Refused, |table| {
            table.write_second(&replicate.pieces)
        })
    }
}

/// As many pieces as fit, together.
fn messages(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut messages: Vec<Vec<Piece>> = Vec::new();
    let mut bytes = usize::MAX;
    for piece in pieces {
        let more = piece.len_bytes();
        match messages.last_mut() {
            Some(last) if bytes + more <= REPLICATE_BYTES => {
                bytes += more;
                last.push(piece);
            }
            _ => {
                bytes = more;
                messages.push(vec![piece]);
            }
        }
    }
    messages
}
