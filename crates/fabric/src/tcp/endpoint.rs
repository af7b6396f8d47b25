//! A client's end of a `tcp` data connection.
//!
//! Posting fills a slot of a fixed ring; [`Endpoint::flush`] sends every new slot's header
//! and payload with one `sendmsg`; [`Endpoint::poll`] receives every response that is there
//! with one `recvmsg`, straight into the landings. A landing that was revoked is replaced by
//! scratch in the next receive list, and bytes land only inside `poll`, so nothing can land
//! after [`Endpoint::revoke_landing`] returned.
//!
//! Slots, by position: `first..sending` are owed a response, `sending..next` wait to be
//! sent, all of `first..next` are outstanding. Nothing is allocated per verb.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::gather::{Gather, Patience, prepare};
use super::wire::{REQUEST_BYTES, RESPONSE_BYTES, Request, Response, Verb};
use crate::{
    Completion, CompletionQueue, Endpoint, Error, FAILURE_TIMEOUT, MESSAGE_BYTES_MAX, QUEUE_DEPTH,
    QueueFull, RemoteWindow, Result, Status, Time, Token,
};

/// Where the bytes of a revoked landing go.
const SCRATCH_BYTES: usize = 16 * 1024;

/// How often an endpoint that is owed nothing looks whether its connection still stands.
const IDLE_CHECK: Duration = Duration::from_millis(1);

/// One outstanding verb.
struct Slot {
    request: Request,
    token: Token,
    /// WRITE: the caller's bytes. SEND uses `message`.
    source: *const u8,
    /// READ: where the bytes go; null once it is revoked.
    landing: *mut u8,
    /// SEND: header and a copy, so that the caller's slice is free at once and both are one
    /// range to send. Keeps its capacity.
    message: Vec<u8>,
}

/// A data connection over TCP.
pub(crate) struct TcpEndpoint {
    stream: TcpStream,
    slots: Box<[Slot]>,
    /// Encoded headers, apart from the slots so that neighbours are one range to send.
    headers: Box<[[u8; REQUEST_BYTES]]>,
    trailers: Box<[[u8; RESPONSE_BYTES]]>,
    scratch: Box<[u8; SCRATCH_BYTES]>,
    list: Gather,
    first: u64,
    sending: u64,
    next: u64,
    /// Bytes of slot `sending` that are sent.
    sent_bytes: usize,
    /// Bytes of slot `first`'s response that have arrived.
    received_bytes: usize,
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

// SAFETY: the raw pointers in slots belong to posted verbs; `post_read` and `post_write` demand
// that they stay valid until completion, whichever thread polls.
unsafe impl Send for TcpEndpoint {}

impl TcpEndpoint {
    /// Takes over a connection whose handshake is done.
    ///
    /// # Errors
    /// `Os` when the socket refuses its options.
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        prepare(&stream, FAILURE_TIMEOUT)
            .map_err(|source| Error::os("set options of a data connection", source))?;
        let slot = || Slot {
            request: request(Verb::Read, 0),
            token: 0,
            source: std::ptr::null(),
            landing: std::ptr::null_mut(),
            message: Vec::new(),
        };
        Ok(Self {
            stream,
            slots: (0..QUEUE_DEPTH).map(|_| slot()).collect(),
            headers: vec![[0; REQUEST_BYTES]; QUEUE_DEPTH].into(),
            trailers: vec![[0; RESPONSE_BYTES]; QUEUE_DEPTH].into(),
            scratch: Box::new([0; SCRATCH_BYTES]),
            list: Gather::new(),
            first: 0,
            sending: 0,
            next: 0,
            sent_bytes: 0,
            received_bytes: 0,
            blocked: false,
            both_ways: None,
            heard_at: None,
            looked_at: Time(0),
            dead: None,
            system_calls: 0,
        })
    }

    /// Queues a verb; `fill` adds what the header does not hold.
    fn post(
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
        if self.first == self.next {
            self.heard_at = None;
        }
        let index = index(self.next);
        self.headers[index] = request.encode();
        let slot = &mut self.slots[index];
        slot.request = request;
        slot.token = token;
        fill(slot);
        self.next += 1;
        Ok(())
    }

