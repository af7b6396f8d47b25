//! What Hydra's paper claims, computed again: `cenote lab hydra`.
//!
//! Stripes are placed by the functions of `cenote_pool` that clients call; hosts and failures are
//! models. All randomness comes from a seed, so the same options give the same figures on
//! every machine. What the paper leaves open: decision 21. Paper: \[hydra22\] 5, 7.2, 7.4.

pub mod ablation;
pub mod racks;
pub mod simulation;
pub mod sweeps;
