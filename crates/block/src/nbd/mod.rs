//! The NBD server: disks as exports on unix and TCP sockets.
//!
//! [`Server::start`] binds, opens one queue per export and worker, and starts a
//! fixed number of threads: the acceptor and the workers. A connection belongs
//! to one worker for its life. `docs/protocols/nbd.md` says what is spoken.
//!
//! Everything is bounded: connections, options and time of a handshake, requests
//! and bytes in flight of a connection. At a bound the server stops reading.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

mod acceptor;
mod budget;
mod buffers;
mod claims;
mod connection;
mod engine;
mod export;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod handshake;
mod inbox;
mod listen;
mod outbox;
mod roster;
mod session;
mod slots;
mod stats;
pub(crate) mod sys;
mod transport;
pub(crate) mod wire;
mod worker;

pub use export::Export;
pub use stats::Stats;

use acceptor::{Acceptor, Complaint, Door, Tally};
use budget::Pool;
use claims::Claims;
use engine::{Engine, Order};
use handshake::Security;
use listen::Listener;
use roster::Roster;
use slots::{Bounds, Slots};
use stats::Counters;
use worker::{Limits, Mailbox, Worker};

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<Address>,
    workers: Vec<Arc<Mailbox>>,
    counters: Vec<Arc<Counters>>,
    tally: Arc<Tally>,
    stop: Option<UnixStream>,
    threads: Vec<JoinHandle<()>>,
}

/// What to serve, and where.
pub struct Config {
    /// At least one, under different names.
    pub exports: Vec<Export>,
    /// Where to listen.
    pub addresses: Vec<Address>,
    /// Sockets that listen already, beside `addresses`; at least one of either.
    pub passed: Vec<OwnedFd>,
    /// Whether TCP addresses other than loopback may be bound. Without TLS and certificates of clients
    /// there is no authentication here: whoever reaches the port reads and writes.
    pub remote: Remote,
    /// TLS for all that is spoken over TCP; clients of unix sockets may ask for it.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Worker threads, at least 1.
    pub worker_count: usize,
    /// Connections open at once, of each address listened on. Above it the oldest that has not ended
    /// its handshake makes room; if there is none, the new one is closed.
    pub connections_max: usize,
    /// Connections open at once from one TCP client's address, or IPv6 network of 64 bits.
    pub source_connections_max: usize,
    /// Buffer bytes of requests in flight, of all connections together, beside the 2 MiB that each may
    /// always have; never less than the longest request needs.
    pub in_flight_bytes_max: usize,
    /// For how long a connection may take to reach its first command.
    pub handshake_limit: Duration,
    /// For how long a client may leave others without memory by not taking its answers.
    pub stall_limit: Duration,
}

/// Who may reach a TCP address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Remote {
    /// Only this machine: an address that is not loopback is refused.
    Refuse,
    /// Whoever the network lets through.
    Allow,
}

impl Config {
    /// Serves `exports` at `addresses`, loopback only, with default limits.
    #[must_use]
    pub fn new(exports: Vec<Export>, addresses: Vec<Address>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            exports,
            addresses,
            passed: Vec::new(),
            remote: Remote::Refuse,
            tls: None,
            worker_count: cores.min(WORKERS_DEFAULT_MAX),
            connections_max: CONNECTIONS_MAX,
            source_connections_max: CONNECTIONS_MAX / 2,
            in_flight_bytes_max: 512 << 20,
            handshake_limit: Duration::from_secs(10),
            stall_limit: Duration::from_secs(10),
        }
    }
}

/// Connections of one listener; a few of each of a rack's machines. Arbitrary.
const CONNECTIONS_MAX: usize = 128;

/// More workers than this rarely helped one machine's clients; arbitrary.
const WORKERS_DEFAULT_MAX: usize = 4;

/// Where a server listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Address {
    /// A unix socket at this path.
    Unix(PathBuf),
    /// A TCP port; port 0 lets the kernel choose.
    Tcp(SocketAddr),
}

impl Address {
    /// The address as the NBD URI of an export, percent-encoded.
    #[must_use]
    pub fn uri(&self, export: &str) -> String {
        let export = encoded(export.as_bytes());
        match self {
            Self::Unix(path) if path.as_os_str().is_empty() => format!("nbd+unix:///{export}"),
            Self::Unix(path) => {
                let path = encoded(path.as_os_str().as_bytes());
                format!("nbd+unix:///{export}?socket={path}")
            }
            Self::Tcp(address) => format!("nbd://{address}/{export}"),
        }
    }

