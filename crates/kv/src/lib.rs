//! The core of a key-value store that speaks memcached's protocol and survives the loss of any M
//! nodes of a group. It has neither I/O nor a clock: its driver provides both.
//!
//! ```text
//!   bytes of a client -- [protocol] --> requests -- [engine] --> items in [memory]
//!                                                      |
//!                                                   [group]: the same item on several nodes
//! ```
//!
//! `cenote-memcached` is the single-process server, `cenote-kv-cluster` the cluster of nodes.
//! Paper: \[cocytus16\].

#![forbid(unsafe_code)]

pub mod engine;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod group;
pub mod injected_faults;
pub mod memory;
pub mod protocol;
