//! What goes wrong: etcd is cut off, away or empty; nodes are cut off, stopped, stuck, killed and started twice.
//!
//! No more processes end at once than the group bears, so nothing may be lost unless an operator says so.

use cenote_kv::group::process::Process;
use cenote_kv::group::view::{Partition, Scheme, View};
use cenote_kv::group::wire::decode_view;
use cenote_kv_cluster::NodeId;
use cenote_kv_cluster::reset::{Reset, Sight};

use super::node::{Node, document_keys};
use super::world::{Handle, World};

const SECOND_NS: u64 = 1_000_000_000;
/// Rounds of kills after which a node may still own something.
const BARE_ROUNDS: u64 = 12;

/// What goes wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trouble {
    /// Some nodes do not reach etcd, and each other as ever.
    OffEtcd,
    /// Nobody reaches etcd.
    EtcdAway,
    /// Etcd is there again without what it had.
    EtcdEmpty,
    /// More nodes of the group than it bears are cut off together, from etcd and all others.
    Together,
    /// The same, and an operator says that they have ended.
    GivenUp,
    /// One node is cut off from some others.
    Links,
    /// A node's process is killed, and started again later.
    Kill,
    /// It is killed and started twice at once.
    Twins,
    /// A node's process is stopped for some time.
    Stop,
    /// A node's lane stands still, while its other threads go on, until the process is killed.
    Stuck,
    /// All nodes that the first group began on are restarted one by one, so that it is on others.
    MoveAway,
    /// As many as the group bears are killed at once, again and again, until one node owns nothing.
    Bare,
}

impl Trouble {
    /// Each.
    pub const ALL: [Self; 12] = [
        Self::OffEtcd,
        Self::EtcdAway,
        Self::EtcdEmpty,
        Self::Together,
        Self::GivenUp,
        Self::Links,
        Self::Kill,
        Self::Twins,
        Self::Stop,
        Self::Stuck,
        Self::MoveAway,
        Self::Bare,
    ];

    /// Those after which no operator has to say what has ended, where there are several groups.
    pub const OF_MANY_GROUPS: [Self; 7] = [
        Self::OffEtcd,
        Self::EtcdAway,
        Self::Links,
        Self::Kill,
        Self::Stop,
        Self::Stuck,
        Self::Bare,
    ];
}

impl World {
    /// Lets something go wrong, and mends it after some time.
    pub(super) fn suffer(&mut self, trouble: Trouble) {
        let time = match self.random.percent(50) {
            true => self.random.between(SECOND_NS / 10, 4 * SECOND_NS),
            false => self.random.between(4 * SECOND_NS, 25 * SECOND_NS),
        };
        self.report.tally.troubles += 1;
        self.log(|| format!("{trouble:?} for {} ms", time / 1_000_000));
        match trouble {
            Trouble::OffEtcd => {
                let cut = self.some_nodes();
                self.etcd.borrow_mut().cut.extend(&cut);
                self.go_on(time);
            }
            Trouble::EtcdAway => {
                self.etcd.borrow_mut().is_up = false;
                self.go_on(time);
            }
            Trouble::EtcdEmpty => {
                self.etcd.borrow_mut().is_up = false;
                let away = self.random.below(5 * SECOND_NS);
                self.go_on(away);
                self.etcd.borrow_mut().lose();
                self.etcd.borrow_mut().is_up = true;
                self.go_on(time);
            }
            Trouble::Together => self.part_many(time),
            Trouble::GivenUp => self.part_many(12 * SECOND_NS + time),
            Trouble::Links => {
                let some = self.some_nodes();
                let one = self.random.below(u64::from(self.options.nodes()));
                let one = u32::try_from(one).expect("few nodes");
                self.part(&[one], &some);
                self.go_on(time);
            }
            Trouble::Kill | Trouble::Twins | Trouble::Stuck => {
                if let Some(victim) = self.victim() {
                    self.lose(trouble, victim, time);
                }
            }
            Trouble::Stop => {
                let all: Vec<Handle> = self.nodes.keys().copied().collect();
                let handle = *self.random.pick(&all);
                let until = self.now + time;
                self.nodes
                    .get_mut(&handle)
                    .expect("it is one")
                    .stopped_until = until;
                self.go_on(time);
            }
            Trouble::MoveAway => self.move_away(),
            Trouble::Bare => self.bare(),
        }
        // A whole group that hears itself goes on: nobody may say that it has ended.
        if trouble == Trouble::GivenUp && self.options.k > 1 {
            self.operate(true);
            // Who was given up may reach etcd again before the others.
            if self.random.percent(50) {
                self.etcd.borrow_mut().cut.clear();
                let apart = self.random.below(3 * SECOND_NS);
                self.go_on(apart);
            }
        }
        self.mend();
        // Without those that were cut off there may have been no node for all that had to start from scratch.
        if trouble == Trouble::GivenUp {
            self.go_on(10 * SECOND_NS);
            self.finish_operation();
        }
    }

