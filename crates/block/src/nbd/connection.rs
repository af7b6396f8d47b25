//! One client's socket: bytes in, bytes out, and the phase they belong to.
//!
//! Requests are parsed out of an inbox that one receive fills with as many as
//! came; the rest of a long payload is received straight into its buffer, with
//! the inbox behind it in the same call. Reading pauses while the session has no
//! room: the socket's own buffers then push back on the client.
//! Concurrency: owned by one worker. A socket blocks only in a patient receive,
//! which a worker asks for when it has nothing else to wait for.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cenote_volume::Done;

use super::engine::Engine;
use super::handshake::{Handshake, Step};
use super::session::Session;
use super::sys::{self, Event, Patience};
use super::wire::{REQUEST_HEADER_BYTES, RequestHeader};

/// A connected stream of either family.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Makes the socket ready for a worker.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE_LIMIT))?;
            }
            Self::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE_LIMIT))?;
                stream.set_nodelay(true)?;
            }
        }
        sys::enlarge_buffers(self.as_raw_fd(), SOCKET_BUFFER_BYTES);
        Ok(())
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Tcp(stream) => stream.as_raw_fd(),
        }
    }
}

/// A client and what it has in flight.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    phase: Phase,
    /// Upper half of the tags of this connection's requests.
    tag_base: u64,
    inbox: Inbox,
    /// Handshake bytes to send, before anything of the session.
    greeting: Vec<u8>,
    /// The socket may have bytes for us.
    readable: bool,
    /// The client sends no more than the socket has.
    input_ends: bool,
    /// The socket took all it was offered.
    writable: bool,
    /// A whole header waits in the inbox for room in the session.
    paused: bool,
    /// The last request had a long payload: look only for a header next.
    bulk: bool,
    dead: bool,
    /// The next receive waits for bytes.
    patient: bool,
    /// Among the worker's active connections; the worker's own mark.
    pub(crate) is_active: bool,
    /// Registered for room to write; the worker's own mark.
    pub(crate) waits_to_write: bool,
}

#[derive(Debug)]
enum Phase {
    Handshake {
        handshake: Handshake,
        deadline: Instant,
    },
    Transmit(Box<Session>),
    /// Close once the greeting is sent.
    Refused,
}

impl Connection {
    /// `tag_base` tells this connection's requests from others of its worker.
    pub(crate) fn new(socket: Socket, tag_base: u64, deadline: Instant) -> Self {
        let mut greeting = Vec::new();
        let handshake = Handshake::start(&mut greeting);
        Self {
            socket,
            phase: Phase::Handshake {
                handshake,
                deadline,
            },
            tag_base,
            inbox: Inbox::new(),
            greeting,
            readable: true,
            input_ends: false,
            writable: true,
            paused: false,
            bulk: false,
            dead: false,
            patient: false,
            is_active: false,
            waits_to_write: false,
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// When an unfinished handshake is given up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Handshake { deadline, .. } => Some(deadline),
            _ => None,
        }
    }

    pub(crate) fn on_event(&mut self, event: Event) {
        self.readable |= event.readable;
        self.input_ends |= event.input_ends;
        self.writable |= event.writable;
        if event.dead {
            self.kill();
        }
    }

    /// Ends the connection after what it has in flight; at once in a handshake.
    pub(crate) fn end(&mut self) {
        match &mut self.phase {
            Phase::Transmit(session) => session.end(),
            _ => self.kill(),
        }
    }

    /// Drops everything that is not inside a queue.
    pub(crate) fn kill(&mut self) {
        self.dead = true;
        if let Phase::Transmit(session) = &mut self.phase {
            session.abandon();
        }
    }

    /// Whether the connection can be forgotten.
    pub(crate) fn is_over(&self) -> bool {
        match &self.phase {
            Phase::Transmit(session) if self.dead => session.submitted_count() == 0,
            Phase::Transmit(session) => session.is_over() && self.greeting.is_empty(),
            Phase::Refused => self.dead || self.greeting.is_empty(),
            Phase::Handshake { .. } => self.dead,
        }
    }

    /// Whether requests wait for room in the queue.
    pub(crate) fn is_held(&self) -> bool {
        matches!(&self.phase, Phase::Transmit(session) if session.is_held())
    }

