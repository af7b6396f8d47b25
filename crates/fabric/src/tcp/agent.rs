//! The thread that serves one-sided verbs to all `tcp` clients of a host.
//!
//! It plays the part of an RDMA network card: it owns the data connections that the
//! listener has authenticated, executes their verbs on window memory, and blocks in one
//! `epoll_wait` when there is nothing to do. What the host must hear of (messages,
//! immediates, the end of a connection) goes to the control thread through a bounded queue
//! and an eventfd; when that queue is full the client is told `ReceiverNotReady`.
//!
//! While a lone connection is busy the thread waits in that socket instead, for at most
//! [`LONE_WAIT`] at a time: that saves a system call per batch. Nothing else waits longer for it.
//!
//! The control thread only leaves commands and wakes it; no lock is held while it serves.
//!
//! So it is without `io_uring`; where the kernel has that, [`ring`] serves instead.

mod ring;

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::batch::Side;
use super::bench::Bench;
use super::connection::{Connection, End, Interest};
use super::gather::prepare;
use crate::record::{RecordOpener, RecordSealer};
use crate::windows::WindowTable;
use crate::{ClientId, Error, Result, Waker, WindowId};
use ring::RingService;

/// How long a client's machine may leave sent bytes unacknowledged, or stay silent under
/// keep-alive probes, until its connection is closed. Arbitrary; it only frees memory.
const CLIENT_SILENCE: Duration = Duration::from_secs(60);

/// How often an end that the control thread's queue had no room for is offered again.
const RETRY_MS: libc::c_int = 5;

/// How long the thread waits in the socket of a lone, busy connection; commands wait as long.
const LONE_WAIT: Duration = Duration::from_millis(5);

/// Connections woken per `epoll_wait`.
const WOKEN: usize = 64;

/// Stands for the eventfd among connection indices.
const COMMANDS: u64 = u64::MAX;

/// What a data connection has for the host's control thread.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum AgentEvent {
    /// A SEND.
    Message { client: ClientId, bytes: Vec<u8> },
    /// A WRITE with immediate, its bytes in place.
    Immediate {
        client: ClientId,
        window: WindowId,
        offset: u64,
        len_bytes: u32,
        value: u32,
    },
    /// A connection is over. Comes once for every adopted connection, however it ended.
    Closed { client: ClientId },
}

/// How the thread waits and moves bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Serving {
    /// By `io_uring` where there is one that will do.
    Ring,
    /// By `epoll` and calls for each connection.
    Epoll,
}

impl Serving {
    /// What the environment allows.
    pub(crate) fn allowed() -> Self {
        match Side::Host.may_have_ring() {
            true => Self::Ring,
            false => Self::Epoll,
        }
    }
}

/// The handle of the agent thread. Dropping it closes all connections and joins the thread.
pub(crate) struct Agent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    commands: Mutex<Vec<Command>>,
    /// Tells the thread of commands and of `stop`.
    wake: Waker,
    /// There are commands, or `stop` is set; spares a busy thread the lock.
    has_commands: AtomicBool,
    stop: AtomicBool,
    /// The thread has a ring.
    has_ring: AtomicBool,
    system_calls: AtomicU64,
}

impl Shared {
    /// Takes what the control thread left. `None`: to stop.
    fn take_commands(&self) -> Option<Vec<Command>> {
        self.wake.clear();
        self.has_commands.store(false, Ordering::Release);
        if self.stop.load(Ordering::Acquire) {
            return None;
        }
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::take(&mut *commands))
    }
}

/// A connection to serve, with what protects it.
struct Adopted {
    stream: TcpStream,
    client: ClientId,
    records: Option<(RecordSealer, RecordOpener)>,
}

enum Command {
    Adopt(Box<Adopted>),
    Disconnect(ClientId),
}

