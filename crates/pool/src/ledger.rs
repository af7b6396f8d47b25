//! A host's truth about its slabs: who holds which, and for how long.
//!
//! The daemon feeds it what clients ask and what its own slow work came to
//! (`handle_*`), and carries out the [`Action`]s that [`Ledger::poll_action`] gives,
//! oldest first. No I/O and no clock: `now` is the time since any fixed start.
//!
//! A slab goes round one cycle:
//!
//! ```text
//! FREE -> PREPARING -> PREPARED -> MAPPED <-> ORPHANED
//!   ^         |                      |           |
//!   +---------+------- RETIRED <-----+-----------+
//! ```
//!
//! ORPHANED is no state of its own: it is MAPPED by a client whose lease has run out,
//! so that a client that comes back finds its slabs as they were (decision 8).
//!
//! Invariants: a window is granted at most once in its life; only its client's request,
//! an expired lease together with a want of memory or [`Limits::orphan_life`], or a machine
//! below its floor takes it back; a request that waits has a slab on the way to it.

mod counts;
mod drain;
mod eviction;
mod handover;
mod leases;
mod orphans;
mod owners;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::control::{Refusal, Reply, Window};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::pressure::Room;
use eviction::{Asked, Evicting};
pub use eviction::{Demand, EvictionCounts};
pub use handover::{HandedClient, HandedSlab, Handover};
use leases::Leases;
pub use leases::{LEASE, Lease, ORPHAN_LIFE, TICK};
use owners::Owner;

/// What the ledger may give to whom. Set once, from the host's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Slabs that the host lends in all.
    pub slabs_total: u32,
    /// Most slabs of one client.
    pub client_slabs_max: u32,
    /// Most clients that hold slabs or wait for some. One that takes a volume over needs no place:
    /// its slabs are lent already.
    pub clients_max: usize,
    /// Prepared slabs to keep ahead, so that a grant waits for nothing.
    pub stock: u32,
    /// A client silent for longer is orphaned.
    pub lease: Duration,
    /// An orphaned slab is taken after this long even when nobody needs it.
    pub orphan_life: Duration,
    /// What the machine has room for until [`Ledger::handle_room`] says otherwise.
    pub room: Room,
}

/// Number of a slab, below [`Limits::slabs_total`].
pub type SlabIndex = u32;

/// What a slab is for, in its client's terms.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct StripeMember {
    /// The volume.
    pub volume: u128,
    /// The extent of the volume.
    pub extent: u32,
    /// The member of the extent's stripe.
    pub member: u8,
}

/// What the daemon is to do, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Make fresh, zero, populated memory for the slab and a window on it; then call
    /// [`Ledger::handle_prepared`] or [`Ledger::handle_prepare_failed`].
    Prepare {
        /// The slab.
        slab: SlabIndex,
    },
    /// Revoke the slab's window and give its memory back; then call
    /// [`Ledger::handle_retired`].
    Retire {
        /// The slab.
        slab: SlabIndex,
        /// Its window.
        window: Window,
    },
    /// Give the slab's window a new generation and leave its memory as it is, at once; then call
    /// [`Ledger::handle_renewed`] or [`Ledger::handle_renew_failed`].
    Renew {
        /// The slab.
        slab: SlabIndex,
        /// Its window so far.
        window: Window,
    },
    /// Close the client's connection: another has taken its volume over.
    CutOff {
        /// The client.
        client: u128,
    },
    /// Send an answer, if the client is still connected.
    Send {
        /// The client.
        client: u128,
        /// The answer.
        reply: Reply,
    },
}

/// A slab in its client's hands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grant {
    /// The client.
    pub client: u128,
    /// What it is for.
    pub place: StripeMember,
    /// Its window. The generation changes with the client.
    pub window: Window,
    /// Whether the client was asked for it and has nowhere to put its bytes.
    pub declined: bool,
    /// Since when it is asked for again after that.
    asked_again: Option<Duration>,
    /// The first generation: names the grant for good.
    pub birth: u64,
    /// It was an earlier owner's, and its client has not asked for it yet.
    is_left: bool,
    /// Set while it is asked back for want of memory.
    asked: Option<Asked>,
    /// The request of its client that its window be renewed, until that is done.
    renewal: Option<u64>,
    /// Grants are numbered in order.
    sequence: u64,
}

#[derive(Clone, Copy, Debug)]
enum Slab {
    Free,
    Preparing,
    Prepared {
        window: Window,
    },
    Mapped(Grant),
    Retired {
        window: Window,
        former: Option<Former>,
    },
}

/// Who held a slab that is on its way back.
#[derive(Clone, Copy, Debug)]
struct Former {
    client: u128,
    /// It gave the slab back, and is told once the window is closed.
    is_told: bool,
}

