//! What all threads of a server see of each other: mailboxes, and numbers for `stats`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cenote_fabric::strangers::Source;
use cenote_kv::engine::Counters;
use cenote_kv::engine::counters::Counter;
use cenote_kv::group::Counts;
use cenote_kv::protocol::authentication::Credentials;
use crossbeam_queue::ArrayQueue;
use mio::Waker;
use rustix::time::{ClockId, clock_gettime};

use super::backend::Figures;
use super::batch::Batch;
use super::classes::{Class, Published};
use super::details::Details;
use super::settings::Settings;
use super::times::Times;
use super::transport::Transport;
use super::watch::Watchers;

/// Messages that may lie in a mailbox. Who finds it full keeps what it has and tries again.
const MESSAGES_MAX: usize = 1024;

/// What is sent to a worker.
#[derive(Debug)]
pub(super) enum Message {
    /// A new client.
    Client(Box<NewClient>),
    /// Requests for its partitions.
    Asks(Batch),
    /// Answers to its requests.
    Answers(Batch),
}

/// A client that has just been accepted.
#[derive(Debug)]
pub(super) struct NewClient {
    pub(super) transport: Transport,
    pub(super) facts: Arc<ConnectionFacts>,
    /// Whose share of the memory for clients it has.
    pub(super) source: Source,
}

/// What `stats conns` tells of a connection.
#[derive(Debug)]
pub(super) struct ConnectionFacts {
    /// Its own, of all connections that there ever were.
    pub(super) id: u64,
    pub(super) number: i32,
    pub(super) address: String,
    /// Of a client, where it came in.
    pub(super) listener: Option<String>,
    /// Seconds since 1970.
    pub(super) last_request: AtomicU64,
    /// What it is doing.
    pub(super) state: AtomicU8,
    /// Its worker, and its place there.
    pub(super) place: OnceLock<(usize, u32)>,
}

/// What a client is doing, as `stats conns` tells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum State {
    /// Nothing has come of its next request.
    Waits = 0,
    /// Its request is not whole.
    Reads = 1,
    /// It is served.
    Served = 2,
    /// It watches.
    Watches = 3,
}

impl ConnectionFacts {
    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// What who watches is told of it, and why it ended.
    pub(super) fn line(&self, what: &str, reason: Option<&str>) -> String {
        let (transport, peer) = self.address.split_once(':').unwrap_or_default();
        let (host, port, transport) = match peer.rsplit_once(':') {
            Some((host, port)) if transport != "unix" => (host, port, transport),
            _ => (peer, "0", "local"),
        };
        let reason = reason.map_or_else(String::new, |reason| format!(" reason={reason}"));
        let number = self.number;
        format!("type={what} rip={host} rport={port} transport={transport}{reason} cfd={number}")
    }

    pub(super) fn state_name(&self) -> &'static str {
        const NAMES: [&str; 4] = ["conn_read", "conn_nread", "conn_parse_cmd", "conn_watch"];
        let state = usize::from(self.state.load(Ordering::Relaxed));
        NAMES.get(state).copied().unwrap_or(NAMES[0])
    }
}

/// Where a worker is reached.
#[derive(Debug)]
pub(super) struct Mailbox {
    queue: ArrayQueue<Message>,
    waker: Waker,
    /// The worker may be asleep without having looked into the queue.
    sleeps: AtomicBool,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            queue: ArrayQueue::new(MESSAGES_MAX),
            waker,
            sleeps: AtomicBool::new(false),
        }
    }

    /// Leaves a message; gives it back if there is no room.
    pub(super) fn send(&self, message: Message) -> Result<(), Message> {
        let sent = self.queue.push(message);
        self.wake();
        sent
    }

    /// Wakes the worker if it sleeps.
    pub(super) fn wake(&self) {
        if self.sleeps.swap(false, Ordering::SeqCst) {
            self.waker.wake().expect("an eventfd takes a number");
        }
    }

    pub(super) fn receive(&self) -> Option<Message> {
        self.queue.pop()
    }

    /// The worker goes to sleep, unless there is something to do.
    pub(super) fn may_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        let may = self.queue.is_empty();
        if !may {
            self.sleeps.store(false, Ordering::SeqCst);
        }
        may
    }

    /// The worker is up.
    pub(super) fn is_up(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
    }
}

