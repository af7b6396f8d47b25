//! One-sided access to the memory of other machines.
//!
//! A **host** registers [`Region`]s as windows and serves them from a [`Listener`];
//! a **client** opens one control [`Session`] per host and, per worker thread, one
//! data [`Endpoint`] per host. Verbs are posted on an endpoint and end as
//! [`Completion`]s in a [`CompletionQueue`] that one worker shares among its endpoints.
//!
//! Guarantees, the same on every backend (the conformance suite of `cenote-test-kit` holds them to it):
//! - First in, first out per endpoint: verbs take effect and complete in posting order.
//! - Every posted verb completes exactly once, with a [`Status`]. A peer that is dead,
//!   or silent for [`FAILURE_TIMEOUT`], turns every outstanding verb into an error.
//! - After [`Listen::revoke`] returns, no byte of an earlier verb lands in the window;
//!   after [`Endpoint::revoke_landing`] returns, none lands in that buffer.
//! - A verb that carries an old generation is refused and changes nothing.
//!
//! Beside verbs there are [`calls`]: messages that server threads of a host answer.
//!
//! Not here: what the memory means. Placement, leases and repair are `pool`, `host`
//! and `volume`.

mod address;
pub mod calls;
mod channel;
mod endpoint;
mod error;
mod frame;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod host_port;
mod key;
mod listen;
mod listener;
mod machine;
mod memory;
mod noise;
pub mod rdma;
mod record;
mod resolver;
mod session;
mod shm;
#[cfg(feature = "sim")]
pub mod sim;
mod socket;
pub mod strangers;
mod sync;
mod tcp;
mod time;
mod wait;
mod window;
mod windows;

pub use address::Address;
pub use endpoint::{
    Completion, CompletionQueue, Endpoint, QUEUE_DEPTH, QueueFull, Status, Token, Verb,
};
pub use error::{Error, KeyError, Result};
pub use host_port::{Host, HostName, HostPort, NoHostPort};
pub use key::ClusterKey;
pub use listen::{Event, Listen, PeerId};
pub use listener::Listener;
pub use machine::machine_id;
pub use memory::{Dead, InPlace, Mapping, Region, RegionOptions, order_stores};
pub use noise::{
    HANDSHAKE_BYTES, Initiator, Protocol, Refusal, Responder, SEALED_BYTES_MAX, TAG_BYTES,
    Transport, VERSION, VERSION_OLDEST, Versions,
};
pub use record::{
    RECORD_BODY_BYTES_MAX, RECORD_BYTES_MAX, RECORD_LENGTH_BYTES, RECORD_OVERHEAD_BYTES,
    RecordError, RecordOpener, RecordSealer, WireProtection,
};
pub use resolver::unresolved;
pub use session::{
    ClientId, Connector, Hello, Incoming, MESSAGE_BYTES_MAX, Opener, Session, connector,
    connector_tuned, connector_with,
};
pub use socket::untaken_bytes;
pub use tcp::{Batch, IO_URING_VARIABLE, Wire};
pub use time::Time;
pub use wait::{Waker, wait};
pub use window::{Generation, RemoteWindow, Rights, WindowDescriptor, WindowId};
pub use windows::{HeldWindow, Unwritten, Windows};

/// How long a peer may be silent while something is owed before it counts as failed.
///
/// The one failure-detection time of the project. A closed connection is noticed at
/// once; only a stopped or unreachable peer takes this long.
pub const FAILURE_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(1000);
