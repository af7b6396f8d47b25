//! The control side as a client sees it: one authenticated, encrypted connection per host.

mod client;

use std::os::fd::RawFd;
use std::time::Duration;

use crate::calls::CallerOpener;
use crate::noise::{NAME_BYTES_MAX, is_printable};
use crate::{Address, Endpoint, Error, RemoteWindow, Result, WindowDescriptor};

pub use client::{connector, connector_tuned, connector_with};

/// Longest control or SEND message in bytes. A FILL request with 40 sources fits.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// Who a client is, across its connections. Random, 128 bits.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ClientId(pub u128);

/// What a client says about itself, first thing after the key is proven.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    /// Identity; a later session of the same client ends the earlier one.
    pub client: ClientId,
    /// For people: shown by `cenote status`. At most 64 bytes, none of a control character.
    pub name: String,
}

impl Hello {
    /// # Errors
    /// `ClientName`: no host takes it.
    pub(crate) fn check_name(&self) -> Result<()> {
        if self.name.len() > NAME_BYTES_MAX || !is_printable(&self.name) {
            return Err(Error::ClientName(self.name.clone()));
        }
        Ok(())
    }
}

/// Opens data connections of one session, on any thread: see [`Session::opener`].
pub type Opener = Box<dyn Fn(Duration) -> Result<Box<dyn Endpoint>> + Send>;

/// What arrives on a session.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incoming {
    /// A message of the host, whole.
    Message(Vec<u8>),
    /// The end of an [`Session::attach`]; the window, or why not.
    Attached(WindowDescriptor, Result<RemoteWindow>),
}

/// Opens sessions. One implementation per family of backends; the simulator has its own.
pub trait Connector: Send + Sync {
    /// Connects, proves the key both ways and says hello, within `timeout`.
    ///
    /// # Errors
    /// The address cannot be reached, the peer lacks the key, speaks another version or is silent.
    fn connect(
        &self,
        address: &Address,
        hello: &Hello,
        timeout: Duration,
    ) -> Result<Box<dyn Session>>;
}

/// The control connection of one client to one host. Non-blocking but for `endpoint`.
pub trait Session: Send {
    /// Queues a message and sends what the socket takes.
    ///
    /// # Errors
    /// `Bound` when the message is too long or too much is queued; `Closed` when the session is dead.
    fn send(&mut self, message: &[u8]) -> Result<()>;

    /// Asks for access to a window; the answer comes as [`Incoming::Attached`].
    ///
    /// # Errors
    /// As [`Session::send`].
    fn attach(&mut self, window: WindowDescriptor) -> Result<()>;

    /// Takes the next thing that arrived; `None` when nothing has. Also flushes queued sends.
    ///
    /// # Errors
    /// `Closed` or `Protocol`: the session is dead, its host counts as disconnected.
    fn receive(&mut self) -> Result<Option<Incoming>>;

    /// Opens a data connection for one worker. Blocks up to `timeout`.
    ///
    /// # Errors
    /// As [`Connector::connect`].
    fn endpoint(&self, timeout: Duration) -> Result<Box<dyn Endpoint>> {
        self.opener()(timeout)
    }

    /// What [`Session::endpoint`] does, for a thread that may block while the session's own
    /// may not. Fails once the session is gone.
    fn opener(&self) -> Opener;

    /// What opens connections to the host's server threads, each for one client thread. Fails once
    /// the session is gone, with `Unanswered` where nobody answers calls.
    fn caller_opener(&self) -> CallerOpener;

    /// Readable when `receive` would return something; writable interest while sends are queued.
    /// `None`: there is nothing to wait on, time passes elsewhere.
    fn fd(&self) -> Option<RawFd>;

    /// Whether sends wait for the socket to become writable.
    fn wants_write(&self) -> bool;

    /// The protocol's version that both ends agreed on: what the layer above may say.
    fn version(&self) -> u16 {
        crate::VERSION
    }
}
