//! Answers on their way to the thread that has the connection.

use std::sync::{Mutex, PoisonError};

use cenote_fabric::calls::CallId;
use cenote_fabric::{PeerId, Waker};

use super::books::Waiter;
use super::times::Timed;
use crate::protocol::{ACK, Answer, Notice};

/// Of all threads of a server. Bounded by what clients may have under way.
pub(super) struct Outboxes {
    pub threads: Vec<Outbox<CallId>>,
    pub peers: Outbox<PeerId>,
}

/// Of one thread.
pub(super) struct Outbox<T> {
    waiting: Mutex<Vec<(T, Vec<u8>, Timed)>>,
    waker: Waker,
}

impl<T> Outbox<T> {
    pub fn new(waker: Waker) -> Self {
        Self {
            waiting: Mutex::default(),
            waker,
        }
    }

    fn push(&self, to: T, message: Vec<u8>, timed: Timed) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push((to, message, timed));
        // Who had nothing to send may be asleep.
        if waiting.len() == 1 {
            self.waker.wake();
        }
    }

    /// Answers, and what their calls are timed as.
    pub fn take(&self) -> Vec<(T, Vec<u8>, Timed)> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Outboxes {
    /// Answers a request; of a notice, about the version of that sequence.
    pub fn answer(&self, waiter: Waiter, answer: &Answer, sequence: u64) {
        match waiter {
            Waiter::Call {
                thread,
                call,
                timed,
            } => {
                let mut bytes = Vec::new();
                answer.encode(&mut bytes);
                self.threads[thread].push(call, bytes, timed);
            }
            Waiter::Peer { peer, shard, timed } => {
                let notice = Notice {
                    kind: ACK,
                    shard,
                    sequence,
                    is_durable: matches!(answer, Answer::Done { .. }),
                };
                self.peers.push(peer, notice.encode(), timed);
            }
        }
    }
}
