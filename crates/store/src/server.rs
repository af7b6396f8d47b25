//! A store's server: one thread for clients' coming and going, some that answer calls, and a persister for
//! each shard.
//!
//! Clients read index and log one-sided, through windows that let them do no more, and write to a landing
//! that is theirs alone. Under the schemes that have values written to the log itself, that window is
//! writable: those trust their clients. A thread that panics, and a medium that fails, end the process.
//! Paper: eFactory, design. Bytes: `docs/protocols/store.md`.

mod arrival;
mod books;
mod calls;
mod desk;
mod fence;
mod job;
mod listing;
mod outbox;
mod parts;
mod persister;
mod room;
mod shard;
#[cfg(test)]
mod tests;
mod times;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use cenote_fabric::calls::Answerer;
use cenote_fabric::{Address, ClusterKey, Listen as _, Listener, Waker, WireProtection};
use cenote_latency::Latency;

use crate::medium::Medium;
use crate::pool::{Pool, StoreError};
use crate::schemes::Scheme;

use shard::Shard;
use times::Times;

pub use parts::ServerParts;
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
    /// Bytes of each client's landing; a value that is larger is refused, unless a call carries it.
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
    times: Vec<Arc<Times>>,
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
        let mut listener = Listener::bind_with(
            &config.addresses,
            &config.key,
            config.page_traffic,
            Vec::new(),
        )?;
        let mut answerers = Vec::new();
        for _ in 0..config.threads.max(1) {
            let answerer = listener.answerer()?;
            let waker = answerer.waker();
            answerers.push((answerer, waker));
        }
        let parts = ServerParts::new(pools, listener, answerers, &config)?;
        let listener = &parts.desk.listener;
        let mut server = Self {
            addresses: listener.addresses(),
            shards: parts.shards.clone(),
            times: parts.times.clone(),
            stop: Arc::default(),
            wakers: vec![listener.waker()],
            threads: Vec::new(),
            desk: None,
            persisters: Vec::new(),
            has_failed: Arc::default(),
        };
        server.start_threads(parts)?;
        Ok(server)
    }

    fn start_threads(
        &mut self,
        parts: ServerParts<M, Listener, Answerer>,
    ) -> Result<(), ServeError> {
        let ServerParts {
            desk,
            calls,
            persisters,
            ..
        } = parts;
        for persister in persisters {
            let named = std::thread::Builder::new().name("persister".into());
            let has_failed = Arc::clone(&self.has_failed);
            let run = move || {
                let ended = ended_as_one(|| persister.run());
                note_end("make a store durable", &ended, &has_failed);
                ended
            };
            self.persisters.push(named.spawn(run)?);
        }
        for calls in calls {
            self.wakers.push(calls.answerer.waker());
            let (stop, has_failed) = (Arc::clone(&self.stop), Arc::clone(&self.has_failed));
            let named = std::thread::Builder::new().name("store-server".into());
            let run = move || {
                let ended = ended_as_one(|| calls.serve(&stop));
                note_end("serve calls of a store", &ended, &has_failed);
            };
            self.threads.push(named.spawn(run)?);
        }
        let (stop, has_failed) = (Arc::clone(&self.stop), Arc::clone(&self.has_failed));
        let named = std::thread::Builder::new().name("store-clients".into());
        let run = move || {
            let (listener, ended) = ended_as_one(|| desk.serve(&stop));
            note_end("serve clients of a store", &ended, &has_failed);
            listener
        };
        self.desk = Some(named.spawn(run)?);
        Ok(())
    }

    /// Whether a medium failed, so that nothing that was not durable will be, or a thread cannot go on: the
    /// store is to be stopped.
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
        self.shards.iter().map(|shard| shard.figures()).collect()
    }

    /// What tells the same for as long as the store is served, and keeps nothing alive.
    pub fn watch(&self) -> impl Fn() -> Vec<Figures> + Send + Sync + use<M> {
        let shards: Vec<Weak<Shard<M>>> = self.shards.iter().map(Arc::downgrade).collect();
        move || {
            let there = shards.iter().filter_map(Weak::upgrade);
            there.map(|shard| shard.figures()).collect()
        }
    }

    /// What tells how long calls took so far, by what they ask for, as long as it is held: space, put,
    /// put_durable, get, delete, settle, sync, list, clean, figures.
    pub fn watch_latencies(
        &self,
    ) -> impl Fn() -> Vec<(&'static str, Latency)> + Send + Sync + use<M> {
        let times = self.times.clone();
        move || Times::latencies(times.iter().map(|times| &**times))
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
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::error!(error, "end a store");
        }
    }
}

/// A thread came to its end: by an error, the store goes with it.
fn note_end<E: std::error::Error + 'static>(
    what: &str,
    ended: &Result<(), E>,
    has_failed: &AtomicBool,
) {
    if let Err(error) = ended {
        // With its causes.
        let error: &(dyn std::error::Error + 'static) = error;
        tracing::error!(error, "{what}");
        has_failed.store(true, Ordering::Release);
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
