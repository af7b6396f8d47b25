//! The network as a test holds it: made of nodes, moved event by event.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::clock;
use super::listener::SimListener;
use super::model::{LinkModel, Nic};
use super::session::SimConnector;
use super::state::State;
use crate::{Address, ClientId, Generation, Time, memory};

/// A machine of a simulated network.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NodeId(pub u32);

/// Who serves one-sided verbs to a host's memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Serving {
    /// The network card: memory of a paused host stays usable, as over RDMA or `shm`.
    #[default]
    Card,
    /// A thread of the host: a paused host answers nothing, as over `tcp`.
    Agent,
}

/// What all nodes and links are unless they are told otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// Every link.
    pub link: LinkModel,
    /// Every network card.
    pub nic: Nic,
    /// Every host.
    pub serving: Serving,
}

/// A handle of a whole network; clones are the same network.
///
/// All of it is used from one thread, which calls nothing of it from within itself.
#[derive(Clone)]
pub struct Net(Arc<Mutex<State>>);

impl Net {
    /// A network without nodes, at time 0. All randomness comes from `seed`.
    #[must_use]
    pub fn new(seed: u64, config: Config) -> Self {
        // Every window is a file descriptor of this process.
        memory::raise_descriptor_limit();
        clock::show(Time(0));
        Self(Arc::new(Mutex::new(State::new(seed, config))))
    }

    /// Adds a machine with a host that listens at `address`.
    ///
    /// # Panics
    /// If another node has the address, or the system has no descriptor left.
    #[must_use]
    pub fn host(&self, address: Address, name: &str) -> SimListener {
        let node = {
            let mut state = self.lock();
            let is_free = |node: &super::state::Node| node.address.as_ref() != Some(&address);
            assert!(state.nodes.iter().all(is_free), "{address} is another host");
            let node = state.add_node(name, Some(address));
            state.start_process(node);
            node
        };
        SimListener::new(self, node)
    }

    /// Adds a machine with a client.
    #[must_use]
    pub fn client(&self, name: &str) -> SimConnector {
        SimConnector::new(self, self.lock().add_node(name, None), true)
    }

    /// Adds a machine with a client that lacks the cluster's key.
    #[must_use]
    pub fn stranger(&self, name: &str) -> SimConnector {
        SimConnector::new(self, self.lock().add_node(name, None), false)
    }

    /// A host's machine as a client of other hosts.
    #[must_use]
    pub fn client_on(&self, host: NodeId) -> SimConnector {
        SimConnector::new(self, host, true)
    }

    /// What a node was called when it was made.
    #[must_use]
    pub fn name(&self, node: NodeId) -> String {
        self.lock().node(node).name.clone()
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.lock().now
    }

    /// When the next event happens; `None`: nothing is under way.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        self.lock().events.next()
    }

    /// Moves the clock to the next event and has it happen. False: there is none.
    #[inline]
    #[must_use]
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Has everything happen up to and at `time`, and moves the clock there; never backwards.
    pub fn advance_to(&self, time: Time) {
        let mut state = self.lock();
        while state.events.next().is_some_and(|next| next <= time) {
            state.step();
        }
        state.now = state.now.max(time);
        clock::show(state.now);
    }

    /// Appends the nodes that have had something new to poll since the last call, in the order in
    /// which they got it. Paused ones wait until they are resumed.
    pub fn take_ready(&self, ready: &mut Vec<NodeId>) {
        let state = &mut *self.lock();
        let nodes = &mut state.nodes;
        state.ready.retain(|&id| {
            let node = &mut nodes[id.0 as usize];
            node.is_ready = node.is_paused;
            if !node.is_paused {
                ready.push(id);
            }
            node.is_paused
        });
    }

    /// A client has told a host that it needs a window no more: no write of it may arrive from here on.
    pub fn note_given_back(&self, host: NodeId, generation: Generation, client: ClientId) {
        self.lock().witness.give_back(host, generation, client);
    }

    /// Takes what the network itself saw go wrong since the last call: a verb that took effect in
    /// a window of another generation or none, or messages of one connection out of order. Of a
    /// network that nothing is injected in, never anything.
    #[must_use]
    pub fn take_broken(&self) -> Vec<String> {
        self.lock().witness.take()
    }

    /// A fingerprint of every event so far.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.lock().fingerprint.hash()
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
