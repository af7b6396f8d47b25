//! The client's side of control connections: connecting, messages, attaching.
//!
//! Connecting and opening succeed or fail at once, by the present state of link and host: no time
//! can pass inside a call. A test that wants a slow host delays the call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use super::calls::{Calls, SimCaller};
use super::connection::{Connection, ConnectionId, Control, Data, Purpose};
use super::endpoint::SimEndpoint;
use super::listener::Inbound;
use super::message::{Body, Leg};
use super::net::{Net, NodeId};
use super::state::State;
use super::trace::Kind;
use crate::calls::{Caller, CallerOpener};
use crate::{
    Address, Connector, Endpoint, Error, Hello, Incoming, MESSAGE_BYTES_MAX, Opener, Result,
    Session, WindowDescriptor,
};

/// Opens sessions from one machine.
#[derive(Clone)]
pub struct SimConnector {
    net: Net,
    node: NodeId,
    holds_key: bool,
}

impl SimConnector {
    pub(super) fn new(net: &Net, node: NodeId, holds_key: bool) -> Self {
        Self {
            net: net.clone(),
            node,
            holds_key,
        }
    }

    /// The machine that it connects from.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }
}

impl Connector for SimConnector {
    fn connect(
        &self,
        address: &Address,
        hello: &Hello,
        timeout: Duration,
    ) -> Result<Box<dyn Session>> {
        hello.check_name()?;
        let state = &mut *self.net.lock();
        let nodes = &state.nodes;
        let host = nodes
            .iter()
            .position(|node| node.address.as_ref() == Some(address));
        let host = host.ok_or_else(|| refused(address))?;
        let host = NodeId(u32::try_from(host).expect("an index of a node"));
        state.try_reach(self.node, host, timeout)?;
        if !self.holds_key {
            let address = address.clone();
            return Err(Error::Unauthenticated { address });
        }
        let connection = state.open_session(self.node, host, hello)?;
        Ok(Box::new(SimSession {
            net: self.net.clone(),
            connection,
        }))
    }
}

impl State {
    /// Whether a connection can be opened now.
    fn try_reach(&mut self, client: NodeId, host: NodeId, timeout: Duration) -> Result<()> {
        if !self.node(client).is_up {
            return Err(Error::Closed);
        }
        if !self.is_reachable(client, host) || self.node(host).is_paused {
            return Err(Error::Timeout(timeout));
        }
        let node = self.node(host);
        match &node.address {
            Some(address) if !node.is_up => Err(refused(address)),
            _ => Ok(()),
        }
    }

    fn add_connection(&mut self, connection: Connection) -> ConnectionId {
        let (client, host) = (u64::from(connection.client.0), connection.host);
        let id = self.connections.add(connection, &self.messages);
        self.trace(Kind::Connected, host, id.0, client);
        id
    }

    /// The earlier session of the same client ends first.
    fn open_session(
        &mut self,
        client: NodeId,
        host: NodeId,
        hello: &Hello,
    ) -> Result<ConnectionId> {
        let node = self.node(host);
        let incarnation = node.incarnation;
        let process = node.process.as_ref().ok_or(Error::Closed)?;
        match process.peer(hello.client) {
            Some(earlier) => {
                self.close_host_end(earlier, true);
                self.end_by_host(earlier);
            }
            None if process.peers.len() >= PEER_COUNT_MAX => {
                return Err(Error::Bound("the host's connections"));
            }
            None => {}
        }
        let kind = Purpose::Control(Control {
            name: hello.client,
            data: Vec::new(),
            inbox: VecDeque::new(),
            to_host: 0,
            to_client: 0,
        });
        let id = self.add_connection(Connection::new(client, host, incarnation, kind));
        let process = self.node(host).process.as_mut().ok_or(Error::Closed)?;
        process.peers.push((hello.client, id));
        process.inbox.push_back(Inbound::Connected {
            peer: id.peer(),
            hello: hello.clone(),
        });
        self.make_ready(host);
        Ok(id)
    }

    fn open_endpoint(&mut self, session: ConnectionId, timeout: Duration) -> Result<ConnectionId> {
        self.check_open(session, timeout)?;
        Ok(self.add_to(session, Purpose::Data(Data::new(session))))
    }

    fn open_caller(&mut self, session: ConnectionId, timeout: Duration) -> Result<ConnectionId> {
        self.check_open(session, timeout)?;
        let host = self.connection(session).host;
        let process = self.node(host).process.as_ref().ok_or(Error::Closed)?;
        if !process.server.is_there {
            let address = self.node(host).address.clone();
            return Err(Error::Unanswered {
                address: address.expect("a host has an address"),
                reason: "the host has no server thread",
            });
        }
        let open = self.control(session).data.clone();
        let callers = open
            .iter()
            .filter(|&&id| self.connection(id).calls().is_some());
        if callers.count() >= CALLER_COUNT_MAX {
            return Err(Error::Bound("the host's connections"));
        }
        Ok(self.add_to(session, Purpose::Calls(Calls::new(session))))
    }