    /// As [`Address::uri`], for clients that speak TLS.
    #[must_use]
    pub fn tls_uri(&self, export: &str) -> String {
        self.uri(export).replacen("nbd", "nbds", 1)
    }
}

/// Bytes as a part of a URI: those that may mean something else in one as `%` and two digits.
fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(*byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "{}", path.display()),
            Self::Tcp(address) => write!(formatter, "{address}"),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// Nothing to serve, or nowhere to serve it.
    #[error("serve NBD: no {0} given")]
    Missing(&'static str),
    /// An export's name is used twice or passes 4096 bytes.
    #[error("serve NBD: export name {0:?} is taken or too long")]
    ExportName(String),
    /// An address of the network, without leave to be reached from it.
    #[error(
        "listen on {0}: not a loopback address, and anyone who reaches it can read and write; \
         allow remote clients explicitly"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Bind {
        /// As configured.
        address: Address,
        /// The system's reason.
        source: io::Error,
    },
    /// What was passed is not to be listened on.
    #[error("listen on descriptor {number}, passed by LISTEN_FDS")]
    Passed {
        /// Of the descriptor.
        number: RawFd,
        /// Why not.
        source: io::Error,
    },
    /// An export's disk has no queue for a worker.
    #[error("open a queue of export {export:?}")]
    Queue {
        /// Name of the export.
        export: String,
        /// The disk's reason.
        source: io::Error,
    },
    /// The system gave no thread or descriptor.
    #[error("start the NBD server's threads")]
    Thread(#[source] io::Error),
}

impl Server {
    /// Binds, then serves in threads of its own until stopped. The process aborts if one of them
    /// cannot go on.
    ///
    /// # Errors
    /// [`NbdError`] says what was refused; nothing is left running then.
    pub fn start(config: Config) -> Result<Self, NbdError> {
        check(&config)?;
        let allow_remote = config.remote == Remote::Allow;
        let bound = config.addresses.iter();
        let bound = bound.map(|address| Listener::bind(address, allow_remote));
        let passed = config.passed.into_iter();
        let passed = passed.map(|fd| Listener::adopt(fd, allow_remote));
        let listeners: Vec<_> = bound.chain(passed).collect::<Result<_, _>>()?;
        let mut server = Self {
            addresses: Vec::new(),
            workers: Vec::new(),
            counters: Vec::new(),
            tally: Arc::default(),
            stop: None,
            threads: Vec::new(),
        };
        for listener in &listeners {
            let address = listener.address().map_err(NbdError::Thread)?;
            server.addresses.push(address);
        }
        let exports: Arc<[Export]> = config.exports.into();
        let mut ears = Vec::new();
        for _ in 0..config.worker_count.max(1) {
            let (mailbox, ear) = Mailbox::new().map_err(NbdError::Thread)?;
            server.workers.push(mailbox);
            ears.push(ear);
        }
        let ring_all = || {
            let workers = server.workers.clone();
            move || workers.iter().for_each(|worker| worker.ring())
        };
        let pool_bytes = config
            .in_flight_bytes_max
            .max(wire::PAYLOAD_BYTES_MAX as usize);
        let pool = Pool::new(pool_bytes, ring_all());
        let orders = exports.iter().map(|_| Order {
            claims: Claims::new(ring_all()),
            roster: Roster::new(ring_all()),
        });
        let orders: Arc<[Order]> = orders.collect();
        let limits = Limits {
            handshake: config.handshake_limit,
            stall: config.stall_limit,
        };
        for (number, ear) in ears.into_iter().enumerate() {
            let engine = server.engine(&exports, &pool, &orders, config.tls.clone())?;
            server.start_worker(number, ear, engine, limits)?;
        }
        let (signal, stop) = UnixStream::pair().map_err(NbdError::Thread)?;
        let bounds = Bounds {
            all_max: config.connections_max,
            source_max: config.source_connections_max,
        };
        let doors = listeners.into_iter().map(|listener| Door {
            security: match (&config.tls, &listener) {
                (None, _) => Security::None,
                (Some(_), Listener::Unix { .. }) => Security::Offered,
                (Some(_), Listener::Tcp(_)) => Security::Required,
            },
            listener,
            slots: Slots::new(bounds),
        });
        let acceptor = Acceptor {
            doors: doors.collect(),
            workers: server.workers.clone(),
            tally: Arc::clone(&server.tally),
            stop,
            complaint: Complaint::default(),
        };
        server.stop = Some(signal);
        server.spawn("nbd-accept".to_owned(), || acceptor.run())?;
        Ok(server)
    }

    /// Where it listens, ports chosen by the kernel included.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for counters in &self.counters {
            counters.add_to(&mut stats);
        }
        let open: usize = self.workers.iter().map(|w| w.connection_count()).sum();
        stats.connections_open = open as u64;
        stats.connections_accepted = self.tally.accepted.load(Ordering::Relaxed);
        stats.connections_refused = self.tally.refused.load(Ordering::Relaxed);
        stats.connections_evicted = self.tally.evicted.load(Ordering::Relaxed);
        stats
    }

    /// Stops accepting, finishes what is in flight (for at most two seconds),
    /// closes the connections and ends the threads.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        if let Some(mut signal) = self.stop.take()
            && let Err(error) = signal.write_all(&[1])
        {
            tracing::debug!(%error, "the acceptor ended before it was asked to");
        }
        // The acceptor goes first, so that no worker gets a connection after its end.
        if self.threads.len() > self.workers.len()
            && let Some(acceptor) = self.threads.pop()
        {
            join(acceptor);
        }
        for worker in &self.workers {
            worker.stop();
        }
        self.threads.drain(..).for_each(join);
    }

    /// What one worker works with.
    fn engine(
        &mut self,
        exports: &Arc<[Export]>,
        pool: &Arc<Pool>,
        orders: &Arc<[Order]>,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Result<Engine, NbdError> {
        let mut queues = Vec::with_capacity(exports.len());
        for export in exports.iter() {
            let queue = export.disk.queue().map_err(|source| NbdError::Queue {
                export: export.name.clone(),
                source,
            })?;
            queues.push(queue);
        }
        let counters = Arc::new(Counters::default());
        self.counters.push(Arc::clone(&counters));
        Ok(Engine::new(
            Arc::clone(exports),
            queues,
            counters,
            Arc::clone(pool),
            Arc::clone(orders),
            tls,
        ))
    }

    fn start_worker(
        &mut self,
        number: usize,
        ear: UnixStream,
        engine: Engine,
        limits: Limits,
    ) -> Result<(), NbdError> {
        let mailbox = Arc::clone(&self.workers[number]);
        let worker = Worker::new(engine, mailbox, ear, limits).map_err(NbdError::Thread)?;
        self.spawn(format!("nbd-{number}"), || worker.run())
    }

    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), NbdError> {
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                if let Err(error) = run() {
                    // Its clients would wait for ever, and so would those that it is given still.
                    tracing::error!(%error, thread = name, "serve NBD; the process ends");
                    std::process::abort();
                }
            })
            .map_err(NbdError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn check(config: &Config) -> Result<(), NbdError> {
    if config.exports.is_empty() {
        return Err(NbdError::Missing("export"));
    }
    if config.addresses.is_empty() && config.passed.is_empty() {
        return Err(NbdError::Missing("address"));
    }
    for (index, export) in config.exports.iter().enumerate() {
        let taken = config.exports[..index]
            .iter()
            .any(|other| other.name == export.name);
        if taken || export.name.len() > EXPORT_NAME_BYTES_MAX {
            return Err(NbdError::ExportName(export.name.clone()));
        }
    }
    Ok(())
}

/// The protocol's limit on strings.
const EXPORT_NAME_BYTES_MAX: usize = 4096;

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread of the NBD server panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read_back_as_the_path_and_the_export_that_they_are_of() {
        let unix = |path: &str| Address::Unix(path.into());
        for (uri, wanted) in [
            (unix("/run/nbd").uri("v0"), "nbd+unix:///v0?socket=/run/nbd"),
            (
                unix("/a b/50%&c").uri("v 0?"),
                "nbd+unix:///v%200%3F?socket=/a%20b/50%25%26c",
            ),
            (unix("/a b").tls_uri("v0"), "nbds+unix:///v0?socket=/a%20b"),
        ] {
            assert_eq!(uri, wanted);
        }
        let tcp = Address::Tcp("127.0.0.1:10809".parse().expect("an address"));
        assert_eq!(tcp.uri("v0"), "nbd://127.0.0.1:10809/v0");
        assert_eq!(tcp.tls_uri("v0"), "nbds://127.0.0.1:10809/v0");
    }
}
