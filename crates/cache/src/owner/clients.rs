//! Which clients there are, until when each may act on what it was told, and what it knows.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_fabric::Time;

use super::host::HostIndex;

/// A client, as the driver numbers them. Never reused.
pub type ClientNumber = u64;

/// How long a client acts on what it was told after it last asked for its lease.
///
/// A region whose client is stopped waits this long to change. Arbitrary: twice the failure
/// timeout, so that a client on a busy machine keeps it.
pub const LEASE: Duration = Duration::from_secs(2);

/// How much longer the owner waits. Both clocks are the machine's or as steady.
pub const LEASE_MARGIN: Duration = Duration::from_millis(100);

/// Most clients of a cache, besides its hosts.
pub const CLIENTS_MAX: usize = 1024;

/// What becomes of a client's wish for its lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Renewal {
    /// It has it, from when it asked.
    Granted,
    /// It owes an answer for too long: what it has ends in its time, unless it answers.
    Withheld,
    /// Nobody knows it: it has to join.
    Unknown,
    /// The cache has another owner, which it has to find.
    Superseded,
}

/// What a client does with what it is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    /// Reads and writes anywhere.
    User,
    /// Runs procedures: reads the regions whose first copy is on this host. It writes these, and
    /// second copies for other hosts, once one said that it does. The listener tells it.
    Host(HostIndex),
    /// Is told of every change, and uses nothing.
    Listener,
}

/// What a client that is gone knew of each region.
pub(super) struct Gone {
    pub role: Role,
    pub known: Vec<u64>,
}

/// The clients of a cache.
#[derive(Debug, Default)]
pub struct Clients(BTreeMap<ClientNumber, Client>);

#[derive(Debug)]
struct Client {
    role: Role,
    joined_at: Time,
    /// `None`: it has no lease yet, acts on nothing, and is waited for by nobody.
    renewed_at: Option<Time>,
    /// The generation of each region that it acts on; 0: it was told of none.
    known: Vec<u64>,
}

impl Clients {
    /// False: there are too many users. Hosts are as many as there are, and their procedures are
    /// not to wait for a user to go.
    pub(super) fn join(
        &mut self,
        now: Time,
        client: ClientNumber,
        role: Role,
        regions: usize,
    ) -> bool {
        let users = self.0.values().filter(|one| one.role == Role::User);
        if role == Role::User && users.count() >= CLIENTS_MAX {
            return false;
        }
        let joined = Client {
            role,
            joined_at: now,
            renewed_at: None,
            known: vec![0; regions],
        };
        self.0.insert(client, joined);
        true
    }

    pub fn leave(&mut self, client: ClientNumber) {
        self.0.remove(&client);
    }

    /// Forgets one, and gives what it knew.
    pub(super) fn take(&mut self, client: ClientNumber) -> Option<Gone> {
        self.0.remove(&client).map(|mut client| client.gone())
    }

    /// `overdue`: regions with the generation that each client was to know by now.
    pub fn renew(&mut self, now: Time, client: ClientNumber, overdue: &[(usize, u64)]) -> Renewal {
        let Some(client) = self.0.get_mut(&client) else {
            return Renewal::Unknown;
        };
        // One that has just come was told just now.
        let is_new = now.since(client.joined_at) < LEASE;
        let knows = |&(region, generation): &(usize, u64)| client.knows(region, generation);
        if !is_new && !overdue.iter().all(knows) {
            return Renewal::Withheld;
        }
        client.renewed_at = Some(now);
        Renewal::Granted
    }

    /// Shifts the times since when they have their leases.
    pub fn shift(&mut self, shift: impl Fn(&mut Time)) {
        for client in self.0.values_mut() {
            shift(&mut client.joined_at);
            client.renewed_at.iter_mut().for_each(&shift);
        }
    }

    /// Those that are told of changes.
    pub fn numbers(&self) -> Vec<ClientNumber> {
        let is_told = |client: &Client| !matches!(client.role, Role::Host(_));
        let told = self.0.iter().filter(|(_, client)| is_told(client));
        told.map(|(number, _)| *number).collect()
    }

    pub fn note_known(&mut self, client: ClientNumber, region: usize, generation: u64) {
        if let Some(client) = self.0.get_mut(&client) {
            // The caller knows that there is such a region.
            if client.known.len() <= region {
                client.known.resize(region + 1, 0);
            }
            client.known[region] = client.known[region].max(generation);
        }
    }

    /// Whether each client knows the generation, or has lost its lease.
    pub fn all_know(&self, region: usize, generation: u64, now: Time) -> bool {
        self.0.values().all(|client| {
            let has_lease = client.renewed_at.is_some() && !client.is_over(now);
            !has_lease || client.knows(region, generation)
        })
    }

    /// Whether it joined, and its lease is not over for long.
    pub fn contains(&self, client: ClientNumber) -> bool {
        self.0.contains_key(&client)
    }

    /// Forgets those whose lease is over. Gives what each of them knew that had one: it may have
    /// had writes under way that it began under that, or later.
    pub(super) fn drop_silent(&mut self, now: Time) -> Vec<Gone> {
        let mut gone = Vec::new();
        self.0.retain(|_, client| {
            let is_over = client.role != Role::Listener && client.is_over(now);
            if is_over && client.renewed_at.is_some() {
                gone.push(client.gone());
            }
            !is_over
        });
        gone
    }
}

impl Client {
    fn gone(&mut self) -> Gone {
        Gone {
            role: self.role,
            known: std::mem::take(&mut self.known),
        }
    }

    fn knows(&self, region: usize, generation: u64) -> bool {
        let known = self.known.get(region);
        known.is_some_and(|&known| known >= generation)
    }

    fn is_over(&self, now: Time) -> bool {
        let last = self.renewed_at.unwrap_or(self.joined_at);
        now.since(last) >= LEASE + LEASE_MARGIN
    }
}
