//! What one process of a host tells the next: the book, without what nobody was given.
//!
//! Bytes in, bytes out; the memory itself and its windows are the daemon's to pass on. Prepared
//! slabs and requests that wait are not handed over: nobody knows of them. Byte table:
//! `docs/formats/handover.md`.
//!
//! Invariant: a client that comes back finds exactly the slabs that it held, under the same
//! windows, and a lease that is as old as it was.

use std::time::Duration;

use cenote_wire::{Layout, List, Reader, Since, Taken, Text, Writer, messages};

use crate::control::{ADDRESS_BYTES_MAX, Counters, HeldSlab, Malformed, NAME_BYTES_MAX};
use crate::injected_faults::{InjectedFault, is_injected};

use super::leases::Lease;
use super::owners::Owner;
use super::{Grant, Ledger, Limits, Slab, SlabIndex, StripeMember};

/// First bytes of a handover, with its version. Another version is refused, not guessed at.
const MAGIC_1: u64 = u64::from_le_bytes(*b"cnteho\x01\0");
/// The second version also says whether and when the host goes.
const MAGIC_2: u64 = u64::from_le_bytes(*b"cnteho\x02\0");
/// As many as there are.
const ANY: usize = u32::MAX as usize;

messages! {
    /// Everything that the next process needs besides its configuration and the memory.
    #[derive(Clone, Debug, Default, Eq, PartialEq)]
    pub struct Handover checked by Handover::check {
        /// Size of every slab.
        pub slab_bytes: u64,
        /// Where the host listened, with the ports that the system chose.
        pub addresses: Vec<String> as List<u32, 0, ANY, Text<u8, ADDRESS_BYTES_MAX>>,
        /// What happened so far.
        pub counters: Counters,
        /// Whether the host gives its slabs back.
        pub draining: bool,
        /// Clients with slabs.
        pub clients: Vec<HandedClient> as List<u32, 0, ANY>,
        /// Lent slabs, the oldest grant first; their memory is passed beside this, in this order.
        pub slabs: Vec<HandedSlab> as List<u32, 0, ANY>,
        /// Who may map a volume: volume, client, the owner's epoch.
        pub owners: Vec<(u128, u128, u64)> as List<u32, 0, ANY>,
        /// Whether it ends once it has.
        pub stops: bool as Since<2>,
        /// When its machine goes, from now on, if somebody said so.
        pub goes_in: Option<Duration> as Since<2, Millis>,
    }

    /// A client that holds slabs.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct HandedClient {
        /// Its identity.
        pub id: u128,
        /// As it named itself.
        pub name: String as Text<u8, NAME_BYTES_MAX>,
        /// Since it was last heard of.
        pub silent: Duration as Millis,
        /// Since its lease ran out.
        pub orphaned: Option<Duration> as Millis,
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
                maps: self.granted,
                unmaps: self.given_back,
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
        // A host that is drained already lends again, unless it was to end then.
        let drains = handover.draining && (!handover.slabs.is_empty() || handover.stops);
        ledger.draining = drains.then_some(now);
        ledger.leases.begin_at(handover.counters.leases_expired);
        ledger.orphans_taken = handover.counters.orphans_taken;
        ledger.granted = handover.counters.maps;
        ledger.given_back = handover.counters.unmaps;
        for client in &handover.clients {
            let lease = Lease {
                name: client.name.clone(),
                connected: false,
                slabs: 0,
                last_seen: now.saturating_sub(client.silent),
                orphaned_since: client.orphaned.map(|age| now.saturating_sub(age)),
                gave_back: None,
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
                asked_again: None,
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
        // The older version where it says as much, so that either program can follow the other.
        let says_more = self.stops || self.goes_in.is_some();
        let (magic, version) = if says_more {
            (MAGIC_2, 2)
        } else {
            (MAGIC_1, 1)
        };
        let mut out = Writer::of_version(version, &mut bytes);
        out.put(&magic);
        out.put(self);
        bytes
    }

    /// Reads what [`Handover::encode`] made, to its last byte.
    ///
    /// # Errors
    /// [`Malformed`]: another version, cut, or contradicting itself.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (magic, rest) = bytes
            .split_first_chunk()
            .ok_or(Malformed("message ends early"))?;
        let version = match u64::from_le_bytes(*magic) {
            MAGIC_1 => 1,
            MAGIC_2 => 2,
            _ => return Err(Malformed("no handover, or of another version")),
        };
        Ok(Reader::of_version(version, rest).whole()?)
    }

    fn check(&self) -> Taken<()> {
        let known = |slab: &HandedSlab| self.clients.iter().any(|c| c.id == slab.client);
        if self.slabs.iter().all(known) {
            Ok(())
        } else {
            let wrong = "a slab of a client that is not named";
            Err(cenote_wire::Malformed(wrong))
        }
    }
}

/// Ages in milliseconds; all ones stand for none.
struct Millis;

impl<'a> Layout<'a, Duration> for Millis {
    fn put(value: &Duration, out: &mut Writer<'_>) {
        let millis = u64::try_from(value.as_millis());
        out.put(&millis.unwrap_or(u64::MAX - 1));
    }

    fn take(input: &mut Reader<'a>) -> Taken<Duration> {
        input.take().map(Duration::from_millis)
    }
}

impl<'a> Layout<'a, Option<Duration>> for Millis {
    fn put(value: &Option<Duration>, out: &mut Writer<'_>) {
        match value {
            Some(age) => out.put_as::<Self, _>(age),
            None => out.put(&u64::MAX),
        }
    }

    fn take(input: &mut Reader<'a>) -> Taken<Option<Duration>> {
        let millis: u64 = input.take()?;
        Ok((millis != u64::MAX).then(|| Duration::from_millis(millis)))
    }
}
