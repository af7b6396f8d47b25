//! The daemon of a machine that lends memory.
//!
//! [`Daemon`] is one control thread around two pure or foreign parts: the ledger of
//! `cenote-pool` decides who gets which slab, the listener of `cenote-fabric` serves the
//! windows. Slow work runs on two threads that block while there is none: the keeper
//! makes and gives back memory, the filler rebuilds lost splits from other hosts.
//!
//! Beside them stand the server threads for caches, as many as the configuration says: they carry
//! out batches and run procedures.
//!
//! A page that a client reads or writes never passes through here.

#![deny(unsafe_code)]

mod cache_threads;
mod config;
mod daemon;
mod error;
mod fill;
mod gauge;
mod keeper;
mod machine;
mod on_thread;
mod procedures;
mod side_thread;
mod stepped_host;

pub use config::{Config, Headroom, LockMemory, Share, slab_bytes_default};
pub use daemon::{Daemon, End, Inheritance};
pub use error::{Error, Result};
pub use gauge::{Gauge, Reading};
pub use machine::{memory_left_bytes, swap_bytes};
pub use on_thread::OnThread;
pub use procedures::Running;
pub use stepped_host::Stepped;
