//! Endpoints for workers, opened on short-lived threads: a silent host takes up to
//! [`FAILURE_TIMEOUT`] for each, in which the control thread has other hosts to serve.
//!
//! Invariant: a worker has an endpoint of every session on which something is published. A
//! session is up, and asked for slabs, only once each worker that exists was delivered one;
//! a new worker is not begun before it was delivered one of each session that is up.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use cenote_fabric::{Endpoint, FAILURE_TIMEOUT, Result};

use super::dialer::Link;
use crate::directory::Session;

/// A connection on its way up, and endpoints of it, by worker.
pub(super) struct Equipped {
    pub link: Link,
    pub endpoints: Vec<(usize, Box<dyn Endpoint>)>,
}

/// Who waits for a new worker; told by whichever opening is the last to end.
pub(super) type Newcomer = SyncSender<std::io::Result<()>>;

/// Endpoints that new workers wait for.
#[derive(Default)]
pub(super) struct Openings(Vec<Opening>);

struct Opening {
    session: Session,
    worker: usize,
    waits: Arc<Newcomer>,
}

impl Equipped {
    pub fn new(link: Link) -> Self {
        Self {
            link,
            endpoints: Vec::new(),
        }
    }

    /// Opens an endpoint for each worker; blocks.
    pub fn equip(mut self, workers: &[usize]) -> Result<Self> {
        for &worker in workers {
            let endpoint = self.link.session.endpoint(FAILURE_TIMEOUT)?;
            self.endpoints.push((worker, endpoint));
        }
        Ok(self)
    }

    /// Those of `workers` that have no endpoint yet.
    pub fn lacking(&self, workers: &[usize]) -> Vec<usize> {
        let has = |worker: usize| self.endpoints.iter().any(|&(owner, _)| owner == worker);
        let lacks = workers.iter().copied().filter(|&worker| !has(worker));
        lacks.collect()
    }
}

impl Openings {
    /// A worker waits for an endpoint of each of these sessions.
    pub fn begin(
        &mut self,
        worker: usize,
        sessions: impl Iterator<Item = Session>,
        waits: &Arc<Newcomer>,
    ) {
        self.0.extend(sessions.map(|session| Opening {
            session,
            worker,
            waits: Arc::clone(waits),
        }));
    }

    /// An endpoint was opened, or cannot be: who waited for it; `None`: the worker or the session
    /// is gone.
    pub fn end(&mut self, session: Session, worker: usize) -> Option<Arc<Newcomer>> {
        let waited = |opening: &Opening| opening.session == session && opening.worker == worker;
        let at = self.0.iter().position(waited)?;
        Some(self.0.swap_remove(at).waits)
    }

    /// A session is gone: nothing on it is published any more.
    pub fn lose(&mut self, session: Session) {
        let gone = |opening: &mut Opening| opening.session == session;
        for opening in self.0.extract_if(.., gone) {
            answer(opening.waits, Ok(()));
        }
    }

    /// A worker is gone.
    pub fn forget(&mut self, worker: usize) {
        self.0.retain(|opening| opening.worker != worker);
    }
}

/// Lets go of one reason to wait; the last one answers.
pub(super) fn answer(waits: Arc<Newcomer>, result: std::io::Result<()>) {
    if let Some(ready) = Arc::into_inner(waits)
        && ready.send(result).is_err()
    {
        tracing::debug!("nobody waits for the new worker");
    }
}
