//! One client on a stream: its bytes in, its replies out.
//!
//! Bytes are parsed where they were read. A client has a buffer while something of it is not
//! parsed yet, and none otherwise. It is not read from while it does not read itself.

use std::io::{ErrorKind, IoSlice};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::backend::Backend;
use super::core::Core;
use super::session::{Direct, Session};
use super::shared::{ConnectionFacts, locked};
use super::transport::Transport;
use crate::protocol::authentication::{Credentials, GateStep, gate};
use crate::protocol::reply::{self, Answer};
use crate::protocol::{Parser, Step};

/// Bytes that are read at once at first.
const READ_BYTES: usize = 16 << 10;

/// See the [module](self).
pub(super) struct Client {
    pub(super) transport: Transport,
    pub(super) facts: Arc<ConnectionFacts>,
    pub(super) session: Session,
    /// What has been read and not parsed.
    input: Vec<u8>,
    /// With fewer bytes there is nothing to parse.
    needed: usize,
    parser: Parser,
    /// Not known yet who it is.
    gate: Option<Arc<Credentials>>,
    is_readable: bool,
    is_writable: bool,
    /// The peer has sent its end, as far as the poll knows.
    is_half_closed: bool,
    /// The end was read.
    has_ended: bool,
    is_broken: bool,
    /// It is in the queue of those that have a turn.
    pub(super) is_queued: bool,
    /// It waits for memory.
    pub(super) is_waiting: bool,
    /// Memory that is counted for it.
    pub(super) counted: usize,
    /// Room for all of the request that is being read is counted.
    is_admitted: bool,
    /// When its peer last took or gave something, seconds since 1970.
    moved: u64,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Turn {
    /// There is more to do.
    Again,
    /// It waits for so many bytes of memory.
    WaitsForRoom(usize),
    /// It waits for its peer, or for an answer.
    Waits,
}

impl Client {
    pub(super) fn new<B: Backend>(
        transport: Transport,
        facts: Arc<ConnectionFacts>,
        session: Session,
        core: &Core<B>,
    ) -> Self {
        let settings = &core.shared.settings;
        Self {
            transport,
            facts,
            session,
            input: Vec::new(),
            needed: 1,
            parser: Parser::new(settings.limits),
            gate: locked(&core.shared.credentials).clone(),
            is_readable: true,
            is_writable: true,
            is_half_closed: false,
            has_ended: false,
            is_broken: false,
            is_queued: false,
            is_waiting: false,
            counted: 0,
            is_admitted: false,
            moved: core.now,
        }
    }

