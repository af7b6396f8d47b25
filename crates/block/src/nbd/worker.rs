//! One worker thread: an epoll loop over the connections that it owns.
//!
//! Each round takes the events, receives and submits for every active
//! connection, polls the queues once for all of them, and then sends: requests
//! that came together are answered together. The acceptor hands connections
//! over through a [`Mailbox`]. On the path of a request are two locks, each held
//! for a moment: of what all are changing (`claims`), and of memory beyond a
//! connection's allowance (`budget`).

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::connection::{Connection, Guest, Heard};
use super::engine::Engine;
use super::sys::{self, Epoll, Event};

/// How the acceptor and the server reach a worker.
#[derive(Debug)]
pub(crate) struct Mailbox {
    guests: Mutex<Vec<Guest>>,
    /// Connections given to the worker and not yet closed.
    connection_count: AtomicUsize,
    stopping: AtomicBool,
    bell: UnixStream,
}

impl Mailbox {
    /// A mailbox, and the end that its worker listens to.
    pub(crate) fn new() -> io::Result<(Arc<Self>, UnixStream)> {
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        let mailbox = Self {
            guests: Mutex::default(),
            connection_count: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            bell,
        };
        Ok((Arc::new(mailbox), ear))
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.connection_count.load(Ordering::Relaxed)
    }

    /// Gives a connection to the worker.
    pub(crate) fn hand_over(&self, guest: Guest) {
        self.connection_count.fetch_add(1, Ordering::Relaxed);
        self.guests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(guest);
        self.ring();
    }

    /// Asks the worker to end its connections and return.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.ring();
    }

    /// Has the worker look around: for mail, and for room that others gave back.
    pub(crate) fn ring(&self) {
        // A full pipe has rung already, and a worker that is gone hears nothing.
        if let Err(error) = (&self.bell).write(&[1])
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::debug!(%error, "ring a worker");
        }
    }
}

/// The state of one worker thread.
pub(crate) struct Worker {
    engine: Engine,
    mailbox: Arc<Mailbox>,
    ear: UnixStream,
    epoll: Epoll,
    limits: Limits,
    /// By index; the index is the upper half of a tag, and the token of epoll.
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    /// Connections to look at in this round.
    active: Vec<u32>,
    /// When the handshake that started first is given up; `None`: there is none.
    handshake_deadline: Option<Instant>,
    /// When what is left of a stop is cut off.
    stop_deadline: Option<Instant>,
    /// Waits that may still be left to the only connection's socket.
    patient_waits_left: u32,
    scratch: Scratch,
}

/// Memory reused from round to round.
#[derive(Default)]
struct Scratch {
    active: Vec<u32>,
    events: Vec<Event>,
    fds: Vec<RawFd>,
    poll_fds: Vec<libc::pollfd>,
    released: Vec<u32>,
}

/// How long a worker lets its clients take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// To the first command.
    pub(crate) handshake: Duration,
    /// To take what others wait for the memory of.
    pub(crate) stall: Duration,
}

/// Token of the ear; connections have 32-bit tokens.
const EAR_TOKEN: u64 = u64::MAX;

/// Patient waits in a row; then the mailbox and the queues' descriptors get a look.
const PATIENT_WAITS_MAX: u32 = 64;

/// How often clients are looked at that others wait for.
const STALL_TICK: Duration = Duration::from_millis(100);

/// For how long a stop waits for what is in flight.
const STOP_LIMIT: Duration = Duration::from_secs(2);

impl Worker {
    pub(crate) fn new(
        engine: Engine,
        mailbox: Arc<Mailbox>,
        ear: UnixStream,
        limits: Limits,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(ear.as_raw_fd(), EAR_TOKEN)?;
        Ok(Self {
            engine,
            mailbox,
            ear,
            epoll,
            limits,
            connections: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            handshake_deadline: None,
            stop_deadline: None,
            patient_waits_left: 0,
            scratch: Scratch::default(),
        })
    }

