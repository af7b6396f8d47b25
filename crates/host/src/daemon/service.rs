//! What the control thread does with each message and each outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_fabric::{Event, Hello, PeerId, Region, Rights, Time, WindowId};
use cenote_pool::control::{
    Drain, FillResult, HELD_SLABS_MAX, Refusal, Reply, Request, VERSION_OLDEST, Window, version_of,
};
use cenote_pool::injected_faults::{InjectedFault, is_injected};
use cenote_pool::ledger::{Action, SlabIndex, StripeMember};

use super::volume_fills::Owning;
use super::{Daemon, Memory, Outcome, Session};
use crate::fill::{Fill, Job as FillJob};
use crate::keeper::Job as KeeperJob;

/// Most fills that one client may have outstanding; one that asks for more is cut off, whatever others
/// ask for. With 10 KiB each at most they wait in 80 MiB, of 256 clients with slabs.
const CLIENT_FILLS_MAX: usize = 32;
/// How often it is said that clients are refused by a limit.
const LIMIT_TOLD_EVERY: Duration = Duration::from_secs(60);

impl Daemon {
    pub(super) fn handle_event(&mut self, now: Duration, event: Event) {
        match event {
            Event::Connected { peer, hello } => self.begin_session(now, peer, &hello),
            Event::Message { peer, bytes } => self.handle_message(now, peer, &bytes),
            Event::Disconnected { peer } => self.end_session(now, peer),
            // A host has no use for immediates, but they are signs of life.
            Event::Immediate { peer, .. } => {
                if let Some(session) = self.sessions.get(&peer) {
                    self.ledger.handle_sign_of_life(now, session.client);
                }
            }
            _ => {}
        }
    }

    pub(super) fn handle_outcome(&mut self, now: Duration, outcome: Outcome) {
        if matches!(outcome, Outcome::Prepared(..) | Outcome::PrepareFailed(_)) {
            self.stocking.note_made((self.clock)());
        }
        match outcome {
            Outcome::Prepared(slab, region) => self.register(now, slab, region),
            Outcome::PrepareFailed(slab) => self.prepare_failed(now, slab),
            Outcome::GivenBack(slab) => {
                self.is_short = false;
                self.close_window(now, slab);
            }
            Outcome::Filled {
                peer,
                client,
                volume,
                request,
                len_bytes,
                result,
            } => {
                self.fills -= 1;
                self.stocking.note_fill((self.clock)());
                if result == FillResult::Done {
                    self.counters.fills += 1;
                    self.counters.fill_bytes += len_bytes;
                } else {
                    self.counters.fills_failed += 1;
                }
                // A later session of the client knows nothing of this request.
                if let Some(session) = self.sessions.get_mut(&peer) {
                    session.fills -= 1;
                    self.send(client, &Reply::Filled { request, result });
                }
                for owning in self.volume_fills.end(volume, peer) {
                    // One that has a newer session asks there.
                    if self.peers.get(&owning.client) == Some(&owning.peer) {
                        self.ask_to_own(now, owning);
                    }
                }
            }
        }
    }

    /// Carries out everything that the ledger has decided.
    pub(super) fn carry_out(&mut self) {
        while let Some(action) = self.ledger.poll_action() {
            match action {
                Action::Prepare { slab } => self.stocking.put_off(slab),
                // The keeper frees the memory, which takes long; verbs find it dead from then
                // on. What is left for this thread is to close an empty window.
                Action::Retire { slab, .. } => {
                    let memory = self.memory[slab as usize]
                        .as_ref()
                        .expect("a lent slab has memory");
                    self.keeper
                        .ask(KeeperJob::GiveBack(slab, Arc::clone(&memory.region)));
                }
                Action::Renew { slab, window } => self.renew(slab, window),
                Action::CutOff { client } => {
                    if let Some(&peer) = self.peers.get(&client) {
                        self.cut_off(self.elapsed(), peer, "its volume has another owner");
                    }
                }
                Action::Send { client, reply } => {
                    let is_granted = matches!(reply, Reply::Mapped { .. });
                    match &reply {
                        Reply::Mapped { window, .. } => {
                            // The ledger has just said so.
                            let volume = self.ledger.volume_of(client, *window);
                            let volume = volume.unwrap_or_default();
                            self.owners.grant(window, client, volume);
                            self.stocking.note_grant((self.clock)());
                        }
                        Reply::Refused { reason, .. } => {
                            self.counters.refused += 1;
                            if *reason == Refusal::ClientBound {
                                self.tell_limit((self.clock)());
                            }
                        }
                        _ => {}
                    }
                    self.send(client, &reply);
                    if is_granted {
                        // It may have waited for the slab since before the others were told.
                        self.bid_farewell(client);
                    }
                }
            }
        }
        self.make_stock();
    }

