//! The control thread of a volume: it owns the sessions to the hosts and everything slow.
//!
//! It maps extents that workers ask for (`mapping`), notices dead hosts and connects again
//! (`hosts`), and makes stripes whole (`repair`). Workers never wait for it on the page
//! path; they park a page until the directory moves.
//!
//! Concurrency: one thread. Sessions are non-blocking; connecting (`hosts`) and opening
//! endpoints (`endpoints`) run on short-lived threads and come back through `arrivals`. Every wait is bounded by [`TICK`].

mod activity;
mod backoff;
mod books;
mod comparison;
mod dialer;
mod empty_extents;
mod endpoints;
mod fill;
mod hosts;
mod journal_record;
mod losses;
mod mapping;
mod mender;
mod ownership;
mod pace;
mod placement;
mod progress;
mod reach;
mod reclaim;
mod repair;
mod repair_fence;
mod reputation;
mod reshape;
mod restripe;
mod shutdown;
mod slab_drops;
mod slab_moves;

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::Duration;

use cenote_fabric::{ClientId, Hello, Incoming, RemoteWindow, Rights, Time, WindowDescriptor};
use cenote_fabric::{Generation, WindowId};
use cenote_pool::control::{Reply, Request, Window};
use cenote_pool::ledger::LEASE;
use cenote_pool::placement::Placement;

use crate::core::Core;
use crate::directory::{HostIndex, Session};
use crate::journal::Journal;
use crate::status::{CounterValues, HostState, VolumeStatus};
use crate::{Resilience, VolumeError};
use activity::Activity;
use endpoints::{Equipped, Opening};
use hosts::{Arrival, Host};
use journal_record::Record;
use losses::Losses;
use mapping::{Acquire, MapJob};
use mender::Mender;
use pace::Pacing;
use placement::Placer;
use reach::Reach;
use repair::Repair;
use reputation::Reputations;
use reshape::Reshaping;
use restripe::Restripe;
use shutdown::Closing;
use slab_moves::Wanted;

pub use dialer::{Dialer, Greeted, Greeting, Link, Threads, dial};
pub use hosts::HostConfig;

/// Longest the thread sleeps: pings, retries and reclaims are due at this grain.
const TICK: Duration = Duration::from_millis(250);

/// Messages taken from one host per turn: what one host sends must not hold up the others.
/// Arbitrary; a turn of this many takes well under a millisecond.
const MESSAGES_PER_TURN: usize = 64;

/// What the volume's handle asks of the control thread.
pub enum Command {
    /// Open endpoints to every connected host for a new worker, then answer.
    AddWorker {
        id: usize,
        ready: SyncSender<std::io::Result<()>>,
    },
    RemoveWorker {
        id: usize,
    },
    Status {
        reply: SyncSender<VolumeStatus>,
    },
    /// Expect something else of hosts from now on.
    Reshape(Resilience),
    /// Give every slab back and end.
    Close,
    /// End, and leave every slab to the next owner.
    Detach,
}

/// What the control thread is made of.
pub struct Parts {
    pub core: Arc<Core>,
    pub dialer: Arc<dyn Dialer>,
    pub client: ClientId,
    /// Where this process runs; 0: it does not say.
    pub machine: u128,
    pub name: String,
    pub volume: u128,
    pub slab_bytes: u64,
    pub placement: Placement,
    pub hosts: Vec<HostConfig>,
    /// Links made while the volume was opened, by host.
    pub links: Vec<(HostIndex, Link)>,
    pub commands: Receiver<Command>,
    /// Where these come from.
    pub orders: Sender<Command>,
    /// What survives the owner.
    pub journal: Option<Journal>,
    /// Told once what the journal names is taken over.
    pub opened: Option<SyncSender<Result<(), VolumeError>>>,
}