    /// What is left for an operator: what it had begun, and a group whose view etcd lost with a process of it.
    pub(super) fn finish_operation(&mut self) {
        for _ in 0..6 {
            if !self.is_calm() {
                self.operate(false);
                self.go_on(10 * SECOND_NS);
            }
        }
    }

    /// Ends whatever cuts something off. Processes that are to be started are.
    pub(super) fn mend(&mut self) {
        let mut etcd = self.etcd.borrow_mut();
        etcd.cut.clear();
        etcd.is_up = true;
        drop(etcd);
        self.parted.clear();
    }

    pub(super) fn go_on(&mut self, time: u64) {
        let until = self.now + time;
        while self.now < until && !self.is_broken() {
            self.step();
        }
    }

    /// Goes on until something is so; a violation if it is not within a minute.
    pub(super) fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> bool {
        let limit = self.now + 120 * SECOND_NS;
        while !self.is_broken() && !is_so(self) {
            self.step();
            if self.now >= limit {
                let state = self.describe();
                self.violate(format!("not within two minutes: {what}: {state}"));
            }
        }
        !self.is_broken()
    }

    fn some_nodes(&mut self) -> Vec<u32> {
        let share = self.random.between(20, 101);
        let all = 0..self.options.nodes();
        let cut: Vec<u32> = all.filter(|_| self.random.percent(share)).collect();
        // What hurts most: all of the group's, and nobody else.
        match self.a_view().filter(|_| self.random.percent(40)) {
            Some(view) => view
                .processes()
                .iter()
                .map(|process| process.node)
                .collect(),
            None => cut,
        }
    }

    fn part(&mut self, some: &[u32], others: &[u32]) {
        for one in some {
            for other in others {
                if one != other {
                    self.parted.insert((*one.min(other), *one.max(other)));
                }
            }
        }
    }

    /// More of the group than it bears, but not all of it if that can be.
    fn part_many(&mut self, time: u64) {
        let Some(view) = self.view(0) else { return };
        let mut inside: Vec<u32> = view
            .processes()
            .iter()
            .map(|process| process.node)
            .collect();
        // With one partition more than is borne is all of it.
        let left = match self.options.k as u64 {
            1 => 0,
            k => self.random.between(1, k),
        };
        for _ in 0..left.min(inside.len() as u64 - 1) {
            let index = self.random.below(inside.len() as u64);
            inside.swap_remove(usize::try_from(index).expect("an index"));
        }
        let others: Vec<u32> = (0..self.options.nodes())
            .filter(|node| !inside.contains(node))
            .collect();
        self.log(|| format!("{inside:?} are cut off"));
        self.part(&inside, &others);
        self.etcd.borrow_mut().cut.extend(&inside);
        self.go_on(time);
    }

    /// A process of the group that may end now: all the others are as they should be.
    fn victim(&mut self) -> Option<Handle> {
        if !self.is_calm() {
            return None;
        }
        let inside = self.a_view()?.processes();
        let process = *self.random.pick(&inside);
        self.handle_of(process)
    }

