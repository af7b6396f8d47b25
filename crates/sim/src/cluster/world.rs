//! Everything together, moved from event to event: the network's and everybody's own timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cenote_fabric::Time;
use cenote_fabric::sim::{Net, NodeId, SimConnector};
use cenote_measure::random::Random;
use cenote_measure::random::mix;
use cenote_volume::{HostConfig, IoError, Placement, Relocation, Resilience, Seat};

use super::ambush::{ARROWS, Ambush};
use super::client::{Client, Loss, Plan, Trouble};
use super::faults::FELT;
use super::host::{Host, address_of};
use super::observer::Sightings;
use super::troubles::Troubles;
use super::{Options, Violation};

/// Who runs next.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Actor {
    Host(usize),
    Client(usize),
}

/// A whole cluster.
pub struct World {
    pub net: Net,
    pub hosts: Vec<Host>,
    pub clients: Vec<Client>,
    /// By node.
    actors: Vec<Option<Actor>>,
    connectors: Vec<SimConnector>,
    timers: BinaryHeap<Reverse<(Time, Actor)>>,
    /// By node: when its actor runs next; other entries of `timers` are void.
    due: Vec<Time>,
    paused: Vec<bool>,
    pub random: Random,
    pub steps: u64,
    pub faults: u64,
    /// Of those, changes of k.
    pub restripes: u64,
    /// And splits that rotted.
    pub rotten_splits: u64,
    /// No request may fail: no stripe has lost more than r.
    pub is_gentle: bool,
    /// Who may have lost what.
    pub troubles: Troubles,
    pub violations: Vec<Violation>,
    pub failed_requests: u64,
    /// When slabs may have been lost last, by a fault other than a process that takes another's place in time.
    pub lost_at: Option<Time>,
    seen: Sightings,
    /// What lies in wait for a relocation.
    pub ambush: Option<Ambush>,
    /// Hosts that crashed in one.
    pub sprung: Vec<usize>,
    /// By arrow.
    pub arrows_hit: [u64; ARROWS.len()],
    /// Of each client, after its last turn.
    pub relocations: Vec<Vec<Relocation>>,
    log: VecDeque<String>,
    /// Of what the clients and the faults did.
    trace: u64,
}

/// Time from an arrival to the turn of the process that it is for, and between two turns of it.
const WAKE_UP: Duration = Duration::from_micros(1);

/// Lines kept of what happened last.
const LOG_LINES: usize = 40;

impl World {
    pub fn new(options: &Options) -> Self {
        let net = Net::new(options.seed, options.network());
        let seen = Sightings::default();
        let slab_bytes = options.slab_bytes;
        let gives_way = options.weights.squeeze > 0;
        let lends = (options.slabs_per_host(), slab_bytes, gives_way);
        let hosts: Vec<Host> = (0..options.hosts)
            .map(|index| Host::new(&net, index, lends, &seen))
            .collect();
        let mut random = Random::new(options.seed);
        let known = |(index, host): (usize, &Host)| HostConfig {
            lends: true,
            name: host.name.clone(),
            address: address_of(index),
            domain: host.name.clone(),
            power: None,
            retired: false,
        };
        let plan = Plan {
            resilience: Resilience::of(options.scheme),
            protection: options.protection.clone(),
            placement: (options.placement)
                .unwrap_or_else(|| Placement::over_all_hosts(options.scheme.r())),
            is_backed: options.is_backed,
            size_bytes: options.volume_bytes,
            slab_bytes,
            worker_count: options.workers,
            depth: 3,
            pause_ns: options.pause_ns(),
            hosts: hosts.iter().enumerate().map(known).collect(),
        };
        let mut connectors = Vec::new();
        let mut clients = Vec::new();
        for index in 0..options.clients {
            let name = format!("c{index}");
            let connector = net.client(&name);
            connectors.push(connector.clone());
            let plan = Plan {
                resilience: options.resilience(&mut random),
                ..plan.clone()
            };
            clients.push(Client::new(name, plan, Arc::new(connector), random.next()));
        }
        let mut world = Self {
            actors: Vec::new(),
            timers: BinaryHeap::new(),
            due: Vec::new(),
            paused: Vec::new(),
            net,
            hosts,
            clients,
            connectors,
            random,
            steps: 0,
            faults: 0,
            restripes: 0,
            rotten_splits: 0,
            is_gentle: true,
            troubles: Troubles::new(options.hosts, options.clients),
            violations: Vec::new(),
            failed_requests: 0,
            lost_at: None,
            seen,
            ambush: None,
            sprung: Vec::new(),
            arrows_hit: [0; ARROWS.len()],
            relocations: vec![Vec::new(); options.clients],
            log: VecDeque::new(),
            trace: 0,
        };
        for index in 0..world.hosts.len() {
            world.place(world.hosts[index].node, Actor::Host(index));
        }
        for index in 0..world.clients.len() {
            world.place(world.connectors[index].node(), Actor::Client(index));
        }
        world
    }

