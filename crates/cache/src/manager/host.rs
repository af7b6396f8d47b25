//! One host as the manager is connected to it.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

use cenote_fabric::calls::CallerOpener;
use cenote_fabric::{Error, FAILURE_TIMEOUT, Incoming, Result, Session, Time};
use cenote_pool::control::{HeldList, HeldSlab, Page, Request, VERSION};

use crate::links::HostConfig;

/// Pause between attempts to reach a host that is down.
const RECONNECT: Duration = Duration::from_millis(500);

/// The same, of one whose place another process is taking: that is a matter of a moment.
const RECONNECT_RETURNING: Duration = Duration::from_millis(25);

/// Longest that one is waited for whose place another process takes, whatever it says.
const RETURN_MAX: Duration = Duration::from_secs(10);

/// Between two signs of life.
const PING: Duration = Duration::from_millis(250);

/// Messages that are with a host at once, besides pings. Its answer to a ping comes behind all that
/// was sent before, and a late one is taken for its end. Arbitrary.
const UNHEARD_MAX: u64 = 1024;

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

/// What a part of a host's books came to.
pub enum Listed {
    /// There is more to come, or nobody asked.
    More,
    /// More than any host has.
    TooMany,
    /// All that it holds: it is up from now on.
    First(Vec<HeldSlab>),
    /// All that it holds, asked for while it was up.
    Again(Vec<HeldSlab>),
}

/// A host, and the session to it.
pub struct HostLink {
    pub config: HostConfig,
    pub state: State,
    pub slabs_free: u32,
    listing: HeldList,
    /// What it is to be sent once it has heard what it was sent before.
    backlog: VecDeque<Vec<u8>>,
    /// Messages that this session sent, besides pings.
    sent: u64,
    /// Of these, when the last ping went out.
    sent_before_ping: u64,
    /// Of these, what it has heard, as it answered a later ping.
    heard: u64,
    ping_sent: Option<Time>,
    ping_at: Time,
    sequence: u64,
    /// Another process takes its place by then, with all that it lends.
    returns_until: Time,
    /// It said whom the cache belongs to, or could not be reached.
    pub was_tried: bool,
}

