//! How a host leaves: drained, or with another process in its place that has its slabs.
//!
//! A handover is the ledger's book and the memfds of all lent slabs. Who holds some is told first,
//! so that it waits for them and rebuilds nothing (decision 57). Nothing is stopped for it:
//! then the process is replaced (exec) or ends, whatever was under way to it fails at its
//! client as it would if the connection broke, and what was acknowledged is in the memory that
//! is handed over. Mappings of clients stay as they are.
//!
//! Invariant: the windows of the next process have the names that those of this one had.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cenote_fabric::{
    Address, Generation, HostPort, PeerId, Region, Rights, Time, WindowDescriptor, WindowId,
};
use cenote_pool::control::{Drain, EVICT_WINDOWS_MAX, Reply, Window};
use cenote_pool::ledger::Handover;

use super::{Daemon, Memory};
use crate::keeper::Job as KeeperJob;
use crate::machine::Machine;
use crate::side_thread::SideThread;
use crate::{Config, Error, Result};

/// Why a host ended its loop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// It was told to.
    Stopped,
    /// It was drained, and was to end then.
    Drained,
    /// Another process is to take its place; everything is as it was.
    Upgrade,
}

/// What a process gets from the one before it; empty when there was none.
#[derive(Debug, Default)]
pub struct Inheritance {
    /// What [`Daemon::handover`] gave; empty: nothing.
    pub state: Vec<u8>,
    /// Copies of the descriptors that it gave, in their order.
    pub memory: Vec<OwnedFd>,
}

/// What a host that is to leave knows of it.
#[derive(Default)]
pub(super) struct Leaving {
    /// Whether another process is wanted in its place.
    pub upgrade: Arc<AtomicBool>,
    /// Who asked for that. The end of their connections is what they wait for.
    pub askers: BTreeSet<u128>,
    /// While clients are told of it.
    farewell: Option<Farewell>,
    /// Whether to leave everything as it is when told to stop.
    pub keeps: bool,
    /// Whether to end once drained.
    stops: bool,
    /// How long clients have to take their bytes away when it is told to stop.
    grace: Duration,
    /// When the machine goes, drained or not.
    goes_at: Option<Time>,
    /// Whether somebody was told that it is drained.
    pub is_told: bool,
    drained_at: Option<Time>,
    /// What traces have of a drain that goes on.
    drain_span: Option<tracing::Span>,
}

impl Leaving {
    /// As the process before left it: an order to stop, and the end of the machine, are still meant.
    pub fn inherit(handover: &Handover, now: Time) -> Self {
        Self {
            stops: handover.stops,
            goes_at: handover.goes_in.map(|within| now.after(within)),
            ..Self::default()
        }
    }
}

/// Clients are told that another process is about to take this one's place.
struct Farewell {
    until: Time,
    told: BTreeSet<PeerId>,
    /// Those of them that have not said that they wait for it.
    unanswered: BTreeSet<u128>,
}

/// How long clients have to say that they wait: those that do not lose a rebuild, no more.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long they are to wait. Replacing a process takes a fraction of a second; meanwhile they
/// acknowledge no write of what it holds.
const RETURN: Duration = Duration::from_secs(5);

/// How long a drained host that is to stop waits until somebody has asked how it is.
const TELL: Duration = Duration::from_secs(5);

