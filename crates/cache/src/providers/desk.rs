//! A provider on a thread of its own: who asks it waits for nothing, and one that hangs holds up nobody else.

use std::sync::mpsc::{Receiver, Sender, channel};

use cenote_fabric::Waker;

use super::{Error, Machine, Provider, Wish};

/// What a provider is to do.
#[derive(Clone, Debug)]
pub enum Task {
    /// Get a machine.
    Acquire(Wish),
    /// Take one back.
    Release(Machine),
    /// Take back what an order got, if anything.
    Cancel,
}

/// How a task ended. A machine, if it was to be got and was.
pub type Done<K> = (K, Result<Option<Machine>, Error>);

/// Tasks go in, each with a key that comes back with its end. They are done one after the other.
pub struct Desk<K> {
    tasks: Sender<(K, String, Task)>,
    done: Receiver<Done<K>>,
}

impl<K: Send + 'static> Desk<K> {
    /// Has `provider` work on a thread that wakes `waker` after each task, and ends with this desk. A task
    /// that comes to its turn when it may not begin fails.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn new(
        mut provider: Box<dyn Provider>,
        waker: Waker,
        may_begin: Box<dyn Fn() -> bool + Send>,
    ) -> std::io::Result<Self> {
        let (tasks, inbox) = channel::<(K, String, Task)>();
        let (outbox, done) = channel();
        let work = move || {
            for (key, order, task) in inbox {
                let result = match task {
                    _ if !may_begin() => Err(Error::NotInCharge),
                    Task::Acquire(wish) => provider.acquire(&wish).map(Some),
                    Task::Release(machine) => provider.release(&machine).map(|()| None),
                    Task::Cancel => provider.cancel(&order).map(|()| None),
                };
                if outbox.send((key, result)).is_err() {
                    // Nobody waits for it any more.
                    return;
                }
                waker.wake();
            }
        };
        let builder = std::thread::Builder::new().name("cenote-machines".to_owned());
        builder.spawn(work)?;
        Ok(Self { tasks, done })
    }

    /// Has one more task done. `order` names it to the provider.
    pub fn ask(&self, key: K, order: String, task: Task) {
        // Its thread ends after this desk alone, or with the process.
        drop(self.tasks.send((key, order, task)));
    }

    /// The end of a task.
    pub fn poll(&self) -> Option<Done<K>> {
        self.done.try_recv().ok()
    }
}