    fn lose(&mut self, trouble: Trouble, victim: Handle, time: u64) {
        let me = self.nodes[&victim].me;
        let node = me.node;
        match trouble {
            Trouble::Stuck => {
                self.nodes.get_mut(&victim).expect("it is there").is_stuck = true;
                self.go_on(20 * SECOND_NS);
                let key = document_keys().node(NodeId(node));
                if self.etcd.borrow().entry(&key).is_some() && !self.is_broken() {
                    self.violate(format!("{me} serves nothing and is registered"));
                }
                self.kill(victim);
                self.starts.push((self.now, node));
            }
            Trouble::Twins => {
                self.kill(victim);
                let first = self.start(node);
                let second = self.start(node);
                if first.is_none() && second.is_none() {
                    self.starts.push((self.now, node));
                }
            }
            _ => {
                self.kill(victim);
                self.starts.push((self.now + time, node));
            }
        }
        self.go_on(time);
    }

    fn move_away(&mut self) {
        self.finish_operation();
        let plan = u32::try_from(self.options.k + self.options.m).expect("few nodes");
        // One that is there again takes the next one's place: where spares are enough none is before all have moved.
        let return_together = self.options.spares >= plan;
        let mut ended = Vec::new();
        for node in 0..plan {
            if !self.until("the group is whole", Self::is_calm) {
                return;
            }
            let inside = self
                .view(0)
                .map(|view| view.processes())
                .unwrap_or_default();
            if let Some(process) = inside.iter().find(|process| process.node == node) {
                let handle = self.handle_of(*process).expect("it is calm");
                self.kill(handle);
                self.until("others have its places", |world| {
                    world.is_calm_without(node)
                });
                ended.push((self.now, node));
                if !return_together {
                    self.starts.append(&mut ended);
                    self.go_on(SECOND_NS);
                }
            }
        }
        self.starts.append(&mut ended);
        self.go_on(SECOND_NS);
    }

    /// A group's view.
    fn a_view(&mut self) -> Option<View> {
        let group = match self.options.groups {
            1 => 0,
            groups => self.random.below(groups as u64),
        };
        self.view(usize::try_from(group).expect("few groups"))
    }

    /// Kills until a node owns nothing: with it others die, and come back before it and get what it had.
    fn bare(&mut self) {
        self.finish_operation();
        let nodes = u64::from(self.options.nodes());
        let first = u32::try_from(self.random.below(nodes)).expect("few nodes");
        for _ in 0..BARE_ROUNDS {
            if !self.until("the groups are whole", Self::is_calm) {
                return;
            }
            if self.owned().get(&first) == Some(&0) {
                self.report.tally.bare += 1;
                self.log(|| format!("node {first} owns nothing"));
                return;
            }
            let mut others: Vec<u32> = (0..self.options.nodes())
                .filter(|node| *node != first)
                .collect();
            let mut ended = vec![first];
            while ended.len() < self.options.m {
                let other = self.random.below(others.len() as u64);
                ended.push(others.swap_remove(usize::try_from(other).expect("an index")));
            }
            for node in &ended {
                let mut all = self.nodes.iter();
                let handle = all
                    .find(|(_, one)| one.me.node == *node)
                    .map(|(handle, _)| *handle);
                handle.into_iter().for_each(|handle| self.kill(handle));
            }
            let inside = |world: &Self, nodes: &[u32]| {
                let views = (0..world.options.groups).filter_map(|group| world.view(group));
                views
                    .flat_map(|view| view.processes())
                    .any(|one| nodes.contains(&one.node))
            };
            let gone = ended.clone();
            if !self.until("they are missed", |world| !inside(world, &gone)) {
                return;
            }
            let pause = self.random.below(SECOND_NS);
            for node in ended.into_iter().rev() {
                self.go_on(pause);
                self.starts.push((self.now, node));
            }
            self.go_on(SECOND_NS / 10);
        }
    }

