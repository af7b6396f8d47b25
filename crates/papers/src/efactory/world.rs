//! The events of one run: clients in a closed loop, the server's card, its cores, its background
//! core.
//!
//! Time is in picoseconds. Events of one moment happen in the order in which they were made, and
//! all randomness comes from the seed, so a run is the same on every machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cenote_measure::random::Random;
use cenote_measure::zipf::Zipf;
use cenote_store::schemes::{Durable, GetStep, PutStep, Scheme};

use super::background::{Background, Cleaning, Job};
use super::card::{Way, picoseconds};
use super::client::{Operation, Seen, is_pipelined};
use super::cores::{Cores, Work};
use super::price::{Outcome, Prices};
use super::tally::{Kind, Measured, Taken, Tally, Use};
use super::versions::{Version, Versions};
use super::{Fallback, Setup};

/// A message or verb on its way to the server.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Request {
    ReadEntry { key: u32 },
    ReadObject { version: Version },
    Write { version: Version, is_awaited: bool },
    WriteImmediate { version: Version },
    Send { version: Version },
    CallForSpace { key: u32 },
    CallWithValue { key: u32 },
    CallForPlace { key: u32 },
}

/// What comes back.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Answer {
    /// What an entry names, and whether its object is not to be read one-sided.
    Entry { version: Version, must_call: bool },
    /// What was there.
    Object(Seen),
    /// A WRITE's completion, or the server's word that a version is durable.
    Done,
    /// Space for a version.
    Space { version: Version },
    /// None now.
    Refused,
    /// Where to read.
    Place { version: Version },
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// A client is free, or has waited or computed for long enough.
    Ready(u32),
    /// Something is at the server's card.
    AtCard(u32, Request),
    /// It has passed it.
    Passed(u32, Request),
    /// A core has done a client's work, after so long.
    Served(u32, Outcome, u64),
    /// A client has its answer, and whether the server was cleaning when it said so.
    Answered(u32, Answer, bool),
    /// The background core has done something, after so long.
    Background(Job, u64),
    /// The log is to be cleaned from now on.
    Clean,
}

struct Client {
    operation: Operation,
    /// When the last thing that it posted is at the card: one connection keeps its order.
    posted_ps: u64,
    /// The server cleans its log, as far as this client knows.
    knows_cleaning: bool,
    /// It computes a checksum.
    is_checking: bool,
}

pub(super) struct World<'a> {
    setup: &'a Setup,
    scheme: &'a dyn Scheme,
    prices: Prices<'a>,
    random: Random,
    zipf: Zipf,
    now_ps: u64,
    made: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    inward: Way,
    outward: Way,
    cores: Cores,
    background: Background,
    versions: Versions,
    clients: Vec<Client>,
    tally: Tally,
    cleaned_ps: Option<u64>,
}

impl<'a> World<'a> {
    pub(super) fn new(setup: &'a Setup, scheme: &'a dyn Scheme) -> Self {
        let costs = &setup.parameters;
        let packet_ps = picoseconds(costs.card_way_ns(costs.packet_bytes));
        Self {
            setup,
            scheme,
            prices: Prices {
                scheme,
                parameters: costs,
                value_bytes: setup.value_bytes,
            },
            random: Random::new(setup.seed),
            zipf: Zipf::new(u64::from(costs.keys)),
            now_ps: 0,
            made: 0,
            events: BinaryHeap::new(),
            inward: Way::new(packet_ps),
            outward: Way::new(packet_ps),
            cores: Cores::new(costs.server_cores),
            background: Background::default(),
            versions: Versions::new(costs.keys, scheme.named()),
            clients: Vec::new(),
            tally: Tally::new(setup.warm_up_ps(), setup.has_trace),
            cleaned_ps: None,
        }
    }

    /// Runs until the time is over, or the log is cleaned.
    pub(super) fn finish(mut self) -> Measured {
        for client in 0..self.setup.clients {
            let operation = self.draw(0);
            self.clients.push(Client {
                operation,
                posted_ps: 0,
                knows_cleaning: false,
                is_checking: false,
            });
            // Not all at once.
            let begins_ps = self.random.below(picoseconds(self.setup.parameters.rtt_ns));
            self.schedule(begins_ps, Event::Ready(client));
            self.clients[client as usize].operation.began_ps = begins_ps;
            self.tally.begin();
        }
        if self.setup.cleaning.is_some() {
            self.schedule(self.setup.warm_up_ps(), Event::Clean);
        }
        let end_ps = self.setup.end_ps();
        while self.cleaned_ps.is_none() {
            let Reverse((at_ps, _, event)) = self.events.pop().expect("a closed loop goes on");
            if at_ps >= end_ps {
                break;
            }
            self.now_ps = at_ps;
            self.tally.tick(at_ps);
            self.happen(event);
        }
        self.measured(end_ps)
    }

