//! A store's server: one thread for clients' coming and going, some that answer calls, and a persister for
//! each shard.
//!
//! Clients read index and log one-sided, through windows that let them do no more, and write to a landing
//! that is theirs alone. Under the schemes that have values written to the log itself, that window is
//! writable: those trust their clients. A thread that panics, and a medium that fails, end the process.
//! Paper: eFactory, design. Bytes: `docs/protocols/store.md`.

mod job;
mod outbox;
mod persister;
mod shard;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use cenote_fabric::calls::{Answered, Answerer, Answering as _, Call, Spin, Spinner};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Event, Listen as _, Listener, PeerId, Rights, Time, Waker,
    WindowDescriptor, WindowId, WireProtection,
};

use crate::landing::Area;
use crate::medium::Medium;
use crate::pool::{Pool, StoreError};
use crate::protocol::{Answer, GREET, Greeting, Notice, Request, ShardView, WRITTEN};
use crate::schemes::{PutStep, Scheme};

use outbox::{Outbox, Outboxes};
use persister::Persister;
use shard::{Reply, Shard, Waiter};

pub use shard::shard_of;

/// How a store is served.
#[derive(Debug)]
pub struct ServerConfig {
    /// Where.
    pub addresses: Vec<Address>,
    /// Who may come.
    pub key: ClusterKey,
    /// What a PUT and a GET are.
    pub scheme: Arc<dyn Scheme>,
    /// Threads that answer calls, at least 1.
    pub threads: usize,
    /// Bytes of each client's landing; a value that is larger is refused.
    pub landing_bytes: u64,
    /// How long a value may take to come before its version is given up.
    pub patience: Duration,
    /// The least protection of data connections over `tcp`.
    pub page_traffic: WireProtection,
}

/// A store that is served. Dropping it stops it as [`Server::stop`] does.
pub struct Server<M: Medium + 'static> {
    addresses: Vec<Address>,
    shards: Vec<Arc<Shard<M>>>,
    stop: Arc<AtomicBool>,
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<()>>,
    desk: Option<JoinHandle<Listener>>,
    persisters: Vec<JoinHandle<Result<(), StoreError>>>,
    has_failed: Arc<AtomicBool>,
}

/// Of one shard, in bytes and versions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Figures {
    /// Versions that are not durable.
    pub backlog: u64,
    /// Bytes of the log in use, of all that it has.
    pub log_bytes: (u64, u64),
    /// Bytes that clients put: keys and values.
    pub put_bytes: u64,
    /// Bytes that were written to the medium.
    pub written_bytes: u64,
    /// Whether the log is being cleaned.
    pub is_cleaning: bool,
}

