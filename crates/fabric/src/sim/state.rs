//! All of a simulated network: nodes, links, and what happens next.
//!
//! Behind the one lock of [`super::Net`]; nothing here calls out.

use super::clock::{self, Event, Events};
use super::connections::Connections;
use super::faults::Late;
use super::injected_faults::InjectedFaults;
use super::listener::Process;
use super::message::{Leg, MessageId, Messages};
use super::model::{Card, LinkModel};
use super::net::{Config, NodeId, Serving};
use super::random::{Random, mix};
use super::torn_reads::Torn;
use super::trace::{Kind, Trace, checksum};
use super::witness::Witness;
use crate::{Address, FAILURE_TIMEOUT, Status, Time};

/// Everything.
pub(super) struct State {
    pub(super) config: Config,
    pub(super) seed: u64,
    pub(super) now: Time,
    pub(super) events: Events,
    pub(super) random: Random,
    pub(super) fingerprint: Trace,
    pub(super) nodes: Vec<Node>,
    /// By sender and receiver.
    pub(super) links: Vec<Vec<Link>>,
    pub(super) models: Vec<LinkModel>,
    pub(super) messages: Messages,
    pub(super) connections: Connections,
    pub(super) ready: Vec<NodeId>,
    pub(super) late: Option<Late>,
    pub(super) torn_reads: Option<Torn>,
    /// How long it takes at most until a client hears that its host has closed a connection.
    pub(super) notice_ns_max: u64,
    pub(super) witness: Witness,
    pub(super) injected: InjectedFaults,
}

/// A machine.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) address: Option<Address>,
    pub(super) card: Card,
    pub(super) serving: Serving,
    /// The machine answers. It may still have no process.
    pub(super) is_on: bool,
    /// Its process runs, or is paused.
    pub(super) is_up: bool,
    pub(super) is_paused: bool,
    pub(super) is_ready: bool,
    /// Counts the processes that it has had.
    pub(super) incarnation: u32,
    /// Hosts: the one that is up.
    pub(super) process: Option<Process>,
    /// What waits for a paused process.
    pub(super) held: Vec<Event>,
}

impl Node {
    /// The process, if it still is that one.
    pub(super) fn process(&mut self, incarnation: u32) -> Option<&mut Process> {
        if self.incarnation == incarnation {
            self.process.as_mut()
        } else {
            None
        }
    }
}

/// One direction between two nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    /// Among `State::models`; 0 is everybody's.
    pub(super) model: usize,
    pub(super) extra_delay_ns: u64,
    /// Since when nothing more enters it; what was under way arrives.
    pub(super) cut_at: Option<Time>,
    /// What was to be sent since: it is sent when the link is healed.
    pub(super) held: Vec<MessageId>,
    /// From a host to a client: the next acknowledgement of a WRITE is lost, and the connection.
    pub(super) loses_acknowledgement: bool,
}

impl State {
    pub(super) fn new(seed: u64, config: Config) -> Self {
        Self {
            models: vec![config.link],
            config,
            seed,
            now: Time(0),
            events: Events::default(),
            random: Random::new(seed),
            fingerprint: Trace::default(),
            nodes: Vec::new(),
            links: Vec::new(),
            messages: Messages::default(),
            connections: Connections::default(),
            ready: Vec::new(),
            late: None,
            torn_reads: None,
            notice_ns_max: 0,
            witness: Witness::default(),
            injected: InjectedFaults::default(),
        }
    }

