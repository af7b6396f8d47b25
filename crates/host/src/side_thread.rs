//! A thread beside the control thread, for work that takes long.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::{Error, Result};

/// The control thread's end: jobs go in, outcomes come back on a way of their own. Dropping it
/// ends the thread and waits for that.
pub(crate) struct SideThread<J> {
    name: &'static str,
    /// `None` only while it is being dropped.
    jobs: Option<Sender<J>>,
    /// `None` as well where the caller does the jobs.
    thread: Option<JoinHandle<()>>,
}

impl<J: Send + 'static> SideThread<J> {
    /// Starts `work`, which ends when its inbox does.
    ///
    /// # Errors
    /// `Os`: the system has no thread left.
    pub(crate) fn start(
        name: &'static str,
        work: impl FnOnce(Receiver<J>) + Send + 'static,
    ) -> Result<Self> {
        let (jobs, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || work(inbox))
            .map_err(|source| Error::Os {
                what: "start a thread of the host",
                source,
            })?;
        Ok(Self {
            name,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// No thread: the caller takes the jobs out of the inbox and does them in its own time.
    pub(crate) fn done_elsewhere(name: &'static str) -> (Self, Receiver<J>) {
        let (jobs, inbox) = channel();
        let side = Self {
            name,
            jobs: Some(jobs),
            thread: None,
        };
        (side, inbox)
    }

    /// What it has to do is not waited for at the end.
    pub(crate) fn detached(mut self) -> Self {
        self.thread = None;
        self
    }

    /// Queues a job; outcomes come in order.
    pub(crate) fn ask(&self, job: J) {
        let jobs = self.jobs.as_ref().expect("set until the drop");
        jobs.send(job).expect("it runs as long as it can be asked");
    }
}

impl<J> Drop for SideThread<J> {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(name = self.name, "a thread of the host panicked");
        }
    }
}
