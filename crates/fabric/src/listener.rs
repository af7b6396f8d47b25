//! The host's side: strangers become clients, clients attach windows and send messages.
//!
//! Driven by one thread that calls [`Listener::poll`]; verbs on `tcp` are served by the agent
//! thread beside it, on `shm` by nobody and on `rdma` by a device. Strangers get a small buffer and five
//! seconds each, and push each other out when there are too many ([`crate::strangers`]).
//!
//! A data connection belongs to the control connection (the *peer*) that its client has at that
//! moment and ends with it; without one it is turned away. So messages and immediates on data
//! connections are events of that peer.
//!
//! Invariants: a client has at most one peer, and its earlier one is ended before the next is
//! announced; every `Connected` is followed by one `Disconnected` unless the host closes the peer.

mod admission;
mod bound;
mod callers;
mod connections;
mod stranger;

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use crate::calls::{Answerer, Answerers};
use crate::channel::Channel;
use crate::frame::{Frame, Welcome};
use crate::listen::{Event, Listen, PeerId};
use crate::memory::{Region, raise_descriptor_limit};
use crate::noise::Purpose;
#[cfg(feature = "rdma")]
use crate::rdma;
use crate::record::DATA_RECORDS;
use crate::socket::{self, Epoll, Interest, Ready};
use crate::strangers::{Counts, Parting};
use crate::tcp::agent::{Agent, AgentEvent, Serving};
use crate::windows::{WindowTable, Windows};
use crate::{
    Address, ClientId, ClusterKey, Error, FAILURE_TIMEOUT, Result, Rights, Waker, WindowDescriptor,
    WindowId, WireProtection,
};
use bound::{Bound, DataPath};
use callers::CALLER_COUNT_MAX;
#[cfg(feature = "rdma")]
pub(crate) use connections::pass_on;
use connections::{Data, Peer};
use stranger::{Proven, Stranger};

/// A host's end of all its connections, over sockets.
pub struct Listener {
    // Dropped first: the agent's thread uses the table.
    agent: Option<Agent>,
    agent_events: Receiver<AgentEvent>,
    answerers: Answerers,
    table: Arc<WindowTable>,
    key: ClusterKey,
    /// The least protection of data connections over `tcp`.
    page_traffic: WireProtection,
    bound: Vec<Bound>,
    epoll: Epoll,
    waker: Waker,
    connections: HashMap<u64, Connection>,
    peers: HashMap<ClientId, PeerId>,
    next_id: u64,
    /// Most clients.
    places: usize,
    /// When it was said last that all are taken.
    full_told: Option<Instant>,
    /// Whoever goes to make place has been silent for so long.
    silence: Duration,
    /// Whether the bound sockets are watched; when not, until when.
    accepting: bool,
    paused_until: Option<Instant>,
}

enum Connection {
    Stranger(Box<Stranger>),
    Peer(Peer),
    Data(Data),
    #[cfg(feature = "rdma")]
    Paired(Box<rdma::host::Connection>),
}

impl Listener {
    /// Serves all `addresses`.
    ///
    /// # Errors
    /// `AddressInUse`: another process serves one of them; `Os`: it cannot be bound.
    pub fn bind(addresses: &[Address], key: &ClusterKey) -> Result<Self> {
        Self::bind_with(addresses, key, WireProtection::default(), Vec::new())
    }

