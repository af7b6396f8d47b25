//! What the tests of several crates share: no program has a line of it.
//!
//! - feature `fabric`: `conformance` is the suite that every transport of the fabric passes, `guard`
//!   holds back what goes between real ends, `verb` waits for the end of one verb;
//! - `host`: `host_config`, what a host of a test is;
//! - `cluster`: hosts and volumes on threads of the test;
//! - `loom`: `atomics` stand in for those of `std` where a model checker runs a file of ours.
//!
//! [`porcupine`] and [`memcached_clients`] are other people's programs. What the tests of one crate
//! use alone is in its `tests/support`.

#[cfg(feature = "loom")]
pub mod atomics;
#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "fabric")]
pub mod conformance;
#[cfg(feature = "fabric")]
pub mod guard;
#[cfg(feature = "host")]
mod host;
pub mod memcached_clients;
pub mod porcupine;
mod random;
#[cfg(feature = "fabric")]
pub mod verb;
mod wait;

#[cfg(feature = "host")]
pub use host::host_config;
pub use random::{Random, page};
pub use wait::wait_until;
