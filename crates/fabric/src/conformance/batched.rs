//! Endpoints whose system calls a [`Batch`] makes, each by a batch of its own.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::calls::CallerOpener;
use crate::{
    Address, Batch, CompletionQueue, Connector, Endpoint, Hello, Incoming, Opener, QueueFull,
    RemoteWindow, Result, Session, Time, Token, WindowDescriptor,
};

/// Opens sessions with such endpoints.
pub(super) struct Batched<C>(pub(super) C);

struct BatchedSession(Box<dyn Session>);

struct BatchedEndpoint {
    inner: Box<dyn Endpoint>,
    batch: Batch,
}

impl<C: Connector> Connector for Batched<C> {
    fn connect(
        &self,
        address: &Address,
        hello: &Hello,
        timeout: Duration,
    ) -> Result<Box<dyn Session>> {
        let inner = self.0.connect(address, hello, timeout)?;
        Ok(Box::new(BatchedSession(inner)))
    }
}

impl Session for BatchedSession {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.0.send(message)
    }

    fn attach(&mut self, window: WindowDescriptor) -> Result<()> {
        self.0.attach(window)
    }

    fn receive(&mut self) -> Result<Option<Incoming>> {
        self.0.receive()
    }

    fn opener(&self) -> Opener {
        let open = self.0.opener();
        Box::new(move |timeout| {
            let batch = Batch::of_one();
            assert!(batch.is_on(), "this system has no io_uring for tcp");
            Ok(Box::new(BatchedEndpoint {
                inner: open(timeout)?,
                batch,
            }))
        })
    }

    fn caller_opener(&self) -> CallerOpener {
        self.0.caller_opener()
    }

    fn fd(&self) -> Option<RawFd> {
        self.0.fd()
    }

    fn wants_write(&self) -> bool {
        self.0.wants_write()
    }

    fn version(&self) -> u16 {
        self.0.version()
    }
}

impl Endpoint for BatchedEndpoint {
    unsafe fn post_read(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        landing: *mut u8,
        len_bytes: usize,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        // SAFETY: the caller's promise.
        unsafe {
            self.inner
                .post_read(window, offset, landing, len_bytes, token, queue)
        }
    }

    unsafe fn post_write(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        source: *const u8,
        len_bytes: usize,
        immediate: Option<u32>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        // SAFETY: the caller's promise.
        unsafe {
            self.inner
                .post_write(window, offset, source, len_bytes, immediate, token, queue)
        }
    }

    fn post_send(
        &mut self,
        message: &[u8],
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        self.inner.post_send(message, token, queue)
    }

    fn post_compare_swap(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        expected: u64,
        new: u64,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        self.inner
            .post_compare_swap(window, offset, expected, new, token, queue)
    }

    fn post_fetch_add(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        addend: u64,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        self.inner
            .post_fetch_add(window, offset, addend, token, queue)
    }

    fn flush(&mut self, queue: &mut CompletionQueue) {
        self.batch.flush([&mut *self.inner].into_iter(), queue);
    }

    fn poll(&mut self, now: Time, queue: &mut CompletionQueue) {
        self.batch.poll([&mut *self.inner].into_iter(), now, queue);
    }

    fn revoke_landing(&mut self, token: Token) {
        self.inner.revoke_landing(token);
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding()
    }

    fn is_dead(&self) -> bool {
        self.inner.is_dead()
    }

    fn fd(&self) -> Option<RawFd> {
        self.inner.fd()
    }

    fn system_calls(&self) -> u64 {
        self.inner.system_calls() + self.batch.system_calls()
    }
}
