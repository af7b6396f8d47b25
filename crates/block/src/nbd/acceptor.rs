//! The thread that accepts from all listeners, and who may stay.
//!
//! Each listener has slots of its own. A connection that gets one goes to the worker that has the
//! fewest; the others are closed at once. Only this thread accepts, and it touches no request.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::connection::Guest;
use super::handshake::Security;
use super::listen::Listener;
use super::slots::{Admission, Slots, Source};
use super::sys;
use super::transport::Socket;
use super::worker::Mailbox;

/// A listener with its slots.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) listener: Listener,
    pub(crate) slots: Slots,
    /// What its clients have to do with TLS.
    pub(crate) security: Security,
}

/// The accepting thread's state.
pub(crate) struct Acceptor {
    pub(crate) doors: Vec<Door>,
    pub(crate) workers: Vec<Arc<Mailbox>>,
    pub(crate) tally: Arc<Tally>,
    /// Readable, or closed, when it is time to stop.
    pub(crate) stop: UnixStream,
    pub(crate) complaint: Complaint,
}

/// What the acceptor counts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

/// Pause after an accept failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Pause while workers close connections that lost their slots; a worker's turn is shorter.
const SETTLE_PAUSE: Duration = Duration::from_millis(2);

/// Connections taken of one listener before the others get a look; arbitrary.
const ACCEPTED_AT_ONCE: usize = 64;

impl Acceptor {
    /// Accepts until told to stop; the listeners are closed then.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let stop_fd = self.stop.as_raw_fd();
        let mut fds = vec![stop_fd];
        fds.extend(self.doors.iter().map(|door| door.listener.as_raw_fd()));
        let mut scratch = Vec::new();
        loop {
            sys::poll_readable(&fds, &mut scratch, None)?;
            if scratch[0].revents != 0 {
                // The byte is only a signal; there is nothing in it.
                let mut byte = [0];
                return self.stop.read(&mut byte).map(|_| ());
            }
            for number in 0..self.doors.len() {
                if let Some(pause) = self.accept_some(number) {
                    sys::poll_readable(&[stop_fd], &mut scratch, Some(pause))?;
                }
            }
        }
    }

    /// Takes connections that wait; how long to leave the others waiting, if so.
    fn accept_some(&mut self, number: usize) -> Option<Duration> {
        for _ in 0..ACCEPTED_AT_ONCE {
            if self.doors[number].slots.is_settling() {
                return Some(SETTLE_PAUSE);
            }
            match self.doors[number].listener.accept() {
                Ok((socket, source)) => self.place(number, socket, source),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return None,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        tracing::warn!(%error, "accept a connection");
                        return Some(ACCEPT_PAUSE);
                    }
                },
            }
        }
        None
    }

    fn place(&mut self, number: usize, socket: Socket, source: Option<Source>) {
        let door = &self.doors[number];
        let seat = match door.slots.admit(source) {
            Admission::Admitted(seat) => seat,
            Admission::AdmittedForAnother(seat) => {
                self.tally.evicted.fetch_add(1, Ordering::Relaxed);
                self.complaint.add(Trouble::Evicted, door);
                // Whoever has it looks at its connections.
                self.workers.iter().for_each(|worker| worker.ring());
                seat
            }
            Admission::Refused => {
                self.tally.refused.fetch_add(1, Ordering::Relaxed);
                self.complaint.add(Trouble::Refused, door);
                return;
            }
        };
        if let Err(error) = socket.prepare() {
            tracing::warn!(%error, "prepare a connection");
            return;
        }
        self.tally.accepted.fetch_add(1, Ordering::Relaxed);
        let guest = Guest {
            socket,
            seat,
            security: door.security,
        };
        if let Some(worker) = self.workers.iter().min_by_key(|w| w.connection_count()) {
            worker.hand_over(guest);
        }
    }
}

/// What becomes of connections for which there is no slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Trouble {
    Refused,
    Evicted,
}

/// Says in the log that slots are short, not for each connection: a flood would fill the disk.
#[derive(Debug, Default)]
pub(crate) struct Complaint {
    refused: u64,
    evicted: u64,
    last: Option<Instant>,
}

/// How often the log hears of it.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

impl Complaint {
    fn add(&mut self, trouble: Trouble, door: &Door) {
        match trouble {
            Trouble::Refused => self.refused += 1,
            Trouble::Evicted => self.evicted += 1,
        }
        let now = Instant::now();
        let is_due = |last: Instant| now.duration_since(last) >= COMPLAINT_PAUSE;
        if self.last.is_none_or(is_due) {
            tracing::warn!("{}", self.text(door));
            *self = Self {
                last: Some(now),
                ..Self::default()
            };
        }
    }

    fn text(&self, door: &Door) -> impl fmt::Display {
        let (refused, evicted) = (self.refused, self.evicted);
        let place = door
            .listener
            .address()
            .map_or_else(|_| "a listener".to_owned(), |address| address.to_string());
        format!(
            "NBD at {place}: no slot is free for a new connection, or none for its address; \
             {refused} refused and {evicted} unfinished handshakes closed for others since the last report"
        )
    }
}
