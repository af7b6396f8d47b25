//! A host inside of another program: the daemon on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use cenote_fabric::{Address, Waker};

use crate::daemon::Daemon;
use crate::{Config, Error, Result};

/// A daemon that runs until it is stopped or dropped.
pub struct OnThread {
    addresses: Vec<Address>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl OnThread {
    /// Starts a daemon.
    ///
    /// # Errors
    /// As [`Daemon::start`]; `Os`: the system has no thread left.
    pub fn start(config: Config) -> Result<Self> {
        Self::run(Daemon::start(config)?)
    }

    /// Runs a daemon that was started.
    ///
    /// # Errors
    /// `Os`: the system has no thread left.
    pub fn run(mut daemon: Daemon) -> Result<Self> {
        let (addresses, waker) = (daemon.addresses(), daemon.waker());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("host".into())
            .spawn(move || daemon.run(&stopped).map(drop))
            .map_err(|source| Error::Os {
                what: "start a host's thread",
                source,
            })?;
        Ok(Self {
            addresses,
            waker,
            stop,
            thread: Some(thread),
        })
    }

    /// Where it listens, with real ports.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Ends it as SIGTERM does, and waits for that.
    ///
    /// # Errors
    /// That of [`Daemon::run`], the first time.
    ///
    /// # Panics
    /// If the daemon did.
    pub fn stop(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for OnThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.store(true, Ordering::Relaxed);
            return self.waker.wake();
        }
        if let Err(error) = self.stop() {
            tracing::error!(%error, "a host on a thread");
        }
    }
}
