//! A node: everything that decides in a real one, with one lane and its part in one group.
//!
//! Registrar, steward, membership, detector, steering and member are the real code; what carries their words (threads,
//! links, etcd's gateway) is the world's.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_fabric::WireProtection;
use cenote_kv::group::member::{Member, Shape};
use cenote_kv::group::message::Message;
use cenote_kv::group::process::Process;
use cenote_kv::group::progress::{Decision, Leave};
use cenote_kv::group::view::View;
use cenote_kv_cluster::NodeId;
use cenote_kv_cluster::config::{
    ClusterConfig, DocumentKeys, KeyFingerprint, NodeState, Registration, Scheme, VERSION,
};
use cenote_kv_cluster::detector::{Action, Cause, Detector, Settings, State};
use cenote_kv_cluster::membership::{Membership, Refused, Registered};
use cenote_kv_cluster::registrar::{RENEWAL, Registrar, RegistrarError, Turned};
use cenote_kv_cluster::registration_lease::RegistrationLease;
use cenote_kv_cluster::seeding::Testimony;
use cenote_kv_cluster::steering::{Situation, Steering};
use cenote_kv_cluster::steward::{Notice, Proposal, Steward};
use cenote_kv_cluster::store::Store as _;

use super::etcd::{Etcd, Reached, Watch};

/// How long a lane may stand still before its node is not registered any more.
const STILL_MAX_NS: u64 = 3_000_000_000;
const RENEWAL_NS: u64 = RENEWAL.as_nanos() as u64;

/// What nodes say to each other.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    Ping(u64),
    Pong(u64),
    /// Of a group, in the view of this number.
    Group(usize, u32, Message),
}

/// Its part in one group.
pub(super) struct Seat {
    steering: Steering,
    pub(super) member: Member,
    pub(super) refused: Refused,
    homes: Vec<u32>,
}

/// What comes of a turn, beside what is said.
pub(super) enum Fate {
    LivesOn,
    /// A later process has its name.
    Replaced,
}

/// What a cluster is made of. Groups are rotated over its nodes.
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) groups: usize,
    pub(super) nodes: u32,
}

/// See the [module](self).
pub(super) struct Node {
    pub(super) me: Process,
    /// Of the cluster.
    nodes: u32,
    registrar: Registrar,
    registration_lease: Arc<RegistrationLease>,
    keep_due: u64,
    watch: Watch,
    steward: Steward,
    orders: VecDeque<Notice>,
    seed: u64,
    pub(super) membership: Membership,
    /// By group.
    pub(super) seats: Vec<Seat>,
    turned_at: u64,
    /// Its lane does nothing any more, and its other threads go on.
    pub(super) is_stuck: bool,
    /// Until when all of it is stopped.
    pub(super) stopped_until: u64,
    /// Where each node was last registered.
    pub(super) dials: BTreeMap<NodeId, u64>,
    proposals: VecDeque<Proposal>,
    pub(super) out: Vec<(Process, Packet)>,
    /// Links that are to be broken.
    pub(super) resets: Vec<NodeId>,
}

/// A moment, by both clocks.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) ns: u64,
    pub(super) instant: Instant,
}

impl Node {
    /// Starts a process of a node, if etcd has it so.
    pub(super) fn start(
        etcd: &RefCell<Etcd>,
        node: u32,
        plan: &Plan,
        marks: [u64; 2],
        now: u64,
    ) -> Option<Self> {
        let store = Reached {
            etcd,
            node: Some(node),
        };
        let (document_keys, config) = (document_keys(), config(plan));
        let Plan {
            shape,
            groups,
            nodes,
        } = plan;
        let id = NodeId(node);
        store.read(&document_keys.config()).ok()??;
        // Microseconds, as a real one: two that start at once have the same.
        let incarnation = document_keys
            .claim_incarnation(&store, id, now / 1000, marks[0])
            .ok()?;
        let me = Process { node, incarnation };
        let registration = Registration {
            version: VERSION,
            name: name(node),
            clients: Vec::new(),
            peers: vec![([127, 0, 0, 1], 1).into()],
            incarnation,
            state: NodeState::Up,
        };
        let registration_lease = Arc::new(RegistrationLease::default());
        let mut registrar = Registrar::new(
            document_keys.node(id),
            registration,
            Arc::clone(&registration_lease),
        );
        registrar.turn(&store, now, true).ok()?;
        let slots = u32::try_from(shape.k + shape.m).expect("few slots");
        let homes = |group: usize| -> Vec<u32> {
            let first = u32::try_from(group).expect("few groups");
            (0..slots).map(|slot| (first + slot) % nodes).collect()
        };
        let plan = (0..*groups).map(|group| homes(group).into_iter().map(NodeId).collect());
        let seat = |group| Seat {
            steering: Steering::default(),
            member: Member::new(me, shape.clone()),
            refused: Refused::default(),
            homes: homes(group),
        };
        let seats = (0..*groups).map(seat).collect();
        let plan = plan.collect();
        let names: Vec<(NodeId, String)> = (0..node.max(*nodes) + 1)
            .map(|node| (NodeId(node), name(node)))
            .collect();
        Some(Self {
            me,
            nodes: *nodes,
            registrar,
            registration_lease,
            keep_due: now + RENEWAL_NS,
            watch: Watch::default(),
            steward: Steward::new(me, document_keys, Arc::new(config), &names, plan, marks[1]),
            orders: VecDeque::new(),
            seed: 0,
            membership: Membership::new(me, Detector::new(Settings::default())),
            seats,
            turned_at: now,
            is_stuck: false,
            stopped_until: 0,
            dials: BTreeMap::new(),
            proposals: VecDeque::new(),
            out: Vec::new(),
            resets: Vec::new(),
        })
    }

