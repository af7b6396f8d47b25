//! Messages that have arrived: verbs take effect at the host, answers land at the client.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::Event;
use super::connection::{Connection, ConnectionId, Purpose};
use super::injected_faults::InjectedFaults;
use super::listener::Inbound;
use super::message::{Body, Leg, Message, MessageId};
use super::net::{NodeId, Serving};
use super::state::State;
use super::torn_reads::Turn;
use super::trace::Kind;
use crate::windows::WindowTable;
use crate::{Error, Incoming, RemoteWindow, Rights, Status, Time, WindowDescriptor};

impl State {
    /// Hands a message to its receiver, if there is one.
    pub(super) fn deliver(&mut self, id: MessageId) {
        match self.messages.at(id).leg {
            Leg::ToHost => self.deliver_to_host(id),
            Leg::ToClient => self.deliver_to_client(id),
        }
    }

    fn deliver_to_host(&mut self, id: MessageId) {
        match self.turn_of(id) {
            Turn::Later => {}
            Turn::First => self.take_in(id),
            Turn::Rest(rest, behind) => {
                self.end_torn(id, rest);
                for next in behind {
                    self.deliver_to_host(next);
                }
            }
        }
    }

    /// Whether a message is of a connection that its host still has; it is lost otherwise.
    fn is_for_host(&mut self, id: MessageId) -> bool {
        let connection_id = self.messages.at(id).connection;
        let connection = self.connections.at(connection_id);
        let (host, incarnation) = (connection.host, connection.incarnation);
        let is_open = connection.host_open;
        let node = self.node(host);
        if is_open && node.is_up && node.incarnation == incarnation {
            return true;
        }
        self.lose(id);
        self.close_host_end(connection_id, true);
        // The machine answers that it knows no such connection.
        self.tell_client(connection_id);
        false
    }

    /// The second part of a READ.
    fn end_torn(&mut self, id: MessageId, rest: Range<usize>) {
        if self.is_for_host(id) {
            self.act_on(id, rest);
        }
    }

    fn take_in(&mut self, id: MessageId) {
        if !self.is_for_host(id) {
            return;
        }
        let message = self.messages.at(id);
        let (body, connection_id, is_verb) = (message.body, message.connection, message.is_verb());
        let connection = self.connections.at(connection_id);
        let (host, incarnation) = (connection.host, connection.incarnation);
        self.check_order(id);
        self.trace_message(Kind::ToHost, host, id);
        if is_verb {
            let (part, is_all) = self.part_of(host, id);
            return match is_all {
                true => self.act_on(id, part),
                false => self.begin_torn(host, id, part),
            };
        }
        if body == Body::Call {
            return self.take_call(id);
        }
        let message = self.messages.at(id);
        let peer = connection_id.peer();
        let inbound = match body {
            Body::Control => Inbound::Message {
                peer,
                bytes: message.payload().to_vec(),
                is_verb: false,
            },
            Body::Attach => Inbound::Attach {
                connection: connection_id,
                window: message.window,
                generation: message.generation,
            },
            _ => {
                self.lose(id);
                return self.close_host_end(connection_id, true);
            }
        };
        if let Some(process) = self.node(host).process(incarnation) {
            process.inbox.push_back(inbound);
        }
        self.messages.free(id);
        self.make_ready(host);
    }

    /// The first part of a READ. Whether it may is asked at the second.
    fn begin_torn(&mut self, host: NodeId, id: MessageId, part: Range<usize>) {
        let process = self.nodes[host.0 as usize].process.as_ref();
        let table = &process.expect("the node is up").table;
        let _ = act(table, self.messages.at_mut(id), self.injected, part, |_| {});
    }

