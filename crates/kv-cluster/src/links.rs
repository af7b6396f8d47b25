//! All links of one lane of a node: who connects to whom, again when a link broke, and what came.
//!
//! Between two nodes there is one connection per lane, and the node with the lesser number makes
//! it. A lane belongs to one thread, whose loop hands us the events of its sockets and the time;
//! [`Links::flush`] at the end of a turn writes all that was sent in it. A broken link is told as
//! [`LinkEvent::Down`]; what was on its way then is the caller's to send again.
//! Observers connect as nodes do and may only ask.
//!
//! Bounds: [`STRANGERS`] are the connections that have not proven the key, which push each other out;
//! [`OBSERVERS_MAX`] observers.

mod peer;
mod sender;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cenote_fabric::ClusterKey;
use cenote_fabric::strangers::{Counts, Limits, Parting, Source, Strangers};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use super::NodeId;
use super::frame::Frame;
use super::handshake::{Finished, Handshake, HandshakeError, Hello, OBSERVER};
use super::link::{Link, LinkError, Misplaced, OUT_BYTES_MAX, READ_BYTES, Received};
use peer::Peer;

pub use sender::SendError;

/// Connections of whom nothing is known yet. A quarter for one source: more than the nodes that one
/// machine has.
pub const STRANGERS: Limits = Limits {
    places: 128,
    places_of_source: 32,
    patience: OPEN_LIMIT,
};
/// Connections taken in at a time, so that peers are heard in between.
const ACCEPTS_PER_TURN: usize = 64;
/// Observers at one time.
pub const OBSERVERS_MAX: usize = 16;
/// Tokens that a lane may use, from the one that it is given.
pub const TOKENS: usize = 1 << 16;
/// How long a connection has to be open, and an observer to be done.
const OPEN_LIMIT: Duration = Duration::from_secs(2);
const OBSERVER_LIMIT: Duration = Duration::from_secs(10);

/// What has happened.
#[derive(Debug)]
pub enum LinkEvent {
    /// The link to a peer is open.
    Up {
        /// Whose.
        peer: NodeId,
        /// Of the process that has it now.
        incarnation: u64,
    },
    /// It is no more. Frames that were sent on it may have arrived or not.
    Down {
        /// Whose.
        peer: NodeId,
        /// Why.
        error: LinkError,
    },
    /// A frame of a peer, in the order of its sending.
    Frame {
        /// Whose.
        peer: NodeId,
        /// What it says.
        frame: Frame,
    },
    /// A frame of an observer.
    Asked {
        /// To answer it.
        observer: Observer,
        /// What it says.
        frame: Frame,
    },
}

/// An observer's connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Observer(usize);

/// The links.
pub struct Links {
    hello: Hello,
    key: ClusterKey,
    listener: TcpListener,
    registry: Registry,
    first_token: usize,
    next_token: usize,
    connections: BTreeMap<usize, Connection>,
    peers: BTreeMap<NodeId, Peer>,
    /// Those with [`Role::Stranger`].
    strangers: Strangers,
    /// Connections that have something to read which the socket will not say again; [`LISTENER`]:
    /// somebody waits to be accepted.
    unread: VecDeque<usize>,
    /// What may wait to be written on each.
    out_bytes_max: usize,
    scratch: Vec<u8>,
}

struct Connection {
    link: Link,
    role: Role,
    /// When it is closed unless it is a peer's by then.
    deadline: Instant,
    /// Frames for an observer that its link has not taken.
    answers: VecDeque<(u8, Bytes)>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    /// We made it to this node; it is not open yet.
    Calling(NodeId),
    /// Somebody made it to us.
    Stranger,
    Peer(NodeId),
    Observer,
}

impl Links {
    /// Links of the node that `hello` says, which accepts connections at `listener`; sockets are
    /// registered under [`TOKENS`] tokens from `first_token` on.
    ///
    /// # Errors
    /// The listener cannot be registered.
    pub fn new(
        hello: Hello,
        key: ClusterKey,
        mut listener: TcpListener,
        registry: &Registry,
        first_token: usize,
    ) -> io::Result<Self> {
        let registry = registry.try_clone()?;
        registry.register(&mut listener, Token(first_token), Interest::READABLE)?;
        Ok(Self {
            hello,
            key,
            listener,
            registry,
            first_token,
            next_token: 1,
            connections: BTreeMap::new(),
            peers: BTreeMap::new(),
            strangers: Strangers::new(STRANGERS),
            unread: VecDeque::new(),
            out_bytes_max: OUT_BYTES_MAX,
            scratch: vec![0; READ_BYTES],
        })
    }