impl Agent {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Os` when the system refuses a thread or a descriptor.
    pub(crate) fn spawn(
        table: Arc<WindowTable>,
        outbox: SyncSender<AgentEvent>,
        waker: Waker,
        serving: Serving,
    ) -> Result<Self> {
        let wake = Waker::new()?;
        let start = || {
            // SAFETY: no pointers; the result is checked.
            let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
            let socket = wake.as_fd().as_raw_fd();
            watch(
                &epoll,
                libc::EPOLL_CTL_ADD,
                socket,
                Interest::Requests,
                COMMANDS,
            )?;
            let shared = Arc::new(Shared {
                commands: Mutex::default(),
                wake,
                has_commands: AtomicBool::new(false),
                stop: AtomicBool::new(false),
                has_ring: AtomicBool::new(false),
                system_calls: AtomicU64::new(0),
            });
            let theirs = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name("fabric-agent".into())
                .spawn(move || {
                    let bench = Bench::new(&table, outbox, &theirs.system_calls);
                    // Made here: it belongs to the thread that makes it.
                    match ring::ring(serving) {
                        Ok(ring) => {
                            theirs.has_ring.store(true, Ordering::Release);
                            return RingService::new(ring, &theirs, bench, waker).run();
                        }
                        Err(error) => {
                            tracing::debug!(%error, "no io_uring: tcp is served by epoll")
                        }
                    }
                    let (connections, unsaid) = (Vec::new(), Vec::new());
                    Service {
                        shared: &theirs,
                        epoll,
                        bench,
                        waker,
                        connections,
                        live: 0,
                        unsaid,
                    }
                    .run();
                })?;
            Ok(Self {
                shared,
                thread: Some(thread),
            })
        };
        start().map_err(|source| Error::os("start the agent thread", source))
    }

    /// Serves an authenticated connection from here on; `records` protect what goes over it.
    pub(crate) fn adopt(
        &self,
        stream: TcpStream,
        client: ClientId,
        records: Option<(RecordSealer, RecordOpener)>,
    ) {
        self.command(Command::Adopt(Box::new(Adopted {
            stream,
            client,
            records,
        })));
    }

    /// Closes every connection of `client` that was adopted before.
    pub(crate) fn disconnect(&self, client: ClientId) {
        self.command(Command::Disconnect(client));
    }

    /// Whether the thread serves by a ring, once it has served anything.
    #[cfg(test)]
    pub(crate) fn has_ring(&self) -> bool {
        self.shared.has_ring.load(Ordering::Acquire)
    }

    /// System calls that the thread has made.
    #[cfg(test)]
    pub(crate) fn system_calls(&self) -> u64 {
        self.shared.system_calls.load(Ordering::Relaxed)
    }

    fn command(&self, command: Command) {
        self.shared
            .commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(command);
        self.shared.has_commands.store(true, Ordering::Release);
        self.shared.wake.wake();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.has_commands.store(true, Ordering::Release);
        self.shared.wake.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the agent thread panicked");
        }
    }
}

/// A connection and what the kernel watches it for.
struct Served {
    connection: Connection,
    interest: Interest,
}

/// The thread's own state.
struct Service<'t> {
    shared: &'t Shared,
    epoll: OwnedFd,
    bench: Bench<'t>,
    waker: Waker,
    connections: Vec<Option<Box<Served>>>,
    /// Connections that stand.
    live: usize,
    /// Ends that the control thread's queue had no room for.
    unsaid: Vec<ClientId>,
}

impl Service<'_> {
    fn run(mut self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; WOKEN];
        loop {
            let timeout_ms = if self.unsaid.is_empty() { -1 } else { RETRY_MS };
            self.bench.count_system_call();
            let epoll = self.epoll.as_raw_fd();
            // SAFETY: the buffer is valid for the number of events that is given.
            let woken = unsafe {
                libc::epoll_wait(epoll, events.as_mut_ptr(), WOKEN as libc::c_int, timeout_ms)
            };
            // Interrupted: nothing woke.
            let woken = usize::try_from(woken).unwrap_or(0);
            let mut is_commanded = false;
            for event in &events[..woken] {
                match event.u64 {
                    COMMANDS => is_commanded = true,
                    index => self.serve(usize::try_from(index).expect("an index into a Vec")),
                }
            }
            // After the connections: an index freed above is not among this round's events again.
            if is_commanded && !self.obey() {
                return;
            }
            if woken > 0 && !is_commanded {
                self.serve_lone();
            }
            self.say_ends();
            if std::mem::take(&mut self.bench.has_news) {
                self.bench.count_system_call();
                self.waker.wake();
            }
        }
    }

    fn serve(&mut self, index: usize) {
        let Some(served) = &mut self.connections[index] else {
            return;
        };
        let turn = served.connection.serve(&mut self.bench);
        self.finish_turn(index, turn);
    }

    /// Serves the only connection for as long as it is busy and there is nothing else to do.
    fn serve_lone(&mut self) {
        if self.live != 1 {
            return;
        }
        let Some(index) = self.connections.iter().position(Option::is_some) else {
            return;
        };
        while self.unsaid.is_empty()
            && !self.bench.has_news
            && !self.shared.has_commands.load(Ordering::Acquire)
        {
            let Some(served) = &mut self.connections[index] else {
                return;
            };
            if served.interest == Interest::Room {
                return;
            }
            match served.connection.await_requests(&mut self.bench) {
                Ok(None) => return,
                Ok(Some(interest)) => self.finish_turn(index, Ok(interest)),
                Err(end) => self.end(index, &end),
            }
        }
    }

    fn finish_turn(&mut self, index: usize, turn: std::result::Result<Interest, End>) {
        let Some(served) = &mut self.connections[index] else {
            return;
        };
        match turn {
            Ok(interest) if interest == served.interest => {}
            Ok(interest) => {
                served.interest = interest;
                let socket = served.connection.stream.as_raw_fd();
                self.bench.count_system_call();
                let watched = watch(
                    &self.epoll,
                    libc::EPOLL_CTL_MOD,
                    socket,
                    interest,
                    index as u64,
                );
                if let Err(error) = watched {
                    self.end(index, &End::Os(error));
                }
            }
            Err(end) => self.end(index, &end),
        }
    }

    fn end(&mut self, index: usize, end: &End) {
        let Some(served) = self.connections[index].take() else {
            return;
        };
        self.live -= 1;
        log_end(&served.connection, end);
        self.unsaid.push(served.connection.client);
    }

    /// Carries out what the control thread left. False: to stop.
    fn obey(&mut self) -> bool {
        self.bench.count_system_call();
        let Some(commands) = self.shared.take_commands() else {
            return false;
        };
        for command in commands {
            match command {
                Command::Adopt(adopted) => self.adopt(*adopted),
                Command::Disconnect(client) => {
                    for index in 0..self.connections.len() {
                        let served = self.connections[index].as_ref();
                        if served.is_some_and(|served| served.connection.client == client) {
                            self.end(index, &End::Closed);
                        }
                    }
                }
            }
        }
        true
    }

    fn adopt(&mut self, adopted: Adopted) {
        let Adopted {
            stream,
            client,
            records,
        } = adopted;
        let free = self.connections.iter().position(Option::is_none);
        let index = free.unwrap_or(self.connections.len());
        let watched = prepare(&stream, CLIENT_SILENCE).and_then(|()| {
            // Every call but that of a lone connection asks not to be blocked.
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(LONE_WAIT))?;
            let socket = stream.as_raw_fd();
            watch(
                &self.epoll,
                libc::EPOLL_CTL_ADD,
                socket,
                Interest::Requests,
                index as u64,
            )
        });
        if let Err(error) = watched {
            tracing::warn!(?client, %error, "take over a data connection");
            self.unsaid.push(client);
            return;
        }
        if free.is_none() {
            self.connections.push(None);
        }
        let connection = Connection::new(stream, client, records, false);
        self.live += 1;
        self.connections[index] = Some(Box::new(Served {
            connection,
            interest: Interest::Requests,
        }));
    }

    fn say_ends(&mut self) {
        while let Some(client) = self.unsaid.pop() {
            if !self.bench.tell(AgentEvent::Closed { client }) {
                self.unsaid.push(client);
                break;
            }
        }
    }
}

fn log_end(connection: &Connection, end: &End) {
    let client = connection.client;
    match end {
        End::Closed => tracing::debug!(?client, "data connection closed"),
        End::Protocol(what) => {
            tracing::warn!(?client, what, "data connection broke the protocol")
        }
        End::Record(error) => {
            let peer = connection.stream.peer_addr().ok();
            tracing::warn!(?client, ?peer, %error, "data connection ended: somebody or something changes its bytes");
        }
        End::Os(error) => tracing::debug!(?client, %error, "data connection broke"),
    }
}

fn watch(
    epoll: &OwnedFd,
    operation: libc::c_int,
    socket: RawFd,
    interest: Interest,
    token: u64,
) -> io::Result<()> {
    let events = match interest {
        Interest::Requests => libc::EPOLLIN,
        Interest::Room => libc::EPOLLOUT,
    };
    let mut event = libc::epoll_event {
        events: events as u32,
        u64: token,
    };
    // SAFETY: `event` is valid for the call.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, socket, &raw mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created by the caller, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
