//! How a cache's client reaches the memory of one machine.
//!
//! A [`Path`] belongs to one client thread and leads to one host. Requests are submitted with the
//! buffer that they read into or write from; the path keeps the buffer until the request has ended
//! and gives it back with the [`Completion`]. So nobody can touch memory under way, and there is no
//! copy where the fabric needs none. A request of several pieces (one per region) splits its
//! [`BytesMut`] and puts it together again with `unsplit`, which copies nothing either.
//!
//! [`OneSided`] is the configuration with s = 0: each request is one verb of `cenote-fabric`. With
//! server threads, [`Batched`] sends many in a message.
//!
//! Not here: which machine has an address, retries and migration. They are the region table's.
//!
//! Paper: \[redy22\] section 4, configuration (c, s, b, q).

#[forbid(unsafe_code)]
mod batches;
#[expect(unsafe_code, reason = "verbs name buffers by address")]
mod one_sided;

use std::collections::VecDeque;
use std::os::fd::RawFd;

use bytes::{Bytes, BytesMut};
use cenote_fabric::{RemoteWindow, Status, Time};

pub use batches::Batched;
pub use one_sided::OneSided;

/// Chosen by who submits, returned in the completion. Need not be unique.
pub type Token = u64;

/// What to do, with the bytes that it is done with.
#[derive(Debug)]
pub enum Operation {
    /// Fill the buffer, all of its length. On a failure its content is unspecified.
    Read(BytesMut),
    /// Store these bytes.
    Write(Bytes),
}

impl Operation {
    /// Bytes to move.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Read(buffer) => buffer.len(),
            Self::Write(bytes) => bytes.len(),
        }
    }
}

/// A request that a path has taken.
struct UnderWay {
    operation: Operation,
    token: Token,
}

impl UnderWay {
    fn end(self, result: Result<(), Failure>) -> Completion {
        Completion {
            token: self.token,
            result,
            operation: self.operation,
        }
    }
}

/// The end of one request.
#[derive(Debug)]
pub struct Completion {
    /// As submitted.
    pub token: Token,
    /// How it ended.
    pub result: Result<(), Failure>,
    /// The buffer, given back; after a read that succeeded it holds the bytes.
    pub operation: Operation,
}

/// Why a request did not succeed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The window has another generation, or got one while the request ran. Look the region up
    /// again, then repeat. Memory of a later owner is untouched; where the window was renewed and
    /// its bytes kept, a part of a write may be among them.
    #[error("the window's generation is over")]
    Stale,
    /// The machine or the connection is gone. A write may or may not have taken effect. This path
    /// is of no more use; another to the same machine may be.
    #[error("the machine was lost: {0}")]
    Lost(Loss),
    /// The request itself is wrong, and nothing was changed. Repeating it is no use.
    #[error("the request was refused: {0}")]
    Refused(Refusal),
    /// The machine has no room for this request now, and nothing was changed. Repeat it later.
    #[error("the machine has no room for more requests of this client")]
    Busy,
}

impl Failure {
    /// Whether the same bytes at the same cache address can succeed later: after a look at the
    /// region table, on a new path, or after a while.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        !matches!(self, Self::Refused(_))
    }

    /// Whether a write that ended so may have changed memory that is still in use.
    #[must_use]
    pub fn may_have_happened(self) -> bool {
        matches!(self, Self::Lost(_) | Self::Stale)
    }

    /// Whether a write that ended so may change memory later that is in use then: nobody knows
    /// how far it has come.
    #[must_use]
    pub fn may_happen_late(self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// How a machine was lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Loss {
    /// The connection ended: its process is dead, or it ended the connection.
    #[error("the connection ended")]
    Closed,
    /// Nothing was heard for [`cenote_fabric::FAILURE_TIMEOUT`] while something was owed.
    #[error("it is silent")]
    Silent,
    /// It broke the protocol, or what came was changed or forged on its way.
    #[error("it broke the protocol, or its traffic was tampered with")]
    Broken,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Offset and length pass the window's end.
    #[error("the range passes the end of the window")]
    OutOfBounds,
    /// The window does not allow this operation.
    #[error("the window does not allow it")]
    NoRights,
    /// More bytes than one request of this path may have.
    #[error("more bytes than one request may have")]
    TooLong,
}

/// What a status of the fabric means for a request of a cache.
fn outcome(status: Status) -> Result<(), Failure> {
    match status {
        Status::Ok => Ok(()),
        Status::StaleGeneration | Status::Revoked => Err(Failure::Stale),
        Status::OutOfBounds => Err(Failure::Refused(Refusal::OutOfBounds)),
        Status::NoRights => Err(Failure::Refused(Refusal::NoRights)),
        Status::ReceiverNotReady => Err(Failure::Busy),
        Status::Disconnected => Err(Failure::Lost(Loss::Closed)),
        Status::Timeout => Err(Failure::Lost(Loss::Silent)),
        // A status that this build does not know is a host that speaks another protocol.
        _ => Err(Failure::Lost(Loss::Broken)),
    }
}

/// A request was not taken: as many are under way as the path has room for.
///
/// Nothing was submitted. Flush and poll, then submit it again.
#[derive(Debug, thiserror::Error)]
#[error("the path has as many requests under way as it has room for")]
pub struct Full(pub Operation);

/// One client thread's way to one machine.
///
/// Every request that was taken ends in exactly one completion, with an error if the machine is
/// lost. Completions come in any order; requests of one path that overlap, and are under way
/// together, take effect in any order too. Who needs an order waits.
///
/// Call order: `submit` any number of times, `flush`, then `poll` until the completions are there;
/// to block between polls, wait for `fd` to become readable ([`cenote_fabric::wait()`]).
pub trait Path: Send {
    /// Takes a request for the bytes at `offset` of `window`, which is one of this machine's. It may
    /// run at once or with the next `flush`.
    ///
    /// What is wrong with the request itself is told by its completion.
    ///
    /// # Errors
    /// [`Full`] gives the operation back.
    fn submit(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        operation: Operation,
        token: Token,
    ) -> Result<(), Full>;

    /// Sends what was submitted and still waits here; many requests cost few system calls.
    fn flush(&mut self);

    /// Makes progress without blocking and appends what has ended. `now` drives the failure timeout.
    fn poll(&mut self, now: Time, completions: &mut VecDeque<Completion>);

    /// Requests taken whose completions were not given yet.
    fn outstanding(&self) -> usize;

    /// Most bytes that one request may read or write; a longer one is refused as `TooLong`.
    fn request_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Whether the path is of no more use; every request on it ends with [`Failure::Lost`].
    fn is_lost(&self) -> bool;

    /// Readable when `poll` would make progress. Ask before every wait, after a `poll`: asking may be
    /// what has the machine wake this thread. `None`: progress never needs waiting.
    fn fd(&self) -> Option<RawFd>;
}
