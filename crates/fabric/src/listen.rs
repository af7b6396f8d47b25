//! The host's side, whatever carries it: clients come and go, attach windows and send messages.

use std::sync::Arc;
use std::time::Duration;

use crate::strangers::Counts;
use crate::{Address, Hello, Region, Result, Rights, Waker, WindowDescriptor, WindowId};

/// One control connection of a client. Never reused by a listener.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PeerId(pub u64);

/// What happened, in order per peer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A client proved the key and opened its control connection.
    Connected {
        /// The connection.
        peer: PeerId,
        /// What the client says of itself.
        hello: Hello,
    },
    /// A message, on the control connection or a SEND on a data connection.
    Message {
        /// Whose.
        peer: PeerId,
        /// The message.
        bytes: Vec<u8>,
    },
    /// A WRITE with immediate is in place.
    Immediate {
        /// Whose.
        peer: PeerId,
        /// Written to.
        window: WindowId,
        /// Where, in bytes.
        offset: u64,
        /// How much.
        len_bytes: u32,
        /// The immediate.
        value: u32,
    },
    /// The control connection is over, and all data connections with it.
    Disconnected {
        /// Whose.
        peer: PeerId,
    },
}

/// A host's end of all its connections. One implementation per family of backends; the simulator
/// has its own.
pub trait Listen: Send {
    /// The addresses served, with the port that the system chose where 0 was asked for.
    #[must_use]
    fn addresses(&self) -> Vec<Address>;

    /// Makes `poll` return early, from any thread.
    #[must_use]
    fn waker(&self) -> Waker;

    /// Opens a window on all of `region`.
    ///
    /// # Errors
    /// `Bound`: no window is left; `StaleWindow`: the region was truncated.
    fn register(&self, region: Arc<Region>, rights: Rights) -> Result<WindowDescriptor>;

    /// Closes a window and gives its memory back; after the return no byte of an earlier verb lands in it.
    ///
    /// # Errors
    /// `StaleWindow`: there is no such window.
    fn revoke(&self, window: WindowId) -> Result<()>;

    /// Gives a window a new generation and leaves its memory as it is. After the return no byte of
    /// a verb of an earlier generation lands in it.
    ///
    /// A mapping that a client has over `shm` cannot be recalled: the caller knows that the
    /// processes that attached the window are gone.
    ///
    /// # Errors
    /// `StaleWindow`: there is no such window. Any other: the window is to be revoked.
    fn renew(&self, window: WindowId) -> Result<WindowDescriptor>;

    /// Queues a message and sends what the socket takes.
    ///
    /// # Errors
    /// `Closed`: there is no such peer, or not any more; `Bound`: the message is too long, or too much is queued.
    fn send(&mut self, peer: PeerId, message: &[u8]) -> Result<()>;

    /// Ends a peer and its data connections. No event tells of it.
    fn close(&mut self, peer: PeerId);

    /// What has become of connections that had not proven the key, over all addresses.
    #[must_use]
    fn strangers(&self) -> Counts {
        Counts::default()
    }

    /// Waits up to `timeout` (`None`: for ever) for something to happen, and appends what did.
    ///
    /// Returns also without an event: when it was woken, or for work of its own. May take events of
    /// several rounds' worth of input; each connection contributes at most two inboxes of it.
    ///
    /// # Errors
    /// `Os`: the system refuses to wait.
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> Result<()>;
}
