//! What is under way between two nodes, and the store that it is kept in.
//!
//! A verb is one message there and back: the host turns it round with the answer in it. Buffers
//! stay with their places, so that verbs allocate nothing once the store has grown.

use super::connection::ConnectionId;
use super::model::LinkModel;
use crate::{Generation, Status, WindowId};

/// A place in the store.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct MessageId(pub(super) u32);

impl MessageId {
    /// No message.
    pub(super) const NONE: Self = Self(u32::MAX);
}

/// What a message is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Body {
    Read,
    Write,
    Send,
    CompareSwap,
    FetchAdd,
    /// A message of a session, either way.
    Control,
    Attach,
    Attached,
    /// The client closed its end.
    Close,
    /// A call, to be answered by the host's server thread.
    Call,
    Answer,
}

/// Which way it goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Leg {
    ToHost = 0,
    ToClient = 1,
}

/// One message.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) connection: ConnectionId,
    pub(super) body: Body,
    pub(super) leg: Leg,
    pub(super) status: Status,
    pub(super) window: WindowId,
    pub(super) generation: Generation,
    pub(super) immediate: Option<u32>,
    /// Of this leg on its connection, from 1; 0 until it is sent.
    pub(super) sequence: u64,
    /// Of the verb on its endpoint.
    pub(super) position: u64,
    pub(super) offset: u64,
    pub(super) len_bytes: usize,
    pub(super) operand: u64,
    pub(super) swap: u64,
    /// Atomics: the value before.
    pub(super) value: u64,
    /// The first `len_bytes` are the payload; whatever follows is left from earlier messages.
    buffer: Vec<u8>,
}

impl Message {
    fn new() -> Self {
        Self {
            connection: ConnectionId::new(0, 0),
            body: Body::Close,
            leg: Leg::ToHost,
            status: Status::Ok,
            window: WindowId(0),
            generation: Generation(0),
            immediate: None,
            sequence: 0,
            position: 0,
            offset: 0,
            len_bytes: 0,
            operand: 0,
            swap: 0,
            value: 0,
            buffer: Vec::new(),
        }
    }

    /// The payload's room, of `len_bytes`.
    #[inline]
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.buffer.len() < self.len_bytes {
            self.buffer.resize(self.len_bytes, 0);
        }
        &mut self.buffer[..self.len_bytes]
    }

    /// Takes a copy of bytes as the payload.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        self.len_bytes = bytes.len();
        self.room().copy_from_slice(bytes);
    }

    /// Bytes that travel on this leg.
    #[inline]
    pub(super) fn payload(&self) -> &[u8] {
        &self.buffer[..self.payload_bytes()]
    }

    #[inline]
    pub(super) fn payload_bytes(&self) -> usize {
        match (self.leg, self.body) {
            (Leg::ToHost, Body::Write | Body::Send | Body::Call)
            | (Leg::ToClient, Body::Answer)
            | (_, Body::Control) => self.len_bytes,
            (Leg::ToClient, Body::Read) if self.status == Status::Ok => self.len_bytes,
            _ => 0,
        }
    }

    /// Nanoseconds under way on an idle link.
    #[inline]
    pub(super) fn latency_ns(&self, link: &LinkModel) -> u64 {
        let (curve, laden) = match self.body {
            Body::Read => (&link.read, Leg::ToClient),
            Body::Write => (&link.write, Leg::ToHost),
            Body::Send => (&link.send, Leg::ToHost),
            Body::Call | Body::Answer => (&link.send, self.leg),
            Body::CompareSwap | Body::FetchAdd => (&link.atomic, Leg::ToHost),
            Body::Control | Body::Attach | Body::Attached | Body::Close => {
                (&link.control, self.leg)
            }
        };
        if self.leg == laden {
            curve.laden_ns(self.payload_bytes() as u64)
        } else {
            curve.empty_ns()
        }
    }

    /// Whether it can change a window.
    pub(super) fn is_change(&self) -> bool {
        matches!(self.body, Body::Write | Body::CompareSwap | Body::FetchAdd)
    }

    #[inline]
    pub(super) fn is_verb(&self) -> bool {
        matches!(
            self.body,
            Body::Read | Body::Write | Body::Send | Body::CompareSwap | Body::FetchAdd
        )
    }
}

/// All messages under way.
#[derive(Default)]
pub(super) struct Messages {
    all: Vec<Message>,
    free: Vec<MessageId>,
    /// By place of the connection.
    counts: Vec<u32>,
}

impl Messages {
    /// A place for a message on `connection`; every other field is left from its last use.
    #[inline]
    pub(super) fn take(
        &mut self,
        connection: ConnectionId,
        body: Body,
        leg: Leg,
    ) -> (MessageId, &mut Message) {
        let id = self.free.pop().unwrap_or_else(|| {
            let id = u32::try_from(self.all.len()).expect("fewer messages than fit in memory");
            self.all.push(Message::new());
            MessageId(id)
        });
        let message = &mut self.all[id.0 as usize];
        if self.counts.len() <= connection.place() {
            self.counts.resize(connection.place() + 1, 0);
        }
        self.counts[connection.place()] += 1;
        message.connection = connection;
        message.body = body;
        message.leg = leg;
        message.status = Status::Ok;
        message.sequence = 0;
        message.immediate = None;
        message.value = 0;
        message.len_bytes = 0;
        (id, message)
    }

    /// A second message like `id`.
    pub(super) fn copy(&mut self, id: MessageId) -> MessageId {
        let (connection, body, leg) = (self.at(id).connection, self.at(id).body, self.at(id).leg);
        let (copy, _) = self.take(connection, body, leg);
        let [original, copied] = self
            .all
            .get_disjoint_mut([id.0 as usize, copy.0 as usize])
            .expect("two places of the store");
        copied.clone_from(original);
        copy
    }

    #[inline]
    pub(super) fn free(&mut self, id: MessageId) {
        let Message {
            connection, buffer, ..
        } = &mut self.all[id.0 as usize];
        self.counts[connection.place()] -= 1;
        if buffer.len() > KEPT_BYTES_MAX {
            *buffer = Vec::new();
        }
        self.free.push(id);
    }

    /// Messages of a connection.
    pub(super) fn of(&self, connection: ConnectionId) -> u32 {
        let count = self.counts.get(connection.place());
        count.copied().unwrap_or(0)
    }

    #[inline]
    pub(super) fn at(&self, id: MessageId) -> &Message {
        &self.all[id.0 as usize]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, id: MessageId) -> &mut Message {
        &mut self.all[id.0 as usize]
    }
}

/// Longest buffer that stays with its place; arbitrary, far above a page.
const KEPT_BYTES_MAX: usize = 64 * 1024;