    /// Has the keeper make what is to be made now.
    pub(super) fn make_stock(&mut self) {
        let awaited = self.ledger.awaited();
        let now = (self.clock)();
        for slab in self.stocking.take(now, self.fills, awaited) {
            self.keeper.ask(KeeperJob::Prepare(slab));
        }
    }

    pub(super) fn end_session(&mut self, now: Duration, peer: PeerId) {
        let Some(session) = self.sessions.remove(&peer) else {
            return;
        };
        session.wanted.store(false, Ordering::Relaxed);
        self.volume_fills.forget_waiting(peer);
        if self.peers.get(&session.client) == Some(&peer) {
            self.peers.remove(&session.client);
            self.ledger.handle_disconnected(now, session.client);
        }
    }

    fn begin_session(&mut self, now: Duration, peer: PeerId, hello: &Hello) {
        self.counters.connections += 1;
        let client = hello.client.0;
        self.ledger.handle_connected(now, client, &hello.name);
        let wanted = Arc::new(AtomicBool::new(true));
        self.sessions.insert(
            peer,
            Session {
                client,
                version: 0,
                fills: 0,
                away_bytes: None,
                wanted,
            },
        );
        self.peers.insert(client, peer);
        tracing::debug!(client = hello.name, "connected");
    }

    /// Cuts off a client that breaks the protocol or does not read its answers.
    fn cut_off(&mut self, now: Duration, peer: PeerId, why: &str) {
        tracing::warn!(why, "close a client's connection");
        self.end_session(now, peer);
        self.listener.close(peer);
    }

    /// Has those who asked for an upgrade that did not come about look again: nothing else would end
    /// their connections, and tell them.
    pub(super) fn dismiss_askers(&mut self) {
        for client in std::mem::take(&mut self.leaving.askers) {
            if let Some(&peer) = self.peers.get(&client) {
                self.end_session(self.elapsed(), peer);
                self.listener.close(peer);
            }
        }
    }

    fn handle_message(&mut self, now: Duration, peer: PeerId, bytes: &[u8]) {
        let Some(client) = self.sessions.get(&peer).map(|session| session.client) else {
            return;
        };
        self.ledger.handle_sign_of_life(now, client);
        match Request::decode(bytes) {
            Ok(request) => {
                if let Some(session) = self.sessions.get_mut(&peer) {
                    session.version = version_of(bytes);
                }
                self.handle_request(now, peer, client, request);
            }
            Err(error) => {
                self.counters.malformed += 1;
                self.cut_off(now, peer, error.0);
            }
        }
        // Answered before the next message is read, so that what can be is in order.
        self.carry_out();
        self.bid_farewell(client);
    }

