//! Sessions to the hosts: connecting, noticing death, connecting again; and workers' endpoints of them.
//!
//! A host is lost at once: its slabs are failed in the directory, then the connection goes. Who else
//! had something of it learns so from [`Hosts::take_lost`], when whatever noticed it has ended.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use cenote_fabric::{Endpoint, Error, FAILURE_TIMEOUT, Hello, Opener, Result, Time};
use cenote_pool::control::{Request, Window};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::Parts;
use super::dialer::{Dialer, Link};
use super::host::{Due, Host};
use super::openings::{Equipped, Newcomer, Openings, answer};
use super::ownership::Ownership;
use super::recorder::Recorder;
use crate::core::Core;
use crate::directory::{HostIndex, Session};

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

/// All hosts, by their index in the cluster file, and the workers that have endpoints of them.
pub(super) struct Hosts {
    core: Arc<Core>,
    dialer: Arc<dyn Dialer>,
    hello: Hello,
    machine: u128,
    slab_bytes: u64,
    table: Vec<Host>,
    workers: Vec<usize>,
    openings: Openings,
    arrive: Sender<Arrival>,
    sessions_made: u64,
    requests_made: u64,
    // Sessions that went, of which others have not been told yet.
    lost: Vec<Session>,
}

/// Pause between attempts to reach a host that is down.
const RECONNECT: Duration = Duration::from_millis(500);

/// The same of a host that is being replaced: its stripes take no writes meanwhile.
pub(super) const RECONNECT_RETURNING: Duration = Duration::from_millis(25);

/// Threads that open endpoints for one new worker: a silent host holds up only its share.
const OPENERS_MAX: usize = 64;

