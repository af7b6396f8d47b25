//! The loop of one thread: its clients, its partitions, and nothing that blocks but its poll.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::strangers::Source;
use mio::event::Event;
use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};

use super::backend::{Backend, FIRST_TOKEN};
use super::buffers::{Held, PATIENCE_SECONDS, Part, Shares};
use super::client::{Client, Turn};
use super::clock::{now_ns, since_1970};
use super::core::Core;
use super::mailboxes::{Message, NewClient};
use super::session::Session;
use super::shared::Shared;
use super::udp::{Exchange, Sockets};
use super::watch::CONNECTIONS;

/// The token of what wakes a worker.
pub(super) const WAKER: Token = Token(usize::MAX);
/// Tokens from here on are datagram sockets; those below are clients.
const SOCKET_TOKENS: usize = 1 << 32;
/// Events that are taken at once.
const EVENTS_MAX: usize = 1024;
/// Turns of clients before the poll is asked again.
const TURNS_MAX: usize = 256;
/// No further one begins after so long: other nodes of a cluster are to hear of this one, which is missed
/// after half a second and whose leases last a tenth.
const TURNS_NS_MAX: u64 = 5_000_000;
/// Messages that are taken in one turn.
const MESSAGES_PER_TURN: usize = 64;
/// Datagrams' requests that may be under way.
const EXCHANGES_MAX: usize = 1024;
/// How soon a message is sent again that found no room.
const FULL_RETRY: Duration = Duration::from_millis(1);

/// Whole seconds in which a client may pause by itself before it is let go.
const PAUSE_SECONDS: u64 = 1;
/// Seconds after which a client that is let go is waited for no more if it reads nothing; arbitrary.
const UNREAD_SECONDS: u64 = 5;

/// Who is at a place.
enum Occupant {
    Client(Box<Client>),
    Exchange(Box<Exchange>),
}

/// Clients, each at a place that its tickets and events name.
#[derive(Default)]
struct Places {
    occupants: Vec<Option<Occupant>>,
    /// How often each place has been left.
    generations: Vec<u32>,
    free: Vec<usize>,
    exchanges: usize,
}

impl Places {
    /// A place that is free, and its generation.
    fn next(&mut self) -> (usize, u32) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.occupants.push(None);
            self.generations.push(0);
            self.occupants.len() - 1
        });
        (place, self.generations[place])
    }

    fn leave(&mut self, place: usize) -> Option<Occupant> {
        let occupant = self.occupants[place].take();
        self.generations[place] = self.generations[place].wrapping_add(1);
        self.free.push(place);
        if matches!(occupant, Some(Occupant::Exchange(_))) {
            self.exchanges -= 1;
        }
        occupant
    }

    fn client(&mut self, place: usize) -> Option<&mut Client> {
        match self.occupants.get_mut(place)? {
            Some(Occupant::Client(client)) => Some(client),
            _ => None,
        }
    }

    /// What each client holds, and whose share that is of.
    fn held(&self) -> impl Iterator<Item = (Source, Held)> {
        self.occupants.iter().filter_map(|occupant| match occupant {
            Some(Occupant::Client(client)) => Some((client.source, client.held)),
            _ => None,
        })
    }
}

/// See the [module](self).
pub(super) struct Worker<B: Backend> {
    poll: Poll,
    shared: Arc<Shared>,
    core: Core<B>,
    places: Places,
    /// Clients that have something to do, and datagrams' requests that go on.
    queue: VecDeque<usize>,
    /// Clients whose replies may be sent.
    written: Vec<usize>,
    sockets: Sockets,
    /// From the beginning of the present turn.
    second_ends_in: Duration,
    /// Second of the last look for idle clients, and for those that keep others waiting.
    looked: u64,
    /// Second since which clients are let go.
    drains_since: Option<u64>,
    /// Second in which it was last looked at who of them reads.
    drain_looked: u64,
    /// Seconds that the latter are given.
    patience: u32,
}

impl<B: Backend> Worker<B> {
    pub(super) fn new(
        poll: Poll,
        index: usize,
        mut backend: B,
        shared: Arc<Shared>,
        sockets: Vec<UdpSocket>,
    ) -> io::Result<Self> {
        backend.register(poll.registry())?;
        let mut sockets = Sockets::new(sockets);
        for (index, socket) in sockets.iter_mut().enumerate() {
            let token = Token(SOCKET_TOKENS + index);
            poll.registry()
                .register(socket, token, Interest::READABLE)?;
        }
        Ok(Self {
            poll,
            core: Core::new(index, backend, Arc::clone(&shared)),
            shared,
            places: Places::default(),
            queue: VecDeque::new(),
            written: Vec::new(),
            sockets,
            second_ends_in: Duration::ZERO,
            looked: 0,
            drains_since: None,
            drain_looked: 0,
            patience: PATIENCE_SECONDS,
        })
    }