/// State of the control thread.
pub struct Control {
    core: Arc<Core>,
    dialer: Arc<dyn Dialer>,
    hello: Hello,
    machine: u128,
    volume: u128,
    slab_bytes: u64,
    hosts: Vec<Host>,
    placement: Placement,
    placer: Placer,
    workers: Vec<usize>,
    openings: Vec<Opening>,
    acquires: BTreeMap<u64, Acquire>,
    jobs: BTreeMap<usize, MapJob>,
    // Extents that were refused, and when to forget that.
    refused: Vec<(usize, Time)>,
    // Extents that are to be mapped when hosts have had time to answer again.
    postponed: Vec<(usize, Time)>,
    repairs: Vec<Repair>,
    mender: Mender,
    reshaping: Reshaping,
    restripe: Restripe,
    losses: Losses,
    pacing: Pacing,
    // Slabs that their hosts want back.
    wanted: Wanted,
    activity: Activity,
    reputations: Reputations,
    // Where the search for stripes to repair goes on.
    repair_retry: Time,
    sessions_made: u64,
    requests_made: u64,
    arrivals: Receiver<Arrival>,
    arrive: Sender<Arrival>,
    commands: Receiver<Command>,
    closing: Option<Closing>,
    record: Option<Record>,
    opening: Option<ownership::Opening>,
    // Extents that can be read while slabs of theirs are awaited, and since when.
    waits: BTreeMap<usize, Time>,
    // Extents that cannot be read while slabs of theirs are awaited.
    reach: Reach,
    ticked: Time,
}

impl Control {
    pub fn new(parts: Parts) -> Self {
        let (arrive, arrivals) = std::sync::mpsc::channel();
        let now = (parts.core.clock)();
        let hosts = Host::table(parts.hosts, now);
        let mut control = Self {
            hello: Hello {
                client: parts.client,
                name: parts.name,
            },
            reputations: Reputations::new(hosts.len(), now),
            placement: parts.placement,
            placer: Placer::new(parts.placement, parts.core.resilience().scheme(), &hosts),
            hosts,
            activity: Activity::new(&parts.core.touched, now),
            core: parts.core,
            dialer: parts.dialer,
            machine: parts.machine,
            volume: parts.volume,
            slab_bytes: parts.slab_bytes,
            workers: Vec::new(),
            openings: Vec::new(),
            acquires: BTreeMap::new(),
            jobs: BTreeMap::new(),
            refused: Vec::new(),
            postponed: Vec::new(),
            repairs: Vec::new(),
            mender: Mender::new(parts.orders),
            reshaping: Reshaping::default(),
            restripe: Restripe::default(),
            losses: Losses::default(),
            pacing: Pacing::new(now),
            wanted: Wanted::default(),
            repair_retry: Time(0),
            sessions_made: 0,
            requests_made: 0,
            arrivals,
            arrive,
            commands: parts.commands,
            closing: None,
            record: None,
            opening: None,
            waits: BTreeMap::new(),
            reach: Reach::default(),
            ticked: now,
        };
        if let Some(journal) = parts.journal {
            control.core.journaled.store(0, Ordering::Release);
            control.inherit(&journal.wanted().clone(), parts.opened);
            control.record = Some(Record::new(journal));
        }
        for (host, link) in parts.links {
            control.link_up(host, Equipped::new(link));
        }
        control
    }

    /// Runs until told to close.
    pub fn run(mut self) {
        loop {
            let ready = self.wait();
            if !self.turn(ready) {
                return;
            }
        }
    }