    fn place(&mut self, node: NodeId, actor: Actor) {
        let at = node.0 as usize;
        let nodes = self.actors.len().max(at + 1);
        self.actors.resize(nodes, None);
        self.due.resize(nodes, Time(u64::MAX));
        self.paused.resize(nodes, false);
        self.actors[at] = Some(actor);
        self.wake(node, self.net.now());
    }

    pub fn node(&self, actor: Actor) -> NodeId {
        match actor {
            Actor::Host(index) => self.hosts[index].node,
            Actor::Client(index) => self.connectors[index].node(),
        }
    }

    /// Has the actor on `node` run at `time` at the latest.
    pub fn wake(&mut self, node: NodeId, time: Time) {
        let at = node.0 as usize;
        if let Some(actor) = self.actors[at]
            && time < self.due[at]
        {
            self.due[at] = time;
            self.timers.push(Reverse((time, actor)));
        }
    }

    /// Has everything happen up to `end`, or up to the first violation.
    pub fn run_until(&mut self, end: Time) {
        let mut ready = Vec::new();
        while self.violations.is_empty() {
            let timer = self.timers.peek().map_or(Time(u64::MAX), |entry| entry.0.0);
            let event = self.net.next_event().unwrap_or(Time(u64::MAX));
            if timer.min(event) > end {
                self.net.advance_to(end);
                return;
            }
            if event <= timer {
                // There is one: it has a time.
                let happened = self.net.step();
                debug_assert!(happened);
                self.take_broken();
                self.net.take_ready(&mut ready);
                for node in ready.drain(..) {
                    self.wake(node, self.net.now().after(WAKE_UP));
                }
                continue;
            }
            let Some(Reverse((time, actor))) = self.timers.pop() else {
                return;
            };
            let at = self.node(actor).0 as usize;
            if self.due[at] != time {
                continue;
            }
            self.due[at] = Time(u64::MAX);
            self.net.advance_to(time);
            if !self.paused[at] {
                self.run(actor);
            }
        }
    }

    /// Lets one actor run, and asks it when it wants to run again.
    fn run(&mut self, actor: Actor) {
        let due = match actor {
            Actor::Host(index) => {
                self.hosts[index].turn();
                self.hosts[index].due()
            }
            Actor::Client(index) => {
                let mut trouble = Vec::new();
                let client = &mut self.clients[index];
                client.turn(&mut self.steps, &mut trouble);
                let due = client.due();
                for trouble in trouble {
                    self.judge(index, trouble);
                }
                if self.clients[index].has_ended() {
                    self.note(format!("c{index} ends in its journal"));
                    self.replace_client(index, false);
                }
                due
            }
        };
        self.look(actor);
        self.wake(self.node(actor), due);
        // What it did may have made others ready without an event.
        let mut ready = Vec::new();
        self.net.take_ready(&mut ready);
        for node in ready {
            self.wake(node, self.net.now().after(WAKE_UP));
        }
    }

    fn judge(&mut self, client: usize, trouble: Trouble) {
        match trouble {
            Trouble::Lost(loss) => {
                let place = format!(
                    "c{client}: page {} of extent {} is lost",
                    loss.page, loss.extent
                );
                if let Err(why) = self.explain(client, &loss) {
                    let state = self.clients[client].state();
                    return self.violate(format!("{place}, {why}: {state}"));
                }
                self.note(place);
                self.clients[client].excuse_lost(loss.page, self.steps);
            }
            Trouble::Wrong(what) => self.violate(what),
            Trouble::Stale(since, what) => {
                self.failed_requests += 1;
                self.note(format!("failed: {what}"));
                let is_lost = |at: Time| at.after(FELT) >= since;
                if !self.lost_at.is_some_and(is_lost) {
                    self.violate(format!(
                        "{what}, though slabs that were not lost have what the disk refused"
                    ));
                }
            }
            Trouble::Unreachable(what) => {
                self.note(format!("not taken over: {what}"));
                if self.is_gentle {
                    self.violate(format!(
                        "{what}, though no stripe has lost more than it survives"
                    ));
                }
            }
            Trouble::Failed(error, what) => {
                self.failed_requests += 1;
                self.note(format!("failed: {what}"));
                // Where memory is short writes are refused, and extents mapped on fewer hosts.
                self.is_gentle &= error != IoError::NoSpace;
                if self.is_gentle {
                    let states: Vec<String> = self.clients.iter_mut().map(Client::state).collect();
                    self.note(states.join("; "));
                    self.violate(format!(
                        "{what}, though no stripe has lost more than it survives ({error:?})"
                    ));
                }
            }
        }
    }

