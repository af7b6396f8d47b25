//! Clients' coming and going: each has a landing while it is there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cenote_fabric::{
    ClientId, Error, Event, Listen, PeerId, Rights, Time, WindowDescriptor, WindowId,
};

use super::books::Waiter;
use super::calls::Clients;
use super::outbox::Outboxes;
use super::shard::{Reply, Shard};
use super::times::Times;
use crate::landing::Area;
use crate::medium::Medium;
use crate::protocol::{Answer, GREET, Greeting, Notice, ShardView, WRITTEN};

/// Who knows who is there.
pub(super) struct Desk<M, L> {
    pub listener: L,
    pub shards: Vec<Arc<Shard<M>>>,
    pub shard_of_log: HashMap<WindowId, usize>,
    pub clients: Clients,
    pub peers: HashMap<PeerId, (ClientId, WindowDescriptor)>,
    /// Landings whose clients are gone.
    pub parting: Vec<Parting>,
    pub outboxes: Arc<Outboxes>,
    pub times: Arc<Times>,
    pub landing_bytes: u64,
    pub scheme: &'static str,
    pub seed: u64,
    pub views: Vec<ShardView>,
}

/// A landing of a client that is gone, or is there again with another one.
pub(super) struct Parting {
    client: ClientId,
    window: WindowId,
    /// In each shard, the last version that may land there.
    last: Vec<u64>,
}

impl<M: Medium, L: Listen> Desk<M, L> {
    /// Until the store stops, or nobody can come or go any more; the windows stand for as long as the
    /// listener lives.
    pub fn serve(mut self, stop: &AtomicBool) -> (L, Result<(), Error>) {
        let second = Some(Duration::from_secs(1));
        let mut ended = Ok(());
        while ended.is_ok() && !stop.load(Ordering::Acquire) {
            ended = self.turn(second, Time::now);
        }
        self.end_writes();
        (self.listener, ended)
    }

    /// Lets no client write any more. What it has written by now the persisters' last look finds; what came
    /// after that look would be acknowledged, and gone with the store.
    fn end_writes(&self) {
        let parting = self.parting.iter().map(|one| one.window);
        let landings = self.peers.values().map(|(_, window)| window.id);
        let logs = self.views.iter().map(|view| view.log);
        let logs = logs.filter(|log| log.rights.contains(Rights::WRITE));
        for window in parting.chain(landings).chain(logs.map(|log| log.id)) {
            self.end_writes_to(window);
        }
    }

    /// Its bytes stay: values in it are still copied.
    fn end_writes_to(&self, window: WindowId) {
        if let Err(error) = self.listener.renew(window) {
            tracing::warn!(%error, "close a landing");
        }
    }

    /// Takes what has come, or waits for something.
    ///
    /// # Errors
    /// Those of [`Listen::poll`].
    pub fn turn(&mut self, patience: Option<Duration>, clock: fn() -> Time) -> Result<(), Error> {
        let told = self.outboxes.peers.take();
        let now = match told.is_empty() {
            true => Time::default(),
            false => clock(),
        };
        for (peer, message, timed) in told {
            self.times.note(timed, now);
            // One that is gone is none the wiser.
            drop(self.listener.send(peer, &message));
        }
        let mut events = Vec::new();
        self.listener.poll(patience, &mut events)?;
        let now = clock();
        for event in events {
            self.take(event, now);
        }
        if !self.parting.is_empty() {
            self.take_landings_back();
        }
        Ok(())
    }

    fn take(&mut self, event: Event, now: Time) {
        match event {
            Event::Connected { peer, hello } => self.welcome(peer, hello.client),
            Event::Disconnected { peer } => self.part(peer),
            Event::Message { peer, bytes } => self.hear(peer, &bytes, now),
            Event::Immediate {
                peer,
                window,
                value,
                ..
            } => {
                let client = self.peers.get(&peer).map(|(client, _)| *client);
                if let (Some(&shard), Some(client)) = (self.shard_of_log.get(&window), client) {
                    let sequence = self.shards[shard].sequence_of(value);
                    let reply = self.shards[shard].written(sequence, client, peer, now);
                    self.reply(peer, shard as u16, &reply, value.into(), now);
                }
            }
            _ => {}
        }
    }

