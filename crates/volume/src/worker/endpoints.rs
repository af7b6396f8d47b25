//! A worker's endpoints, one per host, and the one descriptor that wakes it for all of them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use cenote_fabric::{Batch, CompletionQueue, Endpoint, Time, Token};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use crate::directory::{HostIndex, Session};

/// The endpoints of one worker.
pub(super) struct Endpoints {
    endpoints: Vec<Option<HostEndpoint>>,
    // Hosts with verbs that were posted but perhaps not sent.
    dirty: Vec<HostIndex>,
    // Hosts to hear next.
    ready: Vec<HostIndex>,
    // Makes the system calls of several endpoints in one; there is one once a endpoint has any to make.
    batch: Option<Batch>,
    epoll: OwnedFd,
    // Endpoints of replaced sessions that still owe completions.
    retired: Vec<HostEndpoint>,
    // Hosts in the order in which verbs were last sent to them.
    flushed: Vec<HostIndex>,
    swept: Time,
    waits: u64,
    // What rings when a disk queue has ended something.
    disk: Option<RawFd>,
    // Whether endpoints with a descriptor to wait for were adopted, and others.
    some_watched: bool,
    some_unwatched: bool,
}

struct HostEndpoint {
    session: Session,
    endpoint: Box<dyn Endpoint>,
    // What the epoll set watches for it; an endpoint with a full socket names another one.
    watched: Option<RawFd>,
    dirty: bool,
    ready: bool,
    completes_at_once: bool,
}

/// In place of a host's index in the epoll set.
const DISK: u64 = u64::MAX;

/// Sends remembered for choosing whom to wait for; only the newest matter.
const FLUSHED_MAX: usize = 256;

/// Outstanding verbs are checked for the failure timeout at least this often.
const SWEEP: Duration = Duration::from_millis(50);

