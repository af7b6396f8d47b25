//! The owner of a cache: which machine holds each region, and how that changes in use.
//!
//! Pure: events come in by `handle_*` with the time, [`Action`]s go out by [`Owner::poll_action`],
//! oldest first. The process that drives it talks to hosts and clients; the simulator drives the
//! same type.
//!
//! A region goes round one relocation at a time (`region`):
//!
//! ```text
//! OPEN -> PLACING -> READY -> DRAINING -> [FENCING] -> FILLING -> SWITCHING -> OPEN
//! OPEN -> FENCING -> OPEN                                        doubtful, one copy
//! OPEN -> DRAINING -> FENCING -> FILLING -> SWITCHING -> OPEN    doubtful, two copies
//! ```
//!
//! Invariants: while two copies of a region are not both current, no client writes to it (R1);
//! memory is given back only when every client knows that it is, or has lost its lease (R2); what
//! was written and acknowledged is in every copy that a client may read. [`audit`] asserts what can
//! be seen from here.
//!
//! Paper: \[redy22\] section 5 (region table, migration); copies are ours. Decision 71.

mod action;
mod apart;
mod audit;
mod books;
mod checkpoints;
mod clients;
mod fence;
mod host;
mod life;
mod outdated;
mod planner;
mod record;
mod region;
mod relocation;
mod roster;
mod settings;
mod standstill;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{FillResult, HeldSlab, Refusal, Window};

pub use action::{Action, OWN_REQUEST, SlabOf};
use apart::Apart;
pub use checkpoints::{HOLD_MAX, Held, Hold, Restored};
pub use clients::{CLIENTS_MAX, ClientNumber, LEASE, LEASE_MARGIN, Renewal};
use clients::{Clients, Role};
use host::Host;
pub use host::HostIndex;
use outdated::Outdated;
pub use record::{BadRecord, HOSTS_MAX, Record};
pub use region::{Access, Copy, Entry, Stage};
use region::{Contents, Region, Renewing};
pub use relocation::{ANSWER_LIMIT, FILLS_AHEAD};
pub use roster::HostSummary;
pub use settings::{REGION_BYTES_MAX, REGIONS_MAX, Settings};

use crate::injected_faults::{InjectedFault, is_injected};

/// Whether this owner decides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reign {
    /// Nobody said otherwise. No other can have begun before `until`.
    Stands { until: Time },
    /// A host has seen a later owner: nothing is done or granted any more.
    Superseded,
}

/// How long a cache is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Life {
    /// Until it is deleted.
    Unbounded,
    /// Until nobody has renewed it for so long.
    Leased { duration: Duration, until: Time },
    /// It is over, and its slabs go back.
    Over,
}

/// What is put off while the driver keeps a record.
#[derive(Debug)]
pub(super) struct Recording {
    since: Time,
    /// Regions whose entry changed.
    untold: BTreeSet<usize>,
    /// Clients that came.
    newcomers: BTreeSet<ClientNumber>,
    /// Something happened from which nothing was concluded yet.
    is_behind: bool,
    /// The table as it is recorded, where that is known: what clients go by meanwhile.
    kept: Option<Vec<Entry>>,
}

/// The owner of one cache. See the module's text.
#[derive(Debug)]
pub struct Owner {
    settings: Settings,
    regions: Vec<Region>,
    hosts: Vec<Host>,
    clients: Clients,
    requests: u64,
    /// Windows that are being renewed, by request.
    renewing: BTreeMap<u64, Renewing>,
    reign: Reign,
    life: Life,
    /// Nothing is opened before: clients of an earlier owner may still have their lease.
    opens_at: Time,
    actions: VecDeque<Action>,
    /// Copies on hosts that leave, which nobody uses any more.
    idle: Vec<Copy>,
    /// A record is among them. It will have everything that is decided before it is taken.
    is_record_queued: bool,
    /// The driver keeps a record.
    recording: Option<Recording>,
    /// The driver may soon carry nothing out.
    is_wary: bool,
    /// Procedures of hosts write to regions with two copies.
    hosts_write: bool,
    /// The last time that anything was concluded.
    looked_at: Time,
    /// The last time at which no host was up.
    cut_off_until: Time,
    /// Regions that a checkpoint has, and of when.
    saved: BTreeMap<u32, u64>,
    outdated: Outdated,
    apart: Apart,
}

