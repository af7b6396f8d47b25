//! One server thread's procedures: its executor, what it knows of caches, and the calls that it
//! owes answers.
//!
//! [`Worker::take_call`] takes calls of clients, owners and other machines; [`Worker::turn`] does
//! what has become possible since. Answers gather in [`Worker::answers`]: the connections are the
//! caller's.

mod words;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_fabric::calls::{Answered, Call, CallId};
use cenote_proc::executor::{Action, Delivery, Executor};
use cenote_proc::message::{Data, Message, NoMessage, Refusal, Refused, Replicated, Sender};
use cenote_proc::service::{
    ERRAND, Errand, ORDER, Order, REQUESTS, Taking, Travel, WORD, Word, read_data,
};
use cenote_proc::spread::{ROUND, whom_to_help};
use cenote_proc::{CacheId, ClientId, Machine, Procedures, Response, Status, Trap};
use foldhash::{HashMap, HashMapExt as _};

use super::desk::{Answer, Desk};
use super::directory::{Cache, ME};
use super::journeys::{Home, Journeys, Late, PATIENCE, RELAY, Sent, early, lost};
use super::peers::{Called, Job};
use super::shared::{Letter, Shared};
use super::uploads::Uploads;

/// See the module's text.
pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    inbox: Receiver<Letter>,
    executor: Executor,
    procedures: Procedures,
    caches: HashMap<CacheId, Known>,
    desks: HashMap<u64, Desk>,
    journeys: Journeys,
    uploads: Uploads,
    /// Words that other threads have not taken in yet.
    words: HashMap<u64, (CallId, u32)>,
    words_heard: u64,
    held_words: words::HeldWords,
    /// To be sent.
    pub(crate) answers: Vec<Answer>,
    now: Time,
    looked_at: Time,
    ticked_at: Time,
}

/// A cache as this thread knows it.
struct Known {
    cache: Arc<Cache>,
    writes_until: Time,
}

impl Worker {
    pub(super) fn new(
        index: usize,
        shared: Arc<Shared>,
        executor: Executor,
        inbox: Receiver<Letter>,
    ) -> Self {
        let procedures = Procedures::new(Arc::clone(shared.library.registry()));
        Self {
            index,
            shared,
            inbox,
            executor,
            procedures,
            caches: HashMap::new(),
            desks: HashMap::new(),
            journeys: Journeys::new(index),
            uploads: Uploads::new(index),
            words: HashMap::new(),
            words_heard: 0,
            held_words: words::HeldWords::default(),
            answers: Vec::new(),
            now: Time::now(),
            looked_at: Time(0),
            ticked_at: Time(0),
        }
    }

    /// Takes a call whose first byte is not a batch's.
    pub(crate) fn take_call(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) -> Answered {
        let Some((kind, body)) = call.request.split_first() else {
            return Answered::Never("an empty call");
        };
        let taken = match *kind {
            REQUESTS => self.take_requests(call, body),
            ERRAND => Errand::read(body).map(|errand| self.take_errand(call.id, errand)),
            WORD => Word::read(body).map(|word| self.take_word(call, word)),
            ORDER => Order::read(body).map(|order| {
                let connection = call.id.connection();
                let (library, compiler) = (&self.shared.library, &self.shared.compiler);
                let depot = self.shared.depot.as_ref();
                let now = Time::now();
                let told = (self.uploads).take(now, connection, order, library, depot, compiler);
                told.write(answer);
                Answered::Now
            }),
            _ => Err(NoMessage("a call of an unknown kind")),
        };
        taken.unwrap_or_else(|NoMessage(why)| Answered::Never(why))
    }

