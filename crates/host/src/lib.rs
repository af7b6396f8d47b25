//! The daemon of a machine that lends memory.
//!
//! [`Daemon`] is one control thread around two parts: the ledger of `cenote-pool` decides who gets
//! which slab, and the listener of `cenote-fabric` serves the windows. Slow work runs on two
//! threads that block when idle: the keeper populates and frees memory, the filler rebuilds lost
//! splits from other hosts.
//!
//! A configured number of server threads executes batches and procedures for caches.
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
mod outcome;
mod owners;
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
