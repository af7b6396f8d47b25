//! Endpoints that the control thread opened for workers, and that these have not taken yet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cenote_fabric::Endpoint;

use crate::directory::Session;
use crate::limits::WORKERS_MAX;

/// One for each worker, by its number.
pub struct Mailboxes(Box<[Mailbox]>);

type Endpoints = Vec<(Session, Box<dyn Endpoint>)>;

#[derive(Default)]
struct Mailbox {
    full: AtomicBool,
    endpoints: Mutex<Endpoints>,
}

impl Mailboxes {
    pub fn new() -> Self {
        Self((0..WORKERS_MAX).map(|_| Mailbox::default()).collect())
    }

    /// Hands a worker the endpoint of a new session, before anything granted on it is published.
    pub fn deliver(&self, worker: usize, session: Session, endpoint: Box<dyn Endpoint>) {
        let mailbox = &self.0[worker];
        let mut endpoints = mailbox.lock();
        // A worker without requests takes nothing while a host comes and goes.
        endpoints.retain(|(earlier, _)| earlier.host != session.host);
        endpoints.push((session, endpoint));
        drop(endpoints);
        mailbox.full.store(true, Ordering::Release);
    }

    /// Takes what was delivered.
    pub fn collect(&self, worker: usize) -> Endpoints {
        let mailbox = &self.0[worker];
        match mailbox.full.swap(false, Ordering::AcqRel) {
            true => std::mem::take(&mut mailbox.lock()),
            false => Vec::new(),
        }
    }

    /// Whether something was delivered to the worker.
    pub fn has_mail(&self, worker: usize) -> bool {
        self.0[worker].full.load(Ordering::Acquire)
    }
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Endpoints> {
        self.endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
