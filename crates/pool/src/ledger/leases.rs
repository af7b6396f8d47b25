//! Who has been heard of when, and whose lease has run out.
//!
//! A lease by itself frees nothing: it only says whose slabs may be taken. Silence that
//! this host slept through does not count, since nobody listened.

use std::collections::BTreeMap;
use std::time::Duration;

/// A client silent for longer than this is orphaned. Long against a pause of its
/// machine, short against a person's patience.
pub const LEASE: Duration = Duration::from_secs(10);
/// An orphaned slab that nobody needs is kept this long.
pub const ORPHAN_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Longest time between two ticks of a host that runs.
pub const TICK: Duration = Duration::from_secs(1);
/// A tick later than this tells of a stopped host; less is a busy one.
const TICK_LATE: Duration = Duration::from_secs(3);

/// What a host knows of one client.
#[derive(Clone, Debug)]
pub struct Lease {
    /// As the client last named itself.
    pub name: String,
    /// Whether it has a session.
    pub connected: bool,
    /// Slabs it holds.
    pub slabs: u32,
    /// When it was last heard of, moved on by the time that this host was stopped.
    pub last_seen: Duration,
    /// Set while its lease has run out and it holds slabs.
    pub orphaned_since: Option<Duration>,
    /// When it last gave a slab back, moved on likewise.
    pub(super) gave_back: Option<Duration>,
}

/// The leases of all clients that are connected or hold slabs.
#[derive(Debug)]
pub(super) struct Leases {
    lease: Duration,
    clients: BTreeMap<u128, Lease>,
    last_tick: Duration,
    expired: u64,
}

impl Leases {
    pub(super) fn new(lease: Duration, now: Duration) -> Self {
        Self {
            lease,
            clients: BTreeMap::new(),
            last_tick: now,
            expired: 0,
        }
    }

    /// Of the clients that are gone and whose leases ran out, the one whose did so first.
    pub(super) fn longest_orphaned(&self) -> Option<u128> {
        let gone = self.clients.iter().filter(|(_, lease)| !lease.connected);
        let orphaned = gone.filter_map(|(&client, lease)| Some((lease.orphaned_since?, client)));
        orphaned.min().map(|(_, client)| client)
    }

    pub(super) fn connect(&mut self, now: Duration, client: u128, name: &str) {
        let lease = self.clients.entry(client).or_insert_with(|| Lease {
            name: String::new(),
            connected: true,
            slabs: 0,
            last_seen: now,
            orphaned_since: None,
            gave_back: None,
        });
        name.clone_into(&mut lease.name);
        lease.connected = true;
        self.renew(now, client);
    }

    /// Enters a client as it was known before.
    pub(super) fn insert(&mut self, client: u128, lease: Lease) {
        self.clients.insert(client, lease);
    }

    pub(super) fn disconnect(&mut self, client: u128) {
        if let Some(lease) = self.clients.get_mut(&client) {
            lease.connected = false;
        }
        self.forget_if_idle(client);
    }

    pub(super) fn renew(&mut self, now: Duration, client: u128) {
        if let Some(lease) = self.clients.get_mut(&client) {
            lease.last_seen = lease.last_seen.max(now);
            lease.orphaned_since = None;
        }
    }

    pub(super) fn note_given_back(&mut self, now: Duration, client: u128) {
        if let Some(lease) = self.clients.get_mut(&client) {
            lease.gave_back = Some(now);
        }
    }

    /// When the client last gave a slab back.
    pub(super) fn gave_back(&self, client: u128) -> Option<Duration> {
        self.clients.get(&client)?.gave_back
    }

    /// Counts a slab; its client is connected.
    pub(super) fn add_slab(&mut self, client: u128) {
        self.clients
            .get_mut(&client)
            .expect("only a connected client is given a slab")
            .slabs += 1;
    }

    pub(super) fn remove_slab(&mut self, client: u128) {
        let lease = self
            .clients
            .get_mut(&client)
            .expect("who holds a slab is known");
        lease.slabs -= 1;
        if lease.slabs == 0 {
            lease.orphaned_since = None;
        }
        self.forget_if_idle(client);
    }

    /// Lets leases run out; see [`super::Ledger::handle_tick`]. Returns how long this host was
    /// stopped since the last tick.
    pub(super) fn tick(&mut self, now: Duration) -> Duration {
        let pause = now.saturating_sub(self.last_tick);
        self.last_tick = self.last_tick.max(now);
        let slept = if pause > TICK_LATE {
            pause
        } else {
            Duration::ZERO
        };
        for lease in self.clients.values_mut() {
            lease.last_seen = now.min(lease.last_seen + slept);
            lease.gave_back = lease.gave_back.map(|time| now.min(time + slept));
            match &mut lease.orphaned_since {
                Some(since) => *since = now.min(*since + slept),
                None if lease.slabs > 0 && now.saturating_sub(lease.last_seen) > self.lease => {
                    lease.orphaned_since = Some(now);
                    self.expired += 1;
                }
                None => {}
            }
        }
        slept
    }

    /// Whether the client is there and was heard of less than `time` ago.
    pub(super) fn is_heard_of(&self, now: Duration, client: u128, time: Duration) -> bool {
        self.clients
            .get(&client)
            .is_some_and(|lease| lease.connected && now.saturating_sub(lease.last_seen) < time)
    }

    pub(super) fn is_connected(&self, client: u128) -> bool {
        self.clients
            .get(&client)
            .is_some_and(|lease| lease.connected)
    }

    pub(super) fn slabs(&self, client: u128) -> u32 {
        self.clients.get(&client).map_or(0, |lease| lease.slabs)
    }

    pub(super) fn orphaned_since(&self, client: u128) -> Option<Duration> {
        self.clients.get(&client)?.orphaned_since
    }

    pub(super) fn is_orphaned(&self, client: u128) -> bool {
        self.orphaned_since(client).is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u128, &Lease)> {
        self.clients.iter().map(|(&client, lease)| (client, lease))
    }

    /// How many ran out before, in an earlier process.
    pub(super) fn begin_at(&mut self, expired: u64) {
        self.expired = expired;
    }

    pub(super) fn expired(&self) -> u64 {
        self.expired
    }

    fn forget_if_idle(&mut self, client: u128) {
        if self
            .clients
            .get(&client)
            .is_some_and(|lease| !lease.connected && lease.slabs == 0)
        {
            self.clients.remove(&client);
        }
    }
}
