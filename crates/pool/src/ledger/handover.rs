//! What one process of a host tells the next: the book, without what nobody was given.
//!
//! Bytes in, bytes out; the memory itself and its windows are the daemon's to pass on. Prepared
//! slabs and requests that wait are not handed over: nobody knows of them. Byte table:
//! `docs/formats/handover.md`.
//!
//! Invariant: a client that comes back finds exactly the slabs that it held, under the same
//! windows, and a lease that is as old as it was.

use std::time::Duration;

use crate::control::wire::{Reader, Writer};
use crate::control::{ADDRESS_BYTES_MAX, Counters, HeldSlab, Malformed, NAME_BYTES_MAX};
use crate::injected_faults::{InjectedFault, is_injected};

use super::leases::Lease;
use super::owners::Owner;
use super::{Grant, Ledger, Limits, Slab, SlabIndex, StripeMember};

/// First bytes of a handover, with its version. Another version is refused, not guessed at.
const MAGIC_1: u64 = u64::from_le_bytes(*b"cnteho\x01\0");
/// The second version also says whether and when the host goes.
const MAGIC_2: u64 = u64::from_le_bytes(*b"cnteho\x02\0");

/// Everything that the next process needs besides its configuration and the memory.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Handover {
    /// Size of every slab.
    pub slab_bytes: u64,
    /// Where the host listened, with the ports that the system chose.
    pub addresses: Vec<String>,
    /// What happened so far.
    pub counters: Counters,
    /// Whether the host gives its slabs back.
    pub draining: bool,
    /// Whether it ends once it has.
    pub stops: bool,
    /// When its machine goes, from now on, if somebody said so.
    pub goes_in: Option<Duration>,
    /// Clients with slabs.
    pub clients: Vec<HandedClient>,
    /// Lent slabs, the oldest grant first; their memory is passed beside this, in this order.
    pub slabs: Vec<HandedSlab>,
    /// Who may map a volume: volume, client, the owner's epoch.
    pub owners: Vec<(u128, u128, u64)>,
}

/// A client that holds slabs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HandedClient {
    /// Its identity.
    pub id: u128,
    /// As it named itself.
    pub name: String,
    /// Since it was last heard of.
    pub silent: Duration,
    /// Since its lease ran out.
    pub orphaned: Option<Duration>,
}

/// A slab in a client's hands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HandedSlab {
    /// The client.
    pub client: u128,
    /// What it is for, and its window.
    pub held: HeldSlab,
    /// Its first generation.
    pub birth: u64,
    /// Whether it was an earlier owner's and its client has not asked for it yet.
    pub is_left: bool,
}

impl Ledger {
    /// The book as the next process is to have it. What the daemon knows besides is left empty.
    #[must_use]
    pub fn handover(&self, now: Duration) -> Handover {
        let mut grants: Vec<&Grant> = self.grants().map(|(_, grant)| grant).collect();
        grants.sort_by_key(|grant| grant.sequence);
        if is_injected(InjectedFault::ForgetSlab) {
            grants.pop();
        }
        let clients = self.clients().filter(|(_, lease)| lease.slabs > 0);
        Handover {
            draining: self.draining.is_some(),
            counters: Counters {
                leases_expired: self.leases_expired(),
                orphans_taken: self.orphans_taken,
                ..Counters::default()
            },
            clients: clients
                .map(|(id, lease)| HandedClient {
                    id,
                    name: lease.name.clone(),
                    silent: now.saturating_sub(lease.last_seen),
                    orphaned: lease.orphaned_since.map(|since| now.saturating_sub(since)),
                })
                .collect(),
            slabs: grants.into_iter().map(HandedSlab::from).collect(),
            owners: self
                .owners
                .iter()
                .map(|(&volume, owner)| (volume, owner.client, owner.epoch))
                .collect(),
            ..Handover::default()
        }
    }

    /// The book of a host whose earlier process handed it over: slab `i` is the `i`-th slab of the
    /// handover. More slabs than the limits say are kept all the same: they are lent.
    #[must_use]
    pub fn inherit(limits: Limits, now: Duration, handover: &Handover) -> Self {
        let held = u32::try_from(handover.slabs.len()).unwrap_or(SlabIndex::MAX);
        let limits = Limits {
            slabs_total: limits.slabs_total.max(held),
            ..limits
        };
        let mut ledger = Self::empty(limits, now);
        // A host that is drained already lends again.
        let drains = handover.draining && !handover.slabs.is_empty();
        ledger.draining = drains.then_some(now);
        ledger.leases.begin_at(handover.counters.leases_expired);
        ledger.orphans_taken = handover.counters.orphans_taken;
        for client in &handover.clients {
            let lease = Lease {
                name: client.name.clone(),
                connected: false,
                slabs: 0,
                last_seen: now.saturating_sub(client.silent),
                orphaned_since: client.orphaned.map(|age| now.saturating_sub(age)),
            };
            ledger.leases.insert(client.id, lease);
        }
        for (index, slab) in handover.slabs.iter().enumerate() {
            ledger.grants += 1;
            let HeldSlab {
                volume,
                extent,
                member,
                window,
            } = slab.held;
            ledger.slabs[index] = Slab::Mapped(Grant {
                client: slab.client,
                place: StripeMember {
                    volume,
                    extent,
                    member,
                },
                window,
                birth: slab.birth,
                is_left: slab.is_left,
                declined: false,
                asked: None,
                renewal: None,
                sequence: ledger.grants,
            });
            ledger.leases.add_slab(slab.client);
        }
        let owners = handover.owners.iter();
        ledger.owners = owners
            .map(|&(volume, client, epoch)| (volume, Owner { client, epoch }))
            .collect();
        ledger.prepare_ahead(now);
        ledger
    }