    /// What may wait to be written on each link that is made from now on; at least a frame.
    pub fn bound(&mut self, out_bytes_max: usize) {
        self.out_bytes_max = out_bytes_max;
    }

    /// Where peers connect.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// A peer and where it is now (`None`: not known). A link to another address is given up.
    pub fn set_peer(
        &mut self,
        node: NodeId,
        address: Option<SocketAddr>,
        now: Instant,
        events: &mut Vec<LinkEvent>,
    ) {
        let peer = self.peers.entry(node).or_default();
        if !peer.move_to(address, now) {
            return;
        }
        // The one that calls knows better where from: only links that we make depend on this.
        if self.hello.node < node
            && let Some(connection) = peer.connection()
        {
            self.close(connection, LinkError::Replaced, now, events);
        }
        self.connect_due(now);
    }

    /// Breaks the link to a peer; it is made again.
    pub fn reset(&mut self, node: NodeId, now: Instant, events: &mut Vec<LinkEvent>) {
        if let Some(connection) = self.peers.get(&node).and_then(Peer::connection) {
            self.close(connection, LinkError::Late, now, events);
        }
    }

    /// Whether the link to a peer is open.
    #[must_use]
    pub fn is_open(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(Peer::is_open)
    }

    /// What the last try to reach a peer that is not linked came to.
    #[must_use]
    pub fn trouble(&self, node: NodeId) -> Option<&str> {
        self.peers.get(&node)?.trouble()
    }

    /// Whether the event is of one of our sockets.
    #[must_use]
    pub fn owns(&self, token: Token) -> bool {
        (self.first_token..self.first_token + TOKENS).contains(&token.0)
    }

