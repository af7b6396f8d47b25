//! The host's side: what has arrived for a process, and the process's hold on its windows.
//!
//! Messages and attaches wait until the host polls, as they do in sockets; verbs on memory do not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::calls::{Server, SimAnswerer};
use super::connection::{Connection, ConnectionId};
use super::message::{Body, Leg};
use super::net::{Net, NodeId};
use super::random::mix;
use super::session::WAITING_COUNT_MAX;
use super::state::State;
use crate::windows::WindowTable;
use crate::{
    Address, ClientId, Error, Event, Generation, Hello, Listen, MESSAGE_BYTES_MAX, PeerId, Region,
    Result, Rights, Status, Waker, WindowDescriptor, WindowId, Windows,
};

/// A host's end of all its connections. Dropping it is the end of its process.
pub struct SimListener {
    net: Net,
    node: NodeId,
    incarnation: u32,
    waker: Waker,
}

/// What a running host has.
pub(super) struct Process {
    pub(super) table: Arc<WindowTable>,
    pub(super) inbox: VecDeque<Inbound>,
    pub(super) server: Server,
    /// Messages and immediates of data connections in the inbox.
    verb_count: usize,
    pub(super) peers: Vec<(ClientId, ConnectionId)>,
}

/// What has arrived.
pub(super) enum Inbound {
    Connected {
        peer: PeerId,
        hello: Hello,
    },
    Message {
        peer: PeerId,
        bytes: Vec<u8>,
        is_verb: bool,
    },
    Immediate {
        peer: PeerId,
        window: WindowId,
        offset: u64,
        len_bytes: u32,
        value: u32,
    },
    Attach {
        connection: ConnectionId,
        window: WindowId,
        generation: Generation,
    },
    Disconnected {
        peer: PeerId,
    },
}

impl Process {
    /// Takes what a verb has to say; false: the receive queue is full.
    pub(super) fn take_verb(&mut self, inbound: Inbound) -> bool {
        let has_room = self.verb_count < RECEIVE_QUEUE;
        if has_room {
            self.verb_count += 1;
            self.inbox.push_back(inbound);
        }
        has_room
    }

    pub(super) fn peer(&self, name: ClientId) -> Option<ConnectionId> {
        let found = self.peers.iter().find(|(other, _)| *other == name);
        found.map(|&(_, connection)| connection)
    }
}

impl State {
    /// Starts a process on a host's machine.
    pub(super) fn start_process(&mut self, id: NodeId) {
        let seed = self.seed;
        let node = self.node(id);
        node.is_on = true;
        node.is_up = true;
        node.incarnation += 1;
        let (node_number, incarnation) = (u64::from(id.0), u64::from(node.incarnation));
        let table_seed = mix(mix(seed ^ node_number) ^ incarnation);
        // Each life has its own million generations, so that none is given twice.
        let first = node.incarnation << 20;
        node.process = Some(Process {
            table: Arc::new(WindowTable::seeded(table_seed, first)),
            inbox: VecDeque::new(),
            server: Server::default(),
            verb_count: 0,
            peers: Vec::new(),
        });
    }

    /// The process of a listener, while it runs.
    pub(super) fn process(&mut self, id: NodeId, incarnation: u32) -> Result<&mut Process> {
        self.node(id).process(incarnation).ok_or(Error::Closed)
    }

    /// The host has taken a message of a session, which may be over since.
    fn heard(&mut self, id: ConnectionId) {
        if let Some(control) = self.connections.find(id).and_then(Connection::control) {
            control.to_host -= 1;
        }
    }

    fn answer_attach(&mut self, id: ConnectionId, window: WindowId, generation: Generation) {
        let Some(connection) = self.connections.find(id) else {
            return;
        };
        let (host, incarnation) = (connection.host, connection.incarnation);
        if !connection.host_open {
            return;
        }
        let Some(process) = self.node(host).process(incarnation) else {
            return;
        };
        let found = process.table.attach(window, generation);
        let (answer, message) = self.messages.take(id, Body::Attached, Leg::ToClient);
        message.window = window;
        message.generation = generation;
        (message.status, message.operand, message.swap) = match found {
            Ok((_, descriptor)) => (
                Status::Ok,
                descriptor.len_bytes,
                u64::from(descriptor.rights.0),
            ),
            Err(_) => (Status::StaleGeneration, 0, 0),
        };
        self.send(answer);
    }
}

impl SimListener {
    pub(super) fn new(net: &Net, node: NodeId) -> Self {
        let incarnation = net.lock().node(node).incarnation;
        Self {
            net: net.clone(),
            node,
            incarnation,
            waker: Waker::new().expect("a descriptor is left"),
        }
    }

    /// The machine that it runs on.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The end of its server thread, of which there is one: from here on clients may call.
    ///
    /// # Errors
    /// `Closed`: the process has crashed.
    pub fn answerer(&mut self) -> Result<SimAnswerer> {
        let mut state = self.net.lock();
        let process = state.process(self.node, self.incarnation)?;
        process.server.is_there = true;
        Ok(SimAnswerer::new(&self.net, self.node, self.incarnation))
    }

