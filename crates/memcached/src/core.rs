//! What a worker has beside its clients: partitions, what is under way to and from them, and what
//! cannot be done yet.
//!
//! A request that no client of this worker waits in line for (it came from another worker or node,
//! or could not be served at first) is a text with a ticket; its answer goes to who asked. Requests
//! of one client for this worker are served in order: one that is parked holds up those behind it.

mod fan_out;
mod held_answer;
mod reports;

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_kv::engine::{Ask, Engine, Outcome, Partition, Sight, key_of};
use cenote_kv::group::pace::Pace;
use cenote_kv::group::replica::Xid;
use cenote_kv::memory::key_hash::place_hash;
use cenote_kv::protocol::reply;
use cenote_kv::protocol::{Error, KEY_BYTES_MAX, Request, Tuning, whole};

use super::backend::{Backend, Peers, Route};
use super::batch::{Asker, Batch, Ticket};
use super::buffers::Buffers;
use super::crawl::Walk;
use super::mailboxes::Message;
use super::parked_requests::{Parked, Parking, who};
use super::shared::Shared;
use super::small_answers::limited;
use super::times::Stopwatch;
use super::traffic::Traffic;
use super::turns::Waiter;
use fan_out::{FanOut, Flush, owners_meant, text_for_nodes};
use held_answer::{Held, Waiting};

/// How soon a parked request is tried again, if nothing else happens.
const PARKED_RETRY: Duration = Duration::from_millis(2);
/// Input buffers that are kept for the next client that says something.
const POOLED_BUFFERS_MAX: usize = 64;

/// What a client is told whose operation was under way when its partition changed hands.
const UNKNOWN: &[u8] = b"SERVER_ERROR partition changed hands, outcome unknown\r\n";

/// What is on its way to another worker.
#[derive(Default)]
struct Outgoing {
    asks: Batch,
    answers: Batch,
}

/// See the [module](self).
pub(super) struct Core<B: Backend> {
    pub(super) index: usize,
    pub(super) backend: B,
    pub(super) engine: Engine,
    pub(super) shared: Arc<Shared>,
    pub(super) clients: Buffers,
    /// Seconds since 1970, which do not jump.
    pub(super) now: u64,
    /// Memory of the process, as its backend knows it.
    memory_bytes: u64,
    /// What the system said last.
    said: u64,
    /// Seconds by which the time was moved on.
    pub(super) leapt: u64,
    pace: Pace,
    outgoing: Vec<Outgoing>,
    waiting: Vec<BinaryHeap<Reverse<Waiting>>>,
    /// Of the partitions when their answers were last looked at.
    terms: Vec<u32>,
    order: u64,
    spreads: HashMap<Ticket, FanOut>,
    parked: Parking,
    held: Held,
    pub(super) stopwatch: Stopwatch,
    /// What is under way at other workers.
    others_asked: usize,
    /// For clients of this worker.
    answers: Batch,
    scratch: Vec<u8>,
    /// Batches that have been emptied.
    empty: Vec<Batch>,
    buffers: Vec<Vec<u8>>,
}

impl<B: Backend> Core<B> {
    pub(super) fn new(index: usize, backend: B, shared: Arc<Shared>) -> Self {
        let counters = Arc::clone(&shared.workers[index].counters);
        let engine = Engine::new(shared.settings.limits, counters);
        let outgoing = shared.workers.iter().map(|_| Outgoing::default());
        let memory_bytes = shared.settings.memory_bytes;
        let bytes = shared.settings.buffer_bytes / shared.workers.len() as u64;
        Self {
            index,
            waiting: Vec::new(),
            terms: Vec::new(),
            outgoing: outgoing.collect(),
            backend,
            engine,
            shared,
            clients: Buffers::new(usize::try_from(bytes).unwrap_or(usize::MAX)),
            now: 0,
            memory_bytes,
            said: 0,
            leapt: 0,
            pace: Pace::default(),
            order: 0,
            spreads: HashMap::new(),
            parked: Parking::default(),
            held: Held::default(),
            stopwatch: Stopwatch::default(),
            others_asked: 0,
            answers: Batch::default(),
            scratch: Vec::new(),
            empty: Vec::new(),
            buffers: Vec::new(),
        }
    }

