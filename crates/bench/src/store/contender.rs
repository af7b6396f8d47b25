//! Who stands in the table: a store that runs, the ways to use it, and its clients.
//!
//! A [`Store`] is started once for each length of values and holds the items. A [`Way`] is one row
//! of the table: by which transport it is asked, and what an answer to a PUT promises. A [`Client`]
//! is what one thread of the load drives; it serves some closed loops, each with one request under
//! way.

use anyhow::Result;

use super::super::kv::usage;
use super::super::kv::wire::Reply;

/// What is so after a crash once a PUT was answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Promise {
    /// It may be lost: it is made durable later.
    Later,
    /// It is there.
    Durable,
}

/// Whose figure it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Compared with all others.
    Ours,
    /// Another scheme of our own server.
    Rival,
    /// Another store.
    Peer,
}

/// How a store is used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Way {
    /// As in the table and in a JSON line; says the promise where a store has several.
    pub scheme: &'static str,
    /// Beside our figures: with its version where it has one.
    pub label: String,
    /// `shm`, `tcp`, `unix` or `in-process`.
    pub transport: &'static str,
    /// What its PUTs promise.
    pub promise: Promise,
    /// What it is measured for.
    pub role: Role,
    /// Whether GETs are those of another way of the same store, and need not be measured twice.
    pub reads_like_another: bool,
}

/// A request for one key.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Its value is wanted.
    Get {
        /// At most 14 bytes.
        key: &'a [u8],
    },
    /// It gets a value; answered as the way promises.
    Put {
        /// At most 14 bytes.
        key: &'a [u8],
        /// All of it.
        value: &'a [u8],
    },
}

/// A store that runs, or is open; ended when dropped.
pub(super) trait Store {
    /// At least one. The first fills it.
    fn ways(&self) -> &[Way];

    /// Clients that serve so many closed loops together, one client for each thread of the load.
    ///
    /// # Errors
    /// It does not answer.
    fn connect(&self, way: &Way, loops: usize) -> Result<Vec<Box<dyn Client>>>;

    /// Its processes. A store within this process is this process, its load included.
    fn pids(&self) -> Vec<u32>;

    /// Waits until nothing is under way that takes disk or processor from who is measured next.
    ///
    /// # Errors
    /// It does not answer.
    fn settle(&self) -> Result<()>;

    /// Bytes that went to its medium so far, where that is known.
    fn medium_bytes(&self) -> Option<u64> {
        usage::written_bytes(&self.pids())
    }
}

/// Some closed loops. A loop gets a request only when it has none under way.
pub(super) trait Client: Send {
    /// How many.
    fn loops(&self) -> usize;

    /// Begins a request of the loop `at`; a client that blocks also ends it.
    ///
    /// # Errors
    /// The connection is lost.
    fn submit(&mut self, at: usize, request: Request<'_>) -> Result<()>;

    /// Waits a while for answers, and hands over those that came, with their loops.
    ///
    /// # Errors
    /// The connection is lost, or an answer is none.
    fn wait(&mut self, take: &mut dyn FnMut(usize, Reply<'_>)) -> Result<()>;
}
