//! The owner of a cache: which machine holds each region, and how that changes in use.
//!
//! Pure: events come in by `handle_*` with the time, [`Action`]s go out by [`Owner::poll_action`], oldest
//! first. The process that drives it talks to hosts and clients; the simulator drives the same type.
//!
//! A region goes round one relocation at a time (`region`):
//!
//! ```text
//! OPEN -> PLACING -> READY -> DRAINING -> FILLING -> SWITCHING -> OPEN
//! ```
//!
//! Invariants: while two copies of a region are not both current, no client writes to it (R1); memory is
//! given back only when every client knows that it is, or has lost its lease (R2); what was written and
//! acknowledged is in every copy that a client may read. [`audit`] asserts what can be seen from here.
//!
//! Paper: \[redy22\] section 5 (region table, migration); copies are ours. Decision 71.

mod audit;
mod clients;
mod hosts;
mod planning;
mod region;
mod relocation;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{FillResult, HeldSlab, Refusal, Window};

use clients::Clients;
pub use clients::{CLIENTS_MAX, ClientNumber, LEASE, LEASE_MARGIN, Renewal};
use hosts::Host;
pub use hosts::HostIndex;
use region::Region;
pub use region::{Access, Copy, Entry, Stage};
pub use relocation::FILLS_AHEAD;

use crate::planted::{Planted, is_planted};

/// What a cache is. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Its identity on hosts.
    pub cache: u128,
    /// Bytes of a slab of its hosts.
    pub slab_bytes: u64,
    /// Slabs of a region, at least 1.
    pub slabs_per_region: u32,
    /// Copies of each region on different failure domains, 1 or 2.
    pub copies: usize,
    /// A host that is out of reach for longer is taken for dead: what it holds is lost, and
    /// is not used again when it returns.
    pub give_up_after: Duration,
}

impl Settings {
    /// Bytes of a region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.slab_bytes * u64::from(self.slabs_per_region)
    }
}

/// Longest region: 1 GiB, as in the paper.
pub const REGION_BYTES_MAX: u64 = 1 << 30;

/// Number of the request by which a driver owns the cache on a host; those of actions are higher.
pub const OWN_REQUEST: u64 = 1;

/// Most regions of a cache.
pub const REGIONS_MAX: u32 = 1 << 16;

/// What a slab is for: extent and member of [`cenote_pool::ledger::Place`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlabOf {
    /// The region.
    pub region: u32,
    /// Which of the region's slabs.
    pub slab: u32,
}

/// What the driver is to do, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Ask a host for a slab.
    Map {
        /// The host.
        host: HostIndex,
        /// Returned with [`Owner::handle_granted`] or [`Owner::handle_refused`].
        request: u64,
        /// What it is for.
        place: SlabOf,
    },
    /// Give a slab back, if the host is connected; if not, the books are compared when it is.
    Unmap {
        /// The host.
        host: HostIndex,
        /// Its window.
        window: Window,
    },
    /// Have a host read a range of a slab from another host, at the same offset.
    Fill {
        /// The host that reads.
        host: HostIndex,
        /// Returned with [`Owner::handle_filled`].
        request: u64,
        /// Its slab.
        target: Window,
        /// The host that is read.
        source: HostIndex,
        /// Its slab.
        source_window: Window,
        /// First byte of the range in both.
        offset: u64,
        /// At most [`cenote_pool::control::FILL_BYTES_MAX`].
        len_bytes: u64,
    },
    /// Tell a host that there is nowhere to put what it asked for.
    Decline {
        /// The host.
        host: HostIndex,
        /// The slab's window.
        window: Window,
    },
    /// Keep [`Owner::entries`] where the next owner finds it, before anything that follows.
    Record,
    /// Tell a client what holds for a region from now on.
    Tell {
        /// The client.
        client: ClientNumber,
        /// The region's entry.
        entry: Entry,
    },
}

/// The owner of one cache. See the module's text.
#[derive(Debug)]
pub struct Owner {
    settings: Settings,
    regions: Vec<Region>,
    hosts: Vec<Host>,
    clients: Clients,
    requests: u64,
    /// Nothing is opened before: clients of an earlier owner may still have their lease.
    opens_at: Time,
    actions: VecDeque<Action>,
}

