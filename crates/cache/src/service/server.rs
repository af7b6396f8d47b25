//! The manager of one cache as a process runs it: the owner, its hosts, its journal and its clients.
//!
//! One thread. It waits for a message of a client or a host, or the owner's next tick. Clients come over a
//! [`Listener`], so they have proven the cluster's key; each has an outbox and an allowance of its own.
//!
//! Invariants: the epoch is on the disk before a host hears of it; a region's entry is on the disk before a
//! client is told of it; a lease goes out behind both. While the disk refuses, nothing new is decided and
//! no lease is given: clients wait, and lose nothing. While nothing proves that no other manager began
//! ([`leadership`]), machines and the table stay as they are, and clients are served.

mod checkpoints;
mod clients;
mod flow;
mod herald;
mod later_managers;
mod leadership;
mod questions;
mod start;
mod supply;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_fabric::{Address, Event, Listen, Listener, PeerId, Time, Waker, wait};

use super::injected_faults::{InjectedFault, is_injected};
use super::journal::{Journal, JournalError, Superseded};
use super::message::{Refusal, ToClient, Welcome};
use super::question::Checkpoint;
use crate::configuration::Configuration;
use crate::manager::{Manager, News};
use crate::owner::{ClientNumber, Settings};
use clients::Connected;
use herald::Herald;
use leadership::{Leadership, Stand};

pub(super) use flow::SIGN_AFTER;
#[cfg(test)]
pub(super) use leadership::Proof;
pub use leadership::{Agreement, Claim, Claimed, PROOF_LEASE};
pub use start::{Config, StartError};
pub use supply::{MakeProvider, Market, ReadHosts, Supply};

/// What clients are told besides where regions are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    /// How the cache is accessed.
    pub configuration: Configuration,
}

/// How a manager ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// It was told to. The next one goes on.
    Stopped,
    /// The cache is deleted, or its time is over: its memory was given back.
    Deleted,
    /// Another manager has the cache: nothing was done any more.
    Superseded,
}

/// See the module's text.
pub struct Server {
    manager: Manager,
    settings: Settings,
    terms: Terms,
    epoch: u64,
    /// The epoch that the journal had before this manager; 0: there was none.
    before: u64,
    listener: Listener,
    /// Of threads that connect to hosts.
    waker: Waker,
    journal: Journal,
    record: Record,
    connected: BTreeMap<PeerId, Connected>,
    /// The connection of each client that joined.
    joined: BTreeMap<ClientNumber, PeerId>,
    clients_made: ClientNumber,
    /// Seconds of Unix time.
    clock: fn() -> u64,
    life: Life,
    /// Where the checkpoint is, if there is to be any.
    checkpoint_path: Option<std::path::PathBuf>,
    checkpoint: Option<Checkpoint>,
    /// Has hosts told where slabs are, for procedures.
    herald: Herald,
    leadership: Leadership,
    /// None while it is tended.
    supplier: Option<supply::Supplier>,
}

/// How far the owner's last record is.
#[derive(Debug)]
enum Record {
    /// The disk has it.
    Kept,
    /// The disk refused it; it is tried again.
    Refused { error: String, retry_at: Time },
    /// It waits until something proves that this manager is in charge. Nobody was told of it, so leases
    /// go on.
    Unproven,
}

/// Whether the cache is to stay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Life {
    /// It is new: regions are spread over hosts once these are connected.
    Founding { regions: u32, until: Time },
    /// Also while its memory goes back: when no client uses it.
    Serving,
    /// Until its last words have arrived.
    Parting { until: Time },
}

/// Between two tries to write the journal.
const RETRY: Duration = Duration::from_millis(250);
/// How long a new cache waits for hosts that do not answer.
const FOUNDING: Duration = Duration::from_secs(2);
/// While a socket takes no more, or a connection is being made.
const SHORT: Duration = Duration::from_millis(5);
/// For the last words to clients to arrive: they are in their sockets before.
const PARTING: Duration = Duration::from_millis(500);
/// How much longer hosts may take to hear which slabs they have back: the more, the longer it
/// takes.
const PARTING_MAX: Duration = Duration::from_secs(10);

