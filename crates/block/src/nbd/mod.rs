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
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

mod buffers;
mod connection;
mod engine;
mod export;
mod handshake;
mod listen;
mod outbox;
mod session;
mod stats;
pub(crate) mod sys;
pub(crate) mod wire;
mod worker;

pub use export::Export;
pub use stats::Stats;

use engine::Engine;
use listen::{Acceptor, Listener, Tally};
use stats::Counters;
use worker::{Mailbox, Worker};

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
#[derive(Clone)]
pub struct Config {
    /// At least one, under different names.
    pub exports: Vec<Export>,
    /// At least one.
    pub addresses: Vec<Address>,
    /// Whether TCP addresses other than loopback may be bound. NBD has no
    /// authentication here: whoever reaches the port reads and writes.
    pub remote: Remote,
    /// Worker threads, at least 1.
    pub worker_count: usize,
    /// Connections open at once; further ones are closed as they come. Memory
    /// in flight is bounded by 64 MiB for each.
    pub connections_max: usize,
    /// For how long a connection may take to reach its first command.
    pub handshake_limit: Duration,
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
            remote: Remote::Refuse,
            worker_count: cores.min(WORKERS_DEFAULT_MAX),
            connections_max: 128,
            handshake_limit: Duration::from_secs(10),
        }
    }
}

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
    /// The address as the NBD URI of an export.
    #[must_use]
    pub fn uri(&self, export: &str) -> String {
        match self {
            Self::Unix(path) => format!("nbd+unix:///{export}?socket={}", path.display()),
            Self::Tcp(address) => format!("nbd://{address}/{export}"),
        }
    }
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
        "listen on {0}: not a loopback address, and whoever reaches it may read and write; \
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
    /// Binds, then serves in threads of its own until stopped.
    ///
    /// # Errors
    /// [`NbdError`] says what was refused; nothing is left running then.
    pub fn start(config: Config) -> Result<Self, NbdError> {
        check(&config)?;
        let listeners = config
            .addresses
            .iter()
            .map(|address| Listener::bind(address, config.remote == Remote::Allow))
            .collect::<Result<Vec<_>, _>>()?;
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
        let exports: Arc<[Export]> = config.exports.clone().into();
        for number in 0..config.worker_count.max(1) {
            server.start_worker(number, &exports, config.handshake_limit)?;
        }
        let (signal, stop) = UnixStream::pair().map_err(NbdError::Thread)?;
        let acceptor = Acceptor {
            listeners,
            workers: server.workers.clone(),
            connections_max: config.connections_max,
            tally: Arc::clone(&server.tally),
            stop,
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

    fn start_worker(
        &mut self,
        number: usize,
        exports: &Arc<[Export]>,
        handshake_limit: Duration,
    ) -> Result<(), NbdError> {
        let mut queues = Vec::with_capacity(exports.len());
        for export in exports.iter() {
            let queue = export.disk.queue().map_err(|source| NbdError::Queue {
                export: export.name.clone(),
                source,
            })?;
            queues.push(queue);
        }
        let counters = Arc::new(Counters::default());
        let (mailbox, ear) = Mailbox::new().map_err(NbdError::Thread)?;
        let engine = Engine::new(Arc::clone(exports), queues, Arc::clone(&counters));
        let worker = Worker::new(engine, Arc::clone(&mailbox), ear, handshake_limit)
            .map_err(NbdError::Thread)?;
        self.spawn(format!("nbd-{number}"), || worker.run())?;
        self.workers.push(mailbox);
        self.counters.push(counters);
        Ok(())
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
                    tracing::error!(%error, thread = name, "a thread of the NBD server ended");
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
    if config.addresses.is_empty() {
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
