//! Connections: what both ends know, the verbs outstanding on one, and how it ends.
//!
//! The ends are closed separately: when nobody tells a peer, it finds out by silence. A message
//! is taken only by an end that is open, so whatever is under way to a closed one is lost, but for
//! strays (see [`super::Late`]).
//!
//! Invariant: a slot has an end (`done`) or its connection's client end is open.

use std::collections::VecDeque;

use super::calls::Calls;
use super::clock::Event;
use super::listener::Inbound;
use super::message::{Body, Leg, MessageId};
use super::net::NodeId;
use super::state::State;
use super::torn_reads::Tearing;
use super::trace::Kind;
use crate::{
    ClientId, Completion, CompletionQueue, FAILURE_TIMEOUT, Incoming, PeerId, Status, Time, Token,
};

/// A connection of either kind: its place in the table, and how many had the place before.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ConnectionId(pub(super) u64);

impl ConnectionId {
    pub(super) fn new(place: u32, uses: u32) -> Self {
        Self(u64::from(uses) << 32 | u64::from(place))
    }

    #[inline]
    pub(super) fn place(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    #[inline]
    pub(super) fn uses(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// As the host names the client's control connection.
    pub(super) fn peer(self) -> PeerId {
        PeerId(self.0)
    }
}

/// Both ends of a connection.
pub(super) struct Connection {
    pub(super) client: NodeId,
    pub(super) host: NodeId,
    /// Of the host's process that took it.
    pub(super) incarnation: u32,
    pub(super) client_open: bool,
    pub(super) host_open: bool,
    /// The client's handle of it is gone.
    pub(super) is_dropped: bool,
    /// Word of the host's end being closed is under way.
    pub(super) is_told: bool,
    /// Connections of the whole network are counted.
    pub(super) number: u64,
    /// Of the last message, by direction: later ones never arrive before it.
    pub(super) last_arrival: [u64; 2],
    /// Messages sent, and the last that was delivered, by direction.
    pub(super) sent: [u64; 2],
    pub(super) delivered: [u64; 2],
    pub(super) kind: Purpose,
}

/// What a connection is for.
pub(super) enum Purpose {
    Control(Control),
    Data(Data),
    Calls(Calls),
}

/// A session's own state.
pub(super) struct Control {
    pub(super) name: ClientId,
    /// Its data connections, and those for calls.
    pub(super) data: Vec<ConnectionId>,
    /// What the client has not taken.
    pub(super) inbox: VecDeque<Incoming>,
    /// Messages of the client that the host has not taken.
    pub(super) to_host: usize,
    /// Messages of the host that the client has not taken.
    pub(super) to_client: usize,
}

/// A data connection's own state.
pub(super) struct Data {
    pub(super) control: ConnectionId,
    /// Outstanding verbs, oldest first.
    pub(super) slots: VecDeque<Slot>,
    /// Position of the oldest.
    pub(super) first: u64,
    /// Position of the first that no flush has sent.
    pub(super) sent: u64,
    patience: Patience,
    /// What verbs end with once the client's end is closed.
    end: Status,
    /// A READ that is being served, and what waits for it.
    pub(super) tearing: Option<Tearing>,
}

/// An outstanding verb.
pub(super) struct Slot {
    pub(super) token: Token,
    /// Under way; `NONE` when it was lost or answered.
    pub(super) message: MessageId,
    /// WRITE, until it is sent: the caller's bytes.
    pub(super) source: *const u8,
    /// READ: where the bytes go; null once it is revoked or the verb has ended.
    pub(super) landing: *mut u8,
    /// How it ended, and its value.
    pub(super) done: Option<(Status, u64)>,
}

// SAFETY: the raw pointers belong to posted verbs; `post_read` and `post_write` demand that they
// stay valid until completion, whichever thread is at work.
unsafe impl Send for Slot {}

impl Data {
    pub(super) fn new(control: ConnectionId) -> Self {
        Self {
            control,
            slots: VecDeque::new(),
            first: 0,
            sent: 0,
            patience: Patience::default(),
            end: Status::Ok,
            tearing: None,
        }
    }

    #[inline]
    pub(super) fn slot(&mut self, position: u64) -> Option<&mut Slot> {
        let index = position.checked_sub(self.first)?;
        self.slots.get_mut(usize::try_from(index).ok()?)
    }

    /// Position of the next verb.
    pub(super) fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Moves what has ended into `queue`, in posting order.
    #[inline]
    pub(super) fn drain(&mut self, queue: &mut CompletionQueue) {
        while let Some((status, value)) = self.slots.front().and_then(|slot| slot.done) {
            let slot = self.slots.pop_front().expect("the one just seen");
            self.first += 1;
            queue.push(Completion {
                token: slot.token,
                status,
                value,
            });
        }
        self.sent = self.sent.max(self.first);
    }

    /// What a verb that is posted now ends with; `Ok` while the connection stands.
    pub(super) fn end(&self) -> Status {
        self.end
    }

    /// Notes an answer.
    #[inline]
    pub(super) fn hear(&mut self, now: Time) {
        self.patience.hear(now);
    }
}

/// How long a client has waited for a host that owes it answers.
#[derive(Default)]
pub(super) struct Patience {
    /// Sent without an answer.
    owed: usize,
    heard_at: Time,
    is_timed: bool,
}

impl Patience {
    /// Something was sent that will be answered.
    #[inline]
    pub(super) fn ask(&mut self, now: Time) {
        if self.owed == 0 {
            self.heard_at = now;
        }
        self.owed += 1;
    }

    /// One answer came.
    #[inline]
    pub(super) fn hear(&mut self, now: Time) {
        self.owed = self.owed.saturating_sub(1);
        self.heard_at = now;
    }

    /// Nothing is waited for any more.
    pub(super) fn forget(&mut self) {
        self.owed = 0;
    }

    /// When it ends, if that is to be looked at and nobody does yet.
    pub(super) fn timer(&mut self) -> Option<Time> {
        if self.owed == 0 || self.is_timed {
            return None;
        }
        self.is_timed = true;
        Some(self.heard_at.after(FAILURE_TIMEOUT))
    }

    /// The timer went off; whether nothing came in all that time.
    fn is_over(&mut self, now: Time) -> bool {
        self.is_timed = false;
        self.owed > 0 && now >= self.heard_at.after(FAILURE_TIMEOUT)
    }
}

impl Connection {
    pub(super) fn new(client: NodeId, host: NodeId, incarnation: u32, kind: Purpose) -> Self {
        Self {
            client,
            host,
            incarnation,
            client_open: true,
            host_open: true,
            is_dropped: false,
            is_told: false,
            number: 0,
            last_arrival: [0; 2],
            sent: [0; 2],
            delivered: [0; 2],
            kind,
        }
    }

    /// Who connected, of a control connection.
    pub(super) fn name(&mut self) -> Option<ClientId> {
        match &self.kind {
            Purpose::Control(control) => Some(control.name),
            Purpose::Data(_) | Purpose::Calls(_) => None,
        }
    }

    pub(super) fn data(&mut self) -> Option<&mut Data> {
        match &mut self.kind {
            Purpose::Data(data) => Some(data),
            Purpose::Control(_) | Purpose::Calls(_) => None,
        }
    }

    pub(super) fn calls(&mut self) -> Option<&mut Calls> {
        match &mut self.kind {
            Purpose::Calls(calls) => Some(calls),
            Purpose::Control(_) | Purpose::Data(_) => None,
        }
    }

    fn patience(&mut self) -> Option<&mut Patience> {
        match &mut self.kind {
            Purpose::Data(data) => Some(&mut data.patience),
            Purpose::Calls(calls) => Some(&mut calls.patience),
            Purpose::Control(_) => None,
        }
    }

    pub(super) fn control(&mut self) -> Option<&mut Control> {
        match &mut self.kind {
            Purpose::Control(control) => Some(control),
            Purpose::Data(_) | Purpose::Calls(_) => None,
        }
    }
}

impl State {
    #[inline]
    pub(super) fn connection(&mut self, id: ConnectionId) -> &mut Connection {
        self.connections.at_mut(id)
    }

    #[inline]
    pub(super) fn data(&mut self, id: ConnectionId) -> &mut Data {
        let data = self.connections.at_mut(id).data();
        data.expect("an endpoint's connection is a data connection")
    }

    #[inline]
    pub(super) fn control(&mut self, id: ConnectionId) -> &mut Control {
        let control = self.connections.at_mut(id).control();
        control.expect("a session's connection is a control connection")
    }

    /// Sends the verbs that are posted and not sent.
    pub(super) fn flush(&mut self, id: ConnectionId) {
        let now = self.now;
        let (from, to) = {
            let data = self.data(id);
            (data.sent, data.next())
        };
        for position in from..to {
            let data = self.data(id);
            data.patience.ask(now);
            data.sent = position + 1;
            let slot = data.slot(position).expect("posted and not ended");
            let (message_id, source) = (slot.message, slot.source);
            slot.source = std::ptr::null();
            if !source.is_null() {
                let room = self.messages.at_mut(message_id).room();
                // SAFETY: the source is valid for as many bytes as the verb is long until it ends,
                // by the contract of `post_write`; the room is the message's own.
                unsafe { std::ptr::copy_nonoverlapping(source, room.as_mut_ptr(), room.len()) };
            }
            self.send(message_id);
        }
        self.watch_silence(id);
    }

    /// Has the host's silence looked at once the client's patience is over.
    pub(super) fn watch_silence(&mut self, id: ConnectionId) {
        let patience = self.connection(id).patience();
        if let Some(time) = patience.and_then(Patience::timer) {
            self.events.push(time, Event::Silence(id));
        }
    }

    /// Looks whether a host has been silent for too long.
    pub(super) fn on_silence(&mut self, id: ConnectionId) {
        let now = self.now;
        let Some(connection) = self.connections.find(id) else {
            return;
        };
        let is_open = connection.client_open;
        let is_over = connection.patience().is_some_and(|one| one.is_over(now));
        if is_open && is_over {
            self.break_both(id, Status::Timeout);
        } else if is_open {
            self.watch_silence(id);
        }
    }

    /// Ends a connection on both sides, at once.
    pub(super) fn break_both(&mut self, id: ConnectionId, status: Status) {
        self.close_client_end(id, status);
        self.close_host_end(id, true);
    }

    /// Ends a connection as its client sees it.
    pub(super) fn close_client_end(&mut self, id: ConnectionId, status: Status) {
        let connection = self.connection(id);
        if !connection.client_open {
            return;
        }
        connection.client_open = false;
        let client = connection.client;
        self.trace(Kind::ClientEnd, client, id.0, status as u64);
        if self.late.is_some() {
            self.leave_strays(id);
        }
        let end = if self.injected.errors_count_as_acknowledged {
            Status::Ok
        } else {
            status
        };
        let State {
            connections,
            messages,
            ..
        } = self;
        if let Some(calls) = connections.at_mut(id).calls() {
            calls.end(status, messages);
        }
        if let Some(data) = connections.at_mut(id).data() {
            data.end = status;
            data.patience.forget();
            for (slot, position) in data.slots.iter_mut().zip(data.first..) {
                if position >= data.sent {
                    messages.free(std::mem::replace(&mut slot.message, MessageId::NONE));
                }
                slot.done.get_or_insert((end, 0));
                slot.landing = std::ptr::null_mut();
            }
        }
        self.make_ready(client);
    }

    /// Ends a connection as its host sees it; a session takes its data connections along.
    pub(super) fn close_host_end(&mut self, id: ConnectionId, is_told: bool) {
        let connection = self.connection(id);
        if !connection.host_open {
            return;
        }
        connection.host_open = false;
        let (host, incarnation) = (connection.host, connection.incarnation);
        self.trace(Kind::HostEnd, host, id.0, u64::from(is_told));
        let data = self.connection(id).data();
        if let Some(tearing) = data.and_then(|data| data.tearing.take()) {
            for behind in tearing.into_behind() {
                self.lose(behind);
            }
        }
        match &mut self.connection(id).kind {
            Purpose::Data(Data { control, .. }) | Purpose::Calls(Calls { control, .. }) => {
                let control = *control;
                self.control(control).data.retain(|&other| other != id);
            }
            Purpose::Control(control) => {
                let (name, data) = (control.name, std::mem::take(&mut control.data));
                for data in data {
                    self.end_by_host(data);
                }
                let node = self.node(host);
                if let Some(process) = node.process(incarnation) {
                    process
                        .peers
                        .retain(|&(other, peer)| (other, peer) != (name, id));
                    if is_told {
                        let peer = id.peer();
                        process.inbox.push_back(Inbound::Disconnected { peer });
                        self.make_ready(host);
                    }
                }
            }
        }
    }

    /// The host closes: the client hears of it unless it is out of reach.
    pub(super) fn end_by_host(&mut self, id: ConnectionId) {
        self.close_host_end(id, false);
        self.tell_client(id);
    }

    /// The host's machine says that it knows the connection no more: at once, or a while later.
    pub(super) fn tell_client(&mut self, id: ConnectionId) {
        let connection = self.connection(id);
        let (client, host) = (connection.client, connection.host);
        if !connection.client_open || !self.is_reachable(client, host) {
            return;
        }
        if self.notice_ns_max == 0 {
            return self.close_client_end(id, Status::Disconnected);
        }
        if std::mem::replace(&mut self.connection(id).is_told, true) {
            return;
        }
        let delay_ns = self.random.below(self.notice_ns_max);
        self.events
            .push(Time(self.now.0 + delay_ns), Event::Notice(id));
    }

    /// Word of a connection's end reaches its client, unless it is cut off now.
    pub(super) fn on_notice(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.find(id) else {
            return;
        };
        // Lost on a link that is cut, it is said again when the client is heard again.
        connection.is_told = false;
        let (client, host) = (connection.client, connection.host);
        if self.is_reachable(client, host) {
            self.close_client_end(id, Status::Disconnected);
        }
    }

    /// Writes that are under way may land later: the first ones whole, the last of them torn.
    fn leave_strays(&mut self, id: ConnectionId) {
        let Some(late) = self.late else { return };
        let Some(data) = self.connections.at_mut(id).data() else {
            return;
        };
        let mut time = self.now;
        for position in data.first..data.sent {
            let slot = data.slot(position).map_or(MessageId::NONE, |s| s.message);
            if slot == MessageId::NONE {
                continue;
            }
            let message = self.messages.at(slot);
            if message.leg != Leg::ToHost || !message.is_change() {
                continue;
            }
            if !self.random.happens(late.chance_ppm) {
                return;
            }
            let len_bytes = message.len_bytes;
            let is_torn = message.body == Body::Write && self.random.happens(late.torn_ppm);
            let kept = if is_torn && len_bytes > 0 {
                self.random.below(len_bytes as u64) as usize
            } else {
                len_bytes
            };
            let stray = self.messages.copy(slot);
            self.messages.at_mut(stray).len_bytes = kept;
            time = time.after(std::time::Duration::from_nanos(
                1 + self.random.below(late.delay_ns_max.max(1)),
            ));
            self.events.push(time, Event::Stray(stray));
            if is_torn {
                return;
            }
        }
    }
}