    fn welcome(&mut self, peer: PeerId, client: ClientId) {
        let made = Area::new(self.landing_bytes).and_then(|area| {
            let rights = Rights::READ.with(Rights::WRITE);
            let window = self.listener.register(Arc::clone(area.region()), rights)?;
            Ok((area, window))
        });
        match made {
            Ok((area, window)) => {
                self.peers.insert(peer, (client, window));
                for shard in &self.shards {
                    shard.lock().books.client_came(client);
                }
                let mut clients = self.clients.write().unwrap_or_else(PoisonError::into_inner);
                clients.insert(client, area);
            }
            Err(error) => {
                tracing::warn!(%error, "make a landing for a client");
                self.listener.close(peer);
            }
        }
    }

    fn part(&mut self, peer: PeerId) {
        let Some((client, window)) = self.peers.remove(&peer) else {
            return;
        };
        // Before what it has written is looked at for the last time.
        self.end_writes_to(window.id);
        let last_of = |shard: &Arc<Shard<M>>| shard.lock().books.last_of(client);
        let last = self.shards.iter().map(last_of).collect();
        // It may have come back already, with another landing.
        if !self.peers.values().any(|(other, _)| *other == client) {
            let mut clients = self.clients.write().unwrap_or_else(PoisonError::into_inner);
            clients.remove(&client);
            for shard in &self.shards {
                shard.client_gone(client);
            }
        }
        let window = window.id;
        self.parting.push(Parting {
            client,
            window,
            last,
        });
    }

    /// Takes landings back of which every value was copied or given up.
    fn take_landings_back(&mut self) {
        let shards = &self.shards;
        let is_done = |parting: &mut Parting| {
            let mut each = shards.iter().zip(&parting.last);
            each.all(|(shard, last)| shard.is_done_with(parting.client, *last))
        };
        for Parting { window, .. } in self.parting.extract_if(.., is_done) {
            if let Err(error) = self.listener.revoke(window) {
                tracing::warn!(%error, "take a landing back");
            }
        }
    }

    fn hear(&mut self, peer: PeerId, bytes: &[u8], now: Time) {
        let said = match bytes.first() {
            Some(&GREET) if bytes.len() == 1 => self.greet(peer),
            Some(&WRITTEN) => Notice::decode(bytes).ok().and_then(|notice| {
                let shard = self.shards.get(usize::from(notice.shard))?;
                let (client, _) = self.peers.get(&peer)?;
                let reply = shard.written(notice.sequence, *client, peer, now);
                self.reply(peer, notice.shard, &reply, notice.sequence, now);
                Some(())
            }),
            _ => None,
        };
        if said.is_none() {
            self.listener.close(peer);
            self.part(peer);
        }
    }

    fn greet(&mut self, peer: PeerId) -> Option<()> {
        let (_, landing) = self.peers.get(&peer)?;
        let greeting = Greeting {
            scheme: self.scheme.to_owned(),
            seed: self.seed,
            landing: *landing,
            shards: self.views.clone(),
        };
        self.listener.send(peer, &greeting.encode()).ok()
    }

    /// Answers a notice at once, if it was.
    fn reply(&self, peer: PeerId, shard: u16, reply: &Reply, sequence: u64, now: Time) {
        match reply {
            Reply::Later => {}
            Reply::Now(answer) => {
                let sequence = match answer {
                    Answer::Done { sequence } => *sequence,
                    _ => sequence,
                };
                let waiter = Waiter::notice(peer, shard, now);
                self.outboxes.answer(waiter, answer, sequence);
            }
        }
    }
}