/// Why a store is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The fabric's reason.
    #[error("serve the store")]
    Fabric(#[from] cenote_fabric::Error),
    /// A pool's reason.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No thread could be started.
    #[error("start a thread")]
    Thread(#[from] std::io::Error),
    /// This medium's bytes cannot be read by clients.
    #[error("clients cannot read this medium")]
    Medium,
    /// No shards, or too many, or of different seeds.
    #[error("pools that make no store")]
    Shards,
}

impl<M: Medium + 'static> Server<M> {
    /// Serves the pools, a shard each, all of one seed.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(pools: Vec<Pool<M>>, config: ServerConfig) -> Result<Self, ServeError> {
        let seed = pools.first().map(|pool| pool.hashing().0);
        let is_one = pools.iter().all(|pool| Some(pool.hashing().0) == seed);
        if !is_one || pools.is_empty() || pools.len() > crate::protocol::SHARD_COUNT_MAX {
            return Err(ServeError::Shards);
        }
        let mut listener = Listener::bind_with(
            &config.addresses,
            &config.key,
            config.page_traffic,
            Vec::new(),
        )?;
        let mut answerers = Vec::new();
        for _ in 0..config.threads.max(1) {
            answerers.push(listener.answerer()?);
        }
        let writes_log = !config.scheme.lands_beside_log()
            && config.scheme.put_steps().contains(&PutStep::CallForSpace);
        let log_rights = match writes_log {
            true => Rights::READ.with(Rights::WRITE),
            false => Rights::READ,
        };
        let mut views = Vec::new();
        for pool in &pools {
            let log = pool.medium().memory().ok_or(ServeError::Medium)?;
            views.push(ShardView {
                entry_count: pool.hashing().1,
                index: listener.register(Arc::clone(pool.index_memory()), Rights::READ)?,
                log: listener.register(Arc::clone(log), log_rights)?,
            });
        }
        let threads = answerers.iter().map(|one| Outbox::new(one.waker()));
        let outboxes = Arc::new(Outboxes {
            threads: threads.collect(),
            peers: Outbox::new(listener.waker()),
        });
        let shards = pools
            .into_iter()
            .enumerate()
            .map(|(number, pool)| Arc::new(Shard::new(pool, &config.scheme, number as u16)))
            .collect();
        let mut server = Self {
            addresses: listener.addresses(),
            shards,
            stop: Arc::default(),
            wakers: vec![listener.waker()],
            threads: Vec::new(),
            desk: None,
            persisters: Vec::new(),
            has_failed: Arc::default(),
        };
        server.start_threads(listener, answerers, views, &outboxes, &config)?;
        Ok(server)
    }

    fn start_threads(
        &mut self,
        listener: Listener,
        answerers: Vec<Answerer>,
        views: Vec<ShardView>,
        outboxes: &Arc<Outboxes>,
        config: &ServerConfig,
    ) -> Result<(), ServeError> {
        let seed = self.shards[0].lock().pool.hashing().0;
        let clients: Clients = Arc::default();
        for shard in &self.shards {
            let persister = Persister {
                shard: Arc::clone(shard),
                outboxes: Arc::clone(outboxes),
                patience: config.patience,
            };
            let named = std::thread::Builder::new().name("persister".into());
            let has_failed = Arc::clone(&self.has_failed);
            let run = move || {
                let ended = ended_as_one(|| persister.run());
                has_failed.fetch_or(ended.is_err(), Ordering::Release);
                ended
            };
            self.persisters.push(named.spawn(run)?);
        }
        for (index, answerer) in answerers.into_iter().enumerate() {
            self.wakers.push(answerer.waker());
            let thread = CallThread {
                index,
                answerer,
                seed,
                shards: self.shards.clone(),
                clients: Arc::clone(&clients),
                outboxes: Arc::clone(outboxes),
                stop: Arc::clone(&self.stop),
            };
            let named = std::thread::Builder::new().name("store-server".into());
            self.threads
                .push(named.spawn(move || ended_as_one(|| thread.serve()))?);
        }
        let windows = views.iter().enumerate();
        let desk = Desk {
            listener,
            shards: self.shards.clone(),
            shard_of_log: windows.map(|(shard, view)| (view.log.id, shard)).collect(),
            clients,
            peers: HashMap::new(),
            parting: Vec::new(),
            outboxes: Arc::clone(outboxes),
            landing_bytes: config.landing_bytes,
            scheme: config.scheme.name(),
            seed,
            views,
            stop: Arc::clone(&self.stop),
        };
        let named = std::thread::Builder::new().name("store-clients".into());
        self.desk = Some(named.spawn(move || ended_as_one(|| desk.serve()))?);
        Ok(())
    }

    /// Whether a medium failed: nothing that was not durable will be, and the store is to be stopped.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Where it is served, with the ports that the system chose.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Of each shard.
    #[must_use]
    pub fn figures(&self) -> Vec<Figures> {
        self.shards.iter().map(|shard| figures_of(shard)).collect()
    }

    /// What tells the same for as long as the store is served, and keeps nothing alive.
    pub fn watch(&self) -> impl Fn() -> Vec<Figures> + Send + Sync + use<M> {
        let shards: Vec<Weak<Shard<M>>> = self.shards.iter().map(Arc::downgrade).collect();
        move || {
            let there = shards.iter().filter_map(Weak::upgrade);
            there.map(|shard| figures_of(&shard)).collect()
        }
    }

    /// Lets nobody in any more, makes durable what is whole, and gives the pools back.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the medium's.
    pub fn stop(mut self) -> Result<Vec<Pool<M>>, StoreError> {
        self.end()?;
        let shards = std::mem::take(&mut self.shards);
        let whole = shards.into_iter().filter_map(Arc::into_inner);
        Ok(whole.map(Shard::into_pool).collect())
    }

    fn end(&mut self) -> Result<(), StoreError> {
        self.stop.store(true, Ordering::Release);
        self.wakers.iter().for_each(Waker::wake);
        for thread in self.threads.drain(..) {
            // A panic has ended the process.
            drop(thread.join());
        }
        // With it go landings, whose values the persisters still copy.
        let listener = self.desk.take().map(JoinHandle::join);
        self.shards.iter().for_each(|shard| shard.stop());
        let mut result = Ok(());
        for persister in self.persisters.drain(..) {
            result = result.and(persister.join().unwrap_or(Ok(())));
        }
        drop(listener);
        result
    }
}

