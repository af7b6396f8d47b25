//! A simulated network: the fabric's traits with virtual time, chance from one seed, and faults.
//!
//! [`Net`] is the whole network and moves event by event: everything that takes time happens
//! inside [`Net::step`]. Hosts are [`Listen`](crate::Listen)ers and clients
//! [`Connector`](crate::Connector)s, so whatever runs on sockets runs here, and window memory is
//! the real thing. A driver asks [`Net::take_ready`] whom to run, and interleaves timers of its
//! own with [`Net::next_event`].
//!
//! Invariant: the same calls on the same seed give the same events, byte for byte, on every
//! machine. No wall clock, no hash order, no addresses, no floating point decide anything.
//!
//! Not here: what runs on the nodes, and which faults happen when; that is the crate `sim`.

mod calls;
mod clock;
mod connection;
mod connections;
mod deliver;
mod endpoint;
mod faults;
#[doc(hidden)]
pub mod injected_faults;
mod listener;
mod message;
mod model;
mod net;
pub(crate) mod random;
mod session;
mod state;
mod torn_reads;
mod trace;
mod witness;

use std::time::Duration;

pub use calls::SimAnswerer;
pub use clock::now;
pub use connection::ConnectionId;
pub use faults::{Late, Memory, Notice};
pub use listener::SimListener;
pub use model::{Background, Curve, LinkModel, Nic, Stragglers};
pub use net::{Config, Net, NodeId, Serving};
pub use session::SimConnector;
pub use torn_reads::Torn;

/// How long a client may be out of reach until its host ends its connections: as over sockets.
const CLIENT_SILENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
