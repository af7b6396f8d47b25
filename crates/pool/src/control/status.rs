//! What a host says about itself when asked for its status.

use serde::{Serialize, Serializer};

use super::wire::{Reader, Writer};
use super::{Malformed, NAME_BYTES_MAX};

/// Most clients listed in one status; `clients_total` counts all.
pub const STATUS_CLIENTS_MAX: usize = 128;

/// A host's view of itself.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct HostStatus {
    /// The host's name.
    pub name: String,
    /// Its failure domain.
    pub domain: String,
    /// One life of the host process; another number after a restart.
    pub incarnation: u64,
    /// Since the process began to serve.
    pub uptime_s: u64,
    /// Size of a slab.
    pub slab_bytes: u64,
    /// Memory that the host was told to lend.
    pub memory_bytes: u64,
    /// Memory in slabs that are mapped or orphaned.
    pub lent_bytes: u64,
    /// Whether lent memory is locked into RAM.
    pub locked: bool,
    /// Slabs by state.
    pub slabs: SlabCounts,
    /// Events since the process began to serve.
    pub counters: Counters,
    /// Clients with slabs or a connection, also those beyond [`STATUS_CLIENTS_MAX`].
    pub clients_total: u32,
    /// The clients with the most slabs first.
    pub clients: Vec<ClientStatus>,
    /// Whether it gives its slabs back and lends nothing. Version 1 does not say: false.
    pub draining: bool,
    /// Version of its program, as text. Version 1 does not say: empty.
    pub program: String,
    /// What it makes of the memory around it. Versions 1 and 2 do not say: zeros.
    pub pressure: PressureStatus,
    /// Connections that had not proven the key. Versions before 5 say nothing of them: zeros.
    pub strangers: StrangerCounts,
}

/// What became of connections to a host before they proved the cluster's key, since it began to serve.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct StrangerCounts {
    /// Connections accepted.
    pub accepted: u64,
    /// That proved the key.
    pub proven: u64,
    /// What they said does not open under the key: another one, or another protocol.
    pub wrong_key: u64,
    /// That speak no version that the host speaks.
    pub wrong_version: u64,
    /// That hung up.
    pub hung_up: u64,
    /// That had not proven it in time.
    pub late: u64,
    /// That had to go for others, as too many came.
    pub displaced: u64,
    /// That have not ended yet.
    pub waiting: u64,
}

/// What a host leaves to the rest of its machine, and what that costs its clients.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct PressureStatus {
    /// Whether it looks at its machine's memory at all; when not, the rest says nothing.
    pub watched: bool,
    /// Whether programs waited for memory when it last looked.
    pub stalled: bool,
    /// Memory of the machine, or that the host's control group may use.
    pub total_bytes: u64,
    /// What all but the host's slabs uses, on average.
    pub used_bytes: u64,
    /// What is left besides both.
    pub free_bytes: u64,
    /// What is to be left.
    pub headroom_bytes: u64,
    /// Below this much left, a slab may be taken from a client that does not answer.
    pub floor_bytes: u64,
    /// Most slabs that it may have memory for now.
    pub slabs_max: u32,
    /// Slabs that clients are asked to give back now.
    pub asked_back: u32,
    /// Slabs that clients were asked to give back so far, ...
    pub evictions_asked: u64,
    /// ... that they then gave back, ...
    pub evictions_done: u64,
    /// ... and that were taken from a client that did not answer: this host's failures.
    pub slabs_taken: u64,
    /// Memory that clients on this machine may reclaim pages into now. Versions before 4 say
    /// nothing of this: 0.
    pub reclaim_bytes: u64,
    /// What those clients still have on hosts.
    pub away_bytes: u64,
    /// Times that there was such memory, after there was none.
    pub reclaims: u64,
}

/// Slabs of a host by state; they add up to what it lends in all.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct SlabCounts {
    /// No memory behind it yet.
    pub free: u32,
    /// Being populated.
    pub preparing: u32,
    /// Populated and zero, ready to be granted.
    pub prepared: u32,
    /// In use by a client.
    pub mapped: u32,
    /// Held for a client that has been silent for longer than its lease.
    pub orphaned: u32,
    /// Taken back; its memory is on the way to the system.
    pub retired: u32,
}

impl SlabCounts {
    /// All slabs.
    #[must_use]
    pub fn total(&self) -> u32 {
        let lent = self.mapped.saturating_add(self.orphaned);
        self.available().saturating_add(lent)
    }