impl Endpoints {
    pub fn new(host_count: usize) -> io::Result<Self> {
        // SAFETY: epoll_create1 takes no pointers; the result is checked before it is owned.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and is owned by nobody else.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            endpoints: (0..host_count).map(|_| None).collect(),
            dirty: Vec::with_capacity(host_count),
            ready: Vec::with_capacity(host_count),
            batch: None,
            epoll,
            retired: Vec::new(),
            flushed: Vec::with_capacity(FLUSHED_MAX),
            swept: Time(0),
            waits: 0,
            disk: None,
            some_watched: false,
            some_unwatched: false,
        })
    }

    /// Drops every endpoint: nothing of theirs lands any more.
    pub fn close(&mut self) {
        self.endpoints
            .iter_mut()
            .for_each(|to_host| *to_host = None);
        self.retired.clear();
        self.dirty.clear();
        self.ready.clear();
    }

    /// Readable when some endpoint would make progress.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Has the set watch what rings when a disk queue has ended something.
    pub fn watch_disk(&mut self, bell: RawFd) {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: DISK,
        };
        // SAFETY: both descriptors are open and `event` is valid for the call.
        unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, bell, &raw mut event) };
        self.some_watched = true;
        self.disk = Some(bell);
    }

    /// What rang is looked at in every turn: here only the bell is silenced.
    fn hush_disk(&self) {
        let Some(bell) = self.disk else { return };
        let mut count = 0_u64;
        // SAFETY: `count` is valid for 8 bytes; the bell is the volume's, which outlives its workers.
        unsafe { libc::read(bell, (&raw mut count).cast(), 8) };
    }

    /// Takes over a new session's endpoint. An older one goes when it owes nothing more: every
    /// verb completes, or its operation would hold its page and its epoch for ever.
    pub fn adopt(&mut self, session: Session, mut endpoint: Box<dyn Endpoint>) {
        if self.batch.is_none() && endpoint.wire().is_some() {
            self.batch = Some(Batch::new());
        }
        let epoll = self.epoll.as_raw_fd();
        let slot = &mut self.endpoints[session.host];
        if slot
            .as_ref()
            .is_some_and(|to_host| to_host.session.number > session.number)
        {
            return;
        }
        if let Some(mut old) = slot
            .take()
            .filter(|to_host| to_host.endpoint.outstanding() > 0)
        {
            old.watch(epoll, None);
            if !is_injected(InjectedFault::ForgetInFlight) {
                self.retired.push(old);
            }
        }
        let completes_at_once = endpoint.completes_at_once();
        let fd = endpoint.fd();
        self.some_watched |= fd.is_some();
        self.some_unwatched |= fd.is_none();
        let mut to_host = HostEndpoint {
            session,
            endpoint,
            watched: None,
            dirty: false,
            ready: false,
            completes_at_once,
        };
        to_host.watch(epoll, fd);
        *slot = Some(to_host);
    }

    /// The endpoint of exactly this session, and whether its verbs complete at once.
    #[inline]
    pub fn get(&mut self, session: Session) -> Option<(&mut dyn Endpoint, bool)> {
        let to_host = self.endpoints[session.host]
            .as_mut()
            .filter(|to_host| to_host.session == session)?;
        if !to_host.dirty && !to_host.completes_at_once {
            to_host.dirty = true;
            self.dirty.push(session.host);
        }
        Some((&mut *to_host.endpoint, to_host.completes_at_once))
    }

    /// The host's endpoint, to look at or to give hints.
    #[inline]
    pub fn look(&self, session: Session) -> Option<&dyn Endpoint> {
        self.endpoints[session.host]
            .as_ref()
            .map(|to_host| &*to_host.endpoint)
    }

    /// Has nothing land any more of a verb that was posted on this session.
    pub fn revoke(&mut self, session: Session, token: Token) {
        let current = self.endpoints[session.host].iter_mut();
        let mut endpoints = current.chain(&mut self.retired);
        // Gone: all its verbs have completed.
        if let Some(to_host) = endpoints.find(|to_host| to_host.session == session) {
            to_host.endpoint.revoke_landing(token);
        }
    }

    /// Sends everything posted since the last flush.
    pub fn flush(&mut self, queue: &mut CompletionQueue) {
        let batch = self.batch.as_mut().filter(|batch| batch.is_on());
        let is_batched = batch.is_some() && self.dirty.len() > 1;
        if let Some(batch) = batch.filter(|_| is_batched) {
            let dirty = self
                .endpoints
                .iter_mut()
                .flatten()
                .filter(|to_host| to_host.dirty);
            batch.flush(dirty.map(|to_host| &mut *to_host.endpoint), queue);
            // In the order in which they were sent to: the last one is waited for.
            self.dirty.sort_unstable();
        }
        for host in self.dirty.drain(..) {
            if let Some(to_host) = &mut self.endpoints[host] {
                to_host.dirty = false;
                if !is_batched {
                    to_host.endpoint.flush(queue);
                }
                to_host.watch_own(self.epoll.as_raw_fd());
                if self.flushed.len() == FLUSHED_MAX {
                    self.flushed.clear();
                }
                self.flushed.push(host);
            }
        }
    }

    /// Waits up to `timeout` for the host that was sent to last, then hears all that owe something.
    ///
    /// One wake-up where waiting for any of them gives one each: hosts answer within
    /// microseconds of each other, and a wake-up costs more than that. For a caller that
    /// needs every answer anyway, or nearly: one that does not says after how long (`patience`) any
    /// host will do, since the one waited for may be the slow one.
    pub fn wait(
        &mut self,
        timeout: Duration,
        patience: Duration,
        clock: fn() -> Time,
        queue: &mut CompletionQueue,
    ) -> Vec<Session> {
        let owes = |to_host: &Option<HostEndpoint>| {
            to_host
                .as_ref()
                .is_some_and(|to_host| to_host.endpoint.outstanding() > 0)
        };
        while self
            .flushed
            .last()
            .is_some_and(|&host| !owes(&self.endpoints[host]))
        {
            self.flushed.pop();
        }
        let last = self
            .flushed
            .last()
            .and_then(|&host| self.endpoints[host].as_ref()?.endpoint.fd());
        let Some(fd) = last else {
            return self.poll(timeout, clock, queue);
        };
        let mut fd = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let limit = timeout.min(SWEEP).min(patience);
        let limit_spec = libc::timespec {
            tv_sec: 0,
            tv_nsec: limit.subsec_nanos().into(),
        };
        const { assert!(SWEEP.as_secs() == 0, "the limit has no seconds") };
        self.waits += 1;
        // SAFETY: `fd` is one valid entry and `limit_spec` a valid time for the duration of the
        // call; no mask is given.
        let ready = unsafe { libc::ppoll(&raw mut fd, 1, &raw const limit_spec, std::ptr::null()) };
        if ready == 0 && limit == patience && patience < timeout {
            return self.poll(timeout, clock, queue);
        }
        let now = clock();
        let mut dead = Vec::new();
        for at in 0..self.flushed.len() {
            let host = self.flushed[at];
            if owes(&self.endpoints[host]) {
                self.mark_ready(host);
            }
        }
        self.poll_ready(now, queue, &mut dead);
        self.sweep(now, queue, &mut dead);
        dead
    }

    /// Verbs posted and not completed, over all endpoints.
    pub fn outstanding(&self) -> usize {
        let endpoints = self.endpoints.iter().flatten().chain(&self.retired);
        endpoints
            .map(|to_host| to_host.endpoint.outstanding())
            .sum()
    }

    /// Waits up to `timeout` for arrivals and handles them; returns the sessions found dead.
    pub fn poll(
        &mut self,
        timeout: Duration,
        clock: fn() -> Time,
        queue: &mut CompletionQueue,
    ) -> Vec<Session> {
        const EVENTS_MAX: usize = 64;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let mut dead = Vec::new();
        if self.some_unwatched {
            let now = clock();
            self.poll_unwatched(now, queue, &mut dead);
            if !self.some_watched && timeout.is_zero() {
                self.sweep(now, queue, &mut dead);
                return dead;
            }
        }
        self.waits += 1;
        // SAFETY: `events` has room for EVENTS_MAX entries and outlives the call.
        let ready =
            unsafe { libc::epoll_wait(self.fd(), events.as_mut_ptr(), EVENTS_MAX as i32, millis) };
        let now = clock();
        for event in &events[..usize::try_from(ready).unwrap_or(0)] {
            if event.u64 == DISK {
                self.hush_disk();
                continue;
            }
            let host = usize::try_from(event.u64).expect("a host index went in");
            self.mark_ready(host);
        }
        self.poll_ready(now, queue, &mut dead);
        self.sweep(now, queue, &mut dead);
        dead
    }

    /// Has [`Endpoints::poll_ready`] hear this host.
    fn mark_ready(&mut self, host: HostIndex) {
        if let Some(to_host) = self.endpoints[host]
            .as_mut()
            .filter(|to_host| !to_host.ready)
        {
            to_host.ready = true;
            self.ready.push(host);
        }
    }

    /// Hears the hosts that are marked.
    fn poll_ready(&mut self, now: Time, queue: &mut CompletionQueue, dead: &mut Vec<Session>) {
        let batch = self.batch.as_mut().filter(|batch| batch.is_on());
        let is_batched = batch.is_some() && self.ready.len() > 1;
        if let Some(batch) = batch.filter(|_| is_batched) {
            let ready = self
                .endpoints
                .iter_mut()
                .flatten()
                .filter(|to_host| to_host.ready);
            batch.poll(ready.map(|to_host| &mut *to_host.endpoint), now, queue);
        }
        for at in 0..self.ready.len() {
            let host = self.ready[at];
            if let Some(to_host) = &mut self.endpoints[host] {
                to_host.ready = false;
                if !is_batched {
                    to_host.endpoint.poll(now, queue);
                }
                self.settle_lane(host, dead);
            }
        }
        self.ready.clear();
    }

    /// Looks at every endpoint that has no descriptor to wait for.
    fn poll_unwatched(&mut self, now: Time, queue: &mut CompletionQueue, dead: &mut Vec<Session>) {
        for host in 0..self.endpoints.len() {
            let is_unwatched = |to_host: &HostEndpoint| to_host.watched.is_none();
            if self.endpoints[host].as_ref().is_some_and(is_unwatched) {
                self.poll_lane(host, now, queue, dead);
            }
        }
    }

    /// Looks at every endpoint when the last time is long ago.
    fn sweep(&mut self, now: Time, queue: &mut CompletionQueue, dead: &mut Vec<Session>) {
        if now.since(self.swept) >= SWEEP {
            self.swept = now;
            for host in 0..self.endpoints.len() {
                self.poll_lane(host, now, queue, dead);
            }
            self.retired.retain_mut(|to_host| {
                to_host.endpoint.flush(queue);
                to_host.endpoint.poll(now, queue);
                to_host.endpoint.outstanding() > 0
            });
        }
    }

    fn poll_lane(
        &mut self,
        host: HostIndex,
        now: Time,
        queue: &mut CompletionQueue,
        dead: &mut Vec<Session>,
    ) {
        let Some(to_host) = &mut self.endpoints[host] else {
            return;
        };
        to_host.endpoint.poll(now, queue);
        self.settle_lane(host, dead);
    }

    /// Watches what the endpoint names after it was heard, or drops it when it is over.
    fn settle_lane(&mut self, host: HostIndex, dead: &mut Vec<Session>) {
        let Some(to_host) = &mut self.endpoints[host] else {
            return;
        };
        to_host.watch_own(self.epoll.as_raw_fd());
        if to_host.endpoint.is_dead() && to_host.endpoint.outstanding() == 0 {
            dead.push(to_host.session);
            self.endpoints[host] = None;
        }
    }

    /// System calls made on the data path so far, waits included.
    pub fn system_calls(&self) -> u64 {
        let endpoints = self.endpoints.iter().flatten().chain(&self.retired);
        let batched = self.batch.as_ref().map_or(0, Batch::system_calls);
        self.waits
            + batched
            + endpoints
                .map(|to_host| to_host.endpoint.system_calls())
                .sum::<u64>()
    }
}

impl HostEndpoint {
    /// Has the epoll set watch the descriptor that the endpoint names now.
    #[inline]
    fn watch_own(&mut self, epoll: RawFd) {
        let wanted = self.endpoint.fd();
        if wanted != self.watched {
            self.watch(epoll, wanted);
        }
    }

    fn watch(&mut self, epoll: RawFd, wanted: Option<RawFd>) {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: self.session.host as u64,
        };
        if let Some(old) = self.watched {
            // SAFETY: `event` is valid for the call; a descriptor that is gone is an error without effect.
            unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, old, &raw mut event) };
        }
        if let Some(new) = wanted {
            // SAFETY: both descriptors are open and `event` is valid for the call.
            unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, new, &raw mut event) };
        }
        self.watched = wanted;
    }
}