    /// Takes an event of one of our sockets.
    pub fn handle(&mut self, event: &Event, now: Instant, events: &mut Vec<LinkEvent>) {
        let token = event.token().0 - self.first_token;
        if token == LISTENER {
            self.accept(now, events);
            return;
        }
        let Some(connection) = self.connections.get(&token) else {
            // Closed earlier in this turn.
            return;
        };
        if let Role::Calling(_) = connection.role {
            match connection.link.check_connected() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.close(token, error.into(), now, events),
            }
        }
        if event.is_readable() {
            // An end that was told with these bytes is not told again.
            let has_ended = event.is_read_closed() || event.is_error();
            self.receive(token, has_ended, now, events);
        }
        if event.is_writable() {
            self.flush_one(token, now, events);
        }
    }

    /// Goes on with what was left unread, connects where it is time, and closes what is late.
    pub fn tick(&mut self, now: Instant, events: &mut Vec<LinkEvent>) {
        for _ in 0..self.unread.len() {
            match self.unread.pop_front() {
                Some(LISTENER) => self.accept(now, events),
                Some(token) => self.receive(token, true, now, events),
                None => break,
            }
        }
        let late: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                !matches!(connection.role, Role::Peer(_)) && now >= connection.deadline
            })
            .map(|(&token, _)| token)
            .collect();
        for token in late {
            self.close(token, LinkError::Late, now, events);
        }
        self.connect_due(now);
        if let Some(report) = self.strangers.report(now) {
            tracing::warn!(
                wrong_key = report.wrong_key, late = report.late, displaced = report.displaced,
                last_from = %report.last, "connections that did not prove the cluster's key"
            );
        }
    }

    /// What has become of connections that had not proven the key.
    #[must_use]
    pub fn strangers(&self) -> Counts {
        self.strangers.counts()
    }

    /// Writes what was sent in this turn.
    pub fn flush(&mut self, now: Instant, events: &mut Vec<LinkEvent>) {
        let mut broken = Vec::new();
        for (&token, connection) in &mut self.connections {
            if let Err(error) = connection.flush() {
                broken.push((token, error));
            }
        }
        for (token, error) in broken {
            self.close(token, error, now, events);
        }
    }

    /// When [`Links::tick`] has something to do next; a time that is over means at once.
    #[must_use]
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        if !self.unread.is_empty() {
            return Some(now);
        }
        let retries = self.peers.values().filter_map(Peer::retry_at);
        let connections = self.connections.values();
        let late = connections.filter(|connection| !matches!(connection.role, Role::Peer(_)));
        retries
            .chain(late.map(|connection| connection.deadline))
            .min()
    }

    fn accept(&mut self, now: Instant, events: &mut Vec<LinkEvent>) {
        for _ in 0..ACCEPTS_PER_TURN {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Of one connection, or no descriptors left: the next one says so again.
                Err(error) => return tracing::warn!(%error, "accept a peer"),
            };
            let source = from.ip().into();
            self.make_room(source, now, events);
            let handshake = Handshake::wait(&self.key, self.hello.clone());
            match self.add(stream, handshake, &[], Role::Stranger, now) {
                Ok(token) => {
                    self.strangers.admit(token as u64, source, now);
                    // Who calls speaks at once: what it said is often here.
                    self.receive(token, false, now, events);
                }
                Err(error) => tracing::warn!(%error, "take a peer's connection"),
            }
        }
        // The socket does not say again that there are more.
        self.unread.push_back(LISTENER);
    }

    /// Has strangers go until there is a place for one from `source`.
    fn make_room(&mut self, source: Source, now: Instant, events: &mut Vec<LinkEvent>) {
        while let Some(id) = self.strangers.displaced_by(source) {
            let token = usize::try_from(id).expect("a token of ours");
            let stage = |links: &Self| {
                let connection = links.connections.get(&token);
                connection.map(|connection| connection.link.stage())
            };
            let before = stage(self);
            // It may have spoken since we looked.
            self.receive(token, false, now, events);
            if self.strangers.contains(id) && stage(self) == before {
                self.close(token, LinkError::Displaced, now, events);
            }
        }
    }

    fn add(
        &mut self,
        mut stream: TcpStream,
        handshake: Handshake,
        first: &[u8],
        role: Role,
        now: Instant,
    ) -> io::Result<usize> {
        stream.set_nodelay(true)?;
        let token = self.free_token();
        let id = Token(self.first_token + token);
        let both = Interest::READABLE | Interest::WRITABLE;
        self.registry.register(&mut stream, id, both)?;
        let connection = Connection {
            link: Link::new(stream, handshake, first, self.out_bytes_max),
            role,
            deadline: now + OPEN_LIMIT,
            answers: VecDeque::new(),
        };
        self.connections.insert(token, connection);
        Ok(token)
    }

    /// A token that is not in use, and was not until lately: events of this turn may still name it.
    fn free_token(&mut self) -> usize {
        loop {
            let token = self.next_token;
            self.next_token = if token + 1 == TOKENS { 1 } else { token + 1 };
            if !self.connections.contains_key(&token) {
                return token;
            }
        }
    }

    fn connect_due(&mut self, now: Instant) {
        let due: Vec<(NodeId, SocketAddr)> = self
            .peers
            .iter()
            // The lesser number calls.
            .filter(|(node, _)| self.hello.node < **node)
            .filter_map(|(&node, peer)| Some((node, peer.due(now)?)))
            .collect();
        for (node, address) in due {
            let (handshake, first) = Handshake::call(&self.key, self.hello.clone());
            let made = TcpStream::connect(address)
                .and_then(|stream| self.add(stream, handshake, &first, Role::Calling(node), now));
            let peer = self.peers.get_mut(&node).expect("it was listed");
            peer.stop_retrying();
            match made {
                Ok(token) => peer.note_call(token),
                Err(error) => self.failed(node, &error.into(), now),
            }
        }
        let due = self.peers.iter_mut();
        // Those that call us are not called.
        for (_, peer) in due.filter(|(node, _)| self.hello.node >= **node) {
            peer.stop_retrying();
        }
    }

    /// Notes that a peer cannot be reached, and when to try again.
    fn failed(&mut self, node: NodeId, error: &LinkError, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.note_failure(error.to_string(), self.hello.node < node, now);
        }
    }

    fn close(&mut self, token: usize, error: LinkError, now: Instant, events: &mut Vec<LinkEvent>) {
        let Some(mut connection) = self.connections.remove(&token) else {
            return;
        };
        self.unread.retain(|&unread| unread != token);
        if let Err(error) = self.registry.deregister(connection.link.stream_mut()) {
            tracing::debug!(%error, "deregister a link");
        }
        match connection.role {
            Role::Peer(node) => {
                self.failed(node, &error, now);
                events.push(LinkEvent::Down { peer: node, error });
            }
            Role::Calling(node) => self.failed(node, &error, now),
            Role::Stranger => {
                tracing::debug!(%error, "refuse a connection");
                self.strangers.part(token as u64, parting(&error));
            }
            Role::Observer => {}
        }
    }

    fn flush_one(&mut self, token: usize, now: Instant, events: &mut Vec<LinkEvent>) {
        if let Some(connection) = self.connections.get_mut(&token)
            && let Err(error) = connection.flush()
        {
            self.close(token, error, now, events);
        }
    }

    fn receive(
        &mut self,
        token: usize,
        has_ended: bool,
        now: Instant,
        events: &mut Vec<LinkEvent>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let mut received = Vec::new();
        let more = connection
            .link
            .receive(&mut self.scratch, has_ended, |what| received.push(what));
        for what in received {
            let connection = self.connections.get(&token);
            let role = connection.map(|connection| connection.role);
            match (what, role) {
                (Received::Open(finished), Some(_)) => {
                    if let Err(error) = self.opened(token, &finished, now, events) {
                        // Our hello may tell the peer what is wrong.
                        self.flush_one(token, now, events);
                        return self.close(token, error, now, events);
                    }
                }
                (Received::Frame(frame), Some(Role::Peer(peer))) => {
                    events.push(LinkEvent::Frame { peer, frame });
                }
                (Received::Frame(frame), Some(Role::Observer)) => {
                    let observer = Observer(token);
                    events.push(LinkEvent::Asked { observer, frame });
                }
                _ => return,
            }
        }
        match more {
            Ok(true) => self.unread.push_back(token),
            Ok(false) => {}
            Err(error) => return self.close(token, error, now, events),
        }
        if let Some(connection) = self.connections.get(&token)
            && connection.role == Role::Stranger
        {
            let stage = connection.link.stage();
            self.strangers.advance(token as u64, stage);
        }
        // A handshake has something to say without anybody sending.
        if self
            .connections
            .get(&token)
            .is_some_and(|connection| !matches!(connection.role, Role::Peer(_)))
        {
            self.flush_one(token, now, events);
        }
    }

    /// The peer of a connection is known: whether it may be what it says.
    fn opened(
        &mut self,
        token: usize,
        finished: &Finished,
        now: Instant,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), LinkError> {
        let said = &finished.peer;
        self.strangers.part(token as u64, Parting::Proven);
        let role = self.connections.get(&token).map(|c| c.role);
        if said.node == OBSERVER && role == Some(Role::Stranger) {
            let observers = self.connections.values();
            let observers = observers.filter(|connection| connection.role == Role::Observer);
            if observers.count() >= OBSERVERS_MAX {
                return Err(Misplaced::Observers.into());
            }
            return self.become_role(token, Role::Observer, now + OBSERVER_LIMIT);
        }
        if said.lane != self.hello.lane {
            let (theirs, ours) = (said.lane, self.hello.lane);
            return Err(Misplaced::Lane { theirs, ours }.into());
        }
        match role {
            Some(Role::Calling(node)) if node != said.node => {
                let found = said.node;
                return Err(Misplaced::Node {
                    found,
                    called: node,
                }
                .into());
            }
            Some(Role::Stranger) if said.node >= self.hello.node => {
                return Err(Misplaced::Caller(said.node).into());
            }
            _ => {}
        }
        let peer = self.peers.entry(said.node).or_default();
        if said.incarnation < peer.incarnation() {
            return Err(Misplaced::Earlier(said.node).into());
        }
        if let Some(older) = peer.connection().filter(|&older| older != token) {
            self.close(older, LinkError::Replaced, now, events);
        }
        let peer = self.peers.entry(said.node).or_default();
        peer.note_open(token, said.incarnation, now);
        events.push(LinkEvent::Up {
            peer: said.node,
            incarnation: said.incarnation,
        });
        let role = Role::Peer(said.node);
        self.become_role(token, role, now)?;
        // Our hello must leave, and frames of this turn go behind it.
        let connection = self.connections.get_mut(&token).expect("it is open");
        connection.link.flush()
    }

    fn become_role(
        &mut self,
        token: usize,
        role: Role,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let connection = self.connections.get_mut(&token);
        let connection = connection.ok_or(LinkError::Closed)?;
        connection.role = role;
        connection.deadline = deadline;
        Ok(())
    }
}

/// What a stranger's end says of it.
fn parting(error: &LinkError) -> Parting {
    match error {
        LinkError::Handshake(HandshakeError::Version(_)) => Parting::WrongVersion,
        LinkError::Handshake(HandshakeError::Stranger) => Parting::WrongKey,
        LinkError::Late => Parting::Late,
        LinkError::Displaced => Parting::Displaced,
        _ => Parting::HungUp,
    }
}

/// The listener's place among the tokens.
const LISTENER: usize = 0;

#[cfg(test)]
mod tests;
