//! One lock around all that the library knows, with signals blocked meanwhile: a handler that
//! allocates would wait for the thread it interrupts. While a thread forks it holds the lock, and
//! may take it again: other libraries allocate then.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// A value that one thread at a time has.
pub struct Lock<T> {
    state: AtomicU32,
    /// The thread that forks, or 0; the child's only one is the same.
    forking: AtomicUsize,
    mask: UnsafeCell<u64>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the guard alone, which one thread has.
unsafe impl<T> Sync for Lock<T> {}

/// The right to the value.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// The signals to restore; none when the thread that forks has the lock anyway.
    mask: Option<u64>,
}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            forking: AtomicUsize::new(0),
            mask: UnsafeCell::new(0),
            value: UnsafeCell::new(value),
        }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        let forking = self.forking.load(Ordering::Relaxed);
        if forking != 0 && forking == sys::this_thread() {
            return Guard {
                lock: self,
                mask: None,
            };
        }
        let mask = sys::block_signals();
        self.take();
        Guard {
            lock: self,
            mask: Some(mask),
        }
    }

    fn take(&self) {
        let (set, seen) = (Ordering::Acquire, Ordering::Relaxed);
        if self.state.compare_exchange(FREE, HELD, set, seen).is_err() {
            while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
                sys::futex_wait(&self.state, AWAITED);
            }
        }
    }

    fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == AWAITED {
            sys::futex_wake(&self.state);
        }
    }

    /// Takes the lock for a fork.
    pub fn begin_fork(&self) {
        let mask = sys::block_signals();
        self.take();
        // SAFETY: this thread has the lock.
        unsafe { *self.mask.get() = mask };
        self.forking.store(sys::this_thread(), Ordering::Relaxed);
    }

    /// Gives it back, in the parent, or in the child, where nobody else is.
    pub fn end_fork(&self, is_child: bool) {
        self.forking.store(0, Ordering::Relaxed);
        // SAFETY: this thread has the lock.
        let mask = unsafe { *self.mask.get() };
        if is_child {
            self.state.store(FREE, Ordering::Release);
        } else {
            self.release();
        }
        sys::restore_signals(mask);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard is the right to the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the right to the value.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if let Some(mask) = self.mask {
            self.lock.release();
            sys::restore_signals(mask);
        }
    }
}
