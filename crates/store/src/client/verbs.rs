//! The data connection: verbs into and out of the memory of operations.
//!
//! The one place of the crate with unsafe code: a verb refers to memory until it has completed. Whoever posts
//! one keeps the buffer where it is until then; the buffers here are of boxed operations, which are dropped
//! when none of their verbs is under way, and the connection before all of them.
#![expect(unsafe_code, reason = "verbs refer to memory until they complete")]

use std::os::fd::RawFd;

use cenote_fabric::{
    CompletionQueue, Endpoint, QUEUE_DEPTH, QueueFull, RemoteWindow, Status, Time,
};

/// One endpoint, and what completed on it.
pub(super) struct Verbs {
    endpoint: Box<dyn Endpoint>,
    queue: CompletionQueue,
}

/// Most verbs of one step of an operation.
pub(super) const STEP_VERBS_MAX: usize = 4;

impl Verbs {
    pub fn new(endpoint: Box<dyn Endpoint>) -> Self {
        Self {
            endpoint,
            queue: CompletionQueue::with_capacity(64),
        }
    }

    /// Whether a whole step can be posted.
    pub fn has_room(&self) -> bool {
        self.endpoint.outstanding() + STEP_VERBS_MAX <= QUEUE_DEPTH
    }

    /// Posts a READ into `buffer` for operation `index`.
    ///
    /// The caller keeps the buffer's memory where it is, untouched, until the verb has completed or this
    /// connection is dropped.
    pub fn read(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        buffer: &mut [u8],
        index: usize,
    ) -> Result<(), QueueFull> {
        let (landing, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the buffer is valid for writes of its length, and by the caller's promise stays so.
        unsafe {
            self.endpoint
                .post_read(window, offset, landing, len, index as u64, &mut self.queue)
        }
    }

    /// Posts a WRITE of `bytes`, as [`Verbs::read`].
    pub fn write(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        bytes: &[u8],
        immediate: Option<u32>,
        index: usize,
    ) -> Result<(), QueueFull> {
        let (source, len) = (bytes.as_ptr(), bytes.len());
        let queue = &mut self.queue;
        // SAFETY: the bytes are readable, and by the caller's promise stay so, unchanged.
        unsafe {
            self.endpoint
                .post_write(window, offset, source, len, immediate, index as u64, queue)
        }
    }

    /// Posts a message behind what was posted before.
    pub fn send(&mut self, message: &[u8], index: usize) -> Result<(), QueueFull> {
        self.endpoint
            .post_send(message, index as u64, &mut self.queue)
    }

    pub fn flush(&mut self) {
        self.endpoint.flush(&mut self.queue);
    }

    /// The next verb that ended: whose, and how.
    pub fn poll(&mut self, now: Time) -> Option<(usize, Status)> {
        if self.queue.is_empty() {
            self.endpoint.poll(now, &mut self.queue);
            // A server says nothing here.
            self.queue.received.clear();
        }
        self.completed()
    }

    /// The same of those that completed already, without a look.
    pub fn completed(&mut self) -> Option<(usize, Status)> {
        let ended = self.queue.pop()?;
        Some((ended.token as usize, ended.status))
    }

    pub fn fd(&self) -> Option<RawFd> {
        self.endpoint.fd()
    }
}
