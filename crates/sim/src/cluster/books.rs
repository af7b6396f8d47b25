//! Whether the books agree: at quiet moments hosts, directories and journals say the same.
//!
//! A quiet moment: no fault is outstanding, everybody reaches everybody, every extent is whole and
//! no request runs. What was on its way then arrives in a moment, and after that
//!
//! - each slab that a host lends to a client stands in that client's directory, and each slab of a
//!   directory is lent by its host, to that client, for that place, in that window;
//! - a journal names the slabs of its directory and no others;
//! - a volume that has an owner has no other owner at any host, and no slab with anybody else;
//! - slabs of clients that are gone wait for a new owner as orphans.
//!
//! The books are compared by the simulator itself, and not by the `HELD` that hosts answer: whether
//! that puts them right is what is looked at. Decision 43.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cenote_pool::control::Window;
use cenote_pool::ledger::{Handover, LEASE};

use super::client::Client;
use super::world::World;

/// Virtual time in which the books must come to agree once everything is quiet: an answer, or a
/// journal that the disk refused a moment ago.
const AGREED_MAX: Duration = Duration::from_secs(5);
/// Grain of waiting for it.
const TICK: Duration = Duration::from_millis(100);
/// A host notices that much later, at most, that a lease has run out.
const NOTICED_MAX: Duration = Duration::from_secs(5);

/// A slab in somebody's book.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Slab {
    host: String,
    volume: u128,
    extent: u32,
    member: u8,
    window: (u32, u64),
    birth: u64,
}

/// A slab as a journal names it: extent, member, host and birth.
type Named = (u32, u8, String, u64);

impl World {
    /// Waits until the books agree, for a moment.
    pub(super) fn compare_books(&mut self) {
        let start = self.net.now();
        while self.violations.is_empty() {
            let Some(what) = self.disagreement() else {
                return;
            };
            if self.net.now().since(start) >= AGREED_MAX {
                return self.violate(format!("the books differ {AGREED_MAX:?} on: {what}"));
            }
            self.run_until(self.net.now().after(TICK));
        }
    }

    /// Where the books differ.
    fn disagreement(&self) -> Option<String> {
        // By client: what hosts lend to it.
        let mut lent: BTreeMap<u128, BTreeSet<Slab>> = BTreeMap::new();
        for host in &self.hosts {
            let Some(book) = host.book() else {
                return Some(format!("{} is down", host.name));
            };
            let strange = self.clients.iter().find_map(|client| former(&book, client));
            if let Some(what) = strange.or_else(|| forgotten(&book)) {
                return Some(format!("{}: {what}", host.name));
            }
            for slab in &book.slabs {
                lent.entry(slab.client).or_default().insert(Slab {
                    host: host.name.clone(),
                    volume: slab.held.volume,
                    extent: slab.held.extent,
                    member: slab.held.member,
                    window: name(&slab.held.window),
                    birth: slab.birth,
                });
            }
        }
        let mut clients = self.clients.iter();
        clients.find_map(|client| {
            let lent = lent.remove(&client.id().0).unwrap_or_default();
            self.of_client(client, &lent)
        })
    }

    /// Where a client's directory differs from what hosts lend to it, or its journal from the directory.
    fn of_client(&self, client: &Client, lent: &BTreeSet<Slab>) -> Option<String> {
        let seats = client.seats();
        let directory = seats.iter().map(|seat| Slab {
            host: self.hosts[seat.host].name.clone(),
            volume: client.volume_id(),
            extent: u32::try_from(seat.extent).expect("a simulated volume is small"),
            member: u8::try_from(seat.split).expect("at most 40 members"),
            window: (seat.window.0, seat.generation.0),
            birth: seat.birth,
        });
        let directory: BTreeSet<Slab> = directory.collect();
        if let Some(slab) = lent.difference(&directory).next() {
            return Some(format!(
                "{} holds a slab and has no use for it: {slab:?}",
                client.name
            ));
        }
        if let Some(slab) = directory.difference(lent).next() {
            return Some(format!(
                "{} does not hold a slab that it uses: {slab:?}",
                client.name
            ));
        }
        let named = client.named_slabs()?;
        let used = directory.into_iter();
        let used = used.map(|slab| (slab.extent, slab.member, slab.host, slab.birth));
        let used: BTreeSet<Named> = used.collect();
        if let Some(slab) = named.difference(&used).next() {
            return Some(format!(
                "{}'s journal names what it does not use: {slab:?}",
                client.name
            ));
        }
        let unnamed = used.difference(&named).next();
        unnamed.map(|slab| format!("{}'s journal does not name {slab:?}", client.name))
    }
}

/// What a host keeps for a former owner of a client's volume.
fn former(book: &Handover, client: &Client) -> Option<String> {
    let (id, volume) = (client.id().0, client.volume_id());
    let mut owners = book.owners.iter();
    if let Some(&(_, owner, epoch)) = owners.find(|owner| owner.0 == volume && owner.1 != id) {
        return Some(format!(
            "{}'s volume has a former owner, {owner:x}, of epoch {epoch}",
            client.name
        ));
    }
    let mut slabs = book.slabs.iter();
    let other = slabs.find(|slab| slab.held.volume == volume && slab.client != id);
    other.map(|slab| format!("a former owner of {}'s volume holds {slab:?}", client.name))
}

/// A client that is silent for longer than its lease, and whose slabs nobody may have.
fn forgotten(book: &Handover) -> Option<String> {
    let is_forgotten = |silent| silent > LEASE + NOTICED_MAX;
    let mut clients = book.clients.iter();
    let client = clients.find(|client| client.orphaned.is_none() && is_forgotten(client.silent))?;
    Some(format!(
        "slabs of {} are no orphans after {:?}",
        client.name, client.silent
    ))
}

/// What tells a window from all others of its host.
fn name(window: &Window) -> (u32, u64) {
    (window.id, window.generation)
}

impl Client {
    /// What its journal names; `None`: it has none.
    fn named_slabs(&self) -> Option<BTreeSet<Named>> {
        let named = self.estate()?.named();
        let named = named.iter().map(|(&(extent, member), slab)| {
            let (host, birth) = (slab.host.clone(), slab.birth);
            (extent, member, host, birth)
        });
        Some(named.collect())
    }
}