    /// As [`Listener::bind`]; data connections over `tcp` that are protected less than
    /// `page_traffic` are turned away, and windows that an earlier process of this host had
    /// open stand before the first client is served, so that no client finds its window gone.
    ///
    /// # Errors
    /// As [`Listener::bind`], and as [`Region::inherit`] when a window cannot stand again.
    pub fn bind_with(
        addresses: &[Address],
        key: &ClusterKey,
        page_traffic: WireProtection,
        windows: Vec<(Arc<Region>, WindowDescriptor)>,
    ) -> Result<Self> {
        raise_descriptor_limit();
        let bound = addresses
            .iter()
            .map(Bound::new)
            .collect::<Result<Vec<_>>>()?;
        let waker = Waker::new()?;
        let table = Arc::new(WindowTable::new());
        let (outbox, agent_events) = sync_channel(AGENT_EVENTS_MAX);
        let has_tcp = bound.iter().any(|b| matches!(b.path(), DataPath::Tcp));
        let agent = if has_tcp {
            let (table, serving) = (Arc::clone(&table), Serving::allowed());
            Some(Agent::spawn(table, outbox, waker.clone(), serving)?)
        } else {
            None
        };
        let watch = || {
            let epoll = Epoll::new()?;
            epoll.add(waker.as_fd(), WAKER_ID, Interest::READ)?;
            Ok(epoll)
        };
        let epoll = watch().map_err(|e| Error::os("watch sockets", e))?;
        let mut listener = Self {
            agent,
            agent_events,
            answerers: Answerers::default(),
            table,
            key: key.clone(),
            page_traffic,
            bound,
            epoll,
            waker,
            connections: HashMap::new(),
            peers: HashMap::new(),
            next_id: 0,
            places: PEER_COUNT_MAX,
            silence: FAILURE_TIMEOUT,
            accepting: false,
            full_told: None,
            paused_until: None,
        };
        for (region, window) in windows {
            listener.table.restore(Arc::clone(&region), window)?;
            listener.register_with_devices(window, &region)?;
        }
        listener.accept_or_pause()?;
        Ok(listener)
    }

    /// Makes the end of one more server thread, for that thread. Connections for calls are given
    /// out among all that there are; without any they are turned away.
    ///
    /// # Errors
    /// `Os`: no descriptor is left.
    pub fn answerer(&mut self) -> Result<Answerer> {
        self.answerers.add()
    }

    /// The windows, for the host's own threads.
    #[must_use]
    pub fn windows(&self) -> Windows {
        Windows::new(Arc::clone(&self.table))
    }

    /// Readable when [`Listen::poll`] has something to take: for a thread that waits for more than its clients.
    /// Time of its own passes unseen; poll once in a second besides.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.epoll.as_fd().as_raw_fd()
    }
}

impl Listen for Listener {
    fn addresses(&self) -> Vec<Address> {
        self.bound
            .iter()
            .map(|bound| bound.address().clone())
            .collect()
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn register(&self, region: Arc<Region>, rights: Rights) -> Result<WindowDescriptor> {
        let window = self.table.register(Arc::clone(&region), rights)?;
        match self.register_with_devices(window, &region) {
            Ok(()) => Ok(window),
            Err(error) => {
                self.table.revoke(window.id)?;
                Err(error)
            }
        }
    }

    fn revoke(&self, window: WindowId) -> Result<()> {
        let taken = self.take_from_devices(window);
        // Whatever a device said: pages that it does not let go are nobody else's after this.
        self.table.revoke(window)?;
        taken
    }

    fn renew(&self, window: WindowId) -> Result<WindowDescriptor> {
        // A device stops serving the window before it has its new name.
        self.take_from_devices(window)?;
        let renewed = self.table.renew(window)?;
        let (region, _) = self.table.standing(window).ok_or(Error::StaleWindow)?;
        self.register_with_devices(renewed, &region)?;
        Ok(renewed)
    }

    fn send(&mut self, peer: PeerId, message: &[u8]) -> Result<()> {
        let Some(Connection::Peer(client)) = self.connections.get_mut(&peer.0) else {
            return Err(Error::Closed);
        };
        // A broken connection is found by the next poll, which tells of it.
        client.channel.queue(&Frame::Message(message), None)?;
        client.channel.flush()?;
        client.watch(&self.epoll, peer)
    }

    fn close(&mut self, peer: PeerId) {
        self.end_peer(peer);
    }

    fn strangers(&self) -> Counts {
        let mut all = Counts::default();
        for bound in &self.bound {
            all += bound.strangers.counts();
        }
        all
    }

    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> Result<()> {
        self.table.note_serving();
        let ready = self
            .epoll
            .wait(self.time_to_deadline(timeout))
            .map_err(|e| Error::os("wait for clients", e))?;
        for ready in ready {
            match ready.id {
                WAKER_ID => self.waker.clear(),
                id if id >= BOUND_ID_FIRST => {
                    self.accept((id - BOUND_ID_FIRST) as usize, events);
                }
                id => self.serve(id, &ready, events),
            }
        }
        self.take_agent_events(events);
        self.drop_late_strangers();
        self.tell_of_strangers();
        self.accept_or_pause()
    }
}

impl Listener {
    #[cfg(feature = "rdma")]
    fn devices(&self) -> impl Iterator<Item = &Arc<rdma::host::HostDevice>> {
        self.bound.iter().filter_map(|bound| match bound.path() {
            DataPath::Rdma(device) => Some(device),
            _ => None,
        })
    }

