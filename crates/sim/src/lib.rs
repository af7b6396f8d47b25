//! The real code under simulated networks, time and faults, and what checks it: `cenote lab sim`, `kv`,
//! `cache` and `store`.
//!
//! Each simulator draws a workload and faults from a seed, and keeps books of its own of what
//! clients were promised. The same options give the same run on every machine. With the feature
//! `injected-faults` faults are injected into the code; each has to break a promise that the
//! simulator sees ([`verdict`]).

pub mod cache;
pub mod cluster;
pub mod kv;
mod panics;
pub mod store;
pub mod verdict;