    /// Carries out a verb, or its last part, and sends its answer.
    fn act_on(&mut self, id: MessageId, part: Range<usize>) {
        let connection_id = self.messages.at(id).connection;
        let connection = self.connections.at(connection_id);
        let (client, host, has_left) =
            (connection.client, connection.host, !connection.client_open);
        let control = match &connection.kind {
            Purpose::Data(data) => data.control,
            Purpose::Control(_) | Purpose::Calls(_) => connection_id,
        };
        let writer = match has_left {
            true => self.connections.find(control).and_then(Connection::name),
            false => None,
        };
        let node = &mut self.nodes[host.0 as usize];
        let process = node.process.as_mut().expect("the node is up");
        let message = self.messages.at_mut(id);
        self.witness.receive(host, message, writer, has_left);
        let mut status = act(&process.table, message, self.injected, part, |message| {
            self.witness.see(host, message);
        });
        let told = match (message.body, status, message.immediate) {
            (Body::Send, ..) => Some(Inbound::Message {
                peer: control.peer(),
                bytes: message.payload().to_vec(),
                is_verb: true,
            }),
            (Body::Write, Status::Ok, Some(value)) => Some(Inbound::Immediate {
                peer: control.peer(),
                window: message.window,
                offset: message.offset,
                len_bytes: u32::try_from(message.len_bytes).unwrap_or(u32::MAX),
                value,
            }),
            _ => None,
        };
        let is_told = told.is_some();
        if let Some(inbound) = told
            && !process.take_verb(inbound)
        {
            status = Status::ReceiverNotReady;
        }
        message.status = status;
        message.leg = Leg::ToClient;
        message.sequence = 0;
        if is_told {
            self.make_ready(host);
        }
        let is_acknowledged = self.messages.at(id).body == Body::Write && status == Status::Ok;
        let link = self.link(host, client);
        if is_acknowledged && link.loses_acknowledgement {
            link.loses_acknowledgement = false;
            self.lose(id);
            return self.break_both(connection_id, Status::Disconnected);
        }
        self.send(id);
    }

    fn deliver_to_client(&mut self, id: MessageId) {
        let message = self.messages.at(id);
        let connection_id = message.connection;
        let connection = self.connections.at(connection_id);
        let client = connection.client;
        if !self.nodes[client.0 as usize].is_on {
            return self.lose(id);
        }
        if !connection.client_open {
            let is_control = matches!(connection.kind, Purpose::Control(_));
            self.lose(id);
            if is_control {
                // Nobody has that session any more, and the machine says so.
                self.close_host_end(connection_id, true);
            }
            return;
        }
        self.check_order(id);
        self.trace_message(Kind::ToClient, client, id);
        if self.messages.at(id).is_verb() {
            self.complete(connection_id, id);
        } else if self.messages.at(id).body == Body::Answer {
            self.take_answer(connection_id, id);
        } else {
            self.hand_to_session(connection_id, id);
        }
        self.make_ready(client);
    }

