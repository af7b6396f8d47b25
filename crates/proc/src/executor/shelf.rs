//! Requests that wait to be run, fair between clients, and open to threads that help.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use foldhash::HashMap;

use crate::{ClientId, Request};

/// A request that can take its next step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ready {
    pub(super) request: Request,
    /// Where `data` are from.
    pub(super) addr: u64,
    /// What its last fetch brought.
    pub(super) data: Vec<u8>,
}

impl From<Request> for Ready {
    fn from(request: Request) -> Self {
        Self {
            request,
            addr: 0,
            data: Vec::new(),
        }
    }
}

/// The requests of one thread. A lock is held for a batch, never while a step runs.
#[derive(Debug, Default)]
pub struct Shelf {
    lanes: Mutex<Lanes>,
    /// For those who look for the busiest; may lag.
    len: AtomicUsize,
}

/// Requests by client.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_client: HashMap<ClientId, VecDeque<Ready>>,
    /// Clients with requests, the next one first.
    turns: VecDeque<ClientId>,
    len: usize,
}

impl Shelf {
    /// How many requests wait, or did a moment ago.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether none waits, or did a moment ago.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn extend(&self, requests: impl IntoIterator<Item = Ready>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        for ready in requests {
            lanes.push(ready);
        }
        self.len.store(lanes.len, Ordering::Relaxed);
    }

    /// What was taken and not run, in the order in which it was taken. `slow` has its turn last.
    pub(super) fn put_back(&self, slow: ClientId, rest: impl DoubleEndedIterator<Item = Ready>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.put_all_back(slow, rest);
        self.len.store(lanes.len, Ordering::Relaxed);
    }

    pub(super) fn take(&self, most: usize, into: &mut Vec<Ready>) {
        if self.is_empty() {
            return;
        }
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.take(most, into);
        self.len.store(lanes.len, Ordering::Relaxed);
    }
}

impl Lanes {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, ready: Ready) {
        let client = ready.request.client;
        let lane = self.by_client.entry(client).or_default();
        if lane.is_empty() {
            self.turns.push_back(client);
        }
        lane.push_back(ready);
        self.len += 1;
    }

    /// As [`Shelf::put_back`].
    pub(super) fn put_all_back(
        &mut self,
        slow: ClientId,
        rest: impl DoubleEndedIterator<Item = Ready>,
    ) {
        for ready in rest.rev() {
            self.put_back(ready);
        }
        if let Some(place) = self.turns.iter().position(|client| *client == slow) {
            self.turns.remove(place);
            self.turns.push_back(slow);
        }
    }

    fn put_back(&mut self, ready: Ready) {
        let client = ready.request.client;
        let lane = self.by_client.entry(client).or_default();
        if lane.is_empty() {
            self.turns.push_back(client);
        }
        lane.push_front(ready);
        self.len += 1;
    }

    /// A few of each client in turn: who floods the queue waits behind himself.
    pub(super) fn take(&mut self, most: usize, into: &mut Vec<Ready>) {
        let mut left = most;
        while left > 0 {
            let Some(client) = self.turns.pop_front() else {
                break;
            };
            let Some(lane) = self.by_client.get_mut(&client) else {
                continue;
            };
            let count = lane.len().min(TURN).min(left);
            into.extend(lane.drain(..count));
            left -= count;
            self.len -= count;
            if lane.is_empty() {
                // Empty lanes of busy clients are kept: they fill again. Many are not.
                if self.by_client.len() > KEPT_LANES {
                    self.by_client.remove(&client);
                }
            } else {
                self.turns.push_back(client);
            }
        }
    }
}

/// Requests that a client runs in a row; arbitrary, to spare a look-up for each.
const TURN: usize = 8;
/// Lanes beyond which empty ones go.
const KEPT_LANES: usize = 64;
