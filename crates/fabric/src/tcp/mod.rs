//! The `tcp` data path: one-sided verbs over a socket, an agent thread playing the network card.

pub(crate) mod agent;
mod answers;
mod batch;
mod bench;
mod connection;
pub(crate) mod endpoint;
mod gather;
mod inbox;
mod outbox;
mod wire;

pub use batch::{Batch, IO_URING_VARIABLE};
pub use endpoint::Wire;
#[cfg(feature = "fuzz")]
pub(crate) use wire::{REQUEST_BYTES, RESPONSE_BYTES, Request, Response};

#[cfg(test)]
mod tests;
