//! What can go wrong, at any time and by name of the node: the methods that tests inject it with.

use std::sync::Arc;
use std::time::Duration;

use super::CLIENT_SILENCE;
use super::clock::Event;
use super::connection::ConnectionId;
use super::listener::SimListener;
use super::model::{LinkModel, Nic};
use super::net::{Net, NodeId, Serving};
use super::state::State;
use super::trace::Kind;
use crate::{
    Error, FAILURE_TIMEOUT, Generation, Region, Result, Status, WindowDescriptor, WindowId,
};

/// What becomes of a host's memory when its process crashes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Memory {
    /// Its regions are dead.
    Lost,
    /// Whoever holds a region keeps its bytes; no window stands on it.
    Kept,
}

/// Whether peers are told of a crash.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Notice {
    /// The process ended: its machine closes its connections.
    AtOnce,
    /// The machine went with it: peers find out by silence.
    BySilence,
}

/// Writes and atomics whose connection breaks while they are under way.
///
/// Those of one connection land in their order, up to one that does not, or lands torn.
/// None lands in a window that was revoked meanwhile.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Late {
    /// Those that land after all, of a million.
    pub chance_ppm: u32,
    /// Of these, WRITEs of which only a part does.
    pub torn_ppm: u32,
    /// Longest time from one to the next, the first counted from the break.
    pub delay_ns_max: u64,
}

impl Net {
    /// Replaces the model of one direction.
    pub fn set_link(&self, from: NodeId, to: NodeId, model: LinkModel) {
        let state = &mut *self.lock();
        let index = state.models.iter().position(|known| *known == model);
        let index = index.unwrap_or_else(|| {
            state.models.push(model);
            state.models.len() - 1
        });
        state.link(from, to).model = index;
        state.trace(Kind::Fault, from, 1, u64::from(to.0));
    }

    /// Delays every message of one direction by this much more; 0 ends it.
    pub fn set_extra_delay(&self, from: NodeId, to: NodeId, delay: Duration) {
        let mut state = self.lock();
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        state.link(from, to).extra_delay_ns = nanos;
        state.trace(Kind::Fault, from, 2, nanos);
    }

    /// Replaces a node's network card.
    pub fn set_nic(&self, node: NodeId, nic: Nic) {
        let mut state = self.lock();
        state.node(node).card.nic = nic;
        state.trace(Kind::Fault, node, 3, nic.per_message_ns);
    }

    /// Says who serves verbs on a host's memory.
    pub fn set_serving(&self, host: NodeId, serving: Serving) {
        let mut state = self.lock();
        state.node(host).serving = serving;
        state.trace(Kind::Fault, host, 4, serving as u64);
    }