    /// The poll has seen something.
    pub(super) fn note_event(&mut self, event: &mio::event::Event) {
        self.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.is_writable |= event.is_writable() || event.is_error();
        self.is_half_closed |= event.is_read_closed();
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

    /// Whether nothing of it is under way, as far as is known.
    pub(super) fn is_idle(&self) -> bool {
        self.session.is_done() && !self.has_more() && !self.transport.has_backlog()
    }

    /// Whether it has been silent since `second`.
    pub(super) fn is_idle_since(&self, second: u64) -> bool {
        self.facts.last_request.load(Ordering::Relaxed) < second && self.session.is_done()
    }

    /// Serves what there is, up to the number of requests of one turn.
    pub(super) fn turn<B: Backend>(&mut self, core: &mut Core<B>) -> Turn {
        let mut input = mem::take(&mut self.input);
        let mut start = 0;
        let mut left = core.shared.settings.requests_per_turn;
        self.session.replies.is_short = core.clients.is_scarce();
        let turn = loop {
            if self.is_broken || self.session.has_quit {
                start = input.len();
                break Turn::Waits;
            }
            if self.session.is_held_up() {
                self.write(core);
                if self.session.is_held_up() {
                    break Turn::Waits;
                }
            }
            if left == 0 {
                core.traffic().conn_yields.count();
                break Turn::Again;
            }
            if let Some(wanted) = self.lacking(core) {
                break Turn::WaitsForRoom(wanted);
            }
            if self.session.has_more() {
                left -= 1;
                self.session.go_on(core);
            } else if input.len() - start >= self.needed {
                start += self.step(core, &input[start..], &mut left);
            } else if !self.read(core, &mut input, &mut start) {
                break Turn::Waits;
            }
        };
        if start == input.len() {
            core.give_buffer(input, READ_BYTES);
        } else {
            input.drain(..start);
            self.input = input;
        }
        turn
    }

    /// What it has to wait for, where others have the memory.
    fn lacking<B: Backend>(&mut self, core: &mut Core<B>) -> Option<usize> {
        let is_large = self.needed > READ_BYTES && !self.is_admitted;
        let wanted = if is_large { self.needed } else { READ_BYTES };
        if !core.has_room(self.counted, wanted) {
            return Some(wanted);
        }
        if is_large {
            self.is_admitted = true;
            self.count_bytes(core);
        }
        None
    }

    /// Counts the memory that it has now.
    pub(super) fn count_bytes<B: Backend>(&mut self, core: &mut Core<B>) {
        let needed = if self.is_admitted { self.needed } else { 0 };
        let now = self.input.capacity().max(needed) + self.session.bytes();
        core.clients.change(self.counted, now);
        self.counted = now;
    }

    /// Whether it holds memory and waits for its peer since `second`.
    pub(super) fn is_stuck_since(&self, second: u64) -> bool {
        let does_not_read = !self.is_writable && !self.session.replies.unsent().is_empty();
        let does_not_go_on =
            !self.input.is_empty() && !self.is_readable && !self.session.is_held_up();
        let is_its_turn = does_not_read || (does_not_go_on && !self.is_waiting);
        self.counted > 0 && self.moved < second && is_its_turn
    }

    /// Reads more behind what there is; says whether something came.
    fn read<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        input: &mut Vec<u8>,
        start: &mut usize,
    ) -> bool {
        if !self.is_readable || self.has_ended {
            return false;
        }
        input.drain(..mem::take(start));
        if input.capacity() == 0 {
            *input = core.take_buffer(READ_BYTES);
        }
        // A large value's room is made as it comes, not as it is announced.
        let wanted = self.needed.min((2 * input.len()).max(READ_BYTES));
        if input.capacity() < wanted.max(input.len() + 1) {
            input.reserve_exact(wanted.max(input.len() + READ_BYTES) - input.len());
        }
        let room = input.capacity() - input.len();
        match self.transport.read(input) {
            Ok(0) => self.has_ended = true,
            Ok(length) => {
                core.traffic().bytes_read.add(length as u64);
                self.moved = core.now;
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

    /// Takes one request, or what stands in its place, and returns its bytes.
    fn step<B: Backend>(&mut self, core: &mut Core<B>, bytes: &[u8], left: &mut u32) -> usize {
        self.needed = 1;
        self.is_admitted = false;
        if let Some(credentials) = &self.gate {
            let step = gate(bytes, &Arc::clone(credentials));
            *left -= 1;
            return self.pass_gate(core, step, bytes.len());
        }
        let taken = match self.parser.parse(bytes) {
            Step::More { needed } => {
                self.needed = needed;
                return 0;
            }
            Step::Skipped { taken } => return taken,
            Step::Request { request, taken } => {
                let mut written = 0;
                let mut direct = Direct {
                    transport: &mut self.transport,
                    is_writable: &mut self.is_writable,
                    written: &mut written,
                };
                let direct = direct.transport.is_plain().then_some(&mut direct);
                self.session
                    .request(core, &request, &bytes[..taken], direct);
                if written > 0 {
                    core.traffic().bytes_written.add(written);
                }
                taken
            }
            Step::Refused { refusal, taken } => {
                self.session.refuse(core, &refusal, &bytes[..taken]);
                taken
            }
            Step::Close(_) => {
                self.session.has_quit = true;
                return bytes.len();
            }
        };
        *left -= 1;
        self.facts.last_request.store(core.now, Ordering::Relaxed);
        core.shared.log(2, || {
            let line = bytes[..taken].split(|byte| matches!(byte, b'\r' | b'\n'));
            let line = line.into_iter().next().unwrap_or_default();
            format!("<{} {}", self.facts.number, line.escape_ascii())
        });
        taken
    }

    fn pass_gate<B: Backend>(&mut self, core: &Core<B>, step: GateStep, bytes: usize) -> usize {
        let traffic = core.traffic();
        match step {
            GateStep::More => {
                self.needed = bytes + 1;
                0
            }
            GateStep::Admitted { taken } => {
                traffic.auth_cmds.count();
                self.gate = None;
                reply::answer(self.session.replies.tail(), Answer::Stored);
                taken
            }
            GateStep::Refused { error, taken } => {
                traffic.auth_cmds.count();
                traffic.auth_errors.count();
                reply::error(self.session.replies.tail(), error);
                taken
            }
            GateStep::Close => {
                self.session.has_quit = true;
                bytes
            }
        }
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
                    self.moved = core.now;
                    self.session.replies.note_sent(length);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_broken = true,
            }
        }
    }
}
