//! A client's end of a `tcp` data connection.
//!
//! Posting fills a slot of a fixed ring; [`Endpoint::flush`] sends every new slot's header
//! and payload with one `sendmsg`; [`Endpoint::poll`] receives every response that is there with
//! one `recvmsg`: straight into the landings, or, where the connection is protected, through a
//! buffer in which each record's tag is checked first. A landing that was revoked is replaced by
//! scratch in the next receive list, and bytes land only inside `poll`, so nothing can land
//! after [`Endpoint::revoke_landing`] returned. Nothing is allocated per verb.
//!
//! Either call can be made for it by a [`Batch`](super::Batch), with those of other endpoints: see
//! [`Wire`].

mod plain;
mod records;
mod ring;

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::squeue;

use super::gather::{Gather, Patience, prepare};
use super::outbox::Sent;
use super::wire::{self, Request};
use crate::endpoint::check_message;
use crate::record::{RecordError, RecordOpener, RecordSealer};
use crate::{
    Completion, CompletionQueue, Endpoint, Error, FAILURE_TIMEOUT, QUEUE_DEPTH, QueueFull,
    RemoteWindow, Result, Status, Time, Token, Verb,
};
use plain::Plain;
use records::Sealed;
use ring::{Ring, Slot};

/// How often an endpoint that is owed nothing looks whether its connection still stands.
const IDLE_CHECK: Duration = Duration::from_millis(1);

/// A data connection over TCP.
pub(crate) struct TcpEndpoint {
    stream: TcpStream,
    ring: Ring,
    path: Path,
    /// The socket took less than was offered: progress also waits for it to become writable.
    blocked: bool,
    /// Readable when the socket is readable or writable; made when a send first blocks.
    both_ways: Option<OwnedFd>,
    /// When the peer last showed life, or was first owed something after silence that is no fault.
    heard_at: Option<Time>,
    looked_at: Time,
    dead: Option<Status>,
    system_calls: u64,
}

/// How verbs get to the socket and back.
enum Path {
    Plain(Plain),
    Sealed(Box<Sealed>),
}

/// Why what came leaves the connection of no more use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Broken {
    Record(RecordError),
    Protocol,
}

// SAFETY: the raw pointers in slots belong to posted verbs; `post_read` and `post_write` demand
// that they stay valid until completion, whichever thread polls.
unsafe impl Send for TcpEndpoint {}

impl TcpEndpoint {
    /// Takes over a connection whose handshake is done; `records` protect what goes over it.
    ///
    /// # Errors
    /// `Os` when the socket refuses its options.
    pub(crate) fn new(
        stream: TcpStream,
        records: Option<(RecordSealer, RecordOpener)>,
    ) -> Result<Self> {
        prepare(&stream, FAILURE_TIMEOUT)
            .map_err(|source| Error::os("set options of a data connection", source))?;
        Ok(Self {
            stream,
            ring: Ring::new(),
            path: match records {
                None => Path::Plain(Plain::new()),
                Some(records) => Path::Sealed(Box::new(Sealed::new(records))),
            },
            blocked: false,
            both_ways: None,
            heard_at: None,
            looked_at: Time(0),
            dead: None,
            system_calls: 0,
        })
    }

    /// Queues a verb; `fill` adds what the header does not hold.
    fn queue(
        &mut self,
        request: Request,
        token: Token,
        queue: &mut CompletionQueue,
        fill: impl FnOnce(&mut Slot),
    ) -> std::result::Result<(), QueueFull> {
        if let Some(status) = self.dead {
            queue.push(Completion {
                token,
                status,
                value: 0,
            });
            return Ok(());
        }
        if self.outstanding() == QUEUE_DEPTH {
            return Err(QueueFull);
        }
        if self.outstanding() == 0 {
            self.heard_at = None;
        }
        fill(self.ring.push(request, token));
        Ok(())
    }

    /// Sends queued verbs until all are sent or the socket is full.
    fn send(&mut self, queue: &mut CompletionQueue) {
        let is_resumed = std::mem::take(&mut self.blocked);
        while self.has_unsent() {
            self.system_calls += 1;
            let socket = self.stream.as_raw_fd();
            // SAFETY: the list holds memory of ours, and sources that are valid by the contract of
            // `post_write`.
            let sent = unsafe { self.list_requests().send(socket) };
            if !self.take_sent(sent, is_resumed, queue) {
                return;
            }
        }
    }

    fn list_requests(&mut self) -> &mut Gather {
        match &mut self.path {
            Path::Plain(plain) => plain.list_requests(&self.ring),
            Path::Sealed(sealed) => sealed.list_requests(&mut self.ring),
        }
    }

