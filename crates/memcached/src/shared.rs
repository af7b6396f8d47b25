//! What all threads of a server see of each other, and of their clients' connections.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cenote_cli::stderr;
use cenote_kv::engine::Counters;
use cenote_kv::protocol::authentication::Credentials;
use mio::Waker;

use super::classes::Class;
use super::connections::{ConnectionFacts, Connections};
use super::details::Details;
use super::mailboxes::Mailbox;
use super::settings::Settings;
use super::threads::locked;
use super::times::Times;
use super::traffic::Traffic;
use super::watch::Watchers;

/// One worker, as others see it.
#[derive(Debug)]
pub(super) struct WorkerFace {
    pub(super) mailbox: Mailbox,
    pub(super) counters: Arc<Counters>,
    pub(super) traffic: Traffic,
    pub(super) times: Times,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) workers: Vec<WorkerFace>,
    pub(super) connections: Connections,
    pub(super) verbosity: AtomicU8,
    /// Memory of the whole process, as `cache_memlimit` has changed it.
    pub(super) memory_bytes: AtomicU64,
    /// Who may ask, of clients that come from now on.
    pub(super) credentials: Mutex<Option<Arc<Credentials>>>,
    /// Certificates that clients are shown from now on.
    pub(super) tls: Mutex<Option<Arc<rustls::ServerConfig>>>,
    pub(super) started: Instant,
    pub(super) stops: AtomicBool,
    /// `lru_crawler` may be asked.
    pub(super) has_crawler: AtomicBool,
    /// No more clients are wanted.
    pub(super) drains: AtomicBool,
    /// Nobody listens any more.
    pub(super) has_closed: AtomicBool,
    /// `shutdown graceful` was asked for, and not `shutdown`.
    pub(super) stops_gracefully: AtomicBool,
    /// Wakes the thread that accepts.
    pub(super) front: Waker,
    listed: Mutex<Listed>,
    /// Who watches.
    pub(super) watchers: Watchers,
    /// What is counted by prefix.
    pub(super) details: Details,
    /// Counters as they were at the last `stats reset`.
    pub(super) baseline: Mutex<Vec<u64>>,
    /// The same of each class of items.
    pub(super) class_baseline: Mutex<Vec<Class>>,
}

/// All connections.
#[derive(Debug, Default)]
struct Listed {
    /// By their ids.
    facts: BTreeMap<u64, Arc<ConnectionFacts>>,
    /// Descriptors of those that are at a worker, by it and their place there.
    numbers: HashMap<(usize, u32), i32>,
}

impl Listed {
    fn remove(&mut self, facts: &ConnectionFacts) {
        self.facts.remove(&facts.id);
        if let Some(place) = facts.place.get() {
            self.numbers.remove(place);
        }
    }
}

impl Shared {
    pub(super) fn new(settings: Settings, workers: Vec<WorkerFace>, front: Waker) -> Self {
        let verbosity = AtomicU8::new(settings.verbosity);
        let memory_bytes = settings.memory_bytes;
        let has_crawler = settings.has_crawler;
        Self {
            credentials: Mutex::new(settings.credentials.clone()),
            tls: Mutex::new(settings.tls.clone()),
            settings,
            workers,
            connections: Connections::default(),
            verbosity,
            memory_bytes: AtomicU64::new(memory_bytes),
            started: Instant::now(),
            stops: AtomicBool::new(false),
            has_crawler: AtomicBool::new(has_crawler),
            drains: AtomicBool::new(false),
            has_closed: AtomicBool::new(false),
            stops_gracefully: AtomicBool::new(false),
            front,
            listed: Mutex::default(),
            watchers: Watchers::default(),
            details: Details::default(),
            baseline: Mutex::new(Vec::new()),
            class_baseline: Mutex::new(Vec::new()),
        }
    }

    /// Lists a connection.
    pub(super) fn list(&self, facts: Arc<ConnectionFacts>) {
        locked(&self.listed).facts.insert(facts.id, facts);
    }

    pub(super) fn facts(&self) -> Vec<Arc<ConnectionFacts>> {
        let listed = locked(&self.listed);
        listed.facts.values().map(Arc::clone).collect()
    }

    /// A connection has got its place at a worker, the only one that it ever has.
    pub(super) fn note_place(&self, facts: &ConnectionFacts, worker: usize, place: u32) {
        if facts.place.set((worker, place)).is_ok() {
            let numbers = &mut locked(&self.listed).numbers;
            numbers.insert((worker, place), facts.number);
        }
    }

    /// The descriptor of a client; 0 of one that is on another node, or has gone.
    pub(super) fn descriptor(&self, worker: usize, place: u32) -> i32 {
        let listed = locked(&self.listed);
        let number = listed.numbers.get(&(worker, place));
        number.copied().unwrap_or(0)
    }

    /// Writes a line for who watches.
    pub(super) fn watched(&self, kind: u8, line: impl FnOnce() -> String) {
        for worker in self.watchers.log(kind, line) {
            self.workers[worker].mailbox.wake();
        }
    }

    /// A connection has ended.
    pub(super) fn note_end(&self, facts: &ConnectionFacts) {
        locked(&self.listed).remove(facts);
        self.connections.current.fetch_sub(1, Ordering::SeqCst);
        if !self.connections.is_accepting.load(Ordering::SeqCst) {
            self.front.wake().expect("an eventfd takes a number");
        }
    }

    /// Ends all threads.
    pub(super) fn stop(&self, gracefully: bool) {
        // A worker that ends for it says so, too, and does not know how it was asked.
        self.stops_gracefully.fetch_or(gracefully, Ordering::SeqCst);
        self.stops.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    pub(super) fn wake_all(&self) {
        self.front.wake().expect("an eventfd takes a number");
        for worker in &self.workers {
            worker.mailbox.wake();
        }
    }

    /// Writes a line on standard error, if so much is wanted.
    pub(super) fn log(&self, level: u8, line: impl FnOnce() -> String) {
        if self.verbosity.load(Ordering::Relaxed) >= level {
            stderr::say(line());
        }
    }
}
