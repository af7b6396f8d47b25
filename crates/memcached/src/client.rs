//! One client on a stream: its bytes in, its replies out.
//!
//! Bytes are parsed where they were read. A client has a buffer while something of it is not
//! parsed yet, and none otherwise. It is not read from while it does not read itself, nor while others have
//! the memory that its request needs.

mod memory;

use std::io::{ErrorKind, IoSlice};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_fabric::strangers::Source;
use cenote_kv::protocol::authentication::{GateStep, gate};
use cenote_kv::protocol::reply::{self, Answer};
use cenote_kv::protocol::{Parser, Step, binary};

use super::backend::Backend;
use super::binary::Gate;
use super::buffers::{Held, Part};
use super::connections::{ConnectionFacts, State};
use super::core::Core;
use super::direct::Direct;
use super::mailboxes::NewClient;
use super::session::Session;
use super::settings::{Binding, Settings};
use super::small_answers::{is_brief, is_brief_message};
use super::threads::locked;
use super::transport::Transport;
use super::watch::COMMANDS;

/// Bytes that are read at once at first.
const READ_BYTES: usize = 16 << 10;
/// Bytes after which a turn reads no more, whether they are requests or not. Arbitrary.
const TURN_BYTES_MAX: usize = 1 << 20;
/// Reads of one turn: as many as these bytes take in pieces of [`READ_BYTES`].
const TURN_READS_MAX: usize = TURN_BYTES_MAX / READ_BYTES;

/// See the [module](self).
pub(super) struct Client {
    pub(super) transport: Transport,
    pub(super) facts: Arc<ConnectionFacts>,
    pub(super) session: Session,
    /// What has been read, empty once all of it is parsed.
    input: Vec<u8>,
    /// Bytes at the front of `input` that are parsed.
    parsed: usize,
    speech: Speech,
    /// With fewer bytes there is nothing to parse.
    needed: usize,
    /// Whether it is known who it is.
    gate: Gate,
    is_readable: bool,
    is_writable: bool,
    /// The peer has sent its end, as far as the poll knows.
    is_half_closed: bool,
    /// The end was read.
    has_ended: bool,
    is_broken: bool,
    /// It has said what no request is.
    is_faulty: bool,
    /// It is in the queue of those that have a turn.
    pub(super) is_queued: bool,
    /// It waits for memory.
    pub(super) is_waiting: bool,
    place: usize,
    /// Whose share of the memory it has.
    pub(super) source: Source,
    /// Memory that is counted for it.
    pub(super) held: Held,
    /// Bytes that its peer has given and taken since they were last looked at.
    moved: usize,
    /// Bytes that were written to it.
    written: u64,
    /// How many of them its peer had taken out of the system's buffers when that was last looked at.
    taken: u64,
    /// Second in which it last gave or took some.
    last_moved: u64,
    /// Seconds in a row in which that was too little.
    slow_seconds: u32,
}

/// What a client speaks.
enum Speech {
    /// It has said nothing.
    Unheard,
    Text(Parser),
    Binary(binary::Parser),
}

impl Speech {
    /// What begins with such a byte.
    fn of(first: u8, settings: &Settings) -> Self {
        let is_binary = match settings.binding {
            Binding::Auto => first == binary::REQUEST_MAGIC,
            Binding::Text => false,
            Binding::Binary => true,
        };
        match is_binary {
            true => Self::Binary(binary::Parser::new(settings.limits)),
            false => Self::Text(Parser::new(settings.limits)),
        }
    }
}

/// What stood at the front of what a client has said.
enum Taken {
    /// A request, or what is answered in place of one, of so many bytes.
    Request(usize),
    /// Bytes that are no more than that.
    Bytes(usize),
    /// Less than a whole request.
    Nothing,
    /// A request whose answer there is no memory for.
    NoRoom,
    /// The end.
    All,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Turn {
    /// There is more to do.
    Again,
    /// It waits for memory: to hold so many bytes of a part.
    WaitsForRoom(Part, usize),
    /// It waits for its peer, or for an answer.
    Waits,
}

impl Client {
    pub(super) fn new<B: Backend>(
        new: NewClient,
        session: Session,
        place: usize,
        core: &Core<B>,
    ) -> Self {
        let NewClient {
            transport,
            facts,
            source,
        } = new;
        // Who has accepted it knows the system's time alone.
        facts.last_request.store(core.now, Ordering::Relaxed);
        Self {
            transport,
            facts,
            session,
            input: Vec::new(),
            parsed: 0,
            needed: 1,
            speech: Speech::Unheard,
            gate: Gate::new(locked(&core.shared.credentials).clone()),
            is_readable: true,
            is_writable: true,
            is_half_closed: false,
            has_ended: false,
            is_broken: false,
            is_faulty: false,
            is_queued: false,
            is_waiting: false,
            place,
            source,
            held: Held::default(),
            moved: 0,
            written: 0,
            taken: 0,
            last_moved: core.now,
            slow_seconds: 0,
        }
    }

