//! A hybrid log store over tiers of memory, remote cache and disk.
//!
//! Records of variable length stand in a log whose tail is in memory; a hash index knows the newest
//! of each chain. The newest records change in place, older ones in memory are copied to the tail
//! when they change, and what memory has no room for is read from the fastest [`Tier`] that has it.
//!
//! A [`Store`] is shared; each thread has a [`Session`], whose calls never wait: what needs a tier
//! is `Pending`, and [`Session::poll`] returns its end.
//!
//! The folder: [`store`] has the addresses, [`session`] the operations, [`operations`] those of them
//! that wait, [`flow`] moves pages to tiers, [`fetch`] gets records back, [`compaction`],
//! [`checkpoint`] and [`recovery`] are what they say. [`epoch`], [`latch`] and [`index`] are the
//! lock-free pieces.
//! Paper: FASTER (SIGMOD 2018) as \[redy22\] puts it over a cache; see `docs/papers/redy.md`.

mod checkpoint;
mod commitment;
mod compaction;
mod epoch;
mod error;
mod fetch;
mod flow;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
#[expect(unsafe_code, reason = "advice on memory has no safe wrapper")]
mod huge;
mod index;
#[cfg(test)]
mod index_tests;
pub mod injected_faults;
mod latch;
mod memory;
mod operations;
mod page;
mod record;
mod recovery;
mod session;
mod settings;
mod store;
mod sync;
pub mod tiers;

pub use checkpoint::{Checkpoint, Commit, Image};
pub use compaction::Compacted;
pub use error::Error;
pub use index::BucketTag;
pub use operations::{Completion, Ticket};
pub use record::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use session::{Answer, Session};
pub use settings::Settings;
pub use store::{Extent, Merge, Secret, Store, TierStatus};
pub use tiers::Tier;