/// Numbers of one worker that only it writes.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) bytes_read: Counter,
    pub(super) bytes_written: Counter,
    pub(super) auth_cmds: Counter,
    pub(super) auth_errors: Counter,
    pub(super) conn_yields: Counter,
    pub(super) idle_kicks: Counter,
    items: Counter,
    bytes: Counter,
    resident_bytes: Counter,
    /// Of clients' buffers.
    pub(super) buffer_bytes: Counter,
    /// Of requests of clients that wait here, or for other nodes.
    pub(super) asked_bytes: Counter,
    evictions: Counter,
    evicted_unfetched: Counter,
    reclaimed: Counter,
    expired_unfetched: Counter,
    pub(super) classes: Published,
}

impl Traffic {
    pub(super) fn set_figures(&self, figures: &Figures) {
        self.items.set(figures.items);
        self.bytes.set(figures.bytes);
        self.resident_bytes.set(figures.resident_bytes);
        self.evictions.set(figures.went.evictions);
        self.evicted_unfetched.set(figures.went.evicted_unfetched);
        self.reclaimed.set(figures.went.reclaimed);
        self.expired_unfetched.set(figures.went.expired_unfetched);
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            items: self.items.read(),
            bytes: self.bytes.read(),
            resident_bytes: self.resident_bytes.read(),
            went: Counts {
                evictions: self.evictions.read(),
                evicted_unfetched: self.evicted_unfetched.read(),
                reclaimed: self.reclaimed.read(),
                expired_unfetched: self.expired_unfetched.read(),
            },
        }
    }
}

/// One worker, as others see it.
#[derive(Debug)]
pub(super) struct WorkerFace {
    pub(super) mailbox: Mailbox,
    pub(super) counters: Arc<Counters>,
    pub(super) traffic: Traffic,
    pub(super) times: Times,
}

/// Numbers of connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) current: AtomicUsize,
    pub(super) total: AtomicU64,
    pub(super) rejected: AtomicU64,
    /// Times that accepting was stopped.
    pub(super) stops: AtomicU64,
    pub(super) is_accepting: AtomicBool,
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
    facts: Mutex<BTreeMap<u64, Arc<ConnectionFacts>>>,
    /// Who watches.
    pub(super) watchers: Watchers,
    /// What is counted by prefix.
    pub(super) details: Details,
    /// Counters as they were at the last `stats reset`.
    pub(super) baseline: Mutex<Vec<u64>>,
    /// The same of each class of items.
    pub(super) class_baseline: Mutex<Vec<Class>>,
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
            facts: Mutex::new(BTreeMap::new()),
            watchers: Watchers::default(),
            details: Details::default(),
            baseline: Mutex::new(Vec::new()),
            class_baseline: Mutex::new(Vec::new()),
        }
    }

    /// Lists a connection.
    pub(super) fn list(&self, facts: Arc<ConnectionFacts>) {
        locked(&self.facts).insert(facts.id, facts);
    }

    pub(super) fn facts(&self) -> Vec<Arc<ConnectionFacts>> {
        locked(&self.facts).values().map(Arc::clone).collect()
    }

    /// The descriptor of a client; 0 of one that is on another node, or has gone.
    pub(super) fn descriptor(&self, worker: usize, place: u32) -> i32 {
        let facts = locked(&self.facts);
        let mut all = facts.values();
        let at = |facts: &&Arc<ConnectionFacts>| facts.place.get() == Some(&(worker, place));
        all.find(at).map_or(0, |facts| facts.number)
    }

    /// Writes a line for who watches.
    pub(super) fn watched(&self, kind: u8, line: impl FnOnce() -> String) {
        for worker in self.watchers.log(kind, line) {
            self.workers[worker].mailbox.wake();
        }
    }

    /// A connection has ended.
    pub(super) fn note_end(&self, facts: &ConnectionFacts) {
        locked(&self.facts).remove(&facts.id);
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
            eprintln!("{}", line());
        }
    }
}

/// A lock whose holder panicked has whole contents here: single inserts and removals.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds of a clock that never jumps, and goes on while the machine sleeps: leases run out then, too.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("time since the start");
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).expect("a part of a second")
}

/// The time since 1970, as the system says. It may jump: what depends on it follows at a [`Pace`].
///
/// [`Pace`]: cenote_kv::group::pace::Pace
pub(super) fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Its whole seconds.
pub(super) fn clock() -> u64 {
    since_1970().as_secs()
}
