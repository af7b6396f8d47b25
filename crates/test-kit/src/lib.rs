//! Code shared by the tests of several crates; no program contains it.
//!
//! - feature `fabric`: `conformance` is the suite that every transport of the fabric passes, `guard`
//!   delays traffic between real endpoints, `verb` waits for the end of one verb;
//! - `host`: `host_config`, the configuration of a test host;
//! - `cluster`: hosts and volumes on threads of the test;
//! - `loom`: `atomics` stand in for those of `std` where a model checker runs a file of ours.
//!
//! [`porcupine`] and [`memcached_clients`] run third-party programs. Helpers of a single crate's
//! tests are in its `tests/support`.

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