    pub(super) fn is_stopped(&self, now: u64) -> bool {
        now < self.stopped_until
    }

    /// Whether its lane answers clients and peers.
    pub(super) fn answers(&self, now: u64) -> bool {
        !self.is_stuck && !self.is_stopped(now)
    }

    /// The threads that talk to etcd.
    pub(super) fn steward_turn(
        &mut self,
        etcd: &RefCell<Etcd>,
        ask: &dyn Fn(Process) -> Option<Testimony>,
        now: u64,
    ) -> Fate {
        let store = Reached {
            etcd,
            node: Some(self.me.node),
        };
        if now >= self.keep_due {
            let serves = now - self.turned_at < STILL_MAX_NS;
            self.keep_due = now + RENEWAL_NS;
            match self.registrar.turn(&store, now, serves) {
                Ok(Turned::Written) => self.watch.restart(),
                Ok(Turned::Kept | Turned::Left) => {}
                Err(RegistrarError::Replaced(_)) => return Fate::Replaced,
                Err(_) => self.keep_due = now + RENEWAL_NS / 6,
            }
        }
        for change in self.watch.poll(&store, &document_keys().prefix()) {
            self.steward.take(change);
        }
        for proposal in self.proposals.drain(..) {
            self.steward.propose(proposal);
        }
        let ask = |_: &Steward, process| ask(process);
        if self.steward.turn(&store, &ask, now) {
            self.watch.restart();
        }
        for notice in self.steward.take_notices() {
            if let Notice::Replaced = notice {
                return Fate::Replaced;
            }
            self.orders.push_back(notice);
        }
        Fate::LivesOn
    }

    /// What it says when it is asked for its views.
    pub(super) fn testimony(&self) -> Testimony {
        let views = self.seats.iter().enumerate();
        let views = views.filter_map(|(group, seat)| Some((group, seat.member.view()?.number)));
        Testimony {
            seed: self.seed,
            views: views.collect(),
        }
    }

