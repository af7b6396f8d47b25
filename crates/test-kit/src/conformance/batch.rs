//! Endpoints whose system calls a [`Batch`] makes, each by a batch of its own.

use std::os::fd::RawFd;
use std::time::Duration;

use cenote_fabric::calls::CallerOpener;
use cenote_fabric::{
    Address, Batch, CompletionQueue, Connector, Endpoint, Hello, Incoming, Opener, QueueFull,
    Result, Session, Time, Token, Verb, WindowDescriptor,
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
    unsafe fn post(
        &mut self,
        verb: Verb<'_>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> std::result::Result<(), QueueFull> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.post(verb, token, queue) }
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
