//! One client of the simulated cache: what it has under way, and its channel to the owner.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_cache::client::{Client, Ended, Error, Geometry};
use cenote_cache::connections::Attached;
use cenote_cache::links::{AtOnce, Caller, HostConfig};
use cenote_cache::owner::Entry;
use cenote_fabric::sim::{self, SimConnector};
use cenote_fabric::{ClientId, Hello, Time};
use cenote_measure::random::Random;

use super::model::{CELL_BYTES, Expected, Model};

/// From the owner to a client.
pub enum ToClient {
    Entry(Entry),
    Lease(Time),
    /// Its lease is over: it has to join again.
    Unknown,
    /// Another one has the cache.
    Superseded,
}

/// From a client to the owner.
pub enum ToOwner {
    Join,
    Alive(Time),
    Doubt(u32, u64),
    Known(u32, u64),
    Trouble(usize),
}

/// Messages on their way, in order.
pub struct Channel<T>(VecDeque<(Time, T)>);

impl<T> Channel<T> {
    pub fn new() -> Self {
        Self(VecDeque::new())
    }

    /// How long a message takes: seldom, its receiver is not scheduled for long.
    pub fn delay(random: &mut Random) -> Duration {
        let micros = if random.percent(90) { 400 } else { 40_000 };
        Duration::from_micros(10 + random.below(micros))
    }

    pub fn send(&mut self, now: Time, delay: Duration, message: T) {
        let before = self.0.back().map_or(Time(0), |(at, _)| *at);
        self.0.push_back((now.after(delay).max(before), message));
    }

    pub fn take(&mut self, now: Time) -> Option<T> {
        let is_due = self.0.front().is_some_and(|(at, _)| *at <= now);
        is_due.then(|| self.0.pop_front().expect("it is there").1)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

enum UnderWay {
    Read(Expected),
    Write { first: u64, versions: Vec<u64> },
}

/// See the module's text.
pub struct Member {
    pub connector: SimConnector,
    /// None while it has no process.
    pub attached: Option<Attached>,
    pub paused_until: Time,
    /// Nothing passes between it and the owner before this, though it goes on.
    pub deaf_until: Time,
    pub to_owner: Channel<ToOwner>,
    pub to_client: Channel<ToClient>,
    /// Which of two owners it talks to.
    pub owner: Whose,
    /// As the owner numbers it; 0: it has not joined.
    pub number: u64,
    asked_at: Time,
    under_way: BTreeMap<u64, UnderWay>,
    tokens: u64,
    /// What it submits: none when everything is to come to rest.
    pub is_busy: bool,
}

/// Of two owners, one that another followed, and that.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Whose {
    Current,
    Former,
}

/// What came of a turn.
#[derive(Default)]
pub struct Outcome {
    pub requests: u64,
    pub failed: Vec<String>,
    pub wrong: Option<String>,
}

/// How often it asks for its lease.
const ALIVE: Duration = Duration::from_millis(500);
/// Requests under way.
const DEPTH: usize = 6;

impl Member {
    pub fn new(connector: SimConnector) -> Self {
        Self {
            connector,
            attached: None,
            paused_until: Time(0),
            deaf_until: Time(0),
            to_owner: Channel::new(),
            to_client: Channel::new(),
            owner: Whose::Current,
            number: 0,
            asked_at: Time(0),
            under_way: BTreeMap::new(),
            tokens: 0,
            is_busy: true,
        }
    }

    pub fn start(
        &mut self,
        geometry: Geometry,
        hosts: &[HostConfig],
        id: u128,
        batch_requests: Option<usize>,
        patience: Duration,
    ) {
        let client = Client::new(geometry, hosts.len(), patience).with_clock(sim::now);
        let caller = Caller {
            connector: Arc::new(self.connector.clone()),
            hello: Hello {
                client: ClientId(id),
                name: "client".to_owned(),
            },
            with_data: true,
        };
        let dial = AtOnce::new(caller);
        let dial = Box::new(match batch_requests {
            Some(_) => dial.for_calls(),
            None => dial,
        });
        let attached = Attached::new(client, hosts.to_vec(), dial, 16);
        self.attached = Some(attached.with_batches(batch_requests.unwrap_or(1)));
        self.forget_owner();
    }

    /// Its process ends, with what it had under way.
    pub fn end(&mut self, model: &mut Model) {
        self.attached = None;
        for begun in std::mem::take(&mut self.under_way).into_values() {
            if let UnderWay::Write { first, versions } = begun {
                model.stray(first, &versions);
            }
        }
        self.forget_owner();
    }

    /// The connection to the owner ended: it joins again.
    pub fn forget_owner(&mut self) {
        self.number = 0;
        self.to_owner.clear();
        self.to_client.clear();
    }

    pub fn outstanding(&self) -> usize {
        self.under_way.len()
    }

