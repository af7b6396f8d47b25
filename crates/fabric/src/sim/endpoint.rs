//! A client's end of a data connection: posting, and taking what has ended.
//!
//! Bytes land inside [`super::Net::step`], when the answer arrives, as they do under RDMA.

use std::os::fd::RawFd;

use super::connection::{ConnectionId, Slot};
use super::message::{Body, Leg, Message, MessageId};
use super::net::Net;
use crate::endpoint::check_message;
use crate::{
    Completion, CompletionQueue, Endpoint, QUEUE_DEPTH, QueueFull, RemoteWindow, Time, Token, Verb,
};

/// One worker's queue pair.
pub(super) struct SimEndpoint {
    net: Net,
    connection: ConnectionId,
}

impl SimEndpoint {
    pub(super) fn new(net: Net, connection: ConnectionId) -> Self {
        Self { net, connection }
    }

    /// Queues a verb; `fill` adds what is its own.
    #[inline]
    fn queue(
        &mut self,
        body: Body,
        token: Token,
        queue: &mut CompletionQueue,
        fill: impl FnOnce(&mut Message, &mut Slot),
    ) -> Result<(), QueueFull> {
        let state = &mut *self.net.lock();
        let connection = state.connections.at_mut(self.connection);
        let is_open = connection.client_open;
        let data = connection.data().expect("a data connection");
        if !is_open {
            data.drain(queue);
            queue.push(Completion {
                token,
                status: data.end(),
                value: 0,
            });
            return Ok(());
        }
        if data.slots.len() == QUEUE_DEPTH {
            return Err(QueueFull);
        }
        let (id, message) = state.messages.take(self.connection, body, Leg::ToHost);
        message.position = data.next();
        let mut slot = Slot {
            token,
            message: id,
            source: std::ptr::null(),
            landing: std::ptr::null_mut(),
            done: None,
        };
        fill(message, &mut slot);
        data.slots.push_back(slot);
        Ok(())
    }
}

impl Message {
    #[inline]
    fn aim(&mut self, window: &RemoteWindow, offset: u64, len_bytes: usize) {
        self.window = window.descriptor.id;
        self.generation = window.descriptor.generation;
        self.offset = offset;
        self.len_bytes = len_bytes;
    }
}

impl Endpoint for SimEndpoint {
    #[inline]
    unsafe fn post(
        &mut self,
        verb: Verb<'_>,
        token: Token,
        queue: &mut CompletionQueue,
    ) -> Result<(), QueueFull> {
        match verb {
            Verb::Read {
                window,
                offset,
                landing,
                len_bytes,
            } => self.queue(Body::Read, token, queue, |message, slot| {
                message.aim(window, offset, len_bytes);
                slot.landing = landing;
            }),
            Verb::Write {
                window,
                offset,
                source,
                len_bytes,
                immediate,
            } => self.queue(Body::Write, token, queue, |message, slot| {
                message.aim(window, offset, len_bytes);
                message.immediate = immediate;
                slot.source = source;
            }),
            Verb::Send { message: bytes } => {
                check_message(bytes);
                self.queue(Body::Send, token, queue, |message, _| message.fill(bytes))
            }
            Verb::CompareSwap {
                window,
                offset,
                expected,
                new,
            } => self.queue(Body::CompareSwap, token, queue, |message, _| {
                message.aim(window, offset, 8);
                message.operand = expected;
                message.swap = new;
            }),
            Verb::FetchAdd {
                window,
                offset,
                addend,
            } => self.queue(Body::FetchAdd, token, queue, |message, _| {
                message.aim(window, offset, 8);
                message.operand = addend;
            }),
        }
    }

    fn flush(&mut self, _queue: &mut CompletionQueue) {
        let mut state = self.net.lock();
        if state.connection(self.connection).client_open {
            state.flush(self.connection);
        }
    }

    /// Sends and takes; the failure timeout is an event of the network's own clock.
    fn poll(&mut self, _now: Time, queue: &mut CompletionQueue) {
        let mut state = self.net.lock();
        if state.connection(self.connection).client_open {
            state.flush(self.connection);
        }
        state.data(self.connection).drain(queue);
    }

    fn revoke_landing(&mut self, token: Token) {
        let mut state = self.net.lock();
        for slot in &mut state.data(self.connection).slots {
            if slot.token == token {
                slot.landing = std::ptr::null_mut();
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.net.lock().data(self.connection).slots.len()
    }

    fn is_dead(&self) -> bool {
        !self.net.lock().connection(self.connection).client_open
    }

    /// There is nothing to wait on: [`Net::take_ready`] says who has something to poll.
    fn fd(&self) -> Option<RawFd> {
        None
    }
}

impl Drop for SimEndpoint {
    /// What was sent takes effect; nobody hears how it ended.
    fn drop(&mut self) {
        let state = &mut *self.net.lock();
        let connection = state.connection(self.connection);
        let was_open = std::mem::replace(&mut connection.client_open, false);
        connection.is_dropped = true;
        let data = connection.data().expect("a data connection");
        let (sent, first) = (data.sent, data.first);
        let slots = std::mem::take(&mut data.slots);
        data.first += slots.len() as u64;
        data.sent = data.first;
        for (slot, position) in slots.iter().zip(first..) {
            if position >= sent && slot.message != MessageId::NONE {
                state.messages.free(slot.message);
            }
        }
        if was_open {
            state.say_closed(self.connection);
        }
    }
}