    /// Sends queued verbs until all are sent or the socket is full.
    fn send(&mut self, queue: &mut CompletionQueue) {
        let resumed = self.blocked;
        self.blocked = false;
        while self.sending != self.next {
            self.list_requests();
            self.system_calls += 1;
            // SAFETY: headers and messages are ours, sources valid by the contract of `post_write`.
            match unsafe { self.list.send(self.stream.as_raw_fd()) } {
                Ok(bytes) => {
                    if resumed {
                        // The peer's kernel made room: it is alive and takes our bytes.
                        self.heard_at = None;
                    }
                    self.blocked = bytes < self.list.bytes();
                    self.advance_sent(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.blocked = true,
                Err(error) => return self.fail(status_of(&error), queue),
            }
            if self.blocked {
                if let Err(error) = self.watch_both_ways() {
                    tracing::warn!(%error, "watch a full data connection");
                    self.fail(Status::Disconnected, queue);
                }
                return;
            }
        }
    }

    fn list_requests(&mut self) {
        self.list.clear();
        let mut done = self.sent_bytes;
        for position in self.sending..self.next {
            if self.list.is_short_of(2) {
                break;
            }
            let slot = &self.slots[index(position)];
            if slot.request.verb == Verb::Send {
                let rest = &slot.message[done..];
                self.list.push(rest.as_ptr(), rest.len());
                done = 0;
                continue;
            }
            let header = &self.headers[index(position)];
            let skipped = done.min(REQUEST_BYTES);
            self.list
                .push(header[skipped..].as_ptr(), REQUEST_BYTES - skipped);
            done -= skipped;
            self.list
                .push(slot.source.wrapping_add(done), slot.payload_bytes() - done);
            done = 0;
        }
    }

    fn advance_sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        while self.sending != self.next {
            let whole = REQUEST_BYTES + self.slots[index(self.sending)].payload_bytes();
            if self.sent_bytes < whole {
                break;
            }
            self.sent_bytes -= whole;
            self.sending += 1;
        }
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
        while self.first != self.sending {
            self.list_responses();
            self.system_calls += 1;
            // SAFETY: trailers and scratch are ours; landings are valid by the contract of `post_read`.
            match unsafe { self.list.receive(self.stream.as_raw_fd(), Patience::None) } {
                Ok(0) => return self.fail(Status::Disconnected, queue),
                Ok(bytes) => {
                    self.heard_at = None;
                    if !self.advance_received(bytes, queue) {
                        return self.fail(Status::Protocol, queue);
                    }
                    if bytes < self.list.bytes() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return self.fail(status_of(&error), queue),
            }
        }
    }

    fn list_responses(&mut self) {
        self.list.clear();
        let mut done = self.received_bytes;
        for position in self.first..self.sending {
            if self.list.is_short_of(2) {
                break;
            }
            let slot = &self.slots[index(position)];
            let answer = slot.request.answer_bytes() as usize;
            let missing = answer.saturating_sub(done);
            if slot.landing.is_null() {
                self.list
                    .push(self.scratch.as_mut_ptr(), missing.min(SCRATCH_BYTES));
                if missing > SCRATCH_BYTES {
                    break;
                }
            } else {
                self.list
                    .push(slot.landing.wrapping_add(done.min(answer)), missing);
            }
            let trailer_done = done.saturating_sub(answer);
            let trailer = &mut self.trailers[index(position)][trailer_done..];
            self.list.push(trailer.as_mut_ptr(), trailer.len());
            done = 0;
        }
    }

    /// Completes what `bytes` more received bytes complete. False: the peer broke the protocol.
    fn advance_received(&mut self, bytes: usize, queue: &mut CompletionQueue) -> bool {
        self.received_bytes += bytes;
        while self.first != self.sending {
            let slot = &mut self.slots[index(self.first)];
            let answer = slot.request.answer_bytes();
            let whole = answer as usize + RESPONSE_BYTES;
            if self.received_bytes < whole {
                break;
            }
            match Response::decode(&self.trailers[index(self.first)]) {
                Ok(response) if response.len_bytes == answer => {
                    let (status, value) = (response.status, response.value);
                    queue.push(Completion {
                        token: slot.token,
                        status,
                        value,
                    });
                }
                Ok(_) | Err(_) => return false,
            }
            slot.landing = std::ptr::null_mut();
            self.received_bytes -= whole;
            self.first += 1;
        }
        true
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
        for position in self.first..self.next {
            let token = self.slots[index(position)].token;
            queue.push(Completion {
                token,
                status,
                value: 0,
            });
        }
        self.first = self.next;
        self.sending = self.next;
        self.blocked = false;
        self.dead = Some(status);
        if let Err(error) = self.stream.shutdown(std::net::Shutdown::Both) {
            // The peer was faster: what shutting down is for has happened.
            tracing::trace!(%error, "shut down a data connection");
        }
    }
}

impl Endpoint for TcpEndpoint {
    unsafe fn post_read(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        landing: *mut u8,
        len_bytes: usize,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        let request = ranged(Verb::Read, window, offset, len_bytes);
        self.post(request, token, queue, |slot| slot.landing = landing)
    }

    unsafe fn post_write(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        source: *const u8,
        len_bytes: usize,
        immediate: Option<u32>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        let request = Request {
            immediate,
            ..ranged(Verb::Write, window, offset, len_bytes)
        };
        self.post(request, token, queue, |slot| slot.source = source)
    }

    fn post_send(
        &mut self,
        message: &[u8],
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        assert!(
            message.len() <= MESSAGE_BYTES_MAX,
            "a message of {} bytes",
            message.len()
        );
        let len_bytes = u32::try_from(message.len()).expect("MESSAGE_BYTES_MAX is small");
        self.post(request(Verb::Send, len_bytes), token, queue, |slot| {
            slot.message.clear();
            slot.message.extend_from_slice(&slot.request.encode());
            slot.message.extend_from_slice(message);
        })
    }

    fn post_compare_swap(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        expected: u64,
        new: u64,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        let request = ranged(Verb::CompareSwap, window, offset, 8);
        self.post(
            Request {
                operand: expected,
                swap: new,
                ..request
            },
            token,
            queue,
            |_| {},
        )
    }

    fn post_fetch_add(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        addend: u64,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        let request = ranged(Verb::FetchAdd, window, offset, 8);
        self.post(
            Request {
                operand: addend,
                ..request
            },
            token,
            queue,
            |_| {},
        )
    }

    fn flush(&mut self, queue: &mut CompletionQueue) {
        if !self.blocked {
            self.send(queue);
        }
    }

    fn poll(&mut self, now: Time, queue: &mut CompletionQueue) {
        if self.dead.is_some() {
            return;
        }
        if self.first == self.next {
            return self.look(now, queue);
        }
        self.send(queue);
        self.receive(queue);
        if self.first == self.next {
            return;
        }
        // Received first: a client that was itself stopped finds the answers, not the silence.
        let heard_at = *self.heard_at.get_or_insert(now);
        if now.since(heard_at) >= FAILURE_TIMEOUT {
            self.fail(Status::Timeout, queue);
        }
    }

    fn revoke_landing(&mut self, token: Token) {
        for position in self.first..self.next {
            let slot = &mut self.slots[index(position)];
            if slot.token == token {
                slot.landing = std::ptr::null_mut();
            }
        }
    }

    fn outstanding(&self) -> usize {
        usize::try_from(self.next - self.first).expect("at most QUEUE_DEPTH")
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
}

impl Slot {
    fn payload_bytes(&self) -> usize {
        self.request.payload_bytes() as usize
    }
}

#[inline]
fn index(position: u64) -> usize {
    const { assert!(QUEUE_DEPTH.is_power_of_two()) };
    (position % QUEUE_DEPTH as u64) as usize
}

fn request(verb: Verb, len_bytes: u32) -> Request {
    Request {
        verb,
        len_bytes,
        window: 0,
        immediate: None,
        generation: 0,
        offset: 0,
        operand: 0,
        swap: 0,
    }
}

/// A request on a window. A length that the wire cannot hold becomes one that every host
/// refuses as out of bounds, so that it still completes in its turn.
fn ranged(verb: Verb, window: &RemoteWindow, offset: u64, len_bytes: usize) -> Request {
    let (len_bytes, offset) = match u32::try_from(len_bytes) {
        Ok(len_bytes) => (len_bytes, offset),
        Err(_) => (0, u64::MAX),
    };
    Request {
        window: window.descriptor.id.0,
        generation: window.descriptor.generation.0,
        offset,
        ..request(verb, len_bytes)
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
