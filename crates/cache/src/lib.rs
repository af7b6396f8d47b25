//! A remote cache over the memory that hosts lend.
//!
//! From what a cache must do to what it costs: [`Slo`] -> [`tuner`] -> [`Configuration`] ->
//! [`market`] -> machines. Everything here is pure: measurements, time and randomness are passed in.
//!
//! Paper: \[redy22\], \[compucache22\]; see `docs/papers/`.

#![forbid(unsafe_code)]

pub mod configuration;
pub mod market;
pub mod random;
pub mod simulated;
pub mod slo;
pub mod tuner;

pub use configuration::{Configuration, Space};
pub use slo::{LatencyOf, Slo};
