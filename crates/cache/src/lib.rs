//! A remote cache over the memory that hosts lend.
//!
//! From an SLO to its cost: [`Slo`] -> [`tuner`] -> [`Configuration`] -> [`market`] -> machines.
//! All of this is pure: measurements, time and randomness are passed in. [`path`] is a client's
//! connection to one machine, [`closed_loop`] measures paths. [`service`] runs a cache across
//! processes. [`log`] is a log store over tiers, one of which can be the cache.
//!
//! Paper: \[redy22\], \[compucache22\]; see `docs/papers/`.

#![deny(unsafe_code)]

pub mod checkpoint;
pub mod client;
pub mod closed_loop;
pub mod configuration;
pub mod connections;
pub mod fleet;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod injected_faults;
pub mod links;
pub mod log;
pub mod manager;
pub mod market;
pub mod owner;
pub mod path;
pub mod providers;
pub mod service;
pub mod simulation;
pub mod slo;
pub mod tuner;
pub mod writes;

pub use configuration::{Configuration, Space};
pub use slo::{LatencyOf, Slo};
pub use writes::Writes;