    /// Whether the session may have one more connection.
    fn check_open(&mut self, session: ConnectionId, timeout: Duration) -> Result<()> {
        let connection = self.connections.find(session).ok_or(Error::Closed)?;
        let (client, host) = (connection.client, connection.host);
        if !connection.client_open {
            return Err(Error::Closed);
        }
        self.try_reach(client, host, timeout)?;
        if !self.connection(session).host_open {
            return Err(Error::Closed);
        }
        if self.control(session).data.len() >= DATA_COUNT_MAX {
            return Err(Error::Bound("the host's connections"));
        }
        Ok(())
    }

    fn add_to(&mut self, session: ConnectionId, kind: Purpose) -> ConnectionId {
        let connection = self.connection(session);
        let (client, host) = (connection.client, connection.host);
        let incarnation = connection.incarnation;
        let id = self.add_connection(Connection::new(client, host, incarnation, kind));
        self.control(session).data.push(id);
        id
    }
}

fn refused(address: &Address) -> Error {
    Error::os(
        format!("connect to {address}"),
        io::ErrorKind::ConnectionRefused.into(),
    )
}

/// The control connection of one client to one host.
struct SimSession {
    net: Net,
    connection: ConnectionId,
}

impl SimSession {
    /// Sends one message, filled by `fill`.
    fn say(&self, body: Body, fill: impl FnOnce(&mut super::message::Message)) -> Result<()> {
        let state = &mut *self.net.lock();
        if !state.connection(self.connection).client_open {
            return Err(Error::Closed);
        }
        let control = state.control(self.connection);
        if control.to_host >= WAITING_COUNT_MAX || control.inbox.len() >= WAITING_COUNT_MAX {
            return Err(Error::Bound("messages to a host"));
        }
        control.to_host += 1;
        let (id, message) = state.messages.take(self.connection, body, Leg::ToHost);
        fill(message);
        state.send(id);
        Ok(())
    }
}

impl Session for SimSession {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(Error::Bound("message length"));
        }
        self.say(Body::Control, |sent| sent.fill(message))
    }

    fn attach(&mut self, window: WindowDescriptor) -> Result<()> {
        self.say(Body::Attach, |sent| {
            sent.window = window.id;
            sent.generation = window.generation;
        })
    }

    fn receive(&mut self) -> Result<Option<Incoming>> {
        let state = &mut *self.net.lock();
        let control = state.control(self.connection);
        let incoming = control.inbox.pop_front();
        if matches!(incoming, Some(Incoming::Message(_))) {
            control.to_client -= 1;
        }
        if incoming.is_none() && !state.connection(self.connection).client_open {
            return Err(Error::Closed);
        }
        Ok(incoming)
    }

    fn opener(&self) -> Opener {
        let (net, session) = (self.net.clone(), self.connection);
        Box::new(move |timeout| -> Result<Box<dyn Endpoint>> {
            let connection = net.lock().open_endpoint(session, timeout)?;
            Ok(Box::new(SimEndpoint::new(net.clone(), connection)))
        })
    }

    fn caller_opener(&self) -> CallerOpener {
        let (net, session) = (self.net.clone(), self.connection);
        Box::new(move |timeout| -> Result<Box<dyn Caller>> {
            let connection = net.lock().open_caller(session, timeout)?;
            Ok(Box::new(SimCaller::new(net.clone(), connection)))
        })
    }

    /// There is nothing to wait on: [`Net::take_ready`] says who has something to receive.
    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn wants_write(&self) -> bool {
        false
    }
}

impl Drop for SimSession {
    /// The host ends a client's data connections with its session, when it hears of it.
    fn drop(&mut self) {
        let state = &mut *self.net.lock();
        let connection = state.connection(self.connection);
        connection.is_dropped = true;
        if connection.client_open {
            connection.client_open = false;
            state.say_closed(self.connection);
        }
        state.control(self.connection).inbox.clear();
    }
}

impl State {
    /// Tells the host that the client's end is closed.
    pub(super) fn say_closed(&mut self, id: ConnectionId) {
        let (message, _) = self.messages.take(id, Body::Close, Leg::ToHost);
        self.send(message);
    }
}

/// Most messages of one direction that nobody has taken.
pub(super) const WAITING_COUNT_MAX: usize = 1024;
/// Most clients of a host, and data connections of one client: as over sockets.
const PEER_COUNT_MAX: usize = 1024;
const DATA_COUNT_MAX: usize = 256;
/// Of these for calls.
const CALLER_COUNT_MAX: usize = 64;
