//! How durations are histogram, for whoever serves requests: volumes, nodes of the key-value store,
//! stores.
//!
//! A [`Histogram`] is added to without a lock; a [`Latency`] is what one or several of them had at one
//! moment, and what a histogram for Prometheus is made of. The clock is the caller's.

#![forbid(unsafe_code)]

mod histogram;

pub use histogram::{Counts, Histogram, HistogramValues, Latency};
