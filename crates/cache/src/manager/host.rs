//! One host as the manager is connected to it.

use std::os::fd::RawFd;
use std::time::Duration;

use cenote_fabric::{Error, FAILURE_TIMEOUT, Incoming, Result, Session, Time};
use cenote_pool::control::{HELD_SLABS_MAX, HeldSlab, Request, VERSION};

use crate::links::HostConfig;

/// Pause between attempts to reach a host that is down.
const RECONNECT: Duration = Duration::from_millis(500);

/// Between two signs of life.
const PING: Duration = Duration::from_millis(250);

/// Whether it is connected, and how far the books are compared.
pub enum State {
    Down {
        retry_at: Time,
    },
    Dialling,
    /// Nothing is asked of it before it has said what it holds.
    Greeting(Box<dyn Session>),
    Up(Box<dyn Session>),
}

/// A host, and the session to it.
pub struct HostLink {
    pub config: HostConfig,
    pub state: State,
    pub slabs_free: u32,
    held: Vec<HeldSlab>,
    ping_sent: Option<Time>,
    ping_at: Time,
    sequence: u64,
}

impl HostLink {
    pub fn new(config: HostConfig) -> Self {
        Self {
            config,
            state: State::Down { retry_at: Time(0) },
            slabs_free: 0,
            held: Vec::new(),
            ping_sent: None,
            ping_at: Time(0),
            sequence: 0,
        }
    }

    pub fn begin(&mut self, session: Box<dyn Session>, own: &Request, now: Time) {
        self.state = State::Greeting(session);
        self.ping_at = now;
        self.ping_sent = None;
        let is_sent = self.send(&Request::Query) && self.send(own);
        if !is_sent {
            self.go_down(now);
        }
    }

    pub fn begin_listing(&mut self) {
        self.held.clear();
        self.send(&Request::Held { skip: 0 });
    }

    /// All that it holds, once the last part came. Parts that nobody asked for are left aside.
    pub fn take_listing(&mut self, skip: u32, slabs: &[HeldSlab]) -> Option<Vec<HeldSlab>> {
        if skip as usize != self.held.len() {
            return None;
        }
        self.held.extend_from_slice(slabs);
        if slabs.len() >= HELD_SLABS_MAX {
            let skip = u32::try_from(self.held.len()).ok()?;
            self.send(&Request::Held { skip });
            return None;
        }
        let state = std::mem::replace(&mut self.state, State::Dialling);
        self.state = match state {
            State::Greeting(session) => State::Up(session),
            other => other,
        };
        Some(std::mem::take(&mut self.held))
    }

    /// Asks for the books once more, of a host that is up. Grants that are on their way count as held
    /// by then, for messages keep their order.
    pub fn compare_again(&mut self) {
        if self.is_up() && self.held.is_empty() {
            self.send(&Request::Held { skip: 0 });
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    pub fn go_down(&mut self, now: Time) {
        self.state = State::Down {
            retry_at: now.after(RECONNECT),
        };
        self.ping_sent = None;
        self.held.clear();
    }

    /// It is of no use to this cache; asked again much later.
    pub fn leave_out(&mut self, now: Time) {
        self.state = State::Down {
            retry_at: now.after(RECONNECT * 60),
        };
    }

    pub fn is_to_be_dialled(&self, now: Time) -> bool {
        matches!(self.state, State::Down { retry_at } if now >= retry_at)
    }

    pub fn is_silent(&self, now: Time) -> bool {
        let is_over = |sent: Time| now.since(sent) > FAILURE_TIMEOUT;
        self.ping_sent.is_some_and(is_over)
    }

    pub fn ping(&mut self, now: Time) {
        let is_connected = matches!(self.state, State::Up(_) | State::Greeting(_));
        if is_connected && self.ping_sent.is_none() && now >= self.ping_at {
            self.ping_sent = Some(now);
            self.ping_at = now.after(PING);
            self.sequence += 1;
            let sequence = self.sequence;
            if !self.send(&Request::Ping { sequence }) {
                // The next receive finds it dead.
                self.ping_sent = None;
            }
        }
    }

    pub fn note_pong(&mut self, slabs_free: u32) {
        self.ping_sent = None;
        self.slabs_free = slabs_free;
    }

    pub fn receive(&mut self) -> Result<Option<Incoming>> {
        match &mut self.state {
            State::Up(session) | State::Greeting(session) => session.receive(),
            State::Down { .. } | State::Dialling => Ok(None),
        }
    }

    /// False: the session is dead, or takes no more.
    pub fn send(&mut self, request: &Request) -> bool {
        let (State::Up(session) | State::Greeting(session)) = &mut self.state else {
            return false;
        };
        let spoken = u8::try_from(session.version()).map_or(VERSION, |v| v.min(VERSION));
        if request.since() > spoken {
            return false;
        }
        let mut bytes = Vec::with_capacity(64);
        request.encode_as(spoken, &mut bytes);
        session.send(&bytes).is_ok()
    }

    pub fn interest(&self) -> Option<(RawFd, bool)> {
        match &self.state {
            State::Up(session) | State::Greeting(session) => {
                Some((session.fd()?, session.wants_write()))
            }
            State::Down { .. } | State::Dialling => None,
        }
    }
}

/// Whether an attempt to connect tells that no process listens at the address.
pub fn is_nobody_there(error: &Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error, Error::Os { source, .. } if matches!(source.kind(), ConnectionRefused | NotFound))
}
