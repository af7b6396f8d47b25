//! What the connections of one worker share: queues, buffers, scratch, counters.
//!
//! Concurrency: owned by one worker thread; only the counters are read by others.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use cenote_volume::{Done, Request};

use super::budget::Pool;
use super::buffers::Buffers;
use super::claims::Claims;
use super::export::Export;
use super::roster::Roster;
use super::stats::Counters;
use crate::disk::{Extent, Queue};

/// What keeps the order among the connections of one export.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) claims: Arc<Claims>,
    pub(crate) roster: Arc<Roster>,
}

/// The shared means of one worker.
pub(crate) struct Engine {
    pub(crate) exports: Arc<[Export]>,
    pub(crate) buffers: Buffers,
    /// Shared with the other workers.
    pub(crate) pool: Arc<Pool>,
    /// One per export, shared with the other workers.
    pub(crate) orders: Arc<[Order]>,
    /// What clients may have TLS with, if anything.
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    pub(crate) counters: Arc<Counters>,
    /// Scratch of extent queries.
    pub(crate) extents: Vec<Extent>,
    /// One per export.
    queues: Vec<Box<dyn Queue>>,
    /// Requests submitted and not yet done, per queue.
    in_flight: Vec<usize>,
    done: Vec<Done>,
    /// A queue may have something to do although nothing is in flight.
    look: bool,
    /// Somebody holds a request: a queue was full, or another connection's claim in the way.
    refused: bool,
}

impl Engine {
    /// `queues` has one queue per export, in their order.
    pub(crate) fn new(
        exports: Arc<[Export]>,
        queues: Vec<Box<dyn Queue>>,
        counters: Arc<Counters>,
        pool: Arc<Pool>,
        orders: Arc<[Order]>,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        Self {
            in_flight: vec![0; queues.len()],
            exports,
            buffers: Buffers::new(),
            pool,
            orders,
            tls,
            counters,
            extents: Vec::new(),
            queues,
            done: Vec::new(),
            look: true,
            refused: false,
        }
    }

    /// Starts a request; gives it back when the queue is full.
    pub(crate) fn submit(&mut self, export: usize, request: Request) -> Result<(), Request> {
        if let Err(request) = self.queues[export].submit(request) {
            self.refused = true;
            return Err(request);
        }
        self.in_flight[export] += 1;
        Ok(())
    }

    /// Takes the requests that ended, to be given back with [`Engine::recycle`].
    pub(crate) fn poll(&mut self) -> Vec<Done> {
        let mut done = std::mem::take(&mut self.done);
        let look = std::mem::take(&mut self.look);
        for (queue, in_flight) in self.queues.iter_mut().zip(&mut self.in_flight) {
            if *in_flight == 0 && !look {
                continue;
            }
            let before = done.len();
            queue.poll(&mut done);
            *in_flight -= done.len() - before;
        }
        done
    }

    pub(crate) fn recycle(&mut self, mut done: Vec<Done>) {
        done.clear();
        self.done = done;
    }

    /// Says that somebody holds a request which is to be offered again.
    pub(crate) fn note_refusal(&mut self) {
        self.refused = true;
    }

    /// Whether a request was refused since the last call.
    pub(crate) fn forget_refusal(&mut self) -> bool {
        std::mem::take(&mut self.refused)
    }

    /// Whether nothing is in flight in any queue.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.iter().all(|count| *count == 0)
    }

    /// Says that a queue's descriptor may be readable: the next poll asks every queue.
    pub(crate) fn look(&mut self) {
        self.look = true;
    }

    /// Descriptors to wait for beside the sockets, and within which time to poll again.
    pub(crate) fn waits(&self, fds: &mut Vec<RawFd>) -> Option<Duration> {
        let mut soonest: Option<Duration> = None;
        for (queue, in_flight) in self.queues.iter().zip(&self.in_flight) {
            let before = fds.len();
            queue.wait_fds(fds);
            let mut deadline = queue.deadline();
            if *in_flight > 0 && fds.len() == before && deadline.is_none() {
                // Nothing will announce its progress.
                deadline = Some(Duration::ZERO);
            }
            soonest = match (soonest, deadline) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        soonest
    }
}