impl Daemon {
    /// Set it, and wake the host, to have [`Daemon::run`] end with [`End::Upgrade`].
    #[must_use]
    pub fn upgrade_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.leaving.upgrade)
    }

    /// Whether [`Daemon::run`] leaves lent memory as it is when it is told to stop, for a
    /// [`Daemon::handover`]; otherwise it is given back.
    pub fn keep_memory_at_stop(&mut self, keep: bool) {
        self.leaving.keeps = keep;
    }

    /// Whether [`Daemon::run`], told to stop, tells its clients first and goes on for as long, or until
    /// nobody holds anything.
    pub fn set_grace(&mut self, grace: Duration) {
        self.leaving.grace = grace;
    }

    /// The machine is taken back after `within`: clients are told, and asked for what they hold.
    pub(crate) fn give_notice(&mut self, within: Duration) {
        let now = (self.clock)();
        self.leaving.goes_at = Some(now.after(within));
        tracing::warn!(?within, "this machine is taken back");
        // Before it asks for slabs: who moves them knows by then how much time there is.
        self.tell_notice();
        self.drain(self.elapsed(), Drain::Stop);
    }

    /// Tells every client that is there how much time is left.
    pub(super) fn tell_notice(&mut self) {
        if self.leaving.goes_at.is_some() {
            let notice = self.notice();
            self.tell_all(&notice);
        }
    }

    /// Tells who begins to own something how it stands: what it heard in an earlier session may have been
    /// withdrawn since.
    pub(super) fn say_notice(&mut self, client: u128) {
        let notice = self.notice();
        if self.version(client) >= notice.since() {
            self.send(client, &notice);
        }
    }

    fn notice(&self) -> Reply {
        let within_ms = self.leaving.goes_at.map_or(0, |goes_at| {
            let left = goes_at.since((self.clock)());
            u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
        });
        Reply::Notice { within_ms }
    }

    fn tell_all(&mut self, reply: &Reply) {
        let clients: Vec<u128> = self.peers.keys().copied().collect();
        for client in clients {
            if self.version(client) >= reply.since() {
                self.send(client, reply);
            }
        }
    }

    /// Whether a host that was told to stop has to end now. It gives notice first, once.
    pub(super) fn has_ended_grace(&mut self) -> bool {
        let now = (self.clock)();
        let latest = now.after(self.leaving.grace);
        if self.leaving.goes_at.is_none_or(|goes_at| goes_at > latest) {
            if self.leaving.grace.is_zero() {
                return true;
            }
            self.give_notice(self.leaving.grace);
        }
        self.is_past_notice() || self.ledger.is_drained()
    }

    /// Whether its machine was to be gone by now.
    pub(super) fn is_past_notice(&self) -> bool {
        let now = (self.clock)();
        self.leaving.goes_at.is_some_and(|goes_at| now >= goes_at)
    }

    /// When the machine goes, if somebody said so.
    pub(super) fn goes_at(&self) -> Option<Time> {
        self.leaving.goes_at
    }

    /// What the next process of this host is to have, as an [`Inheritance`].
    #[must_use]
    pub fn handover(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let now = (self.clock)();
        let goes_at = self.leaving.goes_at;
        let handover = Handover {
            slab_bytes: self.config.slab_bytes,
            addresses: self.addresses().iter().map(ToString::to_string).collect(),
            counters: self.all_counters(),
            stops: self.leaving.stops,
            goes_in: goes_at.map(|goes_at| goes_at.since(now)),
            ..self.ledger.handover(self.elapsed())
        };
        let memory = handover.slabs.iter().map(|slab| {
            let index = self.ledger.find(slab.client, slab.held.window);
            let memory = index.and_then(|index| self.memory[index as usize].as_ref());
            memory.expect("a lent slab has memory").region.as_fd()
        });
        (handover.encode(), memory.collect())
    }

    pub(crate) fn drain(&mut self, now: Duration, drain: Drain) {
        tracing::info!(?drain, "an operator's order");
        self.leaving.stops = drain == Drain::Stop;
        self.leaving.is_told = false;
        self.leaving.drained_at = None;
        if drain == Drain::Off && self.leaving.goes_at.take().is_some() {
            self.tell_all(&Reply::Notice { within_ms: 0 });
        }
        self.ledger.handle_drain(now, drain != Drain::Off);
        if drain == Drain::Off {
            if let Some(span) = self.leaving.drain_span.take() {
                span.record("otel.status_description", "called off");
            }
        } else if self.leaving.drain_span.is_none() {
            self.leaving.drain_span = Some(tracing::info_span!(
                "drain host",
                cenote.host = self.config.name,
                cenote.slabs = i64::from(self.ledger.counts().mapped),
                cenote.slab_bytes = self.config.slab_bytes as i64,
                otel.status_description = tracing::field::Empty,
            ));
        }
        self.ask_back();
    }

    /// Ends what traces have of a drain, once nobody holds anything.
    pub(super) fn trace_drain(&mut self) {
        if self.leaving.drain_span.is_some() && self.ledger.is_drained() {
            self.leaving.drain_span = None;
        }
    }

    /// Asks every client that is there for the slabs that are wanted back.
    pub(super) fn ask_back(&mut self) {
        if !self.ledger.is_draining() && self.ledger.asked_back() == 0 {
            return;
        }
        let clients: Vec<u128> = self.peers.keys().copied().collect();
        for client in clients {
            let windows = self.ledger.wanted_back(client, EVICT_WINDOWS_MAX);
            let evict = Reply::Evict { windows };
            if matches!(&evict, Reply::Evict { windows } if !windows.is_empty()) {
                self.send(client, &evict);
            }
        }
    }

    /// Of the messages that a client speaks; 0 for one that is not connected, or said nothing yet.
    pub(super) fn version(&self, client: u128) -> u8 {
        let session = self
            .peers
            .get(&client)
            .and_then(|peer| self.sessions.get(peer));
        session.map_or(0, |session| session.version)
    }

    /// Tells who holds slabs that they will be here again soon, once; whether all know it, so that
    /// the connections may end.
    pub(crate) fn has_bidden_farewell(&mut self) -> bool {
        let now = (self.clock)();
        if self.leaving.farewell.is_none() {
            self.leaving.farewell = Some(Farewell {
                until: now.after(FAREWELL),
                told: BTreeSet::new(),
                unanswered: BTreeSet::new(),
            });
            let clients: Vec<u128> = self.peers.keys().copied().collect();
            for client in clients {
                self.bid_farewell(client);
            }
        }
        let farewell = self.leaving.farewell.as_mut().expect("begun above");
        farewell
            .unanswered
            .retain(|client| self.peers.contains_key(client));
        let is_over = farewell.unanswered.is_empty() || now >= farewell.until;
        if is_over {
            self.leaving.farewell = None;
        }
        is_over
    }

    /// Tells a client, if it holds slabs and was not told, while the others are: also one that
    /// connected since, which would take the end for the loss of all that it has here.
    pub(super) fn bid_farewell(&mut self, client: u128) {
        let hands_over = Reply::HandsOver {
            back_within_ms: u32::try_from(RETURN.as_millis()).expect("a few seconds"),
        };
        let is_concerned =
            self.version(client) >= hands_over.since() && self.ledger.slabs_of(client) > 0;
        let (Some(farewell), Some(&peer)) = (&mut self.leaving.farewell, self.peers.get(&client))
        else {
            return;
        };
        if is_concerned && farewell.told.insert(peer) {
            farewell.unanswered.insert(client);
            self.send(client, &hands_over);
        }
    }

    /// A client waits for the process after this one.
    pub(super) fn on_awaited(&mut self, client: u128) {
        if let Some(farewell) = &mut self.leaving.farewell {
            farewell.unanswered.remove(&client);
        }
    }

    /// When clients that have not answered are no longer waited for.
    pub(super) fn farewell_until(&self) -> Option<Time> {
        self.leaving
            .farewell
            .as_ref()
            .map(|farewell| farewell.until)
    }

    /// Whether it is drained, was to end then, and has told so.
    pub(super) fn takes_leave(&mut self) -> bool {
        if !self.leaving.stops || !self.ledger.is_drained() {
            return false;
        }
        let now = (self.clock)();
        let since = *self.leaving.drained_at.get_or_insert(now);
        self.leaving.is_told || now.since(since) >= TELL
    }
}

