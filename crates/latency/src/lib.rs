//! How durations are spread, for whoever serves requests: volumes, nodes of the key-value store,
//! stores.
//!
//! A [`Spread`] is added to without a lock; a [`Latency`] is what one or several of them had at one
//! moment, and what a histogram for Prometheus is made of. The clock is the caller's.

#![forbid(unsafe_code)]

mod spread;

pub use spread::{Counts, Latency, Spread, SpreadValues};
