//! Simulators that run the real code under simulated networks, time and faults, and check it:
//! `cenote lab sim`, `kv`, `cache` and `store`.
//!
//! Each simulator draws a workload and faults from a seed, and keeps its own model of what clients
//! were promised. The same options give the same run on every machine. With the feature
//! `injected-faults` bugs are injected into the code; each must cause a violation that the
//! simulator detects ([`verdict`]).

pub mod cache;
pub mod cluster;
pub mod kv;
pub mod report;
pub mod store;
pub mod verdict;