impl Owner {
    /// A new cache of `regions` regions that nobody uses yet. `domains` has one entry per host: hosts
    /// that fail together share a number.
    ///
    /// # Panics
    /// If the settings are out of range: a caller's bug.
    #[must_use]
    pub fn new(settings: Settings, regions: u32, domains: &[u32], now: Time) -> Self {
        assert!((1..=2).contains(&settings.copies), "one copy or two");
        assert!(settings.slabs_per_region > 0, "a region has slabs");
        assert!(settings.region_bytes() <= REGION_BYTES_MAX, "a long region");
        assert!(regions <= REGIONS_MAX, "at most {REGIONS_MAX} regions");
        Self {
            settings,
            regions: (0..regions).map(|_| Region::fresh()).collect(),
            hosts: domains.iter().map(|&domain| Host::new(domain)).collect(),
            clients: Clients::default(),
            requests: OWN_REQUEST,
            opens_at: now,
            actions: VecDeque::new(),
        }
    }

    /// The cache of an earlier owner, from what it recorded last. Its clients may hold their leases
    /// still, so nothing is opened before these are over. Windows are those that hosts tell of next.
    #[must_use]
    pub fn recover(settings: Settings, entries: Vec<Entry>, domains: &[u32], now: Time) -> Self {
        let mut owner = Self::new(settings, 0, domains, now);
        owner.opens_at = now.after(LEASE + LEASE_MARGIN);
        owner.regions = entries.into_iter().map(Region::recovered).collect();
        owner.actions.push_back(Action::Record);
        for host in &mut owner.hosts {
            // It may be there still: it has as long to answer as one that fell silent now.
            host.fall_silent(now);
        }
        owner
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A host is connected and owned. `held` is all that it says this owner holds there of this cache.
    pub fn handle_host_up(
        &mut self,
        now: Time,
        host: HostIndex,
        slabs_free: u32,
        held: &[HeldSlab],
    ) {
        self.hosts[host].come_up(slabs_free);
        self.compare_books(host, held);
        self.advance(now);
    }

    /// A host says how many slabs it could lend.
    pub fn handle_room(&mut self, now: Time, host: HostIndex, slabs_free: u32) {
        self.hosts[host].set_free(slabs_free);
        self.advance(now);
    }

    /// The connection to a host ended, or it is silent. Its memory may be there.
    pub fn handle_host_silent(&mut self, now: Time, host: HostIndex) {
        if self.hosts[host].fall_silent(now) {
            self.end_relocations_with(host);
        }
        self.advance(now);
    }

    /// A host's process has ended: what it held is lost, and who has no other copy is told so.
    pub fn handle_host_ended(&mut self, now: Time, host: HostIndex) {
        self.hosts[host].end();
        self.lose_host(host);
        self.advance(now);
    }

    /// The host's machine is taken back. `deadline`: when it goes, if that is known.
    pub fn handle_notice(&mut self, now: Time, host: HostIndex, deadline: Option<Time>) {
        self.hosts[host].leave(deadline);
        self.advance(now);
    }

    /// A host that was to go stays.
    pub fn handle_notice_withdrawn(&mut self, now: Time, host: HostIndex) {
        self.hosts[host].stay();
        self.advance(now);
    }

    /// A host wants some slabs back.
    pub fn handle_evict(&mut self, now: Time, host: HostIndex, windows: &[Window]) {
        for &window in windows {
            self.note_wanted_back(now, host, window);
        }
        self.advance(now);
    }

    /// A slab is lent, as asked for.
    pub fn handle_granted(&mut self, now: Time, host: HostIndex, request: u64, window: Window) {
        self.take_grant(now, host, request, window);
        self.advance(now);
    }

    /// A slab is not lent.
    pub fn handle_refused(&mut self, now: Time, host: HostIndex, request: u64, reason: Refusal) {
        self.take_refusal(now, host, request, reason);
        self.advance(now);
    }

    /// A fill ended.
    pub fn handle_filled(&mut self, now: Time, host: HostIndex, request: u64, result: FillResult) {
        self.take_filled(now, host, request, result);
        self.advance(now);
    }

    /// A client came. It is told of every region, and asks for its lease then. False: there are too many.
    #[must_use]
    pub fn handle_client_joined(&mut self, now: Time, client: ClientNumber) -> bool {
        if !self.clients.join(now, client, self.regions.len()) {
            return false;
        }
        // It may have writes under way that it began as an earlier client: it says itself what it knows.
        for region in 0..self.regions.len() {
            let entry = self.entry(region);
            self.actions.push_back(Action::Tell { client, entry });
        }
        self.advance(now);
        true
    }

    /// A client asks for its lease, or for more of it. The driver answers it, behind what it was told.
    #[must_use]
    pub fn handle_client_alive(&mut self, now: Time, client: ClientNumber) -> Renewal {
        let overdue = |region: &Region| region.told_at.is_some_and(|at| now.since(at) >= LEASE);
        let regions = self.regions.iter().enumerate();
        let overdue: Vec<(usize, u64)> = regions
            .filter(|(_, region)| overdue(region))
            .map(|(at, region)| (at, region.generation))
            .collect();
        self.clients.renew(now, client, &overdue)
    }

    /// A client has no write under way that was begun before it knew this generation of the region.
    pub fn handle_known(
        &mut self,
        now: Time,
        client: ClientNumber,
        region: usize,
        generation: u64,
    ) {
        if region < self.regions.len() {
            self.clients.note_known(client, region, generation);
        }
        self.advance(now);
    }

    /// A client said goodbye, with nothing under way. One whose connection broke keeps its lease: its
    /// process may be there.
    pub fn handle_client_left(&mut self, now: Time, client: ClientNumber) {
        self.clients.leave(client);
        self.advance(now);
    }

    /// Makes the cache longer or shorter. What is cut off is lost.
    ///
    /// # Panics
    /// If it is more than [`REGIONS_MAX`]: a caller's bug.
    pub fn handle_resize(&mut self, now: Time, regions: u32) {
        assert!(regions <= REGIONS_MAX, "at most {REGIONS_MAX} regions");
        self.resize(regions as usize);
        self.advance(now);
    }

    /// Time passed. Call it at [`Owner::due`].
    pub fn handle_tick(&mut self, now: Time) {
        self.advance(now);
    }

    /// When it wants a tick although nothing happens; leases and pauses end by themselves.
    #[must_use]
    pub fn due(&self, now: Time) -> Time {
        const TICK: Duration = Duration::from_millis(100);
        now.after(TICK)
    }

    /// What holds for each region, as clients are told, and where the next owner finds it.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        (0..self.regions.len()).map(|r| self.entry(r)).collect()
    }

