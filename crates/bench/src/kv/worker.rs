//! One thread of the load: its clients, their connections, and the loop that serves them.
//!
//! A *client* is a closed loop: it has up to `depth` requests under way and sends the next when one
//! is answered. It has one connection to each server where keys are spread by the client, otherwise
//! one to any, and turns to the next server when that one goes. The loop never blocks but to wait
//! for sockets. Where servers may die, requests on a lost connection are counted, and a write among
//! them stays open in the book; otherwise a lost connection ends the run.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use mio::{Events, Poll, Token};

use super::connection::{Connection, Pending, ServerAddress, State};
use super::items::{Book, Items, push_key};
use super::load::{Load, Route};
use super::shards::Shards;
use super::source::Source;
use super::tally::{Kind, Tally};
use super::wire::Reply;

pub(super) struct Worker<'a> {
    load: &'a Load<'a>,
    shards: &'a Shards,
    poll: Poll,
    began: Instant,
    source: Source<'a>,
    clients: Vec<Client>,
    connections: Vec<Connection>,
    /// Connections with bytes to send since the last event.
    unsent: Vec<usize>,
    tally: Tally,
    key: Vec<u8>,
    /// When an answer came last.
    answered_ns: u64,
}

struct Client {
    /// Requests that it may send now.
    credits: usize,
    /// Its server, where any will do.
    server: usize,
}

impl<'a> Worker<'a> {
    /// Opens the connections of the clients with these numbers, and waits for them.
    ///
    /// # Errors
    /// A server that does not answer.
    pub(super) fn connect(
        load: &'a Load<'a>,
        shards: &'a Shards,
        clients: impl Iterator<Item = usize>,
        source: Source<'a>,
        slice_count: usize,
    ) -> Result<Self> {
        let servers = &load.target.addresses;
        let clients: Vec<Client> = clients
            .map(|number| Client {
                credits: load.shape.depth,
                server: number % servers.len(),
            })
            .collect();
        let mut worker = Self {
            load,
            shards,
            poll: Poll::new().context("make a poll")?,
            began: Instant::now(),
            source,
            clients,
            connections: Vec::new(),
            unsent: Vec::new(),
            tally: Tally::new(slice_count)?,
            key: Vec::new(),
            answered_ns: 0,
        };
        for index in 0..worker.clients.len() * worker.fan_out() {
            worker.connections.push(Connection::new(Token(index)));
            worker.open(index)?;
        }
        worker.await_connections()?;
        Ok(worker)
    }

    /// Connections of a client.
    fn fan_out(&self) -> usize {
        match self.load.target.route {
            Route::ByKey | Route::ByMap => self.load.target.addresses.len(),
            Route::Any => 1,
        }
    }

    fn address_of(&self, connection: usize) -> SocketAddr {
        let addresses = &self.load.target.addresses;
        match self.load.target.route {
            Route::ByKey | Route::ByMap => addresses[connection % addresses.len()],
            Route::Any => addresses[self.clients[connection].server],
        }
    }

    fn await_connections(&mut self) -> Result<()> {
        let deadline = Instant::now() + CONNECT_LIMIT;
        let mut events = Events::with_capacity(self.connections.len().max(1));
        for index in 0..self.connections.len() {
            // One that is down by then is tried again later.
            while self.connections[index].state == State::Connecting {
                match self.connections[index].is_connected() {
                    Ok(true) => {}
                    Ok(false) => wait(&mut self.poll, &mut events)?,
                    Err(error) => self.on_loss(index, error)?,
                }
                let address = self.address_of(index);
                ensure!(Instant::now() < deadline, "{address} does not answer");
            }
        }
        Ok(())
    }

    /// Sends until `stop` is set or the source has no more, and takes every answer; times count
    /// from `began`, and until `stop`.
    ///
    /// # Errors
    /// A lost connection where none may be lost, an answer that is none, a server that is silent.
    pub(super) fn drive(mut self, began: Instant, stop: &AtomicBool) -> Result<Tally> {
        self.began = began;
        let mut events = Events::with_capacity(256);
        for client in 0..self.clients.len() {
            self.refill(client)?;
        }
        self.flush()?;
        let mut swept_ns = 0;
        let mut drained_by_ns = None;
        loop {
            wait(&mut self.poll, &mut events)?;
            let is_over = stop.load(Ordering::Relaxed);
            if is_over && !self.source.is_spent() {
                self.source.end();
                drained_by_ns = Some(self.now_ns() + ns(ANSWER_LIMIT));
            }
            for event in &events {
                self.on_event(event.token().0, event.is_writable(), is_over)?;
            }
            let now_ns = self.now_ns();
            if now_ns - swept_ns > ns(SWEEP_PERIOD) {
                swept_ns = now_ns;
                self.sweep(now_ns)?;
            }
            let idle = self.connections.iter().all(|one| one.pending.is_empty());
            if self.source.is_spent() && idle {
                return Ok(self.tally);
            }
            if drained_by_ns.is_some_and(|end| now_ns > end) {
                // Answers that never came: their writes stay open.
                for index in 0..self.connections.len() {
                    self.lose(index, now_ns);
                }
                return Ok(self.tally);
            }
        }
    }

