//! Whole nodes in one process and in virtual time: `cenote lab kv --whole-nodes`.
//!
//! Registrar, steward, membership, detector, steering and member of each node are the real code (`cenote_kv`);
//! links, clients and an [etcd] with leases, revisions, watches, cuts of its own and loss of its data are drawn
//! from a seed.
//!
//! Checked at every step: no two processes cannot be told apart, none but one serves a partition, and none starts from scratch
//! but by an operator. Checked when all is mended: the group is whole, and fails over again; what clients saw of each
//! key is linearizable; what serves nothing is not registered; and etcd is not asked without end.

mod client;
mod etcd;
mod node;
mod trouble;
mod world;

pub use cenote_kv_cluster::injected_faults::{ALL as FAULTS, InjectedFault};
use serde::Serialize;

use super::linear::{Call, is_linearizable};
#[cfg(feature = "injected-faults")]
use crate::report::Injection;
use crate::report::Report;
pub use trouble::Trouble;
use world::World;

const SECOND_NS: u64 = 1_000_000_000;
/// Attempts to change keys of etcd in one second, for each node: more is asking without end. One whose attempts come
/// to an unknown end makes one every 50 ms.
const TRIES_MAX: usize = 24;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Data partitions.
    pub k: usize,
    /// Parities.
    pub m: usize,
    /// Groups, rotated over the nodes.
    pub groups: usize,
    /// Nodes beyond as many as a group has slots.
    pub spares: u32,
    /// How often something goes wrong.
    pub troubles: u64,
    /// What goes wrong; none: anything.
    pub only: &'static [Trouble],
    /// A mistake to be found.
    pub injected: Option<InjectedFault>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            k: 2,
            m: 1,
            groups: 1,
            spares: 2,
            troubles: 8,
            only: &[],
            injected: None,
        }
    }
}

impl Options {
    fn nodes(&self) -> u32 {
        u32::try_from(self.k + self.m).expect("few nodes") + self.spares
    }

    /// A cluster of several groups, each on all nodes, in which owners have to be spread again.
    #[must_use]
    pub fn many_groups() -> Self {
        Self {
            k: 3,
            m: 2,
            groups: 5,
            spares: 0,
            troubles: 5,
            only: &Trouble::OF_MANY_GROUPS,
            ..Self::default()
        }
    }

    /// A cluster in which a node has slots of few of the groups, and nothing goes wrong but that one dies in the end.
    #[must_use]
    pub fn many_nodes() -> Self {
        Self {
            k: 3,
            m: 2,
            groups: 10,
            spares: 5,
            troubles: 0,
            ..Self::default()
        }
    }

    /// A cluster whose troubles lead to where a mistake shows.
    #[must_use]
    pub fn suited(injected: InjectedFault, seed: u64) -> Self {
        let only: &[Trouble] = match injected {
            InjectedFault::ExpiryIsDeath => &[Trouble::Together],
            InjectedFault::BeginsByItself => &[Trouble::MoveAway, Trouble::OffEtcd],
            InjectedFault::NeverCloses => &[Trouble::GivenUp],
            InjectedFault::DeafLease => &[Trouble::Stuck],
            InjectedFault::BlindClaim => &[Trouble::Twins],
            InjectedFault::LossUnseen => &[Trouble::EtcdEmpty],
            InjectedFault::HastyBalance => &[Trouble::Bare, Trouble::Kill],
            _ => &[],
        };
        if injected == InjectedFault::HastyBalance {
            return Self {
                seed,
                only,
                injected: Some(injected),
                ..Self::many_groups()
            };
        }
        // As many beside the plan as in it: the group may be on none of its own.
        let spares = if injected == InjectedFault::BeginsByItself {
            3
        } else {
            2
        };
        Self {
            seed,
            only,
            spares,
            injected: Some(injected),
            ..Self::default()
        }
    }

    /// The command that repeats the simulation.
    #[must_use]
    pub fn command(&self) -> String {
        let seed = self.seed;
        let known = FAULTS
            .iter()
            .find(|(_, known)| Some(*known) == self.injected);
        match known {
            Some((name, _)) => format!("cenote lab kv --whole-nodes --seed {seed} --plant {name}"),
            None => format!(
                "cenote lab kv --whole-nodes --seed {seed} --k {} --m {} --groups {}",
                self.k, self.m, self.groups
            ),
        }
    }
}

