//! Whether this client owns the volume, at one host.

use cenote_fabric::Time;

/// How far a host has confirmed that this client owns the volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ownership {
    /// Not asked, or asked again when the time has come.
    Unknown {
        ask_at: Time,
    },
    Asked {
        request: u64,
    },
    /// Confirmed, or nothing to confirm; slabs that are unreachable there are being asked for.
    Retaking,
    /// All that was unreachable there is asked for.
    Owned,
}