    fn handle_request(&mut self, now: Duration, peer: PeerId, client: u128, request: Request) {
        match request {
            Request::Query => {
                let reply = Reply::Free {
                    slab_bytes: self.config.slab_bytes,
                    slabs_total: self.config.slabs_total(),
                    slabs_free: self.slabs_free(),
                    domain: self.config.domain.clone(),
                };
                self.send(client, &reply);
            }
            Request::Map {
                request,
                volume,
                extent,
                member,
            } => {
                self.ledger.handle_map(
                    now,
                    client,
                    request,
                    StripeMember {
                        volume,
                        extent,
                        member,
                    },
                );
            }
            Request::Unmap { window } => self.ledger.handle_unmap(now, client, window),
            Request::Ping { sequence } => {
                self.send(
                    client,
                    &Reply::Pong {
                        sequence,
                        slabs_free: self.slabs_free(),
                    },
                );
            }
            Request::Fill {
                request,
                target,
                split,
                k,
                r,
                offset,
                len_bytes,
                sources,
            } => {
                let fill = Fill {
                    split,
                    k,
                    r,
                    offset,
                    len_bytes,
                    sources,
                };
                self.begin_fill(now, peer, request, target, fill);
            }
            Request::Own {
                request,
                volume,
                epoch,
            } => {
                let owning = Owning {
                    peer,
                    client,
                    request,
                    volume,
                    epoch,
                };
                self.ask_to_own(now, owning);
            }
            Request::Retake {
                request,
                volume,
                extent,
                member,
                birth,
            } => {
                let place = StripeMember {
                    volume,
                    extent,
                    member,
                };
                self.ledger
                    .handle_retake(now, client, request, place, birth);
            }
            Request::Leave { volume } => self.ledger.handle_leave(now, client, volume),
            Request::Renew { request, window } => {
                self.ledger.handle_renew(now, client, request, window);
            }
            Request::Status => self.tell_status(client),
            Request::Drain(drain) => {
                self.drain(now, drain);
                self.leaving.ordered_by = Some(client);
                self.tell_status(client);
            }
            Request::Activity { request, slabs } => {
                self.ledger.handle_activity(now, client, request, &slabs);
            }
            Request::Here {
                machine,
                away_bytes,
            } => self.note_place(peer, machine, away_bytes),
            Request::Decline { window } => self.ledger.handle_declined(client, window),
            Request::Held { skip } => {
                // Once for a list, whatever its number of pages.
                if skip == 0 {
                    self.give_up_cut_short(now, client);
                }
                let slabs = self.ledger.held(client, skip as usize, HELD_SLABS_MAX);
                self.send(client, &Reply::Held { skip, slabs });
            }
            Request::Awaits => self.on_awaited(client),
            Request::Notice { within_ms: 0 } => {
                self.drain(now, Drain::Off);
                self.tell_status(client);
            }
            Request::Notice { within_ms } => {
                self.give_notice(Duration::from_millis(within_ms.into()));
                self.tell_status(client);
            }
            Request::Upgrade => {
                self.leaving.upgrade.store(true, Ordering::Relaxed);
                self.tell_status(client);
                self.leaving.askers.insert(client);
            }
        }
    }

    /// Says that a client is refused though there is room: nothing else here shows it.
    fn tell_limit(&mut self, now: Time) {
        let now = Duration::from_nanos(now.0);
        if self
            .limit_told
            .is_none_or(|told| now.saturating_sub(told) >= LIMIT_TOLD_EVERY)
        {
            self.limit_told = Some(now);
            tracing::warn!(
                "a client gets no slab: clients_max others have some, or it has as many as one may"
            );
        }
    }

    /// Answers who asks to own a volume, or has it wait: a fill of an earlier owner is one more
    /// verb that may take effect, and new generations do not stop it.
    fn ask_to_own(&mut self, now: Duration, owning: Owning) {
        let Owning {
            peer,
            client,
            request,
            volume,
            epoch,
        } = owning;
        let is_free = self.ledger.may_own(client, volume, epoch).is_ok();
        if is_free && self.volume_fills.has_others(volume, peer) {
            if !self.volume_fills.wait(owning) {
                let reason = Refusal::Owned;
                self.send(client, &Reply::Refused { request, reason });
            }
            return;
        }
        self.ledger.handle_own(now, client, request, volume, epoch);
        self.say_notice(client);
    }

    fn tell_status(&mut self, client: u128) {
        let looks_on = self.leaving.ordered_by.is_none_or(|by| by == client);
        self.leaving.is_told |= looks_on && self.ledger.is_drained();
        let status = self.status();
        self.send(client, &Reply::Status(Box::new(status)));
    }

