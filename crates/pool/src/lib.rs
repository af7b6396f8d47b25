//! The pool's decisions, with no I/O and no clock.
//!
//! Everything here takes events and the time and returns actions: a daemon, a client and a
//! simulator drive the same types.
//!
//! - [`control`]: the messages between a client and a host.
//! - [`batch`]: many reads and writes in a message to a host's server threads.
//! - [`ledger`]: a host's authoritative record of its slabs, and the leases on them.
//! - [`placement`]: which hosts the members of a stripe go to.
//! - [`pressure`]: how many slabs a host can lend beside its machine's own programs.
//! - [`eviction`]: which slabs to evict when that number shrinks.
//! - [`reclaim`]: when a machine has spare memory, and which clients get it first.
//! - [`cluster`]: the cluster file, which lists the hosts.

#![forbid(unsafe_code)]

pub mod batch;
pub mod cluster;
pub mod control;
pub mod eviction;
#[doc(hidden)]
pub mod injected_faults;
pub mod ledger;
pub mod placement;
pub mod pressure;
pub mod random;
pub mod reclaim;

pub use cluster::{Cluster, HostEntry};