    /// Whether [`Connection::drive`] would get further without an event.
    pub(crate) fn has_more(&self) -> bool {
        if self.dead {
            return false;
        }
        match &self.phase {
            Phase::Refused => false,
            Phase::Handshake { .. } if self.paused => self.greeting.is_empty(),
            Phase::Handshake { .. } => self.readable,
            Phase::Transmit(session) if session.is_ending() => false,
            Phase::Transmit(session) if self.paused => self
                .inbox
                .header()
                .is_none_or(|header| session.has_room(&header)),
            Phase::Transmit(_) => self.readable,
        }
    }

    /// Whether nothing can happen here but the arrival of bytes.
    pub(crate) fn only_listens(&self) -> bool {
        match &self.phase {
            Phase::Transmit(session) => {
                session.is_idle()
                    && !self.paused
                    && !self.input_ends
                    && !self.waits_to_write
                    && !self.dead
                    && !session.is_ending()
            }
            _ => false,
        }
    }

    /// Says that the next [`Connection::drive`] is to wait for bytes, for a short while.
    pub(crate) fn be_patient(&mut self) {
        self.readable = true;
        self.patient = true;
    }

    /// Takes what the inbox holds and the socket has, up to a fair share.
    /// Returns whether a wait for bytes was in vain.
    pub(crate) fn drive(&mut self, engine: &mut Engine) -> bool {
        let patient = std::mem::take(&mut self.patient);
        if self.dead {
            return false;
        }
        self.consume(engine);
        let mut rounds_left = RECEIVES_MAX;
        while self.readable && !self.paused && !self.dead && rounds_left > 0 {
            rounds_left -= 1;
            if matches!(&self.phase, Phase::Transmit(session) if session.is_ending())
                || matches!(self.phase, Phase::Refused)
            {
                break;
            }
            let before = self.submitted_count();
            let count = self.receive(patient, engine);
            if patient && count == 0 {
                return true;
            }
            self.consume(engine);
            let filling =
                matches!(&self.phase, Phase::Transmit(session) if session.awaits_payload());
            if !filling || self.submitted_count() > before {
                // What was submitted is answered, and its buffer reused, while it is in cache.
                break;
            }
            // The payload behind a header is on its way.
            self.readable |= patient;
        }
        false
    }

    fn submitted_count(&self) -> usize {
        match &self.phase {
            Phase::Transmit(session) => session.submitted_count(),
            _ => 0,
        }
    }

    /// Hands the end of a request to its session.
    pub(crate) fn complete(&mut self, done: Done, engine: &mut Engine) {
        if let Phase::Transmit(session) = &mut self.phase {
            session.complete(done, engine);
            if self.dead {
                session.abandon();
            }
        }
    }

    pub(crate) fn submit_held(&mut self, engine: &mut Engine) {
        if let Phase::Transmit(session) = &mut self.phase {
            session.submit_held(engine);
        }
    }

    /// Sends what the socket takes. Returns whether it must be told when the
    /// socket takes more.
    pub(crate) fn send(&mut self, engine: &mut Engine, released: &mut Vec<u32>) -> bool {
        while self.writable && !self.dead {
            let result = if !self.greeting.is_empty() {
                self.send_greeting()
            } else if let Phase::Transmit(session) = &mut self.phase {
                let fd = self.socket.as_raw_fd();
                let (outbox, buffer_of) = session.outgoing();
                if outbox.is_empty() {
                    break;
                }
                let result = outbox.send(fd, buffer_of, released);
                session.release(released, engine);
                result
            } else {
                break;
            };
            match result {
                Ok(all) => self.writable = all,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.kill(),
            }
        }
        !self.writable && !self.dead
    }

    fn send_greeting(&mut self) -> io::Result<bool> {
        let sent = sys::send(self.fd(), &[io::IoSlice::new(&self.greeting)])?;
        self.greeting.drain(..sent);
        Ok(self.greeting.is_empty())
    }

