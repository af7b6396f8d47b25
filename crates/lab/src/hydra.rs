//! What Hydra's paper claims, computed again: `cenote lab hydra`.
//!
//! All that chance decides comes from a seed, so the same options give the same figures on every
//! machine. Paper: \[hydra22\].

pub mod ablation;
pub mod loss;
