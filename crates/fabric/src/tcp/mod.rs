//! The `tcp` data path: one-sided verbs over a socket, an agent thread playing the network card.

pub(crate) mod agent;
mod answers;
mod bench;
mod connection;
pub(crate) mod endpoint;
mod gather;
mod inbox;
mod outbox;
mod wire;

#[cfg(test)]
mod tests;