    /// The poll has seen something.
    pub(super) fn note_event(&mut self, event: &mio::event::Event) {
        self.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.is_writable |= event.is_writable() || event.is_error();
        self.is_half_closed |= event.is_read_closed();
    }

    #[cfg(test)]
    pub(super) fn note_readable(&mut self) {
        self.is_readable = true;
    }

    #[cfg(test)]
    pub(super) fn note_writable(&mut self) {
        self.is_writable = true;
    }

    /// Memory of its buffer.
    #[cfg(test)]
    pub(super) fn input_bytes(&self) -> usize {
        self.input.capacity()
    }

    /// Whether it can be dropped.
    pub(super) fn is_over(&self) -> bool {
        let is_closing = self.has_ended || self.session.has_quit;
        self.is_broken || is_closing && self.session.is_done() && !self.transport.has_backlog()
    }

    /// Whether a turn would come to something, unless it is held up.
    pub(super) fn has_more(&self) -> bool {
        let may_read = self.is_readable && !self.has_ended;
        self.session.has_more() || !self.input.is_empty() || may_read
    }

    /// Why it ends, as who watches is told.
    pub(super) fn reason(&self) -> &'static str {
        match (
            self.is_broken || self.is_faulty,
            self.has_ended || self.session.has_quit,
        ) {
            (true, _) => "error",
            (false, true) => "normal",
            (false, false) => "idle_timeout",
        }
    }

    /// Whether nothing of it is under way, as far as is known.
    pub(super) fn is_idle(&self) -> bool {
        self.session.is_done() && !self.has_more() && !self.transport.has_backlog()
    }

    /// Whether it has been silent since `second`, and not because it had to wait.
    pub(super) fn is_idle_since(&self, second: u64) -> bool {
        let is_silent = self.last_moved < second && !self.is_waiting && !self.is_queued;
        is_silent && self.session.is_done() && self.session.watcher.is_none()
    }

    /// Whether it has answers to read.
    fn does_not_read(&self) -> bool {
        let has_unsent = !self.session.replies.unsent().is_empty() || self.transport.has_backlog();
        !self.is_writable && has_unsent
    }

    /// Bytes of answers that its peer has taken since this was last asked, at most those that there
    /// are. What is written to it tells less: the system may hold megabytes.
    pub(super) fn take_taken(&mut self, now: u64) -> u64 {
        let taken = self.transport.taken(self.written).max(self.taken);
        let more = taken - std::mem::replace(&mut self.taken, taken);
        if more > 0 {
            self.last_moved = now;
        }
        more
    }

    /// Whether it has answers to read, and has read none since `second`; asked each second.
    pub(super) fn does_not_read_since(&mut self, second: u64, now: u64) -> bool {
        if self.does_not_read() {
            self.take_taken(now);
        }
        self.last_moved < second && self.does_not_read()
    }