    fn on_event(&mut self, index: usize, is_writable: bool, is_over: bool) -> Result<()> {
        if self.connections[index].state == State::Connecting {
            match self.connections[index].is_connected() {
                Ok(true) => self.refill(index / self.fan_out())?,
                Ok(false) => {}
                Err(error) => self.on_loss(index, error)?,
            }
        }
        if is_writable && let Err(error) = self.connections[index].flush() {
            self.on_loss(index, error)?;
        }
        let mut has_more = true;
        while has_more && self.connections[index].state == State::Up {
            match self.connections[index].read() {
                Ok(more) => has_more = more,
                Err(error) => {
                    self.on_loss(index, error)?;
                    break;
                }
            }
            self.take_replies(index, is_over)?;
        }
        self.flush()
    }

    fn take_replies(&mut self, index: usize, is_over: bool) -> Result<()> {
        let now_ns = self.now_ns();
        self.answered_ns = now_ns;
        let (load, tally) = (self.load, &mut self.tally);
        let taken = self.connections[index].take_replies(load.target.protocol, |pending, reply| {
            let known = (load.items, load.book);
            judge(known, tally, pending, reply, (!is_over).then_some(now_ns));
        });
        let client = index / self.fan_out();
        self.clients[client].credits += taken.with_context(|| {
            let address = self.address_of(index);
            format!("answer of {address}")
        })?;
        self.refill(client)
    }

    /// Sends as many requests as the client may.
    fn refill(&mut self, client: usize) -> Result<()> {
        let now_ns = self.now_ns();
        let fan_out = self.fan_out();
        while self.clients[client].credits > 0 {
            if fan_out == 1 && self.connections[client].state != State::Up {
                break;
            }
            let Some((kind, item)) = self.source.next() else {
                break;
            };
            let index = client * fan_out + self.place_of(item) % fan_out;
            if self.connections[index].state != State::Up {
                // Its credit comes back with the next sweep: a dead server must not be asked without end.
                self.tally.unserved += 1;
                self.tally.failed(now_ns);
                self.clients[client].credits -= 1;
                continue;
            }
            self.clients[client].credits -= 1;
            self.send(index, kind, item, now_ns);
        }
        Ok(())
    }

    /// Which of the servers is asked for an item.
    fn place_of(&mut self, item: u32) -> usize {
        if self.load.target.route != Route::ByMap {
            return item as usize;
        }
        self.key.clear();
        push_key(item, &mut self.key);
        self.shards.server_of(&self.key)
    }

    fn send(&mut self, index: usize, kind: Kind, item: u32, now_ns: u64) {
        let load = self.load;
        self.key.clear();
        push_key(item, &mut self.key);
        let connection = &mut self.connections[index];
        let out = &mut connection.output;
        if out.is_empty() {
            self.unsent.push(index);
        }
        let version = match kind {
            Kind::Get => {
                load.target.protocol.push_get(&self.key, out);
                load.book.floor(item)
            }
            Kind::Set => {
                let version = if self.source.is_filling() {
                    0
                } else {
                    load.book.begin_write(item)
                };
                let bytes = load.items.value_bytes(item, version);
                let value = |out: &mut Vec<u8>| load.items.push_value(item, version, out);
                load.target.protocol.push_set(&self.key, bytes, out, value);
                version
            }
        };
        connection.pending.push_back(Pending {
            kind,
            item,
            version,
            began_ns: now_ns,
        });
    }

    fn flush(&mut self) -> Result<()> {
        while let Some(index) = self.unsent.pop() {
            if let Err(error) = self.connections[index].flush() {
                self.on_loss(index, error)?;
            }
        }
        Ok(())
    }