    /// Slabs may be lost now.
    pub fn note_loss(&mut self) {
        self.lost_at = Some(self.net.now());
    }

    /// Whether a page may be lost: more hosts of its extent were in trouble since it was whole than it survives.
    fn explain(&self, client: usize, loss: &Loss) -> Result<(), String> {
        if self.is_gentle {
            return Err("though no stripe has lost more than it survives".to_owned());
        }
        let Some(whole) = &loss.whole else {
            return Ok(());
        };
        let was_ill = |host: &&usize| {
            self.troubles.has_host(**host, whole.since) || !self.hosts[**host].is_up()
        };
        let ill = whole.hosts.iter().filter(was_ill).count();
        if ill > whole.spare || self.troubles.has_client(client, whole.since) {
            return Ok(());
        }
        let (hosts, spare) = (whole.hosts.len(), whole.spare);
        Err(format!(
            "though of its {hosts} hosts {ill} were in trouble since it was whole, and it survives {spare}"
        ))
    }

    /// What the network saw go wrong.
    fn take_broken(&mut self) {
        for what in self.net.take_broken() {
            self.violate(what);
        }
    }

    /// Looks at everything that the actor's turn may have changed.
    fn look(&mut self, actor: Actor) {
        self.take_broken();
        let seen = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        for what in seen.broken {
            self.violate(what);
        }
        match actor {
            Actor::Host(index) => {
                for owner in seen.retired {
                    self.look_for_retired(index, owner);
                }
            }
            Actor::Client(index) => {
                if self.clients[index].has_moved() {
                    self.check_seats(index);
                }
                self.look_for_arrows(index);
            }
        }
    }

    /// H1, and that no slab serves two places: of one volume or of two.
    fn check_seats(&mut self, index: usize) {
        let seats = self.clients[index].seats();
        for (at, seat) in seats.iter().enumerate() {
            let together = |other: &&Seat| other.extent == seat.extent && other.host == seat.host;
            if seats[..at].iter().any(|other| together(&other)) {
                return self.violate(format!(
                    "c{index}: extent {} twice on one host",
                    seat.extent
                ));
            }
            let is_same =
                |other: &Seat| (other.host, other.generation) == (seat.host, seat.generation);
            let others = self.clients.iter().enumerate();
            let elsewhere = others
                .filter(|&(other, _)| other != index)
                .any(|(_, client)| client.known_seats().iter().any(is_same));
            if elsewhere || seats[..at].iter().any(is_same) {
                return self.violate(format!("c{index}: {seat:?} is used twice"));
            }
        }
        self.clients[index].know_seats(seats);
    }

    pub fn violate(&mut self, what: String) {
        let log = self.log.iter().cloned().collect();
        let at_ns = self.net.now().0;
        self.violations.push(Violation { at_ns, what, log });
    }

    /// Remembers what happened, for whoever reads of a violation.
    pub fn note(&mut self, what: String) {
        for byte in what.bytes() {
            self.trace = mix(self.trace ^ u64::from(byte));
        }
        let ns = self.net.now().0;
        if self.log.len() == LOG_LINES {
            self.log.pop_front();
        }
        self.log
            .push_back(format!("{:>14.6} s  {what}", seconds(ns)));
    }

    pub fn pause(&mut self, actor: Actor, is_paused: bool) {
        let node = self.node(actor);
        self.paused[node.0 as usize] = is_paused;
        if is_paused {
            self.net.pause(node);
        } else {
            self.net.resume(node);
            self.wake(node, self.net.now());
        }
    }

    pub fn is_paused(&self, actor: Actor) -> bool {
        self.paused[self.node(actor).0 as usize]
    }

    /// A client's process ends, and its next one starts: with the volume as it was left, or again.
    pub fn replace_client(&mut self, index: usize, is_new: bool) {
        let node = self.node(Actor::Client(index));
        self.steps += 1;
        self.clients[index].crash(self.steps);
        self.net.crash(
            node,
            cenote_fabric::sim::Memory::Lost,
            cenote_fabric::sim::Notice::AtOnce,
        );
        self.net.restart_client(node);
        self.clients[index].restart(Arc::new(self.connectors[index].clone()), is_new);
        self.wake(node, self.net.now());
    }

    /// Of everything that happened so far.
    pub fn trace_hash(&self) -> u64 {
        let pages = self.clients.iter().map(|client| client.page_ops);
        let clients = pages.fold(self.trace, |hash, count| mix(hash ^ count));
        mix(self.net.trace_hash() ^ mix(clients ^ self.steps))
    }
}

/// For people: the only floating point here.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
