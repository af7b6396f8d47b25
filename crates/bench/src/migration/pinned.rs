//! The client's thread on a processor of its own, everything else on the others.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cenote_cli::pin;
use cenote_fabric::{Address, Connector, Hello, Session};

/// Where this thread, and what it starts, runs until this is dropped.
pub struct Pinned {
    /// All that it may use.
    processors: Vec<usize>,
    is_pinned: bool,
}

impl Pinned {
    /// What this thread starts from now on leaves the first processor alone, if `is_wanted` and there are two.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(is_wanted: bool) -> Result<Self> {
        let processors = pin::processors()?;
        let is_pinned = is_wanted && processors.len() > 1;
        if is_pinned {
            pin::this_thread(&processors[1..])?;
        }
        Ok(Self {
            processors,
            is_pinned,
        })
    }

    /// This thread has the first processor for itself from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn take_own(&self) -> Result<()> {
        if self.is_pinned {
            pin::this_thread(&self.processors[..1])?;
        }
        Ok(())
    }

    /// A connector whose threads leave the first processor alone: one that is started to connect would stay
    /// where its parent is.
    pub fn elsewhere(&self, connector: &Arc<dyn Connector>) -> Arc<dyn Connector> {
        if !self.is_pinned {
            return Arc::clone(connector);
        }
        Arc::new(Elsewhere {
            connector: Arc::clone(connector),
            processors: self.processors[1..].to_vec(),
        })
    }

    /// Whether there was a processor for it.
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.is_pinned
            && let Err(error) = pin::this_thread(&self.processors)
        {
            eprintln!("the thread stays on one processor: {error:#}");
        }
    }
}

struct Elsewhere {
    connector: Arc<dyn Connector>,
    processors: Vec<usize>,
}

impl Connector for Elsewhere {
    fn connect(
        &self,
        address: &Address,
        hello: &Hello,
        timeout: Duration,
    ) -> cenote_fabric::Result<Box<dyn Session>> {
        if let Err(error) = pin::this_thread(&self.processors) {
            eprintln!("connecting takes time of the client's processor: {error:#}");
        }
        self.connector.connect(address, hello, timeout)
    }
}