/// An inheritance that was found sound.
#[derive(Default)]
pub(crate) struct Inherited {
    pub handover: Handover,
    /// As the handover's slabs.
    regions: Vec<Arc<Region>>,
}

/// Reads an inheritance and maps its memory.
///
/// # Errors
/// `Inheritance`: it contradicts itself; `Fabric`: memory that is not what it should be.
pub(crate) fn open(inheritance: Inheritance, huge: bool) -> Result<Inherited> {
    if inheritance.state.is_empty() {
        return Ok(Inherited::default());
    }
    let handover =
        Handover::decode(&inheritance.state).map_err(|e| Error::Inheritance(e.to_string()))?;
    let (lent, passed) = (handover.slabs.len(), inheritance.memory.len());
    if lent != passed {
        let what = format!("{lent} slabs are lent, the memory of {passed} was passed on");
        return Err(Error::Inheritance(what));
    }
    let region = |(slab, fd): (&cenote_pool::ledger::HandedSlab, _)| {
        Region::inherit(fd, slab.held.window.len_bytes, huge).map(Arc::new)
    };
    let regions = handover.slabs.iter().zip(inheritance.memory).map(region);
    let regions = regions.collect::<cenote_fabric::Result<_>>()?;
    Ok(Inherited { handover, regions })
}

