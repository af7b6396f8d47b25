//! One client's socket: bytes in, bytes out, and the phase they belong to.
//!
//! Requests are parsed out of an inbox that one receive fills with as many as
//! came; the rest of a long payload is received straight into its buffer, with
//! the inbox behind it in the same call. Reading pauses while the session has no
//! room: the socket's own buffers then push back on the client.
//! Concurrency: owned by one worker. A socket blocks only in a patient receive,
//! which a worker asks for when it has nothing else to wait for.

use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_volume::Done;

use super::budget::Account;
use super::claims::Place;
use super::engine::Engine;
use super::handshake::{Agreed, Handshake, Security, Step};
use super::inbox::Inbox;
use super::session::{IN_FLIGHT_BYTES_MAX, Session, Taking};
use super::slots::Seat;
use super::sys::{Event, Patience};
use super::transport::{Socket, Transport};
use super::wire::RequestHeader;

/// A connection that was just accepted.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) socket: Socket,
    pub(crate) seat: Seat,
    /// What its listener has to do with TLS.
    pub(crate) security: Security,
}

/// A client and what it has in flight.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Before the transport: a session leaves its roster while the socket is open.
    phase: Phase,
    transport: Transport,
    /// Its slot among the connections of its listener.
    seat: Seat,
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
    /// Bytes received and sent so far.
    moved_bytes: u64,
    /// Since when others wait for memory that this client leaves in use, and what had moved by then.
    in_the_way: Option<(Instant, u64)>,
    /// The next receive waits for bytes.
    patient: bool,
    /// Among the worker's active connections; the worker's own mark.
    pub(crate) is_active: bool,
    /// Registered for room to write; the worker's own mark.
    pub(crate) waits_to_write: bool,
}

/// What [`Connection::drive`] brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Heard {
    /// Bytes that it did not wait for.
    Bytes,
    /// A wait for bytes was in vain.
    InVain,
    /// Bytes that it waited for; or none, and there was no wait.
    Other,
}

#[derive(Debug)]
enum Phase {
    Handshake {
        handshake: Handshake,
        deadline: Instant,
    },
    /// The client was told to begin with TLS; the rest of the handshake goes over that.
    Securing {
        handshake: Handshake,
        deadline: Instant,
    },
    Transmit(Box<Session>),
    /// Close once the greeting is sent.
    Refused,
}

impl Connection {
    /// `tag_base` tells this connection's requests from others of its worker.
    pub(crate) fn new(guest: Guest, tag_base: u64, deadline: Instant) -> Self {
        let mut greeting = Vec::new();
        let handshake = Handshake::start(guest.security, &mut greeting);
        Self {
            phase: Phase::Handshake {
                handshake,
                deadline,
            },
            transport: Transport::new(guest.socket),
            seat: guest.seat,
            tag_base,
            inbox: Inbox::new(),
            greeting,
            readable: true,
            input_ends: false,
            writable: true,
            paused: false,
            bulk: false,
            dead: false,
            moved_bytes: 0,
            in_the_way: None,
            patient: false,
            is_active: false,
            waits_to_write: false,
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.transport.fd()
    }

    /// When an unfinished handshake is given up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Handshake { deadline, .. } | Phase::Securing { deadline, .. } => Some(deadline),
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
        self.end_if_forsaken();
    }

    /// Takes no more if its client may be gone while requests wait to be taken. It may have sent
    /// them again on another connection, and more to the same bytes after that: taken now, they
    /// would come last. What was taken has its claims, and goes on. TCP tells of an end behind all
    /// bytes before it: not while these fill the socket. One that has not begun keeps its requests:
    /// whoever comes after it waits for them.
    fn end_if_forsaken(&mut self) {
        let waits = self.paused
            && matches!(&self.phase, Phase::Transmit(session) if !session.member.waits());
        if waits && self.input_ends && self.transport.hides_departures() {
            self.on_end_of_input();
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
            Phase::Transmit(session) => {
                session.is_over() && self.greeting.is_empty() && !self.transport.has_backlog()
            }
            Phase::Refused => {
                self.dead || (self.greeting.is_empty() && !self.transport.has_backlog())
            }
            Phase::Handshake { .. } | Phase::Securing { .. } => self.dead,
        }
    }

