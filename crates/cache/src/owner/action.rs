//! What an owner has its driver do.

use cenote_pool::control::Window;

use super::clients::ClientNumber;
use super::host::HostIndex;
use super::region::Entry;

/// Number of the request by which a driver owns the cache on a host; those of actions are higher.
pub const OWN_REQUEST: u64 = 1;

/// What a slab is for. On its host it is extent `region * slabs_per_region + slab` of a volume that
/// is the cache, and member 0 of that: see [`cenote_pool::ledger::StripeMember`]. A host has no two slabs
/// of one place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlabOf {
    /// The region.
    pub region: u32,
    /// Which of the region's slabs.
    pub slab: u32,
}

impl SlabOf {
    /// The extent that hosts know it by. Another region would have it only past
    /// [`REGIONS_MAX`](super::REGIONS_MAX).
    #[must_use]
    pub fn extent(self, slabs_per_region: u32) -> u32 {
        self.region
            .saturating_mul(slabs_per_region)
            .saturating_add(self.slab)
    }

    /// What an extent is for.
    #[must_use]
    pub fn of_extent(extent: u32, slabs_per_region: u32) -> Self {
        Self {
            region: extent / slabs_per_region,
            slab: extent % slabs_per_region,
        }
    }
}

/// What the driver is to do, in order. What it asks hosts for is answered to
/// [`Owner::handle_granted`](super::Owner::handle_granted) or
/// [`Owner::handle_refused`](super::Owner::handle_refused).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Ask a host for a slab.
    Map {
        /// The host.
        host: HostIndex,
        /// Returned with the slab, or with why there is none.
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
    /// Give a slab's window another generation, and leave its bytes.
    Renew {
        /// The host.
        host: HostIndex,
        /// Returned with the window, or with why it is not renewed.
        request: u64,
        /// Its window so far.
        window: Window,
    },
    /// End the session to a host and begin another: it does not answer what it is asked.
    Reconnect {
        /// The host.
        host: HostIndex,
    },
    /// Have a host read a range of a slab from another host, at the same offset.
    Fill {
        /// The host that reads.
        host: HostIndex,
        /// Returned with [`Owner::handle_filled`](super::Owner::handle_filled).
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
    /// Fill new memory from the checkpoint. Nobody uses it yet.
    Restore {
        /// Returned with [`Owner::handle_restored`](super::Owner::handle_restored).
        request: u64,
        /// The region.
        region: u32,
        /// The host.
        host: HostIndex,
        /// Its slabs, in the order of the region's bytes.
        windows: Vec<Window>,
    },
    /// Tell a host that there is nowhere to put what it asked for.
    Decline {
        /// The host.
        host: HostIndex,
        /// The slab's window.
        window: Window,
    },
    /// Keep [`Owner::record`](super::Owner::record) where the next owner finds it, before anything
    /// that follows.
    Record,
    /// Tell a client what holds for a region from now on.
    Tell {
        /// The client.
        client: ClientNumber,
        /// The region's entry.
        entry: Entry,
    },
}

impl Action {
    /// The host that is to do it.
    pub(super) fn host(&self) -> Option<HostIndex> {
        match *self {
            Self::Map { host, .. }
            | Self::Unmap { host, .. }
            | Self::Renew { host, .. }
            | Self::Reconnect { host }
            | Self::Fill { host, .. }
            | Self::Restore { host, .. }
            | Self::Decline { host, .. } => Some(host),
            Self::Record | Self::Tell { .. } => None,
        }
    }
}