impl Owner {
    /// A new cache of `regions` regions that nobody uses yet. `domains` has one entry per host:
    /// hosts that fail together share a number.
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
            renewing: BTreeMap::new(),
            reign: Reign::Stands {
                until: Time(u64::MAX),
            },
            life: Life::Unbounded,
            opens_at: now,
            actions: VecDeque::new(),
            idle: Vec::new(),
            is_record_queued: false,
            recording: None,
            is_wary: false,
            hosts_write: false,
            looked_at: now,
            cut_off_until: now,
            saved: BTreeMap::new(),
            outdated: Outdated::default(),
            apart: Apart::default(),
        }
    }

    /// The cache of an earlier owner, from what it recorded last ([`Record::for_hosts`]). Its
    /// clients may hold their leases still, so nothing is opened before these are over. Windows are
    /// those that hosts tell of next. Hosts that are not among `domains` are taken for silent.
    ///
    /// # Errors
    /// What does not fit the settings: the record is another cache's, or damaged.
    pub fn recover(
        settings: Settings,
        record: Record,
        domains: &[u32],
        now: Time,
    ) -> Result<Self, BadRecord> {
        record.check(&settings)?;
        let mut owner = Self::new(settings, 0, domains, now);
        owner.opens_at = now.after(LEASE + LEASE_MARGIN);
        for (number, name) in (0..).zip(&record.hosts).skip(domains.len()) {
            // Nothing else fails with it, as far as is known.
            owner.hosts.push(Host::absent(u32::MAX - number, name));
        }
        for host in &mut owner.hosts {
            // It may be there still: it has as long to answer as one that fell silent now.
            host.fall_silent(now);
        }
        for host in record.leaving {
            owner.hosts[host].leave(None);
        }
        owner.regions = record.entries.into_iter().map(Region::recovered).collect();
        owner.outdated = Outdated::recovered(record.outdated);
        owner.push_record();
        if let Some(duration) = record.duration {
            let until = now.after(duration);
            owner.life = Life::Leased { duration, until };
        }
        Ok(owner)
    }

    /// The next thing to do. Nothing, once another owner has the cache.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.is_superseded() {
            self.actions.clear();
        }
        let action = self.actions.pop_front();
        self.is_record_queued &= action != Some(Action::Record);
        action
    }

    /// A host is connected and owned. `held` is all that it says this owner holds there of this
    /// cache.
    pub fn handle_host_up(
        &mut self,
        now: Time,
        host: HostIndex,
        slabs_free: u32,
        held: &[HeldSlab],
    ) {
        self.drop_actions_for(host);
        self.hosts[host].come_up(slabs_free);
        self.apart.forget(host);
        // What an earlier session asked for is not answered any more.
        self.forget_renewing(host);
        self.end_relocations_with(host, now);
        self.end_fills_by(host);
        self.compare_books(now, host, held);
        self.advance(now);
    }

    /// A host that is connected says what it holds, once more: a client met what the table does not
    /// say.
    pub fn handle_books(&mut self, now: Time, host: HostIndex, held: &[HeldSlab]) {
        self.compare_books(now, host, held);
        self.advance(now);
    }

    /// A host says how many slabs it could lend.
    pub fn handle_room(&mut self, now: Time, host: HostIndex, slabs_free: u32) {
        self.hosts[host].set_free(slabs_free);
        self.advance(now);
    }

    /// The connection to a host ended, or it is silent. Its memory may be there.
    pub fn handle_host_silent(&mut self, now: Time, host: HostIndex) {
        self.fall_silent(now, host);
        self.advance(now);
    }

    /// A host's process has ended: what it held is lost, and who has no other copy is told so.
    pub fn handle_host_ended(&mut self, now: Time, host: HostIndex) {
        self.drop_actions_for(host);
        self.end_host(host);
        self.lose_host(host, now);
        self.advance(now);
    }

    /// A host is there and does not pass to this owner yet: it heard from the one before not long ago.
    pub fn handle_host_kept(&mut self, now: Time, host: HostIndex) {
        self.fall_silent(now, host);
        self.hosts[host].note_answer(now);
        self.advance(now);
    }

    /// The host's machine is taken back, as somebody else than the host says. `deadline`: when it
    /// goes, if that is known.
    pub fn handle_notice(&mut self, now: Time, host: HostIndex, deadline: Option<Time>) {
        if !self.hosts[host].is_told_to_leave() {
            self.push_record();
        }
        self.hosts[host].leave(deadline);
        self.advance(now);
    }

    /// Who said that a host was to go says that it stays.
    pub fn handle_notice_withdrawn(&mut self, now: Time, host: HostIndex) {
        if self.hosts[host].is_told_to_leave() {
            self.push_record();
        }
        self.hosts[host].stay();
        self.forget_wanted_back(host);
        self.advance(now);
    }

    /// A host says whether its machine is taken back, and when: in each session, so that it is not
    /// recorded.
    pub fn handle_host_notice(&mut self, now: Time, host: HostIndex, deadline: Option<Time>) {
        let was_leaving = self.hosts[host].is_leaving();
        self.hosts[host].say_notice(deadline);
        if was_leaving {
            self.forget_wanted_back(host);
        }
        self.advance(now);
    }

    /// Whether the cluster has the host no more. Its file says so to each owner, so that it is not
    /// recorded: one that is in it again stays, unless somebody else said that it is to go.
    pub fn handle_unlisted(&mut self, now: Time, host: HostIndex, is_unlisted: bool) {
        self.hosts[host].set_unlisted(is_unlisted);
        self.forget_wanted_back(host);
        self.advance(now);
    }

    /// A host wants some slabs back.
    pub fn handle_evict(&mut self, now: Time, host: HostIndex, windows: &[Window]) {
        for &window in windows {
            self.note_wanted_back(now, host, window);
        }
        self.advance(now);
    }

    /// A slab is lent, or its window renewed, as asked for.
    pub fn handle_granted(&mut self, now: Time, host: HostIndex, request: u64, window: Window) {
        if !self.take_renewed(now, host, request, window) {
            self.take_grant(now, host, request, window);
        }
        self.advance(now);
    }

    /// A slab is not lent, or its window not renewed.
    pub fn handle_refused(&mut self, now: Time, host: HostIndex, request: u64, reason: Refusal) {
        if !self.take_renewal_refused(host, request) {
            self.take_refusal(now, host, request, reason);
        }
        self.advance(now);
    }

    /// A fill ended.
    pub fn handle_filled(&mut self, now: Time, host: HostIndex, request: u64, result: FillResult) {
        self.take_filled(now, host, request, result);
        self.advance(now);
    }

    /// A client came. It is told of every region, and asks for its lease then. False: there are too
    /// many.
    #[must_use]
    pub fn handle_client_joined(&mut self, now: Time, client: ClientNumber) -> bool {
        self.join(now, client, Role::User)
    }

    /// Who has hosts told came, and is told of every region. It is waited for by nobody. False:
    /// there are too many clients.
    #[must_use]
    pub fn handle_listener_joined(&mut self, now: Time, client: ClientNumber) -> bool {
        self.join(now, client, Role::Listener)
    }

    /// A host was told all that the listener was told: its procedures use the cache. What it goes
    /// by is said and waited for as with any client; it asks for its lease next, and writes
    /// only to regions whose first copy it has. False: there are too many clients.
    #[must_use]
    pub fn handle_host_joined(&mut self, now: Time, client: ClientNumber, host: HostIndex) -> bool {
        self.join(now, client, Role::Host(host))
    }

    fn join(&mut self, now: Time, client: ClientNumber, role: Role) -> bool {
        if self.is_superseded() {
            return true;
        }
        if !self.clients.join(now, client, role, self.regions.len()) {
            return false;
        }
        if !matches!(role, Role::Host(_)) {
            // It may have writes under way that it began as an earlier client: it says itself what
            // it knows.
            self.tell_newcomer(client, role);
        }
        self.advance(now);
        true
    }

    /// [`Owner::handle_known`] of several regions, with the generation of each. What follows is
    /// concluded once: a client that joins answers for every region of the cache.
    pub fn handle_all_known(&mut self, now: Time, client: ClientNumber, known: &[(usize, u64)]) {
        self.note_all_known(client, known);
        self.advance(now);
    }

    /// The same, concluded by the next [`Owner::handle_tick`]: of a driver that takes many messages
    /// before that, each of which would have every region looked at.
    pub fn note_all_known(&mut self, client: ClientNumber, known: &[(usize, u64)]) {
        for &(region, generation) in known {
            if region < self.regions.len() {
                self.clients.note_known(client, region, generation);
            }
        }
    }

    /// A client asks for its lease, or for more of it. The driver answers it, behind what it was
    /// told.
    #[must_use]
    pub fn handle_client_alive(&mut self, now: Time, client: ClientNumber) -> Renewal {
        match self.reign {
            Reign::Superseded => return Renewal::Superseded,
            Reign::Stands { until } if now >= until => return Renewal::Withheld,
            Reign::Stands { .. } => {}
        }
        self.note_time(now);
        // While a record is kept nobody was told: the driver holds the lease back until then.
        let is_told = self.recording.is_none();
        let overdue =
            |region: &Region| is_told && region.told_at.is_some_and(|at| now.since(at) >= LEASE);
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
        self.handle_all_known(now, client, &[(region, generation)]);
    }

    /// A client says that a write which it began under this generation may land late, or is in some
    /// copies alone: its connection broke, or the client gave it up. Where the connection broke the
    /// client writes nothing to the region before the window is renewed. To be passed on before what
    /// the client knows.
    pub fn handle_doubt(
        &mut self,
        now: Time,
        client: ClientNumber,
        region: usize,
        generation: u64,
    ) {
        self.note_doubt(client, region, generation);
        self.advance(now);
    }

    /// A client said goodbye, with nothing under way. One whose connection broke keeps its lease:
    /// its process may be there.
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

    /// What the next owner is to find. `names` are those of hosts, in the order of `domains`: it may
    /// have more, from a record before.
    #[must_use]
    pub fn record(&self, names: &[String]) -> Record {
        let name = |host: usize| match names.get(host) {
            Some(name) => name.clone(),
            None => self.hosts[host].name.clone().unwrap_or_default(),
        };
        let is_leaving = |&host: &HostIndex| self.hosts[host].is_told_to_leave();
        let hosts = 0..self.hosts.len();
        Record {
            leaving: hosts.clone().filter(is_leaving).collect(),
            hosts: hosts.map(name).collect(),
            duration: self.duration(),
            outdated: self.outdated.until.clone(),
            // Memory for a copy to come is the next owner's to ask for.
            entries: self
                .entries()
                .into_iter()
                .map(|entry| Entry {
                    next: Vec::new(),
                    ..entry
                })
                .collect(),
        }
    }

    /// What holds for each region, as clients are told.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        (0..self.regions.len()).map(|r| self.entry(r)).collect()
    }

    /// Where the region's relocation is.
    #[must_use]
    pub fn stage(&self, region: usize) -> Stage {
        self.regions[region].stage()
    }

    /// Regions, those included that were cut off.
    #[must_use]
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Whether every region has all its copies, on hosts that stay, and is open.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let at_rest = |region: &Region| {
            region.is_cut()
                || region.stage() == Stage::Open
                    && region.copies.len() == self.settings.copies
                    && region.contents == Contents::Sure
                    && !region.copies.iter().any(|copy| self.is_wanted_back(copy))
        };
        self.regions.iter().all(at_rest)
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
        if access == Access::Open {
            changed.opened_at = changed.generation;
        }
        self.push_record();
        self.tell_all(region);
    }

    /// Whether no client acts on an older generation of the region any more.
    fn is_known(&self, region: usize, now: Time) -> bool {
        is_injected(InjectedFault::NoBarrier)
            || now >= self.opens_at
                && self
                    .clients
                    .all_know(region, self.regions[region].generation, now)
    }

    fn unmap(&mut self, copy: &Copy) {
        if is_injected(InjectedFault::StaleServed) {
            return;
        }
        for &window in &copy.windows {
            let host = copy.host;
            self.actions.push_back(Action::Unmap { host, window });
        }
    }
}
