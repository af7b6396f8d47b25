//! What the papers claim, computed again: `cenote lab latency`, `infiniswap`, `hydra` and `efactory`.
//!
//! Decisions are made by the code that hosts and clients run; networks, machines and programs are models,
//! and whatever is drawn comes from a seed. docs/papers/ sets each figure beside the paper's.

pub mod efactory;
pub mod hydra;
pub mod infiniswap;
#[cfg(test)]
mod kills;
pub mod latency;