impl Hosts {
    pub fn new(parts: &mut Parts, arrive: Sender<Arrival>, now: Time) -> Self {
        Self {
            core: Arc::clone(&parts.core),
            dialer: Arc::clone(&parts.dialer),
            hello: Hello {
                client: parts.client,
                name: std::mem::take(&mut parts.name),
            },
            machine: parts.machine,
            slab_bytes: parts.slab_bytes,
            table: Host::table(std::mem::take(&mut parts.hosts), now),
            workers: Vec::new(),
            openings: Openings::default(),
            arrive,
            sessions_made: 0,
            requests_made: 0,
            lost: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Host> {
        self.table.iter()
    }

    pub fn name(&self, index: HostIndex) -> &str {
        &self.table[index].config.name
    }

    /// What hosts call this volume.
    pub fn volume_name(&self) -> &str {
        &self.hello.name
    }

    pub fn slab_bytes(&self) -> u64 {
        self.slab_bytes
    }

    pub fn now(&self) -> Time {
        (self.core.clock)()
    }

    /// Hosts that may have sent something.
    pub fn connected(&self) -> Vec<HostIndex> {
        let hosts = self.table.iter().enumerate();
        hosts
            .filter(|(_, host)| host.is_up())
            .map(|(index, _)| index)
            .collect()
    }

    pub fn session_is_up(&self, session: Session) -> bool {
        self.table[session.host].session() == Some(session)
    }

    /// Sends a request to a host; a host that cannot take it is lost.
    pub fn send(&mut self, index: HostIndex, request: &Request) -> bool {
        let sent = self.table[index].send(request);
        if !sent {
            self.lose(index);
        }
        sent
    }

    /// The number of a request that is about to be made.
    pub fn next_request(&mut self) -> u64 {
        self.next_requests(1)
    }

    /// The first of so many numbers.
    pub fn next_requests(&mut self, count: u64) -> u64 {
        let first = self.requests_made + 1;
        self.requests_made += count;
        first
    }

    /// Requests made so far.
    pub fn requests_made(&self) -> u64 {
        self.requests_made
    }

    /// Tells a host that a slab is no longer used. The session may be another by now: a host knows its
    /// slabs by themselves. One that is not told finds out when the books are compared (`books`).
    pub fn give_back(&mut self, recorder: &Recorder, session: Session, window: Window) {
        if is_injected(InjectedFault::KeepSlabs) {
            return;
        }
        let host = session.host;
        if recorder.is_unknown() {
            // The next owner may come to look for it.
            self.table[host].listing.request();
        } else if self.table[host].is_up() {
            self.send(host, &Request::Unmap { window });
        }
    }

    /// A connection to a host broke: it is given up, and who reads logs hears of it.
    pub fn note_lost(&mut self, index: HostIndex, error: &dyn std::fmt::Display) {
        let host = self.name(index);
        match self.is_being_replaced(index) {
            true => tracing::info!(%host, "the host's process has ended"),
            false => tracing::warn!(%host, %error, "lost host"),
        }
        self.lose(index);
    }

    /// Gives a host up: its slabs are failed first, then the connection goes.
    pub fn lose(&mut self, index: HostIndex) {
        let Some(session) = self.table[index].session() else {
            return;
        };
        self.core.directory.fail_session(session);
        self.core.directory.set_returning(session, false);
        let (now, retry_at) = (self.now(), self.retry_at(index));
        self.table[index].on_lost(now, retry_at);
        self.openings.lose(session);
        self.lost.push(session);
    }

    /// A session that went since the last call.
    pub fn take_lost(&mut self) -> Option<Session> {
        self.lost.pop()
    }

    /// Takes over a new connection to a host, of which every worker has an endpoint; whether it is of use.
    pub fn link_up(&mut self, index: HostIndex, equipped: Equipped) -> bool {
        let Equipped { link, endpoints } = equipped;
        let now = self.now();
        let host = &mut self.table[index];
        if link.slab_bytes < self.slab_bytes && host.config.lends {
            tracing::warn!(host = %host.config.name, theirs = link.slab_bytes, ours = self.slab_bytes,
                "host lends smaller slabs than this volume uses; it is left out");
            host.leave_out(now.after(RECONNECT * 20));
            return false;
        }
        self.sessions_made += 1;
        let session = Session {
            host: index,
            number: self.sessions_made,
        };
        host.on_up(session, link);
        for (worker, endpoint) in endpoints {
            if self.workers.contains(&worker) {
                self.core.mailboxes.deliver(worker, session, endpoint);
            }
        }
        self.say_where(index);
        true
    }

    /// Pings a host, connects one that is down, gives up one that stays silent.
    pub fn tend(&mut self, index: HostIndex, now: Time, frozen: bool) {
        match self.table[index].tend(now, frozen) {
            Due::Nothing => {}
            Due::Connect => self.connect(index),
            Due::Ping { sequence } => {
                self.send(index, &Request::Ping { sequence });
            }
            Due::GiveUp => {
                tracing::warn!(host = %self.name(index), "host is silent");
                self.lose(index);
            }
        }
    }

    fn connect(&mut self, index: HostIndex) {
        let address = self.table[index].config.address.clone();
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
            Ok(()) => self.table[index].on_connecting(),
            Err(error) => self.cannot_connect(index, format!("start a thread: {error}")),
        }
    }

    /// When to try to reach a host next.
    fn retry_at(&self, index: HostIndex) -> Time {
        let now = self.now();
        now.after(match self.table[index].is_being_replaced(now) {
            true => RECONNECT_RETURNING,
            false => RECONNECT,
        })
    }

    fn cannot_connect(&mut self, index: HostIndex, complaint: String) {
        let retry_at = self.retry_at(index);
        self.table[index].on_unreached(complaint, retry_at);
    }

    /// What a thread that connects has come to. The host whose connection is ready to be taken over.
    pub fn on_arrival(&mut self, arrival: Arrival) -> Option<(HostIndex, Equipped)> {
        let (index, reached) = match arrival {
            Arrival::Host(index, reached) => (index, reached),
            Arrival::Endpoint {
                session,
                worker,
                endpoint,
            } => {
                self.on_endpoint(session, worker, endpoint);
                return None;
            }
        };
        match reached {
            Ok(equipped) => {
                // Workers may have been added while it was reached.
                let lacking = equipped.lacking(&self.workers);
                if lacking.is_empty() {
                    tracing::info!(host = %self.name(index), "connected");
                    return Some((index, equipped));
                }
                self.equip(index, equipped, lacking);
            }
            Err(error) => {
                self.table[index].note_refusal(&error);
                self.cannot_connect(index, error.to_string());
            }
        }
        None
    }

    /// A host is about to be replaced by another process: what it holds is waited for.
    pub fn on_hands_over(&mut self, index: HostIndex, back_within: Duration) {
        let until = self
            .now()
            .after(back_within.min(self.core.limits.return_max));
        let host = &mut self.table[index];
        let Some(session) = host.session() else {
            return;
        };
        tracing::info!(host = %host.config.name, "another process takes the host's place");
        host.await_replacement(until);
        self.core.directory.set_returning(session, true);
        self.send(index, &Request::Awaits);
    }

    /// Tries to reach hosts that are being replaced, more often than others; one that was to be
    /// replaced and is still there has stayed as it was. Those in whose place nobody has come in time.
    pub fn tend_returning(&mut self, now: Time) -> Vec<HostIndex> {
        let mut overdue = Vec::new();
        for index in 0..self.table.len() {
            let host = &mut self.table[index];
            if let Some(session) = host.end_replacement(now) {
                self.core.directory.set_returning(session, false);
            } else if !host.is_up() && host.is_being_replaced(now) {
                self.tend(index, now, false);
            } else if self.table[index].is_overdue(now) {
                overdue.push(index);
            }
        }
        overdue
    }

    /// Whether another process is about to take a host's place.
    pub fn is_being_replaced(&self, index: HostIndex) -> bool {
        self.table[index].is_being_replaced(self.now())
    }

    /// Whether a host that is being replaced is to be tried soon.
    pub fn is_awaiting_return(&self) -> bool {
        let now = self.now();
        let awaited = |host: &Host| !host.is_up() && host.is_being_replaced(now);
        self.table.iter().any(awaited)
    }

    /// This process was stopped: in that time no host could have come back.
    pub fn await_again(&mut self, now: Time) {
        self.table.iter_mut().for_each(|host| host.await_again(now));
    }

    /// Says where this client runs, and what it could reclaim. A host of an earlier version
    /// does not ask and is not told.
    pub fn say_where(&mut self, index: HostIndex) {
        let here = Request::Here {
            machine: self.machine,
            away_bytes: self.core.limits.spare.away_bytes(),
        };
        if self.machine != 0 && self.table[index].understands(&here) {
            self.send(index, &here);
        }
    }

    /// Asks a host what this client holds there, if it can be asked.
    pub fn compare_books(&mut self, index: HostIndex) {
        self.table[index].listing.request();
        self.ask_for_list(index);
    }

    /// Asks every host.
    pub fn compare_all_books(&mut self) {
        for index in self.connected() {
            self.compare_books(index);
        }
    }

    /// Asks the hosts that could not be asked before.
    pub fn tend_books(&mut self) {
        for index in self.connected() {
            self.ask_for_list(index);
        }
    }

    fn ask_for_list(&mut self, index: HostIndex) {
        let host = &mut self.table[index];
        let is_ours = host.ownership == Ownership::Owned;
        if !host.is_up() || !is_ours || !host.understands(&Request::Held { skip: 0 }) {
            return;
        }
        if let Some(skip) = host.listing.begin() {
            self.send(index, &Request::Held { skip });
        }
    }

    /// Opens endpoints to every connected host for a new worker, then answers.
    pub fn add_worker(&mut self, worker: usize, ready: Newcomer) {
        self.workers.push(worker);
        let waits = Arc::new(ready);
        let mut wanted: Vec<(Session, Opener)> =
            self.table.iter().filter_map(Host::opener).collect();
        let sessions = wanted.iter().map(|&(session, _)| session);
        self.openings.begin(worker, sessions, &waits);
        let share = wanted.len().div_ceil(OPENERS_MAX).max(1);
        while !wanted.is_empty() {
            let some = wanted.split_off(wanted.len().saturating_sub(share));
            if let Err(error) = self.open(worker, some) {
                // Only this worker suffers from it, and no host.
                self.remove_worker(worker);
                return answer(waits, Err(error));
            }
        }
        answer(waits, Ok(()));
    }

    /// Forgets a worker, and what is under way for it.
    pub fn remove_worker(&mut self, worker: usize) {
        self.workers.retain(|&known| known != worker);
        self.openings.forget(worker);
        drop(self.core.mailboxes.collect(worker));
    }

    fn open(&self, worker: usize, wanted: Vec<(Session, Opener)>) -> std::io::Result<()> {
        let (arrive, core) = (self.arrive.clone(), Arc::clone(&self.core));
        let work = move || {
            for (session, open) in wanted {
                let endpoint = open(FAILURE_TIMEOUT);
                // The control thread may be gone; then the connection just closes.
                drop(arrive.send(Arrival::Endpoint {
                    session,
                    worker,
                    endpoint,
                }));
                core.wake.wake();
            }
        };
        self.dialer.run(Box::new(work))
    }

    fn on_endpoint(
        &mut self,
        session: Session,
        worker: usize,
        endpoint: Result<Box<dyn Endpoint>>,
    ) {
        match endpoint {
            Ok(endpoint) => {
                // Else the worker or the session is gone.
                if let Some(waits) = self.openings.end(session, worker) {
                    self.core.mailboxes.deliver(worker, session, endpoint);
                    answer(waits, Ok(()));
                }
            }
            Err(error) => {
                let Some(waits) = self.openings.end(session, worker) else {
                    return;
                };
                if let Some(shortage) = shortage(&error) {
                    // Only this worker suffers from it, and no host.
                    self.remove_worker(worker);
                    return answer(waits, Err(shortage));
                }
                tracing::warn!(host = %self.name(session.host), %error, "no data connection");
                self.lose(session.host);
                answer(waits, Ok(()));
            }
        }
    }
}

/// The system's answer, if this machine has no descriptor or no memory left for a connection.
pub(super) fn shortage(error: &Error) -> Option<std::io::Error> {
    let Error::Os { source, .. } = error else {
        return None;
    };
    let number = source.raw_os_error()?;
    let is_shortage = matches!(
        number,
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN
    );
    is_shortage.then(|| std::io::Error::from_raw_os_error(number))
}

impl Index<HostIndex> for Hosts {
    type Output = Host;

    fn index(&self, index: HostIndex) -> &Host {
        &self.table[index]
    }
}

impl IndexMut<HostIndex> for Hosts {
    fn index_mut(&mut self, index: HostIndex) -> &mut Host {
        &mut self.table[index]
    }
}
