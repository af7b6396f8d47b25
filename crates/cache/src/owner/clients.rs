//! Which clients there are, until when each may act on what it was told, and what it knows.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_fabric::Time;

/// A client, as the driver numbers them. Never reused.
pub type ClientNumber = u64;

/// How long a client acts on what it was told after it last asked for its lease.
///
/// A region whose client is stopped waits this long to change. Arbitrary: twice the failure timeout,
/// so that a client on a busy machine keeps it.
pub const LEASE: Duration = Duration::from_secs(2);

/// How much longer the owner waits. Both clocks are the machine's or as steady.
pub const LEASE_MARGIN: Duration = Duration::from_millis(100);

/// The clients of a cache.
#[derive(Debug, Default)]
pub struct Clients(BTreeMap<ClientNumber, Client>);

#[derive(Debug)]
struct Client {
    renewed_at: Time,
    /// The generation of each region that it acts on; 0: it was told of none.
    known: Vec<u64>,
}

impl Clients {
    pub fn join(&mut self, now: Time, client: ClientNumber, regions: usize) {
        let known = vec![0; regions];
        let renewed_at = now;
        self.0.insert(client, Client { renewed_at, known });
    }

    pub fn leave(&mut self, client: ClientNumber) {
        self.0.remove(&client);
    }

    pub fn renew(&mut self, now: Time, client: ClientNumber) -> bool {
        let renewed = |client: &mut Client| client.renewed_at = now;
        self.0.get_mut(&client).map(renewed).is_some()
    }

    pub fn numbers(&self) -> Vec<ClientNumber> {
        self.0.keys().copied().collect()
    }

    pub fn note_known(&mut self, client: ClientNumber, region: usize, generation: u64) {
        let Some(client) = self.0.get_mut(&client) else {
            return;
        };
        if client.known.len() <= region {
            client.known.resize(region + 1, 0);
        }
        client.known[region] = client.known[region].max(generation);
    }

    /// Whether each client knows the generation, or has lost its lease.
    pub fn all_know(&self, region: usize, generation: u64, now: Time) -> bool {
        self.0.values().all(|client| {
            client.known.get(region).is_some_and(|&g| g >= generation) || client.is_over(now)
        })
    }

    /// Forgets those whose lease is over.
    pub fn drop_silent(&mut self, now: Time) {
        self.0.retain(|_, client| !client.is_over(now));
    }
}

impl Client {
    fn is_over(&self, now: Time) -> bool {
        now.since(self.renewed_at) >= LEASE + LEASE_MARGIN
    }
}