    /// Handles what `ready` hosts sent and all else that is due; false once the volume is closed.
    pub fn turn(&mut self, ready: Vec<HostIndex>) -> bool {
        self.core.wake.clear();
        if self.closing.is_some() {
            return self.is_still_closing(ready);
        }
        for host in ready {
            self.receive(host);
        }
        while let Ok(arrival) = self.arrivals.try_recv() {
            self.on_arrival(arrival);
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Close => {
                    self.begin_closing();
                    return self.is_still_closing(Vec::new());
                }
                Command::Detach => {
                    self.record();
                    return false;
                }
                command => self.on_command(command),
            }
        }
        self.take_failures();
        for extent in self.core.take_wanted() {
            self.start_mapping(extent);
        }
        let now = self.now();
        if now.since(self.ticked) >= TICK {
            self.tick(now);
        }
        self.tend_returning(now);
        self.tend_pace(now);
        self.tend_mending();
        self.step_repairs();
        self.step_restripe();
        if self.is_opening() && self.acquires.is_empty() {
            self.tend_owning(now);
        }
        self.record();
        true
    }

    /// Hosts that may have sent something.
    pub fn connected(&self) -> Vec<HostIndex> {
        let hosts = self.hosts.iter().enumerate();
        hosts
            .filter(|(_, host)| host.is_up())
            .map(|(index, _)| index)
            .collect()
    }

    /// How long it may sleep when nothing arrives.
    pub fn patience(&self) -> Duration {
        if self.hosts.iter().any(|host| host.is_unread) {
            Duration::ZERO
        } else if self.is_draining() || self.is_mending() {
            repair::DRAIN_POLL
        } else if self.is_awaiting_return(self.now()) {
            hosts::RECONNECT_RETURNING
        } else if let Some(until) = self
            .pauses_until()
            .into_iter()
            .chain(self.crosses_at())
            .min()
        {
            until.since(self.now()).clamp(repair::DRAIN_POLL, TICK)
        } else {
            TICK
        }
    }

    fn now(&self) -> Time {
        (self.core.clock)()
    }

    /// Sleeps until a session, a waker or a timer wants attention; returns hosts with arrivals.
    fn wait(&self) -> Vec<HostIndex> {
        let mut fds = vec![poll_fd(Some(self.core.wake.fd()), false)];
        let mut hosts = Vec::with_capacity(self.hosts.len());
        for (index, host) in self.hosts.iter().enumerate() {
            if let Some((fd, wants_write)) = host.interest() {
                fds.push(poll_fd(fd, wants_write));
                hosts.push(index);
            }
        }
        let is_unread = |host: &HostIndex| self.hosts[*host].is_unread;
        let timeout = self.patience();
        let spec = libc::timespec {
            tv_sec: 0,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // A wait that fails (a signal came) shows no arrivals; the next turn waits again.
        // SAFETY: `fds` and `spec` are valid for the call; no signal mask is given.
        unsafe {
            libc::ppoll(
                fds.as_mut_ptr(),
                fds.len() as libc::nfds_t,
                &raw const spec,
                std::ptr::null(),
            )
        };
        hosts
            .into_iter()
            .zip(&fds[1..])
            // A session without a descriptor cannot say that something arrived: look.
            .filter(|(host, fd)| fd.revents != 0 || fd.fd < 0 || is_unread(host))
            .map(|(host, _)| host)
            .collect()
    }

    /// Handles what a host sent, up to [`MESSAGES_PER_TURN`].
    fn receive(&mut self, host: HostIndex) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.hosts[host].receive() {
                Ok(Some(Incoming::Message(bytes))) => match Reply::decode(&bytes) {
                    Ok(reply) => self.on_reply(host, reply),
                    Err(malformed) => {
                        tracing::warn!(host = %self.hosts[host].config.name, %malformed, "host sent a malformed reply");
                        return self.lose(host);
                    }
                },
                Ok(Some(Incoming::Attached(descriptor, window))) => {
                    self.on_attached(host, descriptor, window)
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(host = %self.hosts[host].config.name, %error, "lost host");
                    return self.lose(host);
                }
            }
        }
        self.retake(host);
    }

    fn on_reply(&mut self, host: HostIndex, reply: Reply) {
        match reply {
            Reply::Free {
                slabs_total,
                slabs_free,
                ..
            } => self.hosts[host].set_free(slabs_free, Some(slabs_total)),
            Reply::Pong { slabs_free, .. } => self.hosts[host].on_pong(slabs_free),
            Reply::Mapped { request, window } => self.on_mapped(host, request, window),
            Reply::Refused { request, reason } => self.on_refused(host, request, reason),
            Reply::Owned { request, .. } => self.on_owned(host, request),
            Reply::Filled { request, result } => self.on_filled(host, request, result),
            Reply::Reclaim { bytes } => self.on_reclaim(host, bytes),
            Reply::HandsOver { back_within_ms } => {
                self.on_hands_over(host, Duration::from_millis(back_within_ms.into()));
            }
            Reply::Evict { windows } => self.on_evict(host, &windows),
            Reply::CheckActivity { request, windows } => {
                self.on_check_activity(host, request, &windows)
            }
            Reply::Held { skip, slabs } => self.on_held(host, skip, &slabs),
            Reply::Unmapped { window } => self.on_unmapped(host, window),
            // A host under notice asks for its slabs as well, which moves them.
            Reply::Status(_) | Reply::Notice { .. } => {}
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::AddWorker { id, ready } => self.add_worker(id, ready),
            Command::RemoveWorker { id } => self.remove_worker(id),
            Command::Status { reply } => {
                if reply.send(self.status()).is_err() {
                    tracing::debug!("nobody waits for the status");
                }
            }
            Command::Reshape(resilience) => {
                self.begin_reshaping(resilience);
                self.core.restripe_orders.note_obeyed();
            }
            Command::Close | Command::Detach => unreachable!("they end the turn"),
        }
    }

    fn tick(&mut self, now: Time) {
        // A gap means that this process was stopped: what the hosts owe may wait in the sockets.
        let stopped_for = now.since(self.ticked);
        let frozen = stopped_for > TICK * 3;
        if frozen {
            self.begin_waits_again(now);
        }
        self.ticked = now;
        if stopped_for > LEASE / 2 {
            // Hosts may have given up on it: nothing but a verb on a slab that is gone would tell, and
            // parities would be missed only when they are needed.
            self.compare_all_books();
        }
        self.tend_books();
        for host in 0..self.hosts.len() {
            self.tend_host(host, now, frozen);
        }
        self.tend_acquires(now);
        self.tend_activity(now);
        self.tend_reputations(now);
        self.tend_owning(now);
        let core = Arc::clone(&self.core);
        self.refused.retain(|&(extent, until)| {
            let over = now >= until;
            if over {
                core.mapping_ended(extent, crate::core::Mapping::Idle);
            }
            !over
        });
        self.map_postponed(now);
        self.map_again(now);
        let is_kept = self.core.mapped_ahead.load(Ordering::Acquire) && !self.is_restriping();
        if self.core.discarded.swap(false, Ordering::AcqRel) && !is_kept {
            self.unmap_empty();
        }
    }

    /// Sends a request to a host; a host that cannot take it is lost.
    fn send(&mut self, host: HostIndex, request: &Request) -> bool {
        let sent = self.hosts[host].send(request);
        if !sent {
            self.lose(host);
        }
        sent
    }

    fn next_request(&mut self) -> u64 {
        self.requests_made += 1;
        self.requests_made
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn shared(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slab_bytes
    }

    pub(crate) fn host_name(&self, host: HostIndex) -> String {
        self.hosts[host].config.name.clone()
    }

    pub(crate) fn host_states(&self) -> Vec<HostState> {
        let state = |(index, host): (usize, &Host)| HostState {
            name: host.config.name.clone(),
            connected: host.is_up() && !self.is_returning(index),
            slabs_free: host.slabs_free,
            reputation: self.reputation(index),
            wrong_splits: self.core.integrity.wrong_splits(index),
        };
        self.hosts.iter().enumerate().map(state).collect()
    }

    pub(crate) fn counter_values(&self) -> CounterValues {
        let counters = &self.core.counters;
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CounterValues {
            pages_read: value(&counters.pages_read),
            pages_written: value(&counters.pages_written),
            writes_early: value(&counters.writes_early),
            pages_decoded: value(&counters.pages_decoded),
            reads_repeated: value(&counters.reads_repeated),
            requests_failed: value(&counters.requests_failed),
            rebuilt_bytes: value(&counters.rebuilt_bytes),
            slabs_rebuilt: value(&counters.slabs_rebuilt),
            slabs_moved: value(&counters.slabs_moved),
            pages_moved: value(&counters.pages_moved),
            slabs_dropped: value(&counters.slabs_dropped),
            extents_reclaimed: value(&counters.extents_reclaimed),
            reclaims_heard: self.core.spare.offers(),
        }
    }

    fn session_is_up(&self, session: Session) -> bool {
        self.hosts[session.host].session() == Some(session)
    }
}

/// An entry for `poll`, which skips one without a descriptor.
fn poll_fd(fd: Option<RawFd>, wants_write: bool) -> libc::pollfd {
    let events = libc::POLLIN | if wants_write { libc::POLLOUT } else { 0 };
    libc::pollfd {
        fd: fd.unwrap_or(-1),
        events,
        revents: 0,
    }
}

/// The pool's form of the fabric's window descriptor.
fn pool_window(descriptor: &WindowDescriptor) -> Window {
    Window {
        id: descriptor.id.0,
        generation: descriptor.generation.0,
        len_bytes: descriptor.len_bytes,
        rights: descriptor.rights.0,
    }
}

/// The fabric's form of the pool's window.
fn fabric_window(window: Window) -> WindowDescriptor {
    WindowDescriptor {
        id: WindowId(window.id),
        generation: Generation(window.generation),
        len_bytes: window.len_bytes,
        rights: Rights(window.rights),
    }
}

/// A slab that a host granted and this client attached.
struct Granted {
    session: Session,
    window: RemoteWindow,
}
