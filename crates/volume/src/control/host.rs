//! One host as the control thread sees it: how far the connection is, and what is known of the host.

use std::os::fd::RawFd;
use std::time::Duration;

use cenote_fabric::{Address, Error, FAILURE_TIMEOUT, Incoming, Opener, Result, Time};
use cenote_pool::control::{HeldList, Request, Window};
use cenote_pool::placement::Site;

use super::dialer::{Link, spoken};
use super::ownership::Ownership;
use crate::config::HostConfig;
use crate::directory::Session;

/// Longest that requests wait for hosts that do not answer: what Linux gives a SCSI command.
pub(super) const AWAITED_MAX: Duration = Duration::from_secs(30);

/// One host, connected or not.
pub(in crate::control) struct Host {
    pub config: HostConfig,
    pub site: Site,
    state: State,
    /// Whether more may have come than was taken; the descriptor does not tell.
    pub is_unread: bool,
    pub slabs_free: u32,
    pub slabs_total: u32,
    /// What it says that this client holds there.
    pub listing: HeldList,
    ping_sent: Option<Time>,
    pub ownership: Ownership,
    /// It has said that another process takes its place, with all its slabs, before this.
    returns_until: Time,
    /// Until then it is given no slab to rebuild: it could not reach the sources.
    pub no_repairs_until: Time,
    pings: u64,
    // When its last connection went; `None`: there was none.
    lost_at: Option<Time>,
    // Whether nothing listened at its address when it was last tried: its process has ended.
    is_gone: bool,
    // Why the last connection could not be made; logged once per reason.
    complaint: String,
}

enum State {
    Down {
        retry_at: Time,
    },
    Connecting,
    Up {
        session: Session,
        connection: Box<dyn cenote_fabric::Session>,
    },
}

/// What is due for a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::control) enum Due {
    Nothing,
    /// It is to be connected to.
    Connect,
    /// It is to be asked whether it is there.
    Ping {
        sequence: u64,
    },
    /// It owes an answer for too long.
    GiveUp,
}

impl Host {
    pub fn table(configs: Vec<HostConfig>, now: Time) -> Vec<Self> {
        let (mut domains, mut powers) = (Vec::new(), Vec::new());
        let make = |config: HostConfig| {
            let power = config.power.as_deref();
            Self {
                site: Site {
                    domain: number_of(&config.domain, &mut domains),
                    power: power.map(|power| number_of(power, &mut powers)),
                    retired: config.retired || !config.lends,
                },
                config,
                state: State::Down { retry_at: now },
                is_unread: false,
                slabs_free: 0,
                slabs_total: 0,
                listing: HeldList::default(),
                ping_sent: None,
                ownership: Ownership::Unknown { ask_at: Time(0) },
                returns_until: Time(0),
                no_repairs_until: Time(0),
                pings: 0,
                lost_at: None,
                is_gone: false,
                complaint: String::new(),
            }
        };
        configs.into_iter().map(make).collect()
    }