    /// Has all devices serve a window, or none of them. Its memory stays as it is: it may be
    /// another process's, too.
    fn register_with_devices(&self, window: WindowDescriptor, region: &Arc<Region>) -> Result<()> {
        #[cfg(feature = "rdma")]
        for device in self.devices() {
            if let Err(error) = device.register(window.id, region, window.rights) {
                self.take_from_devices(window.id)?;
                return Err(error);
            }
        }
        let _ = (window, region);
        Ok(())
    }

    /// Has no device serve a window any more.
    ///
    /// # Errors
    /// `Os`: the first of those that did not let go of it.
    fn take_from_devices(&self, window: WindowId) -> Result<()> {
        #[cfg_attr(not(feature = "rdma"), expect(unused_mut, reason = "no devices"))]
        let mut taken = Ok(());
        #[cfg(feature = "rdma")]
        for device in self.devices() {
            taken = taken.and(device.revoke(window));
        }
        let _ = window;
        taken
    }

    /// Tells the devices which clients are left, since those may hold keys of old windows.
    fn note_peers(&self) {
        #[cfg(feature = "rdma")]
        for device in self.devices() {
            let oldest = self.peers.values().map(|peer| peer.0).min();
            device.note_peers(oldest.unwrap_or(self.next_id), self.next_id);
        }
    }

    fn time_to_deadline(&self, timeout: Option<Duration>) -> Option<Duration> {
        let strangers = self
            .bound
            .iter()
            .filter_map(|b| b.strangers.next_deadline());
        let next = strangers.chain(self.paused_until).min();
        let left = next.map(|next| next.saturating_duration_since(Instant::now()));
        left.into_iter().chain(timeout).min()
    }

    /// Watches the bound sockets but for a while after the system refused a connection.
    fn accept_or_pause(&mut self) -> Result<()> {
        if self
            .paused_until
            .is_some_and(|until| until <= Instant::now())
        {
            self.paused_until = None;
        }
        let accepting = self.paused_until.is_none();
        if accepting == self.accepting {
            return Ok(());
        }
        self.accepting = accepting;
        for (bound, id) in self.bound.iter().zip(BOUND_ID_FIRST..) {
            let changed = if accepting {
                self.epoll.add(bound.as_fd(), id, Interest::READ)
            } else {
                self.epoll.remove(bound.as_fd())
            };
            changed.map_err(|e| Error::os("watch sockets", e))?;
        }
        Ok(())
    }

    fn serve(&mut self, id: u64, ready: &Ready, events: &mut Vec<Event>) {
        let served = match self.connections.get_mut(&id) {
            Some(Connection::Stranger(_)) => return self.advance(id, events),
            Some(Connection::Peer(peer)) => {
                peer.serve(PeerId(id), ready, &self.epoll, &self.table, events)
            }
            Some(Connection::Data(data)) => data.serve(&self.table, events),
            #[cfg(feature = "rdma")]
            Some(Connection::Paired(paired)) => paired.serve(id, &self.epoll, &self.table, events),
            // Ended earlier in this round.
            None => return,
        };
        let Err(error) = served else { return };
        tracing::debug!(%error, connection = id, "a connection ended");
        if let Some(Connection::Peer(_)) = self.connections.get(&id) {
            self.end_peer(PeerId(id));
            events.push(Event::Disconnected { peer: PeerId(id) });
        } else {
            self.end_data(id);
        }
    }

