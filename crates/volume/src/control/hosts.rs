//! Sessions to the hosts: connecting, noticing death, connecting again.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::{Address, Endpoint, Error, FAILURE_TIMEOUT, Incoming, Opener, Result, Time};
use cenote_pool::control::{Request, Window};
use cenote_pool::injected_faults::{InjectedFault, is_injected};
use cenote_pool::placement::{Candidate, Site};

use super::books::Listing;
use super::dialer::{Link, spoken};
use super::endpoints::Equipped;
use super::ownership::Ownership;
use super::reach::AWAITED_MAX;
use super::{Control, pool_window};
use crate::directory::{HostIndex, Session};

/// A host of the cluster file, with its text parsed.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// For people.
    pub name: String,
    /// Where it listens.
    pub address: Address,
    /// Failure domain; hosts that fail together share it.
    pub domain: String,
    /// Power domain, where it is known.
    pub power: Option<String>,
    /// Gets no new slab.
    pub retired: bool,
    /// Whether slabs are asked of it.
    pub lends: bool,
}

/// One host as the control thread sees it.
pub(super) struct Host {
    pub config: HostConfig,
    pub domain: u32,
    pub power: Option<u32>,
    state: State,
    /// Whether more may have come than was taken; the descriptor does not tell.
    pub is_unread: bool,
    pub slabs_free: u32,
    pub slabs_total: u32,
    /// What it says that this client holds there.
    pub listing: Listing,
    ping_sent: Option<Time>,
    pub ownership: Ownership,
    /// It has said that another process takes its place, with all its slabs, before this.
    pub returns_until: Time,
    /// Until then it is given no slab to rebuild: it could not reach the sources.
    pub no_repairs_until: Time,
    sequence: u64,
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

/// What comes back from a thread that connects.
pub(super) enum Arrival {
    /// The end of an attempt to reach a host.
    Host(HostIndex, Result<Equipped>),
    /// The end of an attempt to open an endpoint for a new worker.
    Endpoint {
        session: Session,
        worker: usize,
        endpoint: Result<Box<dyn Endpoint>>,
    },
}

/// Pause between attempts to reach a host that is down.
const RECONNECT: Duration = Duration::from_millis(500);

/// The same of a host that is being replaced: its stripes take no writes meanwhile.
pub(super) const RECONNECT_RETURNING: Duration = Duration::from_millis(25);

impl Host {
    pub fn table(configs: Vec<HostConfig>, now: Time) -> Vec<Self> {
        let (mut domains, mut powers) = (Vec::new(), Vec::new());
        let make = |config: HostConfig| {
            let power = config.power.as_deref();
            Self {
                domain: number_of(&config.domain, &mut domains),
                power: power.map(|power| number_of(power, &mut powers)),
                config,
                state: State::Down { retry_at: now },
                is_unread: false,
                slabs_free: 0,
                slabs_total: 0,
                listing: Listing::default(),
                ping_sent: None,
                ownership: Ownership::Unknown { ask_at: Time(0) },
                returns_until: Time(0),
                no_repairs_until: Time(0),
                sequence: 0,
                lost_at: None,
                is_gone: false,
                complaint: String::new(),
            }
        };
        configs.into_iter().map(make).collect()
    }

    /// Where it is.
    pub fn site(&self) -> Site {
        Site {
            domain: self.domain,
            power: self.power,
            retired: self.config.retired || !self.config.lends,
        }
    }