/// A request for a slab that is answered when one is prepared.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    client: u128,
    request: u64,
    place: StripeMember,
}

/// The book of one host. See the module's text.
#[derive(Debug)]
pub struct Ledger {
    limits: Limits,
    slabs: Vec<Slab>,
    leases: Leases,
    /// Oldest first; never longer than the slabs that are on the way.
    waiting: VecDeque<Waiting>,
    owners: BTreeMap<u128, Owner>,
    grants: u64,
    /// Stock is not rebuilt before this time: the system was out of memory.
    starved_until: Duration,
    shutting_down: bool,
    /// Nothing is lent, and all is asked back.
    /// Since when it gives everything back.
    draining: Option<Duration>,
    orphans_taken: u64,
    granted: u64,
    given_back: u64,
    room: Room,
    evicting: Evicting,
    actions: VecDeque<Action>,
}

/// Pause before memory is asked for again on nobody's behalf. Arbitrary.
const STARVED_PAUSE: Duration = Duration::from_secs(10);

impl Ledger {
    /// A book in which every slab is free; the first actions build the stock.
    #[must_use]
    pub fn new(limits: Limits, now: Duration) -> Self {
        let mut ledger = Self::empty(limits, now);
        ledger.prepare_ahead(now);
        ledger
    }

    fn empty(limits: Limits, now: Duration) -> Self {
        Self {
            limits,
            slabs: vec![Slab::Free; limits.slabs_total as usize],
            leases: Leases::new(limits.lease, now),
            waiting: VecDeque::new(),
            owners: BTreeMap::new(),
            grants: 0,
            starved_until: now,
            shutting_down: false,
            draining: None,
            orphans_taken: 0,
            granted: 0,
            given_back: 0,
            room: limits.room,
            evicting: Evicting::default(),
            actions: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A client opened a session. It takes nobody's slab and no place: many only look.
    pub fn handle_connected(&mut self, now: Duration, client: u128, name: &str) {
        self.leases.connect(now, client, name);
    }

    /// A client's session ended. Its slabs stay; what it waited for goes to stock.
    pub fn handle_disconnected(&mut self, now: Duration, client: u128) {
        self.waiting.retain(|waiting| waiting.client != client);
        self.leases.disconnect(client);
        self.forget_idle_owners();
        self.prepare_ahead(now);
    }

    /// Anything arrived from a client. Call it before the message's own handler.
    pub fn handle_sign_of_life(&mut self, now: Duration, client: u128) {
        self.leases.renew(now, client);
    }

    /// A client asks for a slab. A second grant for one place ends the first: its client
    /// has lost sight of it, or has replaced it elsewhere meanwhile.
    ///
    /// # Panics
    /// If the client is not connected: a caller's bug.
    pub fn handle_map(&mut self, now: Duration, client: u128, request: u64, place: StripeMember) {
        assert!(
            self.leases.is_connected(client),
            "client {client:032x} asks without a session"
        );
        self.leases.renew(now, client);
        match self.admit(client, place) {
            Ok(()) => self.waiting.push_back(Waiting {
                client,
                request,
                place,
            }),
            Err(reason) => self.send(client, Reply::Refused { request, reason }),
        }
        self.serve();
        self.forget_idle_owners();
        self.prepare_ahead(now);
    }

    /// A client gives a slab back. A window that is not its own is only acknowledged.
    pub fn handle_unmap(&mut self, now: Duration, client: u128, window: Window) {
        match self.find(client, window) {
            Some(slab) => {
                self.note_given_back(now, slab);
                self.take_back(slab, true);
            }
            None if self.await_end(client, window) => {} // One answer, once the window is closed.
            None => self.send(client, Reply::Unmapped { window }),
        }
        self.forget_idle_owners();
        self.prepare_ahead(now);
    }

    /// A slab's memory is there: zero, populated, with a window that nobody knows yet.
    ///
    /// # Panics
    /// If the slab is not being prepared: a caller's bug.
    pub fn handle_prepared(&mut self, now: Duration, slab: SlabIndex, window: Window) {
        let state = &mut self.slabs[slab as usize];
        assert!(
            matches!(state, Slab::Preparing),
            "slab {slab} prepared in {state:?}"
        );
        *state = Slab::Prepared { window };
        self.serve();
        self.retire_surplus();
        self.prepare_ahead(now);
    }

    /// The system had no memory for a slab. A request that counted on it is refused.
    ///
    /// # Panics
    /// If the slab is not being prepared: a caller's bug.
    pub fn handle_prepare_failed(&mut self, now: Duration, slab: SlabIndex) {
        let state = &mut self.slabs[slab as usize];
        assert!(
            matches!(state, Slab::Preparing),
            "slab {slab} not prepared in {state:?}"
        );
        *state = Slab::Free;
        self.starved_until = now + STARVED_PAUSE;
        let counts = self.counts();
        if self.waiting.len() > (counts.preparing + counts.retired) as usize {
            let refused = self.waiting.pop_front().expect("longer than zero");
            let reply = Reply::Refused {
                request: refused.request,
                reason: Refusal::NoMemory,
            };
            self.send(refused.client, reply);
            self.forget_idle_owners();
        }
        self.prepare_ahead(now);
    }

    /// A slab's window is revoked and its memory given back.
    ///
    /// # Panics
    /// If the slab is not on its way back: a caller's bug.
    pub fn handle_retired(&mut self, now: Duration, slab: SlabIndex) {
        let state = std::mem::replace(&mut self.slabs[slab as usize], Slab::Free);
        let Slab::Retired { window, former } = state else {
            panic!("slab {slab} retired in {state:?}");
        };
        if let Some(former) = former.filter(|former| former.is_told) {
            let client = former.client;
            self.send(client, Reply::Unmapped { window });
        }
        self.starved_until = now;
        self.prepare_ahead(now);
    }

    /// Time passed. Call it every [`TICK`], after everything that had arrived by `now`
    /// was handled: a call that comes late means that this host was stopped, and every
    /// lease is extended by as much.
    pub fn handle_tick(&mut self, now: Duration) {
        let slept = self.leases.tick(now);
        self.forgive_sleep(now, slept);
        self.forget_declined(now);
        let taken: Vec<SlabIndex> = self
            .orphans()
            .filter(|&(since, ..)| now.saturating_sub(since) >= self.limits.orphan_life)
            .map(|(_, _, slab)| slab)
            .collect();
        for slab in taken {
            self.take_orphan(slab);
        }
        if is_injected(InjectedFault::EvictUnasked) {
            let used = self.grants().next().map(|(slab, _)| slab);
            used.into_iter().for_each(|slab| self.retire(slab, false));
        }
        self.forget_idle_owners();
        self.prepare_ahead(now);
    }

    /// The host is about to stop: nobody gets a slab any more.
    pub fn handle_shutdown(&mut self) {
        self.shutting_down = true;
        self.refuse_waiting(Refusal::ShuttingDown);
    }

    /// The slab behind a window that `client` holds; `None` when it does not.
    #[must_use]
    pub fn find(&self, client: u128, window: Window) -> Option<SlabIndex> {
        let held = |slab: &Slab| matches!(slab, Slab::Mapped(g) if g.client == client && g.window == window);
        index(self.slabs.iter().position(held))
    }

    /// The volume that a client's window is for.
    #[must_use]
    pub fn volume_of(&self, client: u128, window: Window) -> Option<u128> {
        let of = |slab: &Slab| match slab {
            Slab::Mapped(g) if g.client == client && g.window == window => Some(g.place.volume),
            _ => None,
        };
        self.slabs.iter().find_map(of)
    }

    /// Every slab in a client's hands.
    pub fn grants(&self) -> impl Iterator<Item = (SlabIndex, &Grant)> {
        (0..)
            .zip(&self.slabs)
            .filter_map(|(index, slab)| match slab {
                Slab::Mapped(grant) => Some((index, grant)),
                _ => None,
            })
    }

    /// In whose hands a slab is, if in any.
    #[must_use]
    pub fn grant_of(&self, slab: SlabIndex) -> Option<&Grant> {
        match self.slabs.get(slab as usize)? {
            Slab::Mapped(grant) => Some(grant),
            _ => None,
        }
    }

    /// Every client that is connected or holds slabs, with its lease, in no order.
    pub fn clients(&self) -> impl Iterator<Item = (u128, &Lease)> {
        self.leases.iter()
    }

    /// How many slabs a client holds.
    #[must_use]
    pub fn slabs_of(&self, client: u128) -> u32 {
        self.leases.slabs(client)
    }

    /// Leases that ran out so far.
    #[must_use]
    pub fn leases_expired(&self) -> u64 {
        self.leases.expired()
    }

    /// Decides on a request for a slab; on success the slab it will get is on the way.
    fn admit(&mut self, client: u128, place: StripeMember) -> Result<(), Refusal> {
        if self.shutting_down || self.draining.is_some() {
            return Err(Refusal::ShuttingDown);
        }
        if self.is_owned_by_another(client, place.volume) {
            return Err(Refusal::Owned);
        }
        let former = self.held_at(client, place);
        if former.is_none() && self.slabs_free() == 0 && self.slabs_lendable() == 0 {
            return Err(Refusal::NoMemory);
        }
        let held = self.leases.slabs(client) - u32::from(former.is_some());
        let wanted = self.waiting.iter().filter(|w| w.client == client).count();
        if held as usize + wanted >= self.limits.client_slabs_max as usize {
            return Err(Refusal::ClientBound);
        }
        if !self.make_place_for(client) {
            return Err(Refusal::ClientBound);
        }
        if let Some(slab) = former {
            self.take_back(slab, false);
            if self.slabs_free() == 0 {
                return Err(Refusal::NoMemory);
            }
        } else if self.slabs_free() == 0 {
            let (_, _, slab) = self.orphans().min().ok_or(Refusal::NoMemory)?;
            self.take_orphan(slab);
        }
        self.note_owner(client, place.volume);
        Ok(())
    }

    /// The slab that the client holds for a place.
    fn held_at(&self, client: u128, place: StripeMember) -> Option<SlabIndex> {
        let held = |grant: &Grant| grant.client == client && grant.place == place;
        self.grants()
            .find(|(_, grant)| held(grant))
            .map(|(slab, _)| slab)
    }

    /// Gives prepared slabs to those who wait, oldest first.
    fn serve(&mut self) {
        while !self.waiting.is_empty() {
            let prepared = self
                .slabs
                .iter()
                .position(|slab| matches!(slab, Slab::Prepared { .. }));
            let Some(slab) = prepared else { return };
            let Slab::Prepared { window } = self.slabs[slab] else {
                unreachable!("found above")
            };
            let Waiting {
                client,
                request,
                place,
            } = self.waiting.pop_front().expect("not empty");
            if let Some(former) = self.held_at(client, place) {
                self.take_back(former, false);
            }
            self.grants += 1;
            self.granted += 1;
            self.slabs[slab] = Slab::Mapped(Grant {
                client,
                place,
                window,
                declined: false,
                asked_again: None,
                birth: window.generation,
                is_left: false,
                asked: None,
                renewal: None,
                sequence: self.grants,
            });
            self.leases.add_slab(client);
            self.send(client, Reply::Mapped { request, window });
        }
    }

    /// Starts to prepare free slabs: one for each who waits, and the stock.
    fn prepare_ahead(&mut self, now: Duration) {
        if self.shutting_down || self.draining.is_some() {
            return;
        }
        let counts = self.counts();
        let stock = if now < self.starved_until || !self.room.stocks {
            0
        } else {
            let room = self.room.slabs_max.saturating_sub(self.claimed(&counts));
            self.limits.stock.min(room)
        };
        let wanted = self.awaited() + stock;
        let missing = wanted.saturating_sub(counts.preparing + counts.prepared);
        let mut free = (0..)
            .zip(&mut self.slabs)
            .filter(|(_, slab)| matches!(slab, Slab::Free));
        for (index, slab) in free.by_ref().take(missing as usize) {
            *slab = Slab::Preparing;
            self.actions.push_back(Action::Prepare { slab: index });
        }
    }

    /// Takes a slab out of its client's hands that has no use for it any more.
    fn take_back(&mut self, slab: SlabIndex, is_told: bool) {
        self.given_back += 1;
        self.retire(slab, is_told);
    }

    /// Takes a mapped slab out of its client's hands, who is told when it is gone if it gave it back; and at
    /// once if it waits for the slab's new name.
    fn retire(&mut self, slab: SlabIndex, is_told: bool) {
        let Slab::Mapped(grant) = self.slabs[slab as usize] else {
            unreachable!("only a mapped slab is taken back");
        };
        self.slabs[slab as usize] = Slab::Retired {
            window: grant.window,
            former: Some(Former {
                client: grant.client,
                is_told,
            }),
        };
        self.leases.remove_slab(grant.client);
        if let Some(request) = grant.renewal {
            let reason = Refusal::NotHeld;
            self.send(grant.client, Reply::Refused { request, reason });
        }
        self.actions.push_back(Action::Retire {
            slab,
            window: grant.window,
        });
    }

    /// Whether the client's window is on its way back already, for whatever reason: then it is told when the
    /// window is closed. Until that verbs may still find it open.
    fn await_end(&mut self, client: u128, window: Window) -> bool {
        let former = self.slabs.iter_mut().find_map(|slab| match slab {
            Slab::Retired {
                window: retired,
                former: Some(former),
            } if *retired == window && former.client == client => Some(former),
            _ => None,
        });
        former.map(|former| former.is_told = true).is_some()
    }

    fn send(&mut self, client: u128, reply: Reply) {
        self.actions.push_back(Action::Send { client, reply });
    }
}

fn index(position: Option<usize>) -> Option<SlabIndex> {
    position.map(|p| SlabIndex::try_from(p).expect("slabs are counted in 32 bits"))
}
