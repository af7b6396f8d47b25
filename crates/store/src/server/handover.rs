//! How the persister of a shard is handed what others have for it: it sleeps while there is nothing, and
//! misses nothing that comes between its last look and its sleep.
//!
//! Who has something changes the state under the lock and wakes. The persister works without the lock most
//! of the time, so what came meanwhile woke nobody: it looks again, under the lock that its sleep gives
//! up, before each sleep. Its longest sleep is short, but what waits for it would wait that long each time.
//!
//! Every interleaving is tried by `tests/interleavings.rs`, which compiles this file with the lock of the
//! model checker as `crate::sync`. There no sleep ends by itself.

use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// What all hand over.
pub trait News {
    /// Whether something came since the persister began its turn that it can do at once.
    fn has_news(&self) -> bool;
    /// Whether all is to be done, and then nothing.
    fn is_stopping(&self) -> bool;
}

/// State that threads share with a persister, and what wakes it.
pub struct Handover<S> {
    state: Mutex<S>,
    work: Condvar,
}

/// The persister's work.
pub trait Turns<'a, S: 'a> {
    type Error;

    /// One turn. Gives the lock up and takes it again, as it likes.
    ///
    /// # Errors
    /// The end.
    fn turn(&mut self, state: MutexGuard<'a, S>) -> Result<(MutexGuard<'a, S>, Left), Self::Error>;

    /// How long to sleep after a turn with nothing to do at once; `None`: not at all.
    fn pause(&mut self, state: &S) -> Option<Duration>;
}

/// What a turn leaves.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// There is more to be done at once.
    pub is_more: bool,
    /// It found something, or others are at work on what it found: the end is not yet.
    pub is_pending: bool,
}

impl<S: News> Handover<S> {
    pub fn new(state: S) -> Self {
        Self {
            state: Mutex::new(state),
            work: Condvar::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the persister of what was changed under the lock, which the caller may still hold.
    pub fn wake(&self) {
        self.work.notify_one();
    }

    /// Changes the state, and wakes.
    pub fn hand(&self, change: impl FnOnce(&mut S)) {
        change(&mut self.lock());
        self.wake();
    }

    /// Takes turns until the state is stopping and one leaves nothing.
    ///
    /// # Errors
    /// A turn's.
    pub fn run<'a, T: Turns<'a, S>>(&'a self, turns: &mut T) -> Result<(), T::Error> {
        let mut state = self.lock();
        loop {
            let is_stopping = state.is_stopping();
            let left;
            (state, left) = turns.turn(state)?;
            if is_stopping && !left.is_pending {
                return Ok(());
            }
            if left.is_more || state.has_news() || state.is_stopping() != is_stopping {
                continue;
            }
            let Some(pause) = turns.pause(&state) else {
                continue;
            };
            let waited = self.work.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn into_inner(self) -> S {
        let state = self.state.into_inner();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}