impl HostLink {
    pub fn new(config: HostConfig) -> Self {
        Self {
            config,
            state: State::Down { retry_at: Time(0) },
            slabs_free: 0,
            listing: HeldList::default(),
            backlog: VecDeque::new(),
            sent: 0,
            sent_before_ping: 0,
            heard: 0,
            ping_sent: None,
            ping_at: Time(0),
            sequence: 0,
            returns_until: Time(0),
            was_tried: false,
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
        self.listing.request();
        self.ask_for_list();
    }

    fn ask_for_list(&mut self) {
        if let Some(skip) = self.listing.begin() {
            self.send(&Request::Held { skip });
        }
    }

    /// A part of its books.
    pub fn take_listing(&mut self, skip: u32, slabs: &[HeldSlab]) -> Listed {
        let page = self.listing.handle_page(skip, slabs);
        self.ask_for_list();
        let held = match page {
            Page::Next(skip) => {
                self.send(&Request::Held { skip });
                return Listed::More;
            }
            Page::Void => return Listed::More,
            Page::TooMany => return Listed::TooMany,
            Page::Whole(held) => held,
        };
        match std::mem::replace(&mut self.state, State::Dialling) {
            State::Greeting(session) => {
                self.state = State::Up(session);
                Listed::First(held)
            }
            other => {
                self.state = other;
                Listed::Again(held)
            }
        }
    }

    /// Asks for the books once more, of a host that is up. Grants that are on their way count as
    /// held by then, for messages keep their order.
    pub fn compare_again(&mut self) {
        if self.is_up() || !self.listing.is_idle() {
            self.begin_listing();
        }
    }

    /// A window was granted or renewed: what was listed of it before is out of date.
    pub fn note_mapped(&mut self) {
        self.listing.note_changed();
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    pub fn caller_opener(&self) -> Option<CallerOpener> {
        match &self.state {
            State::Up(session) => Some(session.caller_opener()),
            _ => None,
        }
    }

    /// Another process is about to take its place, with all that it lends: that is waited for.
    pub fn await_return(&mut self, now: Time, back_within: Duration) {
        self.returns_until = now.after(back_within.min(RETURN_MAX));
        // Where that is lost with the session the host waits a second for it, and goes then.
        self.send(&Request::Awaits);
    }

    /// Whether nobody at its address means that its next process is not there yet.
    pub fn is_returning(&self, now: Time) -> bool {
        now < self.returns_until
    }

    /// When it is to be dialled, where that is sooner than the next tick.
    pub fn due(&self, now: Time) -> Option<Time> {
        match self.state {
            State::Down { retry_at } if self.is_returning(now) => Some(retry_at),
            _ => None,
        }
    }

    pub fn go_down(&mut self, now: Time) {
        let pause = match self.is_returning(now) {
            true => RECONNECT_RETURNING,
            false => RECONNECT,
        };
        self.state = State::Down {
            retry_at: now.after(pause),
        };
        self.ping_sent = None;
        self.backlog.clear();
        self.heard = self.sent;
        self.listing.forget();
    }

    /// Its connection ended. It is looked for at once: a process that has ended is told from one that is
    /// out of reach, and what was there is then known to be lost.
    pub fn lose(&mut self, now: Time) {
        let was_up = self.is_up();
        self.go_down(now);
        if was_up {
            self.state = State::Down { retry_at: now };
        }
    }

    /// It is of no use to this cache; asked again much later.
    pub fn leave_out(&mut self, now: Time) {
        self.go_down(now);
        self.state = State::Down {
            retry_at: now.after(RECONNECT * 60),
        };
    }

    /// It is not the cache's any more: nobody looks for it.
    pub fn put_aside(&mut self) {
        self.go_down(Time(0));
        self.state = State::Down {
            retry_at: Time(u64::MAX),
        };
    }

    pub fn is_put_aside(&self) -> bool {
        matches!(self.state, State::Down { retry_at } if retry_at == Time(u64::MAX))
    }

    /// It is the cache's again.
    pub fn take_in(&mut self, now: Time) {
        if let State::Down { retry_at } = &mut self.state {
            *retry_at = now.min(*retry_at);
        }
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
        let is_due = now >= self.ping_at || !self.backlog.is_empty();
        if is_connected && self.ping_sent.is_none() && is_due {
            self.ping_at = now.after(PING);
            self.sequence += 1;
            let sequence = self.sequence;
            let ping = self.encode(&Request::Ping { sequence });
            // If it is dead, the next receive finds that.
            if ping.is_some_and(|ping| self.send_now(&ping).is_ok()) {
                self.ping_sent = Some(now);
                self.sent_before_ping = self.sent;
            }
        }
    }

    /// A ping was answered, and all that was sent before it was heard.
    pub fn note_pong(&mut self, slabs_free: u32) {
        self.ping_sent = None;
        self.slabs_free = slabs_free;
        self.heard = self.sent_before_ping;
        while let Some(next) = self.backlog.pop_front() {
            if !self.takes_more() || self.send_now(&next).is_err() {
                // If it is dead, the next receive finds that.
                return self.backlog.push_front(next);
            }
            self.sent += 1;
        }
    }

    fn takes_more(&self) -> bool {
        self.sent - self.heard < UNHEARD_MAX
    }

    /// Whether it has heard all that it was to be told.
    pub fn has_heard_all(&self) -> bool {
        self.backlog.is_empty() && self.heard == self.sent
    }

    pub fn receive(&mut self) -> Result<Option<Incoming>> {
        match &mut self.state {
            State::Up(session) | State::Greeting(session) => session.receive(),
            State::Down { .. } | State::Dialling => Ok(None),
        }
    }

    /// Sends a message now, or as soon as the host has heard enough of those before. False: the
    /// session is dead, or too old for it.
    pub fn send(&mut self, request: &Request) -> bool {
        let Some(bytes) = self.encode(request) else {
            return false;
        };
        if self.backlog.is_empty() && self.takes_more() {
            match self.send_now(&bytes) {
                Ok(()) => {
                    self.sent += 1;
                    return true;
                }
                Err(Error::Bound(_)) => {}
                Err(_) => return false,
            }
        }
        self.backlog.push_back(bytes);
        true
    }

    /// `None`: there is no session, or one that does not know such messages.
    fn encode(&self, request: &Request) -> Option<Vec<u8>> {
        let (State::Up(session) | State::Greeting(session)) = &self.state else {
            return None;
        };
        let spoken = u8::try_from(session.version()).map_or(VERSION, |v| v.min(VERSION));
        if request.since() > spoken {
            return None;
        }
        let mut bytes = Vec::with_capacity(64);
        request.encode_as(spoken, &mut bytes);
        Some(bytes)
    }

    fn send_now(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.state {
            State::Up(session) | State::Greeting(session) => session.send(bytes),
            State::Down { .. } | State::Dialling => Err(Error::Closed),
        }
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
