//! The data path: posting verbs and reaping their completions.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use crate::{MESSAGE_BYTES_MAX, RemoteWindow, Time, Wire};

/// Most verbs outstanding on one endpoint.
pub const QUEUE_DEPTH: usize = 1024;

/// Chosen by the poster, returned in the completion.
pub type Token = u64;

/// How a verb ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// It took effect.
    Ok = 0,
    /// The window's generation is another one; nothing was changed.
    StaleGeneration = 1,
    /// Offset and length pass the window's end, or an atomic is not 8-byte aligned; nothing was changed.
    OutOfBounds = 2,
    /// The window does not allow this verb; nothing was changed.
    NoRights = 3,
    /// The window was revoked while the verb ran; memory of a later window is untouched.
    Revoked = 4,
    /// The peer died or the connection broke; the verb may or may not have taken effect.
    Disconnected = 5,
    /// The peer was silent for too long; the connection is dead from here on.
    Timeout = 6,
    /// The peer broke the protocol; the connection is dead from here on.
    Protocol = 7,
    /// The host's receive queue is full; try again.
    ReceiverNotReady = 8,
    /// What came was changed, repeated or forged on its way, and none of it used; the connection is
    /// dead from here on.
    Forged = 9,
}

/// The end of one verb.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// As posted.
    pub token: Token,
    /// How it ended.
    pub status: Status,
    /// For atomics: the value before. Otherwise 0.
    pub value: u64,
}

/// A verb could not be posted: the endpoint already has [`QUEUE_DEPTH`] outstanding.
///
/// Poll, then post again. Nothing was posted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("queue full: {QUEUE_DEPTH} verbs are outstanding on this endpoint")]
pub struct QueueFull;

/// Completions and received messages of one worker's endpoints, oldest first.
#[derive(Debug, Default)]
pub struct CompletionQueue {
    completions: VecDeque<Completion>,
    /// Messages that a peer sent on a data endpoint, bounded by the endpoint.
    pub received: VecDeque<Vec<u8>>,
}

impl CompletionQueue {
    /// An empty queue with room for `capacity` completions before it allocates.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            completions: VecDeque::with_capacity(capacity),
            received: VecDeque::new(),
        }
    }

    /// Appends; called by endpoints.
    #[inline]
    pub fn push(&mut self, completion: Completion) {
        self.completions.push_back(completion);
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn pop(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Drops the oldest completion if it succeeded; false leaves it for [`CompletionQueue::pop`].
    ///
    /// For endpoints that complete at once: it reads the status alone, just after it was
    /// written, where reading the whole completion would wait for the store buffer.
    #[inline]
    pub fn pop_ok(&mut self) -> bool {
        let is_ok = self
            .completions
            .front()
            .is_some_and(|completion| completion.status == Status::Ok);
        if is_ok {
            self.completions.pop_front();
        }
        is_ok
    }

    /// Completions waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.completions.len()
    }

    /// Whether no completion waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.completions.is_empty()
    }
}

/// What an endpoint is asked to do, as it is posted.
#[derive(Clone, Copy, Debug)]
pub enum Verb<'v> {
    /// Reads `len_bytes` at `offset` of the window into `landing`. On any status but `Ok` the landing's
    /// content is unspecified.
    Read {
        /// Of the host's memory.
        window: &'v RemoteWindow,
        /// In the window.
        offset: u64,
        /// Where the bytes go.
        landing: *mut u8,
        /// How many.
        len_bytes: usize,
    },
    /// Writes `len_bytes` from `source` at `offset` of the window.
    Write {
        /// Of the host's memory.
        window: &'v RemoteWindow,
        /// In the window.
        offset: u64,
        /// Where the bytes come from.
        source: *const u8,
        /// How many.
        len_bytes: usize,
        /// With it the host also gets an event that carries it, after the bytes are in place.
        immediate: Option<u32>,
    },
    /// Sends a message of at most [`MESSAGE_BYTES_MAX`] to the host's receive queue, ordered after earlier
    /// verbs.
    Send {
        /// Its bytes.
        message: &'v [u8],
    },
    /// Replaces the 8 bytes at `offset` (a multiple of 8, little-endian) by `new` if they equal
    /// `expected`.
    CompareSwap {
        /// Of the host's memory.
        window: &'v RemoteWindow,
        /// In the window.
        offset: u64,
        /// What has to be there.
        expected: u64,
        /// What is put there.
        new: u64,
    },
    /// Adds `addend`, wrapping, to the 8 bytes at `offset` (a multiple of 8, little-endian).
    FetchAdd {
        /// Of the host's memory.
        window: &'v RemoteWindow,
        /// In the window.
        offset: u64,
        /// What is added.
        addend: u64,
    },
}

/// Refuses a message that no receive queue takes.
pub(crate) fn check_message(message: &[u8]) {
    assert!(
        message.len() <= MESSAGE_BYTES_MAX,
        "message of {} bytes",
        message.len()
    );
}