    /// The windows, for the host's own threads.
    ///
    /// # Errors
    /// `Closed`: the process has crashed.
    pub fn windows(&self) -> Result<Windows> {
        let mut state = self.net.lock();
        let process = state.process(self.node, self.incarnation)?;
        Ok(Windows::new(Arc::clone(&process.table)))
    }
}

impl Listen for SimListener {
    fn addresses(&self) -> Vec<Address> {
        self.net
            .lock()
            .node(self.node)
            .address
            .iter()
            .cloned()
            .collect()
    }

    /// Nothing ever waits here: waking has no effect.
    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn register(&self, region: Arc<Region>, rights: Rights) -> Result<WindowDescriptor> {
        let mut state = self.net.lock();
        let process = state.process(self.node, self.incarnation)?;
        let descriptor = process.table.register(region, rights)?;
        state.witness.register(self.node, descriptor);
        Ok(descriptor)
    }

    fn revoke(&self, window: WindowId) -> Result<()> {
        let mut state = self.net.lock();
        let process = state.process(self.node, self.incarnation)?;
        let revoked = process.table.revoke(window);
        state.witness.revoke(self.node, window);
        revoked
    }

    fn renew(&self, window: WindowId) -> Result<WindowDescriptor> {
        let mut state = self.net.lock();
        let process = state.process(self.node, self.incarnation)?;
        let descriptor = process.table.renew(window)?;
        state.witness.register(self.node, descriptor);
        Ok(descriptor)
    }

    fn send(&mut self, peer: PeerId, message: &[u8]) -> Result<()> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(Error::Bound("message length"));
        }
        let state = &mut *self.net.lock();
        let process = state.process(self.node, self.incarnation)?;
        let found = process.peers.iter().find(|(_, id)| id.peer() == peer);
        let &(_, connection) = found.ok_or(Error::Closed)?;
        let control = state.control(connection);
        if control.to_client >= WAITING_COUNT_MAX {
            return Err(Error::Bound("messages to a client"));
        }
        control.to_client += 1;
        let (id, sent) = state
            .messages
            .take(connection, Body::Control, Leg::ToClient);
        sent.fill(message);
        state.send(id);
        Ok(())
    }

    fn close(&mut self, peer: PeerId) {
        let state = &mut *self.net.lock();
        let Ok(process) = state.process(self.node, self.incarnation) else {
            return;
        };
        let Some(&(_, connection)) = process.peers.iter().find(|(_, id)| id.peer() == peer) else {
            return;
        };
        // What an ended peer still said is not heard.
        let mut silenced = 0;
        process.inbox.retain(|inbound| {
            let (whose, is_verb) = match inbound {
                Inbound::Message { peer, is_verb, .. } => (*peer, *is_verb),
                Inbound::Immediate { peer, .. } => (*peer, true),
                Inbound::Attach { connection, .. } => (connection.peer(), false),
                Inbound::Connected { peer, .. } | Inbound::Disconnected { peer } => (*peer, false),
            };
            silenced += usize::from(whose == peer && is_verb);
            whose != peer
        });
        process.verb_count -= silenced;
        state.end_by_host(connection);
    }

    /// Takes all that has arrived; no time passes, whatever `timeout` is.
    ///
    /// # Errors
    /// `Closed`: the process has crashed.
    fn poll(&mut self, _timeout: Option<Duration>, events: &mut Vec<Event>) -> Result<()> {
        self.waker.clear();
        let state = &mut *self.net.lock();
        state.process(self.node, self.incarnation)?;
        if state.node(self.node).is_paused {
            return Ok(());
        }
        loop {
            let process = state.process(self.node, self.incarnation)?;
            let Some(inbound) = process.inbox.pop_front() else {
                return Ok(());
            };
            match inbound {
                Inbound::Connected { peer, hello } => events.push(Event::Connected { peer, hello }),
                Inbound::Message {
                    peer,
                    bytes,
                    is_verb,
                } => {
                    if is_verb {
                        process.verb_count -= 1;
                    } else {
                        state.heard(ConnectionId(peer.0));
                    }
                    events.push(Event::Message { peer, bytes });
                }
                Inbound::Immediate {
                    peer,
                    window,
                    offset,
                    len_bytes,
                    value,
                } => {
                    process.verb_count -= 1;
                    events.push(Event::Immediate {
                        peer,
                        window,
                        offset,
                        len_bytes,
                        value,
                    });
                }
                Inbound::Attach {
                    connection,
                    window,
                    generation,
                } => {
                    state.heard(connection);
                    state.answer_attach(connection, window, generation);
                }
                Inbound::Disconnected { peer } => events.push(Event::Disconnected { peer }),
            }
        }
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.net.lock();
        if state.process(self.node, self.incarnation).is_ok() {
            state.end_process(self.node, super::Memory::Lost, super::Notice::AtOnce);
        }
    }
}

/// Most messages and immediates of data connections that a host has not taken.
pub(super) const RECEIVE_QUEUE: usize = 1024;
