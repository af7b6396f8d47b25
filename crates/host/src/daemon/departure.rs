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
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{Drain, EVICT_WINDOWS_MAX, Reply};
use cenote_pool::ledger::Handover;

use super::Daemon;
use super::leaving::Farewell;

#[cfg(doc)]
use super::{End, Inheritance};

/// How long clients have to say that they wait: those that do not lose a rebuild, no more.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long they are to wait. Replacing a process takes a fraction of a second; meanwhile they
/// acknowledge no write of what it holds.
const RETURN: Duration = Duration::from_secs(5);

/// How long a drained host that is to stop waits until who ordered it has asked how it is.
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
        self.leaving.ordered_by = None;
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
        let now = self.elapsed();
        let clients: Vec<u128> = self.peers.keys().copied().collect();
        for client in clients {
            let windows = self.ledger.wanted_back(now, client, EVICT_WINDOWS_MAX);
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