    /// Serves until the mailbox says stop.
    ///
    /// # Errors
    /// When the kernel refuses to wait; the connections are closed then.
    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            self.wait()?;
            self.drive();
            self.complete();
            self.send();
            self.watch_clocks();
            if self.stop_deadline.is_some() && self.free.len() == self.connections.len() {
                return Ok(());
            }
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        if self.leave_waiting_to_socket() {
            return Ok(());
        }
        self.engine.look();
        let mut events = std::mem::take(&mut self.scratch.events);
        let mut fds = std::mem::take(&mut self.scratch.fds);
        let mut timeout = self.engine.waits(&mut fds);
        if !self.active.is_empty() {
            timeout = Some(Duration::ZERO);
        }
        if let Some(deadline) = self
            .handshake_deadline
            .into_iter()
            .chain(self.stop_deadline)
            .min()
        {
            let left = deadline.saturating_duration_since(Instant::now());
            timeout = Some(timeout.map_or(left, |timeout| timeout.min(left)));
        }
        if self.engine.pool.is_wanted() {
            timeout = Some(timeout.map_or(STALL_TICK, |timeout| timeout.min(STALL_TICK)));
        }
        if !fds.is_empty() && timeout != Some(Duration::ZERO) {
            // The queue's descriptors come and go, so they are named at every wait.
            fds.push(self.epoll.as_raw_fd());
            sys::poll_readable(&fds, &mut self.scratch.poll_fds, timeout)?;
            timeout = Some(Duration::ZERO);
        }
        let waited = self.epoll.wait(timeout, |event| events.push(event));
        for event in events.drain(..) {
            self.on_event(event);
        }
        fds.clear();
        self.scratch.fds = fds;
        self.scratch.events = events;
        waited
    }

    /// With one connection, and nothing to expect but its bytes, its receive is
    /// the wait: one system call and one wake-up in place of three and two.
    fn leave_waiting_to_socket(&mut self) -> bool {
        let is_due = self.patient_waits_left > 0
            && self.connections.len() == self.free.len() + 1
            && self.stop_deadline.is_none()
            && self.engine.is_idle();
        if !is_due {
            return false;
        }
        for (index, connection) in self.connections.iter_mut().enumerate() {
            // It may be active for bytes that the socket may have: they are looked for first.
            if let Some(connection) = connection
                && connection.only_listens()
                && self.active.iter().all(|active| *active == index as u32)
            {
                self.patient_waits_left -= 1;
                connection.be_patient();
                activate(&mut self.active, connection, index as u32);
                return true;
            }
        }
        false
    }

    fn on_event(&mut self, event: Event) {
        if event.token == EAR_TOKEN {
            self.open_mail();
            return;
        }
        let index = event.token as u32;
        if let Some(Some(connection)) = self.connections.get_mut(index as usize) {
            connection.on_event(event);
            activate(&mut self.active, connection, index);
        }
    }

    fn open_mail(&mut self) {
        // Edge-triggered: read until there is nothing left.
        let mut bytes = [0; 64];
        while matches!((&self.ear).read(&mut bytes), Ok(count) if count > 0) {}
        let guests = std::mem::take(
            &mut *self
                .mailbox
                .guests
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for guest in guests {
            self.admit(guest);
        }
        for (index, slot) in self.connections.iter_mut().enumerate() {
            let Some(connection) = slot else {
                continue;
            };
            if connection.is_evicted() {
                connection.kill();
            }
            if connection.is_paused() || connection.is_evicted() {
                activate(&mut self.active, connection, index as u32);
            }
        }
        if self.mailbox.stopping.load(Ordering::Acquire) && self.stop_deadline.is_none() {
            self.stop_deadline = Some(Instant::now() + STOP_LIMIT);
            for (index, slot) in self.connections.iter_mut().enumerate() {
                if let Some(connection) = slot {
                    connection.end();
                    activate(&mut self.active, connection, index as u32);
                }
            }
        }
    }

    fn admit(&mut self, guest: Guest) {
        let index = self.free.pop().unwrap_or(self.connections.len() as u32);
        let deadline = Instant::now() + self.limits.handshake;
        if let Err(error) = self.epoll.add(guest.socket.as_raw_fd(), u64::from(index)) {
            tracing::warn!(%error, "watch a new connection");
            self.mailbox
                .connection_count
                .fetch_sub(1, Ordering::Relaxed);
            self.free.push(index);
            if index as usize == self.connections.len() {
                self.connections.push(None);
            }
            return;
        }
        let mut connection = Connection::new(guest, u64::from(index) << 32, deadline);
        activate(&mut self.active, &mut connection, index);
        self.handshake_deadline = Some(self.handshake_deadline.unwrap_or(deadline).min(deadline));
        if index as usize == self.connections.len() {
            self.connections.push(Some(connection));
        } else {
            self.connections[index as usize] = Some(connection);
        }
    }

    fn drive(&mut self) {
        for index in &self.active {
            if let Some(Some(connection)) = self.connections.get_mut(*index as usize) {
                match connection.drive(&mut self.engine) {
                    Heard::Bytes => self.patient_waits_left = PATIENT_WAITS_MAX,
                    Heard::InVain => self.patient_waits_left = 0,
                    Heard::Other => {}
                }
            }
        }
    }

    fn complete(&mut self) {
        let mut done = self.engine.poll();
        for done in done.drain(..) {
            let index = (done.tag >> 32) as u32;
            if let Some(Some(connection)) = self.connections.get_mut(index as usize) {
                connection.complete(done, &mut self.engine);
                activate(&mut self.active, connection, index);
            }
        }
        self.engine.recycle(done);
        if self.engine.forget_refusal() {
            for connection in self.connections.iter_mut().flatten() {
                if connection.is_held() {
                    connection.submit_held(&mut self.engine);
                }
            }
        }
    }

    fn send(&mut self) {
        let mut active =
            std::mem::replace(&mut self.active, std::mem::take(&mut self.scratch.active));
        for index in active.drain(..) {
            let Some(Some(connection)) = self.connections.get_mut(index as usize) else {
                continue;
            };
            connection.is_active = false;
            let had_waited = connection.waits_to_write;
            let wait = connection.send(&mut self.engine, &mut self.scratch.released);
            if wait != had_waited && !connection.is_over() {
                let changed = self
                    .epoll
                    .want_writes(connection.fd(), u64::from(index), wait);
                match changed {
                    Ok(()) => connection.waits_to_write = wait,
                    Err(_) => connection.kill(),
                }
            }
            if connection.is_over() {
                connection.say_goodbye();
                self.connections[index as usize] = None;
                self.free.push(index);
                self.mailbox
                    .connection_count
                    .fetch_sub(1, Ordering::Relaxed);
            } else if connection.has_more() {
                activate(&mut self.active, connection, index);
            }
        }
        self.scratch.active = active;
    }

    /// Closes connections whose clients leave memory in use that others wait for.
    fn watch_stalls(&mut self) {
        if !self.engine.pool.is_wanted() {
            return;
        }
        let now = Instant::now();
        for (index, slot) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = slot
                && connection.is_stalled(now, self.limits.stall)
            {
                tracing::warn!(
                    limit = ?self.limits.stall,
                    "close an NBD connection: others wait for memory, and its client moves too little"
                );
                self.engine.counters.connections_stalled.add(1);
                connection.kill();
                activate(&mut self.active, connection, index as u32);
            }
        }
    }

    /// Gives up handshakes and stops that take too long.
    fn watch_clocks(&mut self) {
        self.watch_stalls();
        if self.handshake_deadline.is_none() && self.stop_deadline.is_none() {
            return;
        }
        let now = Instant::now();
        let cut_off = self.stop_deadline.is_some_and(|deadline| now >= deadline);
        if !cut_off
            && self
                .handshake_deadline
                .is_none_or(|deadline| now < deadline)
        {
            return;
        }
        let mut next: Option<Instant> = None;
        for (index, slot) in self.connections.iter_mut().enumerate() {
            let Some(connection) = slot else {
                continue;
            };
            let deadline = connection.deadline();
            if cut_off {
                // What is still inside a queue is left to it.
                *slot = None;
                self.free.push(index as u32);
                self.mailbox
                    .connection_count
                    .fetch_sub(1, Ordering::Relaxed);
            } else if deadline.is_some_and(|deadline| now >= deadline) {
                self.engine.counters.handshakes_expired.add(1);
                connection.kill();
                activate(&mut self.active, connection, index as u32);
            } else if let Some(deadline) = deadline {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
            }
        }
        self.handshake_deadline = next;
    }
}

fn activate(active: &mut Vec<u32>, connection: &mut Connection, index: u32) {
    if !connection.is_active {
        connection.is_active = true;
        active.push(index);
    }
}