    /// Serves what there is, up to the number of requests and of bytes of one turn.
    pub(super) fn turn<B: Backend>(&mut self, core: &mut Core<B>) -> Turn {
        self.facts.set_state(State::Served);
        let mut input = mem::take(&mut self.input);
        let mut start = mem::take(&mut self.parsed);
        let mut reads_left = TURN_READS_MAX;
        let mut left = core.shared.settings.requests_per_turn;
        let moved_max = self.moved + TURN_BYTES_MAX;
        self.session.replies.is_short = core.clients.is_scarce(Part::Answers);
        let turn = loop {
            if self.is_broken || self.session.has_quit {
                start = input.len();
                break Turn::Waits;
            }
            let own = self.held.of(Part::Answers);
            let next = self.waiter(READ_BYTES);
            if self.session.is_held_up() {
                self.write(core);
                if !self.session.asks_again(core) && self.session.waits_for_memory() {
                    if !core.may_answer(next, own) {
                        break Turn::WaitsForRoom(Part::Answers, READ_BYTES);
                    }
                    self.session.go_on_with_doubtful(core);
                }
                if self.session.is_held_up() {
                    self.end_guest(core);
                    break Turn::Waits;
                }
            }
            if left == 0 {
                core.traffic().conn_yields.count();
                break Turn::Again;
            }
            let has_request = self.session.has_more() || input.len() - start >= self.needed;
            self.session.only_small = has_request && !core.may_answer(next, own);
            if self.session.only_small && !self.has_sent_all(core) {
                break Turn::Waits;
            }
            if self.session.only_small && self.session.is_dumping() {
                break Turn::WaitsForRoom(Part::Answers, READ_BYTES);
            }
            if self.session.has_more() {
                left -= 1;
                self.write_direct(core, |session, core, direct| session.go_on(core, direct));
                left = left.saturating_sub(self.session.take_cost());
            } else if has_request {
                match self.step(core, &input[start..], &mut left) {
                    Some(taken) => start += taken,
                    None => break Turn::WaitsForRoom(Part::Answers, READ_BYTES),
                }
            } else if !self.is_readable || self.has_ended {
                break Turn::Waits;
            } else if self.moved >= moved_max || reads_left == 0 {
                break Turn::Again;
            } else {
                input.drain(..mem::take(&mut start));
                if let Some((part, wanted)) = self.make_room(core, &mut input) {
                    break Turn::WaitsForRoom(part, wanted);
                }
                reads_left -= 1;
                if !self.read(core, &mut input) {
                    break Turn::Waits;
                }
            }
        };
        // Moving the rest each turn would be quadratic in the requests of a large buffer.
        if start > input.len() / 2 {
            input.drain(..mem::take(&mut start));
        }
        self.parsed = start;
        self.input = input;
        self.settle_input(core);
        self.facts
            .set_state(match self.input.is_empty() && self.needed <= 1 {
                _ if self.session.watcher.is_some() => State::Watches,
                true => State::Waits,
                false => State::Reads,
            });
        turn
    }

    /// Reads more behind what there is; says whether something came.
    fn read<B: Backend>(&mut self, core: &Core<B>, input: &mut Vec<u8>) -> bool {
        let room = input.capacity() - input.len();
        match self.transport.read(input) {
            Ok(0) => self.has_ended = true,
            Ok(length) => {
                core.traffic().bytes_read.add(length as u64);
                self.moved += length;
                self.last_moved = core.now;
                let is_all = length < room && self.transport.is_plain() && !self.is_half_closed;
                self.is_readable = !is_all;
                return true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => return true,
            Err(_) => self.is_broken = true,
        }
        false
    }

    /// Takes one request, or what stands in its place, and returns its bytes; nothing where it has to
    /// wait for memory.
    fn step<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        bytes: &[u8],
        left: &mut u32,
    ) -> Option<usize> {
        self.needed = 1;
        if self.session.watcher.is_some() {
            return Some(bytes.len());
        }
        if let (Speech::Unheard, Some(first)) = (&self.speech, bytes.first()) {
            self.speech = Speech::of(*first, &core.shared.settings);
        }
        let taken = match self.speech {
            Speech::Binary(_) => self.binary_step(core, bytes),
            _ => self.text_step(core, bytes),
        };
        let taken = match taken {
            Taken::Request(taken) => taken,
            Taken::Bytes(taken) => return Some(taken),
            Taken::Nothing => return Some(0),
            Taken::NoRoom => return None,
            Taken::All => {
                self.is_faulty = true;
                self.session.has_quit = true;
                return Some(bytes.len());
            }
        };
        core.clients.end(self.place);
        *left = (*left - 1).saturating_sub(self.session.take_cost());
        self.facts.last_request.store(core.now, Ordering::Relaxed);
        core.shared.log(2, || {
            let number = self.facts.number;
            if let Speech::Binary(_) = self.speech {
                // What follows may be a password.
                return format!("<{number} binary, opcode 0x{:02x}", bytes[1]);
            }
            let line = bytes[..taken].split(|byte| matches!(byte, b'\r' | b'\n'));
            let line = line.into_iter().next().unwrap_or_default();
            format!("<{number} {}", line.escape_ascii())
        });
        if let Speech::Text(_) = self.speech {
            core.shared.watched(COMMANDS, || {
                let line = bytes[..taken].split(|byte| matches!(byte, b'\r' | b'\n'));
                let line = line.into_iter().next().unwrap_or_default();
                format!("<{} {}", self.facts.number, line.escape_ascii())
            });
        }
        Some(taken)
    }

