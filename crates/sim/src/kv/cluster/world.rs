//! All nodes, their links and etcd in virtual time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use cenote_kv::group::Bound;
use cenote_kv::group::member::{Service, Shape};
use cenote_kv::group::message::UNIT_BYTES;
use cenote_kv::group::process::Process;
use cenote_kv::group::view::{Scheme, View};
use cenote_kv::group::wire::decode_view;
use cenote_kv::memory::key_hash::KeyHasher;
use cenote_kv_cluster::NodeId;
use cenote_kv_cluster::store::Store as _;
use cenote_measure::random::Random;

use super::client::Client;
use super::etcd::{Etcd, Reached};
use super::node::{Fate, Moment, Node, Packet, Plan, config, document_keys, moment};
use super::{Options, Report, Tally};

/// Time of one step, in nanoseconds.
pub(super) const STEP_NS: u64 = 5_000_000;
/// When it begins: long after the clocks' zero, as on a real machine.
const START_NS: u64 = 1_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const CLIENTS: usize = 4;
/// Lines of the log that a report keeps.
const LOG_LINES: usize = 60;

/// A process by the order of its start: two may have the same name.
pub(super) type Handle = usize;

/// What is on its way between two, by direction; the lesser handle first.
type Link = [VecDeque<Packet>; 2];

/// See the [module](self).
pub(super) struct World {
    pub(super) options: Options,
    pub(super) random: Random,
    pub(super) now: u64,
    origin: Instant,
    pub(super) etcd: RefCell<Etcd>,
    pub(super) nodes: BTreeMap<Handle, Node>,
    last_handle: Handle,
    links: BTreeMap<(Handle, Handle), Link>,
    /// Pairs of nodes between which nothing goes, the lesser first.
    pub(super) parted: BTreeSet<(u32, u32)>,
    /// Nodes that are to be started, and when.
    pub(super) starts: Vec<(u64, u32)>,
    pub(super) clients: Vec<Client>,
    pub(super) report: Report<Tally>,
    /// By group: the partitions that an operator had start from scratch.
    pub(super) given_up: Vec<u32>,
    /// Since when a group's view in etcd is not whole, or one of its processes not registered.
    unwell_since: Option<u64>,
    /// The revision of the last turn that was claimed.
    turn: i64,
}

impl World {
    pub(super) fn new(options: &Options) -> Self {
        let world = Self {
            random: Random::new(options.seed),
            now: START_NS,
            origin: Instant::now(),
            etcd: RefCell::new(Etcd::new(options.seed)),
            nodes: BTreeMap::new(),
            last_handle: 0,
            links: BTreeMap::new(),
            parted: BTreeSet::new(),
            starts: (0..options.nodes()).map(|node| (0, node)).collect(),
            clients: (0..CLIENTS).map(Client::new).collect(),
            report: Report::new(options.seed),
            given_up: vec![0; options.groups],
            unwell_since: None,
            turn: 0,
            options: options.clone(),
        };
        let config = config(&world.plan());
        world.etcd.borrow_mut().turn(START_NS);
        let founded = world
            .operator()
            .swap(&document_keys().config(), 0, &config.to_bytes(), None);
        founded.expect("it is up");
        world
    }

    fn plan(&self) -> Plan {
        Plan {
            shape: self.shape(),
            groups: self.options.groups,
            nodes: self.options.nodes(),
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            scheme: Scheme::Coded,
            k: self.options.k,
            m: self.options.m,
            region_bytes: 12 * UNIT_BYTES,
            evicts: false,
            service: Service::Online,
            bound: Bound::NONE,
            hasher: KeyHasher::new(u128::from(self.options.seed).to_le_bytes()),
        }
    }