    /// Slabs of a client in the order in which they were granted, `skip` and at most `count`.
    #[must_use]
    pub fn held(&self, client: u128, skip: usize, count: usize) -> Vec<HeldSlab> {
        let mut held: Vec<&Grant> = self
            .grants()
            .map(|(_, grant)| grant)
            .filter(|grant| grant.client == client)
            .collect();
        held.sort_by_key(|grant| grant.sequence);
        let some = held.into_iter().skip(skip).take(count);
        some.map(|grant| HandedSlab::from(grant).held).collect()
    }
}

impl From<&Grant> for HandedSlab {
    fn from(grant: &Grant) -> Self {
        Self {
            client: grant.client,
            held: HeldSlab {
                volume: grant.place.volume,
                extent: grant.place.extent,
                member: grant.place.member,
                window: grant.window,
            },
            birth: grant.birth,
            is_left: grant.is_left,
        }
    }
}

impl Handover {
    /// Its bytes.
    ///
    /// # Panics
    /// If an address or a name is longer than the control protocol allows.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = Writer(&mut bytes);
        let count = |len: usize| u32::try_from(len).expect("bounded by slabs and clients");
        // The older version where it says as much, so that either program can follow the other.
        let is_first = !self.stops && self.goes_in.is_none();
        out.u64(if is_first { MAGIC_1 } else { MAGIC_2 });
        out.u64(self.slab_bytes);
        out.u32(count(self.addresses.len()));
        for address in &self.addresses {
            out.text(address, ADDRESS_BYTES_MAX);
        }
        self.counters.write(&mut out);
        out.u8(u8::from(self.draining));
        out.u32(count(self.clients.len()));
        for client in &self.clients {
            out.u128(client.id);
            out.text(&client.name, NAME_BYTES_MAX);
            out.u64(millis(client.silent));
            out.u64(client.orphaned.map_or(u64::MAX, millis));
        }
        out.u32(count(self.slabs.len()));
        for slab in &self.slabs {
            out.u128(slab.client);
            out.u128(slab.held.volume);
            out.u32(slab.held.extent);
            out.u8(slab.held.member);
            out.window(slab.held.window);
            out.u64(slab.birth);
            out.u8(u8::from(slab.is_left));
        }
        out.u32(count(self.owners.len()));
        for &(volume, client, epoch) in &self.owners {
            out.u128(volume);
            out.u128(client);
            out.u64(epoch);
        }
        if !is_first {
            out.u8(u8::from(self.stops));
            out.u64(self.goes_in.map_or(u64::MAX, millis));
        }
        bytes
    }

    /// Reads what [`Handover::encode`] made, to its last byte.
    ///
    /// # Errors
    /// [`Malformed`]: another version, cut, or contradicting itself.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes);
        let magic = input.u64()?;
        if ![MAGIC_1, MAGIC_2].contains(&magic) {
            return Err(Malformed("no handover, or of another version"));
        }
        let mut handover = Self {
            slab_bytes: input.u64()?,
            ..Self::default()
        };
        for _ in 0..input.u32()? {
            handover.addresses.push(input.text(ADDRESS_BYTES_MAX)?);
        }
        handover.counters = Counters::read(&mut input)?;
        handover.draining = input.bool()?;
        for _ in 0..input.u32()? {
            handover.clients.push(HandedClient {
                id: input.u128()?,
                name: input.text(NAME_BYTES_MAX)?,
                silent: Duration::from_millis(input.u64()?),
                orphaned: optional_millis(&mut input)?,
            });
        }
        for _ in 0..input.u32()? {
            handover.slabs.push(HandedSlab {
                client: input.u128()?,
                held: HeldSlab {
                    volume: input.u128()?,
                    extent: input.u32()?,
                    member: input.u8()?,
                    window: input.window()?,
                },
                birth: input.u64()?,
                is_left: input.bool()?,
            });
        }
        for _ in 0..input.u32()? {
            let owner = (input.u128()?, input.u128()?, input.u64()?);
            handover.owners.push(owner);
        }
        if magic == MAGIC_2 {
            handover.stops = input.bool()?;
            handover.goes_in = optional_millis(&mut input)?;
        }
        input.end()?;
        let known = |slab: &HandedSlab| handover.clients.iter().any(|c| c.id == slab.client);
        if !handover.slabs.iter().all(known) {
            return Err(Malformed("a slab of a client that is not named"));
        }
        Ok(handover)
    }
}

fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX - 1)
}

/// All ones stand for none.
fn optional_millis(input: &mut Reader<'_>) -> Result<Option<Duration>, Malformed> {
    let millis = input.u64()?;
    Ok((millis != u64::MAX).then(|| Duration::from_millis(millis)))
}
