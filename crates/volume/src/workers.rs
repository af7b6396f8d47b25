//! Workers for threads that come and go.

mod shared;
mod tender;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::{Volume, VolumeError, Worker};
use shared::{Shared, Taken};
use tender::Tender;

/// Workers for as many threads as use a volume at a time; more wait for one another. It goes before its
/// volume does.
///
/// A thread of its own turns those that nobody is using and that have something left to do.
pub struct Workers {
    // First: its thread has the workers, too.
    tender: Tender,
    shared: Arc<Shared<Worker>>,
}

/// A worker that a thread has, until this is dropped.
pub struct WorkerGuard<'a> {
    worker: Taken<'a, Worker>,
    tender: &'a Tender,
}

impl Workers {
    /// `count` workers of a volume, at least 1.
    ///
    /// # Errors
    /// The volume has no more workers, or the system no more threads.
    pub fn new(volume: &Volume, count: usize) -> Result<Self, VolumeError> {
        let workers = (0..count.max(1)).map(|_| volume.worker());
        let shared = Arc::new(Shared::new(workers.collect::<Result<_, _>>()?));
        let tender = Tender::start(Arc::clone(&shared))?;
        Ok(Self { tender, shared })
    }

    /// A worker for this thread, for as long as it is held; the first that gets free where none is.
    pub fn get(&self) -> WorkerGuard<'_> {
        WorkerGuard {
            worker: self.shared.get(),
            tender: &self.tender,
        }
    }
}

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        if self.worker.deadline().is_some() {
            self.tender.ask();
        }
    }
}

impl Deref for WorkerGuard<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl DerefMut for WorkerGuard<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        &mut self.worker
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_thread_that_found_none_free_takes_whichever_is_given_back_first() {
        for first in [0, 1] {
            let shared = Shared::new(vec![0, 1]);
            let mut taken = [Some(shared.get()), Some(shared.get())];
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| *shared.get());
                while shared.waiting.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                let value = **taken[first].as_ref().expect("one");
                taken[first] = None;
                // The other one is not given back before.
                assert_eq!(waiter.join().expect("no panic"), value);
            });
        }
    }

    #[test]
    fn many_threads_share_a_few() {
        const COUNT: u64 = if cfg!(miri) { 20 } else { 2000 };
        let shared = Shared::new(vec![0_u64; 3]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..COUNT {
                        *shared.get() += 1;
                    }
                });
            }
        });
        let counts = shared
            .all
            .into_iter()
            .map(|one| one.into_inner().expect("no panic"));
        assert_eq!(counts.sum::<u64>(), 8 * COUNT);
    }
}