    fn binary_step<B: Backend>(&mut self, core: &mut Core<B>, bytes: &[u8]) -> Taken {
        let Speech::Binary(parser) = &mut self.speech else {
            return Taken::All;
        };
        match parser.parse(bytes, self.gate.is_passed()) {
            binary::Step::More { needed } => {
                self.needed = needed;
                Taken::Nothing
            }
            binary::Step::Skipped { taken } => Taken::Bytes(taken),
            binary::Step::Message { message, taken }
                if self.session.only_small && !is_brief_message(&message, taken) =>
            {
                Taken::NoRoom
            }
            binary::Step::Message { message, taken } => {
                let text = &bytes[..taken];
                self.session.message(core, &message, text, &mut self.gate);
                Taken::Request(taken)
            }
            binary::Step::Refused { refusal, taken } => {
                self.session.refuse_message(core, &refusal);
                Taken::Request(taken)
            }
            binary::Step::Close => Taken::All,
        }
    }

    fn text_step<B: Backend>(&mut self, core: &mut Core<B>, bytes: &[u8]) -> Taken {
        if let Gate::Shut(credentials) = &self.gate {
            let step = gate(bytes, credentials);
            return self.pass_gate(core, step, bytes.len());
        }
        let Speech::Text(parser) = &mut self.speech else {
            return Taken::Nothing;
        };
        match parser.parse(bytes) {
            Step::More { needed } => {
                self.needed = needed;
                Taken::Nothing
            }
            Step::Skipped { taken } => Taken::Bytes(taken),
            Step::Request { request, taken }
                if self.session.only_small && !is_brief(&request, taken) =>
            {
                Taken::NoRoom
            }
            Step::Request { request, taken } => {
                self.write_direct(core, |session, core, direct| {
                    session.request(core, &request, &bytes[..taken], direct);
                });
                Taken::Request(taken)
            }
            Step::Refused { refusal, taken } => {
                self.session.refuse(core, &refusal, &bytes[..taken]);
                Taken::Request(taken)
            }
            Step::Close(_) => Taken::All,
        }
    }

    fn pass_gate<B: Backend>(&mut self, core: &Core<B>, step: GateStep, bytes: usize) -> Taken {
        let traffic = core.traffic();
        match step {
            GateStep::More => {
                self.needed = bytes + 1;
                Taken::Nothing
            }
            GateStep::Admitted { taken } => {
                traffic.auth_cmds.count();
                self.gate = Gate::Open;
                reply::answer(self.session.replies.tail(), Answer::Stored);
                Taken::Request(taken)
            }
            GateStep::Refused { error, taken } => {
                traffic.auth_cmds.count();
                traffic.auth_errors.count();
                reply::error(self.session.replies.tail(), error);
                Taken::Request(taken)
            }
            GateStep::Close => Taken::All,
        }
    }

    /// Serves something whose values may go straight to the peer.
    fn write_direct<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        serve: impl FnOnce(&mut Session, &mut Core<B>, Option<&mut Direct<'_>>),
    ) {
        let mut written = 0;
        let mut direct = Direct {
            transport: &mut self.transport,
            is_writable: &mut self.is_writable,
            written: &mut written,
        };
        let direct = direct.transport.is_plain().then_some(&mut direct);
        serve(&mut self.session, core, direct);
        if written > 0 {
            self.moved += usize::try_from(written).unwrap_or(usize::MAX);
            self.written += written;
            self.last_moved = core.now;
            core.traffic().bytes_written.add(written);
        }
    }

    /// Writes what there is; whether nothing is left, and nothing is awaited.
    fn has_sent_all<B: Backend>(&mut self, core: &Core<B>) -> bool {
        if !self.session.replies.is_done() || self.transport.has_backlog() {
            self.write(core);
        }
        self.session.replies.is_done() && !self.transport.has_backlog()
    }

    /// Writes what there is, as far as the peer takes it.
    pub(super) fn write<B: Backend>(&mut self, core: &Core<B>) {
        while self.is_writable && !self.is_broken {
            let unsent = self.session.replies.unsent();
            let result = if unsent.is_empty() {
                if !self.transport.has_backlog() {
                    break;
                }
                self.transport.flush().map(|()| 0)
            } else {
                self.transport.write(&[IoSlice::new(unsent)])
            };
            match result {
                Ok(length) => {
                    core.traffic().bytes_written.add(length as u64);
                    self.moved += length;
                    self.written += length as u64;
                    self.last_moved = core.now;
                    self.session.replies.note_sent(length);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_broken = true,
            }
        }
    }
}
