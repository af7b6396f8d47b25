//! Tiers: where pages of the log go when memory has no room, the fastest first.
//!
//! The last tier holds the whole log. Each one before it holds a tail of it, from its `start` to
//! its `until`: as much as it has room for, and nothing below a page that it failed to write. A
//! read goes to the fastest tier that has the address. A tier that is lost serves nothing; one that
//! is put in its place starts empty and takes what is written from then on.

#[expect(unsafe_code, reason = "aligned blocks are looked at as bytes")]
mod buffer;
mod cache;
mod device;
pub mod memory;
pub mod remote;
#[expect(unsafe_code, reason = "the kernel works on buffers by address")]
pub mod ssd;

pub use buffer::Buffer;
pub(super) use device::{End, Inbox, Started, Tiers};

use std::io;
use std::sync::Arc;

/// What a tier is asked for.
#[derive(Clone, Debug)]
pub enum Request {
    /// Write a whole page. Never written twice, except again after an error, and after [`Cut`].
    ///
    /// [`Cut`]: Request::Cut
    Write {
        /// Where it begins.
        address: u64,
        /// The page.
        page: Arc<Buffer>,
    },
    /// Read a range. What is behind the end of what was written may be left out.
    Read {
        /// Where it begins, not aligned.
        address: u64,
        /// Bytes wanted.
        len_bytes: usize,
    },
    /// Make durable what has been written; writes that ended before are what counts.
    Sync,
    /// Give the space below `address` back. What is read there from then on is undefined.
    Drop {
        /// The first byte to keep.
        address: u64,
    },
    /// Forget everything from `address` on, durably once a `Sync` has ended.
    Cut {
        /// The first byte to forget.
        address: u64,
    },
}

/// How a request ended.
#[derive(Debug)]
pub struct Ended {
    /// As it was started with.
    pub token: u64,
    /// The bytes that were read, and nothing for other requests. An error of the kind `NotFound`:
    /// the tier let go of them; that is no fault of it.
    pub result: io::Result<Vec<u8>>,
}

/// The tier has as many requests under way as it takes. The request comes back.
#[derive(Debug)]
pub struct Busy;

/// Storage for pages of a log. Requests end in any order; each one ends, with an error if need be:
/// time limits are the tier's.
///
/// One that lost a part of what it holds goes on with the rest: reads of that part end with an
/// error, and go to the next tier.
pub trait Tier: Send {
    /// For people.
    fn name(&self) -> String;

    /// Whether what was synced is there after a crash.
    fn is_durable(&self) -> bool;

    /// Most bytes that it is to hold, a tail of the log; `None` for the whole log.
    fn capacity_bytes(&self) -> Option<u64>;

    /// Pages are a multiple of this.
    fn block_bytes(&self) -> usize;

    /// Starts a request. It does not block on the storage.
    ///
    /// # Errors
    /// [`Busy`]: nothing was started, try again after a poll.
    fn start(&mut self, token: u64, request: Request) -> Result<(), Busy>;

    /// Adds what ended. It does not block.
    ///
    /// # Errors
    /// The tier is gone, with all it held and all that was under way.
    fn poll(&mut self, ended: &mut Vec<Ended>) -> io::Result<()>;
}
