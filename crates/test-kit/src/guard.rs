//! Real sessions of which a test can hold some things back.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::calls::CallerOpener;
use cenote_fabric::{
    Address, Connector, Endpoint, Error, Hello, Incoming, Opener, Result, Session, WindowDescriptor,
};

/// What a test does to sessions; by default nothing.
pub trait Guard: Clone + Send + Sync + 'static {
    /// Before a session is opened.
    fn connect(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the session breaks in front of something that arrived.
    fn breaks(&self, _incoming: &Incoming) -> bool {
        false
    }

    /// Before a data connection is opened, on the thread that opens it.
    fn open(&self) -> Result<()> {
        Ok(())
    }

    /// What is made of a data connection.
    fn endpoint(&self, inner: Box<dyn Endpoint>) -> Box<dyn Endpoint> {
        inner
    }

    /// Sees a message that is sent.
    fn sending(&self, _message: &[u8]) {}

    /// Whether a message is lost instead of sent.
    fn swallows(&self, _message: &[u8]) -> bool {
        false
    }

    /// Whether a window is asked for; one that is not stays unanswered.
    fn attaches(&self) -> bool {
        true
    }

    /// What is made of something that arrived.
    fn receiving(&self, incoming: Incoming) -> Incoming {
        incoming
    }

    /// Whether what arrived is handed out yet.
    fn receives(&self) -> bool {
        true
    }
}

/// Sessions to the given addresses are guarded.
pub struct Guarded<G> {
    /// Opens the real ones.
    pub inner: Arc<dyn Connector>,
    /// Of the hosts in question.
    pub addresses: Vec<Address>,
    /// What it does.
    pub guard: G,
}

struct GuardedSession<G> {
    inner: Box<dyn Session>,
    guard: G,
}

impl<G: Guard> Connector for Guarded<G> {
    fn connect(
        &self,
        address: &Address,
        hello: &Hello,
        timeout: Duration,
    ) -> Result<Box<dyn Session>> {
        if !self.addresses.contains(address) {
            return self.inner.connect(address, hello, timeout);
        }
        let guard = self.guard.clone();
        guard.connect()?;
        let inner = self.inner.connect(address, hello, timeout)?;
        Ok(Box::new(GuardedSession { inner, guard }))
    }
}

impl<G: Guard> Session for GuardedSession<G> {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.guard.sending(message);
        if self.guard.swallows(message) {
            return Ok(());
        }
        self.inner.send(message)
    }

    fn attach(&mut self, window: WindowDescriptor) -> Result<()> {
        if self.guard.attaches() {
            self.inner.attach(window)
        } else {
            Ok(())
        }
    }

    fn receive(&mut self) -> Result<Option<Incoming>> {
        if !self.guard.receives() {
            return Ok(None);
        }
        let received = self.inner.receive()?;
        if received.as_ref().is_some_and(|it| self.guard.breaks(it)) {
            return Err(Error::Closed);
        }
        Ok(received.map(|incoming| self.guard.receiving(incoming)))
    }

    fn opener(&self) -> Opener {
        let (guard, open) = (self.guard.clone(), self.inner.opener());
        Box::new(move |timeout| {
            guard.open()?;
            open(timeout).map(|endpoint| guard.endpoint(endpoint))
        })
    }

    fn caller_opener(&self) -> CallerOpener {
        self.inner.caller_opener()
    }

    fn fd(&self) -> Option<RawFd> {
        self.inner.fd()
    }

    fn wants_write(&self) -> bool {
        self.inner.wants_write()
    }
}