    pub fn session(&self) -> Option<Session> {
        match self.state {
            State::Up { session, .. } => Some(session),
            _ => None,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Descriptor to poll and whether for writing too; `None` while not connected.
    pub fn interest(&self) -> Option<(Option<RawFd>, bool)> {
        match &self.state {
            State::Up { connection, .. } => Some((connection.fd(), connection.wants_write())),
            _ => None,
        }
    }

    /// What opens endpoints of the session that is up.
    pub fn opener(&self) -> Option<(Session, Opener)> {
        match &self.state {
            State::Up {
                session,
                connection,
            } => Some((*session, connection.opener())),
            _ => None,
        }
    }

    pub fn receive(&mut self) -> Result<Option<Incoming>> {
        let received = match &mut self.state {
            State::Up { connection, .. } => connection.receive(),
            _ => Ok(None),
        };
        self.is_unread = matches!(received, Ok(Some(_)));
        received
    }

    /// Whether the version agreed with it has this request. One that is not connected is asked
    /// when it is.
    pub fn understands(&self, request: &Request) -> bool {
        match &self.state {
            State::Up { connection, .. } => request.since() <= spoken(&**connection),
            _ => true,
        }
    }

    /// Whether it is connected in this version of the messages or a newer one.
    pub fn speaks(&self, version: u8) -> bool {
        matches!(&self.state, State::Up { connection, .. } if spoken(&**connection) >= version)
    }

    /// False when it cannot take the request: then its connection is of no use any more.
    pub fn send(&mut self, request: &Request) -> bool {
        let State::Up { connection, .. } = &mut self.state else {
            return false;
        };
        let mut bytes = Vec::with_capacity(64);
        request.encode_as(spoken(&**connection), &mut bytes);
        connection.send(&bytes).is_ok()
    }

    pub fn attach(&mut self, window: Window) -> bool {
        match &mut self.state {
            State::Up { connection, .. } => connection.attach(window.into()).is_ok(),
            _ => false,
        }
    }

    pub fn set_free(&mut self, slabs_free: u32, slabs_total: Option<u32>) {
        self.slabs_free = slabs_free;
        self.slabs_total = slabs_total.unwrap_or(self.slabs_total);
    }

    pub fn on_pong(&mut self, slabs_free: u32) {
        self.slabs_free = slabs_free;
        self.ping_sent = None;
    }

    /// It is connected.
    pub fn on_up(&mut self, session: Session, link: Link) {
        self.state = State::Up {
            session,
            connection: link.session,
        };
        self.set_free(link.slabs_free, Some(link.slabs_total));
        self.returns_until = Time(0);
        self.ping_sent = None;
        (self.lost_at, self.is_gone) = (None, false);
        self.complaint.clear();
    }

    /// Its connection is of no use any more.
    pub fn on_lost(&mut self, now: Time, retry_at: Time) {
        self.state = State::Down { retry_at };
        self.lost_at = Some(now);
        self.slabs_free = 0;
        self.ping_sent = None;
        self.listing.forget();
    }

    /// Somebody is at connecting.
    pub fn on_connecting(&mut self) {
        self.state = State::Connecting;
    }

    /// It could not be connected to.
    pub fn on_unreached(&mut self, complaint: String, retry_at: Time) {
        self.state = State::Down { retry_at };
        if complaint != self.complaint {
            tracing::warn!(host = %self.config.name, error = complaint, "cannot connect");
            self.complaint = complaint;
        }
    }

    /// Why it could not be connected to may tell that it has ended.
    pub fn note_refusal(&mut self, error: &Error) {
        self.is_gone = error.is_nobody_there();
    }

    /// It is of no use until then.
    pub fn leave_out(&mut self, retry_at: Time) {
        self.state = State::Down { retry_at };
    }

    /// What is due now; `frozen`: this process was stopped, and its answers may wait in the socket.
    pub fn tend(&mut self, now: Time, frozen: bool) -> Due {
        match self.state {
            State::Down { retry_at } if now >= retry_at => Due::Connect,
            State::Down { .. } | State::Connecting => Due::Nothing,
            State::Up { .. } => {
                if frozen {
                    self.ping_sent = None;
                }
                if self.is_silent(now) && !matches!(self.config.address, Address::Shm(_)) {
                    return Due::GiveUp;
                }
                if self.ping_sent.is_some() {
                    return Due::Nothing;
                }
                self.ping_sent = Some(now);
                self.pings += 1;
                Due::Ping {
                    sequence: self.pings,
                }
            }
        }
    }

    /// Whether it owes an answer for longer than the failure timeout.
    pub fn is_silent(&self, now: Time) -> bool {
        self.ping_sent
            .is_some_and(|sent| now.since(sent) > FAILURE_TIMEOUT)
    }

    /// Whether it is there to answer.
    pub fn answers(&self, now: Time) -> bool {
        self.is_up() && !self.is_silent(now)
    }

    /// Whether this is the request that waits for its answer.
    pub fn is_asked_to_own(&self, request: u64) -> bool {
        self.ownership == Ownership::Asked { request }
    }

    /// Whether nothing listens at its address.
    pub fn has_ended(&self) -> bool {
        self.is_gone && !self.is_up()
    }

    /// Whether what it holds may be in reach again soon: it is silent, or its connection broke, and nothing
    /// says that its process has ended. After [`AWAITED_MAX`] it is another matter.
    pub fn is_awaited(&self, now: Time) -> bool {
        let is_recent = |since: Time| now.since(since) < AWAITED_MAX;
        match self.state {
            State::Up { .. } => self.ping_sent.is_none_or(is_recent),
            _ if self.is_being_replaced(now) => true,
            _ => !self.is_gone && self.lost_at.is_some_and(is_recent),
        }
    }

    /// This process was stopped: in that time it could not have come back.
    pub fn await_again(&mut self, now: Time) {
        self.lost_at = self.lost_at.map(|_| now);
    }

    /// Another process takes its place before then.
    pub fn await_replacement(&mut self, until: Time) {
        self.returns_until = until;
    }

    /// Whether the process that takes its place is waited for, or still to come.
    pub fn is_being_replaced(&self, now: Time) -> bool {
        now < self.returns_until
    }

    /// It was to be replaced, and has stayed as it was: its session, once.
    pub fn end_replacement(&mut self, now: Time) -> Option<Session> {
        let session = self.session()?;
        let has_stayed = self.returns_until != Time(0) && !self.is_being_replaced(now);
        has_stayed.then(|| {
            self.returns_until = Time(0);
            session
        })
    }

    /// It was to be replaced, and nobody has come in its place: said once.
    pub fn is_overdue(&mut self, now: Time) -> bool {
        let is_over = self.returns_until != Time(0) && !self.is_being_replaced(now);
        let is_overdue = is_over && !self.is_up();
        if is_overdue {
            self.returns_until = Time(0);
        }
        is_overdue
    }

    pub fn hang_up(&mut self) {
        self.state = State::Down { retry_at: Time(0) };
    }
}

/// The number of a name among those that are known, which it then is.
fn number_of(name: &str, known: &mut Vec<String>) -> u32 {
    let at = known.iter().position(|other| other == name);
    let at = at.unwrap_or_else(|| {
        known.push(name.to_owned());
        known.len() - 1
    });
    u32::try_from(at).expect("at most 4096 hosts")
}