/// Whether what is configured leads to the machine's address that was listened on.
fn is_where(ours: &HostPort, theirs: &HostPort) -> bool {
    match (ours.to_listen(), theirs.socket()) {
        (Ok(ours), Some(theirs)) => ours.ip() == theirs.ip(),
        // A name that is not resolved now is refused, with its reason, when it is listened on.
        _ => false,
    }
}

impl Inherited {
    /// Has the new process go on where the earlier one was: on the ports that it had, with slabs
    /// of the size that it lent. Memory that it holds already is not wanted a second time.
    pub(super) fn adjust(&self, config: &mut Config, machine: &mut Machine) {
        for (address, before) in config.addresses.iter_mut().zip(&self.handover.addresses) {
            if let (Address::Tcp(ours), Ok(Address::Tcp(theirs))) = (&*address, before.parse())
                && ours.port() == 0
                && is_where(ours, &theirs)
            {
                *address = Address::Tcp(theirs);
            }
        }
        let Some(held) = u64::try_from(self.regions.len()).ok().filter(|&n| n > 0) else {
            return;
        };
        let slab_bytes = self.handover.slab_bytes;
        if config.slab_bytes != slab_bytes {
            tracing::warn!(
                configured = config.slab_bytes,
                slab_bytes,
                "slabs that are lent keep their size; drain the host first to change it"
            );
            config.slab_bytes = slab_bytes;
        }
        let held_bytes = held.saturating_mul(slab_bytes);
        machine.available_bytes = machine.available_bytes.saturating_add(held_bytes);
    }

    /// The windows as they stood.
    pub(crate) fn windows(&self) -> Vec<(Arc<Region>, WindowDescriptor)> {
        let windows = self.handover.slabs.iter().map(|slab| slab.held.window);
        let regions = self.regions.iter().map(Arc::clone);
        regions.zip(windows.map(from_wire)).collect()
    }

    pub(super) fn lock(&self, keeper: &SideThread<KeeperJob>) {
        for region in &self.regions {
            keeper.ask(KeeperJob::Lock(Arc::clone(region)));
        }
    }

    /// The memory of `slabs_total` slabs, the inherited ones first.
    pub(super) fn memory(&self, slabs_total: u32) -> Vec<Option<Memory>> {
        let memory = |(region, slab): (&Arc<Region>, &cenote_pool::ledger::HandedSlab)| {
            Some(Memory {
                region: Arc::clone(region),
                window: WindowId(slab.held.window.id),
            })
        };
        let inherited = self.regions.iter().zip(&self.handover.slabs).map(memory);
        let empty = std::iter::repeat_with(|| None);
        inherited.chain(empty).take(slabs_total as usize).collect()
    }
}

/// The control protocol's window as the fabric names it.
fn from_wire(window: Window) -> WindowDescriptor {
    WindowDescriptor {
        id: WindowId(window.id),
        generation: Generation(window.generation),
        len_bytes: window.len_bytes,
        rights: Rights(window.rights),
    }
}

impl Inheritance {
    /// Whether this program understands the state, without its memory.
    #[must_use]
    pub fn is_understood(state: &[u8]) -> bool {
        Handover::decode(state).is_ok()
    }
}