    /// Slabs that a client could get without another one losing any.
    #[must_use]
    pub fn available(&self) -> u32 {
        let made = self.preparing.saturating_add(self.prepared);
        self.free.saturating_add(made).saturating_add(self.retired)
    }
}

/// Events of a host since it began to serve.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Counters {
    /// Slabs granted.
    pub maps: u64,
    /// Slabs given back by their client.
    pub unmaps: u64,
    /// Requests for a slab that were refused.
    pub refused: u64,
    /// Fills that ended well.
    pub fills: u64,
    /// Fills that ended otherwise.
    pub fills_failed: u64,
    /// Bytes written by fills.
    pub fill_bytes: u64,
    /// Control connections accepted.
    pub connections: u64,
    /// Messages that no client should send.
    pub malformed: u64,
    /// Times a lease ran out.
    pub leases_expired: u64,
    /// Orphaned slabs taken from their client.
    pub orphans_taken: u64,
}

/// One client as a host sees it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct ClientStatus {
    /// As the client named itself.
    pub name: String,
    /// Its identity.
    #[serde(serialize_with = "as_hex")]
    pub id: u128,
    /// Slabs it holds.
    pub slabs: u32,
    /// Since the host last heard of it.
    pub last_seen_ms: u64,
    /// Whether its lease has run out.
    pub orphaned: bool,
    /// Slabs that it was asked for and has nowhere to put. Version 1 does not say: 0.
    pub declined: u32,
    /// Version of the messages that it speaks; 0: not connected, or the host does not say.
    pub version: u8,
}

fn as_hex<S: Serializer>(id: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{id:032x}"))
}

impl HostStatus {
    /// Slabs that a client could get without another one losing any.
    #[must_use]
    pub fn slabs_free(&self) -> u32 {
        if self.draining {
            return 0;
        }
        let available = self.slabs.available();
        if !self.pressure.watched {
            return available;
        }
        let held = self.slabs.mapped.saturating_add(self.slabs.orphaned);
        available.min(self.pressure.slabs_max.saturating_sub(held))
    }

    /// Slabs that it would lend to who asks now: orphans go for them.
    #[must_use]
    pub fn slabs_lendable(&self) -> u32 {
        if self.draining {
            return 0;
        }
        let left = self.slabs.available().saturating_add(self.slabs.orphaned);
        if !self.pressure.watched {
            return left;
        }
        left.min(self.pressure.slabs_max.saturating_sub(self.slabs.mapped))
    }

    pub(super) fn write(&self, version: u8, out: &mut Writer<'_>) {
        out.text(&self.name, NAME_BYTES_MAX);
        out.text(&self.domain, NAME_BYTES_MAX);
        for value in [
            self.incarnation,
            self.uptime_s,
            self.slab_bytes,
            self.memory_bytes,
            self.lent_bytes,
        ] {
            out.u64(value);
        }
        out.u8(u8::from(self.locked));
        let slabs = &self.slabs;
        for value in [
            slabs.free,
            slabs.preparing,
            slabs.prepared,
            slabs.mapped,
            slabs.orphaned,
            slabs.retired,
        ] {
            out.u32(value);
        }
        self.counters.write(out);
        out.u32(self.clients_total);
        assert!(
            self.clients.len() <= STATUS_CLIENTS_MAX,
            "{} clients",
            self.clients.len()
        );
        out.u16(u16::try_from(self.clients.len()).expect("STATUS_CLIENTS_MAX fits 16 bits"));
        for client in &self.clients {
            out.text(&client.name, NAME_BYTES_MAX);
            out.u128(client.id);
            out.u32(client.slabs);
            out.u64(client.last_seen_ms);
            out.u8(u8::from(client.orphaned));
            if version >= 2 {
                out.u32(client.declined);
                out.u8(client.version);
            }
        }
        if version >= 2 {
            out.u8(u8::from(self.draining));
            out.text(&self.program, NAME_BYTES_MAX);
        }
        if version >= 3 {
            self.pressure.write(version, out);
        }
        if version >= 5 {
            self.strangers.write(out);
        }
    }