    /// Receives once; returns the bytes received.
    fn receive(&mut self, patient: bool, engine: &mut Engine) -> usize {
        let inbox_bytes = if self.bulk {
            REQUEST_HEADER_BYTES
        } else {
            usize::MAX
        };
        let landing = match &mut self.phase {
            Phase::Transmit(session) => session.landing(),
            _ => &mut [],
        };
        let landing_bytes = landing.len();
        let space = self.inbox.space(inbox_bytes);
        let mut parts = [IoSliceMut::new(landing), IoSliceMut::new(space)];
        let (parts, patience) = match (patient, landing_bytes) {
            (false, 0) => (&mut parts[1..], Patience::None),
            (false, _) => (&mut parts[..], Patience::None),
            (true, 0) => (&mut parts[1..], Patience::First),
            (true, _) => (&mut parts[..1], Patience::All),
        };
        let wanted_bytes: usize = parts.iter().map(|part| part.len()).sum();
        match sys::receive(self.socket.as_raw_fd(), parts, patience) {
            Ok(0) => {
                self.readable = false;
                self.on_end_of_input();
            }
            Ok(count) => {
                // A short read empties a stream; the next byte is a new edge. Not so
                // an end that was reported together with the bytes before it.
                self.readable = count == wanted_bytes || self.input_ends;
                let landed = count.min(landing_bytes);
                self.inbox.received(count - landed);
                if let Phase::Transmit(session) = &mut self.phase
                    && landed > 0
                {
                    session.filled(landed, engine);
                }
                return count;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.kill(),
        }
        0
    }

    /// A client that only stopped sending still gets its replies.
    fn on_end_of_input(&mut self) {
        match &mut self.phase {
            Phase::Transmit(session) if !session.awaits_payload() => session.end(),
            _ => self.kill(),
        }
    }

    fn consume(&mut self, engine: &mut Engine) {
        self.paused = false;
        while let Phase::Handshake { .. } = self.phase {
            if !self.consume_option(engine) {
                return;
            }
        }
        let Phase::Transmit(session) = &mut self.phase else {
            return;
        };
        while !session.is_ending() {
            if session.awaits_payload() {
                let used = session.feed(self.inbox.bytes(), engine);
                self.inbox.used(used);
                if session.awaits_payload() {
                    return;
                }
            }
            let Some(bytes) = self.inbox.bytes().first_chunk() else {
                return;
            };
            let Some(header) = RequestHeader::parse(bytes) else {
                tracing::warn!("close a connection whose client sent no request magic");
                self.kill();
                return;
            };
            if !session.has_room(&header) {
                self.paused = true;
                return;
            }
            self.inbox.used(REQUEST_HEADER_BYTES);
            self.bulk = header.len_bytes as usize >= BULK_BYTES_MIN;
            session.take(header, engine);
        }
    }

    /// Takes one message of the handshake; returns whether to go on.
    fn consume_option(&mut self, engine: &mut Engine) -> bool {
        let Phase::Handshake { handshake, .. } = &mut self.phase else {
            return false;
        };
        if self.greeting.len() > GREETING_BYTES_MAX {
            self.paused = true;
            return false;
        }
        let (used, step) =
            handshake.advance(self.inbox.bytes(), &engine.exports, &mut self.greeting);
        self.inbox.used(used);
        match step {
            Step::More => return false,
            Step::Replied => {}
            Step::Close => self.phase = Phase::Refused,
            Step::Transmit(agreed) => {
                self.phase = Phase::Transmit(Box::new(Session::new(agreed, self.tag_base)));
            }
        }
        true
    }
}

/// Received bytes that are not taken apart yet.
#[derive(Debug)]
struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    fn new() -> Self {
        Self {
            bytes: vec![0; INBOX_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn header(&self) -> Option<RequestHeader> {
        self.bytes().first_chunk().and_then(RequestHeader::parse)
    }

    fn used(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for at most `max` bytes, never none: what is left over moves to the front.
    fn space(&mut self, max: usize) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let end = self.bytes.len().min(self.end.saturating_add(max));
        &mut self.bytes[self.end..end]
    }

    fn received(&mut self, count: usize) {
        self.end += count;
    }
}

/// Fifteen 4 KiB writes; more come with the next receive.
const INBOX_BYTES: usize = 64 << 10;
const _: () = assert!(INBOX_BYTES > Handshake::INPUT_BYTES_MAX);

/// Payload from which a receive looks for no further request behind a header, so
/// that the payload is not copied through the inbox.
const BULK_BYTES_MIN: usize = 32 << 10;

/// Receives for one connection before others get their turn; only a long payload takes more than one.
const RECEIVES_MAX: u32 = 16;

/// For how long a patient receive waits: long beside a busy client's pauses, short
/// beside what the mailbox and the queues can wait.
const PATIENCE_LIMIT: Duration = Duration::from_millis(2);

/// Unsent handshake replies, above which no option is taken (one reply may pass it).
const GREETING_BYTES_MAX: usize = 64 << 10;

/// Asked of the kernel per direction: a few large requests.
const SOCKET_BUFFER_BYTES: i32 = 1 << 20;