    /// Where the region's relocation is.
    #[must_use]
    pub fn stage(&self, region: usize) -> Stage {
        self.regions[region].stage()
    }

    /// Whether every region has all its copies, on hosts that stay, and is open.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let at_rest = |region: &Region| {
            region.is_cut()
                || region.stage() == Stage::Open
                    && region.copies.len() == self.settings.copies
                    && !region.copies.iter().any(|copy| self.is_wanted_back(copy))
        };
        self.regions.iter().all(at_rest)
    }

    /// Regions whose bytes would go with the host.
    #[must_use]
    pub fn only_copies_on(&self, host: HostIndex) -> usize {
        let only = |region: &&Region| matches!(&region.copies[..], [copy] if copy.host == host);
        self.regions.iter().filter(only).count()
    }

    fn entry(&self, region: usize) -> Entry {
        self.regions[region].entry(region)
    }

    /// Gives a region another generation and tells every client.
    fn publish(&mut self, region: usize, access: Access) {
        let changed = &mut self.regions[region];
        changed.access = access;
        changed.generation += 1;
        changed.told_at = None;
        let entry = changed.entry(region);
        self.actions.push_back(Action::Record);
        for client in self.clients.numbers() {
            let entry = entry.clone();
            self.actions.push_back(Action::Tell { client, entry });
        }
    }

    /// Whether no client acts on an older generation of the region any more.
    fn is_known(&self, region: usize, now: Time) -> bool {
        is_planted(Planted::NoBarrier)
            || now >= self.opens_at
                && self
                    .clients
                    .all_know(region, self.regions[region].generation, now)
    }

    fn unmap(&mut self, copy: &Copy) {
        if is_planted(Planted::StaleServed) {
            return;
        }
        for &window in &copy.windows {
            let host = copy.host;
            self.actions.push_back(Action::Unmap { host, window });
        }
    }
}