    /// Whether a request or a payload waits for room.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether the client has left others waiting for memory for `limit`, by taking its answers or
    /// sending its payloads at less than [`RATE_MIN`]. To be asked again and again.
    pub(crate) fn is_stalled(&mut self, now: Instant, limit: Duration) -> bool {
        let waits_for_client = match &self.phase {
            Phase::Transmit(session) if session.is_in_the_way() => {
                self.waits_to_write || (session.awaits_payload() && !self.paused)
            }
            _ => false,
        };
        if !waits_for_client {
            self.in_the_way = None;
            return false;
        }
        let (since, moved_before) = *self.in_the_way.get_or_insert((now, self.moved_bytes));
        if now.saturating_duration_since(since) < limit {
            return false;
        }
        self.in_the_way = Some((now, self.moved_bytes));
        let least = (RATE_MIN as f64 * limit.as_secs_f64()) as u64;
        self.moved_bytes - moved_before < least
    }

    /// Whether requests wait for room in the queue, or for other connections.
    pub(crate) fn is_held(&self) -> bool {
        matches!(&self.phase, Phase::Transmit(session) if session.is_held())
    }

    /// Whether [`Connection::drive`] would get further without an event.
    pub(crate) fn has_more(&self) -> bool {
        if self.dead {
            return false;
        }
        match &self.phase {
            Phase::Refused | Phase::Securing { .. } => false,
            Phase::Handshake { .. } if self.paused => self.greeting.is_empty(),
            Phase::Handshake { .. } => self.readable,
            Phase::Transmit(session) if session.is_ending() || session.member.waits() => false,
            Phase::Transmit(_) if !self.paused => self.readable,
            Phase::Transmit(session) if session.awaits_payload() => session.has_room_for_payload(),
            Phase::Transmit(session) => {
                RequestHeader::parse_as(self.inbox.bytes(), session.framing())
                    .is_none_or(|header| session.has_room(&header))
            }
        }
    }

