//! The items of a key-value store that speaks memcached's protocol and survives the loss of any M nodes of
//! a group. Nothing here has I/O or a clock: what drives it brings both.
//!
//! ```text
//!   bytes of a client -- [protocol] --> requests -- [engine] --> items in [memory]
//!                                                      |
//!                                                   [group]: the same item on several nodes
//! ```
//!
//! `cenote-memcached` is the server of one process, `cenote-kv-cluster` what makes nodes one store.
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