    /// Notes what the socket took of the list; false: it takes no more now, or never.
    fn take_sent(
        &mut self,
        sent: io::Result<usize>,
        is_resumed: bool,
        queue: &mut CompletionQueue,
    ) -> bool {
        let sent = match &mut self.path {
            Path::Plain(plain) => plain.take_sent(&mut self.ring, sent),
            Path::Sealed(sealed) => sealed.outbox.take_sent(sent),
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) => {
                self.fail(status_of(&error), queue);
                return false;
            }
        };
        if is_resumed && sent != (Sent::Part { any: false }) {
            // The peer's kernel made room: it is alive and takes our bytes.
            self.heard_at = None;
        }
        if sent == Sent::All {
            return true;
        }
        self.blocked = true;
        if let Err(error) = self.watch_both_ways() {
            tracing::warn!(%error, "watch a full data connection");
            self.fail(Status::Disconnected, queue);
        }
        false
    }

    fn has_unsent(&self) -> bool {
        let is_boxed = match &self.path {
            Path::Plain(_) => false,
            Path::Sealed(sealed) => sealed.has_unsent(),
        };
        is_boxed || self.ring.sending != self.ring.next
    }

    /// Makes the descriptor that tells when a full socket takes or gives bytes again.
    fn watch_both_ways(&mut self) -> io::Result<()> {
        if self.both_ways.is_some() {
            return Ok(());
        }
        self.system_calls += 2;
        // SAFETY: no pointers; the result is checked.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, owned by nobody else.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLOUT) as u32,
            u64: 0,
        };
        let socket = self.stream.as_raw_fd();
        // SAFETY: `event` is valid for the call.
        let added = unsafe {
            libc::epoll_ctl(
                epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                socket,
                &raw mut event,
            )
        };
        if added != 0 {
            return Err(io::Error::last_os_error());
        }
        self.both_ways = Some(epoll);
        Ok(())
    }

    /// Receives responses until the socket is empty or nothing is owed.
    fn receive(&mut self, queue: &mut CompletionQueue) {
        while self.ring.is_owed() {
            self.system_calls += 1;
            let socket = self.stream.as_raw_fd();
            // SAFETY: the list holds memory of ours, and landings that are valid by the contract of
            // `post_read`.
            let received = unsafe { self.list_responses().receive(socket, Patience::None) };
            if !self.take_received(received, queue) {
                return;
            }
        }
    }

    fn list_responses(&mut self) -> &mut Gather {
        match &mut self.path {
            Path::Plain(plain) => plain.list_responses(&self.ring),
            Path::Sealed(sealed) => sealed.list_responses(),
        }
    }

    /// Takes what came into the list; whether there may be more.
    fn take_received(&mut self, received: io::Result<usize>, queue: &mut CompletionQueue) -> bool {
        let bytes = match received {
            Ok(0) => {
                self.fail(Status::Disconnected, queue);
                return false;
            }
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => {
                self.fail(status_of(&error), queue);
                return false;
            }
        };
        self.heard_at = None;
        let (is_more, taken) = match &mut self.path {
            Path::Plain(plain) => {
                let is_more = !plain.asked_for_more(bytes);
                (
                    is_more,
                    plain.advance_received(bytes, &mut self.ring, queue),
                )
            }
            Path::Sealed(sealed) => {
                let is_more = sealed.take_received(bytes);
                (is_more, sealed.open(&mut self.ring, queue))
            }
        };
        match taken {
            Ok(()) => return is_more,
            Err(Broken::Protocol) => self.fail(Status::Protocol, queue),
            Err(Broken::Record(error)) => {
                let peer = self.stream.peer_addr().ok();
                tracing::warn!(?peer, %error, "data connection ended: somebody or something changes its bytes");
                self.fail(Status::Forged, queue);
            }
        }
        false
    }

    /// Ends a connection whose peer has been silent for too long while it owes something. After a
    /// receive: a client that was itself stopped finds the answers, not the silence.
    fn check_silence(&mut self, now: Time, queue: &mut CompletionQueue) {
        if self.outstanding() == 0 {
            return;
        }
        let heard_at = *self.heard_at.get_or_insert(now);
        if now.since(heard_at) >= FAILURE_TIMEOUT {
            self.fail(Status::Timeout, queue);
        }
    }

    /// Looks at the socket of an endpoint that is owed nothing, now and then.
    fn look(&mut self, now: Time, queue: &mut CompletionQueue) {
        if now.since(self.looked_at) < IDLE_CHECK {
            return;
        }
        self.looked_at = now;
        self.system_calls += 1;
        match self.stream.peek(&mut [0]) {
            Ok(0) => self.fail(Status::Disconnected, queue),
            Ok(_) => self.fail(Status::Protocol, queue),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.fail(status_of(&error), queue),
        }
    }

    /// Ends the connection: everything outstanding completes with `status`.
    fn fail(&mut self, status: Status, queue: &mut CompletionQueue) {
        self.ring.fail(status, queue);
        self.blocked = false;
        self.dead.get_or_insert(status);
        if let Err(error) = self.stream.shutdown(std::net::Shutdown::Both) {
            // The peer was faster: what shutting down is for has happened.
            tracing::trace!(%error, "shut down a data connection");
        }
    }
}