    pub(super) fn operator(&self) -> Reached<'_> {
        Reached {
            etcd: &self.etcd,
            node: None,
        }
    }

    pub(super) fn moment(&self) -> Moment {
        moment(self.origin, self.now)
    }

    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{:>6} ms: {}", (self.now - START_NS) / 1_000_000, line());
        self.report.note(line, LOG_LINES);
    }

    pub(super) fn violate(&mut self, what: String) {
        self.report.violate(what);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.report.is_broken()
    }

    pub(super) fn end(self) -> Report<Tally> {
        self.report
    }

    /// The latest view of a group that any process has.
    pub(super) fn view(&self, group: usize) -> Option<View> {
        let views = self.nodes.values().filter_map(|node| node.view(group));
        views.max_by_key(|view| view.number).cloned()
    }

    pub(super) fn handle_of(&self, process: Process) -> Option<Handle> {
        let mut all = self.nodes.iter();
        all.find(|(_, node)| node.me == process)
            .map(|(handle, _)| *handle)
    }

    pub(super) fn is_running(&self, node: u32) -> bool {
        self.nodes.values().any(|one| one.me.node == node)
    }

    /// Starts a process; nothing comes of it where etcd does not have it so.
    pub(super) fn start(&mut self, node: u32) -> Option<Handle> {
        let marks = [self.random.next(), self.random.next()];
        let started = Node::start(&self.etcd, node, &self.plan(), marks, self.now)?;
        let me = started.me;
        self.last_handle += 1;
        self.nodes.insert(self.last_handle, started);
        self.log(|| format!("{me} starts"));
        Some(self.last_handle)
    }

    pub(super) fn kill(&mut self, handle: Handle) {
        if let Some(node) = self.nodes.remove(&handle) {
            let me = node.me;
            self.log(|| format!("{me} ends"));
        }
        let gone: Vec<_> = self.links.keys().copied().collect();
        for (one, other) in gone {
            if one == handle || other == handle {
                self.cut_link(one, other);
            }
        }
    }

    fn cut_link(&mut self, one: Handle, other: Handle) {
        if self
            .links
            .remove(&(one.min(other), one.max(other)))
            .is_none()
        {
            return;
        }
        let at = self.moment();
        for (near, far) in [(one, other), (other, one)] {
            let far = self.nodes.get(&far).map(|node| node.me);
            let Some(node) = self.nodes.get_mut(&near) else {
                continue;
            };
            match far {
                Some(far) => node.link_down(far, at),
                // It has ended: nobody else has its link.
                None => {
                    let ended: Vec<Process> =
                        node.membership.all_linked().map(|(_, one)| one).collect();
                    let me = node.me;
                    let is_there = |process: &Process| {
                        self.links.keys().any(|(one, other)| {
                            let ends = [one, other]
                                .map(|handle| self.nodes.get(handle).map(|node| node.me));
                            ends.contains(&Some(me)) && ends.contains(&Some(*process))
                        })
                    };
                    let gone: Vec<Process> =
                        ended.into_iter().filter(|one| !is_there(one)).collect();
                    let node = self.nodes.get_mut(&near).expect("it was there");
                    gone.into_iter().for_each(|one| node.link_down(one, at));
                }
            }
        }
    }

    fn is_parted(&self, one: u32, other: u32) -> bool {
        self.parted.contains(&(one.min(other), one.max(other)))
    }

    /// One step of everything.
    pub(super) fn step(&mut self) {
        self.now += STEP_NS;
        self.etcd.borrow_mut().turn(self.now);
        for (at, node) in std::mem::take(&mut self.starts) {
            if at > self.now || (!self.is_running(node) && self.start(node).is_none()) {
                self.starts.push((at, node));
            }
        }
        self.connect();
        let mut order: Vec<Handle> = self.nodes.keys().copied().collect();
        for last in (1..order.len()).rev() {
            let other = self.random.below(last as u64 + 1);
            order.swap(last, usize::try_from(other).expect("an index"));
        }
        for handle in order {
            self.turn(handle);
        }
        for index in 0..self.clients.len() {
            let mut client = std::mem::take(&mut self.clients[index]);
            client.step(self);
            self.clients[index] = client;
        }
        self.look();
    }

    /// Makes links between those that can and should have one.
    fn connect(&mut self) {
        let all: Vec<Handle> = self.nodes.keys().copied().collect();
        let at = self.moment();
        for (index, one) in all.iter().enumerate() {
            for other in &all[index + 1..] {
                let (near, far) = (&self.nodes[one], &self.nodes[other]);
                let knows = |near: &Node, far: &Node| {
                    near.dials.get(&NodeId(far.me.node)) == Some(&far.me.incarnation)
                };
                let is_possible = near.me.node != far.me.node
                    && near.answers(self.now)
                    && far.answers(self.now)
                    && !self.is_parted(near.me.node, far.me.node)
                    && (knows(near, far) || knows(far, near));
                let (near, far) = (near.me, far.me);
                if !is_possible
                    || self.links.contains_key(&(*one, *other))
                    || self.random.percent(70)
                {
                    continue;
                }
                self.links.insert((*one, *other), Link::default());
                let node = self.nodes.get_mut(one).expect("it is one of them");
                node.link_up(far, at);
                let node = self.nodes.get_mut(other).expect("it is one of them");
                node.link_up(near, at);
                self.deliver_out(*one);
                self.deliver_out(*other);
            }
        }
    }

    fn turn(&mut self, handle: Handle) {
        let at = self.moment();
        let node = &self.nodes[&handle];
        if node.is_stopped(self.now) {
            return;
        }
        let mut node = self.nodes.remove(&handle).expect("it is there");
        let own = node.testimony();
        let me = node.me;
        let ask = |process: Process| match process == me {
            true => Some(own.clone()),
            false => {
                let asked = self.nodes.values().find(|other| other.me == process)?;
                let is_reached = asked.answers(self.now) && !self.is_parted(me.node, process.node);
                is_reached.then(|| asked.testimony())
            }
        };
        let fate = node.steward_turn(&self.etcd, &ask, self.now);
        if let Fate::Replaced = fate {
            self.nodes.insert(handle, node);
            self.log(|| format!("{me} is replaced"));
            return self.kill(handle);
        }
        if node.is_stuck {
            self.nodes.insert(handle, node);
            return;
        }
        let before = node.numbers();
        let heard = self.take_heard(handle, me);
        // They are put there one by one: a lane may turn between any two.
        let orders = match self.random.percent(50) {
            true => 1,
            false => usize::MAX,
        };
        node.lane_turn(heard, orders, at);
        let mut seats = Vec::new();
        for (seat, before) in node.seats.iter_mut().zip(before) {
            let view = seat.member.view().filter(|view| view.number > before);
            let view = view.cloned();
            let (failure, accused) = (seat.member.failure(), seat.member.take_accused());
            seats.push((view, seat.refused.why, failure, accused));
        }
        let resets: Vec<NodeId> = node.resets.drain(..).collect();
        self.nodes.insert(handle, node);
        for (group, (view, refused, failure, accused)) in seats.into_iter().enumerate() {
            if let Some(failure) = failure {
                self.violate(format!("{me} was told what cannot be: {failure}"));
            }
            if !accused.is_empty() {
                self.violate(format!("{me} accuses {accused:?}"));
            }
            if let Some(view) = view {
                self.report.tally.views = self.report.tally.views.max(view.number);
                self.log(|| {
                    format!(
                        "{me} has view {group}/{}: {:?} {:?}, handoff {:?}, refuses {refused:?}",
                        view.number, view.partitions, view.parities, view.handoff
                    )
                });
            }
        }
        self.deliver_out(handle);
        for node in resets {
            let far: Vec<Handle> = self
                .nodes
                .iter()
                .filter(|(_, other)| NodeId(other.me.node) == node)
                .map(|(other, _)| *other)
                .collect();
            far.into_iter().for_each(|far| self.cut_link(handle, far));
        }
    }

    fn take_heard(&mut self, handle: Handle, me: Process) -> Vec<(Process, Packet)> {
        let mut heard = Vec::new();
        for ((one, other), link) in &mut self.links {
            let (far, direction) = match handle {
                _ if *one == handle => (other, 1),
                _ if *other == handle => (one, 0),
                _ => continue,
            };
            let Some(far) = self.nodes.get(far).map(|node| node.me) else {
                continue;
            };
            let pair = (me.node.min(far.node), me.node.max(far.node));
            // Slow now and then; in order always.
            if self.parted.contains(&pair) || self.random.percent(10) {
                continue;
            }
            heard.extend(link[direction].drain(..).map(|packet| (far, packet)));
        }
        heard
    }

    /// Puts what a node says on its links.
    pub(super) fn deliver_out(&mut self, handle: Handle) {
        let Some(node) = self.nodes.get_mut(&handle) else {
            return;
        };
        for (to, packet) in std::mem::take(&mut node.out) {
            let linked = self.nodes[&handle].membership.linked(NodeId(to.node));
            let Some(far) = self.handle_of(to).filter(|_| linked == Some(to)) else {
                continue;
            };
            let direction = usize::from(far < handle);
            if let Some(link) = self.links.get_mut(&(handle.min(far), handle.max(far))) {
                link[direction].push_back(packet);
            }
        }
    }

    /// What must hold at every moment.
    fn look(&mut self) {
        let all: Vec<Process> = self.nodes.values().map(|node| node.me).collect();
        let distinct: BTreeSet<&Process> = all.iter().collect();
        if distinct.len() < all.len() {
            self.violate(format!("two processes cannot be told apart: {all:?}"));
        }
        let has_seed = self.etcd.borrow().entry(&document_keys().seed()).is_some();
        if has_seed && !self.etcd.borrow().has_lost {
            self.violate("etcd is seeded again, and has lost nothing".to_owned());
        }
        for group in 0..self.options.groups {
            (0..self.options.k).for_each(|partition| self.look_at(group, partition));
        }
        self.look_at_turns();
    }

    fn look_at(&mut self, group: usize, partition: usize) {
        let serves = |node: &&Node| {
            let seat = &node.seats[group];
            node.answers(self.now)
                && seat.refused.of(partition).is_none()
                && seat.member.may_read(partition, self.now)
        };
        let owners = self.nodes.values().filter(serves).map(|node| node.me);
        let owners: Vec<Process> = owners.collect();
        if owners.len() > 1 {
            self.violate(format!(
                "partition {group}/{partition} is served by {owners:?}"
            ));
        }
        let begun = self.view(group).map_or(1, |view| view.begun[partition]);
        if begun > 1 && self.given_up[group] >> partition & 1 == 0 {
            self.violate(format!(
                "partition {group}/{partition} starts from scratch in view {begun} by itself"
            ));
        }
    }

    /// Nobody may begin to hand a partition over for balance while something is missing. What has been so for less
    /// than a second it may not know yet.
    fn look_at_turns(&mut self) {
        let etcd = self.etcd.borrow();
        let turn = etcd
            .entry(&document_keys().turn())
            .map_or(0, |entry| entry.mod_revision);
        let is_well = |group: usize| {
            let view = etcd.entry(&document_keys().view(group));
            let view = view.and_then(|entry| decode_view(entry.value.clone().into()).ok());
            let is_there = |process: &Process| {
                etcd.entry(&document_keys().node(NodeId(process.node)))
                    .is_some()
            };
            view.is_some_and(|view| view.is_whole() && view.processes().iter().all(is_there))
        };
        let is_well = (0..self.options.groups).all(is_well);
        drop(etcd);
        if is_well {
            self.unwell_since = None;
        }
        let since = *self.unwell_since.get_or_insert(self.now);
        if turn > self.turn {
            self.report.tally.turns += 1;
            if !is_well && self.now - since > SECOND_NS {
                let state = self.describe();
                self.violate(format!(
                    "a partition is handed over while one is missing: {state}"
                ));
            }
        }
        self.turn = turn;
    }

    /// How many partitions each node that runs owns.
    pub(super) fn owned(&self) -> BTreeMap<u32, usize> {
        let mut owned: BTreeMap<u32, usize> =
            self.nodes.values().map(|node| (node.me.node, 0)).collect();
        for view in (0..self.options.groups).filter_map(|group| self.view(group)) {
            for owner in (0..self.options.k).filter_map(|partition| view.owner(partition)) {
                *owned.entry(owner.node).or_default() += 1;
            }
        }
        owned
    }

    /// The most slots that a node has.
    pub(super) fn slots_max(&self) -> usize {
        let mut slots: BTreeMap<u32, usize> = BTreeMap::new();
        for view in (0..self.options.groups).filter_map(|group| self.view(group)) {
            for process in view.processes() {
                *slots.entry(process.node).or_default() += 1;
            }
        }
        slots.values().max().copied().unwrap_or(0)
    }

    /// Whether no node owns two partitions more than another.
    pub(super) fn is_spread(&self) -> bool {
        let owned = self.owned();
        let most = owned.values().max().copied().unwrap_or(0);
        let is_moving = |group| self.view(group).is_none_or(|view| !view.is_calm());
        owned.values().all(|least| most - least < 2) && !(0..self.options.groups).any(is_moving)
    }
}