    pub fn session(&self) -> Option<Session> {
        match self.state {
            State::Up { session, .. } => Some(session),
            _ => None,
        }
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
            State::Up { connection, .. } => connection.attach(super::fabric_window(window)).is_ok(),
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

    /// Whether it owes an answer for longer than the failure timeout.
    pub fn is_silent(&self, now: Time) -> bool {
        self.ping_sent
            .is_some_and(|sent| now.since(sent) > FAILURE_TIMEOUT)
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

    /// Whether the process that takes its place is waited for, or still to come.
    pub fn is_being_replaced(&self, now: Time) -> bool {
        now < self.returns_until
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    pub fn hang_up(&mut self) {
        self.state = State::Down { retry_at: Time(0) };
    }
}

/// Whether an attempt to connect tells that no process listens at the address.
fn is_nobody_there(error: &Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error, Error::Os { source, .. } if matches!(source.kind(), ConnectionRefused | NotFound))
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

impl Control {
    /// Hosts that may be asked for a slab now.
    pub(super) fn candidates(&self, now: Time) -> Vec<Candidate> {
        let usable = |host: &Host| {
            let is_ours = host.ownership == Ownership::Owned;
            let stays = host.config.lends && !host.config.retired && !host.is_silent(now);
            host.is_up() && is_ours && stays && host.slabs_free > 0
        };
        let all = self.hosts.iter().enumerate();
        let all = all
            .filter(|(_, host)| usable(host))
            .map(|(index, host)| Candidate {
                host: index,
                domain: host.domain,
                slabs_free: host.slabs_free,
                slabs_total: host.slabs_total,
            })
            .collect();
        self.avoid_excluded(all)
    }

    /// Takes over a new connection to a host, of which every worker has an endpoint.
    pub(super) fn link_up(&mut self, index: HostIndex, equipped: Equipped) {
        let Equipped { link, endpoints } = equipped;
        if link.slab_bytes < self.slab_bytes && self.hosts[index].config.lends {
            tracing::warn!(host = %self.hosts[index].config.name, theirs = link.slab_bytes, ours = self.slab_bytes,
                "host lends smaller slabs than this volume uses; it is left out");
            self.hosts[index].state = State::Down {
                retry_at: self.now().after(RECONNECT * 20),
            };
            return;
        }
        self.sessions_made += 1;
        let session = Session {
            host: index,
            number: self.sessions_made,
        };
        let host = &mut self.hosts[index];
        host.state = State::Up {
            session,
            connection: link.session,
        };
        host.set_free(link.slabs_free, Some(link.slabs_total));
        host.returns_until = Time(0);
        host.ping_sent = None;
        (host.lost_at, host.is_gone) = (None, false);
        host.complaint.clear();
        for (worker, endpoint) in endpoints {
            if self.workers.contains(&worker) {
                self.core.deliver(worker, session, endpoint);
            }
        }
        self.repair_retry = Time(0);
        self.say_where(index);
        self.begin_owning(index);
    }

    /// Gives a host up: its slabs are failed first, then the connection goes.
    pub(super) fn lose(&mut self, index: HostIndex) {
        let State::Up { session, .. } = self.hosts[index].state else {
            return;
        };
        self.core.directory.fail_session(session);
        self.core.directory.set_returning(session, false);
        self.tell_loss(index);
        let (retry_at, now) = (self.retry_at(index), self.now());
        let host = &mut self.hosts[index];
        host.state = State::Down { retry_at };
        host.lost_at = Some(now);
        host.slabs_free = 0;
        host.ping_sent = None;
        host.listing.forget();
        self.wanted.forget_host(index);
        self.lose_openings(session);
        self.lose_acquires(session);
        self.lose_repairs(session);
    }

    /// Says how much cannot be read, if that is anything, after a host is gone.
    fn tell_loss(&self, index: HostIndex) {
        if self.core.backing.is_some() || self.is_opening() {
            return;
        }
        let snapshot = self.core.directory.snapshot();
        let mapped = snapshot.extents.numbered();
        let lost = mapped.filter(|(_, stripe)| stripe.as_deref().is_some_and(|s| !s.is_there()));
        let pages: u64 = lost.map(|(extent, _)| self.core.held_count(extent)).sum();
        if pages > 0 {
            let bytes = pages * crate::PAGE_BYTES as u64;
            tracing::error!(host = %self.hosts[index].config.name, lost_bytes = bytes,
                "more hosts are gone than the volume's scheme bears: what they held is lost unless they come back with it");
        }
    }

    /// Acts on failures that workers marked in the directory.
    pub(super) fn take_failures(&mut self) {
        for session in self.core.directory.take_failed() {
            if self.session_is_up(session) {
                tracing::warn!(host = %self.hosts[session.host].config.name, "data connection lost");
                self.lose(session.host);
            }
        }
        for dropped in self.core.directory.take_dropped() {
            self.lose_repair_target(dropped.extent, dropped.member);
            self.give_back(dropped.session, pool_window(&dropped.window.descriptor));
            self.repair_retry = Time(0);
        }
    }

    /// Tells a host that a slab is no longer used. The session may be another by now: a host knows its
    /// slabs by themselves. One that is not told finds out when the books are compared (`books`).
    pub(super) fn give_back(&mut self, session: Session, window: Window) {
        let host = session.host;
        if is_injected(InjectedFault::KeepSlabs) {
            return;
        }
        if self.is_record_unknown() {
            // The next owner may come to look for it.
            self.hosts[host].listing.request();
        } else if self.hosts[host].is_up() {
            self.send(host, &Request::Unmap { window });
        }
    }

    /// Pings a host, connects one that is down, gives up one that stays silent.
    pub(super) fn tend_host(&mut self, index: HostIndex, now: Time, frozen: bool) {
        let host = &mut self.hosts[index];
        match host.state {
            State::Down { retry_at } if now >= retry_at => self.connect(index),
            State::Down { .. } | State::Connecting => {}
            State::Up { .. } => {
                if frozen {
                    host.ping_sent = None;
                }
                if host.is_silent(now) && !matches!(host.config.address, Address::Shm(_)) {
                    tracing::warn!(host = %host.config.name, "host is silent");
                    return self.lose(index);
                }
                if host.ping_sent.is_none() {
                    host.ping_sent = Some(now);
                    host.sequence += 1;
                    let sequence = host.sequence;
                    self.send(index, &Request::Ping { sequence });
                }
            }
        }
    }

    fn connect(&mut self, index: HostIndex) {
        let address = self.hosts[index].config.address.clone();
        let workers = self.workers.clone();
        let arrived = self.arrival_of(index);
        let then = move |link: Result<Link>| {
            arrived(link.and_then(|link| Equipped::new(link).equip(&workers)));
        };
        let started = self
            .dialer
            .dial(address, self.hello.clone(), Box::new(then));
        self.connecting(index, started);
    }

    /// Has the dialer open the endpoints that a new connection lacks.
    fn equip(&mut self, index: HostIndex, equipped: Equipped, lacking: Vec<usize>) {
        let arrived = self.arrival_of(index);
        let started = self
            .dialer
            .run(Box::new(move || arrived(equipped.equip(&lacking))));
        self.connecting(index, started);
    }

    /// Says from any thread how reaching a host went.
    fn arrival_of(&self, index: HostIndex) -> impl FnOnce(Result<Equipped>) + Send + use<> {
        let (arrive, core) = (self.arrive.clone(), Arc::clone(&self.core));
        move |reached| {
            // The control thread may be gone; then the connection just closes.
            drop(arrive.send(Arrival::Host(index, reached)));
            core.wake.wake();
        }
    }

    fn connecting(&mut self, index: HostIndex, started: std::io::Result<()>) {
        match started {
            Ok(()) => self.hosts[index].state = State::Connecting,
            Err(error) => self.cannot_connect(index, format!("start a thread: {error}")),
        }
    }

    /// When to try to reach a host next.
    fn retry_at(&self, index: HostIndex) -> Time {
        let now = self.now();
        now.after(match self.hosts[index].is_being_replaced(now) {
            true => RECONNECT_RETURNING,
            false => RECONNECT,
        })
    }

    /// A host is about to be replaced by another process: what it holds is waited for.
    pub(super) fn on_hands_over(&mut self, index: HostIndex, back_within: Duration) {
        let now = self.now();
        let host = &mut self.hosts[index];
        let Some(session) = host.session() else {
            return;
        };
        tracing::info!(host = %host.config.name, "another process takes the host's place");
        host.returns_until = now.after(back_within.min(self.core.return_max));
        self.core.directory.set_returning(session, true);
        self.send(index, &Request::Awaits);
    }

    /// Tries to reach hosts that are being replaced, more often than others; one that was to be
    /// replaced and is still there has stayed as it was.
    pub(super) fn tend_returning(&mut self, now: Time) {
        for index in 0..self.hosts.len() {
            let host = &self.hosts[index];
            match host.session() {
                _ if host.returns_until == Time(0) => {}
                None if host.is_being_replaced(now) => self.tend_host(index, now, false),
                Some(session) if !host.is_being_replaced(now) => {
                    self.core.directory.set_returning(session, false);
                    self.hosts[index].returns_until = Time(0);
                }
                _ => {}
            }
        }
    }

    /// Whether a host that is being replaced is to be tried soon.
    pub(super) fn is_awaiting_return(&self, now: Time) -> bool {
        let awaited = |host: &Host| !host.is_up() && host.is_being_replaced(now);
        self.hosts.iter().any(awaited)
    }

    /// This process was stopped: in that time no host could have come back.
    pub(super) fn await_hosts_again(&mut self, now: Time) {
        for lost_at in self
            .hosts
            .iter_mut()
            .filter_map(|host| host.lost_at.as_mut())
        {
            *lost_at = now;
        }
    }

    fn cannot_connect(&mut self, index: HostIndex, complaint: String) {
        let retry_at = self.retry_at(index);
        let host = &mut self.hosts[index];
        host.state = State::Down { retry_at };
        if complaint != host.complaint {
            tracing::warn!(host = %host.config.name, error = complaint, "cannot connect");
            host.complaint = complaint;
        }
    }

    pub(super) fn on_arrival(&mut self, arrival: Arrival) {
        let (index, reached) = match arrival {
            Arrival::Host(index, reached) => (index, reached),
            Arrival::Endpoint {
                session,
                worker,
                endpoint,
            } => return self.on_endpoint(session, worker, endpoint),
        };
        match reached {
            Ok(equipped) => {
                // Workers may have been added while it was reached.
                let lacking = equipped.lacking(&self.workers);
                if !lacking.is_empty() {
                    return self.equip(index, equipped, lacking);
                }
                tracing::info!(host = %self.hosts[index].config.name, "connected");
                self.link_up(index, equipped);
            }
            Err(error) => {
                self.hosts[index].is_gone = is_nobody_there(&error);
                self.cannot_connect(index, error.to_string());
            }
        }
    }
}
