//! Benchmarks and demonstrations: each opening beside what a user would pick
//! instead, in one run, on the same work.
//!
//! The command line calls the functions here and prints what they return;
//! nothing here reads arguments or decides where output goes.

pub mod bench;
pub mod cache;
mod caught;
pub mod cluster;
pub mod demo;
pub mod efactory;
pub mod figure;
pub mod history;
pub mod hydra;
pub mod infiniswap;
#[cfg(test)]
mod killed;
pub mod kv;
pub mod latency;
pub mod migration;
mod rotten;
pub mod sim;
pub mod statistics;
pub mod store;
mod swapping;
pub mod verdict;
