//! The client's thread on a processor of its own, everything else on the others.

use anyhow::Result;
use cenote_cli::pin;

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