/// What was done in a simulation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Tally {
    /// Operations of clients that ended.
    pub operations: u64,
    /// Operations that were refused, or not served in time.
    pub refused: u64,
    /// How often something went wrong.
    pub troubles: u64,
    /// Partitions that were handed over for balance, or tried to be.
    pub turns: u64,
    /// How often a node was made to own nothing.
    pub bare: u64,
    /// The greatest number of a view.
    pub views: u32,
}

/// Runs one simulation.
#[must_use]
pub fn run(options: &Options) -> Report<Tally> {
    #[cfg(feature = "injected-faults")]
    let _made = Injection::new(cenote_kv_cluster::injected_faults::inject, options.injected);
    Report::of(options.seed, || live(World::new(options)))
}

fn live(mut world: World) -> Report<Tally> {
    if world.until("the group begins", World::is_calm) {
        world.etcd.borrow_mut().losses = *world.random.pick(&[0, 1, 5]);
        for _ in 0..world.options.troubles {
            let rest = world.random.between(SECOND_NS / 2, 8 * SECOND_NS);
            world.go_on(rest);
            let all = match world.options.only {
                [] => &Trouble::ALL[..],
                only => only,
            };
            let trouble = *world.random.pick(all);
            if !world.is_broken() {
                world.suffer(trouble);
            }
        }
        settle(&mut world);
    }
    world.end()
}

/// All is mended: everything is to be as it should, and to fail over once more.
fn settle(world: &mut World) {
    world.mend();
    world.etcd.borrow_mut().losses = 0;
    world.go_on(20 * SECOND_NS);
    world.finish_operation();
    if !world.until("the group is whole", World::is_calm) {
        return;
    }
    // With several groups no node is left without its share.
    if world.options.groups > 1 && !world.until("owners are spread", World::is_spread) {
        return;
    }
    let inside = world
        .view(0)
        .map(|view| view.processes())
        .unwrap_or_default();
    let victim = *world.random.pick(&inside);
    let handle = world.handle_of(victim).expect("it is calm");
    world.log(|| format!("{victim} is killed in the end"));
    world.kill(handle);
    if world.options.spares == 0 {
        world.starts.push((world.now + SECOND_NS, victim.node));
    }
    let takes_over = |world: &World| {
        let view = world.view(0);
        world.is_calm() && view.is_some_and(|view| !view.has(victim))
    };
    if !world.until("another takes the place of who is killed", takes_over) {
        return;
    }
    // What one node had, many have: a node has memory for little more than its share.
    let share = world.options.groups * (world.options.k + world.options.m);
    let share = share.div_ceil(world.options.nodes() as usize);
    if world.options.troubles == 0 && world.slots_max() > share + 1 {
        let state = world.describe();
        world.violate(format!(
            "a node has more than {share} slots and one: {state}"
        ));
    }
    read_all(world);
    judge(world);
}

/// The last reads of all keys: nothing acknowledged may be missing.
fn read_all(world: &mut World) {
    let mut clients = std::mem::take(&mut world.clients);
    for key in 0..client::keys(world) {
        let reader = &mut clients[0];
        reader.give_up();
        let at = *world.nodes.keys().next().expect("nodes run");
        reader.begin(key, None, at, world);
        let limit = world.now + 5 * SECOND_NS;
        while !reader.is_idle() && !world.is_broken() {
            world.step();
            reader.step(world);
            if world.now >= limit {
                let state = world.describe();
                world.violate(format!("key {key} is not read: {state}"));
            }
        }
    }
    world.clients = clients;
}

fn judge(world: &mut World) {
    // What nobody heard the end of may have been done, and read.
    for client in &mut world.clients {
        client.give_up();
    }
    for key in 0..client::keys(world) {
        let (group, partition) = client::partition_of(key, world);
        if world.given_up[group] >> partition & 1 == 1 {
            continue;
        }
        let all = world.clients.iter().flat_map(|client| &client.calls);
        let calls: Vec<Call> = all
            .filter(|(of, _)| *of == key)
            .map(|(_, call)| *call)
            .collect();
        if !is_linearizable(&calls, false) {
            let mut calls = calls;
            calls.sort_by_key(|call| call.begun);
            world.violate(format!("what was seen of key {key} cannot be: {calls:?}"));
        }
    }
    let most = world.etcd.borrow().tries_max;
    if most > TRIES_MAX * world.options.nodes() as usize {
        world.violate(format!("etcd was asked for {most} changes in a second"));
    }
}
