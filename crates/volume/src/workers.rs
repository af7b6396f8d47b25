//! Workers for threads that come and go.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::{Volume, VolumeError, Worker};

/// Workers for as many threads as use a volume at a time; more wait for one another. It goes before its
/// volume does.
pub struct Workers(Shared<Worker>);

/// A worker that a thread has, until this is dropped.
pub struct WorkerGuard<'a>(Taken<'a, Worker>);

impl Workers {
    /// `count` workers of a volume, at least 1.
    ///
    /// # Errors
    /// The volume has no more workers.
    pub fn new(volume: &Volume, count: usize) -> Result<Self, VolumeError> {
        let workers = (0..count.max(1)).map(|_| volume.worker());
        Ok(Self(Shared::new(workers.collect::<Result<_, _>>()?)))
    }

    /// A worker for this thread, for as long as it is held; the first that gets free where none is.
    pub fn get(&self) -> WorkerGuard<'_> {
        WorkerGuard(self.0.get())
    }
}

impl Deref for WorkerGuard<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        self.0.guard.as_ref().expect("it is dropped with this")
    }
}

impl DerefMut for WorkerGuard<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        self.0.guard.as_mut().expect("it is dropped with this")
    }
}

thread_local! {
    /// What this thread had last; most likely nobody else does.
    static USUAL: Cell<usize> = const { Cell::new(0) };
}

/// Things of which a thread may have any, one at a time.
struct Shared<T> {
    all: Vec<Mutex<T>>,
    /// Threads that found none free. So that one that gives back looks for them, and locks nothing.
    waiting: AtomicUsize,
    gate: Mutex<()>,
    freed: Condvar,
}

struct Taken<'a, T> {
    shared: &'a Shared<T>,
    /// `None` while it is dropped.
    guard: Option<MutexGuard<'a, T>>,
}

impl<T> Shared<T> {
    fn new(all: Vec<T>) -> Self {
        Self {
            all: all.into_iter().map(Mutex::new).collect(),
            waiting: AtomicUsize::new(0),
            gate: Mutex::new(()),
            freed: Condvar::new(),
        }
    }

    fn get(&self) -> Taken<'_, T> {
        let guard = self.free().unwrap_or_else(|| self.wait());
        Taken {
            shared: self,
            guard: Some(guard),
        }
    }

    /// One that nobody has.
    fn free(&self) -> Option<MutexGuard<'_, T>> {
        let count = self.all.len();
        let usual = USUAL.get() % count;
        for at in (usual..count).chain(0..usual) {
            match self.all[at].try_lock() {
                Ok(guard) => {
                    USUAL.set(at);
                    return Some(guard);
                }
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_found_none_free_takes_whichever_is_given_back_first() {
        for first in [0, 1] {
            let shared = Shared::new(vec![0, 1]);
            let mut taken = [Some(shared.get()), Some(shared.get())];
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| *shared.get().guard.as_deref().expect("one"));
                while shared.waiting.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                let value = taken[first]
                    .as_ref()
                    .and_then(|taken| taken.guard.as_deref());
                let value = *value.expect("one");
                taken[first] = None;
                // The other one is not given back before.
                assert_eq!(waiter.join().expect("no panic"), value);
            });
        }
    }

    #[test]
    fn many_threads_share_a_few() {
        let shared = Shared::new(vec![0_u64; 3]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        *shared.get().guard.as_deref_mut().expect("one") += 1;
                    }
                });
            }
        });
        let counts = shared
            .all
            .into_iter()
            .map(|one| one.into_inner().expect("no panic"));
        assert_eq!(counts.sum::<u64>(), 8 * 2000);
    }
}