    pub(super) fn add_node(&mut self, name: &str, address: Option<Address>) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).expect("fewer than 2^32 nodes"));
        let card_seed = mix(self.seed ^ u64::from(id.0) << 32);
        self.nodes.push(Node {
            name: name.to_owned(),
            address,
            card: Card::new(self.config.nic, card_seed),
            serving: self.config.serving,
            is_on: true,
            is_up: true,
            is_paused: false,
            is_ready: false,
            incarnation: 0,
            process: None,
            held: Vec::new(),
        });
        for row in &mut self.links {
            row.push(Link::default());
        }
        self.links.push(vec![Link::default(); self.nodes.len()]);
        id
    }

    #[inline]
    pub(super) fn node(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    #[inline]
    pub(super) fn link(&mut self, from: NodeId, to: NodeId) -> &mut Link {
        &mut self.links[from.0 as usize][to.0 as usize]
    }

    /// Since when messages between two nodes do not pass both ways.
    pub(super) fn cut_at(&mut self, one: NodeId, other: NodeId) -> Option<Time> {
        let there = self.link(one, other).cut_at;
        let back = self.link(other, one).cut_at;
        there.into_iter().chain(back).min()
    }

    /// Whether two machines hear each other.
    pub(super) fn is_reachable(&mut self, one: NodeId, other: NodeId) -> bool {
        self.node(one).is_on && self.node(other).is_on && self.cut_at(one, other).is_none()
    }

    /// Notes that a node has something to poll.
    #[inline]
    pub(super) fn make_ready(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.0 as usize];
        if !node.is_ready {
            node.is_ready = true;
            self.ready.push(id);
        }
    }

    #[inline]
    pub(super) fn trace(&mut self, kind: Kind, node: NodeId, first: u64, second: u64) {
        self.fingerprint.note(self.now, kind, node.0, first, second);
    }

    /// Moves the clock to the next event and has it happen. False: there is none.
    #[inline]
    pub(super) fn step(&mut self) -> bool {
        let Some((time, event)) = self.events.pop() else {
            return false;
        };
        self.now = time;
        clock::show(time);
        match event {
            Event::Arrive(message) => self.on_arrival(message),
            Event::Served(message) => self.deliver(message),
            Event::Stray(message) => self.on_stray(message),
            Event::Silence(connection) => self.on_silence(connection),
            Event::ClientReach(connection) => {
                if self.is_out_of_reach(connection, FAILURE_TIMEOUT) {
                    self.close_client_end(connection, Status::Timeout);
                }
            }
            Event::HostReach(connection) => {
                if self.is_out_of_reach(connection, super::CLIENT_SILENCE) {
                    self.close_host_end(connection, true);
                }
            }
            Event::Notice(connection) => self.on_notice(connection),
        }
        true
    }

    /// Puts a message on its way: out of its sender's card, along the link.
    #[inline]
    pub(super) fn send(&mut self, id: MessageId) {
        let message = self.messages.at_mut(id);
        let connection = self.connections.at_mut(message.connection);
        if message.sequence == 0 {
            let sent = &mut connection.sent[message.leg as usize];
            *sent += 1;
            message.sequence = *sent;
        }
        let (from, to) = match message.leg {
            Leg::ToHost => (connection.client, connection.host),
            Leg::ToClient => (connection.host, connection.client),
        };
        let link = &mut self.links[from.0 as usize][to.0 as usize];
        if link.cut_at.is_some() {
            link.held.push(id);
            return;
        }
        let model = &self.models[link.model];
        let bytes = message.payload_bytes() as u64;
        let card = &mut self.nodes[from.0 as usize].card;
        let start = card.send(self.now, bytes);
        let delay = message.latency_ns(model).max(card.nic.service_ns(bytes));
        let extra = link.extra_delay_ns + model.stragglers.draw_ns(&mut self.random);
        let last = &mut connection.last_arrival[message.leg as usize];
        let mut arrival = start.saturating_add(delay).saturating_add(extra);
        if !self.injected.loses_order {
            arrival = arrival.max(*last);
        }
        *last = arrival;
        self.events.push(Time(arrival), Event::Arrive(id));
    }

    /// A message is at its receiver's card, which may be busy.
    #[inline]
    fn on_arrival(&mut self, id: MessageId) {
        let message = self.messages.at(id);
        let connection = self.connections.at(message.connection);
        let receiver = match message.leg {
            Leg::ToHost => connection.host,
            Leg::ToClient => connection.client,
        };
        let bytes = message.payload_bytes() as u64;
        let card = &mut self.nodes[receiver.0 as usize].card;
        let served = card.receive(self.now, bytes);
        if served > self.now {
            self.events.push(served, Event::Served(id));
        } else {
            self.deliver(id);
        }
    }

    /// Notes a delivery in the fingerprint.
    #[inline]
    pub(super) fn trace_message(&mut self, kind: Kind, node: NodeId, id: MessageId) {
        let message = self.messages.at(id);
        let what = message.connection.0 << 32 | (message.body as u64) << 8 | message.status as u64;
        let sum = checksum(message.payload()) ^ mix(message.value ^ message.position << 32);
        self.trace(kind, node, what, sum);
    }
}
