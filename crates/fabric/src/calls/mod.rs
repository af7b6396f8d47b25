//! Two-sided messages: a client calls, server threads of the host answer.
//!
//! For work that one-sided verbs cannot do, or do one by one: many small requests in one message,
//! procedures beside the data. A [`Caller`] is one client thread's connection to one server thread;
//! an [`Answerer`] is a server thread's end of all connections that its listener gave it. Bytes of
//! a call and of its answer mean nothing here.
//!
//! - `shm`: a pair of rings in shared memory ([`ring`]); the socket beside it only wakes who sleeps.
//! - `tcp`: records as on data connections, many messages per write ([`stream`]).
//! - `rdma`: rings as over `shm`, in registered memory that the other side WRITEs into
//!   (`crate::rdma::calls`).
//! - the simulated network has a caller and an answerer of its own (`crate::sim`).
//!
//! Budgets are per connection: [`CALLS_UNDER_WAY_MAX`] calls, buffers of fixed size, and a share of
//! each turn. Who sends half a message, takes no answers or floods waits for itself alone: a
//! connection whose answers wait is not read, and one that breaks the protocol is closed.
//!
//! Byte tables: `docs/protocols/calls.md`. Paper: \[redy22\] configuration (c, s, b, q).

mod answerer;
mod caller;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod pipe;
mod ring;
mod spinner;
mod stream;
#[cfg(test)]
mod tests;

use std::os::fd::RawFd;
use std::time::Duration;

use crate::{Result, Status, Time, Token};

pub(crate) use answerer::{Adopted, Answerers, Membership};
pub use answerer::{Answered, Answerer, Call, CallId};
pub(crate) use caller::{SocketCaller, receive_rings};
pub(crate) use pipe::Pipe;
pub(crate) use ring::create as create_rings;
pub use spinner::{Spin, Spinner};

/// Longest call and longest answer in bytes.
pub const CALL_BYTES_MAX: usize = 64 * 1024;

/// Most calls under way on one connection; a client that exceeds it is cut off.
pub const CALLS_UNDER_WAY_MAX: usize = 256;

/// Opens connections for calls of one session, on any thread: see [`crate::Session::caller_opener`].
pub type CallerOpener = Box<dyn Fn(Duration) -> Result<Box<dyn Caller>> + Send>;

/// A call could not be made: [`CALLS_UNDER_WAY_MAX`] are under way, or the buffers are full.
///
/// Poll, then call again. Nothing was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no room for another call on this connection")]
pub struct CallsFull;

/// Carries a call out: fills the buffer with its answer, or says when there will be one.
pub type Handler<'a> = &'a mut dyn FnMut(Call<'_>, &mut Vec<u8>) -> Answered;

/// One server thread's end of its connections, whatever carries them.
pub trait Answering: Send {
    /// Serves each connection its share; if there was nothing to do, waits up to `patience` (`None`:
    /// for ever) for something. Returns whether calls were taken or answers sent.
    ///
    /// # Errors
    /// `Os`: the system refuses to wait; `Closed`: the host's process is over.
    fn turn(&mut self, patience: Option<Duration>, handler: Handler<'_>) -> Result<bool>;

    /// Answers a call that was to be answered later. A client that is gone is none the wiser.
    ///
    /// # Panics
    /// If the answer is longer than [`CALL_BYTES_MAX`].
    fn answer(&mut self, call: CallId, answer: &[u8]);
}

/// What takes the end of each call: its token, and the answer or why there is none.
pub type OnAnswer<'a> = &'a mut dyn FnMut(Token, std::result::Result<&[u8], Status>);

/// One client thread's connection to one server thread.
///
/// Every call that was made ends exactly once. Answers come in any order. A call that ended with
/// an error may or may not have been carried out.
pub trait Caller: Send {
    /// Queues a call; [`Caller::flush`] sends.
    ///
    /// # Errors
    /// [`CallsFull`].
    ///
    /// # Panics
    /// If it is longer than [`CALL_BYTES_MAX`].
    fn call(&mut self, request: &[u8], token: Token) -> std::result::Result<(), CallsFull>;

    /// Sends what is queued, many calls at a time.
    fn flush(&mut self);

    /// Makes progress without blocking. `now` drives the failure timeout: a server thread that is
    /// silent for [`crate::FAILURE_TIMEOUT`] while it owes an answer counts as failed.
    fn poll(&mut self, now: Time, on_answer: OnAnswer<'_>);

    /// Calls made and not ended.
    fn outstanding(&self) -> usize;

    /// Whether the connection is gone for good. Calls made since end with the next `poll`.
    fn is_dead(&self) -> bool;

    /// Becomes readable when `poll` would make progress. Ask before every wait: asking is what has
    /// the peer wake this thread. `None`: progress never needs waiting.
    fn fd(&self) -> Option<RawFd>;

    /// System calls made so far, for benchmarks.
    fn system_calls(&self) -> u64 {
        0
    }
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Broken {
    /// The peer closed it, or its machine is gone.
    Closed,
    /// The peer broke the protocol.
    Protocol(&'static str),
    /// Bytes were changed or forged on their way.
    Forged,
}

impl Broken {
    fn status(self) -> Status {
        match self {
            Self::Closed => Status::Disconnected,
            Self::Protocol(_) => Status::Protocol,
            Self::Forged => Status::Forged,
        }
    }
}

/// Length and id in front of each message.
pub(crate) const HEADER_BYTES: usize = 8;

/// The header of a message: its length, then the id of the call.
pub(crate) fn encode_header(id: u32, len_bytes: usize) -> [u8; HEADER_BYTES] {
    assert!(
        len_bytes <= CALL_BYTES_MAX,
        "a message of {len_bytes} bytes"
    );
    let len = u32::try_from(len_bytes).expect("CALL_BYTES_MAX is small");
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&len.to_le_bytes());
    header[4..].copy_from_slice(&id.to_le_bytes());
    header
}

/// Length and id.
pub(crate) fn decode_header(
    header: [u8; HEADER_BYTES],
) -> std::result::Result<(usize, u32), Broken> {
    let [a, b, c, d, id @ ..] = header;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    if len > CALL_BYTES_MAX {
        return Err(Broken::Protocol("a message that is too long"));
    }
    Ok((len, u32::from_le_bytes(id)))
}
