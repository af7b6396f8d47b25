//! The messages between a client and a host, and their bytes.
//!
//! A client asks, a host answers; several requests may be outstanding, and those that
//! carry a request number may be answered out of order. The fabric delimits, encrypts and
//! orders messages; here is only what they say. Byte tables: `docs/protocols/control.md`.
//!
//! Invariants: every encoded message has at most [`MESSAGE_BYTES_MAX`] bytes; decoding
//! never panics, allocates no more than a bounded multiple of that, and accepts exactly
//! what encoding makes.

mod held_list;
mod reply;
mod request;
mod status;
#[cfg(test)]
mod tests;

pub use held_list::{HeldList, Page};
pub use reply::{FillResult, HeldSlab, Refusal, Reply};
pub use request::{Drain, Request, SlabActivity, Source};
pub use status::{
    ClientStatus, Counters, HostStatus, PressureStatus, STATUS_CLIENTS_MAX, SlabCounts,
    StrangerCounts,
};

use cenote_wire::Reader;
pub use cenote_wire::Window;

/// Newest version of the messages; the fabric's handshake agrees on one, which is the first byte
/// of every message.
pub const VERSION: u8 = 7;
/// Oldest version that is understood. Another one is refused, not guessed at.
pub const VERSION_OLDEST: u8 = 1;
/// Longest message in bytes; the fabric's own bound on a message.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Longest name of a host, domain or client in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest address in bytes. A unix socket's path has at most 107.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// Most bytes that one fill writes (decision 10: repair moves in small steps).
pub const FILL_BYTES_MAX: u64 = 1 << 20;
/// Most data splits of a code.
pub const K_MAX: u8 = 32;
/// Most parity splits of a code.
pub const R_MAX: u8 = 8;
/// Most windows in one [`Reply::Evict`] or [`Reply::CheckActivity`], and most slabs in one
/// [`Request::Activity`].
pub const EVICT_WINDOWS_MAX: usize = 256;
/// Most slabs in one [`Reply::Held`].
pub const HELD_SLABS_MAX: usize = 256;

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("control message: {0}")]
pub struct Malformed(pub &'static str);

impl From<cenote_wire::Malformed> for Malformed {
    fn from(cenote_wire::Malformed(wrong): cenote_wire::Malformed) -> Self {
        Self(wrong)
    }
}

/// The version that a received message is written in; 0 for none at all.
#[must_use]
pub fn version_of(message: &[u8]) -> u8 {
    message.first().copied().unwrap_or(0)
}

/// Checks length and version; the message from its kind on.
fn open(bytes: &[u8]) -> Result<Reader<'_>, Malformed> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(Malformed("message is too long"));
    }
    let (&version, message) = bytes.split_first().ok_or(Malformed("message ends early"))?;
    if !(VERSION_OLDEST..=VERSION).contains(&version) {
        return Err(Malformed("another version than 1 to 7"));
    }
    Ok(Reader::of_version(version, message))
}
