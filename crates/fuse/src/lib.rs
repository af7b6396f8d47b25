//! FUSE requests over io_uring in place of reads and writes of `/dev/fuse` (Linux 6.14).
//!
//! [`Ring`] is the transport: one thread's io_uring, with buffers that the kernel puts requests
//! into and takes replies from. [`message`] reads requests and writes replies in those buffers.
//! Mounting, FUSE_INIT and what the kernel still sends over `/dev/fuse` (FORGET, INTERRUPT) stay
//! with the session of whoever mounts; the flag FUSE_OVER_IO_URING in the reply to INIT announces
//! rings, and the kernel holds requests back until every processor's queue is registered.
//!
//! Invariants: a buffer is the kernel's from the command that names it to its next completion, and
//! nobody here touches it meanwhile; nothing on the path of a request allocates.

mod abi;
pub mod message;
mod ring;

use std::fs;

pub use ring::{Options, Ring, Slot};

/// Whether the kernel's FUSE takes rings now: it is new enough, and they are switched on.
#[must_use]
pub fn state() -> State {
    match fs::read_to_string(SWITCH) {
        Ok(text) if text.trim() == "Y" => State::On,
        Ok(_) => State::Off,
        Err(_) => State::Missing,
    }
}

/// What the kernel says of FUSE over io_uring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// It can be used.
    On,
    /// It is there, and switched off; see [`SWITCH`].
    Off,
    /// This kernel has none, or no FUSE yet.
    Missing,
}

/// The kernel's queues: one for each processor that may ever come. Each has to be registered before
/// the kernel uses any.
///
/// # Errors
/// When the kernel does not say, or says what is no list of processors.
pub fn queue_count() -> std::io::Result<u16> {
    let text = fs::read_to_string(POSSIBLE)?;
    last_number(&text)
        .and_then(|last| last.checked_add(1))
        .ok_or_else(|| std::io::Error::other(format!("{POSSIBLE}: {:?}", text.trim())))
}

/// The highest number of a list such as `0-3,8`, as the kernel writes it: in order.
fn last_number(list: &str) -> Option<u16> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// Holds `Y` when rings are allowed, else `N`. Root may write it, for sessions that start later.
pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_a_list_of_processors_is_found() {
        assert_eq!(last_number("0\n"), Some(0));
        assert_eq!(last_number("0-63\n"), Some(63));
        assert_eq!(last_number("0-3,8\n"), Some(8));
        assert_eq!(last_number("\n"), None);
        assert_eq!(last_number("0-x"), None);
        assert_eq!(last_number("0-70000"), None);
    }
}
