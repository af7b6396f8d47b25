//! Verbs of RDMA devices: a safe interface over libibverbs, with no transport above it.
//!
//! A `Device` is opened, memory is `Registered` with it, and a `Pair` carries requests, whose
//! completions come out of `Completions`. Each value keeps those that it depends on alive, so they
//! can be dropped in any order.
//!
//! Nothing here is `unsafe` to call. A device accesses memory only by a key, which is valid as long
//! as its registration, and the registration owns the memory. A request that outlives its
//! registration is refused by the device; if the key was given out again it may change bytes of
//! another registration, never other memory. What a device may write is never a Rust reference: it
//! is copied out. The only unsafe contract is `Memory`, for memory of another crate.
//!
//! The user decides what is sent to whom, who waits for what, and which keys peers have.

// Without the feature nothing of libibverbs is needed to build the workspace.
#![cfg(feature = "rdma")]

mod completions;
mod device;
mod memory;
mod pair;
mod registration;
mod request;

pub use completions::{Completed, Completions, Ended};
pub use device::{Device, DeviceInfo, Error, devices};
pub use memory::{Memory, Pages, Span};
pub use pair::{Pair, PairAddress};
pub use registration::{Access, Registered};
pub use request::{Act, Local, Part, Request};

/// The result of a call that returns 0 or an error number.
fn check(result: libc::c_int) -> std::io::Result<()> {
    match result {
        0 => Ok(()),
        error if error > 0 => Err(std::io::Error::from_raw_os_error(error)),
        _ => Err(std::io::Error::last_os_error()),
    }
}
