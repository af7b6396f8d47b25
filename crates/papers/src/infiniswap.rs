//! What Infiniswap's paper claims of algorithms and money, computed again: `cenote lab infiniswap`.
//!
//! Placement, pressure and eviction are the functions of `cenote_pool` that hosts and clients
//! call; machines, programs and time are models. All randomness comes from a seed, so
//! the same options give the same figures on every machine. What the paper leaves open and what
//! is assumed in its place: decision 19. Paper: \[infiniswap17\] 4.2, 5.2, 7.4, appendix C.

pub mod cluster;
pub mod cost;
pub mod eviction;
pub mod placement;