    /// Serves until the server stops.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut wait = Some(Duration::ZERO);
        loop {
            self.poll(&mut events, wait)?;
            let since = since_1970();
            self.second_ends_in = until_next_second(since);
            let now_ns = now_ns();
            self.core.tick(since.as_secs(), now_ns);
            self.core.stopwatch.look(now_ns);
            for event in &events {
                self.note(event);
            }
            if self.shared.stops.load(Ordering::SeqCst) {
                return self.say_goodbye();
            }
            self.core.look_for_watchers();
            self.core.follow_memory();
            let has_mail = self.take_messages();
            self.take_datagrams();
            self.take_turns(TURNS_MAX);
            wait = self.core.move_on();
            self.take_answers();
            self.core.show_figures();
            self.show_events();
            self.write();
            self.give_room();
            self.drop_idle();
            self.drain();
            if !self.core.hand_over() {
                wait = Some(wait.map_or(FULL_RETRY, |wait| wait.min(FULL_RETRY)));
            }
            if has_mail || !self.queue.is_empty() || self.sockets.has_more() {
                wait = Some(Duration::ZERO);
            }
        }
    }

    fn poll(&mut self, events: &mut Events, wait: Option<Duration>) -> io::Result<()> {
        let mailbox = &self.shared.workers[self.core.index].mailbox;
        // As it was when this turn began: nobody notices a second that is seen late while nobody asks.
        let second = self.second_ends_in;
        let mut wait = wait.map_or(second, |wait| wait.min(second));
        if !wait.is_zero() && !mailbox.may_sleep() {
            wait = Duration::ZERO;
        }
        let polled = self.poll.poll(events, Some(wait));
        mailbox.is_up();
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn note(&mut self, event: &Event) {
        let token = event.token();
        if token == WAKER {
            return;
        }
        if token.0 >= FIRST_TOKEN.0 {
            self.core.backend.on_event(event);
        } else if token.0 >= SOCKET_TOKENS {
            self.sockets.note_readable(token.0 - SOCKET_TOKENS);
        } else if let Some(client) = self.places.client(token.0) {
            client.note_event(event);
            if client.is_waiting {
                // It has no turn, and may have answers from before.
                self.written.push(token.0);
            }
            self.enqueue(token.0);
        }
    }

    fn enqueue(&mut self, place: usize) {
        if let Some(client) = self.places.client(place)
            && !client.is_queued
            && !client.is_waiting
        {
            client.is_queued = true;
            self.queue.push_back(place);
        }
    }

    /// Takes what lies in the mailbox; says whether there may be more.
    fn take_messages(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mailbox = &shared.workers[self.core.index].mailbox;
        for _ in 0..MESSAGES_PER_TURN {
            match mailbox.receive() {
                None => return false,
                Some(Message::Client(client)) => self.take_client(*client),
                Some(Message::Asks(asks)) => self.core.take_asks(asks),
                Some(Message::Answers(mut answers)) => {
                    self.fill(&answers);
                    answers.clear();
                    self.core.keep(answers);
                }
            }
        }
        true
    }

    fn take_client(&mut self, mut new: NewClient) {
        let (place, generation) = self.places.next();
        if let Err(error) = new.transport.register(self.poll.registry(), Token(place)) {
            self.shared.log(0, || format!("register: {error}"));
            self.places.free.push(place);
            return self.shared.note_end(&new.facts);
        }
        let mut session = Session::new(number(place), generation);
        session.connection = Some(new.facts.number);
        self.shared
            .note_place(&new.facts, self.core.index, number(place));
        let client = Client::new(new, session, place, &self.core);
        self.places.occupants[place] = Some(Occupant::Client(Box::new(client)));
        self.enqueue(place);
    }

    /// Takes what has come, one request of each datagram after another, up to the number of requests of one
    /// turn; loses a datagram where others have the memory.
    fn take_datagrams(&mut self) {
        if !self.sockets.has_more() {
            return;
        }
        self.sockets.receive(&self.core);
        let mut left = self.shared.settings.requests_per_turn;
        while left > 0
            && let Some(mut arrival) = self.sockets.arrivals.pop_front()
        {
            let has_place = self.places.exchanges < EXCHANGES_MAX;
            if !has_place || !self.core.may_answer_datagram(arrival.bytes()) {
                continue;
            }
            let (place, generation) = self.places.next();
            let session = || Session::new(number(place), generation);
            let Some(mut exchange) = arrival.next(&mut self.core, session) else {
                self.places.free.push(place);
                continue;
            };
            self.sockets.arrivals.push_back(arrival);
            left = (left - 1).saturating_sub(exchange.session.take_cost());
            self.places.occupants[place] = Some(Occupant::Exchange(Box::new(exchange)));
            self.places.exchanges += 1;
            self.settle_exchange(place);
        }
        self.core.end_turn();
    }

    /// Sends a reply that is whole; has the rest of it served in a turn of its own where it need not wait.
    fn settle_exchange(&mut self, place: usize) {
        let Some(Some(Occupant::Exchange(exchange))) = self.places.occupants.get_mut(place) else {
            return;
        };
        let is_over = exchange.is_over();
        let now = if is_over { 0 } else { exchange.session.bytes() };
        let counted = std::mem::replace(&mut exchange.counted, now);
        self.core.clients.change(Part::Answers, counted, now);
        if is_over {
            if !exchange.is_too_long() {
                self.sockets.send(&self.core, exchange);
            }
            self.places.leave(place);
        } else if exchange.may_go_on() && !std::mem::replace(&mut exchange.is_queued, true) {
            self.queue.push_back(place);
        }
    }

    /// Goes on with a reply to a datagram, where there is one at this place.
    fn go_on_with_exchange(&mut self, place: usize) {
        let occupant = self.places.occupants.get_mut(place);
        if let Some(Some(Occupant::Exchange(exchange))) = occupant
            && std::mem::take(&mut exchange.is_queued)
        {
            exchange.session.go_on(&mut self.core, None);
            self.core.end_turn();
            self.settle_exchange(place);
        }
    }

    /// Gives clients that have something to do their turns, so many at the most.
    fn take_turns(&mut self, most: usize) {
        if !self.queue.is_empty() {
            // What other workers asked for is not the first client's time.
            self.core.look_at_clock();
        }
        let began_ns = self.core.stopwatch.looked_ns();
        for _ in 0..most {
            // Each turn ends with a look at the clock.
            if self.core.stopwatch.looked_ns() - began_ns > TURNS_NS_MAX {
                break;
            }
            let Some(place) = self.queue.pop_front() else {
                break;
            };
            let Some(client) = self.places.client(place) else {
                self.go_on_with_exchange(place);
                continue;
            };
            // A client that left may have stood in the queue, and this is its successor.
            if !std::mem::take(&mut client.is_queued) {
                continue;
            }
            let turn = client.turn(&mut self.core);
            self.core.end_turn();
            client.count_answers(&mut self.core);
            self.written.push(place);
            match turn {
                Turn::Again => self.enqueue(place),
                Turn::WaitsForRoom(part, wanted) => {
                    client.is_waiting = true;
                    self.core.clients.wait(part, client.waiter(wanted));
                }
                Turn::Waits => {}
            }
        }
    }

    fn take_answers(&mut self) {
        let mut answers = self.core.take_answers();
        self.fill(&answers);
        answers.clear();
        self.core.keep(answers);
    }

    /// Puts answers in their places.
    fn fill(&mut self, answers: &super::batch::Batch) {
        if answers.is_empty() {
            return;
        }
        self.core.look_at_clock();
        for (ticket, text) in answers.iter() {
            let place = ticket.client as usize;
            if self.places.generations.get(place) != Some(&ticket.generation) {
                continue;
            }
            match &mut self.places.occupants[place] {
                Some(Occupant::Client(client)) => {
                    let timed = client.session.fill(ticket.slot, text);
                    self.core.note_answer(timed);
                    // A guest that now has nothing is none any more, whatever it asks for next.
                    client.end_guest(&mut self.core);
                    let has_more = client.has_more();
                    self.written.push(place);
                    if has_more {
                        self.enqueue(place);
                    }
                }
                Some(Occupant::Exchange(exchange)) => {
                    let timed = exchange.session.fill(ticket.slot, text);
                    self.core.note_answer(timed);
                    self.settle_exchange(place);
                }
                None => {}
            }
        }
    }

    /// Moves what is to be shown to clients of this worker that watch.
    fn show_events(&mut self) {
        for watcher in self.shared.watchers.of(self.core.index) {
            if let Some(client) = self.places.client(watcher.place) {
                client.session.show_events();
                self.written.push(watcher.place);
            }
        }
    }

    /// Sends replies, and drops clients that are done.
    fn write(&mut self) {
        let mut written = std::mem::take(&mut self.written);
        for place in written.drain(..) {
            let Some(client) = self.places.client(place) else {
                continue;
            };
            client.write(&self.core);
            client.count_answers(&mut self.core);
            if client.is_over() {
                self.drop_client(place);
            } else if !client.session.is_held_up() && client.session.has_more() {
                self.enqueue(place);
            }
        }
        self.written = written;
    }

    fn drop_client(&mut self, place: usize) {
        let Some(Occupant::Client(mut client)) = self.places.leave(place) else {
            return;
        };
        client.transport.say_goodbye();
        client.release(&mut self.core);
        // Closing takes it from the poll in any case.
        client.transport.deregister(self.poll.registry()).ok();
        let number = client.facts.number;
        self.shared
            .log(2, || format!("<{number} connection closed."));
        if let Some(watcher) = &client.session.watcher {
            self.shared.watchers.remove(watcher);
        }
        let reason = client.reason();
        self.shared.watched(CONNECTIONS, || {
            client.facts.line("conn_close", Some(reason))
        });
        self.shared.note_end(&client.facts);
    }

    /// Lets clients go of whom nothing is under way, if no more are wanted. Those who never pause are
    /// answered what has been read of them by then, unless they read no answers.
    fn drain(&mut self) {
        if !self.shared.drains.load(Ordering::SeqCst) {
            return;
        }
        let now = self.core.now;
        let since = *self.drains_since.get_or_insert(now);
        let is_long = now > since + PAUSE_SECONDS;
        let unread_since = now.saturating_sub(UNREAD_SECONDS);
        let is_new_second = std::mem::replace(&mut self.drain_looked, now) != now;
        for place in 0..self.places.occupants.len() {
            let Some(client) = self.places.client(place) else {
                continue;
            };
            client.session.has_quit |= is_long && !client.session.has_more();
            // Also in the first seconds: what has been read by now is to be known.
            let is_unread = is_new_second && client.does_not_read_since(unread_since, now);
            let is_stuck = is_unread && since < unread_since;
            if client.is_idle() || client.is_over() || is_stuck {
                self.drop_client(place);
            }
        }
    }

    /// Gives memory that has come free to those that wait for it.
    fn give_room(&mut self) {
        self.core.count_elsewhere();
        let places = &mut self.places;
        let mut given = Vec::new();
        for part in Part::ALL {
            let mut own = |place| {
                places
                    .client(place)
                    .map_or(0, |client| client.held.of(part))
            };
            while let Some(place) = self.core.clients.next(part, &mut own) {
                given.push(place);
            }
        }
        for place in given {
            if let Some(client) = self.places.client(place) {
                client.is_waiting = false;
            }
            self.enqueue(place);
        }
        let held = self.core.clients.held() as u64;
        self.core.traffic().buffer_bytes.set(held);
    }

    /// Drops clients that are silent for too long, and those that keep others waiting.
    fn drop_idle(&mut self) {
        if self.looked == self.core.now {
            return;
        }
        self.looked = self.core.now;
        if let Some(timeout) = self.shared.settings.idle_timeout {
            let since = self.core.now.saturating_sub(timeout.as_secs());
            let idle = self.those(|client| client.is_idle_since(since));
            self.core.traffic().idle_kicks.add(idle.len() as u64);
            self.drop_clients(idle);
        }
        self.drop_slow();
    }

    /// Drops clients that keep others waiting.
    fn drop_slow(&mut self) {
        let (buffers, now) = (&self.core.clients, self.core.now);
        let mut parts = Part::ALL.into_iter();
        let is_waited_for = parts.any(|part| buffers.is_waited_for(part));
        let shares = match is_waited_for {
            true => buffers.shares(self.places.held()),
            false => Shares::default(),
        };
        let places = 0..self.places.occupants.len();
        let slow: Vec<usize> = places
            .filter(|place| {
                let client = self.places.client(*place);
                client
                    .is_some_and(|client| client.is_too_slow(buffers, &shares, self.patience, now))
            })
            .collect();
        self.patience = match (is_waited_for, slow.is_empty()) {
            (false, _) => PATIENCE_SECONDS,
            (true, true) => self.patience,
            (true, false) => (self.patience / 2).max(1),
        };
        self.drop_clients(slow);
    }

    /// Places of some clients.
    fn those(&mut self, is_one: impl Fn(&Client) -> bool) -> Vec<usize> {
        let places = 0..self.places.occupants.len();
        let is_one = |place: &usize| {
            self.places
                .client(*place)
                .is_some_and(|client| is_one(client))
        };
        places.filter(is_one).collect()
    }

    fn drop_clients(&mut self, places: Vec<usize>) {
        places.into_iter().for_each(|place| self.drop_client(place));
    }

    fn say_goodbye(&mut self) -> io::Result<()> {
        for place in 0..self.places.occupants.len() {
            if let Some(client) = self.places.client(place) {
                client.write(&self.core);
                self.drop_client(place);
            }
        }
        Ok(())
    }
}

fn number(place: usize) -> u32 {
    u32::try_from(place).expect("fewer clients than descriptors")
}

/// The time is looked at when it changes.
fn until_next_second(since: Duration) -> Duration {
    Duration::from_secs(1) - Duration::from_nanos(u64::from(since.subsec_nanos()))
}

#[cfg(test)]
mod tests;