    fn is_calm_without(&self, gone: u32) -> bool {
        let view = self.view(0);
        view.is_some_and(|view| {
            view.is_whole() && !view.processes().iter().any(|process| process.node == gone)
        })
    }

    /// Whether the group is whole and all of it lives, linked and registered, in the same view.
    pub(super) fn is_calm(&self) -> bool {
        (0..self.options.groups).all(|group| self.is_group_calm(group))
    }

    fn is_group_calm(&self, group: usize) -> bool {
        let Some(view) = self.view(group) else {
            return false;
        };
        let is_in_it = |node: &Node| {
            let own = node.view(group);
            own.is_some_and(|own| own.number == view.number)
                && node.seats[group].refused.why.is_none()
        };
        let inside = view.processes();
        let lives = |process: &Process| {
            let handle = self.handle_of(*process);
            let node = handle.map(|handle| &self.nodes[&handle]);
            node.is_some_and(|node| {
                let others = inside.iter().filter(|other| *other != process);
                let mut others = others.map(|other| NodeId(other.node));
                is_in_it(node)
                    && node.answers(self.now)
                    && others.all(|other| node.membership.linked(other).is_some())
            })
        };
        let known = self.etcd.borrow();
        let key = document_keys().view(group);
        let is_known = known.entry(&key).is_some_and(|entry| {
            let known = decode_view(entry.value.clone().into());
            known.is_ok_and(|known| known == view)
        });
        view.is_whole() && inside.iter().all(lives) && is_known
    }

    /// An operator says that what is not registered has ended; `is_sure`: also of what may live.
    pub(super) fn operate(&mut self, is_sure: bool) {
        (0..self.options.groups).for_each(|group| self.operate_on(group, is_sure));
    }

    fn operate_on(&mut self, group: usize, is_sure: bool) {
        for _ in 0..40 {
            if self.is_broken() {
                return;
            }
            let latest = self.view(group);
            let homes: Vec<u32> = (0..self.options.nodes()).collect();
            let is_heard = |process: Process| !is_sure && self.handle_of(process).is_some();
            let sight = Sight {
                homes: &homes,
                latest,
                nothing: View::nothing(Scheme::Coded, self.options.k, self.options.m),
                is_heard: &is_heard,
            };
            let done = document_keys().begin_reset(&self.operator(), group, &sight);
            let before = self.view(group);
            match done.expect("it is up") {
                Reset::Nothing | Reset::Lives(_) => return,
                Reset::Begun { partition, .. } => self.given_up[group] |= 1 << partition,
                Reset::AllBegun(_) => self.given_up[group] = u32::MAX,
                Reset::GivenUp(gone) => {
                    let after = before.and_then(|view| view.without(|one| gone.contains(&one)));
                    // What is still recovered then cannot be told from what is lost.
                    let is_home = |partition: &Partition| matches!(partition, Partition::Home(_));
                    let partitions = after.map(|view| view.partitions).unwrap_or_default();
                    for (index, _) in partitions
                        .iter()
                        .enumerate()
                        .filter(|(_, one)| !is_home(one))
                    {
                        self.given_up[group] |= 1 << index;
                    }
                    self.log(|| format!("an operator gives {gone:?} up"));
                }
                Reset::Restored(_) | Reset::NoNode | Reset::NotCalm => {}
            }
            self.go_on(SECOND_NS);
        }
    }

    pub(super) fn describe(&self) -> String {
        let nodes = self.nodes.values().map(|node| {
            let refused = node.seats.iter().map(|seat| seat.refused.why);
            let refused: Vec<_> = refused.collect();
            format!("{} views {:?} refuses {refused:?}", node.me, node.numbers())
        });
        let nodes: Vec<String> = nodes.collect();
        let views = (0..self.options.groups).map(|group| self.view(group));
        let views: Vec<_> = views.collect();
        format!("{views:?}; {nodes:?}; owned {:?}", self.owned())
    }
}