    /// Has as many clients at a time as this, in place of 1024.
    pub fn set_places(&mut self, places: usize) {
        self.places = places;
    }

    /// Turns a stranger that proved the key into a peer, or a data connection of one.
    fn welcome(&mut self, id: u64, proven: Proven, events: &mut Vec<Event>) {
        let Some(stranger) = self.end_stranger(id, Parting::Proven) else {
            return;
        };
        let path = stranger.path.clone();
        let mut channel = Channel::new(stranger.into_socket(), proven.transport, false);
        let earlier = self.peers.get(&proven.hello.client).copied();
        let is_control = matches!(proven.purpose, Purpose::Control);
        if is_control && earlier.is_some_and(|earlier| id < earlier.0) {
            // The client gave this connection up, and what it had said arrives late.
            return;
        }
        if is_control && earlier.is_none() {
            self.make_place(events);
        }
        let welcome = match proven.purpose {
            Purpose::Control if earlier.is_none() && self.peers.len() >= self.places => {
                Welcome::Full
            }
            Purpose::Data(_) | Purpose::Calls(_) if earlier.is_none() => Welcome::NoSession,
            Purpose::Calls(_) if !self.answers_calls() => Welcome::Unanswered,
            Purpose::Data(wanted) | Purpose::Calls(wanted)
                if matches!(path, DataPath::Tcp) && wanted < self.page_traffic =>
            {
                Welcome::Unprotected
            }
            Purpose::Data(_) | Purpose::Calls(_) if self.data_count(earlier) >= DATA_COUNT_MAX => {
                Welcome::Full
            }
            Purpose::Calls(_) if self.caller_count(earlier) >= CALLER_COUNT_MAX => Welcome::Full,
            _ => Welcome::Served,
        };
        // It fits into the empty socket buffer whole, or the connection is useless.
        let said = channel
            .queue(&Frame::Welcome(welcome), None)
            .and_then(|()| channel.flush());
        if welcome != Welcome::Served || said.is_err() || channel.wants_write() {
            return;
        }
        match (proven.purpose, earlier) {
            (Purpose::Control, _) => {
                if !matches!(path, DataPath::Shm)
                    && socket::end_when_unreachable(channel.as_fd(), CLIENT_SILENCE).is_err()
                {
                    return;
                }
                if let Some(earlier) = earlier {
                    self.end_peer(earlier);
                    events.push(Event::Disconnected { peer: earlier });
                }
                let hello = proven.hello;
                self.peers.insert(hello.client, PeerId(id));
                self.connections
                    .insert(id, Connection::Peer(Peer::new(channel, hello.client, path)));
                self.note_peers();
                events.push(Event::Connected {
                    peer: PeerId(id),
                    hello,
                });
            }
            (Purpose::Data(protection), Some(peer)) => {
                self.adopt(id, channel, peer, path, protection);
            }
            (Purpose::Calls(protection), Some(peer)) => {
                self.adopt_caller(id, channel, peer, &path, protection);
            }
            (Purpose::Data(_) | Purpose::Calls(_), None) => {}
        }
    }

    fn adopt(
        &mut self,
        id: u64,
        channel: Channel,
        peer: PeerId,
        path: DataPath,
        protection: WireProtection,
    ) {
        let Some(Connection::Peer(owner)) = self.connections.get_mut(&peer.0) else {
            return;
        };
        match path {
            DataPath::Shm => {
                owner.data.push(id);
                self.connections
                    .insert(id, Connection::Data(Data { channel, peer }));
            }
            DataPath::Tcp => {
                if let Some(agent) = &self.agent
                    && self.epoll.remove(channel.as_fd()).is_ok()
                {
                    owner.adopted += 1;
                    let (socket, transport) = channel.into_parts();
                    let records = transport.records(DATA_RECORDS, protection);
                    agent.adopt(TcpStream::from(socket), agents_name(peer), records);
                }
            }
            #[cfg(feature = "rdma")]
            DataPath::Rdma(device) => {
                owner.data.push(id);
                let paired = rdma::host::Connection::new(device, channel, peer);
                self.connections
                    .insert(id, Connection::Paired(Box::new(paired)));
            }
        }
    }

