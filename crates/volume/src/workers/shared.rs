//! Things of which a thread may have any, one at a time, and the wait for one where none is free.
//!
//! That no wait is missed is tried by `tests/protocols_loom.rs`, which compiles this file with the model's
//! atomics and locks as `crate::sync`.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, fence};

thread_local! {
    /// What this thread had last; most likely nobody else does.
    static USUAL: Cell<usize> = const { Cell::new(0) };
}

/// Things of which a thread may have any, one at a time.
pub struct Shared<T> {
    pub(super) all: Vec<Mutex<T>>,
    /// Threads that found none free. So that one that gives back looks for them, and locks nothing.
    pub(super) waiting: AtomicUsize,
    gate: Mutex<()>,
    freed: Condvar,
}

/// One that a thread has, until this is dropped.
pub struct Taken<'a, T> {
    shared: &'a Shared<T>,
    /// `None` while it is dropped.
    guard: Option<MutexGuard<'a, T>>,
}

impl<T> Shared<T> {
    pub fn new(all: Vec<T>) -> Self {
        Self {
            all: all.into_iter().map(Mutex::new).collect(),
            waiting: AtomicUsize::new(0),
            gate: Mutex::new(()),
            freed: Condvar::new(),
        }
    }

    /// One for this thread; the first that gets free where none is.
    pub fn get(&self) -> Taken<'_, T> {
        let guard = self.free().unwrap_or_else(|| self.wait());
        Taken {
            shared: self,
            guard: Some(guard),
        }
    }

    /// How many there are.
    #[allow(dead_code, reason = "the model checker's copy does without")]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// This one of them, if nobody has it.
    #[allow(dead_code, reason = "the model checker's copy does without")]
    pub fn try_get(&self, at: usize) -> Option<Taken<'_, T>> {
        let guard = self.lock(at)?;
        Some(Taken {
            shared: self,
            guard: Some(guard),
        })
    }

    fn lock(&self, at: usize) -> Option<MutexGuard<'_, T>> {
        match self.all[at].try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// One that nobody has.
    fn free(&self) -> Option<MutexGuard<'_, T>> {
        let count = self.all.len();
        let usual = USUAL.get() % count;
        for at in (usual..count).chain(0..usual) {
            if let Some(guard) = self.lock(at) {
                USUAL.set(at);
                return Some(guard);
            }
        }
        None
    }

    fn wait(&self) -> MutexGuard<'_, T> {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = loop {
            // Either one that is given back now is found here, or who gives it back sees this
            // thread wait (see `Taken`).
            fence(Ordering::SeqCst);
            if let Some(guard) = self.free() {
                break guard;
            }
            let waited = self.freed.wait(gate);
            gate = waited.unwrap_or_else(PoisonError::into_inner);
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("it is dropped with this")
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("it is dropped with this")
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        drop(self.guard.take());
        fence(Ordering::SeqCst);
        if self.shared.waiting.load(Ordering::Relaxed) > 0 {
            // Whoever counted itself looks again, or waits, before this is locked.
            drop(self.shared.gate.lock());
            self.shared.freed.notify_one();
        }
    }
}