    /// A connection ended.
    fn on_loss(&mut self, index: usize, error: io::Error) -> Result<()> {
        let address = self.address_of(index);
        if !self.load.is_tolerant {
            return Err(error).with_context(|| format!("lost the connection to {address}"));
        }
        self.tally.complain(|| format!("{address}: {error}"));
        let now_ns = self.now_ns();
        self.lose(index, now_ns);
        if self.fan_out() == 1 {
            let client = &mut self.clients[index];
            client.server = (client.server + 1) % self.load.target.addresses.len();
        }
        Ok(())
    }

    /// Opens a connection that is down; one that fails at once stays down.
    fn open(&mut self, index: usize) -> Result<()> {
        let address = self.address_of(index);
        match self.connections[index].open(&ServerAddress::Tcp(address), self.poll.registry()) {
            Ok(()) => Ok(()),
            Err(error) => self.on_loss(index, error),
        }
    }

    fn lose(&mut self, index: usize, now_ns: u64) {
        let lost = self.connections[index].close(now_ns + ns(RETRY_PERIOD));
        let client = index / self.fan_out();
        self.clients[client].credits += lost.len();
        for _ in lost {
            self.tally.lost += 1;
            self.tally.failed(now_ns);
        }
    }

    /// What no event tells of: connections to open again, servers that are silent, credits that
    /// requests for a dead server took.
    fn sweep(&mut self, now_ns: u64) -> Result<()> {
        let silent_ns = now_ns.saturating_sub(self.answered_ns);
        // Nobody else ends a load that is to touch every item.
        ensure!(
            !self.source.is_filling() || silent_ns < ns(ANSWER_LIMIT * 2),
            "no server answers any more: {}",
            self.tally.troubles()
        );
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if let State::Down { retry_ns } = connection.state
                && now_ns >= retry_ns
            {
                self.open(index)?;
            }
            let oldest = self.connections[index].pending.front();
            if oldest.is_some_and(|one| now_ns.saturating_sub(one.began_ns) > ns(ANSWER_LIMIT)) {
                self.on_loss(index, io::ErrorKind::TimedOut.into())?;
            }
        }
        let fan_out = self.fan_out();
        for client in 0..self.clients.len() {
            let range = client * fan_out..(client + 1) * fan_out;
            let under_way: usize = self.connections[range]
                .iter()
                .map(|one| one.pending.len())
                .sum();
            self.clients[client].credits = self.load.shape.depth - under_way;
            self.refill(client)?;
        }
        self.flush()
    }

    fn now_ns(&self) -> u64 {
        ns(self.began.elapsed())
    }
}

/// Counts one answer; its time only where `now_ns` is given.
pub(crate) fn judge(
    (items, book): (&Items, &Book),
    tally: &mut Tally,
    asked: Pending,
    reply: Reply<'_>,
    now_ns: Option<u64>,
) {
    let is_good = match (asked.kind, reply) {
        (Kind::Set, Reply::Stored) => {
            if asked.version > 0 {
                book.end_write(asked.item);
            }
            true
        }
        (Kind::Get, Reply::Value(value)) => match items.check(asked.item, value) {
            Ok(version) if book.allows(asked.item, asked.version, version) => true,
            Ok(version) => {
                tally.stale += 1;
                let (item, floor) = (asked.item, asked.version);
                tally.complain(|| format!("item {item}: version {version}, acknowledged {floor}"));
                false
            }
            Err(wrong) => {
                tally.wrong += 1;
                tally.complain(|| format!("item {}: wrong {wrong:?}", asked.item));
                false
            }
        },
        (Kind::Get, Reply::Miss) => {
            tally.misses += 1;
            false
        }
        (_, Reply::Refused(why)) => {
            tally.refused += 1;
            tally.complain(|| why.to_owned());
            false
        }
        (kind, reply) => {
            tally.wrong += 1;
            tally.complain(|| format!("to a {kind:?} of item {}: {reply:?}", asked.item));
            false
        }
    };
    let Some(now_ns) = now_ns else { return };
    if is_good {
        tally.answered(asked.kind, asked.began_ns, now_ns);
    } else {
        tally.failed(now_ns);
    }
}

fn wait(poll: &mut Poll, events: &mut Events) -> Result<()> {
    match poll.poll(events, Some(SWEEP_PERIOD)) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => {
            Err(error).context("wait for sockets")
        }
        _ => Ok(()),
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How long a server may take to accept.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// A server that is silent for so long is given up.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Between attempts to open a connection.
const RETRY_PERIOD: Duration = Duration::from_millis(20);
/// How often what no event tells of is looked at.
const SWEEP_PERIOD: Duration = Duration::from_millis(10);