    pub(super) fn read(version: u8, input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut status = Self {
            name: input.text(NAME_BYTES_MAX)?,
            domain: input.text(NAME_BYTES_MAX)?,
            incarnation: input.u64()?,
            uptime_s: input.u64()?,
            slab_bytes: input.u64()?,
            memory_bytes: input.u64()?,
            lent_bytes: input.u64()?,
            locked: input.bool()?,
            slabs: SlabCounts {
                free: input.u32()?,
                preparing: input.u32()?,
                prepared: input.u32()?,
                mapped: input.u32()?,
                orphaned: input.u32()?,
                retired: input.u32()?,
            },
            counters: Counters::read(input)?,
            clients_total: input.u32()?,
            clients: Vec::new(),
            draining: false,
            program: String::new(),
            pressure: PressureStatus::default(),
            strangers: StrangerCounts::default(),
        };
        let slabs = status.slabs;
        let all = [
            slabs.free,
            slabs.preparing,
            slabs.prepared,
            slabs.mapped,
            slabs.orphaned,
            slabs.retired,
        ];
        if all
            .iter()
            .try_fold(0_u32, |sum, &count| sum.checked_add(count))
            .is_none()
        {
            return Err(Malformed("slab counts overflow"));
        }
        let listed = usize::from(input.u16()?);
        if listed > STATUS_CLIENTS_MAX {
            return Err(Malformed("too many clients"));
        }
        for _ in 0..listed {
            status.clients.push(ClientStatus {
                name: input.text(NAME_BYTES_MAX)?,
                id: input.u128()?,
                slabs: input.u32()?,
                last_seen_ms: input.u64()?,
                orphaned: input.bool()?,
                declined: if version >= 2 { input.u32()? } else { 0 },
                version: if version >= 2 { input.u8()? } else { 0 },
            });
        }
        if version >= 2 {
            status.draining = input.bool()?;
            status.program = input.text(NAME_BYTES_MAX)?;
        }
        if version >= 3 {
            status.pressure = PressureStatus::read(version, input)?;
        }
        if version >= 5 {
            status.strangers = StrangerCounts::read(input)?;
        }
        Ok(status)
    }
}

impl StrangerCounts {
    fn write(&self, out: &mut Writer<'_>) {
        for value in [
            self.accepted,
            self.proven,
            self.wrong_key,
            self.wrong_version,
            self.hung_up,
            self.late,
            self.displaced,
            self.waiting,
        ] {
            out.u64(value);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            accepted: input.u64()?,
            proven: input.u64()?,
            wrong_key: input.u64()?,
            wrong_version: input.u64()?,
            hung_up: input.u64()?,
            late: input.u64()?,
            displaced: input.u64()?,
            waiting: input.u64()?,
        })
    }
}

impl PressureStatus {
    fn write(&self, version: u8, out: &mut Writer<'_>) {
        out.u8(u8::from(self.watched));
        out.u8(u8::from(self.stalled));
        for value in [
            self.total_bytes,
            self.used_bytes,
            self.free_bytes,
            self.headroom_bytes,
            self.floor_bytes,
        ] {
            out.u64(value);
        }
        out.u32(self.slabs_max);
        out.u32(self.asked_back);
        for value in [self.evictions_asked, self.evictions_done, self.slabs_taken] {
            out.u64(value);
        }
        if version >= 4 {
            for value in [self.reclaim_bytes, self.away_bytes, self.reclaims] {
                out.u64(value);
            }
        }
    }

    fn read(version: u8, input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut status = Self {
            watched: input.bool()?,
            stalled: input.bool()?,
            total_bytes: input.u64()?,
            used_bytes: input.u64()?,
            free_bytes: input.u64()?,
            headroom_bytes: input.u64()?,
            floor_bytes: input.u64()?,
            slabs_max: input.u32()?,
            asked_back: input.u32()?,
            evictions_asked: input.u64()?,
            evictions_done: input.u64()?,
            slabs_taken: input.u64()?,
            ..Self::default()
        };
        if version >= 4 {
            status.reclaim_bytes = input.u64()?;
            status.away_bytes = input.u64()?;
            status.reclaims = input.u64()?;
        }
        Ok(status)
    }
}

impl Counters {
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        for value in [
            self.maps,
            self.unmaps,
            self.refused,
            self.fills,
            self.fills_failed,
            self.fill_bytes,
            self.connections,
            self.malformed,
            self.leases_expired,
            self.orphans_taken,
        ] {
            out.u64(value);
        }
    }

    pub(crate) fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            maps: input.u64()?,
            unmaps: input.u64()?,
            refused: input.u64()?,
            fills: input.u64()?,
            fills_failed: input.u64()?,
            fill_bytes: input.u64()?,
            connections: input.u64()?,
            malformed: input.u64()?,
            leases_expired: input.u64()?,
            orphans_taken: input.u64()?,
        })
    }
}
