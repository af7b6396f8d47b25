//! FUSE requests, their replies, and their two transports.
//!
//! [`request`] decodes requests and [`reply`] encodes replies, for either transport. [`Ring`] is
//! the newer one (Linux 6.14): one thread's io_uring, with buffers into which the kernel puts
//! requests and from which it takes replies. [`Device`] is `/dev/fuse`, over which FORGET and
//! INTERRUPT arrive even then. Mounting and FUSE_INIT are up to the caller's session; the flag
//! FUSE_OVER_IO_URING in the reply to INIT announces rings, and the kernel holds requests back
//! until every processor's queue is registered.
//!
//! Invariants: a buffer belongs to the kernel from the command that names it to its next
//! completion, and nothing here touches it meanwhile; the request path does not allocate.

mod abi;
mod device;
pub mod reply;
pub mod request;
mod ring;

use std::fs;

pub use device::Device;
pub use ring::{Options, Ring, Slot};

/// Whether the kernel's FUSE takes rings now: it is new enough, and they are switched on.
#[must_use]
pub fn state() -> State {
    // Opening the device loads a module that is not there yet, with what its options say.
    drop(fs::File::open("/dev/fuse"));
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
    count_of(&text).ok_or_else(|| std::io::Error::other(format!("{POSSIBLE}: {:?}", text.trim())))
}

/// How many numbers a list such as `0-3,8` has, as the kernel writes it: in order. At least 1.
fn count_of(list: &str) -> Option<u16> {
    list.trim().split(',').try_fold(0_u16, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Holds `Y` when rings are allowed, else `N`. Root may write it, for sessions that start later.
pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_processors_is_counted() {
        assert_eq!(count_of("0\n"), Some(1));
        assert_eq!(count_of("0-63\n"), Some(64));
        assert_eq!(count_of("0-3,8\n"), Some(5));
        for wrong in ["\n", "0-x", "0-70000", "0-65535,", "3-0", "0-65535"] {
            assert_eq!(count_of(wrong), None, "{wrong}");
        }
    }
}
