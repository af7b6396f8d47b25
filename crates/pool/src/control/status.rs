//! What a host says about itself when asked for its status.

use cenote_wire::{List, Malformed, Since, Taken, Text, messages};
use serde::{Serialize, Serializer};

use super::NAME_BYTES_MAX;

/// Most clients listed in one status; `clients_total` counts all.
pub const STATUS_CLIENTS_MAX: usize = 128;

messages! {
    /// A host's view of itself.
    #[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
    pub struct HostStatus {
        /// The host's name.
        pub name: String as Text<u8, NAME_BYTES_MAX>,
        /// Its failure domain.
        pub domain: String as Text<u8, NAME_BYTES_MAX>,
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
        pub clients: Vec<ClientStatus> as List<u16, 0, STATUS_CLIENTS_MAX> | "too many clients",
        /// Whether it gives its slabs back and lends nothing. Version 1 does not say: false.
        pub draining: bool as Since<2>,
        /// Version of its program, as text. Version 1 does not say: empty.
        pub program: String as Since<2, Text<u8, NAME_BYTES_MAX>>,
        /// What it makes of the memory around it. Versions 1 and 2 do not say: zeros.
        pub pressure: PressureStatus as Since<3>,
        /// Connections that had not proven the key. Versions before 5 say nothing of them: zeros.
        pub strangers: StrangerCounts as Since<5>,
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
        pub reclaim_bytes: u64 as Since<4>,
        /// What those clients still have on hosts.
        pub away_bytes: u64 as Since<4>,
        /// Times that there was such memory, after there was none.
        pub reclaims: u64 as Since<4>,
    }

    /// Slabs of a host by state; they add up to what it lends in all.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
    pub struct SlabCounts checked by SlabCounts::add_up {
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
        pub name: String as Text<u8, NAME_BYTES_MAX>,
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
        pub declined: u32 as Since<2>,
        /// Version of the messages that it speaks; 0: not connected, or the host does not say.
        pub version: u8 as Since<2>,
    }
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

    /// All of them are a number that fits.
    fn add_up(&self) -> Taken<()> {
        let others = [
            self.preparing,
            self.prepared,
            self.mapped,
            self.orphaned,
            self.retired,
        ];
        let all = others.into_iter().try_fold(self.free, u32::checked_add);
        all.map(drop).ok_or(Malformed("slab counts overflow"))
    }
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
}