impl<M: Medium + 'static> Drop for Server<M> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "end a store");
        }
    }
}

fn figures_of<M: Medium>(shard: &Shard<M>) -> Figures {
    let state = shard.lock();
    Figures {
        backlog: state.pool.backlog() as u64,
        log_bytes: state.pool.log_bytes(),
        put_bytes: state.put_bytes,
        written_bytes: shard.medium.written_bytes(),
        is_cleaning: state.pool.is_cleaning(),
    }
}

/// Half of a server would be taken for alive: a panic of any thread ends the process.
fn ended_as_one<T>(act: impl FnOnce() -> T) -> T {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::process::abort();
            }
        }
    }
    let _bomb = Bomb;
    act()
}

/// The landings of those that are there.
type Clients = Arc<RwLock<HashMap<ClientId, Arc<Area>>>>;

/// A thread that answers calls.
struct CallThread<M> {
    index: usize,
    answerer: Answerer,
    seed: u64,
    shards: Vec<Arc<Shard<M>>>,
    clients: Clients,
    outboxes: Arc<Outboxes>,
    stop: Arc<AtomicBool>,
}

impl<M: Medium> CallThread<M> {
    fn serve(mut self) {
        let mut spinner = Spinner::new(Spin::default());
        let mut patience = Some(Duration::ZERO);
        while !self.stop.load(Ordering::Acquire) {
            let late = self.outboxes.threads[self.index].take();
            let mut found = !late.is_empty();
            for (call, answer) in late {
                self.answerer.answer(call, &answer);
            }
            let (seed, shards, clients) = (self.seed, &self.shards, &self.clients);
            let (index, now) = (self.index, Time::now());
            let turned = self.answerer.turn(patience, &mut |call, answer| {
                answer_call(seed, shards, clients, index, now, &call, answer)
            });
            drop(self.answerer.take_ended());
            match turned {
                Ok(any) => found |= any,
                Err(error) => return tracing::error!(%error, "serve calls of a store"),
            }
            patience = match found {
                true => {
                    spinner.found();
                    Some(Duration::ZERO)
                }
                false => spinner.looks_on(Time::now()).then_some(Duration::ZERO),
            };
        }
    }
}

fn answer_call<M: Medium>(
    seed: u64,
    shards: &[Arc<Shard<M>>],
    clients: &Clients,
    thread: usize,
    now: Time,
    call: &Call<'_>,
    answer: &mut Vec<u8>,
) -> Answered {
    let request = match Request::decode(call.request) {
        Ok(request) => request,
        Err(error) => return Answered::Never(error.0),
    };
    let shard = match request {
        Request::Space { key, .. }
        | Request::Put { key, .. }
        | Request::Locate { key }
        | Request::Delete { key, .. } => shard_of(seed, key, shards.len()),
        Request::Settle { shard, .. }
        | Request::Sync { shard }
        | Request::List { shard, .. }
        | Request::Clean { shard } => usize::from(shard),
    };
    let Some(shard) = shards.get(shard) else {
        return Answered::Never("a shard that is not there");
    };
    let area = match request {
        Request::Space { .. } => {
            let clients = clients.read().unwrap_or_else(PoisonError::into_inner);
            clients.get(&call.client).cloned()
        }
        _ => None,
    };
    let waiter = Waiter::Call {
        thread,
        call: call.id,
    };
    match shard.handle(request, call.client, area.as_ref(), waiter, now) {
        Reply::Now(now) => {
            now.encode(answer);
            Answered::Now
        }
        Reply::Later => Answered::Later,
    }
}

