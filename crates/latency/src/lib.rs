//! Latency histograms for servers: volumes, nodes of the key-value store, object stores.
//!
//! A [`Histogram`] is updated without a lock; a [`Latency`] is a snapshot of one or several of
//! them, from which Prometheus histograms are made. The caller provides the clock.

#![forbid(unsafe_code)]

mod histogram;

pub use histogram::{Counts, Histogram, HistogramValues, Latency};
