//! Sockets that clients come in by, and the thread that accepts them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use cenote_fabric::strangers::Source;
use mio::net::{TcpListener, UdpSocket, UnixListener};
use mio::{Events, Interest, Poll, Token};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustls::ServerConnection;

use super::clock::clock;
use super::connections::ConnectionFacts;
use super::mailboxes::{Message, NewClient};
use super::settings::{Settings, TcpAddress, WhenFull};
use super::shared::Shared;
use super::threads::locked;
use super::transport::Transport;
use super::watch;

/// The token of what wakes the thread.
pub(super) const WAKER: Token = Token(usize::MAX);
/// What a client is told that is one too many.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
/// How soon accepting is tried again that failed for want of descriptors or room.
const RETRY: Duration = Duration::from_millis(10);

/// Why a server cannot start: the address that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// One for TCP.
    #[error("failed to listen on TCP port {}: {source}", address.port())]
    Tcp {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// One for UDP.
    #[error("failed to listen on UDP port {}: {source}", address.port())]
    Udp {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The Unix socket.
    #[error("failed to listen on UNIX socket: {}: {source}", path.display())]
    Unix {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[derive(Debug)]
enum Listener {
    Tcp {
        listener: TcpListener,
        is_plain: bool,
    },
    Unix {
        listener: UnixListener,
        path: PathBuf,
    },
}

/// All sockets of a server, bound.
#[derive(Debug, Default)]
pub(super) struct Bound {
    listeners: Vec<Listener>,
    pub(super) udp: Vec<UdpSocket>,
}

impl Bound {
    /// Binds what the settings say.
    pub(super) fn new(settings: &Settings) -> Result<Self, BindError> {
        let mut bound = Self::default();
        for TcpAddress { address, is_plain } in &settings.tcp {
            let failed = |source| BindError::Tcp {
                address: *address,
                source,
            };
            let socket = socket(*address, SocketType::STREAM).map_err(failed)?;
            rustix::net::listen(&socket, settings.backlog).map_err(|error| failed(error.into()))?;
            bound.listeners.push(Listener::Tcp {
                listener: TcpListener::from_std(socket.into()),
                is_plain: *is_plain,
            });
        }
        // A datagram has nobody who could have said a password.
        let has_udp = settings.credentials.is_none();
        for address in settings.udp.iter().filter(|_| has_udp) {
            let failed = |source| BindError::Udp {
                address: *address,
                source,
            };
            let socket = socket(*address, SocketType::DGRAM).map_err(failed)?;
            bound.udp.push(UdpSocket::from_std(socket.into()));
        }
        if let Some((path, mode)) = &settings.unix {
            let failed = |source| BindError::Unix {
                path: path.clone(),
                source,
            };
            let listener = unix_listener(path, *mode, settings.backlog).map_err(failed)?;
            bound.listeners.push(Listener::Unix {
                listener,
                path: path.clone(),
            });
        }
        Ok(bound)
    }

    /// The addresses for TCP, with the ports that were chosen.
    pub(super) fn tcp_addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.listeners.iter();
        let address = |listener: &Listener| match listener {
            Listener::Tcp { listener, .. } => listener.local_addr().ok(),
            Listener::Unix { .. } => None,
        };
        listeners.filter_map(address).collect()
    }

    /// Listens no more.
    fn close(&mut self) {
        for listener in self.listeners.drain(..) {
            if let Listener::Unix { path, .. } = listener {
                // It may have been removed by somebody else.
                std::fs::remove_file(path).ok();
            }
        }
    }
}

fn socket(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

fn unix_listener(path: &Path, mode: u32, backlog: i32) -> io::Result<UnixListener> {
    // One that a server has left; whatever else is there is not ours to remove.
    if std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&listener, backlog)?;
    listener.set_nonblocking(true)?;
    Ok(UnixListener::from_std(listener))
}

impl Listener {
    fn source(&mut self) -> &mut dyn mio::event::Source {
        match self {
            Self::Tcp { listener, .. } => listener,
            Self::Unix { listener, .. } => listener,
        }
    }

    fn number(&self) -> i32 {
        match self {
            Self::Tcp { listener, .. } => listener.as_raw_fd(),
            Self::Unix { listener, .. } => listener.as_raw_fd(),
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Tcp { listener, .. } => listener
                .local_addr()
                .map_or_else(|_| "unknown".to_owned(), |address| text(&address)),
            Self::Unix { path, .. } => format!("unix:{}", path.display()),
        }
    }

    fn accept(&self, shared: &Shared) -> io::Result<(Transport, Source, String)> {
        match self {
            Self::Tcp { listener, is_plain } => {
                let (stream, peer) = listener.accept()?;
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(stream.as_fd(), true)?;
                let transport = match &*locked(&shared.tls) {
                    Some(tls) if !is_plain => {
                        let connection = ServerConnection::new(Arc::clone(tls));
                        Transport::tls(stream, connection.map_err(io::Error::other)?)
                    }
                    _ => Transport::Tcp(stream),
                };
                Ok((transport, peer.ip().into(), text(&peer)))
            }
            Self::Unix { listener, path } => {
                let (stream, _) = listener.accept()?;
                let user = sockopt::socket_peercred(stream.as_fd())?.uid.as_raw();
                let address = format!("unix:{}", path.display());
                Ok((Transport::Unix(stream), Source::User(user), address))
            }
        }
    }
}

/// An address as `stats conns` tells it.
fn text(address: &SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => format!("tcp:{address}"),
        SocketAddr::V6(address) => format!("tcp6:{address}"),
    }
}

/// The thread that accepts, and gives each client to the next worker.
pub(super) struct Front {
    pub(super) poll: Poll,
    pub(super) shared: Arc<Shared>,
    pub(super) bound: Bound,
    pub(super) next_worker: usize,
    pub(super) ids: AtomicU64,
    /// A client that no mailbox had room for.
    pub(super) left_over: Option<Box<NewClient>>,
}

impl Front {
    /// Accepts until the server stops.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let binding = self.shared.settings.binding.name();
        for (index, listener) in self.bound.listeners.iter_mut().enumerate() {
            let registry = self.poll.registry();
            registry.register(listener.source(), Token(index), Interest::READABLE)?;
            let number = listener.number();
            let address = listener.address();
            self.shared
                .log(2, || format!("<{number} server listening ({binding})"));
            self.shared.list(Arc::new(ConnectionFacts {
                id: self.ids.fetch_add(1, Ordering::Relaxed),
                number,
                address,
                listener: None,
                last_request: AtomicU64::new(clock()),
                state: AtomicU8::new(0),
                place: OnceLock::new(),
            }));
        }
        self.set_accepting(true);
        let mut events = Events::with_capacity(64);
        while !self.shared.stops.load(Ordering::SeqCst) {
            let wait = self.accept();
            if self.shared.drains.load(Ordering::SeqCst) && self.left_over.is_none() {
                self.bound.close();
                self.shared.has_closed.store(true, Ordering::SeqCst);
            }
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        self.bound.close();
        Ok(())
    }

    /// Lists the sockets that workers get.
    pub(super) fn list_datagrams(&self) {
        for socket in &self.bound.udp {
            let address = socket.local_addr();
            self.shared.list(Arc::new(ConnectionFacts {
                id: self.ids.fetch_add(1, Ordering::Relaxed),
                number: socket.as_raw_fd(),
                address: address.map_or_else(|_| "udp".to_owned(), |at| format!("udp:{at}")),
                listener: None,
                last_request: AtomicU64::new(clock()),
                state: AtomicU8::new(0),
                place: OnceLock::new(),
            }));
        }
    }

    fn set_accepting(&self, is_accepting: bool) {
        let connections = &self.shared.connections;
        let was = connections
            .is_accepting
            .swap(is_accepting, Ordering::SeqCst);
        if was && !is_accepting {
            connections.stops.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_full(&self) -> bool {
        let current = self.shared.connections.current.load(Ordering::SeqCst);
        current >= self.shared.settings.connections_max
    }

    /// Accepts all who are there; returns when to try again, if that is not when somebody comes.
    fn accept(&mut self) -> Option<Duration> {
        if let Some(client) = self.left_over.take()
            && !self.hand_over(client)
        {
            return Some(RETRY);
        }
        for index in 0..self.bound.listeners.len() {
            loop {
                if self.is_full() && self.shared.settings.when_full == WhenFull::Wait {
                    self.set_accepting(false);
                    // One may have ended before it could see that nobody accepts.
                    if self.is_full() {
                        return None;
                    }
                }
                self.set_accepting(true);
                let listener = &self.bound.listeners[index];
                match listener.accept(&self.shared) {
                    Ok((transport, source, address)) => {
                        let listener = listener.address();
                        if !self.take(transport, source, address, listener) {
                            return Some(RETRY);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        self.shared.log(1, || format!("accept(): {error}"));
                        // Of one connection, unless there are no descriptors left.
                        if error.kind() != io::ErrorKind::ConnectionAborted {
                            return Some(RETRY);
                        }
                    }
                }
            }
        }
        None
    }

    fn take(
        &mut self,
        mut transport: Transport,
        source: Source,
        address: String,
        listener: String,
    ) -> bool {
        let connections = &self.shared.connections;
        if self.is_full() {
            connections.rejected.fetch_add(1, Ordering::Relaxed);
            if transport.is_plain() {
                // Who does not take it is closed all the same.
                transport.write(&[io::IoSlice::new(TOO_MANY)]).ok();
            }
            return true;
        }
        connections.current.fetch_add(1, Ordering::SeqCst);
        connections.total.fetch_add(1, Ordering::Relaxed);
        let number = transport.number();
        let facts = Arc::new(ConnectionFacts {
            id: self.ids.fetch_add(1, Ordering::Relaxed),
            number,
            address,
            listener: Some(listener),
            last_request: AtomicU64::new(clock()),
            state: AtomicU8::new(0),
            place: OnceLock::new(),
        });
        self.shared.list(Arc::clone(&facts));
        self.shared
            .watched(watch::CONNECTIONS, || facts.line("conn_new", None));
        self.shared.log(2, || {
            format!("<{number} new auto-negotiating client connection")
        });
        self.hand_over(Box::new(NewClient {
            transport,
            facts,
            source,
        }))
    }

    /// Gives a client to the next worker; keeps it if that one has no room.
    fn hand_over(&mut self, client: Box<NewClient>) -> bool {
        let workers = &self.shared.workers;
        let worker = self.next_worker % workers.len();
        self.next_worker = worker + 1;
        match workers[worker].mailbox.send(Message::Client(client)) {
            Ok(()) => true,
            Err(Message::Client(client)) => {
                self.left_over = Some(client);
                false
            }
            Err(_) => unreachable!("is a client"),
        }
    }
}