/// The thread that knows who is there.
struct Desk<M> {
    listener: Listener,
    shards: Vec<Arc<Shard<M>>>,
    shard_of_log: HashMap<WindowId, usize>,
    clients: Clients,
    peers: HashMap<PeerId, (ClientId, WindowDescriptor)>,
    /// Landings whose clients are gone.
    parting: Vec<(ClientId, WindowId)>,
    outboxes: Arc<Outboxes>,
    landing_bytes: u64,
    scheme: &'static str,
    seed: u64,
    views: Vec<ShardView>,
    stop: Arc<AtomicBool>,
}

impl<M: Medium> Desk<M> {
    /// Until the store stops; the windows stand for as long as the listener lives.
    fn serve(mut self) -> Listener {
        let mut events = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            for (peer, message) in self.outboxes.peers.take() {
                // One that is gone is none the wiser.
                drop(self.listener.send(peer, &message));
            }
            let second = Some(Duration::from_secs(1));
            if let Err(error) = self.listener.poll(second, &mut events) {
                tracing::error!(%error, "serve clients of a store");
                break;
            }
            for event in events.drain(..) {
                self.take(event);
            }
            if !self.parting.is_empty() {
                self.take_landings_back();
            }
        }
        self.listener
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Connected { peer, hello } => self.welcome(peer, hello.client),
            Event::Disconnected { peer } => self.part(peer),
            Event::Message { peer, bytes } => self.hear(peer, &bytes),
            Event::Immediate {
                peer,
                window,
                value,
                ..
            } => {
                let client = self.peers.get(&peer).map(|(client, _)| *client);
                if let (Some(&shard), Some(client)) = (self.shard_of_log.get(&window), client) {
                    let shard = &self.shards[shard];
                    let reply = shard.written(value, client, Waiter::Peer(peer), Time::now());
                    self.reply(peer, &reply, value.into());
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
        // It may have come back already, with another landing.
        if !self.peers.values().any(|(other, _)| *other == client) {
            let mut clients = self.clients.write().unwrap_or_else(PoisonError::into_inner);
            clients.remove(&client);
            for shard in &self.shards {
                shard.client_gone(client);
            }
        }
        self.parting.push((client, window.id));
    }

    /// Takes landings back of which every value was copied or given up.
    fn take_landings_back(&mut self) {
        let shards = &self.shards;
        let is_done = |client: ClientId| shards.iter().all(|shard| shard.is_done_with(client));
        let (done, kept) = std::mem::take(&mut self.parting)
            .into_iter()
            .partition(|(client, _)| is_done(*client));
        self.parting = kept;
        let done: Vec<(ClientId, WindowId)> = done;
        for (_, window) in done {
            if let Err(error) = self.listener.revoke(window) {
                tracing::warn!(%error, "take a landing back");
            }
        }
    }

    fn hear(&mut self, peer: PeerId, bytes: &[u8]) {
        let said = match bytes.first() {
            Some(&GREET) if bytes.len() == 1 => self.greet(peer),
            Some(&WRITTEN) => Notice::decode(bytes).ok().and_then(|notice| {
                let shard = self.shards.get(usize::from(notice.shard))?;
                let (client, _) = self.peers.get(&peer)?;
                let low = notice.sequence as u32;
                let reply = shard.written(low, *client, Waiter::Peer(peer), Time::now());
                self.reply(peer, &reply, notice.sequence);
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
    fn reply(&self, peer: PeerId, reply: &Reply, sequence: u64) {
        match reply {
            Reply::Later => {}
            Reply::Now(answer) => {
                let sequence = match answer {
                    Answer::Done { sequence } => *sequence,
                    _ => sequence,
                };
                self.outboxes.answer(Waiter::Peer(peer), answer, sequence);
            }
        }
    }
}
