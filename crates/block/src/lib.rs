//! Block openings of a volume: an NBD server, a ublk device and a swap device.
//!
//! [`disk`] is the seam to what is served, [`nbd`] speaks the NBD protocol on
//! unix and TCP sockets, [`ublk`] shows a disk to this machine's own kernel. [`ram`] is a
//! plain disk in this process's own memory, for tests and as the baseline of benchmarks.

pub mod disk;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod nbd;
pub mod ram;
pub mod swap;
pub mod ublk;
pub mod unix;
pub mod volume;
