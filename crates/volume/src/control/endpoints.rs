//! Endpoints for workers, opened on short-lived threads: a silent host takes up to
//! [`FAILURE_TIMEOUT`] for each, in which the control thread has other hosts to serve.
//!
//! Invariant: a worker has an endpoint of every session on which something is published. A
//! session is up, and asked for slabs, only once each worker that exists was delivered one;
//! a new worker is not begun before it was delivered one of each session that is up.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use cenote_fabric::{Endpoint, FAILURE_TIMEOUT, Opener, Result};

use super::Control;
use super::dialer::Link;
use super::hosts::Arrival;
use crate::directory::Session;

/// A connection on its way up, and endpoints of it, by worker.
pub(super) struct Equipped {
    pub link: Link,
    pub endpoints: Vec<(usize, Box<dyn Endpoint>)>,
}

/// An endpoint that a new worker waits for.
pub(super) struct Opening {
    session: Session,
    worker: usize,
    waits: Arc<Newcomer>,
}

/// Who waits for a new worker; told by whichever opening is the last to end.
type Newcomer = SyncSender<std::io::Result<()>>;

/// Threads that open endpoints for one new worker: a silent host holds up only its share.
const OPENERS_MAX: usize = 64;

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

impl Control {
    /// Opens endpoints to every connected host for a new worker, then answers.
    pub(super) fn add_worker(&mut self, worker: usize, ready: Newcomer) {
        self.workers.push(worker);
        let waits = Arc::new(ready);
        let mut wanted: Vec<(Session, Opener)> =
            self.hosts.iter().filter_map(|host| host.opener()).collect();
        for &(session, _) in &wanted {
            let waits = Arc::clone(&waits);
            self.openings.push(Opening {
                session,
                worker,
                waits,
            });
        }
        let share = wanted.len().div_ceil(OPENERS_MAX).max(1);
        while !wanted.is_empty() {
            let some = wanted.split_off(wanted.len().saturating_sub(share));
            if let Err(error) = self.open(worker, some) {
                // Only this worker suffers from it, and no host.
                self.remove_worker(worker);
                return answer(waits, Err(error));
            }
        }
        answer(waits, Ok(()));
    }

    /// Forgets a worker, and what is under way for it.
    pub(super) fn remove_worker(&mut self, worker: usize) {
        self.workers.retain(|&known| known != worker);
        self.openings.retain(|opening| opening.worker != worker);
        drop(self.core.collect(worker));
    }

    fn open(&self, worker: usize, wanted: Vec<(Session, Opener)>) -> std::io::Result<()> {
        let (arrive, core) = (self.arrive.clone(), Arc::clone(&self.core));
        let work = move || {
            for (session, open) in wanted {
                let endpoint = open(FAILURE_TIMEOUT);
                // The control thread may be gone; then the connection just closes.
                drop(arrive.send(Arrival::Endpoint {
                    session,
                    worker,
                    endpoint,
                }));
                core.wake.wake();
            }
        };
        self.dialer.run(Box::new(work))
    }

    pub(super) fn on_endpoint(
        &mut self,
        session: Session,
        worker: usize,
        endpoint: Result<Box<dyn Endpoint>>,
    ) {
        let waited = |opening: &Opening| opening.session == session && opening.worker == worker;
        let Some(at) = self.openings.iter().position(waited) else {
            return; // The worker or the session is gone.
        };
        match endpoint {
            Ok(endpoint) => {
                self.core.deliver(worker, session, endpoint);
                answer(self.openings.swap_remove(at).waits, Ok(()));
            }
            Err(error) => {
                tracing::warn!(host = %self.hosts[session.host].config.name, %error, "no data connection");
                self.lose(session.host);
            }
        }
    }

    /// Ends the openings of a session that is gone: nothing on it is published any more.
    pub(super) fn lose_openings(&mut self, session: Session) {
        let gone = |opening: &mut Opening| opening.session == session;
        for opening in self.openings.extract_if(.., gone) {
            answer(opening.waits, Ok(()));
        }
    }
}

/// Lets go of one reason to wait; the last one answers.
fn answer(waits: Arc<Newcomer>, result: std::io::Result<()>) {
    if let Some(ready) = Arc::into_inner(waits)
        && ready.send(result).is_err()
    {
        tracing::debug!("nobody waits for the new worker");
    }
}
