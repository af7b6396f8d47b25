//! Reproduces the papers' figures: `cenote lab latency`, `infiniswap`, `hydra` and `efactory`.
//!
//! Decisions are made by the code that hosts and clients run; networks, machines and programs are
//! models, and all randomness comes from a seed. docs/papers/ compares each figure with the
//! paper's.

pub mod efactory;
pub mod hydra;
pub mod infiniswap;
#[cfg(test)]
mod kills;
pub mod latency;