impl Server {
    /// Where clients reach it, with the real port where 0 was asked for.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        self.listener.addresses()
    }

    /// Makes [`Server::run`] look at its stop flag at once.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Counts the managers of this cache.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Serves until `stop` is set, or the cache ended.
    ///
    /// # Errors
    /// The system refuses to wait: the process is of no use any more.
    pub fn run(&mut self, stop: &AtomicBool) -> cenote_fabric::Result<End> {
        let mut events = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let now = Time::now();
            self.turn(now, &mut events);
            if self.manager.owner.is_superseded() {
                for peer in self.connected.keys().copied().collect::<Vec<_>>() {
                    self.refuse(peer, Refusal::Superseded);
                }
                if self.manager.is_refused() {
                    self.put_journal_back();
                }
                return Ok(End::Superseded);
            }
            if self.has_ended(now) {
                return Ok(End::Deleted);
            }
            self.wait(now, &mut events)?;
        }
        Ok(End::Stopped)
    }

    fn wait(&mut self, now: Time, events: &mut Vec<Event>) -> cenote_fabric::Result<()> {
        let mut fds = vec![self.listener.fd(), self.waker.as_fd().as_raw_fd()];
        let mut is_short = self.connected.values().any(Connected::is_blocked);
        for (fd, wants_write) in self.manager.fds() {
            fds.push(fd);
            is_short |= wants_write;
        }
        let patience = self.manager.due(now).since(now);
        let patience = if is_short { SHORT } else { patience };
        wait(&fds, Some(patience))?;
        self.waker.clear();
        self.herald.hear();
        self.listener.poll(Some(Duration::ZERO), events)
    }

    /// Takes what has come and does what follows, without blocking but for the disk.
    fn turn(&mut self, now: Time, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            self.handle_event(now, event);
        }
        self.look_at_leadership(now);
        self.proclaim(now);
        self.manager.step(now);
        self.note_checkpoint();
        self.found(now);
        self.tend_supply(now);
        self.pass_on(now);
        self.wake_speakers();
        self.send_all(now);
    }

    /// Stops to decide when nothing proves any more that this manager is in charge, and goes on when
    /// something does.
    fn look_at_leadership(&mut self, now: Time) {
        match self.leadership.look(now) {
            Stand::AsBefore if self.leadership.holds(now) => {
                let is_ageing = self.leadership.is_ageing(now);
                self.manager.expect_suspension(now, is_ageing);
            }
            Stand::AsBefore => {}
            Stand::Proven => {
                tracing::info!("in charge: changes go on");
                self.manager.resume(now);
            }
            Stand::Unproven => {
                let why = self.leadership.trouble(now).unwrap_or_default();
                tracing::warn!(why, "serves, and changes nothing");
                self.manager.suspend(now);
            }
            Stand::Superseded => {
                tracing::warn!("another manager has begun");
                self.manager.owner.handle_superseded();
            }
        }
    }

    /// Takes what the manager has to say, as far as the disk has what it depends on.
    fn pass_on(&mut self, now: Time) {
        let is_behind = match self.record {
            Record::Kept => false,
            Record::Refused { retry_at, .. } => now < retry_at || !self.keep(now),
            Record::Unproven => !self.keep(now),
        };
        if is_behind {
            return;
        }
        while let Some(news) = self.manager.take_news() {
            match news {
                News::Record => {
                    if !self.keep(now) {
                        return;
                    }
                }
                News::Tell { client, entry } if self.herald.is(client) => self.herald.tell(entry),
                News::Tell { client, entry } => {
                    let peer = self.joined.get(&client);
                    if let Some(connected) = peer.and_then(|peer| self.connected.get_mut(peer)) {
                        connected.outbox.tell(entry);
                    }
                }
            }
        }
    }

    /// Brings the table to the disk; whether it is there.
    fn keep(&mut self, now: Time) -> bool {
        if !self.leadership.holds(now) {
            if matches!(self.record, Record::Kept) {
                self.record = Record::Unproven;
            }
            return false;
        }
        self.journal.set_record(&self.manager.record());
        let hosts = self.kept_hosts();
        self.journal.set_hosts(hosts);
        let fleet = self.supplier.as_mut().and_then(supply::Supplier::fleet_mut);
        if let Some(fleet) = &fleet {
            self.journal.set_machines(fleet.kept());
        }
        match self.journal.write() {
            // The disk took so long that the next manager may have begun from what was there before.
            Ok(()) if !self.leadership.holds(Time::now()) => {
                self.record = Record::Unproven;
                false
            }
            Ok(()) => {
                if matches!(self.record, Record::Refused { .. }) {
                    tracing::info!("the journal can be written again");
                }
                self.record = Record::Kept;
                if let Some(fleet) = fleet {
                    fleet.confirm();
                }
                self.manager.confirm_record(now);
                true
            }
            Err(_) if is_injected(InjectedFault::ToldUnkept) => {
                self.manager.confirm_record(now);
                true
            }
            Err(error) => {
                if Superseded::is_in(&error) {
                    self.manager.owner.handle_superseded();
                }
                if matches!(self.record, Record::Kept) {
                    tracing::error!(%error, "the journal cannot be written: changes wait");
                }
                self.record = Record::Refused {
                    error: error.to_string(),
                    retry_at: now.after(RETRY),
                };
                false
            }
        }
    }

    fn is_kept(&self) -> bool {
        matches!(self.record, Record::Kept)
    }

    /// Whether leases may go out: what they depend on is on the disk.
    fn may_lease(&self) -> bool {
        matches!(self.record, Record::Kept | Record::Unproven)
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            version: super::message::VERSION,
            cache: self.settings.cache,
            epoch: self.epoch,
            slab_bytes: self.settings.slab_bytes,
            slabs_per_region: self.settings.slabs_per_region,
            hosts: u16::try_from(self.manager.hosts().count()).expect("at most 4096"),
            configuration: self.terms.configuration,
        }
    }

    /// Begins to place the regions of a new cache: not all on the host that was connected first.
    fn found(&mut self, now: Time) {
        if let Life::Founding { regions, until } = self.life
            && self.leadership.holds(now)
            && (now >= until || self.manager.hosts().all(|(_, is_up)| is_up))
        {
            self.life = Life::Serving;
            self.manager.owner.handle_resize(now, regions);
        }
    }

    /// Whether the cache is being deleted, or its time is over.
    fn is_ending(&self) -> bool {
        self.manager.owner.duration() == Some(Duration::ZERO)
    }

    fn has_ended(&mut self, now: Time) -> bool {
        match self.life {
            Life::Founding { .. } if self.is_ending() => {
                self.life = Life::Parting { until: now };
                false
            }
            Life::Serving
                if self.is_kept() && self.manager.owner.has_ended() && !self.has_machines() =>
            {
                let until = now.after(PARTING);
                self.life = Life::Parting { until };
                // Nobody else tells them that there is no cache any more.
                for peer in self.connected.keys().copied().collect::<Vec<_>>() {
                    self.refuse(peer, Refusal::Ending);
                }
                false
            }
            Life::Founding { .. } | Life::Serving => false,
            Life::Parting { until } => {
                now >= until && (self.manager.is_heard() || now >= until.after(PARTING_MAX))
            }
        }
    }

    /// Whether machines are still to be given back.
    fn has_machines(&self) -> bool {
        let fleet = self.supplier.as_ref().and_then(supply::Supplier::fleet);
        fleet.is_some_and(|fleet| !fleet.is_empty())
    }

    /// Says why, and ends the connection.
    fn refuse(&mut self, peer: PeerId, refusal: Refusal) {
        let message = ToClient::Refused(refusal).encode();
        if let Err(error) = self.listener.send(peer, &message) {
            tracing::debug!(%error, "refuse a client");
        }
        self.cut_off(peer);
    }
}