    /// Whether nothing can happen here but the arrival of bytes.
    pub(crate) fn only_listens(&self) -> bool {
        match &self.phase {
            Phase::Transmit(session) => {
                session.is_idle()
                    && !self.transport.is_secure()
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
    pub(crate) fn drive(&mut self, engine: &mut Engine) -> Heard {
        let patient = std::mem::take(&mut self.patient);
        let before = self.moved_bytes;
        self.take_in(patient, engine);
        self.end_if_forsaken();
        match (patient, self.moved_bytes > before) {
            (false, true) => Heard::Bytes,
            (true, false) => Heard::InVain,
            _ => Heard::Other,
        }
    }

    fn take_in(&mut self, patient: bool, engine: &mut Engine) {
        if self.dead {
            return;
        }
        self.consume(engine);
        let mut rounds_left = RECEIVES_MAX;
        while self.readable && !self.paused && !self.dead && rounds_left > 0 {
            rounds_left -= 1;
            if matches!(&self.phase, Phase::Transmit(session) if session.is_ending())
                || matches!(self.phase, Phase::Refused | Phase::Securing { .. })
            {
                break;
            }
            let before = self.submitted_count();
            let count = self.receive(patient, engine);
            if patient && count == 0 {
                return;
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
            let result = if self.transport.has_backlog() {
                self.transport.flush()
            } else if !self.greeting.is_empty() {
                self.send_greeting(engine)
            } else if let Phase::Transmit(session) = &mut self.phase {
                let (outbox, buffer_of) = session.outgoing();
                if outbox.is_empty() {
                    break;
                }
                let transport = &mut self.transport;
                let result = outbox.send(|slices| transport.send(slices), buffer_of, released);
                session.release(released, engine);
                result.map(|(bytes, may_go_on)| {
                    self.moved_bytes += bytes as u64;
                    may_go_on
                })
            } else {
                break;
            };
            match result {
                Ok(may_go_on) => self.writable = may_go_on,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.kill(),
            }
        }
        !self.writable && !self.dead
    }

    fn send_greeting(&mut self, engine: &Engine) -> io::Result<bool> {
        let (sent, may_go_on) = self.transport.send(&[io::IoSlice::new(&self.greeting)])?;
        self.greeting.drain(..sent);
        if self.greeting.is_empty() {
            self.begin_tls(engine);
        }
        Ok(may_go_on)
    }

    /// Turns to TLS if the client was told to, now that it was.
    fn begin_tls(&mut self, engine: &Engine) {
        let phase = match std::mem::replace(&mut self.phase, Phase::Refused) {
            Phase::Securing {
                handshake,
                deadline,
            } => {
                let config = engine.tls.as_ref();
                let begun = config.map(|config| self.transport.secure(config));
                if !matches!(begun, Some(Ok(()))) {
                    tracing::error!("a TLS configuration that rustls refuses");
                    return self.kill();
                }
                Phase::Handshake {
                    handshake,
                    deadline,
                }
            }
            other => other,
        };
        self.phase = phase;
    }

    /// Ends the connection as its protocol wants it, as far as the socket lets it.
    pub(crate) fn say_goodbye(&mut self) {
        if !self.dead {
            self.transport.say_goodbye();
        }
    }

    /// Whether another has the connection's slot.
    pub(crate) fn is_evicted(&self) -> bool {
        self.seat.is_evicted()
    }

    /// Receives once; returns the bytes received.
    fn receive(&mut self, patient: bool, engine: &mut Engine) -> usize {
        let inbox_bytes = match &self.phase {
            Phase::Transmit(session) if self.bulk => session.framing().request_bytes(),
            _ => usize::MAX,
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
        match self.transport.receive(parts, patience) {
            Ok(received) if received.bytes == 0 => {
                self.readable = false;
                self.on_end_of_input();
            }
            Ok(received) => {
                // An end that was reported together with the bytes before it is no edge of its own.
                self.readable = received.is_more || self.input_ends;
                let count = received.bytes;
                self.moved_bytes += count as u64;
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
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    tracing::debug!(%error, "close a connection whose TLS failed");
                    engine.counters.tls_failures.add(1);
                }
                self.kill();
            }
        }
        0
    }

    /// A client that only stopped sending still gets its replies to what was taken.
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
        if !session.member.may_begin() {
            self.paused = true;
            return;
        }
        while !session.is_ending() {
            if session.awaits_payload() {
                if !session.make_room_for_payload(engine) {
                    self.paused = true;
                    return;
                }
                if self.inbox.is_empty() {
                    return;
                }
                let used = session.feed(self.inbox.bytes(), engine);
                self.inbox.used(used);
                continue;
            }
            let framing = session.framing();
            let header_bytes = framing.request_bytes();
            if self.inbox.bytes().len() < header_bytes {
                return;
            }
            let Some(header) = RequestHeader::parse_as(self.inbox.bytes(), framing) else {
                tracing::warn!("close a connection whose client sent no request magic");
                self.kill();
                return;
            };
            match session.try_take(header, engine) {
                Taking::Taken => {}
                Taking::Later => {
                    self.paused = true;
                    return;
                }
                Taking::Hopeless => {
                    tracing::warn!(
                        len_bytes = header.len_bytes,
                        "close a connection whose client announced a payload above every limit"
                    );
                    self.kill();
                    return;
                }
            }
            self.inbox.used(header_bytes);
            self.bulk = header.payload_bytes(framing) >= BULK_BYTES_MIN;
        }
    }

    /// Closes at once, and takes no further message of those that came already.
    fn refuse(&mut self) {
        self.phase = Phase::Refused;
        self.kill();
    }

    /// Reads nothing more before the client knows that TLS comes next.
    fn await_tls(&mut self) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Refused) {
            Phase::Handshake {
                handshake,
                deadline,
            } => Phase::Securing {
                handshake,
                deadline,
            },
            other => other,
        };
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
            // What came in the clear behind the request for TLS is nobody's word.
            Step::StartTls if !self.inbox.is_empty() => self.refuse(),
            Step::StartTls => self.await_tls(),
            // Its slot went to another a moment ago.
            Step::Transmit(_) if !self.seat.establish() => self.refuse(),
            Step::Transmit(agreed) => self.begin_session(agreed, engine),
        }
        true
    }

    fn begin_session(&mut self, agreed: Agreed, engine: &Engine) {
        let order = &engine.orders[agreed.export];
        let member = match order.roster.enter(&self.transport) {
            Ok(member) => member,
            Err(error) => {
                tracing::warn!(%error, "look for connections that clients have left");
                return self.refuse();
            }
        };
        let account = Account::new(Arc::clone(&engine.pool), IN_FLIGHT_BYTES_MAX);
        let place = Place::new(&order.claims);
        let session = Session::new(agreed, self.tag_base, account, place, member);
        self.phase = Phase::Transmit(Box::new(session));
    }
}

/// Payload from which a receive looks for no further request behind a header, so
/// that the payload is not copied through the inbox.
const BULK_BYTES_MIN: u64 = 32 << 10;

/// Bytes per second that a client moves at least while others wait for its memory; arbitrary, slow
/// for any network that NBD is used over.
const RATE_MIN: u64 = 1 << 20;

/// Receives for one connection before others get their turn; only a long payload takes more than one.
const RECEIVES_MAX: u32 = 16;

/// Unsent handshake replies, above which no option is taken (one reply may pass it).
const GREETING_BYTES_MAX: usize = 64 << 10;