    fn begin_fill(
        &mut self,
        now: Duration,
        peer: PeerId,
        request: u64,
        target: Window,
        fill: Fill,
    ) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        let client = session.client;
        let slab = self.ledger.find(client, target);
        let refused = match slab {
            _ if !fill.is_sound(self.config.slab_bytes) => Some(FillResult::Bad),
            None => Some(FillResult::TargetStale),
            Some(_) => None,
        };
        if let Some(result) = refused {
            self.counters.fills_failed += 1;
            return self.send(client, &Reply::Filled { request, result });
        }
        if session.fills >= CLIENT_FILLS_MAX {
            return self.cut_off(now, peer, "too many fills outstanding");
        }
        let volume = slab.and_then(|slab| self.ledger.grant_of(slab));
        let volume = volume.expect("a lent slab has a grant").place.volume;
        session.fills += 1;
        self.fills += 1;
        self.volume_fills.begin(volume, peer);
        self.stocking.note_fill((self.clock)());
        let memory = slab.and_then(|slab| self.memory[slab as usize].as_ref());
        let target = Arc::clone(&memory.expect("a lent slab has memory").region);
        let wanted = Arc::clone(&session.wanted);
        self.filler.ask(FillJob {
            peer,
            client,
            volume,
            request,
            fill,
            target,
            wanted,
        });
    }

    /// Opens a window on fresh memory, which nobody knows of before the slab is granted.
    fn register(&mut self, now: Duration, slab: SlabIndex, region: Arc<Region>) {
        match self.listener.register(Arc::clone(&region), Rights::ALL) {
            Ok(window) => {
                self.memory[slab as usize] = Some(Memory {
                    region,
                    window: window.id,
                });
                self.is_short = false;
                self.ledger.handle_prepared(now, slab, window.into());
            }
            Err(error) => {
                tracing::warn!(slab, %error, "open a window on a slab");
                self.prepare_failed(now, slab);
            }
        }
    }

    /// Gives a slab's window a new generation: its client is another now, or has another session.
    fn renew(&mut self, slab: SlabIndex, window: Window) {
        if is_injected(InjectedFault::NoRenew) {
            return self.ledger.handle_renewed(slab, window);
        }
        self.owners.forget(window.id);
        match self.listener.renew(WindowId(window.id)) {
            Ok(renewed) => {
                self.ledger.handle_renewed(slab, renewed.into());
                // Its owner may be another one now, who says so to server threads.
                if let Some(grant) = self.ledger.grant_of(slab) {
                    let volume = grant.place.volume;
                    self.owners.grant(&grant.window, grant.client, volume);
                }
            }
            Err(error) => {
                tracing::error!(slab, %error, "renew a slab's window; the slab goes");
                self.ledger.handle_renew_failed(slab);
            }
        }
    }

    fn prepare_failed(&mut self, now: Duration, slab: SlabIndex) {
        self.is_short = true;
        self.ledger.handle_prepare_failed(now, slab);
    }

    fn close_window(&mut self, now: Duration, slab: SlabIndex) {
        let memory = self.memory[slab as usize]
            .take()
            .expect("kept until its window is closed");
        self.owners.forget(memory.window.0);
        if let Err(error) = self.listener.revoke(memory.window) {
            tracing::error!(slab, %error, "revoke a slab's window");
        }
        self.ledger.handle_retired(now, slab);
    }

    /// Sends an answer. A client that is gone does not get it; one that does not read is cut off.
    pub(super) fn send(&mut self, client: u128, reply: &Reply) {
        let Some(&peer) = self.peers.get(&client) else {
            return;
        };
        let mut bytes = Vec::with_capacity(64);
        // An answer to an earlier session may reach one that has said nothing yet.
        let said = self.version(client);
        let version = said.max(VERSION_OLDEST);
        if version < reply.since() {
            // A question of the host's own: whom it cannot ask will not do it, and others are asked.
            if let Reply::Evict { windows } = reply
                && said > 0
            {
                for window in windows {
                    self.ledger.handle_declined(client, *window);
                }
            }
            return tracing::debug!(
                version,
                "a client is not asked: it speaks an earlier version"
            );
        }
        reply.encode_as(version, &mut bytes);
        if self.listener.send(peer, &bytes).is_err() {
            self.cut_off(self.elapsed(), peer, "an answer cannot be sent");
        }
    }
}