    /// Lands a verb's answer.
    fn complete(&mut self, connection: ConnectionId, id: MessageId) {
        let now = self.now;
        let message = self.messages.at(id);
        let mut status = message.status;
        if self.injected.errors_count_as_acknowledged {
            status = Status::Ok;
        }
        let data = self
            .connections
            .at_mut(connection)
            .data()
            .expect("verbs travel on data connections");
        data.hear(now);
        if let Some(slot) = data.slot(message.position)
            && slot.done.is_none()
        {
            let bytes = message.payload();
            if message.body == Body::Read && !slot.landing.is_null() {
                // SAFETY: the landing is valid for the verb's length until the verb ends or the
                // landing is revoked, by the contract of `post_read`; either sets it to null.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), slot.landing, bytes.len());
                }
            }
            slot.landing = std::ptr::null_mut();
            slot.message = MessageId::NONE;
            slot.done = Some((status, message.value));
        }
        self.messages.free(id);
    }

    fn hand_to_session(&mut self, connection: ConnectionId, id: MessageId) {
        let message = self.messages.at(id);
        let incoming = if message.body == Body::Control {
            Incoming::Message(message.payload().to_vec())
        } else {
            let is_granted = message.status == Status::Ok;
            let descriptor = WindowDescriptor {
                id: message.window,
                generation: message.generation,
                len_bytes: message.operand,
                rights: Rights((message.swap & 0xFF) as u8),
            };
            let window = RemoteWindow::new(descriptor, None);
            let answer = is_granted.then_some(window).ok_or(Error::StaleWindow);
            Incoming::Attached(descriptor, answer)
        };
        self.messages.free(id);
        self.control(connection).inbox.push_back(incoming);
    }

    /// Holds a message that its receiver takes against the order in which they were sent.
    #[inline]
    fn check_order(&mut self, id: MessageId) {
        let message = self.messages.at(id);
        let delivered = &mut self.connections.at_mut(message.connection).delivered;
        let last = std::mem::replace(&mut delivered[message.leg as usize], message.sequence);
        if message.sequence <= last {
            self.witness.overtaken(message, last);
        }
    }

    /// Forgets a message that reaches nobody.
    pub(super) fn lose(&mut self, id: MessageId) {
        let message = self.messages.at(id);
        let (position, is_verb) = (message.position, message.is_verb());
        let connection = self.connections.at_mut(message.connection);
        if is_verb
            && let Some(slot) = connection.data().and_then(|data| data.slot(position))
            && slot.message == id
        {
            slot.message = MessageId::NONE;
        }
        self.messages.free(id);
    }

    /// A write whose connection broke while it was under way. Nobody hears of it.
    pub(super) fn on_stray(&mut self, id: MessageId) {
        let connection = self.connection(self.messages.at(id).connection);
        let (client, host) = (connection.client, connection.host);
        let incarnation = connection.incarnation;
        let is_cut = self.link(client, host).cut_at.is_some();
        let node = self.node(host);
        let is_there = node.is_on && node.is_up && node.incarnation == incarnation;
        if is_there && node.is_paused && node.serving == Serving::Agent {
            node.held.push(Event::Stray(id));
            return;
        }
        if is_there && !is_cut {
            self.trace_message(Kind::Stray, host, id);
            let injected = self.injected;
            let process = self.nodes[host.0 as usize].process.as_ref();
            let table = &process.expect("the node is up").table;
            let message = self.messages.at_mut(id);
            let all = 0..message.len_bytes;
            act(table, message, injected, all, |message| {
                self.witness.see(host, message);
            });
        }
        self.messages.free(id);
    }

    /// Whether a connection's other end has been out of reach for `limit`.
    pub(super) fn is_out_of_reach(&mut self, id: ConnectionId, limit: std::time::Duration) -> bool {
        let Some(connection) = self.connections.find(id) else {
            return false;
        };
        let (client, host) = (connection.client, connection.host);
        let incarnation = connection.incarnation;
        // Ends that know nothing of each other any more: one was closed, or its process is gone.
        let is_half = connection.client_open != connection.host_open;
        let node = self.node(host);
        let is_gone = !node.is_on || !node.is_up || node.incarnation != incarnation;
        let now = self.now;
        let is_cut = |cut_at: Option<Time>| cut_at.is_some_and(|time| now.since(time) >= limit);
        is_half || is_gone || !self.node(client).is_on || is_cut(self.cut_at(client, host))
    }
}

/// Carries out a verb, or a part of a READ, on window memory, and shows `witness` what took effect;
/// SEND touches none.
fn act(
    table: &WindowTable,
    message: &mut Message,
    injected: InjectedFaults,
    part: Range<usize>,
    mut witness: impl FnMut(&Message),
) -> Status {
    let need = match message.body {
        Body::Read => Rights::READ,
        Body::Write => Rights::WRITE,
        Body::CompareSwap | Body::FetchAdd => Rights::ATOMIC,
        _ => return Status::Ok,
    };
    let generation = injected.generation(table, message);
    let entered = table.enter(
        message.window,
        generation,
        need,
        message.offset,
        message.len_bytes as u64,
    );
    let guard = match entered {
        Ok(guard) => guard,
        Err(status) => return status,
    };
    witness(message);
    let lies = generation != message.generation && !injected.accepts_old_generations;
    match message.body {
        Body::Read => {
            let room = &mut message.room()[part.clone()];
            // SAFETY: the guard covers the verb's range, and with it the part; the room is the
            // message's own and as long as the part.
            unsafe {
                let from = guard.ptr().add(part.start);
                std::ptr::copy_nonoverlapping(from, room.as_mut_ptr(), room.len());
            }
        }
        Body::Write => {
            let room = message.room();
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(room.as_ptr(), guard.ptr(), room.len()) };
        }
        _ if !message.offset.is_multiple_of(8) => return Status::OutOfBounds,
        _ => {
            // SAFETY: the guard covers 8 bytes; windows start on a page, so the address is aligned.
            let cell = unsafe { AtomicU64::from_ptr(guard.ptr().cast()) };
            let before = u64::from_le(cell.load(Ordering::Relaxed));
            let after = match message.body {
                Body::CompareSwap if before == message.operand => message.swap,
                Body::CompareSwap => before,
                _ => before.wrapping_add(message.operand),
            };
            cell.store(after.to_le(), Ordering::Relaxed);
            message.value = before;
        }
    }
    if guard.is_dead() {
        Status::Revoked
    } else if lies {
        Status::StaleGeneration
    } else {
        Status::Ok
    }
}
