//! Block interfaces of a volume: an NBD server, a ublk device and a swap device.
//!
//! [`disk`] is the trait that a served device implements, [`nbd`] speaks the NBD protocol on unix
//! and TCP sockets, [`ublk`] attaches a disk to this machine's kernel. [`ram`] is a plain disk in
//! this process's memory, for tests and as a baseline of benchmarks.

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