    /// Takes what came, checks what ended, and submits as the client that it is, if it is to.
    pub fn turn(
        &mut self,
        now: Time,
        submits: Option<usize>,
        model: &mut Model,
        random: &mut Random,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(mut attached) = self.attached.take() else {
            return outcome;
        };
        while now >= self.deaf_until
            && let Some(message) = self.to_client.take(now)
        {
            match message {
                ToClient::Entry(entry) => attached.client.handle_entry(entry),
                ToClient::Lease(asked_at) => attached.client.handle_lease(now, asked_at),
                ToClient::Unknown => self.number = 0,
                ToClient::Superseded => {
                    self.owner = Whose::Current;
                    self.forget_owner();
                }
            }
        }
        attached.step(now);
        let mut ended = Vec::new();
        attached.client.poll(now, &mut ended);
        for end in ended {
            self.judge(&attached.client, end, model, &mut outcome);
        }
        if let Some(me) = submits.filter(|_| self.is_busy) {
            self.submit(now, me, &mut attached.client, model, random);
        }
        let mut ended = Vec::new();
        attached.client.poll(now, &mut ended);
        for end in ended {
            self.judge(&attached.client, end, model, &mut outcome);
        }
        self.report(now, &mut attached.client, random);
        self.attached = Some(attached);
        outcome
    }

    fn judge(&mut self, client: &Client, end: Ended, model: &mut Model, outcome: &mut Outcome) {
        outcome.requests += 1;
        let begun = self.under_way.remove(&end.token).expect("it ends once");
        if let Err(error) = end.result {
            if !matches!(error, Error::Lost { .. }) {
                outcome.failed.push(error.to_string());
            }
            return;
        }
        match begun {
            UnderWay::Read(expected) => {
                let wrong = model.check(&expected, &end.buffer).err();
                outcome.wrong = outcome.wrong.take().or(wrong);
            }
            UnderWay::Write { first, versions } => {
                model.acknowledge(first, &versions, |region| client.losses(region));
            }
        }
    }

    fn submit(
        &mut self,
        now: Time,
        me: usize,
        client: &mut Client,
        model: &mut Model,
        random: &mut Random,
    ) {
        while self.under_way.len() < DEPTH && random.percent(60) {
            let cell = random.below(model.cells());
            let count = 1 + random.below(6);
            if model.writer_of(cell) == me && random.percent(80) {
                let count = model.run_of(cell, count);
                let (bytes, versions) = model.write(cell, count);
                let token = self.token();
                let bytes = Bytes::from(bytes);
                if client
                    .submit_write(now, cell * CELL_BYTES, bytes, token)
                    .is_ok()
                {
                    let first = cell;
                    self.under_way
                        .insert(token, UnderWay::Write { first, versions });
                }
            } else {
                self.read(now, client, model, cell, count.min(model.cells() - cell));
            }
        }
    }

    /// Begins to read everything.
    pub fn read_all(&mut self, now: Time, model: &Model) {
        let Some(mut attached) = self.attached.take() else {
            return;
        };
        self.read(now, &mut attached.client, model, 0, model.cells());
        self.attached = Some(attached);
    }

    fn read(&mut self, now: Time, client: &mut Client, model: &Model, cell: u64, count: u64) {
        let token = self.token();
        let len_bytes = usize::try_from(count * CELL_BYTES).expect("small");
        let buffer = BytesMut::zeroed(len_bytes);
        if client
            .submit_read(now, cell * CELL_BYTES, buffer, token)
            .is_ok()
        {
            let expected = model.expect(cell, count);
            self.under_way.insert(token, UnderWay::Read(expected));
        }
    }

    fn token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    /// Says to the owner what it is to hear.
    fn report(&mut self, now: Time, client: &mut Client, random: &mut Random) {
        let mut delay = || Channel::<ToOwner>::delay(random);
        if self.number == 0 {
            // The world numbers it when the message arrives.
            if now.since(self.asked_at) >= ALIVE / 5 || self.asked_at == Time(0) {
                self.asked_at = now;
                self.to_owner.clear();
                self.to_owner.send(now, delay(), ToOwner::Join);
                self.to_owner.send(now, delay(), ToOwner::Alive(now));
            }
        } else if now.since(self.asked_at) >= ALIVE {
            self.asked_at = now;
            self.to_owner.send(now, delay(), ToOwner::Alive(now));
        }
        while let Some((region, generation)) = client.take_doubt() {
            self.to_owner
                .send(now, delay(), ToOwner::Doubt(region, generation));
        }
        while let Some((region, generation)) = client.take_known() {
            self.to_owner
                .send(now, delay(), ToOwner::Known(region, generation));
        }
        while let Some(host) = client.take_trouble() {
            self.to_owner.send(now, delay(), ToOwner::Trouble(host));
        }
        while client.take_lost().is_some() {}
    }
}