    pub(super) fn traffic(&self) -> &Traffic {
        &self.shared.workers[self.index].traffic
    }

    /// The system says that it is `said`, seconds since 1970.
    pub(super) fn tick(&mut self, said: u64, now_ns: u64) {
        let said = said.saturating_add(self.leapt);
        let known = u32::try_from(self.now).unwrap_or(u32::MAX);
        let heard = u32::try_from(said).unwrap_or(u32::MAX);
        self.now = self.pace.next(known, heard, now_ns).into();
        if self.said != said {
            self.said = said;
            self.backend.tick(said);
        }
    }

    /// Takes the memory that `cache_memlimit` has given, where it has changed.
    pub(super) fn follow_memory(&mut self) {
        let bytes = self.shared.memory_bytes.load(Ordering::Relaxed);
        if bytes != std::mem::replace(&mut self.memory_bytes, bytes) {
            self.backend.set_memory(bytes);
        }
    }

    /// A buffer with room.
    pub(super) fn take_buffer(&mut self, room: usize) -> Vec<u8> {
        let buffer = self.buffers.pop();
        buffer.unwrap_or_else(|| Vec::with_capacity(room))
    }

    /// Takes a buffer back; one that has grown is not kept.
    pub(super) fn give_buffer(&mut self, mut buffer: Vec<u8>, room: usize) {
        if (room..=room * 2).contains(&buffer.capacity()) && self.buffers.len() < POOLED_BUFFERS_MAX
        {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Whether there is memory for what a client's next request is answered: see [`Buffers::may_answer`].
    pub(super) fn may_answer(&mut self, client: Waiter, own: usize) -> bool {
        self.set_elsewhere();
        self.clients.may_answer(client, own)
    }

    /// The same for a request that came without a connection.
    pub(super) fn may_answer_datagram(&mut self, wanted: usize) -> bool {
        self.set_elsewhere();
        self.clients.has_room_for_answers(0, wanted)
    }

    /// Looks at what is under way at other workers, as all share their memory; once a turn.
    pub(super) fn count_elsewhere(&mut self) {
        let own = self.under_way();
        self.traffic().asked_bytes.set(own as u64);
        let workers = self.shared.workers.iter();
        let all = workers.map(|worker| worker.traffic.asked_bytes.read());
        let all = usize::try_from(all.sum::<u64>()).unwrap_or(usize::MAX);
        self.others_asked = all.saturating_sub(own);
        self.set_elsewhere();
    }

    fn set_elsewhere(&mut self) {
        let all = self.others_asked.saturating_add(self.under_way());
        self.clients.set_elsewhere(all / self.shared.workers.len());
    }

    /// Bytes of requests and answers of this worker's clients that are neither read nor told.
    fn under_way(&self) -> usize {
        self.backend.peers().map_or(0, Peers::asked_bytes) + self.parked.bytes() + self.held.clients
    }

    /// Sends a request to who serves it, which is not this worker.
    pub(super) fn send(&mut self, route: Route, ticket: Ticket, text: &[u8]) {
        match route {
            Route::Here(_) => self.serve(ticket, text),
            Route::Worker(worker) => self.outgoing[worker].asks.push(ticket, text),
            Route::Node(node) => match self.backend.peers_mut() {
                Some(peers) => peers.forward(node, ticket, text),
                None => self.deliver(ticket, UNKNOWN),
            },
        }
    }

    /// Sends a request to a worker, which may be this one.
    pub(super) fn ask_worker(&mut self, worker: usize, ticket: Ticket, text: &[u8]) {
        if worker == self.index {
            self.serve(ticket, text);
        } else {
            self.outgoing[worker].asks.push(ticket, text);
        }
    }

    /// Keeps an answer until an operation is committed.
    pub(super) fn hold(&mut self, partition: usize, xid: Xid, ticket: Ticket, answer: Vec<u8>) {
        self.order += 1;
        if self.waiting.len() <= partition {
            self.waiting.resize_with(partition + 1, BinaryHeap::new);
            self.terms.resize(partition + 1, 0);
        }
        let term = self.backend.term(partition);
        *self.held.of(&ticket) += answer.len();
        self.waiting[partition].push(Reverse(Waiting {
            xid,
            term,
            order: self.order,
            ticket,
            answer,
        }));
    }

    /// Who owns what: see [`Peers::owners`].
    fn owners(&self) -> u64 {
        self.backend.peers().map_or(0, Peers::owners)
    }

    fn is_in_order(&self, place: u32) -> bool {
        self.backend
            .peers()
            .is_none_or(|peers| peers.is_in_order(place))
    }

    /// Whether a request of this client's cannot be asked yet, as others of its before it.
    pub(super) fn is_to_wait(&self, client: u32, generation: u32, place: u32) -> bool {
        let who = (Asker::Worker(self.index), client, generation);
        self.parked.has(who) || !self.is_in_order(place)
    }

    /// Keeps a request until it can be served.
    pub(super) fn park(&mut self, ticket: Ticket, text: &[u8]) {
        let text = text.to_vec();
        self.parked.push(Parked { ticket, text });
    }

    /// Serves a request that has a ticket, or sends it on.
    pub(super) fn serve(&mut self, ticket: Ticket, text: &[u8]) {
        let waits = self.parked.has(who(&ticket));
        let is_told = waits && self.is_told_later(ticket, limited(text).1);
        if !is_told && (waits || !self.try_serve(ticket, text)) {
            self.park(ticket, text);
        }
    }

    /// Serves a request, unless that is not possible now.
    fn try_serve(&mut self, ticket: Ticket, text: &[u8]) -> bool {
        let is_of_node = matches!(ticket.asker, Asker::Node(_));
        let with_limit = text;
        let (text, limit) = limited(text);
        if let Asker::Node(node) = ticket.asker {
            let held = self.held.nodes.get(&node).copied().unwrap_or(0);
            let has_room = |peers: &B::Peers| peers.has_room_for_answers(node, held);
            if !self.backend.peers().is_none_or(has_room) {
                // Whoever asked keeps its memory, and its turn: the link has room soon, or ends.
                return false;
            }
        }
        let request = whole(text, *self.engine.limits());
        let is_for_workers =
            |request: &Request<'_>| matches!(request, Request::Tune { .. } | Request::Crawler(_));
        let Some(request) = request.filter(|request| !is_of_node || !is_for_workers(request))
        else {
            return self.refuse(ticket);
        };
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = match &request {
            Request::FlushAll { exptime, .. } => {
                let at = exptime.flush_at(self.now);
                return self.try_flush(ticket, at, text);
            }
            Request::Tune {
                tuning: Tuning::Time,
                words,
                ..
            } => {
                self.leap_by(*words);
                self.deliver(ticket, b"");
                return true;
            }
            Request::Crawler(words) => {
                let mut out = mem::take(&mut self.scratch);
                out.clear();
                Walk::answer(*words, &mut self.backend, &mut out);
                self.scratch = out;
                self.deliver_scratch(ticket);
                return true;
            }
            Request::Get(get) => { get.keys }.next().unwrap_or_default(),
            request => match key_of(request, &mut decoded) {
                Some(key) => key,
                None => return self.refuse(ticket),
            },
        };
        let place = place_hash(key);
        if !is_of_node && !self.is_in_order(place) {
            return self.is_told_later(ticket, limit);
        }
        let partition = match self.backend.route(place) {
            Route::Here(partition) => partition,
            route => {
                self.send(route, ticket, with_limit);
                return true;
            }
        };
        let ask = Ask {
            request: &request,
            key,
            sight: Sight::Newest,
        };
        self.scratch.clear();
        if !self.backend.may_serve(partition) {
            let loss = self.backend.loss(partition, text);
            loss.inspect(|loss| self.deliver(ticket, loss));
            return loss.is_some() || self.is_told_later(ticket, limit);
        }
        if let Some(is_told) = self.is_refused_by_limit(ticket, partition, key, limit) {
            return is_told;
        }
        let target = self.backend.partition(partition);
        let outcome = self.engine.serve(target, &ask, &mut self.scratch);
        if self.engine.is_watched() {
            let shared = Arc::clone(&self.shared);
            self.note_events(key, || match ticket.asker {
                Asker::Worker(worker) => shared.descriptor(worker, ticket.client),
                Asker::Node(_) => 0,
            });
        }
        match outcome {
            Outcome::Answered { waits_for: None } => self.deliver_scratch(ticket),
            Outcome::Answered {
                waits_for: Some(xid),
            } => {
                let answer = self.scratch.clone();
                self.hold(partition, xid, ticket, answer);
            }
            Outcome::Retry(refusal) => {
                self.backend.on_refusal(partition, refusal);
                return self.is_told_later(ticket, limit);
            }
        }
        true
    }

    /// Flushes all partitions of this worker, each once, and then those of other nodes unless one of these
    /// asks. Where one cannot be flushed now, it is tried again; where one is refused, its refusal is the answer.
    fn try_flush(&mut self, ticket: Ticket, at: u64, text: &[u8]) -> bool {
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        let meant = match ticket.asker {
            Asker::Node(_) => owners_meant(text),
            Asker::Worker(_) => None,
        };
        let owners = meant.unwrap_or_else(|| self.owners());
        // What comes back from a node that owns nothing any more is a part that is waited for already.
        let spread = self.spreads.entry(ticket);
        let spread = spread.or_insert_with(|| FanOut::new(owners));
        let Flush {
            waits,
            refused,
            is_done,
        } = spread.flush(&mut self.backend, at, text);
        let mut nodes = Vec::new();
        if is_done && matches!(ticket.asker, Asker::Worker(_)) {
            let all = self.backend.peers().map(Peers::nodes);
            nodes = spread.note_asked(owners, all.unwrap_or_default());
        }
        spread.left += waits.len() + refused.len() + nodes.len();
        let text = text_for_nodes(text, spread.owners);
        for why in refused {
            self.deliver(ticket, why);
        }
        for (index, xid) in waits {
            self.hold(index, xid, ticket, Vec::new());
        }
        for node in nodes {
            self.send(Route::Node(node), ticket, &text);
        }
        if is_done {
            self.deliver(ticket, b"");
        }
        is_done
    }

    /// Answers what is nothing that one worker asks another. Nobody of ours sends that, but of another
    /// node's socket anything may come.
    fn refuse(&mut self, ticket: Ticket) -> bool {
        self.scratch.clear();
        reply::error(&mut self.scratch, Error::Unknown);
        self.deliver_scratch(ticket);
        true
    }

    fn deliver_scratch(&mut self, ticket: Ticket) {
        let scratch = mem::take(&mut self.scratch);
        self.deliver(ticket, &scratch);
        self.scratch = scratch;
        self.scratch.clear();
        self.scratch.shrink_to(64 << 10);
    }

    pub(super) fn deliver(&mut self, ticket: Ticket, answer: &[u8]) {
        if self.spreads.is_empty() {
            return self.tell(ticket, answer);
        }
        let Entry::Occupied(mut spread) = self.spreads.entry(ticket) else {
            return self.tell(ticket, answer);
        };
        let parts = spread.get_mut();
        parts.left -= 1;
        if !answer.is_empty() {
            parts.answer = answer.to_vec();
        }
        if parts.left == 0 {
            let mut parts = spread.remove();
            // Who gave a partition away may have passed it over, and so may who got it; and who asks may not
            // know yet who did.
            if parts.answer.is_empty() && parts.owners != self.owners() {
                parts.answer.extend_from_slice(UNKNOWN);
            }
            self.tell(ticket, &parts.answer);
        }
    }

    fn tell(&mut self, ticket: Ticket, answer: &[u8]) {
        match ticket.asker {
            Asker::Worker(worker) if worker == self.index => self.answers.push(ticket, answer),
            Asker::Worker(worker) => self.outgoing[worker].answers.push(ticket, answer),
            Asker::Node(_) => {
                if let Some(peers) = self.backend.peers_mut() {
                    peers.answer(ticket, answer);
                }
            }
        }
    }

    /// Takes requests of another worker.
    pub(super) fn take_asks(&mut self, mut asks: Batch) {
        for (ticket, text) in asks.iter() {
            self.serve(ticket, text);
        }
        asks.clear();
        self.keep(asks);
    }

    /// Keeps a batch for the next one that is needed.
    pub(super) fn keep(&mut self, batch: Batch) {
        if self.empty.len() < 2 * self.outgoing.len() {
            self.empty.push(batch);
        }
    }

    /// Moves on what is under way; returns when it wants to be called again at the latest.
    pub(super) fn move_on(&mut self) -> Option<Duration> {
        let mut asks = self.empty.pop().unwrap_or_default();
        let mut answers = self.empty.pop().unwrap_or_default();
        if let Some(peers) = self.backend.peers_mut() {
            peers.poll(&mut asks, &mut answers);
        }
        // Who asked may be another worker, or a node whose request was only passed on here.
        for (ticket, text) in answers.iter() {
            self.deliver(ticket, text);
        }
        answers.clear();
        self.keep(answers);
        self.take_asks(asks);
        self.settle();
        let has_parked = !self.parked.is_empty();
        if has_parked {
            self.retry();
        }
        let mut wait = self.backend.flush();
        if has_parked {
            wait = Some(wait.map_or(PARKED_RETRY, |wait| wait.min(PARKED_RETRY)));
        }
        wait
    }

    /// Lets answers go whose operations are committed.
    fn settle(&mut self) {
        for index in 0..self.waiting.len() {
            if self.waiting[index].is_empty() {
                continue;
            }
            let term = self.backend.term(index);
            if mem::replace(&mut self.terms[index], term) != term {
                self.give_up(index, term);
            }
            let committed = self.backend.partition(index).committed_xid();
            while let Some(Reverse(first)) = self.waiting[index].peek() {
                if first.xid > committed {
                    break;
                }
                let Some(Reverse(waiting)) = self.waiting[index].pop() else {
                    break;
                };
                *self.held.of(&waiting.ticket) -= waiting.answer.len();
                self.deliver(waiting.ticket, &waiting.answer);
            }
        }
    }

    /// Tells those who wait for operations of another term that nobody knows what came of them.
    fn give_up(&mut self, index: usize, term: u32) {
        let all = mem::take(&mut self.waiting[index]);
        for Reverse(mut waiting) in all.into_sorted_vec() {
            if waiting.term == term {
                self.waiting[index].push(Reverse(waiting));
                continue;
            }
            *self.held.of(&waiting.ticket) -= waiting.answer.len();
            waiting.answer.clear();
            waiting.answer.extend_from_slice(UNKNOWN);
            self.deliver(waiting.ticket, &waiting.answer);
        }
    }

    /// Tries again what is parked. What still cannot be served holds up its client's others.
    ///
    /// A node bounds what it has asked over one link. Of links that broke nothing is kept, or each
    /// would leave as much: their node has been told that the outcome is unknown, or asks again.
    fn retry(&mut self) {
        let mut parked = mem::take(&mut self.parked);
        while let Some(first) = parked.pop() {
            let is_of_node = matches!(first.ticket.asker, Asker::Node(_));
            let is_awaited = |peers: &B::Peers| peers.is_awaited(&first.ticket);
            if is_of_node && !self.backend.peers().is_none_or(is_awaited) {
                self.spreads.remove(&first.ticket);
                continue;
            }
            let is_held = self.parked.has(who(&first.ticket));
            if is_held || !self.try_serve(first.ticket, &first.text) {
                self.parked.push(first);
            }
        }
    }

    /// Answers for clients of this worker.
    pub(super) fn take_answers(&mut self) -> Batch {
        let empty = self.empty.pop().unwrap_or_default();
        mem::replace(&mut self.answers, empty)
    }

    /// Gives other workers what is for them; says whether all of it found room.
    pub(super) fn hand_over(&mut self) -> bool {
        let mut is_all = true;
        for (outgoing, worker) in self.outgoing.iter_mut().zip(&self.shared.workers) {
            for is_ask in [true, false] {
                let batch = if is_ask {
                    &mut outgoing.asks
                } else {
                    &mut outgoing.answers
                };
                if batch.is_empty() {
                    continue;
                }
                let empty = self.empty.pop().unwrap_or_default();
                let full = mem::replace(batch, empty);
                let message = if is_ask {
                    Message::Asks(full)
                } else {
                    Message::Answers(full)
                };
                match worker.mailbox.send(message) {
                    Ok(()) => {}
                    Err(Message::Asks(full) | Message::Answers(full)) => {
                        *batch = full;
                        is_all = false;
                    }
                    Err(Message::Client(_)) => unreachable!("is a batch"),
                }
            }
        }
        is_all
    }
}

#[cfg(test)]
mod tests;
