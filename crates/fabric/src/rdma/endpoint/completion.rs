//! From completions of the device to ends of verbs: bytes go where they belong, refusals are
//! repaired, and whoever waits is told of the next one.

use std::io;

use cenote_verbs::{Completed, Ended};

use super::super::slots::Verb;
use super::{Answer, RdmaEndpoint};
use crate::{CompletionQueue, Status};

impl RdmaEndpoint {
    /// Takes completions until there are none. True: there was one.
    pub(super) fn reap(&mut self, queue: &mut CompletionQueue) -> bool {
        let mut is_any = false;
        let mut taken = std::mem::take(&mut self.taken);
        loop {
            taken.clear();
            match self.completions.take(&mut taken) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "look for completions");
                    self.fail(Status::Disconnected, queue);
                    break;
                }
            }
            is_any = true;
            for completed in &taken {
                self.complete(*completed, queue);
            }
        }
        self.taken = taken;
        self.slots.finish(queue);
        is_any
    }

    fn complete(&mut self, completed: Completed, queue: &mut CompletionQueue) {
        // Requests of an earlier pair have lower numbers than all that are under way.
        let first = self.sequence - self.works.len() as u64;
        if self.dead.is_some() || completed.id < first || completed.id >= self.sequence {
            return;
        }
        self.heard_at = None;
        for _ in first..completed.id {
            self.retire();
        }
        match completed.ended {
            Ended::Ok => self.retire(),
            Ended::Refused => self.refused(queue),
            Ended::Silent => self.fail(Status::Timeout, queue),
            Ended::Flushed => self.fail(Status::Disconnected, queue),
            Ended::Broken(status) => {
                tracing::warn!(status, "a request broke its queue pair");
                self.fail(Status::Disconnected, queue);
            }
        }
    }

    /// The oldest request was carried out.
    fn retire(&mut self) {
        let Some(work) = self.works.pop_front() else {
            return;
        };
        let slot = self.slots.get(work.position);
        let place = || self.pages.memory().at(work.at, work.len_bytes);
        match (&slot.verb, work.answer) {
            (Verb::Read { landing }, Answer::Bytes) if !landing.is_null() => {
                // SAFETY: the device is done with the ring's range; the landing is the caller's
                // promise until the verb completes or it is revoked, and then it is null.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        place(),
                        landing.wrapping_add(work.offset),
                        work.len_bytes,
                    );
                }
            }
            (_, Answer::Value) => {
                let mut value = [0; 8];
                self.pages.memory().read(work.at, &mut value);
                slot.value = u64::from_ne_bytes(value);
            }
            _ => {}
        }
        slot.works -= 1;
        self.ring.release(work.end);
    }

    /// The host's device refused the oldest request, and with it all that follow.
    fn refused(&mut self, queue: &mut CompletionQueue) {
        let Some(work) = self.works.front() else {
            return;
        };
        let position = work.position;
        if self.slots.get(position).memory.is_none() {
            return self.fail(Status::Protocol, queue);
        }
        self.slots.refuse(position);
        if let Err(error) = self.join() {
            tracing::debug!(%error, "make another queue pair");
            self.fail(Status::Disconnected, queue);
        }
    }

    /// Ends the connection: everything outstanding completes with `status`.
    pub(super) fn fail(&mut self, status: Status, queue: &mut CompletionQueue) {
        self.pair = None;
        self.works.clear();
        self.slots.finish(queue);
        self.slots.fail(status, queue);
        self.is_joined = false;
        self.dead = Some(status);
    }

    /// Whoever waits now is told of the next completion.
    pub(super) fn arm(&mut self, queue: &mut CompletionQueue) {
        if self.works.is_empty() {
            return self.completions.settle();
        }
        while !self.works.is_empty() {
            match self.completions.arm() {
                Ok(false) => return,
                Ok(true) => {
                    // What came before the queue was armed is not told.
                    if !self.reap(queue) {
                        return;
                    }
                    self.issue(queue);
                }
                Err(error) => {
                    let status = io_status(&error);
                    return self.fail(status, queue);
                }
            }
        }
    }
}

fn io_status(error: &io::Error) -> Status {
    tracing::warn!(%error, "wait for an RDMA device");
    Status::Disconnected
}