/// One worker's queue pair to one host. Used by one thread at a time.
///
/// Posting may complete at once (`shm` does): the completion is then already in the
/// queue when the post returns. `flush` rings the doorbell for verbs that were only
/// queued; `poll` makes progress without blocking. To block, wait for [`Endpoint::fd`]
/// to become readable (see [`crate::wait()`]) and poll again.
///
/// A dead endpoint completes everything posted on it with an error, at the latest on
/// the next `poll`.
pub trait Endpoint: Send {
    /// Posts a verb; its completion has the token.
    ///
    /// # Errors
    /// [`QueueFull`]: nothing was posted.
    ///
    /// # Panics
    /// If a message is longer than [`MESSAGE_BYTES_MAX`].
    ///
    /// # Safety
    /// Until the completion of `token` is popped, a `source` is valid for reads of `len_bytes` and
    /// unchanged, and a `landing` is valid for writes of `len_bytes`; the latter only until
    /// [`Endpoint::revoke_landing`] of `token` returned.
    unsafe fn post(
        &mut self,
        verb: Verb<'_>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> Result<(), QueueFull>;

    /// Posts a [`Verb::Read`].
    ///
    /// # Errors
    /// [`QueueFull`]: nothing was posted.
    ///
    /// # Safety
    /// That of [`Endpoint::post`].
    #[inline]
    unsafe fn post_read(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        landing: *mut u8,
        len_bytes: usize,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> Result<(), QueueFull> {
        let verb = Verb::Read {
            window,
            offset,
            landing,
            len_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { self.post(verb, token, queue) }
    }

    /// Posts a [`Verb::Write`].
    ///
    /// # Errors
    /// [`QueueFull`]: nothing was posted.
    ///
    /// # Safety
    /// That of [`Endpoint::post`].
    #[expect(
        clippy::too_many_arguments,
        reason = "the verb's own parameters, as in ibverbs"
    )]
    #[inline]
    unsafe fn post_write(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        source: *const u8,
        len_bytes: usize,
        immediate: Option<u32>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> Result<(), QueueFull> {
        let verb = Verb::Write {
            window,
            offset,
            source,
            len_bytes,
            immediate,
        };
        // SAFETY: the caller's promise.
        unsafe { self.post(verb, token, queue) }
    }

    /// Posts a [`Verb::Send`].
    ///
    /// # Errors
    /// [`QueueFull`]: nothing was posted.
    ///
    /// # Panics
    /// If the message is longer than [`MESSAGE_BYTES_MAX`].
    fn post_send(
        &mut self,
        message: &[u8],
        token: Token,
        queue: &mut CompletionQueue,
    ) -> Result<(), QueueFull> {
        // SAFETY: a message is copied before the post returns.
        unsafe { self.post(Verb::Send { message }, token, queue) }
    }

    /// Posts a [`Verb::CompareSwap`].
    ///
    /// # Errors
    /// [`QueueFull`]: nothing was posted.
    fn post_compare_swap(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        expected: u64,
        new: u64,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> Result<(), QueueFull> {
        let verb = Verb::CompareSwap {
            window,
            offset,
            expected,
            new,
        };
        // SAFETY: the verb has no memory of the caller.
        unsafe { self.post(verb, token, queue) }
    }

    /// Posts a [`Verb::FetchAdd`].
    ///
    /// # Errors
    /// [`QueueFull`]: nothing was posted.
    fn post_fetch_add(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        addend: u64,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> Result<(), QueueFull> {
        let verb = Verb::FetchAdd {
            window,
            offset,
            addend,
        };
        // SAFETY: the verb has no memory of the caller.
        unsafe { self.post(verb, token, queue) }
    }

    /// Whether every verb has completed when its post returns, so that nothing needs a flush.
    ///
    /// Such an endpoint may use streaming stores: other threads and the host are sure to see
    /// what it wrote once [`Endpoint::flush`] or [`crate::order_stores`] returned.
    fn completes_at_once(&self) -> bool {
        false
    }

    /// Hints that these bytes will be read soon. Does nothing where that cannot help.
    fn prefetch_read(&self, _window: &RemoteWindow, _offset: u64, _len_bytes: usize) {}

    /// Hints that these bytes will be written soon. Does nothing where that cannot help.
    fn prefetch_write(&self, _window: &RemoteWindow, _offset: u64, _len_bytes: usize) {}

    /// Sends what is queued; many verbs posted together cost few system calls.
    fn flush(&mut self, queue: &mut CompletionQueue);

    /// Makes progress without blocking. `now` drives the failure timeout.
    fn poll(&mut self, now: Time, queue: &mut CompletionQueue);

    /// Detaches the landing of `token`: after the return no byte reaches it. The verb still
    /// completes, later, with whatever status it gets.
    fn revoke_landing(&mut self, token: Token);

    /// Verbs posted and not completed.
    fn outstanding(&self) -> usize;

    /// Whether the connection is gone for good; a new endpoint is needed.
    fn is_dead(&self) -> bool;

    /// Becomes readable when `poll` would make progress. `None`: progress never needs waiting.
    fn fd(&self) -> Option<RawFd>;

    /// System calls made so far on the data path, for benchmarks. 0 where there are none.
    fn system_calls(&self) -> u64 {
        0
    }

    /// What a [`Batch`](crate::Batch) needs to make its system calls. `None`: it makes them itself.
    fn wire(&mut self) -> Option<Wire<'_>> {
        None
    }
}