impl Endpoint for TcpEndpoint {
    unsafe fn post(
        &mut self,
        verb: Verb<'_>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        match verb {
            Verb::Read {
                window,
                offset,
                landing,
                len_bytes,
            } => {
                let request = ranged(wire::Verb::Read, window, offset, len_bytes);
                self.queue(request, token, queue, |slot| slot.landing = landing)
            }
            Verb::Write {
                window,
                offset,
                source,
                len_bytes,
                immediate,
            } => {
                let request = Request {
                    immediate,
                    ..ranged(wire::Verb::Write, window, offset, len_bytes)
                };
                self.queue(request, token, queue, |slot| slot.source = source)
            }
            Verb::Send { message } => {
                check_message(message);
                let len_bytes = u32::try_from(message.len()).expect("MESSAGE_BYTES_MAX is small");
                let request = Request::new(wire::Verb::Send, len_bytes);
                self.queue(request, token, queue, |slot| {
                    slot.message.clear();
                    slot.message.extend_from_slice(&slot.request.encode());
                    slot.message.extend_from_slice(message);
                })
            }
            Verb::CompareSwap {
                window,
                offset,
                expected,
                new,
            } => {
                let request = Request {
                    operand: expected,
                    swap: new,
                    ..ranged(wire::Verb::CompareSwap, window, offset, 8)
                };
                self.queue(request, token, queue, |_| {})
            }
            Verb::FetchAdd {
                window,
                offset,
                addend,
            } => {
                let request = Request {
                    operand: addend,
                    ..ranged(wire::Verb::FetchAdd, window, offset, 8)
                };
                self.queue(request, token, queue, |_| {})
            }
        }
    }

    fn flush(&mut self, queue: &mut CompletionQueue) {
        if self.dead.is_none() && !self.blocked {
            self.send(queue);
        }
    }

    fn poll(&mut self, now: Time, queue: &mut CompletionQueue) {
        if self.dead.is_some() {
            return;
        }
        if self.outstanding() == 0 {
            return self.look(now, queue);
        }
        self.send(queue);
        self.receive(queue);
        self.check_silence(now, queue);
    }

    fn revoke_landing(&mut self, token: Token) {
        self.ring.revoke_landing(token);
    }

    fn outstanding(&self) -> usize {
        self.ring.outstanding()
    }

    fn is_dead(&self) -> bool {
        self.dead.is_some()
    }

    /// Another descriptor while a send waits for room: ask before every wait.
    fn fd(&self) -> Option<RawFd> {
        match (self.dead, self.blocked, &self.both_ways) {
            (Some(_), ..) => None,
            (None, true, Some(epoll)) => Some(epoll.as_raw_fd()),
            (None, ..) => Some(self.stream.as_raw_fd()),
        }
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }

    fn wire(&mut self) -> Option<Wire<'_>> {
        Some(Wire(self))
    }
}

/// The system calls of a `tcp` endpoint one by one, so that a [`Batch`](super::Batch) can make
/// them.
pub struct Wire<'e>(&'e mut TcpEndpoint);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Leg {
    Send,
    Receive,
}

impl Wire<'_> {
    /// What the endpoint would have the kernel do first; `None` where it would do something else.
    ///
    /// It points to memory that the endpoint holds or its caller vouches for: nothing may be done
    /// with the endpoint until the operation has ended and [`Wire::finish`] was told how.
    pub(super) fn stage(&mut self, leg: Leg) -> Option<squeue::Entry> {
        let endpoint = &mut *self.0;
        let is_usual = endpoint.dead.is_none() && !endpoint.blocked;
        let socket = endpoint.stream.as_raw_fd();
        match (leg, endpoint.has_unsent()) {
            (Leg::Send, true) if is_usual => Some(endpoint.list_requests().send_entry(socket)),
            (Leg::Receive, false) if is_usual && endpoint.ring.is_owed() => {
                Some(endpoint.list_responses().receive_entry(socket))
            }
            _ => None,
        }
    }

    /// Takes what came of the operation, and goes on from there as the endpoint does alone.
    pub(super) fn finish(
        &mut self,
        leg: Leg,
        result: io::Result<usize>,
        now: Time,
        queue: &mut CompletionQueue,
    ) {
        let endpoint = &mut *self.0;
        let is_interrupted =
            matches!(&result, Err(error) if error.kind() == io::ErrorKind::Interrupted);
        match leg {
            Leg::Send => {
                if is_interrupted || endpoint.take_sent(result, false, queue) {
                    endpoint.send(queue);
                }
            }
            Leg::Receive => {
                if is_interrupted || endpoint.take_received(result, queue) {
                    endpoint.receive(queue);
                }
                endpoint.check_silence(now, queue);
            }
        }
    }
}

/// A request on a window. A length that the wire cannot hold becomes one that every host
/// refuses as out of bounds, so that it still completes in its turn.
fn ranged(verb: wire::Verb, window: &RemoteWindow, offset: u64, len_bytes: usize) -> Request {
    let (len_bytes, offset) = match u32::try_from(len_bytes) {
        Ok(len_bytes) => (len_bytes, offset),
        Err(_) => (0, u64::MAX),
    };
    Request {
        window: window.descriptor.id.0,
        generation: window.descriptor.generation.0,
        offset,
        ..Request::new(verb, len_bytes)
    }
}

/// How a failed system call ends the verbs that wait for it.
fn status_of(error: &io::Error) -> Status {
    match error.kind() {
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => Status::Timeout,
        _ => Status::Disconnected,
    }
}
