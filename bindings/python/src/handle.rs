//! Something that is open, from when it was opened until it is closed.
//!
//! A call takes its own share and gives it back when it ends, so that closing waits for nothing but
//! its own end, and what is under way in other threads is done. After a fork the threads behind it
//! are the parent's: the child neither uses it nor ends it.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::error::raise;
use crate::interpreter::detached;

pub struct Handle<T: Send + Sync> {
    open: ManuallyDrop<Mutex<Option<Arc<T>>>>,
    /// Whose threads are behind it.
    process: u32,
}

/// What one call has of it, with the interpreter's lock. The last of them ends what was closed
/// meanwhile. That joins threads: without the lock, which others wait for.
pub struct Share<'py, T: Send + Sync> {
    py: Python<'py>,
    /// None while it is dropped.
    open: Option<Arc<T>>,
}

impl<T: Send + Sync> Deref for Share<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.open.as_ref().expect("taken by its end alone")
    }
}

impl<T: Send + Sync> Drop for Share<'_, T> {
    fn drop(&mut self) {
        if let Some(last) = self.open.take().and_then(Arc::into_inner) {
            detached(self.py, || drop(last));
        }
    }
}

impl<T: Send + Sync> Handle<T> {
    pub fn new(open: T) -> Self {
        Self {
            open: ManuallyDrop::new(Mutex::new(Some(Arc::new(open)))),
            process: std::process::id(),
        }
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// A share for one call.
    pub fn get<'py>(&self, py: Python<'py>) -> PyResult<Share<'py, T>> {
        if !self.is_ours() {
            return Err(raise(
                py,
                "ForkedError",
                "it was opened in the parent process",
            ));
        }
        let open = self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        // Without the lock: what raises may let another thread run, which may want it.
        let Some(open) = open else {
            return Err(raise(py, "ClosedError", "it is closed"));
        };
        let open = Some(open);
        Ok(Share { py, open })
    }

    pub fn is_closed(&self) -> bool {
        // Another thread of the parent may have held the lock when the child was forked.
        let open = self.open.try_lock();
        self.is_ours() && open.is_ok_and(|open| open.is_none())
    }

    /// Ends it, once the calls under way have ended; the last of them does so.
    pub fn close(&self, py: Python<'_>) {
        if self.is_ours() {
            let open = self
                .open
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            detached(py, || drop(open));
        }
    }
}

impl<T: Send + Sync> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let open = self
                .open
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            // It joins threads, none of which needs the interpreter.
            Python::attach(|py| detached(py, || drop(open)));
        }
    }
}