    /// A turn of the lane. `heard` is what came since the last one; of what it was told by the other threads it
    /// finds no more than `orders`.
    pub(super) fn lane_turn(&mut self, heard: Vec<(Process, Packet)>, orders: usize, at: Moment) {
        self.turned_at = at.ns;
        self.take_orders(orders, at);
        let lease = self.registration_lease.lease_at(at.ns);
        for seat in &mut self.seats {
            seat.refused = match seat.member.view() {
                Some(view) => self.membership.refused(view, lease),
                None => Refused::default(),
            };
        }
        for (from, packet) in heard {
            let node = NodeId(from.node);
            self.membership.detector.handle_heard(node, at.instant);
            match packet {
                Packet::Ping(number) => self.out.push((from, Packet::Pong(number))),
                Packet::Pong(number) => {
                    let detector = &mut self.membership.detector;
                    detector.handle_answer(node, number, at.instant);
                }
                Packet::Group(group, view, message) => {
                    self.seats[group].member.handle(from, view, message, at.ns);
                }
            }
        }
        for action in self.membership.detector.poll(at.instant) {
            match action {
                Action::Probe { peer, number } => {
                    if let Some(process) = self.membership.linked(peer) {
                        self.out.push((process, Packet::Ping(number)));
                    }
                }
                Action::Changed { peer, state } => {
                    if state == State::Suspect(Cause::Silent) {
                        self.resets.push(peer);
                    }
                }
            }
        }
        let decision = match self.registration_lease.is_fresh(at.ns) {
            true => Decision::Soon,
            false => Decision::Late,
        };
        let mut places: BTreeMap<Process, usize> = BTreeMap::new();
        let views = self.seats.iter().filter_map(|seat| seat.member.view());
        for process in views.flat_map(View::processes) {
            *places.entry(process).or_default() += 1;
        }
        let seconds = u32::try_from(at.ns / 1_000_000_000).expect("a short time");
        for (group, seat) in self.seats.iter_mut().enumerate() {
            let situation = Situation {
                group,
                nodes: self.nodes as usize,
                places: &|process| places.get(&process).copied().unwrap_or(0),
                membership: &self.membership,
                homes: &seat.homes,
                is_spare: true,
                leave: Leave::No,
                decision,
                now: at.ns,
                instant: at.instant,
            };
            if let Some(view) = seat.steering.decide(&mut seat.member, &situation) {
                self.proposals.push_back(Proposal { group, view });
            }
            seat.member.tick(seconds, at.ns);
            seat.member.flush(at.ns, true);
        }
        self.say();
    }

    /// Puts what its members say on its way.
    pub(super) fn say(&mut self) {
        for (group, seat) in self.seats.iter_mut().enumerate() {
            for outgoing in seat.member.take_messages() {
                let packet = Packet::Group(group, outgoing.view, outgoing.message);
                self.out.push((outgoing.to, packet));
            }
        }
    }

    fn take_orders(&mut self, most: usize, at: Moment) {
        for notice in self.orders.drain(..most.min(self.orders.len())) {
            match notice {
                Notice::View { group, view, .. } => {
                    let seat = &mut self.seats[group];
                    seat.steering.note_view(view.number);
                    seat.member.adopt(&view);
                }
                Notice::Refused { group, number } => {
                    let seat = &mut self.seats[group];
                    if seat.steering.note_refusal(number) {
                        seat.member.reopen();
                    }
                }
                Notice::HandOver(next) => self.seats[next.group].steering.hand_over(next),
                Notice::Node { node, found } => {
                    let registered = found.map(|(found, lease)| Registered {
                        incarnation: found.incarnation,
                        address: None,
                        state: found.state,
                        lease,
                    });
                    if let Some(found) = &registered {
                        self.dials.insert(node, found.incarnation);
                    }
                    self.membership.take(node, registered, at.instant);
                }
                Notice::Seeded(seed) => self.seed = seed,
                Notice::Replaced => {}
            }
        }
    }

    pub(super) fn link_up(&mut self, process: Process, at: Moment) {
        self.membership.link_up(process, at.instant);
        for seat in &mut self.seats {
            seat.member.connected(process);
        }
        self.say();
    }

    pub(super) fn link_down(&mut self, process: Process, at: Moment) {
        let node = NodeId(process.node);
        if self.membership.linked(node) == Some(process) {
            self.membership.link_down(node, at.instant);
        }
    }

    pub(super) fn view(&self, group: usize) -> Option<&View> {
        self.seats[group].member.view()
    }

    /// The numbers of its views, by group.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let views = self.seats.iter().map(|seat| seat.member.view());
        views
            .map(|view| view.map_or(0, |view| view.number))
            .collect()
    }
}

pub(super) fn document_keys() -> DocumentKeys {
    DocumentKeys::of("simulated").expect("a name")
}

fn name(node: u32) -> String {
    format!("n{node:02}")
}

pub(super) fn config(plan: &Plan) -> ClusterConfig {
    let shape = &plan.shape;
    ClusterConfig {
        groups: plan.groups,
        code: format!("{}+{}", shape.k, shape.m).parse().expect("a code"),
        scheme: Scheme::Coded,
        region_bytes: shape.region_bytes,
        memory_bytes: 64 << 20,
        lanes: 1,
        link_traffic: WireProtection::default(),
        key: KeyFingerprint::UNKNOWN,
        service: shape.service,
        nodes: (0..plan.nodes).map(name).collect(),
    }
}

/// The same moment by the detector's clock.
pub(super) fn moment(origin: Instant, ns: u64) -> Moment {
    let instant = origin + Duration::from_nanos(ns);
    Moment { ns, instant }
}