    /// Cuts one direction: what enters from here on is held until the link is healed, as senders
    /// repeat what nobody acknowledges. What is under way arrives.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        let state = &mut *self.lock();
        state.trace(Kind::Fault, from, 5, u64::from(to.0));
        let now = state.now;
        state.link(from, to).cut_at.get_or_insert(now);
        for id in state.between(from, to) {
            state.give_up_later(id);
        }
    }

    /// Heals one direction. Held messages go out now; those of connections that broke are lost.
    pub fn heal(&self, from: NodeId, to: NodeId) {
        let state = &mut *self.lock();
        state.trace(Kind::Fault, from, 6, u64::from(to.0));
        let link = state.link(from, to);
        link.cut_at = None;
        for id in std::mem::take(&mut link.held) {
            state.send(id);
        }
    }

    /// Open connections between two nodes, oldest first: sessions before their endpoints.
    #[must_use]
    pub fn connections(&self, one: NodeId, other: NodeId) -> Vec<ConnectionId> {
        self.lock().between(one, other)
    }

    /// Breaks one connection; both ends notice at once. A session takes its endpoints along.
    pub fn lose_connection(&self, id: ConnectionId) {
        let state = &mut *self.lock();
        let host = state.connection(id).host;
        state.trace(Kind::Fault, host, 7, id.0);
        state.break_both(id, Status::Disconnected);
    }

    /// Breaks all connections between two nodes.
    pub fn lose_connections(&self, one: NodeId, other: NodeId) {
        for id in self.connections(one, other) {
            self.lose_connection(id);
        }
    }

    /// The next WRITE of `client` that succeeds at `host` is not acknowledged: its connection
    /// breaks instead.
    pub fn lose_next_acknowledgement(&self, client: NodeId, host: NodeId) {
        let mut state = self.lock();
        state.link(host, client).loses_acknowledgement = true;
        state.trace(Kind::Fault, host, 8, u64::from(client.0));
    }

    /// Says what becomes of writes whose connection breaks; `None`, as at first: they are lost.
    pub fn set_late(&self, late: Option<Late>) {
        self.lock().late = late;
    }

    /// Says how long it takes at most until a client hears that its host has closed a connection;
    /// zero, as at first: it hears at once. Until then its verbs are neither answered nor refused.
    pub fn set_notice_delay(&self, delay_max: Duration) {
        self.lock().notice_ns_max = u64::try_from(delay_max.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Ends the process on a node, a host's or a client's.
    pub fn crash(&self, node: NodeId, memory: Memory, notice: Notice) {
        self.lock().end_process(node, memory, notice);
    }

    /// Starts a host's process again, on a machine that is on again. Windows, clients and
    /// generations are new.
    ///
    /// # Panics
    /// If the node is no host, or its process runs.
    #[must_use]
    pub fn restart(&self, host: NodeId) -> SimListener {
        let inherited = self.restart_with(host, Vec::new());
        inherited.expect("no window is passed on")
    }

    /// As [`Net::restart`], with windows that an earlier process of the host had open.
    ///
    /// # Errors
    /// `StaleWindow`, `Bound`: a window cannot stand again.
    ///
    /// # Panics
    /// As [`Net::restart`].
    pub fn restart_with(
        &self,
        host: NodeId,
        windows: Vec<(Arc<Region>, WindowDescriptor)>,
    ) -> Result<SimListener> {
        {
            let state = &mut *self.lock();
            let node = state.node(host);
            assert!(node.address.is_some() && !node.is_up, "a host that is down");
            state.start_process(host);
            state.trace(Kind::Fault, host, 9, 0);
            for (region, window) in windows {
                let process = state.nodes[host.0 as usize].process.as_ref();
                let table = &process.expect("just started").table;
                table.restore(region, window)?;
                table.note_serving();
                state.witness.register(host, window);
            }
        }
        Ok(SimListener::new(self, host))
    }

    /// Starts a client's process again: its connector works from here on.
    ///
    /// # Panics
    /// If the node is a host.
    pub fn restart_client(&self, client: NodeId) {
        let mut state = self.lock();
        let node = state.node(client);
        assert!(node.address.is_none(), "a client");
        node.is_on = true;
        node.is_up = true;
        state.trace(Kind::Fault, client, 10, 0);
    }

    /// Stops a node's process where it is: it is not polled, and proves no key. Its machine goes on.
    pub fn pause(&self, node: NodeId) {
        let mut state = self.lock();
        state.node(node).is_paused = true;
        state.trace(Kind::Fault, node, 11, 0);
    }

    /// Lets a paused process go on.
    pub fn resume(&self, node: NodeId) {
        let state = &mut *self.lock();
        state.trace(Kind::Fault, node, 12, 0);
        let paused = state.node(node);
        paused.is_paused = false;
        for event in std::mem::take(&mut paused.held) {
            match event {
                Event::Stray(id) => state.on_stray(id),
                Event::Served(id) => state.deliver(id),
                _ => {}
            }
        }
    }

    /// Changes every byte of a range of a window, unnoticed.
    ///
    /// # Errors
    /// `StaleWindow`: there is no such window in that generation.
    ///
    /// # Panics
    /// If the range passes the window's end.
    pub fn corrupt(
        &self,
        host: NodeId,
        window: WindowId,
        generation: Generation,
        offset: u64,
        len_bytes: usize,
    ) -> Result<()> {
        let state = &mut *self.lock();
        state.trace(Kind::Fault, host, u64::from(window.0), offset);
        let node = &state.nodes[host.0 as usize];
        let process = node.process.as_ref().ok_or(Error::StaleWindow)?;
        let standing = process.table.standing(window);
        let (region, _) = standing
            .filter(|(_, known)| known.generation == generation)
            .ok_or(Error::StaleWindow)?;
        let mut bytes = vec![0; len_bytes];
        region
            .read(offset, &mut bytes)
            .map_err(|_| Error::StaleWindow)?;
        for byte in &mut bytes {
            *byte ^= (1 + state.random.below(255)) as u8;
        }
        region.write(offset, &bytes).map_err(|_| Error::StaleWindow)
    }
}

impl State {
    /// Connections between two nodes that are open at either end.
    fn between(&self, one: NodeId, other: NodeId) -> Vec<ConnectionId> {
        let mut open = self.connections.open();
        open.retain(|&id| {
            let connection = self.connections.at(id);
            let ends = (connection.client, connection.host);
            ends == (one, other) || ends == (other, one)
        });
        open
    }

    /// Has each end look, once its patience is over, whether the other is still out of reach.
    fn give_up_later(&mut self, id: ConnectionId) {
        let now = self.now;
        self.events
            .push(now.after(FAILURE_TIMEOUT), Event::ClientReach(id));
        self.events
            .push(now.after(CLIENT_SILENCE), Event::HostReach(id));
    }

    /// Ends whatever runs on a node.
    pub(super) fn end_process(&mut self, id: NodeId, memory: Memory, notice: Notice) {
        self.trace(Kind::Fault, id, 13 + memory as u64, notice as u64);
        let node = self.node(id);
        node.is_up = false;
        node.is_on = notice == Notice::AtOnce;
        node.is_paused = false;
        let held = std::mem::take(&mut node.held);
        self.witness.forget(id);
        let node = self.node(id);
        if let Some(process) = node.process.take() {
            // Its own threads may still hold the table.
            match memory {
                Memory::Kept => process.table.let_go(),
                Memory::Lost => process.table.give_back(),
            }
        }
        for event in held {
            if let Event::Stray(message) | Event::Served(message) = event {
                self.lose(message);
            }
        }
        for connection_id in self.connections.open() {
            let connection = self.connection(connection_id);
            let (client, host) = (connection.client, connection.host);
            if !connection.client_open && !connection.host_open {
                continue; // Closed by the end of another one.
            }
            if host == id {
                self.end_by_host(connection_id);
                self.give_up_later(connection_id);
            } else if client == id {
                // Nobody is left who could take an answer.
                self.close_client_end(connection_id, Status::Disconnected);
                if self.is_reachable(client, host) {
                    self.close_host_end(connection_id, true);
                } else {
                    self.give_up_later(connection_id);
                }
            }
        }
    }
}
