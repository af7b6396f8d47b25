//! A key-value store that speaks memcached's protocol and survives the loss of any M nodes of a group.
//!
//! [`protocol`] is memcached's protocol, [`engine`] what its requests do to items, [`memory`] where
//! keys and values lie, [`group`] how a group keeps them. None of these has I/O or a clock: [`server`],
//! which drives them, brings both, and [`cluster`] the links between nodes and who is alive.
//! Paper: \[cocytus16\].

#![forbid(unsafe_code)]

pub mod cluster;
pub mod engine;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod group;
pub mod injected_faults;
pub mod memory;
pub mod protocol;
pub mod server;
pub mod threads;