    /// Does what can be done; whether there was anything.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        self.now = now;
        let mut any = false;
        while let Ok(letter) = self.inbox.try_recv() {
            self.read(letter);
            any = true;
        }
        self.read_held();
        // Parked requests are gone through, so not at each turn while there are any.
        if self.executor.inactive() == 0 || now.since(self.ticked_at) >= TICK {
            self.ticked_at = now;
            self.executor.handle_tick(now);
        }
        any |= self.executor.run(&mut self.procedures, ROUND) > 0;
        self.act();
        if self.shared.shelves[self.index].len() >= 2 * ROUND {
            self.shared.wake_an_idle(self.index);
        }
        if now.since(self.looked_at) >= LOOK {
            self.looked_at = now;
            self.look();
        }
        any | !self.answers.is_empty()
    }

    /// Takes steps for the thread with the most to do; whether there were any.
    pub(crate) fn help(&mut self) -> bool {
        let lengths: Vec<_> = self
            .shared
            .shelves
            .iter()
            .map(|shelf| shelf.len())
            .collect();
        let Some((busy, count)) = whom_to_help(&lengths, self.index) else {
            return false;
        };
        let shelf = Arc::clone(&self.shared.shelves[busy]);
        let ended = self.executor.help(&shelf, &mut self.procedures, count);
        let any = !ended.is_empty();
        if any {
            self.shared.post(busy, Letter::Ended(ended));
        }
        any
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.shared.shelves[self.index].is_empty() || self.executor.has_own_work()
    }

    /// Nobody waits for what was asked over a connection.
    pub(crate) fn connection_ended(&mut self, connection: u64) {
        self.executor.handle_client_left(ClientId(connection));
        self.desks.remove(&connection);
        self.uploads.connection_ended(connection);
    }

    /// How long it may sleep unless it is woken; `None`: as long as nobody wakes it.
    pub(crate) fn patience(&self) -> Option<Duration> {
        if self.executor.inactive() > 0 {
            let next = self.executor.next_tick().map(|at| at.since(self.now));
            return Some(next.unwrap_or(LOOK).clamp(TICK, LOOK));
        }
        let is_idle = self.desks.is_empty() && self.journeys.is_empty();
        (!is_idle).then_some(LOOK)
    }

    fn read(&mut self, letter: Letter) {
        match letter {
            Letter::Notice(notice, taken) => self.read_notice(notice, taken),
            Letter::Taken(word, heed) => self.word_taken(word, heed),
            Letter::Doubt(cache, region, generation, life) => {
                self.executor.handle_doubt(cache, region, generation, life);
            }
            Letter::Ended(ended) => {
                for ended in ended {
                    self.executor.settle(ended);
                }
            }
            Letter::Answers(responses) => self.come_home(responses),
            Letter::Called(token, end) => self.called(token, end),
            Letter::Gone(machine) => {
                for abroad in self.journeys.gone(machine) {
                    self.answer(abroad.client, vec![lost(abroad.number)]);
                }
            }
            Letter::Told(connection, told) => self.uploads.ended(connection, told),
        }
    }

    fn take_requests(&mut self, call: &Call<'_>, body: &[u8]) -> Result<Answered, NoMessage> {
        let connection = call.id.connection();
        let client = ClientId(connection);
        let Message::Requests(requests) = Message::read(body, Sender::Client(client))? else {
            return Err(NoMessage("not requests"));
        };
        let (user, now) = (call.client.0, self.now);
        let desk = self.desks.entry(connection);
        let desk = desk.or_insert_with(|| Desk::new(user, now));
        desk.take(call.id, requests.len(), now);
        let waiting = self.executor.inactive() + self.executor.own();
        let held = self.shared.shelves[self.index].len() + waiting;
        let is_full = desk.under_way() > CONNECTION_MAX || held > THREAD_MAX;
        let mut refused = Vec::new();
        let caches = &self.caches;
        // Of a batch the cache is mostly one.
        let mut last = None;
        let admitted = requests.into_iter().filter_map(|request| {
            let admits = match last {
                Some((cache, admits)) if cache == request.cache => admits,
                _ => {
                    let known = caches.get(&request.cache);
                    known.is_none_or(|known| known.cache.admits(user))
                }
            };
            last = Some((request.cache, admits));
            let status = match admits {
                true if !is_full => return Some(request),
                true => Status::Busy,
                false => Status::Trapped(Trap::Denied),
            };
            refused.push(request.into_response(status));
            None
        });
        self.executor.handle_requests(admitted);
        if !refused.is_empty() {
            desk.answer(refused, now, &mut self.answers);
        }
        if desk.send(now, &mut self.answers) {
            self.desks.remove(&connection);
        }
        Ok(Answered::Later)
    }

    fn take_errand(&mut self, call: CallId, errand: Errand) -> Answered {
        // The thread may have slept since its last turn, and a request that comes may have to wait.
        self.now = Time::now();
        self.executor.handle_tick(self.now);
        match errand {
            Errand::Fetch(mut fetch) => {
                fetch.from = self.journeys.came(call);
                self.executor.handle_fetch(fetch);
                self.act();
            }
            Errand::Move(travel) => self.take_travel(call, travel),
            Errand::Answers(responses) => {
                self.answers.push((call, vec![0]));
                self.deliver_home(responses);
            }
            Errand::Replicate(replicate) => {
                let end = self.executor.handle_replicate(&replicate);
                self.answers.push((call, vec![end as u8]));
            }
        }
        Answered::Later
    }

    fn take_travel(&mut self, call: CallId, travel: Travel) {
        let Travel {
            user,
            home,
            ticket,
            mut moved,
        } = travel;
        let known = self.caches.get(&moved.request.cache);
        let known = known.filter(|known| known.cache.admits(user));
        let machine = known.and_then(|known| known.cache.machine(home));
        let home = machine.map(|machine| Home {
            user,
            machine,
            ticket,
        });
        // A machine that was not told of the cache yet: its sender asks again.
        let is_here = home.is_some_and(|home| self.journeys.admit(&mut moved.request, home));
        if !is_here {
            return self.answers.push((call, vec![Taking::Early as u8]));
        }
        let from = self.journeys.came(call);
        moved.from = from;
        self.executor.handle_moved(moved);
        self.act();
        // Not refused: it goes on here, or is this machine's to send on. Who sent it need not wait
        // for a third.
        self.answer_incoming(from, vec![Taking::Taken as u8]);
    }

    fn answer_incoming(&mut self, machine: Machine, bytes: Vec<u8>) {
        let number = Journeys::incoming(machine);
        if let Some(call) = number.and_then(|number| self.journeys.take_incoming(number)) {
            self.answers.push((call, bytes));
        }
    }

    /// Sends what the executor has decided.
    fn act(&mut self) {
        while let Some(action) = self.executor.poll_action() {
            match action {
                Action::Answer { client, responses } => self.answer(client, responses),
                Action::Move { to, moved, give_up } => {
                    let journeys = &mut self.journeys;
                    let desks = &self.desks;
                    let user = || {
                        desks
                            .get(&moved.request.client.0)
                            .map_or(0, |desk| desk.user)
                    };
                    let Some(home) = journeys.depart(&moved.request, to, user, self.now) else {
                        continue;
                    };
                    let travel = self.caches.get(&moved.request.cache).and_then(|known| {
                        Some(Travel {
                            user: home.user,
                            home: known.cache.index_of(home.machine)?,
                            ticket: home.ticket,
                            moved: moved.clone(),
                        })
                    });
                    let sent = Sent::Move(Box::new(moved), home, give_up);
                    let token = self.journeys.sent(sent);
                    match travel {
                        Some(travel) => self.call(to, token, &Errand::Move(travel)),
                        None => self.called(token, Called::NotSent),
                    }
                }
                Action::Refuse { to, refused } => {
                    self.journeys.end(refused.moved.request.number);
                    self.answer_incoming(to, vec![Taking::Refused as u8]);
                }
                Action::Fetch { to, mut fetch } => {
                    let sent = match Journeys::incoming(fetch.from) {
                        Some(number) => Sent::Relay(number, self.now.after(RELAY)),
                        None => Sent::Fetch(fetch.token),
                    };
                    fetch.from = ME;
                    let token = self.journeys.sent(sent);
                    self.call(to, token, &Errand::Fetch(fetch));
                }
                Action::Data { to, data } => {
                    let mut bytes = Vec::new();
                    Message::Data(data).write(&mut bytes);
                    self.answer_incoming(to, bytes);
                }
                Action::Replicate { to, replicate } => {
                    let token = self.journeys.sent(Sent::Replicate(replicate.token));
                    self.call(to, token, &Errand::Replicate(replicate));
                }
                Action::Doubt {
                    cache,
                    region,
                    generation,
                    life,
                } => {
                    let doubt = || Letter::Doubt(cache, region, generation, life.clone());
                    self.shared.post_to_others(self.index, doubt);
                }
            }
        }
    }

    fn call(&mut self, to: Machine, token: u64, errand: &Errand) {
        let Some(address) = self.shared.directory.address(to) else {
            return self.called(token, Called::NotSent);
        };
        let mut bytes = Vec::new();
        errand.write(&mut bytes);
        self.shared.peers.call(Job {
            to,
            address,
            thread: self.index,
            token,
            bytes,
            // Stores wait behind it that others take at once.
            at_once: matches!(errand, Errand::Replicate(_)),
        });
    }

    fn called(&mut self, token: u64, end: Called) {
        match self.journeys.called(token) {
            // Twice does no harm: a home answers a ticket once.
            Some(Sent::Answers(late)) if !matches!(end, Called::Answered(_)) => {
                self.journeys.keep(late);
            }
            None | Some(Sent::Answers(_)) => {}
            Some(Sent::Fetch(token)) => {
                let read = match &end {
                    Called::Answered(bytes) => read_data(bytes).ok(),
                    // The machine may be back in a moment; and if not, the owner will say who
                    // follows.
                    Called::NotSent | Called::Lost => None,
                };
                let bytes = read.map_or(Err(Refusal::Early), |data| data.bytes);
                self.executor.handle_data(Data { token, bytes });
            }
            Some(Sent::Replicate(token)) => {
                let delivery = match &end {
                    Called::Answered(bytes) => {
                        Replicated::read(bytes).map_or(Delivery::Lost, Delivery::Answered)
                    }
                    Called::NotSent => Delivery::NotSent,
                    Called::Lost => Delivery::Lost,
                };
                self.executor.handle_replicated(token, delivery);
            }
            Some(Sent::Relay(number, _)) => {
                let bytes = match end {
                    Called::Answered(bytes) => bytes,
                    Called::NotSent | Called::Lost => early(),
                };
                if let Some(call) = self.journeys.take_incoming(number) {
                    self.answers.push((call, bytes));
                }
            }
            Some(Sent::Move(moved, home, give_up)) => {
                let taking = match end {
                    Called::Answered(bytes) => Taking::read(&bytes).unwrap_or(Taking::Lost),
                    Called::NotSent => Taking::Early,
                    Called::Lost => Taking::Lost,
                };
                match taking {
                    Taking::Taken => {}
                    Taking::Lost => self.send_home(home, vec![lost(home.ticket)]),
                    Taking::Refused => {
                        let mut moved = *moved;
                        if self.journeys.take_back(&mut moved.request, home) {
                            self.executor.handle_refused(Refused { moved });
                        }
                    }
                    Taking::Early => {
                        let mut moved = *moved;
                        if self.journeys.take_back(&mut moved.request, home) {
                            self.executor.handle_unsent(moved, give_up);
                        }
                    }
                }
            }
        }
    }

    /// Requests ended: their clients are here, or are other machines.
    fn answer(&mut self, client: ClientId, responses: Vec<Response>) {
        if !Journeys::is_foreign(client) {
            if let Some(desk) = self.desks.get_mut(&client.0) {
                desk.answer(responses, self.now, &mut self.answers);
                if desk.send(self.now, &mut self.answers) {
                    self.desks.remove(&client.0);
                }
            }
            return;
        }
        let mut homes: Vec<(Home, Vec<Response>)> = Vec::new();
        for mut response in responses {
            let Some(home) = self.journeys.end(response.number) else {
                continue;
            };
            response.number = home.ticket;
            match homes
                .iter_mut()
                .find(|(other, _)| other.machine == home.machine)
            {
                Some((_, batch)) => batch.push(response),
                None => homes.push((home, vec![response])),
            }
        }
        for (home, responses) in homes {
            self.send_home(home, responses);
        }
    }

    /// Tells a home what became of its requests, by their tickets.
    fn send_home(&mut self, home: Home, responses: Vec<Response>) {
        if home.machine == ME {
            return self.deliver_home(responses);
        }
        let give_up = self.now.after(PATIENCE);
        self.send_answers(Late {
            to: home.machine,
            responses,
            give_up,
        });
    }

    fn send_answers(&mut self, late: Late) {
        let (to, errand) = (late.to, Errand::Answers(late.responses.clone()));
        let token = self.journeys.sent(Sent::Answers(late));
        self.call(to, token, &errand);
    }

    /// This host is the home.
    fn deliver_home(&mut self, responses: Vec<Response>) {
        let mut by_thread: HashMap<usize, Vec<Response>> = HashMap::new();
        for response in responses {
            let thread = Journeys::thread_of(response.number);
            by_thread.entry(thread).or_default().push(response);
        }
        for (thread, responses) in by_thread {
            if thread == self.index {
                self.come_home(responses);
            } else if thread < self.shared.posts.len() {
                self.shared.post(thread, Letter::Answers(responses));
            }
        }
    }

    fn come_home(&mut self, responses: Vec<Response>) {
        for mut response in responses {
            if let Some(abroad) = self.journeys.redeem(response.number) {
                response.number = abroad.number;
                self.answer(abroad.client, vec![response]);
            }
        }
    }

    /// What is to be done now and then.
    fn look(&mut self) {
        for abroad in self.journeys.overdue(self.now) {
            self.answer(abroad.client, vec![lost(abroad.number)]);
        }
        for late in self.journeys.take_late(self.now) {
            self.send_answers(late);
        }
        for call in self.journeys.overdue_relays(self.now) {
            self.answers.push((call, early()));
        }
        for desk in self.desks.values_mut() {
            desk.tend(self.now, &mut self.answers);
        }
    }
}

/// How often parked requests are looked at.
const TICK: Duration = Duration::from_millis(1);
/// How often clients are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Requests of a connection, here and elsewhere; more are answered `Busy`.
const CONNECTION_MAX: usize = 4096;
/// Requests of a thread, queued and parked; more are answered `Busy`. Each has a state of 1 KiB at
/// most.
const THREAD_MAX: usize = 1 << 16;