    fn measured(self, end_ps: u64) -> Measured {
        let now_ps = self.cleaned_ps.unwrap_or(end_ps);
        let share = |busy_ps: u64| busy_ps as f64 / now_ps as f64;
        let use_of = Use {
            cores: share(self.cores.busy_ps()) / self.setup.parameters.server_cores as f64,
            background: share(self.background.busy_ps()),
            link: share(self.inward.busy_ps().max(self.outward.busy_ps())),
        };
        let warm_up_ps = self.setup.warm_up_ps();
        Measured {
            use_of,
            cleaning_ms: (self.cleaned_ps).map(|at_ps| (at_ps - warm_up_ps) as f64 / 1e9),
            ..self.tally.measured(now_ps)
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ready(client) => self.ready(client),
            Event::AtCard(client, request) => {
                let bytes = self.bytes_there(request);
                let service_ps = picoseconds(self.setup.parameters.card_way_ns(bytes));
                let passed_ps = match request {
                    // Behind a WRITE on its connection.
                    Request::Send { .. } => self.inward.pass_in_order(self.now_ps, service_ps),
                    _ => self.inward.pass(self.now_ps, service_ps),
                };
                self.schedule(passed_ps, Event::Passed(client, request));
            }
            Event::Passed(client, request) => self.arrive(client, request),
            Event::Served(client, outcome, took_ps) => {
                self.cores.end(took_ps);
                self.serve(client, outcome);
                self.begin_work();
            }
            Event::Answered(client, answer, is_cleaning) => {
                self.answered(client, answer, is_cleaning);
            }
            Event::Background(job, took_ps) => {
                let was_cleaning = self.background.cleaning().is_some();
                self.background.end(job, took_ps);
                if let Job::Persist {
                    version,
                    allocated_ps,
                    is_whole: true,
                } = job
                {
                    self.settle(version);
                    self.tally.lag(self.now_ps - allocated_ps);
                }
                if was_cleaning && self.background.cleaning().is_none() {
                    self.cleaned_ps = Some(self.now_ps);
                }
                self.begin_background();
            }
            Event::Clean => {
                let order = self.index_order();
                let cleaning = Cleaning::new(order, self.versions.count());
                self.background.clean(cleaning);
                self.begin_background();
            }
        }
    }

    /// Keys as they follow each other in the index, which has nothing to do with how popular they
    /// are.
    fn index_order(&mut self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.setup.parameters.keys).collect();
        for left in (1..order.len()).rev() {
            let other = self.random.below(left as u64 + 1);
            order.swap(left, usize::try_from(other).expect("an index"));
        }
        order
    }

    fn draw(&mut self, now_ps: u64) -> Operation {
        let kind = match self.random.below(100) < u64::from(self.setup.mix.gets_percent()) {
            true => Kind::Get,
            false => Kind::Put,
        };
        let rank = self.zipf.rank(self.random.unit());
        let key = u32::try_from(rank).expect("fewer keys");
        Operation::new(kind, key, now_ps)
    }

    fn schedule(&mut self, at_ps: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((at_ps, self.made, event)));
    }

    /// A way from one end to the other, without the server's card.
    fn distance_ps(&mut self) -> u64 {
        let costs = &self.setup.parameters;
        let off = costs.jitter * (2.0 * self.random.unit() - 1.0);
        picoseconds(costs.distance_ns() * (1.0 + off))
    }

    fn post(&mut self, client: u32, request: Request, after_ns: f64) {
        let at_ps = self.now_ps + picoseconds(after_ns) + self.distance_ps();
        let posted_ps = &mut self.clients[client as usize].posted_ps;
        *posted_ps = at_ps.max(*posted_ps);
        let at_ps = *posted_ps;
        self.schedule(at_ps, Event::AtCard(client, request));
    }

    fn answer(&mut self, client: u32, answer: Answer, bytes: u64) {
        let service_ns = self.setup.parameters.card_way_ns(bytes);
        let passed_ps = self.outward.pass(self.now_ps, picoseconds(service_ns));
        let at_ps = passed_ps + self.distance_ps();
        let is_cleaning = self.background.cleaning().is_some();
        self.schedule(at_ps, Event::Answered(client, answer, is_cleaning));
    }

    fn bytes_there(&self, request: Request) -> u64 {
        let costs = &self.setup.parameters;
        match request {
            Request::ReadEntry { .. } | Request::ReadObject { .. } | Request::Send { .. } => 0,
            Request::Write { .. } | Request::WriteImmediate { .. } => self.setup.value_bytes,
            Request::CallForSpace { .. } | Request::CallForPlace { .. } => costs.call_bytes,
            Request::CallWithValue { .. } => costs.call_bytes + self.setup.value_bytes,
        }
    }
}

mod server;
mod steps;