    fn data_count(&self, peer: Option<PeerId>) -> usize {
        match peer.and_then(|peer| self.connections.get(&peer.0)) {
            Some(Connection::Peer(peer)) => {
                peer.data.len() + peer.adopted + peer.calls.connections()
            }
            _ => 0,
        }
    }

    fn end_data(&mut self, id: u64) {
        let owner = match self.connections.remove(&id) {
            Some(Connection::Data(data)) => data.peer,
            #[cfg(feature = "rdma")]
            Some(Connection::Paired(paired)) => paired.peer,
            _ => return,
        };
        if let Some(Connection::Peer(peer)) = self.connections.get_mut(&owner.0) {
            peer.data.retain(|&other| other != id);
        }
    }

    fn end_peer(&mut self, id: PeerId) {
        if !matches!(self.connections.get(&id.0), Some(Connection::Peer(_))) {
            return;
        }
        if let Some(Connection::Peer(peer)) = self.connections.remove(&id.0) {
            self.peers.remove(&peer.client);
            for data in &peer.data {
                self.connections.remove(data);
            }
            self.note_peers();
            self.answerers.end(&peer.calls);
            if let Some(agent) = &self.agent {
                agent.disconnect(agents_name(id));
            }
        }
    }

    fn take_agent_events(&mut self, events: &mut Vec<Event>) {
        for event in self.agent_events.try_iter().take(AGENT_EVENTS_MAX) {
            let (AgentEvent::Message { client, .. }
            | AgentEvent::Immediate { client, .. }
            | AgentEvent::Closed { client }) = event;
            let peer = PeerId((client.0 & u128::from(u64::MAX)) as u64);
            // What an ended peer still said is not heard.
            let Some(Connection::Peer(owner)) = self.connections.get_mut(&peer.0) else {
                continue;
            };
            match event {
                AgentEvent::Message { bytes, .. } => events.push(Event::Message { peer, bytes }),
                AgentEvent::Immediate {
                    window,
                    offset,
                    len_bytes,
                    value,
                    ..
                } => {
                    events.push(Event::Immediate {
                        peer,
                        window,
                        offset,
                        len_bytes,
                        value,
                    });
                }
                AgentEvent::Closed { .. } => owner.adopted -= 1,
            }
        }
    }
}

impl Drop for Listener {
    /// Server threads close the connections that they have.
    fn drop(&mut self) {
        for connection in self.connections.values() {
            if let Connection::Peer(peer) = connection {
                self.answerers.end(&peer.calls);
            }
        }
    }
}

impl AsFd for Listener {
    /// Readable when `poll` has something to do, for hosts that wait for other things as well.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The agent knows connections by the peer that they belong to, so that an ended peer's late
/// messages are never taken for its client's next one's.
fn agents_name(peer: PeerId) -> ClientId {
    ClientId(u128::from(peer.0))
}

/// Most clients; arbitrary.
const PEER_COUNT_MAX: usize = 1024;
/// Most data connections of one client; arbitrary, one per worker thread is usual.
const DATA_COUNT_MAX: usize = 256;
/// Most messages and immediates between the agent and the control thread.
const AGENT_EVENTS_MAX: usize = 1024;
/// How long nobody is accepted when the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client's machine may be unreachable until its connection ends. Far longer than the
/// failure timeout: a lease frees nothing by itself, so nothing is gained by haste.
const CLIENT_SILENCE: Duration = Duration::from_secs(60);
const WAKER_ID: u64 = u64::MAX;
const BOUND_ID_FIRST: u64 = 1 << 63;

#[cfg(test)]
mod tests;
