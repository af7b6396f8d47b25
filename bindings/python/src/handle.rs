//! Something that is open, from when it was opened until it is closed.
//!
//! A call takes its own share and gives it back when it ends; closing waits until all have. After a
//! fork the threads behind it are the parent's: the child neither uses it nor ends it.

use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::raise;
use crate::interpreter::{detached, is_ending};

/// Longest wait before the interpreter is asked whether to go on.
const LOOK: Duration = Duration::from_millis(100);

pub struct Handle<T: Send + Sync> {
    state: Mutex<State<T>>,
    /// A share was given back.
    returned: Condvar,
    /// Whose threads are behind it.
    process: u32,
}

struct State<T> {
    open: Option<Arc<T>>,
    /// Threads that have a share, once for each.
    holders: Vec<ThreadId>,
}

/// What one call has of it, with the interpreter's lock. The last of them ends what was closed
/// meanwhile. That joins threads: without the lock, which others wait for.
pub struct Share<'a, T: Send + Sync> {
    handle: &'a Handle<T>,
    py: Python<'a>,
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
        let Some(open) = self.open.take() else { return };
        if !self.handle.is_ours() {
            // The child of a call that forked: nothing is to end, and the lock may be held by a
            // thread that is not here.
            return std::mem::forget(open);
        }
        if let Some(last) = Arc::into_inner(open) {
            detached(self.py, || drop(last));
        }
        // Only now: who waits for it to be closed waits for its end.
        let own = std::thread::current().id();
        let holders = &mut self.handle.lock().holders;
        if let Some(place) = holders.iter().position(|holder| *holder == own) {
            holders.swap_remove(place);
        }
        self.handle.returned.notify_all();
    }
}

impl<T: Send + Sync> Handle<T> {
    pub fn new(open: T) -> Self {
        Self {
            state: Mutex::new(State {
                open: Some(Arc::new(open)),
                holders: Vec::new(),
            }),
            returned: Condvar::new(),
            process: std::process::id(),
        }
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Held for a moment, never while somebody waits for the interpreter. Not after a fork: another
    /// thread of the parent may have held it then.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A share for one call.
    pub fn get<'a>(&'a self, py: Python<'a>) -> PyResult<Share<'a, T>> {
        if !self.is_ours() {
            return Err(raise(
                py,
                "ForkedError",
                "it was opened in the parent process",
            ));
        }
        // Without the lock: what raises may let another thread run, which may want it.
        let share = self.share(py, |open| open.clone());
        share.ok_or_else(|| raise(py, "ClosedError", "it is closed"))
    }

    /// A share of what `of` finds.
    fn share<'a>(
        &'a self,
        py: Python<'a>,
        of: impl FnOnce(&mut Option<Arc<T>>) -> Option<Arc<T>>,
    ) -> Option<Share<'a, T>> {
        let mut state = self.lock();
        let open = Some(of(&mut state.open)?);
        state.holders.push(std::thread::current().id());
        let handle = self;
        Some(Share { handle, py, open })
    }

    pub fn is_closed(&self) -> bool {
        self.is_ours() && self.lock().open.is_none()
    }

    /// Ends it, once the calls under way have ended; the last of them does so.
    ///
    /// A signal's handler that closes it may have interrupted a call of this thread: that one ends
    /// later than this one.
    ///
    /// # Errors
    /// What a signal's handler raised, such as `KeyboardInterrupt`: it is closed all the same, and
    /// ends with its last call.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_ours() {
            return Ok(());
        }
        drop(self.share(py, Option::take));
        // Threads that the interpreter leaves behind when it ends never give theirs back.
        while !is_ending() && detached(py, || self.is_awaited()) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Waits for a while; whether others still have shares.
    fn is_awaited(&self) -> bool {
        let own = std::thread::current().id();
        let are_others =
            |state: &mut State<T>| !state.holders.is_empty() && !state.holders.contains(&own);
        let waited = self
            .returned
            .wait_timeout_while(self.lock(), LOOK, are_others);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        are_others(&mut state)
    }
}

impl<T: Send + Sync> Drop for Handle<T> {
    fn drop(&mut self) {
        // Nobody has a share: a call holds on to what has the handle.
        let state = self.state.get_mut();
        let open = state.unwrap_or_else(PoisonError::into_inner).open.take();
        if self.process == std::process::id() {
            // It joins threads, none of which needs the interpreter.
            Python::attach(|py| detached(py, || drop(open)));
        } else {
            std::mem::forget(open);
        }
    }
}
