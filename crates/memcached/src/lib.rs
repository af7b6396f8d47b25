//! Sockets: memcached's protocol over TCP, TLS, Unix sockets and UDP.
//!
//! ```text
//! Front (the thread that runs it) -- accepts --> Worker 0 .. n-1, one thread each:
//!   poll -> clients -> Core: its partitions (Backend), requests to and from other workers
//! ```
//!
//! Each partition belongs to one worker; a request for another worker's partition is sent there as
//! text, and its reply is put in order among the client's replies. The request path takes no lock.
//! A worker's [`Backend`] is what it serves and how it reaches other nodes: a standalone server has
//! [`Alone`].
//!
//! Bounds: input of a client by [`Limits`](cenote_kv::protocol::Limits), its replies by
//! `replies.rs`, all clients together by `buffers.rs` and in fair shares (`turns.rs`), mailboxes by
//! number. The server stops reading from a client that does not read its replies.

#![forbid(unsafe_code)]

mod backend;
mod batch;
mod binary;
mod buffers;
mod classes;
mod client;
mod clock;
mod connections;
mod core;
mod crawl;
mod details;
mod direct;
pub mod files;
mod guest;
mod listen;
mod mailboxes;
mod parked_requests;
mod replies;
mod session;
mod settings;
mod shared;
mod small_answers;
mod stats;
pub mod threads;
mod times;
pub mod tls;
mod traffic;
mod transport;
mod tuning_commands;
mod turns;
mod udp;
mod watch;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_kv::protocol::authentication::Credentials;
use cenote_latency::Latency;
use mio::{Poll, Registry, Waker};

pub use backend::{
    Alone, Backend, ClassFigures, FIRST_TOKEN, Figures, Nobody, Partitions, Peers, Route,
};
pub use batch::{Asker, Batch, Ticket};
pub use clock::now_ns;
pub use listen::BindError;
pub use settings::{Binding, Settings, TcpAddress, WhenFull};
pub use small_answers::limited;

use listen::{Bound, Front};
use mailboxes::Mailbox;
use shared::{Shared, WorkerFace};
use threads::locked;
use times::Times;
use traffic::Traffic;
use worker::Worker;

/// A server whose sockets are bound, and that does not serve yet.
pub struct Server {
    front: Front,
    polls: Vec<Poll>,
}

/// A hold on a server from another thread.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// Who may ask, of clients that come from now on.
    pub fn set_credentials(&self, credentials: Credentials) {
        *locked(&self.0.credentials) = Some(Arc::new(credentials));
    }

    /// The certificates that clients are shown that come from now on.
    pub fn set_tls(&self, configuration: rustls::ServerConfig) {
        *locked(&self.0.tls) = Some(Arc::new(configuration));
    }

    /// Takes no more clients, and lets those go of whom nothing is under way.
    pub fn drain(&self) {
        if !self.0.drains.swap(true, Ordering::SeqCst) {
            self.0.wake_all();
        }
    }

    /// Whether the last client has gone, and no more are taken.
    pub fn is_drained(&self) -> bool {
        let connections = &self.0.connections;
        self.0.has_closed.load(Ordering::SeqCst) && connections.current.load(Ordering::SeqCst) == 0
    }

    /// What `stats` answers: names with values.
    pub fn stats(&self) -> Vec<(String, String)> {
        stats::listed(&self.0)
    }

    /// How long requests for items took so far, by what they ask for: see [`times`].
    pub fn latencies(&self) -> Vec<(&'static str, Latency)> {
        times::latencies(self.0.workers.iter().map(|worker| &worker.times))
    }

    /// Ends it: replies that are written are sent as far as clients take them at once.
    pub fn stop(&self) {
        self.0.stop(false);
    }

    /// Ends it, too; what it then returns says that this was asked for.
    pub fn stop_gracefully(&self) {
        self.0.stop(true);
    }
}

/// Why a server has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stopped {
    /// A signal, or a client's `shutdown`.
    AtOnce,
    /// SIGUSR1, or a client's `shutdown graceful`.
    Gracefully,
}

impl Server {
    /// Binds all addresses.
    ///
    /// # Errors
    /// Where one cannot be had.
    ///
    /// # Panics
    /// Where the system has no poll or no worker is asked for.
    pub fn bind(settings: Settings) -> Result<Self, BindError> {
        assert!(settings.workers > 0, "somebody has to serve");
        let bound = Bound::new(&settings)?;
        let new_poll = || Poll::new().expect("the system has polls");
        let waker = |poll: &Poll, token| Waker::new(poll.registry(), token).expect("a new poll");
        let polls: Vec<Poll> = (0..settings.workers).map(|_| new_poll()).collect();
        let workers = polls.iter().map(|poll| WorkerFace {
            mailbox: Mailbox::new(waker(poll, worker::WAKER)),
            counters: Arc::default(),
            traffic: Traffic::default(),
            times: Times::default(),
        });
        let workers = workers.collect();
        let poll = new_poll();
        let front_waker = waker(&poll, listen::WAKER);
        let shared = Arc::new(Shared::new(settings, workers, front_waker));
        let front = Front {
            poll,
            shared,
            bound,
            next_worker: 0,
            ids: AtomicU64::new(0),
            left_over: None,
        };
        Ok(Self { front, polls })
    }

    /// The addresses for TCP, with the ports that were chosen.
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.front.bound.tcp_addresses()
    }

    /// The addresses for UDP, with the ports that were chosen.
    pub fn udp_addresses(&self) -> Vec<SocketAddr> {
        let sockets = self.front.bound.udp.iter();
        sockets
            .filter_map(|socket| socket.local_addr().ok())
            .collect()
    }

    /// The registry of each worker's poll, for what its backend waits for.
    ///
    /// # Errors
    /// The system has none left.
    pub fn registries(&self) -> io::Result<Vec<Registry>> {
        let polls = self.polls.iter();
        polls.map(|poll| poll.registry().try_clone()).collect()
    }

    /// A hold on it.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.front.shared))
    }

    /// Serves until it is stopped, on this thread and one for each worker. `backend` makes what a
    /// worker serves.
    ///
    /// # Errors
    /// Where threads cannot be started, or a poll fails.
    ///
    /// # Panics
    /// Where a worker does.
    pub fn run<B: Backend>(mut self, mut backend: impl FnMut(usize) -> B) -> io::Result<Stopped> {
        let shared = Arc::clone(&self.front.shared);
        self.front.list_datagrams();
        let mut sockets: Vec<Vec<_>> = self.polls.iter().map(|_| Vec::new()).collect();
        let count = sockets.len();
        for (index, socket) in self.front.bound.udp.drain(..).enumerate() {
            sockets[index % count].push(socket);
        }
        let mut threads = Vec::new();
        for (index, (poll, sockets)) in self.polls.drain(..).zip(sockets).enumerate() {
            let backend = backend(index);
            let shared = Arc::clone(&shared);
            let run = move || {
                let stop_all = Handle(Arc::clone(&shared));
                let result = Worker::new(poll, index, backend, shared, sockets);
                let result = result.and_then(Worker::run);
                // With a worker its partitions are gone: nobody goes on without them.
                stop_all.stop();
                result
            };
            let name = format!("kv-worker-{index}");
            threads.push(crate::threads::spawn(&name, run)?);
        }
        let result = self.front.run();
        let gracefully = shared.stops_gracefully.load(Ordering::SeqCst);
        shared.stop(gracefully);
        for thread in threads {
            thread.join().expect("a worker does not panic")?;
        }
        result?;
        Ok(if gracefully {
            Stopped::Gracefully
        } else {
            Stopped::AtOnce
        })
    }
}
