//! Workers for threads that come and go.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::{Volume, VolumeError, Worker};

/// Workers for as many threads as use a volume at a time; more wait for one another. It goes before its
/// volume does.
pub struct Workers(Vec<Mutex<Worker>>);

thread_local! {
    /// The worker that this thread had last; most likely nobody else does.
    static USUAL: Cell<usize> = const { Cell::new(0) };
}

impl Workers {
    /// `count` workers of a volume, at least 1.
    ///
    /// # Errors
    /// The volume has no more workers.
    pub fn new(volume: &Volume, count: usize) -> Result<Self, VolumeError> {
        let workers = (0..count.max(1)).map(|_| volume.worker().map(Mutex::new));
        Ok(Self(workers.collect::<Result<_, _>>()?))
    }

    /// A worker for this thread, for as long as it is held.
    pub fn get(&self) -> MutexGuard<'_, Worker> {
        let count = self.0.len();
        let usual = USUAL.get() % count;
        for at in (usual..count).chain(0..usual) {
            match self.0[at].try_lock() {
                Ok(worker) => {
                    USUAL.set(at);
                    return worker;
                }
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let waited = self.0[usual].lock();
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}
